"""The communication hook of DDP."""

from __future__ import annotations

import weakref

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from ._engine import Bucket, Engine, Options
from ._errors import ExchangeError
from ._plan import tensors_of
from ._tap import Tap


class Hook(Engine):
    """What :func:`compress` returns: the memories, counters and process group of one model at one rank."""

    def __init__(self, ddp: DistributedDataParallel, options: Options) -> None:
        """Use :func:`compress`."""
        super().__init__(tensors_of(ddp, allow_untested=options.allow_untested), ddp.process_group, options)
        self._ddp = weakref.ref(ddp)
        # Of each bucket: its tensors, the address of its memory, and its gradients there. DDP keeps both until it cuts its
        # buckets anew.
        self._known: dict[int, tuple[tuple[int, ...], int, list[torch.Tensor | None]]] = {}
        self._tap = Tap(ddp, self._tensors)

    def close(self) -> None:
        """Ends the threads and the process group. Called when the interpreter exits, which it delays by two seconds at most."""
        self._tap.close()
        super().close()

    def _submit(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = self._stage.future()
        buffer = bucket.buffer()
        is_idle = torch._C._current_graph_task_id() == -1
        job = Bucket(bucket.index(), bucket.is_last(), is_idle, done=lambda: future.set_result(buffer))
        try:
            self._describe(job, bucket)
        except BaseException as failure:
            job.failure = failure
        if not is_idle and (job.is_last or job.failure is not None or self._failure is not None):
            # Runs at the end of the backward that completed the last bucket: DDP takes the means there, right after this, and
            # a failure is raised under its own name. Backwards before it, of other losses or of a reentrant checkpoint, end
            # without, as a bucket of theirs may share a message with one that comes later.
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self._hand_over(job)
        if is_idle and (job.is_last or self._failure is not None):
            # There is no backward to raise a failure in, and a future would hide it.
            self._wait(lambda: self._unresolved)
            if self._failure is not None:
                raise self._failure
        return future

    def _describe(self, job: Bucket, bucket: GradBucket) -> None:
        ddp, buffer = self._ddp(), bucket.buffer()
        is_joining = ddp is not None and getattr(ddp._join_config, "enable", False)
        if is_joining and not getattr(ddp, "_divide_by_initial_world_size", True):
            raise ExchangeError("join(divide_by_initial_world_size=False): not supported, expected the default")
        if buffer.device != self._device or buffer.is_sparse:
            raise ExchangeError(f"expected dense gradients on {self._device}, got {buffer.layout} on {buffer.device}")
        job.positions = tuple(self._by_id[id(parameter)].position for parameter in bucket.parameters())
        job.marks.append(self._stage.mark())
        job.gradients, job.stays = self._gradients(bucket, job.positions), True
        job.taken = self._tap.claim(job.positions)
        self._read_settings(job)

    def _gradients(self, bucket: GradBucket, positions: tuple[int, ...]) -> list[torch.Tensor | None]:
        """Views of the gradients: those of the step before, if they stand where they stood."""
        index, address = bucket.index(), bucket.buffer().data_ptr()
        known = self._known.get(index)
        if known is not None and known[0] == positions and known[1] == address:
            return known[2]
        if index == 0:
            self._known.clear()
            self._lent.clear()
            self._tap.forget()
        gradients: list[torch.Tensor | None] = list(bucket.gradients())
        self._known[index] = positions, address, gradients
        self._tap.expect(positions, gradients)
        return gradients
