"""What real training does to gradients."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import DEVICE, Net, batch, ddp, loss_of, normal, parameters, results
from torch import nn

import gradwire.torch

CODECS = ["topk:density=0.02", "powersgd:rank=1", "none"]


def same_bits(tensors: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> bool:
    return tensors.keys() == others.keys() and all(torch.equal(tensors[name], others[name]) for name in tensors)


def overflow(rank: int, world: int, codec: str, layer: str) -> dict[str, Any]:
    """An infinite gradient at the last rank, in step 2, in the first or last bucket."""
    model = Net()
    parallel = ddp(model)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0, growth_interval=3)
    hook = gradwire.torch.compress(parallel, codec, scaler=scaler, check_every=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    spoil = False

    def spoiled(grad: torch.Tensor) -> torch.Tensor:
        return grad * math.inf if spoil else grad

    model.get_submodule(layer).weight.register_hook(spoiled)
    found: dict[str, Any] = {"scales": [], "unchanged": None}
    for step in range(7):
        spoil = rank == world - 1 and step == 2
        before, kept = parameters(model), hook.state_dict()
        optimizer.zero_grad()
        scaler.scale(loss_of(parallel, step, rank)).backward()
        if step == 2:
            found["saw"] = any(not torch.isfinite(p.grad).all() for p in model.parameters())
        scaler.step(optimizer)
        scaler.update()
        found["scales"].append(scaler.get_scale())
        if step == 2:
            now = hook.state_dict()
            found["unchanged"] = before == parameters(model) and same_bits(kept["residual"], now["residual"])
            found["factors"] = all(
                torch.equal(old["factors"], new["factors"]) for old, new in zip(kept["groups"], now["groups"], strict=True)
            )
    found["parameters"], found["skipped"] = parameters(model), hook.stats().skipped_steps
    return found


def overflows(rank: int, world: int) -> dict[tuple[str, str], dict[str, Any]]:
    return {(codec, layer): overflow(rank, world, codec, layer) for codec in CODECS for layer in ("head", "embed")}


@pytest.mark.parametrize("world", [2, 4])
def test_a_gradient_that_is_not_finite_skips_the_step_everywhere(world: int) -> None:
    every = results(world, overflows)
    for case in every[0]:
        for one in every:
            found = one[case]
            assert found["saw"], case
            assert found["unchanged"], case
            assert found["factors"], case
            assert found["skipped"] == 1, case
            assert found["scales"] == every[0][case]["scales"]
            assert found["scales"][2] == 512
            assert found["scales"][5] == 1024
            assert found["parameters"] == every[0][case]["parameters"]


def scaled(rank: int, world: int, scale: bool) -> dict[str, Any]:
    """Scales are powers of two, so what is kept is the same with and without them, but for its scale."""
    model = Net()
    parallel = ddp(model)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=256.0, growth_interval=2, enabled=scale)
    hook = gradwire.torch.compress(parallel, "topk:density=0.02", scaler=scaler if scale else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        optimizer.zero_grad()
        scaler.scale(loss_of(parallel, step, rank)).backward()
        scaler.step(optimizer)
        scaler.update()
    state = hook.state_dict()
    return {
        "parameters": parameters(model),
        "residual": {name: (tensor / (state["scale"] or 1)).cpu().numpy() for name, tensor in state["residual"].items()},
    }


def test_growth_of_the_scale_changes_nothing_but_the_scale() -> None:
    with_scale, without = results(2, scaled, True), results(2, scaled, False)
    for one, other in zip(with_scale, without, strict=True):
        assert one["parameters"] == other["parameters"]
        for name, kept in one["residual"].items():
            assert kept.tobytes() == other["residual"][name].tobytes(), name


def tricks(rank: int, world: int) -> dict[str, Any]:
    """Accumulation, clipping, gradients set to none or zero, two models, and a user's own all-reduce during backward."""
    first, second = Net(), Net(width=32)
    parallel, other = ddp(first), ddp(second)
    sums: list[float] = []

    def own_all_reduce(grad: torch.Tensor) -> torch.Tensor:
        value = torch.ones(1000) * (rank + 1)
        dist.all_reduce(value)
        sums.append(float(value[0]))
        return grad

    first.inner.weight.register_hook(own_all_reduce)
    hooks = [gradwire.torch.compress(one, "topk:density=0.02", check_every=1) for one in (parallel, other)]
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=1e-2)
    for step in range(5):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        with parallel.no_sync():
            loss_of(parallel, step, rank).backward()
        before = hooks[0].step
        (loss_of(parallel, step + 100, rank) + loss_of(other, step, rank)).backward()
        assert hooks[0].step == before + 1
        nn.utils.clip_grad_norm_(first.parameters(), 0.5)
        optimizer.step()
    return {
        "parameters": parameters(first) + parameters(second),
        "sums": sums,
        "steps": [hook.stats().steps for hook in hooks],
    }


