"""Registers one of the methods of torch_plan.py at a DDP model."""

import inspect

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

import gradwire.torch


def register(ddp, method, encrypted):
    """Returns gradwire's hook, which counts; of the others there is nothing to ask."""
    if method.is_ours:
        # By its kind `auto` chooses.
        optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3) if method.argument == "auto" else None
        options = {"wire": method.wire, "encrypt": encrypted, "optimizer": optimizer}
        # An older hook has fewer, and does without what they ask for.
        known = inspect.signature(gradwire.torch.compress).parameters
        options = {name: value for name, value in options.items() if name in known}
        return gradwire.torch.compress(ddp, method.argument, **options)
    if method.kind == "nothing":
        ddp.register_comm_hook(None, nothing)
    elif method.kind in ("fp16", "bf16"):
        ddp.register_comm_hook(None, getattr(default_hooks, f"{method.kind}_compress_hook"))
    elif method.kind == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=int(method.argument), start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif method.kind == "grace":
        ddp.register_comm_hook(Grace(float(method.argument)), Grace.exchange)
    else:
        assert method.kind == "all-reduce", method.kind
    return None


def nothing(_, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return _ready(bucket.buffer())


class Grace:
    """Top-k of a whole bucket with error feedback in plain PyTorch: all ranks gather i32 positions and f32 values."""

    def __init__(self, density):
        self.density = density
        # What is kept of a bucket, which begins anew when DDP forms other buckets.
        self.kept = {}

    def exchange(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        names = tuple(map(id, bucket.parameters()))
        kept = self.kept.get(names)
        wanted = buffer if kept is None else buffer + kept
        _, at = torch.topk(wanted.abs(), max(1, int(self.density * wanted.numel())), sorted=False)
        values = wanted[at]
        left = wanted.clone()
        left[at] = 0
        self.kept[names] = left
        positions, world = at.to(torch.int32), dist.get_world_size()
        all_positions = [torch.empty_like(positions) for _ in range(world)]
        all_values = [torch.empty_like(values) for _ in range(world)]
        dist.all_gather(all_positions, positions)
        dist.all_gather(all_values, values)
        buffer.zero_()
        for where, what in zip(all_positions, all_values):
            buffer.index_add_(0, where, what, alpha=1 / world)
        return _ready(buffer)


def _ready(buffer):
    future = torch.futures.Future()
    future.set_result(buffer)
    return future
