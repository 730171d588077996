"""What the hook gives to DDP is what the codecs give to numpy, bit for bit."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from ranks import Net, ddp, loss_of, parameters, results

import gradwire
import gradwire.torch

STEPS = 4


def recorded(rank: int, world: int, codec: str, options: dict[str, Any], width: int = 48, wire: str = "f32") -> dict[str, Any]:
    """Local gradients and means of a few steps."""
    unused = options.get("find_unused_parameters", False)
    model = Net(width, unused=unused)
    twin = copy.deepcopy(model)
    parallel = ddp(model, **options)
    hook = gradwire.torch.compress(parallel, codec, timeout=60, check_every=1, seed=5, wire=wire)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    local, means = [], []
    for step in range(STEPS):
        # One rank alone leaves a layer out, or all do.
        skip = unused and (step == 3 or (step == 2 and rank == 0))
        twin.load_state_dict(model.state_dict())
        twin.zero_grad()
        loss_of(twin, step, rank, skip=skip).backward()
        local.append([None if p.grad is None else p.grad.cpu().numpy().copy() for p in twin.parameters()])
        optimizer.zero_grad()
        loss_of(parallel, step, rank, skip=skip).backward()
        means.append([None if p.grad is None else p.grad.cpu().numpy().copy() for p in model.parameters()])
        optimizer.step()
    hook.close()
    return {
        "local": local,
        "means": means,
        "shapes": {name: tuple(p.shape) for name, p in model.named_parameters()},
        "parameters": parameters(model),
        "residuals": {name: array.cpu().numpy() for name, array in hook.state_dict()["residual"].items()},
        "checks": hook.stats().hash_checks,
    }


def all_recorded(
    rank: int, world: int, codecs: list[str], options: dict[str, Any], width: int = 48, wire: str = "f32"
) -> dict[str, dict[str, Any]]:
    """Several codecs one after the other, as processes take long to start."""
    return {codec: recorded(rank, world, codec, options, width, wire) for codec in codecs}


def on_wire(payload: np.ndarray, wire: str) -> np.ndarray:
    """What the others read of a payload: float32 with 16 bits less if it travels so. Integers travel as they are."""
    if wire == "f32" or payload.dtype != np.float32:
        return payload
    return torch.from_numpy(payload).to(torch.bfloat16).to(torch.float32).numpy()


def replay(
    codec: gradwire.Codec, ranks: list[dict[str, Any]], wire: str = "f32"
) -> tuple[list[np.ndarray], list[gradwire.Memory | None]]:
    """The means of the recorded gradients through the numpy package."""
    layout = gradwire.Layout(ranks[0]["shapes"])
    units, start = [], 0
    dense = {unit[1] for unit in codec.units(layout) if unit[3]}
    for position, shape in enumerate(ranks[0]["shapes"].values()):
        size = int(np.prod(shape))
        units.append((position, start, size, start in dense))
        start += size
    memories = [None if codec.memory == "none" else gradwire.Memory(codec, layout, units=units) for _ in ranks]
    means = []
    for step in range(STEPS):
        total = np.zeros(len(layout), np.float32)
        used, flats = [], []
        for one in ranks:
            grads = one["local"][step]
            shapes = ranks[0]["shapes"].values()
            flats.append(
                np.concatenate(
                    [
                        np.zeros(shape, np.float32).ravel() if g is None else g.ravel()
                        for g, shape in zip(grads, shapes, strict=True)
                    ]
                )
            )
            used.append([unit for unit, grad in zip(units, grads, strict=True) if grad is not None and grad.any()])
        if codec.is_linear:
            both = [unit for unit in units if any(unit in one for one in used)]
            rounds = [
                codec.begin(flats[rank], layout, memories[rank], step=step, seed=5, rank=rank, workers=len(ranks), units=both)
                for rank in range(len(ranks))
            ]
            for unit in zip(*rounds, strict=True):
                while not unit[0].done:
                    way = "f32" if unit[0].reduction == "max" else wire
                    payloads = [one.payload for one in unit]
                    reduced = on_wire(payloads[0], way).copy()
                    for payload in payloads[1:]:
                        sent = on_wire(payload, way)
                        reduced = np.maximum(reduced, sent) if unit[0].reduction == "max" else reduced + sent
                    reduced = on_wire(reduced, way)
                    for one, payload in zip(unit, payloads, strict=True):
                        payload[:] = reduced
                        one.advance()
                total[slice(*unit[0].range)] = unit[0].mean
        else:
            for rank, flat in enumerate(flats):
                frame = codec.encode(flat, layout, memories[rank], step=step, seed=5, rank=rank, units=used[rank])
                gradwire.add(frame, total, layout=layout)
            assert gradwire.divide(total, len(ranks)) is None
        means.append(total)
    return means, memories


def check(codec: gradwire.Codec, ranks: list[dict[str, Any]], wire: str = "f32") -> None:
    means, memories = replay(codec, ranks, wire)
    for rank, one in enumerate(ranks):
        assert one["parameters"] == ranks[0]["parameters"]
        assert one["checks"] == STEPS
        for step, mean in enumerate(means):
            start = 0
            for (name, shape), got in zip(one["shapes"].items(), one["means"][step], strict=True):
                size = int(np.prod(shape))
                if got is not None:
                    assert got.tobytes() == mean[start : start + size].tobytes(), (rank, step, name)
                start += size
        if memories[rank] is not None:
            kept = np.concatenate([array.ravel() for array in one["residuals"].values()])
            assert kept.tobytes() == memories[rank].residual.tobytes()


GATHER = [
    "topk:density=0.05",
    "topk:density=0.05,index=smallest,values=q4",
    "topk:density=0.05,index=context-max,values=q2",
    "qsgd:bits=4",
    "dgc:density=0.05",
    "sidco:density=0.05",
    "threshold:value=0.01",
    "bf16",
    "f16",
]
LINEAR = ["none", "randomk:density=0.1", "maxnorm:bits=8", "powersgd:rank=2"]


def spelled(codec: str) -> gradwire.Codec:
    if codec in ("none", "f16", "bf16"):
        return gradwire.Codec(codec)
    return gradwire.Codec(f"{codec},unit=tensor,dense_below=128")


@pytest.fixture(scope="module")
def two_ranks() -> list[dict[str, dict[str, Any]]]:
    return results(2, all_recorded, GATHER + LINEAR, {}, seconds=300)


@pytest.mark.parametrize("codec", GATHER + LINEAR)
def test_means_are_those_of_a_replay(codec: str, two_ranks: list[dict[str, dict[str, Any]]]) -> None:
    check(spelled(codec), [one[codec] for one in two_ranks])


@pytest.mark.parametrize("world", [2, 3])
def test_with_16_bits_on_the_wire_means_are_those_of_a_replay_that_rounds(world: int) -> None:
    ranks = results(world, all_recorded, LINEAR, {}, 48, "bf16", seconds=300)
    for codec in LINEAR:
        check(spelled(codec), [one[codec] for one in ranks], "bf16")
        if codec != "maxnorm:bits=8":
            # Else nothing would be rounded.
            with pytest.raises(AssertionError):
                check(spelled(codec), [one[codec] for one in ranks])


MODES: dict[str, dict[str, Any]] = {
    "default-buckets": {"bucket_cap_mb": None},
    "one-bucket": {"bucket_cap_mb": 25},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "views": {"gradient_as_bucket_view": True},
}


@pytest.mark.parametrize("mode", MODES)
def test_means_are_those_of_a_replay_at_four_ranks_with(mode: str) -> None:
    # Frames of the second one are summed by owners.
    codecs = ["topk:density=0.02", "topk:density=0.4", "powersgd:rank=1", "none"]
    ranks = results(4, all_recorded, codecs, MODES[mode], 240 if mode == "default-buckets" else 48, seconds=300)
    for codec in codecs:
        check(spelled(codec), [one[codec] for one in ranks])


def sent(rank: int, world: int, codec: str) -> tuple[int, int]:
    """Messages and bytes of a step."""
    model = Net()
    parallel = ddp(model)
    hook = gradwire.torch.compress(parallel, codec, check_every=0)
    loss_of(parallel, 0, rank).backward()
    return hook._worker.view.totals()["messages"], hook.stats().bytes_sent


def test_owners_sum_frames_of_many_ranks_where_that_is_shorter() -> None:
    def of(world: int, density: float) -> tuple[int, float]:
        (messages, *_), sizes = zip(*results(world, sent, f"topk:density={density}"), strict=True)
        return messages, sum(sizes) / world

    (messages, frame), (gathered, _), (both_ways, summed) = of(2, 0.4), of(4, 0.02), of(4, 0.4)
    # Another one ends the step.
    buckets = messages - 1
    assert gathered == 3 * (buckets + 1)
    # To owners, and from them.
    assert both_ways == 3 * (2 * buckets + 1)
    assert summed < 0.9 * 3 * frame


def plain(rank: int, world: int, compressed: bool) -> list[np.ndarray]:
    model = Net()
    parallel = ddp(model)
    if compressed:
        gradwire.torch.compress(parallel, "none")
    loss_of(parallel, 0, rank).backward()
    return [p.grad.cpu().numpy() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("world", [2, 4])
def test_none_is_ddp_within_rounding(world: int) -> None:
    ours, theirs = results(world, plain, True), results(world, plain, False)
    for own, other in zip(ours[0], theirs[0], strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-8)
