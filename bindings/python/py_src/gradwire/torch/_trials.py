"""Which of several ways to send gradients is taken, by the times of a few steps with each. Nothing here knows of processes.

They are tried in their order, the gentlest first. As soon as backward hides the exchange of one, that one is taken, and no
other is tried. If backward hides none, the gentlest of those that are nearly as fast as the fastest is taken. Ranks tell each
other their times, so all of them decide by the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

# Steps of each that are timed, and steps before those: in the first, DDP cuts its buckets anew and optimizers allocate.
_TIMED = 5
_WARM_AT_FIRST, _WARM = 3, 1
#: A wait of this share of what a step computes is hidden.
HIDDEN = 0.05
#: A step that is longer than the shortest by this share is as fast.
NEAR = 0.05
#: In place of the wait of a rank that has run out of inputs: that of any other rank is shorter.
_ABSENT = 1e9
#: How many numbers a rank says.
SAID = 1 + _TIMED


@dataclass(frozen=True)
class Took:
    """Seconds of a step, or of the steps of a trial."""

    #: Forward, backward, the optimizer, and whatever else the loop does.
    compute: float
    #: For means, once all gradients were there.
    wait: float


@dataclass
class Trials:
    """The trials of so many ways, up to the choice."""

    count: int
    #: That which is tried now.
    at: int = 0
    #: What all ranks agree on, of those that were tried.
    tried: list[Took] = field(default_factory=list)
    choice: int | None = None
    _warm: int = _WARM_AT_FIRST
    #: Of the steps of this rank; `None` for one in which it had no inputs.
    _own: list[Took | None] = field(default_factory=list)

    def step(self, took: Took | None) -> None:
        """A step has ended that holds."""
        if self._warm:
            self._warm -= 1
        elif len(self._own) < _TIMED:
            self._own.append(took)

    def says(self) -> list[float] | None:
        """What this rank tells the others in the next step, if it is time."""
        if self.choice is not None or len(self._own) < _TIMED:
            return None
        computes = [one.compute for one in self._own if one is not None]
        waits = [_ABSENT if one is None else one.wait for one in self._own]
        return [median(computes) if computes else 0.0, *waits]

    def hear(self, told: Sequence[Sequence[float]]) -> None:
        """What each rank says. A rank that others wait for waits least: that is what the exchange takes."""
        waits = [min(row[at] for row in told) for at in range(1, SAID)]
        self.tried.append(Took(max(row[0] for row in told), median(waits)))
        self._own, self._warm = [], _WARM
        if self.is_hidden():
            self.choice = self.at
        elif self.at + 1 < self.count:
            self.at += 1
        else:
            longest = (1 + NEAR) * (self.compute + min(one.wait for one in self.tried))
            self.choice = next(at for at, one in enumerate(self.tried) if self.compute + one.wait <= longest)

    @property
    def compute(self) -> float:
        """Of a step, whatever is sent: it differs from trial to trial by chance."""
        return median(one.compute for one in self.tried)

    def is_hidden(self) -> bool:
        """Whether backward hides the exchange of the last that was tried."""
        return self.tried[-1].wait <= HIDDEN * self.compute
