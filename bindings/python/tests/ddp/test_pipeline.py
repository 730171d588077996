"""A bucket is encoded while the one before it travels, in as few collectives as can be, and no bit depends on it."""

from __future__ import annotations

import ctypes
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import Net, Raised, ddp, join_buckets, loss_of, results, run

import gradwire
import gradwire.torch
from gradwire._core import _carry_over, _encode_beside, _load, _mean, _Tensors
from gradwire.torch._engine import Bucket


def overlapped(rank: int, world: int) -> list[bool]:
    """Each bucket waits, before its collectives, until the next one is encoded: whether that came."""
    parallel = ddp(Net(), bucket_cap_mb=0.005)
    hook = gradwire.torch.compress(parallel, "topk:density=0.02")
    loss_of(parallel, 0, rank).backward()
    encoded = [threading.Event() for _ in range(20)]
    came = []
    gather, prepare = hook._gather, hook._prepare

    def late(jobs: Any) -> Any:
        came.append(jobs[-1].is_last or encoded[jobs[-1].index + 1].wait(20))
        return gather(jobs)

    def noted(job: Any) -> None:
        prepare(job)
        encoded[job.index].set()

    hook._gather, hook._prepare = late, noted  # type: ignore[method-assign]
    loss_of(parallel, 1, rank).backward()
    return came


def test_a_bucket_is_encoded_while_the_one_before_it_travels() -> None:
    for came in results(2, overlapped):
        assert len(came) > 2
        assert all(came)


