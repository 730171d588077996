"""What can go wrong between ranks."""

from __future__ import annotations

from collections.abc import Sequence

import gradwire


class ExchangeError(gradwire.ExchangeError):
    """An exchange between ranks failed. The base of the errors below. The hook cannot be used again."""


class PeerLostError(ExchangeError):
    """Another rank did not answer within ``timeout=``, or its connection ended. It was killed or stopped, or fell behind.

    ``ranks`` names those whose messages did not come.
    """

    def __init__(self, text: str, ranks: Sequence[int] = ()) -> None:
        """``ranks``: those that did not answer, as far as they are known."""
        super().__init__(text)
        self.ranks = tuple(ranks)


class PeerFailedError(ExchangeError):
    """Another rank raised an exception in this step; the text names the rank and what it raised."""


class OutOfStepError(ExchangeError):
    """The ranks are at different steps or buckets, or have different scales, learning rates or densities."""


class ReplicasDifferError(ExchangeError):
    """The parameters are no longer equal at all ranks; the text names the first tensor that differs."""


#: What the engine knows of a failure: its kind, text, ranks and bucket, and the exception if this rank raised it.
Told = tuple[str, str, list[int], int, BaseException | None]


def error_of(told: Told, step: int, timeout: float) -> BaseException:
    """The exception that says it."""
    kind, text, ranks, bucket, raised = told
    if raised is not None:
        return raised
    if kind == "peer failed":
        return PeerFailedError(f"step {step}: another rank failed: rank {ranks[0]}: {text}")
    if kind == "out of step":
        return OutOfStepError(text)
    if kind == "replicas differ":
        return ReplicasDifferError(text)
    if kind == "peer lost":
        who = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}" if ranks else "a rank"
        why = "or the connection ended" if len(ranks) == 1 else "or a connection ended"
        return PeerLostError(f"step {step}, bucket {bucket}: {who} did not answer within {timeout:g} s, {why}: {text}", ranks)
    return ExchangeError(text)
