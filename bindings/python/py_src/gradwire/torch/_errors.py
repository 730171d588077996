"""What can go wrong between ranks."""

from collections.abc import Sequence


class ExchangeError(RuntimeError):
    """An exchange between ranks failed. The base of the errors below. The hook cannot be used again."""


class PeerLostError(ExchangeError):
    """Another rank did not answer within ``timeout=``, or its connection ended. It was killed or stopped, or fell behind.

    ``ranks`` names it if the store of the process group still answers, where all waiting ranks have said that they wait.
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
