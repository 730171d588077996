"""Ranks with fewer batches than others, in DDP's `join`: their gradients count as zeros, and what they keep stays."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
from ranks import Net, Raised, break_engine, ddp, loss_of, parameters, results, run
from torch.distributed.algorithms.join import Join

import gradwire.torch


def uneven(rank: int, world: int, codec: str, options: dict[str, Any]) -> dict[str, Any]:
    """Rank r has 3 + 2 r batches."""
    model = Net()
    parallel = ddp(model, **options)
    hook = gradwire.torch.compress(parallel, codec, check_every=1, timeout=20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms, means = [], []
    with parallel.join():
        for step in range(3 + 2 * rank):
            optimizer.zero_grad()
            loss_of(parallel, step, rank).backward()
            means.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).cpu().numpy())
            optimizer.step()
            norms.append(hook.stats().residual_norm)
    after = hook.stats()
    state = hook.state_dict()["residual"]
    # Even inputs again, for all.
    for step in range(2):
        optimizer.zero_grad()
        loss_of(parallel, 20 + step, rank).backward()
        optimizer.step()
    return {
        "parameters": parameters(model),
        "steps": [after.steps, hook.stats().steps],
        "checks": hook.stats().hash_checks,
        "kept": norms[-1] == after.residual_norm,
        "residual": sum(float(tensor.abs().sum()) for tensor in state.values()),
        "means": means,
    }


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}], ids=["plain", "unused"])
@pytest.mark.parametrize("codec", ["topk:density=0.02", "powersgd:rank=1", "none"])
def test_ranks_may_run_out_of_inputs(codec: str, options: dict[str, Any]) -> None:
    every = results(3, uneven, codec, options)
    for one in every:
        assert one["steps"] == [7, 9]
        assert one["checks"] == 9
        assert one["parameters"] == every[0]["parameters"]
    if codec.startswith("topk"):
        assert all(one["kept"] for one in every)
        assert all(one["residual"] > 0 for one in every)


def plain(rank: int, world: int) -> list[np.ndarray]:
    """The same with PyTorch's all-reduce."""
    model = Net()
    parallel = ddp(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    means = []
    with parallel.join():
        for step in range(3 + 2 * rank):
            optimizer.zero_grad()
            loss_of(parallel, step, rank).backward()
            means.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).cpu().numpy())
            optimizer.step()
    return means


def test_the_mean_over_ranks_that_ran_out_is_that_of_plain_ddp() -> None:
    ours, theirs = results(3, uneven, "none", {}), results(3, plain)
    for one, means in zip(ours, theirs, strict=True):
        assert len(one["means"]) == len(means)
        for mean, other in zip(one["means"], means, strict=True):
            np.testing.assert_allclose(mean, other, rtol=2e-4, atol=1e-7)


def fails(rank: int, world: int, codec: str) -> None:
    """Rank 1 fails when rank 0 has run out of inputs, and comes late to where DDP asks for those who have not."""
    parallel = ddp(Net())
    hook = gradwire.torch.compress(parallel, codec, timeout=6)
    ask = Join._get_num_nonjoined_procs

    def ask_late(self: Join) -> Any:
        if hook.step == 3:
            time.sleep(1.5)
        return ask(self)

    Join._get_num_nonjoined_procs = ask_late
    with parallel.join():
        for step in range(2 + 3 * rank):
            if step == 3:
                break_engine(hook, "on_encode")
            loss_of(parallel, step, rank).backward()


@pytest.mark.parametrize("codec", ["topk:density=0.02", "none"])
def test_a_failure_reaches_ranks_that_ran_out(codec: str) -> None:
    # Rank 1 ends only after rank 0 has heard of it. If it ended before, DDP would raise gloo's error at rank 0.
    idle, failed = run(2, fails, codec)
    assert isinstance(failed, Raised)
    assert failed.name == "MemoryError"
    assert isinstance(idle, Raised)
    assert idle.name == "PeerFailedError"
    assert "step 3: another rank failed: rank 1: MemoryError: no room" in idle.text
