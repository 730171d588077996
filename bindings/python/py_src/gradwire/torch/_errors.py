"""What can go wrong between ranks."""

from collections.abc import Sequence


class ExchangeError(RuntimeError):
    """An exchange between ranks failed: the base of the errors below. The hook is of no further use."""


class PeerLostError(ExchangeError):
    """Another rank did not answer within ``timeout=``, or its connection ended: it was killed, or stopped, or fell behind.

    Where the store of the process group still answers, it is named: all other ranks said that they wait.
    """

    def __init__(self, text: str, ranks: Sequence[int] = ()) -> None:
        """Of the ranks that did not answer, as far as they are known."""
        super().__init__(text)
        self.ranks = tuple(ranks)


class PeerFailedError(ExchangeError):
    """Another rank raised an exception in this step; the text names the rank and what it raised."""


class OutOfStepError(ExchangeError):
    """The ranks are at different steps or buckets, or have different scales, learning rates or densities."""


class ReplicasDifferError(ExchangeError):
    """The parameters are no longer equal at all ranks; the text names the first tensor that differs."""
