"""The codec that a hook chooses by itself, ``"auto"``: what may be sent how, and what is sent until it has chosen."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ._kinds import is_sgd
from ._options import Options
from ._plan import Named, Plan
from ._schedule import Lane, lanes_of
from ._trials import HIDDEN, NEAR, Took, Trials
from ._word import Word


@dataclass(frozen=True)
class Way:
    """How gradients may be sent."""

    codec: str
    #: How payloads of sums travel.
    wire: str = "f32"

    def __str__(self) -> str:
        return f"{self.codec} (wire={self.wire})" if self.wire != "f32" else self.codec


_DENSE = (Way("none"), Way("none", "bf16"))
#: Gentlest first.
WITH_SGD = (
    *_DENSE,
    Way("topk:density=0.1"),
    Way("topk:density=0.01"),
    Way("topk:density=0.01,values=q4,index=small"),
    Way("topk:density=0.001"),
    Way("topk:density=0.001,values=q4"),
)
#: Optimizers that divide by second moments lose accuracy with sparse gradients, and of others nothing is known.
WITH_OTHERS = (*_DENSE, Way("qsgd:bits=8"), Way("qsgd:bits=4"))
#: Sends all that was kept, and keeps nothing.
_ALL = "topk:density=1"


class Auto:
    """Tries one way to send after the other, and chooses one. All ranks try the same one in the same step."""

    def __init__(self, tensors: Sequence[Named], options: Options) -> None:
        """With those that suit the optimizer."""
        self.ways = WITH_SGD if is_sgd(options.optimizer) else WITH_OTHERS
        # Codecs of one name share a lane, and what it keeps.
        numbers: dict[tuple[str, str], int] = {}
        self._plans = []
        for way in self.ways:
            lane = numbers.setdefault((way.codec.partition(":")[0], way.wire), len(numbers))
            self._plans.append(Plan(tensors, way.codec, {}, options.dense_below, lane))
        topk = numbers.get(("topk", "f32"))
        self._all = None if topk is None else Plan(tensors, _ALL, {}, options.dense_below, topk)
        #: What keeps, if anything does.
        self.plan = self._all or self._plans[0]
        self._start_step, self._discardable = options.start_step, options.discardable
        #: How ranks tell each other their times.
        self.word: Word
        self._trials = Trials(len(self.ways))
        #: What was chosen and why.
        self.text: str | None = None
        #: The number of what was chosen.
        self.chosen: int | None = None
        #: Whether anything may be kept.
        self.owes = False
        self._step = -1
        self._is_telling = False
        # The step in which all that was kept is sent.
        self._flushed: int | None = None
        self._ended = 0.0

    def lanes(self) -> list[Lane]:
        """As the engine makes them."""
        by_number = {plan.groups[0].lane: (plan, way.wire) for plan, way in zip(self._plans, self.ways, strict=True)}
        return [one for plan, wire in by_number.values() for one in lanes_of(plan, self._discardable, wire)]

    def now(self, step: int, last: str) -> Plan:
        """What a step sends that begins, after one that ended so."""
        if self._flushed is not None and self._flushed < step and last == "holds":
            self.owes = False
        self._step, self._flushed = step, None
        plan = self._plans[self._trials.at if self.chosen is None else self.chosen]
        if plan.groups[0].keeps:
            self.owes = True
        elif self.chosen is not None and self.owes and self._all is not None:
            self._flushed = step
            return self._all
        return plan

    def says(self) -> list[float] | None:
        """What this rank tells the others ahead of the step that begins, if it does."""
        says = self._trials.says() if self.chosen is None else None
        self._is_telling = says is not None
        return says

    def ended(self, waited: float | None, last: str) -> bool:
        """After each step, with how long backward waited; `None` where there was none. Returns whether this made the choice."""
        now, before = time.perf_counter(), self._ended
        self._ended = now
        if self.chosen is not None or self._step < self._start_step:
            return False
        if not self._is_telling:
            if last == "holds":
                self._trials.step(None if waited is None else Took(now - before - waited, waited))
            return False
        told = self.word.heard()
        # The same at all ranks.
        if all(math.isfinite(number) for row in told for number in row):
            self._trials.hear(told)
        if self._trials.choice is None:
            return False
        self.chosen = self._trials.choice
        self.text = _explained(self._trials, self.ways, self._step + 1)
        return True

    def state(self) -> dict[str, Any]:
        """What was chosen, for a state that is saved."""
        way = None if self.chosen is None else self.ways[self.chosen]
        return {"codec": way and way.codec, "wire": way and way.wire, "owes": self.owes}

    def number_in(self, state: Mapping[str, Any]) -> int | None:
        """What a state has chosen, whose shape was checked."""
        told = state["auto"]
        if told is None or told["codec"] is None:
            return None
        way = Way(told["codec"], told["wire"])
        if way not in self.ways:
            known = ", ".join(map(str, self.ways))
            raise ValueError(f"state: auto: {way} was chosen, expected one of those for this optimizer, which are {known}")
        return self.ways.index(way)

    def take(self, state: Mapping[str, Any]) -> None:
        """Goes on with what a state has chosen, or tries all again."""
        self.chosen = self.number_in(state)
        self.owes = self._all is not None and (bool(state["residual"]) if state["auto"] is None else state["auto"]["owes"])
        self._trials, self._flushed = Trials(len(self.ways)), None
        self.text = None if self.chosen is None else f"auto: {self.ways[self.chosen]}, as in the state that was loaded"


def _explained(trials: Trials, ways: Sequence[Way], step: int) -> str:
    """One line: what is chosen and why."""
    chosen = ways[trials.choice or 0]
    if trials.is_hidden():
        why = f"its exchange adds at most {HIDDEN:.0%} to a step"
    else:
        why = f"the gentlest whose step is within {NEAR:.0%} of the shortest"
    waits = ", ".join(f"{way} {1e3 * took.wait:.1f} ms" for way, took in zip(ways, trials.tried, strict=False))
    return (
        f"auto: {chosen} from step {step} on: {why}. A step computes for {1e3 * trials.compute:.1f} ms, and then waits for the "
        f"means of all ranks: {waits}"
    )
