"""Gradient compression for PyTorch, with DistributedDataParallel or without.

Two lines in a script that trains with DDP::

    import gradwire.torch
    hook = gradwire.torch.compress(ddp_model, "qsgd:bits=4")

With SGD, ``"topk:density=0.01"`` sends far less; with AdamW it trains worse. Without DDP, wrap the optimizer::

    optimizer = gradwire.torch.DistributedOptimizer(optimizer, model.named_parameters(), "qsgd:bits=4")

See docs/pytorch.md.
"""

from collections.abc import Callable, Mapping

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from ._errors import ExchangeError, OutOfStepError, PeerFailedError, PeerLostError, ReplicasDifferError
from ._hook import Hook, Registered
from ._local import LocalSteps
from ._optimizer import DistributedOptimizer, Exchange, broadcast_parameters
from ._options import Options, Scaler
from ._plan import tensors_of, uncompiled
from ._rules import dense_embeddings_and_norms
from ._sites import Sites
from ._stats import Stats
from ._worker import Worker

__all__ = [
    "DistributedOptimizer",
    "Exchange",
    "ExchangeError",
    "Hook",
    "LocalSteps",
    "OutOfStepError",
    "PeerFailedError",
    "PeerLostError",
    "ReplicasDifferError",
    "Sites",
    "Stats",
    "broadcast_parameters",
    "compress",
    "dense_embeddings_and_norms",
]


def compress(
    ddp: DistributedDataParallel,
    codec: str,
    *,
    rules: Mapping[str, str] | None = None,
    dense_below: int = 128,
    seed: int = 0,
    timeout: float = 60.0,
    start_step: int = 0,
    check_every: int = 100,
    scaler: Scaler | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    density: Callable[[int], float] | None = None,
    allow_untested: bool = False,
    discardable: bool = False,
    network: str | None = None,
    encrypt: bool | None = None,
    wire: str = "f32",
    clip_norm: float | None = None,
    threads: int | None = None,
) -> Hook:
    """Sends the gradients of a DDP model through a codec. Call it once, before the first backward, at all ranks.

    With several models, all ranks call it in the same order. Its thread, its connections and its memories end with the model,
    or with :meth:`Hook.close`. Copies of the model have no hook. What ``torch.compile`` made of the model stands for it.

    :param codec: the spelling of the codec, or ``"auto"``: the hook then tries several in its first steps, and chooses one that
        suits the optimizer; see docs/pytorch.md. Every tensor is a unit of its own. Tensors of fewer than ``dense_below``
        elements are sent as they are.
    :param rules: spellings by tensor name. The first pattern that fits wins:
        ``{"*.bias": "none", "embed.*": "topk:density=0.001"}``. :func:`dense_embeddings_and_norms` makes some.
    :param seed: the seed of all random draws, which also depend on step, tensor and rank. The same at all ranks.
    :param timeout: seconds that a rank waits for another before it raises :class:`PeerLostError`, from when anything last
        moved between any two ranks: on a slow link a bucket may take longer. Make it longer than the longest time by which
        one rank may fall behind, for example while it saves a checkpoint.
    :param start_step: the first step that is compressed; earlier steps are exchanged dense.
    :param check_every: steps between two comparisons of the parameters of all ranks, by a hash, beside that in the first step;
        0 for none.
    :param scaler: the ``GradScaler`` of the loop. When its scale changes, residuals are rescaled.
    :param optimizer: needed by ``"auto"``. If given, residuals are rescaled when the learning rate of its first group changes.
    :param density: the density as a function of the step, for codecs that have one. The same at all ranks.
    :param discardable: lets :meth:`Hook.discard` work with codecs that keep more than error feedback (momentum, factors). Their
        memories are then copied when backward begins, and not beside the forward pass. Others need no copy.
    :param network: the interface or address by which ranks reach each other. By default they meet on the loopback interface of
        one host, or where ``GLOO_SOCKET_IFNAME`` or the way to ``MASTER_ADDR`` says.
    :param encrypt: whether connections are encrypted, alike at all ranks. By default those off the loopback interface are.
    :param wire: ``"bf16"`` lets the payloads of linear codecs, and of ``none``, travel in 16 bits; sums stay in float32.
    :param clip_norm: gradients are scaled down before they are compressed, by the same factor at all ranks, if their norm is
        larger: the root of the mean, over ranks, of its square. Nothing travels before backward has ended. The norm is then
        :attr:`Hook.gradient_norm`.
    :param threads: threads that encode; bits are the same with any number. By default the cores that are left to this rank if
        PyTorch computes on its own number of them, at most 4.
    :param allow_untested: accept CUDA tensors, through pinned memory, although not all tests pass there yet.
    """
    parallel = uncompiled(ddp)
    if not isinstance(parallel, DistributedDataParallel):
        raise TypeError(f"expected a DistributedDataParallel, got {type(parallel).__name__}")
    options = Options(
        codec,
        rules,
        dense_below,
        seed,
        timeout,
        start_step,
        check_every,
        scaler,
        optimizer=optimizer,
        density=density,
        allow_untested=allow_untested,
        discardable=discardable,
        network=network,
        encrypt=encrypt,
        wire=wire,
        clip_norm=clip_norm,
        threads=threads,
    )
    worker = Worker(tensors_of(parallel, allow_untested=allow_untested), parallel.process_group, options)
    hook = Hook(parallel, worker)
    try:
        parallel.register_comm_hook(Registered(hook), _on_bucket)
    except BaseException:
        # It has another hook. What was made for this one goes.
        hook.close()
        raise
    if optimizer is None:
        hook._misfit.await_optimizer()
    else:
        hook._misfit.warn(optimizer)
    return hook


def _on_bucket(state: Registered, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    return state.submit(bucket)
