"""Gradients are clipped before they are compressed: by one norm, over all ranks."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import DEVICE, Net, Raised, ddp, loss_of, parameters, results, run

import gradwire.torch
from gradwire.torch import DistributedOptimizer


def gradients(model: torch.nn.Module) -> list[np.ndarray]:
    return [p.grad.cpu().numpy().copy() for p in model.parameters() if p.grad is not None]


def clipped(rank: int, world: int, scale: float, kind: str) -> dict[str, Any]:
    """A mean, the same clipped, the norm over all ranks, and what was measured of it."""
    model, scaled = Net(), (1000.0 if rank == 0 else 1.0)
    twin = copy.deepcopy(model)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=scale) if scale != 1 else None
    local = copy.deepcopy(model)
    (scaled * loss_of(local, 0, rank)).backward()
    squares = [torch.tensor(0.0, dtype=torch.float64) for _ in range(world)]
    dist.all_gather(squares, sum(p.grad.double().square().sum() for p in local.parameters()))
    norm = float(torch.stack(squares).mean().sqrt())

    def mean(one: torch.nn.Module, clip_norm: float | None) -> float | None:
        if kind == "hook":
            parallel: Any = ddp(one)
            hook: Any = gradwire.torch.compress(parallel, "none", clip_norm=clip_norm, scaler=scaler)
        else:
            inner = torch.optim.SGD(one.parameters(), lr=0.1)
            optimizer = DistributedOptimizer(inner, one.named_parameters(), "none", clip_norm=clip_norm, scaler=scaler)
            hook, parallel = optimizer.exchange, one
        (scale * scaled * loss_of(parallel, 0, rank)).backward()
        hook.close()
        return hook.gradient_norm

    assert mean(model, None) is None
    told = mean(twin, norm / 8)
    return {"norm": norm, "told": told, "whole": gradients(model), "clipped": gradients(twin)}


@pytest.mark.parametrize(("scale", "kind"), [(1.0, "hook"), (64.0, "hook"), (1.0, "optimizer")])
def test_all_ranks_scale_by_one_factor_before_compression(scale: float, kind: str) -> None:
    every = results(3, clipped, scale, kind)
    for one in every:
        assert one["told"] == pytest.approx(one["norm"], rel=1e-5)
        assert one["told"] == every[0]["told"]
        for whole, cut, first in zip(one["whole"], one["clipped"], every[0]["clipped"], strict=True):
            np.testing.assert_allclose(8 * cut, whole, rtol=2e-5, atol=1e-6 * scale)
            assert cut.tobytes() == first.tobytes()


def trains(rank: int, world: int, cap: float, clip_norm: float | None, bad: float, view: bool) -> dict[str, Any]:
    """Ten steps, of which one has a gradient of another size at rank 0."""
    model = Net(400 if view else 48)
    parallel = ddp(model, bucket_cap_mb=cap, gradient_as_bucket_view=view)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    hook = gradwire.torch.compress(parallel, "topk:density=0.02", clip_norm=clip_norm, check_every=1)
    norms = []
    for step in range(10):
        optimizer.zero_grad()
        ((bad if (step, rank) == (4, 0) else 1.0) * loss_of(parallel, step, rank)).backward()
        norms.append((hook.stats().residual_norm, hook.gradient_norm))
        if not any(bool(p.grad.isnan().any()) for p in model.parameters()):
            optimizer.step()
    skipped = hook.stats().skipped_steps
    hook.close()
    return {"parameters": parameters(model), "norms": norms, "skipped": skipped}


@pytest.mark.parametrize("view", [False, True])
def test_bits_do_not_depend_on_buckets_and_a_spike_leaves_little(view: bool) -> None:
    small, large = results(2, trains, 0.02, 0.5, 1e5, view), results(2, trains, 25.0, 0.5, 1e5, view)
    assert len({one["parameters"] for one in (*small, *large)}) == 1
    assert [one["norms"] for one in small] == [one["norms"] for one in large]
    assert max(norm for one in small for norm, _ in one["norms"]) < 10
    # Without, it is there for the rest of the run.
    assert results(2, trains, 0.02, None, 1e5, view)[0]["norms"][-1][0] > 1000


def test_a_norm_that_is_not_finite_is_a_step_that_comes_to_nothing() -> None:
    for bad in (float("nan"), float("inf")):
        every = results(2, trains, 0.02, 0.5, bad, False)
        assert {one["skipped"] for one in every} == {1}
        assert every[0]["parameters"] == every[1]["parameters"]
        assert every[0]["norms"][3][0] == every[0]["norms"][4][0]


def fails(rank: int, world: int) -> None:
    """Rank 1 cannot say how dense its second step is to be."""
    parallel = ddp(Net())

    def density(step: int) -> float:
        if (step, rank) == (1, 1):
            raise LookupError("no such step")
        return 0.1

    hook = gradwire.torch.compress(parallel, "topk:density=0.02", clip_norm=1.0, density=density, timeout=20)
    loss_of(parallel, 0, rank).backward()
    try:
        loss_of(parallel, 1, rank).backward()
    finally:
        assert hook.state_dict()["step"] == 1


def test_a_rank_that_fails_before_it_knows_its_norm_tells_the_others() -> None:
    first, second = run(2, fails)
    assert isinstance(first, Raised), first
    assert first.name == "PeerFailedError", first
    assert "LookupError: no such step" in first.text
    assert isinstance(second, Raised), second
    assert (second.name, second.text) == ("LookupError", "no such step")
    assert first.seconds < 15
