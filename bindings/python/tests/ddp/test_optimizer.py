"""DistributedOptimizer: the promises of the hook, without DDP."""

from __future__ import annotations

import copy
import math
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import DEVICE, Died, Net, Raised, break_engine, loss_of, parameters, results, run
from test_means import GATHER, LINEAR, STEPS, check, spelled
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradwire.torch
from gradwire.torch import DistributedOptimizer

BOTH = ["topk:density=0.02", "powersgd:rank=1", "none"]


def wrapped(model: nn.Module, codec: str, inner: torch.optim.Optimizer | None = None, **options: Any) -> DistributedOptimizer:
    options.setdefault("bucket_cap_mb", 0.02)
    optimizer = inner or torch.optim.SGD(model.parameters(), lr=0.2)
    return DistributedOptimizer(optimizer, model.named_parameters(), codec, **options)


def recorded(rank: int, world: int, codec: str, cap: float = 0.02) -> dict[str, Any]:
    """Local gradients and means of a few steps, as test_means has them of DDP."""
    model = Net(unused=True)
    twin = copy.deepcopy(model)
    optimizer = wrapped(model, codec, check_every=1, seed=5, bucket_cap_mb=cap)
    local, means = [], []
    for step in range(STEPS):
        # One rank alone leaves a layer out, or all do.
        skip = step == 3 or (step == 2 and rank == 0)
        twin.load_state_dict(model.state_dict())
        twin.zero_grad()
        loss_of(twin, step, rank, skip=skip).backward()
        local.append([None if p.grad is None else p.grad.cpu().numpy().copy() for p in twin.parameters()])
        optimizer.zero_grad()
        loss_of(model, step, rank, skip=skip).backward()
        means.append([None if p.grad is None else p.grad.cpu().numpy().copy() for p in model.parameters()])
        optimizer.step()
    assert all(grad is None for grad in means[0][-2:])
    assert (means[2][6] is not None) == (world > 1)
    assert means[3][6] is None
    return {
        "local": local,
        "means": means,
        "shapes": {name: tuple(p.shape) for name, p in model.named_parameters()},
        "parameters": parameters(model),
        "residuals": {name: array.cpu().numpy() for name, array in optimizer.state_dict()["gradwire"]["residual"].items()},
        "checks": optimizer.exchange.stats().hash_checks,
    }


def all_recorded(rank: int, world: int, codecs: list[str], cap: float) -> dict[str, dict[str, Any]]:
    return {codec: recorded(rank, world, codec, cap) for codec in codecs}


@pytest.mark.parametrize("world", [2, 4])
def test_means_are_those_of_a_replay(world: int) -> None:
    codecs = GATHER + LINEAR if world == 2 else BOTH
    ranks = results(world, all_recorded, codecs, 0.02, seconds=300)
    for codec in codecs:
        check(spelled(codec), [one[codec] for one in ranks])


def test_the_size_of_buckets_changes_no_bit() -> None:
    many, one = results(2, all_recorded, BOTH, 0.001), results(2, all_recorded, BOTH, 25)
    for codec in BOTH:
        assert many[0][codec]["parameters"] == one[0][codec]["parameters"] == one[1][codec]["parameters"]


def beside_backward(rank: int, world: int) -> list[bool]:
    """Whether the first bucket was handed over before the last gradient was there."""
    model = Net()
    optimizer = wrapped(model, "topk:density=0.02")
    sent: list[bool] = []
    model.embed.weight.register_hook(lambda grad: sent.append(len(optimizer._jobs) > 0))
    for step in range(3):
        loss_of(model, step, rank).backward()
        optimizer.step()
    return sent


def test_buckets_travel_before_backward_ends() -> None:
    assert results(2, beside_backward) == [[True] * 3] * 2


