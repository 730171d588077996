"""How buckets of DDP come to the worker."""

from __future__ import annotations

import weakref

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from ._bucket import Bucket
from ._errors import ExchangeError
from ._look import Look
from ._plan import Named
from ._tap import Tap
from ._worker import Worker


class Intake:
    """Takes the gradients of one DDP model, and hands them to the worker bucket by bucket."""

    def __init__(self, ddp: DistributedDataParallel, worker: Worker) -> None:
        """Of a model whose tensors the worker knows."""
        self._worker = worker
        self._ddp = weakref.ref(ddp)
        self._by_id = {id(tensor.parameter): tensor for tensor in worker.tensors}
        # Of each bucket: its tensors, the address of its memory, and its gradients there. DDP keeps both until it cuts its
        # buckets anew.
        self._known: dict[int, tuple[tuple[int, ...], int, list[torch.Tensor | None]]] = {}
        # To clip writes to gradients, and where backward made them others may read them.
        self.tap = Tap(ddp, worker.tensors if worker.clip is None else [])
        self._look = Look(worker.tensors)

    def close(self) -> None:
        """Takes and looks at no more."""
        self._look.close()
        self.tap.close()

    def submit(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Hands a bucket to the worker. The future holds the means."""
        future = self._worker.stage.future()
        buffer = bucket.buffer()
        is_idle = torch._C._current_graph_task_id() == -1
        job = Bucket(bucket.index(), bucket.is_last(), is_idle, done=lambda: future.set_result(buffer))
        try:
            self._describe(job, bucket)
        except BaseException as failure:
            job.failure = failure
        if not is_idle and (job.is_last or job.failure is not None or self._worker.error() is not None):
            # Runs at the end of the backward that completed the last bucket: DDP takes the means there, right after this, and
            # a failure is raised under its own name. Backwards before it, of other losses or of a reentrant checkpoint, end
            # without, as a bucket of theirs may share a message with one that comes later.
            torch.autograd.Variable._execution_engine.queue_callback(self._worker.finish)
        self._worker.hand_over(job)
        if is_idle and (job.is_last or self._worker.error() is not None):
            # There is no backward to raise a failure in, and a future would hide it.
            self._worker.await_means()
            self._worker.step_ended(None)
        return future

    def _describe(self, job: Bucket, bucket: GradBucket) -> None:
        ddp, buffer = self._ddp(), bucket.buffer()
        is_joining = ddp is not None and getattr(ddp._join_config, "enable", False)
        if is_joining and not getattr(ddp, "_divide_by_initial_world_size", True):
            raise ExchangeError("join(divide_by_initial_world_size=False): not supported, expected the default")
        if buffer.device != self._worker.device or buffer.is_sparse:
            names = ", ".join(map(self._name_of, bucket.parameters()))
            raise ExchangeError(
                f"{names}: expected dense gradients on {self._worker.device}, got {buffer.layout} on {buffer.device}"
            )
        tensors = [self._tensor_of(parameter) for parameter in bucket.parameters()]
        job.positions = tuple(tensor.position for tensor in tensors if tensor is not None)
        job.marks.append(self._worker.stage.mark())
        job.gradients, job.stays = self._gradients(bucket, tensors, job.positions), True
        job.taken = self.tap.claim(job.positions)
        self._worker.read_settings(job)

    def _tensor_of(self, parameter: torch.Tensor) -> Named | None:
        """The parameter as it was when the hook was made; `None` if there is nothing to send: no element, or no gradient."""
        tensor = self._by_id.get(id(parameter))
        if tensor is None and parameter.numel() and parameter.requires_grad:
            raise ExchangeError(
                f"{self._name_of(parameter)}: it was frozen when compress was called, and no longer is: "
                "make DistributedDataParallel and the hook anew, and load the hook's state"
            )
        return tensor

    def _name_of(self, parameter: torch.Tensor) -> str:
        ddp = self._ddp()
        named = ddp.module.named_parameters() if ddp is not None else ()
        return next((name for name, one in named if one is parameter), "a parameter")

    def _gradients(
        self, bucket: GradBucket, tensors: list[Named | None], positions: tuple[int, ...]
    ) -> list[torch.Tensor | None]:
        """Views of the gradients: those of the step before, if they stand where they stood."""
        index, address = bucket.index(), bucket.buffer().data_ptr()
        known = self._known.get(index)
        if known is not None and known[0] == positions and known[1] == address:
            return known[2]
        if index == 0:
            self._known.clear()
            self._worker.lent.clear()
            self.tap.forget()
        both = zip(tensors, bucket.gradients(), strict=True)
        gradients: list[torch.Tensor | None] = [gradient for tensor, gradient in both if tensor is not None]
        self._known[index] = positions, address, gradients
        self.tap.expect(positions, gradients)
        return gradients