def counted(rank: int, world: int, codec: str) -> list[tuple[int, int]]:
    """Buckets and collectives of each step."""
    calls = 0

    def counting(collective: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            return collective(*args, **options)

        return call

    parallel = ddp(Net(), bucket_cap_mb=0.005)
    hook = gradwire.torch.compress(parallel, codec, check_every=0)
    for name in ("all_gather", "all_to_all_single", "all_reduce"):
        setattr(dist, name, counting(getattr(dist, name)))
    found = []
    for step in range(5):
        before, buckets = calls, 0
        loss_of(parallel, step, rank).backward()
        hook.stats()
        buckets = len(hook._room)
        found.append((buckets, calls - before))
    return found


@pytest.mark.parametrize("world", [2, 4])
def test_a_bucket_takes_one_collective_and_a_step_one_more(world: int) -> None:
    for steps in results(world, counted, "qsgd:bits=4,norm=max"):
        # The first step has one bucket, and the second others: how long frames are is not known yet.
        assert steps[0] == (1, 3)
        buckets = steps[1][0]
        assert buckets > 2
        assert steps[1][1] > buckets + 1
        assert steps[2:] == [(buckets, buckets + 1)] * 3


def grown(rank: int, world: int) -> bytes:
    """Frames that grow and shrink from step to step, so that they fit into what is sent, or do not."""
    model = Net()
    parallel = ddp(model)
    densities = [0.01, 0.5, 0.5, 0.02, 0.02, 0.3]
    gradwire.torch.compress(parallel, "topk", density=lambda step: densities[step], check_every=1)
    kept = []
    for step in range(len(densities)):
        model.zero_grad()
        loss_of(parallel, step, rank).backward()
        kept.append(b"".join(p.grad.numpy().tobytes() for p in model.parameters()))
    return b"".join(kept)


def test_frames_of_any_length_arrive() -> None:
    every = results(4, grown)
    assert all(one == every[0] for one in every)
    one, other = results(2, grown), results(2, grown)
    assert one == other


def interrupted(rank: int, world: int) -> None:
    """The backward of rank 1 ends after its first bucket, and another one begins."""
    model = Net()
    parallel = ddp(model)
    hook = gradwire.torch.compress(parallel, "topk:density=0.02", timeout=6)
    loss_of(parallel, 0, rank).backward()
    is_broken = rank == 1

    def broken(grad: torch.Tensor) -> torch.Tensor:
        if is_broken:
            raise KeyError("a bug of the user")
        return grad

    model.embed.weight.register_hook(broken)
    if rank == 1:
        with pytest.raises(KeyError):
            loss_of(parallel, 1, rank).backward()
        is_broken = False
        # The other rank has its first bucket, too.
        hook._wait()
    loss_of(parallel, 1, rank).backward()


def test_a_backward_that_ends_early_at_one_rank_ends_the_other() -> None:
    waited, broken = run(2, interrupted)
    assert isinstance(waited, Raised)
    assert waited.name == "PeerLostError"
    assert "step 1, bucket 1: rank 1" in waited.text
    # DDP itself takes no further forward.
    assert isinstance(broken, Raised)
    assert broken.name == "RuntimeError"
    assert "finished reduction" in broken.text


def repeated(rank: int, world: int, breaks: bool, joins: bool) -> bytes:
    """A backward that ends early at all ranks is repeated, with what was kept before it."""
    model = Net()
    parallel = ddp(model)
    hook = gradwire.torch.compress(parallel, "topk:density=0.02", check_every=1)
    for step in range(2):
        loss_of(parallel, step, rank).backward()
    if joins:
        join_buckets(hook)
    # As when a hook of the user raises in the middle, without DDP, which does not survive that.
    if breaks:
        slot = hook._plan.groups[0].slots[-1]
        job = Bucket(0, False, positions=(slot.tensor.position,), gradients=[torch.ones(slot.tensor.shape)])
        hook._hand_over(job)
        if not joins:
            hook._wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss_of(parallel, 2, rank).backward()
        state = hook.state_dict()
    return b"".join(tensor.numpy().tobytes() for tensor in state["residual"].values())


def test_a_step_that_all_ranks_begin_again_keeps_what_was_kept() -> None:
    undisturbed = results(2, repeated, False, False)
    assert results(2, repeated, True, False) == undisturbed
    assert results(2, repeated, True, True) == undisturbed


def test_tensors_are_loaded_with_whether_they_hold_anything() -> None:
    targets = [np.full(n, 7, np.float32) for n in (3, 70_000, 2, 0)]
    tensors = [np.array([0, -0.0, 0], np.float32), np.zeros(70_000, np.float32), np.array([0, np.nan], np.float32), targets[3]]
    tensors[1][-1] = 1
    tensors[3] = np.zeros(0, np.float32)
    assert _load(targets, tensors) == [False, True, True, False]
    for target, tensor in zip(targets, tensors, strict=True):
        assert target.tobytes() == tensor.tobytes()
    with pytest.raises(ValueError, match="expected 3 elements"):
        _load(targets[1:2], tensors[:1])
    with pytest.raises(ValueError, match="one for each tensor"):
        _load(targets[:1], tensors[:2])
    with pytest.raises(ValueError, match="the memory of a target"):
        _load(targets[:1], targets[:1])
    with pytest.raises(ValueError, match="the same memory"):
        _load([targets[0], targets[0]], [tensors[0], tensors[0]])


@pytest.mark.parametrize("spelling", ["topk:density=0.1", "sidco:density=0.01", "qsgd:bits=4,memory=ef,rounding=nearest"])
def test_a_step_beside_the_memory_is_the_step_in_it(spelling: str) -> None:
    codec = gradwire.Codec(f"{spelling},unit=tensor")
    layout = gradwire.Layout({"a": (500,), "b": (3,), "c": (40_000,)})
    units = codec.units(layout)
    random = np.random.default_rng(3)
    usual, before, memory = (gradwire.Memory(codec, layout, units=units) for _ in range(3))
    for step in range(4):
        gradient = random.normal(size=40_503).astype(np.float32)
        gradient[500:503] = 0
        frame = codec.encode(gradient, layout, usual, step=step, rank=1, units=[units[0], units[2]])
        tensors = [gradient[start : start + size] for _, start, size, _ in units]
        held = before.state_dict()["residual"]["c"].tobytes()
        # In two buckets, of which the first has a tensor of zeros.
        shares = _Tensors(tensors[:2], units[:2]), _Tensors(tensors[2:], units[2:])
        first, present = _encode_beside(codec, before, memory, shares[0], step=step, seed=0, rank=1)
        assert present == [True, False]
        # The second bucket's gradient is elsewhere than its mean will be.
        elsewhere, tensors[2][:] = tensors[2].copy(), np.nan
        second, _ = _encode_beside(codec, before, memory, shares[1], step=step, seed=0, rank=1, sources=[(0, elsewhere)])
        assert before.state_dict()["residual"]["c"].tobytes() == held
        means = []
        for frames in ([frame], [first, second]):
            means.append(np.zeros(40_503, np.float32))
            for data in frames:
                gradwire.Frame(data, layout).add_to(means[-1])
        assert means[0].tobytes() == means[1].tobytes()
        before, memory = memory, before
        assert before.save() == usual.save()
    _carry_over(codec, before, memory, units)
    assert memory.save() == usual.save()


def test_what_cannot_be_encoded_beside_a_memory_is_refused() -> None:
    layout = gradwire.Layout({"a": (4,)})
    codec = gradwire.Codec("topk:density=0.5,unit=tensor")
    before, memory = gradwire.Memory(codec, layout), gradwire.Memory(codec, layout)
    units, ones = codec.units(layout), np.ones(4, np.float32)

    def encode(
        tensors: list[Any],
        units: list[tuple[int, int, int, bool]],
        codec: gradwire.Codec = codec,
        memory: gradwire.Memory = memory,
    ) -> tuple[bytes, list[bool]]:
        return _encode_beside(codec, before, memory, _Tensors(tensors, units), step=0, seed=0, rank=0)

    assert encode([np.zeros(4, np.float32)], units) == (b"", [False])
    with pytest.raises(ValueError, match="one for each unit"):
        encode([ones[:3]], units)
    with pytest.raises(ValueError, match="one for each unit"):
        encode([ones, ones], units)
    writable = np.frombuffer((ctypes.c_float * 4).from_address(memory.residual.ctypes.data), np.float32)
    with pytest.raises(ValueError, match="stands in the memory"):
        encode([writable], units)
    with pytest.raises(ValueError, match="writable"):
        encode([memory.residual], units)
    with pytest.raises(ValueError, match="the same memory"):
        encode([ones, ones], [(0, 0, 4, False), (1, 4, 4, False)])
    with pytest.raises(ValueError, match="ranges of 4 elements"):
        encode([ones], [(0, 1, 4, False)])
    with pytest.raises(ValueError, match="ascending"):
        encode([ones], [(0, 2**63 - 2, 4, False)])
    with pytest.raises(TypeError, match="expected float32, got float16"):
        encode([ones.astype(np.float16)], units)
    with pytest.raises(RuntimeError, match="another thread"):
        encode([ones], units, memory=before)
    with pytest.raises(ValueError, match="error feedback"):
        encode([ones], units, codec=gradwire.Codec("dgc"))
    with pytest.raises(ValueError, match="layout: expected"):
        encode([ones], units, memory=gradwire.Memory(codec, 5))
    with pytest.raises(gradwire.EncodeError, match="non-finite"):
        encode([ones * np.float32(np.nan)], units)
    for number, source in ((0, ones[:3]), (1, ones), (0, memory.residual)):
        with pytest.raises(ValueError, match="sources: expected one as long as its tensor"):
            _encode_beside(codec, before, memory, _Tensors([ones], units), step=0, seed=0, rank=0, sources=[(number, source)])
    assert before.residual.tolist() == [0] * 4


@pytest.mark.parametrize("spelling", ["topk:density=0.1", "topk:density=0.01", "qsgd:bits=4", "none", "f16"])
def test_means_are_those_of_frames_added_one_by_one(spelling: str) -> None:
    sizes = (500, 3, 40_000)
    layout = gradwire.Layout({f"w{at}": (size,) for at, size in enumerate(sizes)})
    codec = gradwire.Codec(spelling if spelling in ("none", "f16") else f"{spelling},memory=none,unit=tensor,dense_below=8")
    units, start = [], 0
    for at, size in enumerate(sizes):
        units.append((at, start, size, size < 8))
        start += size
    frames = []
    common = np.random.default_rng(9).normal(size=start)
    for rank in range(3):
        # They hold the same coordinates, for the greater part.
        grad = (common + np.random.default_rng(rank).normal(size=start) / 4).astype(np.float32)
        data = codec.encode(grad, layout, rank=rank, units=[unit for unit in units if unit[0] != rank])
        frames.append(gradwire.Frame(data, layout))
    total = np.zeros(start, np.float32)
    for frame in frames:
        frame.add_to(total)
    assert gradwire.divide(total, 3) is None
    tensors = [np.full(unit[2], 9, np.float32) for unit in units]
    assert _mean(frames, 3, _Tensors(tensors, units))
    assert b"".join(tensor.tobytes() for tensor in tensors) == total.tobytes()
    before = [tensor.copy() for tensor in tensors]
    with pytest.raises(ValueError, match="matches no tensor"):
        _mean(frames, 3, _Tensors(tensors[:2], units[:2]))
    with pytest.raises(ValueError, match="ascending"):
        _Tensors(tensors[::-1], units[::-1])
    with pytest.raises(ValueError, match="contributors=0"):
        _mean(frames, 0, _Tensors(tensors, units))
    assert all(kept.tobytes() == tensor.tobytes() for kept, tensor in zip(before, tensors, strict=True))


def test_a_sparse_mean_that_is_not_finite_is_told() -> None:
    layout = gradwire.Layout({"a": (1000,)})
    codec = gradwire.Codec("topk:density=0.001,memory=none")
    grad = np.zeros(1000, np.float32)
    grad[7] = 3e38
    frame = gradwire.Frame(codec.encode(grad, layout), layout)
    mean = np.ones(1000, np.float32)
    tensors = _Tensors([mean], [(0, 0, 1000, False)])
    assert not _mean([frame, frame], 2, tensors)
    assert _mean([frame], 2, tensors)
    assert mean[7] == np.float32(1.5e38)
    assert np.count_nonzero(mean) == 1


def test_a_mean_that_is_not_finite_is_told() -> None:
    layout = gradwire.Layout({"a": (2,), "b": (3,)})
    frames = [
        gradwire.Frame(gradwire.Codec("none").encode(np.full(5, 3e38, np.float32), layout, units=[(0, 0, 2, False)]), layout)
        for _ in range(2)
    ]
    tensors = [np.zeros(2, np.float32), np.ones(3, np.float32)]
    assert not _mean(frames, 2, _Tensors(tensors, [(0, 0, 2, False), (1, 2, 3, False)]))
    assert not tensors[1].any()
