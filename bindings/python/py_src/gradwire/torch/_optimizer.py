"""An optimizer that exchanges gradients before its step, for models that DDP does not wrap."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ._advice import OPTIMIZER
from ._engine import Bucket, Engine
from ._meet import Place
from ._misfit import Misfit
from ._options import AUTO, Options, Scaler, flag, real, type_error, whole
from ._plan import Named, is_split, local, trained
from ._shards import Shards
from ._within import broadcast
from ._worker import Worker
from ._wrapper import Wrapper

_KEY = "gradwire"


class Exchange(Engine):
    """The part of a :class:`DistributedOptimizer` that exchanges: memories, counters and process group of one rank."""


class DistributedOptimizer(Wrapper):
    """An optimizer that steps with the means of the gradients of all ranks; for models without DDP.

    As with Horovod and GRACE, make it after the model and the optimizer, and use it in place of the optimizer. All ranks make
    theirs in the same order, and start with equal parameters (:func:`broadcast_parameters`)::

        optimizer = DistributedOptimizer(optimizer, model.named_parameters(), "topk:density=0.01")

    Gradients are exchanged during backward, in buckets, and are means when backward returns. So clipping and ``GradScaler``
    work as usual. If backward gave a rank no gradient, :meth:`step` or :meth:`synchronize` exchanges.

    :param named_parameters: ``model.named_parameters()``, with all parameters of the optimizer. Rules go by the names. The
        position of a parameter and ``seed`` determine its random draws.
    :param backward_passes_per_step: number of backward passes whose gradients are added up before they are exchanged.
    :param bucket_cap_mb: megabytes of gradients that are exchanged at once. The means do not depend on it.
    :param rescale: rescale residuals when the learning rate of the first group changes, as they always are with ``"auto"``.
    :param group: the process group of the ranks; by default that of all ranks. With FSDP2, those that have the same shards.

    All other parameters are those of :func:`compress`.
    """

    # A scaler unscales gradients itself then, and calls `step` only where they are finite.
    _step_supports_amp_scaling = False

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        codec: str,
        *,
        backward_passes_per_step: int = 1,
        bucket_cap_mb: float = 25.0,
        rescale: bool = False,
        group: dist.ProcessGroup | None = None,
        rules: Mapping[str, str] | None = None,
        dense_below: int = 128,
        seed: int = 0,
        timeout: float = 60.0,
        start_step: int = 0,
        check_every: int = 100,
        scaler: Scaler | None = None,
        density: Callable[[int], float] | None = None,
        allow_untested: bool = False,
        discardable: bool = False,
        network: str | None = None,
        encrypt: bool | None = None,
        wire: str = "f32",
        clip_norm: float | None = None,
        threads: int | None = None,
        _settings: Mapping[str, Any] | None = None,
        _place: Place | None = None,
    ) -> None:
        """Checks all of them before it makes anything."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"expected an Optimizer, got {type(optimizer).__name__}")
        whole("backward_passes_per_step", backward_passes_per_step, least=1)
        real("bucket_cap_mb", bucket_cap_mb, lambda value: value > 0, "megabytes, more than 0")
        flag("rescale", rescale)
        if group is not None and not isinstance(group, dist.ProcessGroup):
            raise TypeError(f"group={group!r}: expected a process group that this rank is in, got {type(group).__name__}")
        self._inner = optimizer
        self._passes_per_step = backward_passes_per_step
        self._shards = Shards(_own(optimizer, _pairs(named_parameters)), group)
        tensors = trained(self._shards.places, allow_untested=allow_untested)
        # By its kind codecs are chosen, too.
        followed = optimizer if rescale or codec == AUTO else None
        options = Options(
            codec,
            rules,
            dense_below,
            seed,
            timeout,
            start_step,
            check_every,
            scaler,
            optimizer=followed,
            density=density,
            allow_untested=allow_untested,
            discardable=discardable,
            network=network,
            encrypt=encrypt,
            wire=wire,
            clip_norm=clip_norm,
            threads=threads,
        )
        settings = {"bucket_cap_mb": bucket_cap_mb, "backward_passes_per_step": backward_passes_per_step, **(_settings or {})}
        parent = _place or group or dist.group.WORLD
        if parent is None:
            raise RuntimeError("expected a process group: call torch.distributed.init_process_group before")
        # A rank may have no gradient for a tensor of which others have one.
        self._worker = Worker(tensors, parent, options, settings, tells_used=True)
        self.exchange: Engine = Exchange(self._worker)
        """Counters, log, epochs and residuals, as :func:`compress` returns them for DDP."""
        self.exchange._watch.remedies = OPTIMIZER
        Misfit(self._worker).warn(optimizer)
        self._buckets = cut(tensors, bucket_cap_mb)
        self._at = {id(self._shards.of(tensor)): at for at, bucket in enumerate(self._buckets) for tensor in bucket}
        # The backward that is under way, the gradients that each bucket still lacks, and the buckets that were handed over.
        self._task = -1
        self._missing: list[int] = []
        self._jobs: list[Bucket] = []
        self._marks: list[Any] = []
        self._passes = 0
        self._is_exchanged = self._is_local = False
        # Parameters do not keep the optimizer, which keeps them.
        on_gradient = weakref.WeakMethod(self._on_gradient)

        def call(parameter: torch.Tensor) -> None:
            method = on_gradient()
            if method is not None:
                method(parameter)

        self._handles = [self._shards.of(tensor).register_post_accumulate_grad_hook(call) for tensor in tensors]

    # Beside backward.

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        task: int = torch._C._current_graph_task_id()
        if task != self._task:
            self._begin_backward(task)
        if self._passes + 1 < self._passes_per_step:
            return
        self._marks.append(self._worker.stage.mark())
        self._missing[self._at[id(parameter)]] -= 1
        # Sends in the order of buckets, whatever the order of gradients is at this rank.
        while len(self._jobs) < len(self._buckets) and self._missing[len(self._jobs)] == 0:
            self._send_next()

    def _begin_backward(self, task: int) -> None:
        if self._task != -1:
            raise RuntimeError(
                "a backward began before another one ended: checkpoint with use_reentrant=False, and call zero_grad() after a "
                "backward that failed"
            )
        self._task, self._is_exchanged, self._jobs, self._marks = task, False, [], []
        self._missing = [len(bucket) for bucket in self._buckets]
        torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)

    def _end_of_backward(self) -> None:
        self._task = -1
        self._passes += 1
        if self._passes == self._passes_per_step:
            self.synchronize()

    def _send_rest(self, failure: BaseException | None = None) -> None:
        """Hands over what backward did not; or what keeps this rank from the exchange, which others are told."""
        if len(self._jobs) < len(self._buckets):
            self._marks.append(self._worker.stage.mark())
        while len(self._jobs) < len(self._buckets):
            self._send_next(failure)

    def _send_next(self, failure: BaseException | None = None) -> None:
        at = len(self._jobs)
        job = Bucket(at, at + 1 == len(self._buckets), marks=self._marks, failure=failure)
        self._marks = []
        self._jobs.append(job)
        try:
            tensors = self._buckets[at]
            self._shards.lend(tensors)
            job.positions = tuple(tensor.position for tensor in tensors)
            job.gradients = [_gradient(tensor) for tensor in tensors]
            self._worker.read_settings(job)
        except BaseException as error:
            job.failure = failure or error
        self._worker.hand_over(job)

    # What users call.

    def synchronize(self) -> None:
        """Waits until gradients are means. Parameters without a gradient are sent as unused.

        Backward does this at its end, and :meth:`step` does it if backward did not. Call it before you read gradients (to clip
        them, say) if a rank may have used no parameter at all.
        """
        if self._is_exchanged:
            return
        self._send_rest()
        jobs, self._jobs, self._passes = self._jobs, [], 0
        self._worker.finish()
        for job, tensors in zip(jobs, self._buckets, strict=True):
            self._worker.fill_absent(job)
            for tensor, gradient in zip(tensors, job.gradients, strict=True):
                if tensor.parameter.grad is None and gradient is not None:
                    # Another rank used it.
                    tensor.parameter.grad = gradient.to(tensor.parameter.device, tensor.parameter.dtype)
            self._shards.take_back(tensors)
        self._is_exchanged = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A context in which :meth:`step` does not exchange, because :meth:`synchronize` was called before.

        Outside of it :meth:`step` sees by itself whether it has to, so a program written for Horovod runs unchanged.
        """
        self._is_local = True
        try:
            yield
        finally:
            self._is_local = False

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """A step of the wrapped optimizer with the means. Exchanges them first if backward did not."""
        if closure is not None:
            raise ValueError("closure: not supported, as each call would exchange: call backward before step")
        if not self._is_local:
            self._check_parameters()
            self.synchronize()
        elif not self._is_exchanged:
            raise RuntimeError("step in skip_synchronize, but gradients are not synchronized: replicas would differ")
        self._is_exchanged = False
        self._inner.step()

    def _check_parameters(self) -> None:
        for group in self._inner.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and local(parameter).numel() and id(parameter) not in self._at:
                    raise RuntimeError(
                        f"a parameter of shape {tuple(parameter.shape)} has a gradient, but was frozen or missing when "
                        "DistributedOptimizer was made: make a new one, and load its state"
                    )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the wrapped optimizer. Gradients that were not exchanged yet are dropped."""
        self._task, self._passes = -1, 0
        self._inner.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        """The state of the wrapped optimizer, and under ``"gradwire"`` this rank's memories. Every rank saves its own."""
        return {**self._inner.state_dict(), _KEY: self.exchange.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:  # type: ignore[override]
        """Continues from the :meth:`state_dict` of this rank, or from a list of all old ranks' if their number changed.

        Also accepts the state of the wrapped optimizer alone. The memories then stay as they are.
        """
        states = [state_dict] if isinstance(state_dict, Mapping) else state_dict
        if not isinstance(states, list | tuple) or not states or not all(isinstance(state, Mapping) for state in states):
            raise type_error("state", state_dict, "what state_dict() returned, or a list of the states of all old ranks")
        kept = [state[_KEY] for state in states if _KEY in state]
        if kept and len(kept) != len(states):
            raise ValueError(f"state: {len(states) - len(kept)} of {len(states)} have no '{_KEY}'")
        loaded = self.exchange._read(kept[0] if isinstance(state_dict, Mapping) else kept) if kept else None
        # This checks what it is given before it changes anything, too.
        self._inner.load_state_dict({key: value for key, value in states[0].items() if key != _KEY})
        if loaded is not None:
            self.exchange._take(loaded)

    def close(self) -> None:
        """Ends the threads and removes the hooks from the parameters. Gradients are local from then on."""
        for handle in self._handles:
            handle.remove()
        self.exchange.close()


def _pairs(named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> list[tuple[str, torch.nn.Parameter]]:
    expected = "named_parameters: expected pairs of a name and a parameter, as model.named_parameters() gives"
    try:
        pairs = list(named_parameters)
    except TypeError:
        raise TypeError(f"{expected}, got {type(named_parameters).__name__}") from None
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(f"{expected}; one of them is {type(pair).__name__}")
    return pairs


def _own(
    optimizer: torch.optim.Optimizer, named: list[tuple[str, torch.nn.Parameter]]
) -> list[tuple[int, str, torch.nn.Parameter]]:
    """The parameters of the optimizer, by their position in the model, with their names."""
    names: set[str] = set()
    seen: set[int] = set()
    wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    found = []
    for position, (name, parameter) in enumerate(named):
        if name in names:
            raise ValueError(f"named_parameters: the name {name} is there twice")
        names.add(name)
        if id(parameter) in wanted and id(parameter) not in seen:
            found.append((position, name, parameter))
        seen.add(id(parameter))
    for number, parameter in strangers(optimizer, seen):
        raise ValueError(
            f"named_parameters: a parameter of the optimizer's group {number}, of shape {tuple(parameter.shape)}, "
            "has no name; expected model.named_parameters()"
        )
    return found


def strangers(optimizer: torch.optim.Optimizer, known: set[int]) -> Iterator[tuple[int, torch.nn.Parameter]]:
    """Its parameters, with the number of their group, whose identity is not known."""
    for number, group in enumerate(optimizer.param_groups):
        yield from ((number, parameter) for parameter in group["params"] if id(parameter) not in known)


def cut(tensors: Sequence[Named], cap_mb: float) -> list[list[Named]]:
    """Buckets in the order in which backward gives gradients, or nearly so."""
    buckets: list[list[Named]] = []
    size = 0.0
    for tensor in reversed(tensors):
        megabytes = tensor.parameter.numel() * tensor.parameter.element_size() / 2**20
        if not buckets or size + megabytes > cap_mb:
            buckets.append([])
            size = 0.0
        buckets[-1].append(tensor)
        size += megabytes
    return buckets


def _gradient(tensor: Named) -> torch.Tensor | None:
    gradient = tensor.parameter.grad
    device = tensor.parameter.device
    if gradient is not None and (gradient.device != device or gradient.is_sparse):
        raise ValueError(f"{tensor.name}: expected a dense gradient on {device}, got {gradient.layout} on {gradient.device}")
    return gradient


def broadcast_parameters(model: torch.nn.Module, *, root: int = 0, group: dist.ProcessGroup | None = None) -> None:
    """Copies the parameters and buffers of one rank to all others, as DDP does. Call it before the first step.

    :param root: the rank, in the group, whose parameters are copied.
    """
    tensors = [*model.parameters(), *model.buffers()]
    if group is None and any(is_split(tensor) for tensor in tensors):
        raise ValueError("a parameter is split over processes, as FSDP does; pass group=, those that have the same part of it")
    broadcast([(local(tensor), root) for tensor in tensors], group)
