"""Batch norm over all ranks, and models of several process groups: other collectives beside the hook's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Net, ddp, loss_of, normal, parameters, results
from torch import nn

import gradwire.torch

CODECS = ["topk:density=0.02", "powersgd:rank=1", "none"]


class Synchronized(torch.autograd.Function):
    """The sum over all ranks, and of gradients on the way back: the collectives of torch's SyncBatchNorm."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        values = values.clone()
        dist.all_reduce(values)
        return values

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class SyncBatchNorm(nn.BatchNorm1d):
    """Normalizes by the examples of all ranks."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        count = len(values) * dist.get_world_size()
        sums = Synchronized.apply(torch.cat([values.sum(0), values.square().sum(0)]))
        mean, square = (sums / count).chunk(2)
        normal = (values - mean) / (square - mean.square() + self.eps).sqrt()
        self.running_mean.lerp_(mean.detach(), 0.1)
        return normal * self.weight + self.bias


def normalized(rank: int, world: int, codec: str) -> dict[str, Any]:
    """A network that calls collectives of its own in the middle of backward, beside those of the hook."""
    torch.manual_seed(3)
    layers = [layer for _ in range(4) for layer in (nn.Linear(32, 32), SyncBatchNorm(32), nn.Tanh())]
    model = nn.Sequential(*layers, nn.Linear(32, 3))
    whole = nn.Sequential(*(nn.BatchNorm1d(32) if isinstance(one, SyncBatchNorm) else copy.deepcopy(one) for one in model))
    parallel = ddp(model, bucket_cap_mb=0.004)
    gradwire.torch.compress(parallel, codec, check_every=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images = normal(4, 8 * world, 32)
    whole(images).square().mean().backward()
    difference = 0.0
    for step in range(6):
        optimizer.zero_grad()
        parallel(images[8 * rank : 8 * rank + 8]).square().mean().backward()
        if step == 0:
            pairs = zip(model.parameters(), whole.parameters(), strict=True)
            difference = max(float((one.grad - other.grad).abs().max()) for one, other in pairs)
        optimizer.step()
    return {
        "parameters": parameters(model),
        "buffers": [one.cpu().numpy().tobytes() for one in model.buffers()],
        "difference": difference,
    }


def refused(rank: int, world: int) -> str:
    layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with pytest.raises(ValueError, match="expected input tensor to be on GPU") as error:
        nn.SyncBatchNorm.convert_sync_batchnorm(layers)(torch.ones(2, 4))
    return str(error.value)


def test_torch_has_batch_norm_over_all_ranks_for_devices_alone() -> None:
    """Once this fails, the module above can go."""
    assert len(results(2, refused)) == 2


@pytest.mark.parametrize("codec", CODECS)
def test_batch_norm_over_all_ranks_works(codec: str) -> None:
    every = results(4, normalized, codec)
    for one in every:
        assert one["parameters"] == every[0]["parameters"]
        assert one["buffers"] == every[0]["buffers"]
        if codec == "none":
            # What one process computes of all examples.
            assert one["difference"] < 1e-6


def in_groups(rank: int, world: int) -> dict[str, Any]:
    """Two models, each trained by two of four ranks, and one that is trained by all."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    alone, shared = Net(), Net(width=32)
    parallel, both = ddp(alone, process_group=pairs[rank // 2]), ddp(shared)
    hooks = [gradwire.torch.compress(one, "topk:density=0.05", check_every=1) for one in (parallel, both)]
    optimizer = torch.optim.SGD([*alone.parameters(), *shared.parameters()], lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        (loss_of(parallel, step, rank) + loss_of(both, step, rank)).backward()
        optimizer.step()
    return {
        "alone": parameters(alone),
        "shared": parameters(shared),
        "checks": [hook.stats().hash_checks for hook in hooks],
    }


def test_models_of_several_process_groups_train_beside_each_other() -> None:
    every = results(4, in_groups)
    assert [one["checks"] for one in every] == [[4, 4]] * 4
    assert len({one["shared"] for one in every}) == 1
    assert every[0]["alone"] == every[1]["alone"]
    assert every[2]["alone"] == every[3]["alone"]
    assert every[0]["alone"] != every[2]["alone"]
