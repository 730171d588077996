"""Whether what is kept back has suddenly grown: by a gradient that most loops would rather throw away."""

from __future__ import annotations

from collections import deque
from statistics import median

#: Norms that are looked at, and how many there must be.
_LOOKED = 50
_LEAST = 10
#: How many times the median of those before is sudden.
_SUDDEN = 30.0


class Spikes:
    """The norms of some steps, and whether one of them was spoken of: that is done once."""

    def __init__(self) -> None:
        """Nothing was seen."""
        self._norms: deque[float] = deque(maxlen=_LOOKED)
        # The step, and what is to be said of it.
        self._found: tuple[int, str] | None = None
        self._is_told = False

    def see(self, step: int, norm: float) -> None:
        """What was kept after a step, in units that neither the learning rate nor a scale changes."""
        usual = median(self._norms) if len(self._norms) >= _LEAST else 0.0
        if not usual or norm <= _SUDDEN * usual:
            self._norms.append(norm)
        elif self._found is None:
            self._found = (
                step,
                f"step {step}: what this rank keeps back is {norm / usual:.0f} times what it was, because of a gradient as "
                "large; it will be sent with the next steps.",
            )

    def tell(self, step: int) -> str | None:
        """What the user is to be warned of in this step, if anything is: of an earlier one, which was not thrown away."""
        if self._found is None or self._found[0] >= step:
            return None
        (_, text), self._found = self._found, None
        is_told, self._is_told = self._is_told, True
        return None if is_told else text

    def discard(self) -> None:
        """The last step was thrown away, as it should."""
        self._found = None

    def forget(self) -> None:
        """What is kept was changed by the user."""
        self._norms.clear()
        self._found = None
