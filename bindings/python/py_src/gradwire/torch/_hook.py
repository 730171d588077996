"""The communication hook of DDP."""

from __future__ import annotations

import warnings

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from ._engine import Engine
from ._errors import ExchangeError
from ._intake import Intake
from ._misfit import Misfit
from ._worker import Worker


class Registered:
    """What DDP holds of a hook. A copy of the DDP model, or a saved one, is there without its hook, and a warning says so."""

    def __init__(self, hook: Hook | None) -> None:
        """Of a hook; `None` in copies, whose reducer calls no hook."""
        self._hook = hook

    def submit(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Hands a bucket to the hook."""
        if self._hook is None:
            raise ExchangeError("this is a copy of a model, without its hook: call compress for it")
        return self._hook._intake.submit(bucket)

    def __reduce__(self) -> tuple[type[Registered], tuple[None]]:
        if self._hook is not None:
            warnings.warn(
                "a copy of this model has no gradwire hook: to train it compressed, call compress for it", stacklevel=2
            )
        return Registered, (None,)


class Hook(Engine):
    """What :func:`compress` returns: the memories, counters and process group of one model at one rank."""

    def __init__(self, ddp: DistributedDataParallel, worker: Worker) -> None:
        """Use :func:`compress`."""
        super().__init__(worker)
        self._intake = Intake(ddp, worker)
        self._misfit = Misfit(worker)

    def close(self) -> None:
        """Ends the threads and the process group. Called when the interpreter exits, which it delays by two seconds at most."""
        if not self._worker.is_forked():
            self._misfit.close()
            self._intake.close()
            super().close()
