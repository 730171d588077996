"""What the thread of the engine looks at after each step: whether compression pays, spikes, and the log."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import astuple

import torch

from gradwire import Codec
from gradwire._core import _View

from ._advice import HOOK, STEPS, Took, advice
from ._plan import Plan
from ._record import Log, Now
from ._spikes import Spikes


class Watch:
    """What is seen of a hook. It holds no hook, so the thread that calls it keeps none from ending."""

    #: Of the engine, which is made after this.
    view: _View

    def __init__(self, plan: Plan, codec: str | None, elements: int, world: int) -> None:
        """With what is compressed, and the number of elements of the whole gradient.

        Without a codec, that of the hook changes: it chooses by itself, and needs no advice.
        """
        self._plan, self._codec, self._elements, self._world = plan, codec, elements, world
        #: Of steps that were begun, by number: what is sent how, and the epoch.
        self.begun: dict[int, tuple[Plan, list[Codec], int | None]] = {}
        self.log: Log | None = None
        self.loss: float | None = None
        self.advice: str | None = None
        self.spikes = Spikes()
        #: In the words of what the user has called.
        self.remedies = HOOK
        self._took: list[Took] = []
        self._before = Took(0.0, 0.0, 0.0, 0.0)
        self._is_advised = False
        self._sent = plan

    def after_step(self, step: int, seconds: float | None) -> int | None:
        """After each step; and, if it returned a number of elements, with the seconds that a dense exchange of them takes."""
        if seconds is not None:
            totals = self.view.totals()
            ratio = totals["dense"] / totals["frame"] if totals["frame"] else math.inf
            self.advice = advice(self._took, self.dense_seconds(seconds), ratio, self.remedies)
            return None
        # The calling thread may have begun the next step.
        plan, codecs, epoch = self.begun.pop(step, (self._plan, [], None))
        _, scale, lr, _, _ = self.view.progress()
        if plan is not self._sent:
            # Another codec keeps more or less.
            self._sent = plan
            self.spikes.forget()
        # Residuals grow with the scale, and as the learning rate falls.
        self.spikes.see(step, self.norm(is_sampled=True) * (lr or 1.0) / (scale or 1.0))
        if self.log is not None:
            self._write_line(self.log, step, codecs, epoch)
        return self._judge(plan)

    def dense_seconds(self, measured: float) -> float:
        """What a dense exchange takes, as it was measured."""
        return measured

    def norm(self, *, is_sampled: bool = False) -> float:
        """L2 norm of the residuals, or of a 64th of them."""
        norm: float = self.view.norm([group.lane for group in self._plan.groups if group.keeps], is_sampled=is_sampled)
        return norm

    def news(self, rank: int) -> list[str]:
        """What the user is to be warned of now."""
        news = []
        if self.advice is not None and not self._is_advised:
            self._is_advised = True
            if rank == 0:
                news.append(self.advice)
        spike = self.spikes.tell(self.view.progress()[0] - 1)
        return news if spike is None else [*news, f"{spike} {self.remedies.spike}."]

    def _judge(self, plan: Plan) -> int | None:
        """After ten compressed steps: how many elements to measure, to see whether dense gradients would be there sooner."""
        totals = self.view.totals()
        now = Took(totals["encode"], totals["exchange"], totals["decode"], time.monotonic())
        before, self._before = self._before, now
        sends_all = all(group.kind == "sum" for group in plan.groups)
        if self._codec is None or plan is not self._plan or sends_all or len(self._took) == STEPS or self._world == 1:
            return None
        self._took.append(Took(*(after - earlier for after, earlier in zip(astuple(now), astuple(before), strict=True))))
        return self._elements if len(self._took) == STEPS else None

    def _write_line(self, log: Log, step: int, codecs: Sequence[Codec], epoch: int | None) -> None:
        """The training goes on whatever comes of it: a full disk, or a loss that is no number."""
        _, _, lr, _, last = self.view.progress()
        densities = [codec.density for codec in codecs if codec.density is not None]
        target = densities[0] if densities else None
        codec = self._codec or ", ".join(map(str, codecs))
        loss = self.loss.detach() if isinstance(self.loss, torch.Tensor) else self.loss
        try:
            log.write(self.view.totals(), Now(step, codec, epoch, loss, lr, self.norm(), target, last == "nothing"))
        except Exception as error:
            self.log = None
            warnings.warn(f"the log ends: {type(error).__name__}: {error}", stacklevel=1)
