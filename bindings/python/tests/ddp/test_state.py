"""What is kept back outlives buckets, checkpoints, kills and other numbers of ranks."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import Died, Net, Raised, ddp, loss_of, parameters, results, run

import gradwire.torch

CODECS = [
    "topk:density=0.02",
    "dgc:density=0.05",
    "sidco:density=0.05",
    "powersgd:rank=2",
    "randomk:density=0.1",
    "qsgd:bits=4",
    "sketch:density=0.05,cells=0.5,rows=1,momentum=0.9",
    "sharedk:density=0.05,by=leader,feedback=ef21,momentum=0.9",
]


def train(
    rank: int, world: int, codec: str, folder: str, steps: int, save_at: int | None, kill_at: int | None, resume: bool
) -> list[bytes]:
    """The parameters after each step."""
    model = Net()
    parallel = ddp(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    hook = gradwire.torch.compress(
        parallel, codec, rules={"*.bias": "none"}, timeout=15, optimizer=optimizer, check_every=1, start_step=1
    )
    path = Path(folder) / f"rank{rank}.pt"
    first = 0
    if resume:
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        hook.load_state_dict(saved["hook"])
        first = hook.step
    seen = []
    for step in range(first, steps):
        if step == kill_at and rank == world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss_of(parallel, step, rank, skip=step == 4).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.9
        seen.append(parameters(model))
        if step + 1 == save_at:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "hook": hook.state_dict()}, path)
    return seen


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("world", [2, 4])
def test_a_run_that_was_killed_goes_on_to_the_same_bits(world: int, codec: str, tmp_path: Path) -> None:
    if world == 4 and codec not in CODECS[:4]:
        pytest.skip("two ranks show it")
    straight = results(world, train, codec, str(tmp_path), 7, None, None, False)
    assert all(one == straight[0] for one in straight)
    killed = run(world, train, codec, str(tmp_path), 7, 3, 5, False)
    assert isinstance(killed[-1], Died)
    assert all(one.name == "PeerLostError" for one in killed[:-1]), killed
    resumed = results(world, train, codec, str(tmp_path), 7, None, None, True)
    for one in resumed:
        assert one == straight[0][3:]


def change(rank: int, world: int) -> dict[str, Any]:
    """A layer is frozen, another bucket size, and other rules, and nothing of what was kept is lost."""
    import warnings

    model = Net()
    parallel = ddp(model)
    hook = gradwire.torch.compress(parallel, "topk:density=0.01")
    for step in range(3):
        loss_of(parallel, step, rank).backward()
        model.zero_grad()
    old = hook.state_dict()
    hook.close()
    other = Net()
    other.inner.weight.requires_grad = False
    again = ddp(other, bucket_cap_mb=25)
    hook = gradwire.torch.compress(again, "topk:density=0.05", rules={"head.*": "none"})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        hook.load_state_dict(old)
    new = hook.state_dict()
    loss_of(again, 3, rank).backward()
    later = hook.state_dict()
    return {
        "same": all(torch.equal(old["residual"][name], new["residual"][name]) for name in old["residual"]),
        "kept": torch.equal(old["residual"]["inner.weight"], later["residual"]["inner.weight"]),
        "moved": not torch.equal(old["residual"]["embed.weight"], later["residual"]["embed.weight"]),
        "told": sorted(str(one.message).split()[1] for one in told if "stays" in str(one.message)),
        "step": new["step"],
    }


def test_frozen_tensors_and_other_rules_keep_what_was_kept() -> None:
    for one in results(2, change):
        assert one["same"]
        assert one["kept"]
        assert one["moved"]
        assert one["step"] == 3
        assert one["told"] == ["head.weight", "inner.weight"]


def grow(rank: int, world: int, states: list[dict[str, Any]] | None) -> dict[str, Any]:
    model = Net()
    parallel = ddp(model)
    hook = gradwire.torch.compress(parallel, "topk:density=0.01")
    if states is None:
        for step in range(2):
            loss_of(parallel, step, rank).backward()
            model.zero_grad()
    else:
        if len(states) != world:
            with pytest.raises(ValueError, match="list of the states of all old ranks"):
                hook.load_state_dict(states[0])
        hook.load_state_dict(states)
    state = hook.state_dict()
    return {**state, **{what: {name: t.cpu().numpy() for name, t in state[what].items()} for what in ("residual", "momentum")}}


def tensors(states: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            **one,
            "residual": {name: torch.from_numpy(array) for name, array in one["residual"].items()},
            "groups": [{**group, "factors": torch.zeros(0)} for group in one["groups"]],
        }
        for one in states
    ]


@pytest.mark.parametrize(("old", "new"), [(4, 2), (2, 4), (2, 2)])
def test_another_number_of_ranks_owes_the_same_to_the_mean(old: int, new: int) -> None:
    before = results(old, grow, None)
    after = results(new, grow, tensors(before))
    for name in before[0]["residual"]:
        owed = np.mean([one["residual"][name] for one in before], axis=0)
        assert math.isfinite(float(owed.sum()))
        np.testing.assert_allclose(np.mean([one["residual"][name] for one in after], axis=0), owed, rtol=1e-5, atol=1e-8)
        if new > old:
            assert not after[old]["residual"][name].any()
    assert all(one["step"] == 2 for one in after)


def goes_on_elsewhere(rank: int, world: int, at: int) -> int:
    """A run of two, whose second rank loads other parameters than it had before this step."""
    model = Net()
    parallel = ddp(model)
    hook = gradwire.torch.compress(parallel, "topk:density=0.05", check_every=100, timeout=8)
    for step in range(at):
        loss_of(parallel, step, rank).backward()
    hook.load_state_dict(hook.state_dict())
    if rank == 1:
        with torch.no_grad():
            model.head.bias[3] += 1
    loss_of(parallel, at, rank).backward()
    return hook.step


@pytest.mark.parametrize("at", [0, 1, 3])
def test_ranks_that_go_on_with_other_parameters_are_told_at_once(at: int) -> None:
    for found in run(2, goes_on_elsewhere, at):
        assert isinstance(found, Raised), found
        assert (found.name, found.text.split(":")[0]) == ("ReplicasDifferError", f"step {at}"), found