@pytest.mark.parametrize("world", [2, 4])
def test_what_users_do_beside_it_works(world: int) -> None:
    every = results(world, tricks)
    for one in every:
        assert one["parameters"] == every[0]["parameters"]
        assert one["sums"] == [world * (world + 1) / 2] * 10
        assert one["steps"] == [5, 5]


def accumulated(rank: int, world: int) -> bool:
    """The hook sees the sum of accumulated gradients once."""
    model = Net()
    parallel = ddp(model)
    gradwire.torch.compress(parallel, "none")
    twin = Net()
    with parallel.no_sync():
        loss_of(parallel, 0, rank).backward()
    loss_of(parallel, 1, rank).backward()
    for step in (0, 1):
        loss_of(twin, step, rank).backward()
    for mine, alone in zip(model.parameters(), twin.parameters(), strict=True):
        dist.all_reduce(alone.grad)
        torch.testing.assert_close(mine.grad, alone.grad / world)
    return True


def test_accumulated_gradients_are_sent_once() -> None:
    assert all(results(2, accumulated))


def unused(rank: int, world: int) -> dict[str, Any]:
    """A layer that one rank, or none, uses: it sends nothing there, and keeps what it kept."""
    model = Net(unused=True)
    parallel = ddp(model, find_unused_parameters=True)
    hook = gradwire.torch.compress(parallel, "topk:density=0.01")
    kept = []
    for step in range(4):
        model.zero_grad()
        before = hook.residual("sometimes.weight")
        loss_of(parallel, step, rank, skip=step == 2 or (step == 1 and rank == 0)).backward()
        kept.append(torch.equal(before, hook.residual("sometimes.weight")))
    return {"kept": kept, "never": float(hook.residual("never.weight").norm()), "grad": model.never.weight.grad is None}


def test_a_tensor_without_a_gradient_keeps_what_it_kept() -> None:
    first, second = results(2, unused)
    assert first["kept"] == [False, True, True, False]
    assert second["kept"] == [False, False, True, False]
    assert first["never"] == second["never"] == 0
    assert first["grad"]
    assert second["grad"]


def scheduled(rank: int, world: int, folder: str) -> dict[str, Any]:
    model = Net()
    parallel = ddp(model)
    hook = gradwire.torch.compress(
        parallel, "topk:density=0.01,warmup=2,dense_below=0", start_step=2, rules={"embed.*": "none", "*.bias": "qsgd:bits=4"}
    )
    hook.log(Path(folder) / "metrics.jsonl")
    sent, residual = [], []
    for step in range(8):
        hook.set_epoch(step // 2)
        before = hook.stats().frame_bytes
        hook.loss = float(step)
        loss_of(parallel, step, rank).backward()
        model.zero_grad()
        sent.append(hook.stats().frame_bytes - before)
        residual.append(hook.stats().residual_norm)
    return {"sent": sent, "residual": residual, "stats": hook.stats(), "line": str(hook.stats())}


def test_schedules_rules_counters_and_the_log(tmp_path: Path) -> None:
    every = results(2, scheduled, str(tmp_path))
    one = every[0]
    dense = 4 * sum(p.numel() for p in Net().parameters())
    assert one["sent"][:2] == [dense, dense]
    assert one["residual"][:2] == [0, 0]
    embed = 4 * 40 * 48
    assert dense > one["sent"][2] > one["sent"][4] > embed
    assert one["residual"][2] > 0
    stats = one["stats"]
    assert (stats.steps, stats.skipped_steps, stats.dense_bytes) == (8, 0, 8 * dense)
    assert stats.ratio == pytest.approx(8 * dense / sum(one["sent"]))
    assert stats.bytes_sent > sum(one["sent"])
    assert stats.bytes_sent == every[1]["stats"].bytes_received
    assert stats.exposed_seconds > 0
    assert "8 steps (0 skipped)" in one["line"]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(8))
    assert [line["epoch"] for line in lines] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [line["loss"] for line in lines] == list(range(8))
    assert sum(line["bytes_up"] for line in lines) == sum(each["stats"].bytes_sent for each in every)
    assert lines[0]["density"] == 1
    assert all(metrics_of_the_trainer() <= line.keys() for line in lines)
    assert {line["codec"] for line in lines} == {"topk:density=0.01,warmup=2"}
    assert 0.01 < lines[7]["density"] < 0.3
    assert lines[7]["target_density"] == 0.01