def tricks(rank: int, world: int) -> dict[str, Any]:
    """Accumulation, clipping, a schedule of the learning rate, a scaler with an overflow, and a program as for Horovod."""
    torch.manual_seed(rank)
    model = Net()
    with torch.no_grad():
        model.head.bias += rank
    gradwire.torch.broadcast_parameters(model)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0)
    inner = torch.optim.Adam(model.parameters(), lr=1e-2)
    optimizer = wrapped(
        model, "topk:density=0.02", inner, scaler=scaler, rescale=True, backward_passes_per_step=2, check_every=1
    )
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    scales, steps = [], []
    for step in range(6):
        scaler.scale(loss_of(model, 2 * step, rank)).backward()
        local = model.inner.weight.grad.clone()
        assert optimizer.exchange.step == step
        loss = loss_of(model, 2 * step + 1, rank) * (math.inf if step == 2 and rank == 1 else 1)
        scaler.scale(loss).backward()
        assert not torch.equal(local, model.inner.weight.grad)
        if step % 2:
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
        else:
            scaler.step(optimizer)
        scaler.update()
        schedule.step()
        optimizer.zero_grad(set_to_none=step == 3)
        scales.append(scaler.get_scale())
        steps.append(optimizer.exchange.step)
    return {
        "parameters": parameters(model),
        "scales": scales,
        "steps": steps,
        "skipped": optimizer.exchange.stats().skipped_steps,
        "lr": optimizer.param_groups[0]["lr"],
        "adam": int(optimizer.state[model.head.bias]["step"]),
    }


@pytest.mark.parametrize("world", [2, 4])
def test_what_users_do_beside_it_works(world: int) -> None:
    every = results(world, tricks)
    for one in every:
        assert one == every[0]
    assert every[0]["scales"] == [1024, 1024, 512, 512, 512, 512]
    assert every[0]["steps"] == [1, 2, 3, 4, 5, 6]
    assert every[0]["skipped"] == 1
    assert every[0]["adam"] == 5
    assert every[0]["lr"] == pytest.approx(1e-2 * 0.9**6)


def accumulated(rank: int, world: int) -> bool:
    """Two backward passes and one exchange: the mean of their sums."""
    model, twin = Net(), Net()
    optimizer = wrapped(model, "none", backward_passes_per_step=2)
    for step in (0, 1):
        loss_of(model, step, rank).backward()
        loss_of(twin, step, rank).backward()
    for mine, alone in zip(model.parameters(), twin.parameters(), strict=True):
        dist.all_reduce(alone.grad)
        torch.testing.assert_close(mine.grad, alone.grad / world)
    # The first of two passes alone, at the end of the data: step exchanges.
    optimizer.step()
    optimizer.zero_grad()
    twin.load_state_dict(model.state_dict())
    loss_of(model, 2, rank).backward()
    optimizer.step()
    return optimizer.exchange.step == 2


def test_accumulated_gradients_are_sent_once() -> None:
    assert results(2, accumulated) == [True, True]


def idle(rank: int, world: int) -> bytes:
    """A rank without a single gradient takes part all the same."""
    model = Net()
    optimizer = wrapped(model, "topk:density=0.05", check_every=1)
    for step in range(3):
        optimizer.zero_grad()
        if rank == 0 or step == 1:
            loss_of(model, step, rank).backward()
        optimizer.step()
    return parameters(model)


def test_a_rank_without_gradients_takes_part() -> None:
    first, second = results(2, idle)
    assert first == second != parameters(Net())


def train(rank: int, world: int, codec: str, folder: str, kill: bool, resume: bool) -> list[bytes]:
    """The parameters after each step."""
    model = Net()
    inner = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    optimizer = wrapped(model, codec, inner, rules={"*.bias": "none"}, timeout=15, rescale=True, check_every=1, start_step=1)
    path = Path(folder) / f"rank{rank}.pt"
    if resume:
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    seen = []
    for step in range(optimizer.exchange.step, 7):
        if kill and step == 5 and rank == world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss_of(model, step, rank, skip=step == 4).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.9
        seen.append(parameters(model))
        if kill and step == 2:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return seen


@pytest.mark.parametrize("codec", ["topk:density=0.02", "powersgd:rank=2"])
def test_a_run_that_was_killed_goes_on_to_the_same_bits(codec: str, tmp_path: Path) -> None:
    straight = results(2, train, codec, str(tmp_path), False, False)
    assert straight[0] == straight[1]
    killed = run(2, train, codec, str(tmp_path), True, False)
    assert isinstance(killed[1], Died)
    assert isinstance(killed[0], Raised)
    assert killed[0].name == "PeerLostError", killed
    for one in results(2, train, codec, str(tmp_path), False, True):
        assert one == straight[0][3:]


