"""What can go wrong between ranks."""


class ExchangeError(RuntimeError):
    """An exchange between ranks failed: the base of the errors below. The hook is of no further use."""


class PeerLostError(ExchangeError):
    """Another rank did not answer within ``timeout=``, or its connection ended: it was killed, or stopped, or fell behind."""


class PeerFailedError(ExchangeError):
    """Another rank raised an exception in this step; the text names the rank and what it raised."""


class OutOfStepError(ExchangeError):
    """The ranks are at different steps or buckets, or have different scales, learning rates or densities."""


class ReplicasDifferError(ExchangeError):
    """The parameters are no longer equal at all ranks; the text names the first tensor that differs."""
