"""The communication hook of DDP."""

from __future__ import annotations

import weakref

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from ._engine import Bucket, Engine, Options
from ._errors import ExchangeError
from ._plan import tensors_of


class Hook(Engine):
    """What :func:`compress` returns: the memories, counters and process group of one model at one rank."""

    def __init__(self, ddp: DistributedDataParallel, options: Options) -> None:
        """Use :func:`compress`."""
        super().__init__(tensors_of(ddp, allow_untested=options.allow_untested), ddp.process_group, options)
        self._ddp = weakref.ref(ddp)

    def _submit(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = self._stage.future()
        buffer = bucket.buffer()
        job = Bucket(bucket.index(), bucket.is_last(), done=lambda: future.set_result(buffer))
        try:
            self._describe(job, bucket)
        except BaseException as failure:
            job.failure = failure
        if job.index == 0 or job.failure is not None or self._failure is not None:
            # At the end of backward, before DDP takes the means: what failed is raised there under its own name.
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self._hand_over(job)
        return future

    def _describe(self, job: Bucket, bucket: GradBucket) -> None:
        ddp, buffer = self._ddp(), bucket.buffer()
        if ddp is not None and getattr(ddp._join_config, "enable", False):
            raise ExchangeError("DDP's join() is not supported: give every rank as many batches")
        if buffer.device != self._device or buffer.is_sparse:
            raise ExchangeError(f"expected dense gradients on {self._device}, got {buffer.layout} on {buffer.device}")
        job.positions = tuple(self._by_id[id(parameter)].position for parameter in bucket.parameters())
        job.marks.append(self._stage.mark())
        job.gradients = list(bucket.gradients())
        self._read_settings(job)