def states(rank: int, world: int) -> bool:
    """A state of the wrapped optimizer alone, states of another number of ranks, and a mixture."""
    model = Net()
    optimizer = wrapped(model, "topk:density=0.02", torch.optim.Adam(model.parameters()))
    for step in range(2):
        loss_of(model, step, rank).backward()
        optimizer.step()
    whole = optimizer.state_dict()
    plain = {key: value for key, value in whole.items() if key != "gradwire"}
    torch.optim.Adam(Net().parameters()).load_state_dict(whole)
    kept = optimizer.exchange.residual("inner.weight")
    optimizer.load_state_dict(plain)
    assert torch.equal(optimizer.exchange.residual("inner.weight"), kept)
    with pytest.raises(ValueError, match="1 of 2 have no 'gradwire'"):
        optimizer.load_state_dict([whole, plain])
    both: list[Any] = [None] * world
    dist.all_gather_object(both, whole)
    three = [{**both[0], "gradwire": {**both[0]["gradwire"], "rank": old, "world": 3}} for old in range(3)]
    optimizer.load_state_dict(three)
    expected = torch.from_numpy(np.asarray(both[0]["gradwire"]["residual"]["inner.weight"])) * (2 / 3)
    got = optimizer.exchange.residual("inner.weight")
    torch.testing.assert_close(got, 2 * expected if rank == 0 else expected)
    return True


def test_states_of_other_runs_are_taken() -> None:
    assert results(2, states) == [True, True]


def refuse(rank: int, world: int, what: str) -> None:
    model = Net()
    if what == "unnamed":
        DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), list(model.named_parameters())[1:], "topk")
    if what == "twice":
        named = [("w", parameter) for parameter in model.parameters()]
        DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named, "topk")
    if what == "plain":
        DistributedOptimizer(model, model.named_parameters(), "topk")  # type: ignore[arg-type]
    if what == "passes":
        wrapped(model, "topk", backward_passes_per_step=0)
    if what == "buckets":
        wrapped(model, "topk", bucket_cap_mb=1.0 + rank)
    if what == "codec":
        wrapped(model, "topk:density=7")
    if what == "replicas":
        with torch.no_grad():
            model.head.bias[rank] += 1
    if what == "frozen":
        model.inner.weight.requires_grad_(False)
    optimizer = wrapped(model, "topk:density=0.02", timeout=6)
    if what == "frozen":
        model.inner.weight.requires_grad_(True)
    if what == "group":
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    if what == "closure":
        optimizer.step(lambda: None)  # type: ignore[arg-type]
    if what == "local":
        with optimizer.skip_synchronize():
            optimizer.step()
    if what == "pickle":
        copy.deepcopy(optimizer)
    if what == "raises" and rank == 1:
        break_engine(optimizer.exchange, "on_encode")
    if what == "reentrant":
        hidden = checkpoint(model.inner, torch.ones(2, 48, requires_grad=True), use_reentrant=True)
        model.head(hidden).sum().backward()
    loss_of(model, 0, rank).backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("what", "name", "text"),
    [
        ("unnamed", "ValueError", "group 0, of shape (40, 48), has no name"),
        ("twice", "ValueError", "the name w is there twice"),
        ("plain", "TypeError", "expected an Optimizer, got Net"),
        ("passes", "ValueError", "backward_passes_per_step=0: expected 1 or more"),
        ("buckets", "ValueError", "the ranks differ in bucket_cap_mb: [1.0, 2.0]"),
        ("codec", "ValueError", "density=7: expected a fraction"),
        ("replicas", "ReplicasDifferError", "step 0: head.bias"),
        ("frozen", "RuntimeError", "shape (96, 48) has a gradient, but was frozen"),
        ("group", "RuntimeError", "make a new DistributedOptimizer"),
        ("closure", "ValueError", "closure: not supported"),
        ("local", "RuntimeError", "replicas would differ"),
        ("reentrant", "RuntimeError", "checkpoint with use_reentrant=False"),
        ("pickle", "TypeError", "save its state_dict()"),
    ],
)
def test_what_cannot_work_is_refused_with_its_name(what: str, name: str, text: str) -> None:
    for one in run(2, refuse, what):
        assert isinstance(one, Raised), one
        assert (one.name, text in one.text) == (name, True), one


def test_an_exception_at_one_rank_reaches_the_other() -> None:
    first, second = run(2, refuse, "raises")
    assert (first.name, second.name) == ("PeerFailedError", "MemoryError")
    assert "rank 1: MemoryError: no room" in first.text


def closed(rank: int, world: int) -> bool:
    model, twin = Net(), Net()
    optimizer = wrapped(model, "none")
    optimizer.close()
    loss_of(model, 0, rank).backward()
    loss_of(twin, 0, rank).backward()
    return all(torch.equal(one.grad, other.grad) for one, other in zip(model.parameters(), twin.parameters(), strict=True))


def test_after_close_gradients_are_local() -> None:
    assert results(2, closed) == [True, True]
