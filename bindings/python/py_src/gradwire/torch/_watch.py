"""What the thread of the engine looks at after each step, to tell the user of it."""

from __future__ import annotations

import math

from gradwire._core import _Engine

from ._advice import STEPS, Took, advice
from ._keep import Keep
from ._spikes import Spikes


class Watch:
    """Whether compression pays, and whether what is kept back has suddenly grown."""

    def __init__(self, core: _Engine, keep: Keep, elements: int) -> None:
        """With the number of elements of the whole gradient."""
        self._core, self._keep, self._elements = core, keep, elements
        self._took: list[Took] = []
        self._before = Took(0.0, 0.0, 0.0)
        self._is_advised = False
        self.advice: str | None = None
        self.spikes = Spikes()

    def after_step(self, step: int, is_compressed: bool) -> int | None:
        """After ten compressed steps: how many elements to measure, to see whether dense gradients would be there sooner."""
        _, scale, lr, _, _ = self._core.progress()
        # Residuals grow with the scale, and as the learning rate falls.
        self.spikes.see(step, self._keep.norm(is_sampled=True) * (lr or 1.0) / (scale or 1.0))
        totals = self._core.totals()
        now = Took(totals["encode"], totals["exchange"], totals["decode"])
        before, self._before = self._before, now
        if not is_compressed or len(self._took) == STEPS:
            return None
        self._took.append(Took(now.encode - before.encode, now.exchange - before.exchange, now.decode - before.decode))
        return self._elements if len(self._took) == STEPS else None

    def measured(self, dense_seconds: float) -> None:
        """What a dense exchange takes."""
        totals = self._core.totals()
        ratio = totals["dense"] / totals["frame"] if totals["frame"] else math.inf
        self.advice = advice(self._took, dense_seconds, ratio)

    def news(self, rank: int) -> list[str]:
        """What the user is to be warned of now."""
        news = []
        if self.advice is not None and not self._is_advised:
            self._is_advised = True
            if rank == 0:
                news.append(self.advice)
        spike = self.spikes.tell(self._core.progress()[0] - 1)
        return [*news, spike] if spike is not None else news
