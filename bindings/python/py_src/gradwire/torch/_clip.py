"""Clipping before compression, by the norm over all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ._bucket import Bucket
from ._stage import Stage
from ._word import Word


class Clip:
    """The buckets of a step, held back until all ranks know the norm of the whole gradient.

    That is the root of the mean, over ranks, of the squares of the norms of their gradients. It is never below the norm of the
    mean gradient. All ranks multiply by the same factor, so the mean keeps its direction.
    """

    def __init__(self, most: float, word: Word) -> None:
        """With what tells the norms."""
        self._most, self.word = most, word
        self.held: list[Bucket] = []
        #: Over all ranks, in the last step.
        self.norm: float | None = None

    def release(self) -> list[Bucket]:
        """The buckets that were held back."""
        held, self.held = self.held, []
        return held

    def own(self, jobs: Sequence[Bucket]) -> float:
        """The norm of this rank."""
        gradients = [one for job in jobs for one in job.gradients if one is not None]
        with torch.no_grad():
            norms = [float(torch.linalg.vector_norm(one, dtype=torch.float64)) for one in gradients]
        # The sum is exact, so it does not depend on buckets.
        return math.sqrt(math.fsum(norm * norm for norm in norms))

    def clip(self, jobs: Sequence[Bucket], stage: Stage) -> None:
        """Scales the gradients down, if the norm that all ranks know of is too large."""
        norms = [norm for (norm,) in self.word.heard()]
        self.norm = math.sqrt(math.fsum(norm * norm for norm in norms) / len(norms)) / (jobs[0].scale or 1.0)
        if not self.norm > self._most:
            return
        with torch.no_grad():
            for job in jobs:
                for gradient in job.gradients:
                    if gradient is not None:
                        gradient.mul_(self._most / self.norm)
                job.marks.append(stage.mark())