def metrics_of_the_trainer() -> set[str]:
    """The keys without which the trainer takes no line of metrics.jsonl."""
    source = (Path(__file__).parents[4] / "trainer/src/record/mod.rs").read_text()
    fields = source.partition("pub struct Metrics {")[2].partition("\n}")[0]
    names = set()
    for match in re.finditer(r"((?: *(?:///|#\[).*\n)+) *pub (\w+):", fields):
        if "skip_serializing_if" not in match[1]:
            names.add(match[2])
    assert len(names) == 15
    return names


def rates(rank: int, world: int) -> list[float]:
    """What is kept grows as the learning rate falls."""
    model = Net()
    parallel = ddp(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    hook = gradwire.torch.compress(parallel, "topk:density=0.001", optimizer=optimizer, rules={"head.*": "none"})
    loss_of(parallel, 0, rank).backward()
    before = hook.residual("inner.weight").to(DEVICE)
    optimizer.param_groups[0]["lr"] = 0.1
    gradient = torch.zeros_like(before)
    twin = Net()
    loss_of(twin, 1, rank).backward()
    gradient = twin.inner.weight.grad
    model.zero_grad()
    loss_of(parallel, 1, rank).backward()
    after = hook.residual("inner.weight").to(DEVICE)
    expected = 4 * before + gradient
    unsent = after != 0
    return [float((after - expected)[unsent].abs().max()), float(unsent.float().mean())]


def test_what_is_kept_is_rescaled_with_the_learning_rate() -> None:
    for difference, share in results(2, rates):
        assert difference < 1e-7
        assert share > 0.9


def halves(rank: int, world: int) -> dict[str, Any]:
    """bfloat16 parameters, BatchNorm with its buffer broadcasts, a scalar, and channels that stand last."""
    torch.manual_seed(1)

    class Image(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)
            self.scale, self.out = nn.Parameter(torch.tensor(1.0)), nn.Linear(16, 4)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.out(self.norm(self.conv(images)).mean((2, 3)) * self.scale)

    model = Image().to(memory_format=torch.channels_last)
    narrow = Net().to(torch.bfloat16)
    one, two = ddp(model), ddp(narrow)
    hooks = [gradwire.torch.compress(ddp_model, "topk:density=0.05", check_every=1) for ddp_model in (one, two)]
    for step in range(3):
        model.zero_grad()
        narrow.zero_grad()
        images = normal(10 * step + rank, 4, 3, 8, 8)
        one(images).square().sum().backward()
        nn.functional.cross_entropy(two(batch(step, rank)[0]).float(), batch(step, rank)[1]).backward()
        with torch.no_grad():
            for parameter in [*model.parameters(), *narrow.parameters()]:
                parameter -= 0.1 * parameter.grad
    grads = b"".join(p.grad.contiguous().cpu().numpy().tobytes() for p in model.parameters())
    bits = b"".join(p.grad.view(torch.int16).cpu().numpy().tobytes() for p in narrow.parameters())
    return {"grads": grads + bits, "checks": [hook.stats().hash_checks for hook in hooks]}


def test_other_kinds_of_parameters_work() -> None:
    first, second = results(2, halves)
    assert first == second
    assert first["checks"] == [3, 3]


def learns(rank: int, world: int, codec: str | None) -> float:
    model = Net()
    parallel = ddp(model)
    if codec:
        gradwire.torch.compress(parallel, codec)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for step in range(60):
        optimizer.zero_grad()
        loss = loss_of(parallel, step % 6, rank)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return float(np.mean(losses[-6:]))


def test_a_tenth_of_the_gradient_learns_what_all_of_it_learns() -> None:
    plain, sparse = results(2, learns, None), results(2, learns, "topk:density=0.1")
    assert np.mean(sparse) < 1.3 * np.mean(plain) + 0.2
