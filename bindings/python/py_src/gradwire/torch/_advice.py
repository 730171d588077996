"""Whether compression pays, from what the first steps took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

#: Steps that are looked at. Those before are slower, because they allocate memory that later ones reuse.
STEPS = 10
_WARM = 2


@dataclass(frozen=True)
class Took:
    """Seconds of one step."""

    encode: float
    exchange: float
    decode: float


def advice(steps: Sequence[Took], dense_seconds: float, ratio: float) -> str | None:
    """What to tell the user if dense gradients would be there sooner, and why; `None` if compression pays.

    The exchange is that of the step with the shortest one: the others wait for slower ranks, which dense ones do too.
    """
    steps = steps[_WARM:]
    coding = median(step.encode + step.decode for step in steps)
    exchange = min(step.exchange for step in steps)
    if coding + exchange <= dense_seconds:
        return None
    took = f"a step takes {_ms(coding)} to encode and decode and {_ms(exchange)} to exchange frames"
    dense = f"PyTorch's all-reduce of the same gradients takes about {_ms(dense_seconds)}"
    if coding >= dense_seconds:
        why = "The link is fast: coding alone takes longer than sending everything. Use no hook, or a cheaper codec"
    elif ratio < 4:
        why = f"The frames are only {ratio:.1f} times smaller: use a lower density or fewer bits"
    else:
        why = "Messages take longer than bytes here: use larger buckets (bucket_cap_mb=), or no hook"
    return f"compression does not pay: {took}; {dense}. {why}."


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"
