"""Whether compression pays, from what the first steps took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

#: Steps that are looked at. Those before are slower, because they allocate memory that later ones reuse.
STEPS = 10
_WARM = 2
#: A share of the time that is not worth a word.
_LITTLE = 0.01


@dataclass(frozen=True)
class Took:
    """Seconds of one step."""

    encode: float
    exchange: float
    decode: float
    #: From the end of the step before to the end of this one.
    all: float


@dataclass(frozen=True)
class Remedies:
    """What users can change, in the words of what they have called."""

    step: str = "a step"
    #: Where all of it sent as it is would be there sooner.
    without: str = "no hook"
    #: Where messages take longer than bytes.
    messages: str = "larger buckets (bucket_cap_mb=)"
    #: For a gradient that is far too large.
    spike: str = "To throw such a step away, call hook.discard() in place of optimizer.step()"


#: Of those who have called ``compress``, or made one of the optimizers.
HOOK = Remedies()
OPTIMIZER = Remedies(
    without="no DistributedOptimizer",
    spike="To throw such a step away, call optimizer.exchange.discard() in place of optimizer.step()",
)
LOCAL_STEPS = Remedies(
    step="an exchange",
    without='codec="none"',
    messages="more steps between exchanges (every=)",
    spike="To keep it small, clip gradients before step()",
)


def advice(steps: Sequence[Took], dense_seconds: float, ratio: float, remedies: Remedies = HOOK) -> str | None:
    """What to tell the user if dense gradients would be there sooner, and why; `None` if compression pays.

    Nothing also where it takes so little of the time that nothing could be gained. The exchange is that of the step with the
    shortest one: the others wait for slower ranks, which dense ones do too.
    """
    steps = steps[_WARM:]
    coding = median(step.encode + step.decode for step in steps)
    exchange = min(step.exchange for step in steps)
    if coding + exchange <= max(dense_seconds, _LITTLE * median(step.all for step in steps)):
        return None
    took = f"{remedies.step} takes {_ms(coding)} to encode and decode and {_ms(exchange)} to exchange frames"
    dense = f"PyTorch's all-reduce of as many values takes about {_ms(dense_seconds)}"
    if coding >= dense_seconds:
        why = f"The link is fast: coding alone takes longer than sending everything. Use a cheaper codec, or {remedies.without}"
    elif ratio < 4:
        why = f"The frames are only {ratio:.1f} times smaller: use a lower density or fewer bits"
    else:
        why = f"Messages take longer than bytes here: use {remedies.messages}, or {remedies.without}"
    return f"compression does not pay: {took}; {dense}. {why}."


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"
