"""What real training does to gradients."""

from __future__ import annotations

import copy
import json
import math
import re
import warnings
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


def advised(rank: int, world: int, dense_seconds: float, steps: int) -> tuple[list[str], str | None, bool]:
    """What is said when dense gradients are said to take so long; how often that was measured stands in the bytes."""
    model = Net()
    parallel = ddp(model)
    hook = gradwire.torch.compress(parallel, "topk:density=0.02", start_step=2)
    measured: list[float] = []

    def measure(seconds: float) -> float:
        measured.append(seconds)
        return dense_seconds if seconds > 0 else 0.0

    hook._watch.dense_seconds = measure  # type: ignore[method-assign]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(steps):
            loss_of(parallel, step, rank).backward()
            model.zero_grad()
        hook.stats()
    is_measured = len(measured) == (1 if steps > 11 else 0) and all(0 < seconds < 10 for seconds in measured)
    return [str(one.message) for one in told], hook.advice, is_measured


def test_compression_that_does_not_pay_is_told_once() -> None:
    (told, advice, once), (silent, same, _) = results(2, advised, 0.0, 15)
    assert once
    assert advice is not None
    assert same is not None
    assert told == [f"gradwire: {advice}"]
    assert advice.startswith("compression does not pay: a step takes ")
    assert "all-reduce of the same gradients takes about 0.0 ms. The link is fast" in advice
    assert silent == []


@pytest.mark.parametrize(("dense_seconds", "steps"), [(1e6, 15), (0.0, 11)])
def test_compression_that_pays_or_is_young_is_not_spoken_of(dense_seconds: float, steps: int) -> None:
    assert results(2, advised, dense_seconds, steps) == [([], None, True)] * 2


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


def all_threads() -> Any:
    """How the profiler sees threads of others; `None` where this version of torch has it see the calling one alone."""
    try:
        return torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    except TypeError:
        return None


def narrow(rank: int, world: int) -> tuple[list[str], list[str], bytes]:
    """float16 without a scaler, under the profiler."""
    model = Net().to(torch.float16)
    parallel = ddp(model)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        hook = gradwire.torch.compress(parallel, "topk:density=0.05", check_every=1)
    with torch.profiler.profile(experimental_config=all_threads()) as profile:
        tokens, targets = batch(0, rank)
        nn.functional.cross_entropy(parallel(tokens).float(), targets).backward()
        hook.stats()
    names = sorted({event.key for event in profile.key_averages() if event.key.startswith("gradwire.")})
    grads = b"".join(parameter.grad.cpu().numpy().tobytes() for parameter in model.parameters())
    return [str(one.message) for one in told if "float16" in str(one.message)], names, grads


def test_float16_without_a_scaler_is_warned_of_and_the_profiler_sees_the_parts_of_a_step() -> None:
    first, second = results(2, narrow)
    for told, names, _ in (first, second):
        assert told == ["float16 without scaler=: what is kept back is lost in silence where it underflows"]
        if all_threads() is not None:
            assert names == ["gradwire.decode", "gradwire.encode", "gradwire.exchange", "gradwire.stage"]
    assert first[2] == second[2]
