"""The communication hook of DDP."""

from __future__ import annotations

import warnings
import weakref

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from ._engine import Bucket, Engine
from ._errors import ExchangeError
from ._look import Look
from ._options import Options
from ._plan import Named, tensors_of
from ._tap import Tap


class Registered:
    """What DDP holds of a hook. A copy of the DDP model, or a saved one, is there without its hook, and a warning says so."""

    def __init__(self, hook: Hook | None) -> None:
        """Of a hook; `None` in copies, whose reducer calls no hook."""
        self._hook = hook

    def submit(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Hands a bucket to the hook."""
        if self._hook is None:
            raise ExchangeError("this is a copy of a model, without its hook: call compress for it")
        return self._hook._submit(bucket)

    def __reduce__(self) -> tuple[type[Registered], tuple[None]]:
        if self._hook is not None:
            warnings.warn(
                "a copy of this model has no gradwire hook: to train it compressed, call compress for it", stacklevel=2
            )
        return Registered, (None,)


class Hook(Engine):
    """What :func:`compress` returns: the memories, counters and process group of one model at one rank."""

    def __init__(self, ddp: DistributedDataParallel, options: Options) -> None:
        """Use :func:`compress`."""
        super().__init__(tensors_of(ddp, allow_untested=options.allow_untested), ddp.process_group, options)
        self._ddp = weakref.ref(ddp)
        # Of each bucket: its tensors, the address of its memory, and its gradients there. DDP keeps both until it cuts its
        # buckets anew.
        self._known: dict[int, tuple[tuple[int, ...], int, list[torch.Tensor | None]]] = {}
        # To clip writes to gradients, and where backward made them others may read them.
        self._tap = Tap(ddp, self._tensors if self._clip is None else [])
        self._look = Look(self._tensors)

    def close(self) -> None:
        """Ends the threads and the process group. Called when the interpreter exits, which it delays by two seconds at most."""
        if not self._is_forked():
            self._look.close()
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
        if not is_idle and (job.is_last or job.failure is not None or self._error() is not None):
            # Runs at the end of the backward that completed the last bucket: DDP takes the means there, right after this, and
            # a failure is raised under its own name. Backwards before it, of other losses or of a reentrant checkpoint, end
            # without, as a bucket of theirs may share a message with one that comes later.
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self._hand_over(job)
        if is_idle and (job.is_last or self._error() is not None):
            # There is no backward to raise a failure in, and a future would hide it.
            self._await_means()
            self._step_ended(None)
        return future

    def _describe(self, job: Bucket, bucket: GradBucket) -> None:
        ddp, buffer = self._ddp(), bucket.buffer()
        is_joining = ddp is not None and getattr(ddp._join_config, "enable", False)
        if is_joining and not getattr(ddp, "_divide_by_initial_world_size", True):
            raise ExchangeError("join(divide_by_initial_world_size=False): not supported, expected the default")
        if buffer.device != self._device or buffer.is_sparse:
            names = ", ".join(map(self._name_of, bucket.parameters()))
            raise ExchangeError(f"{names}: expected dense gradients on {self._device}, got {buffer.layout} on {buffer.device}")
        tensors = [self._tensor_of(parameter) for parameter in bucket.parameters()]
        job.positions = tuple(tensor.position for tensor in tensors if tensor is not None)
        job.marks.append(self._stage.mark())
        job.gradients, job.stays = self._gradients(bucket, tensors, job.positions), True
        job.taken = self._tap.claim(job.positions)
        self._read_settings(job)

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
            self._lent.clear()
            self._tap.forget()
        both = zip(tensors, bucket.gradients(), strict=True)
        gradients: list[torch.Tensor | None] = [gradient for tensor, gradient in both if tensor is not None]
        self._known[index] = positions, address, gradients
        self._tap.expect(positions, gradients)
        return gradients
