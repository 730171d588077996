"""A bucket is encoded while the one before it travels, in as few messages as can be, and no bit depends on it."""

from __future__ import annotations

import time
import warnings

import pytest
import torch
from ranks import Net, Raised, ddp, loss_of, results, run

import gradwire.torch
from gradwire.torch._engine import Bucket


def overlapped(rank: int, world: int) -> list[str]:
    """What the engine does in a step in which the first bucket of rank 1 comes late."""
    parallel = ddp(Net(), bucket_cap_mb=0.005)
    hook = gradwire.torch.compress(parallel, "topk:density=0.02")
    loss_of(parallel, 0, rank).backward()
    notes: list[str] = []
    hand_over = hook._worker.hand_over

    def encodes(job: Bucket) -> None:
        notes.append(f"encode {job.index}")
        if rank == 1 and job.index == 0:
            time.sleep(1)

    def noted(job: Bucket) -> None:
        job.on_encode, job.on_decode = encodes, lambda job: notes.append(f"decode {job.index}")
        hand_over(job)

    hook._worker.hand_over = noted  # type: ignore[method-assign]
    loss_of(parallel, 1, rank).backward()
    return notes


def test_a_bucket_is_encoded_while_the_one_before_it_travels() -> None:
    notes, _ = results(2, overlapped)
    buckets = len(notes) // 2
    assert buckets > 2
    # All of them are, while the first one of the other rank is awaited.
    assert notes == [f"{what} {bucket}" for what in ("encode", "decode") for bucket in range(buckets)]


def counted(rank: int, world: int, codec: str) -> list[tuple[int, int]]:
    """Buckets and messages of each step."""
    parallel = ddp(Net(), bucket_cap_mb=0.005)
    hook = gradwire.torch.compress(parallel, codec, check_every=0)
    hand_over, found, buckets = hook._worker.hand_over, [], 0

    def noted(job: Bucket) -> None:
        nonlocal buckets
        buckets += 1
        hand_over(job)

    hook._worker.hand_over = noted  # type: ignore[method-assign]
    for step in range(5):
        before, buckets = hook._worker.view.totals()["messages"], 0
        loss_of(parallel, step, rank).backward()
        found.append((buckets, hook._worker.view.totals()["messages"] - before))
    return found


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize(("codec", "rounds"), [("qsgd:bits=4", 1), ("none", 3)])
def test_a_bucket_takes_one_message_to_each_rank_and_a_step_one_more(world: int, codec: str, rounds: int) -> None:
    """What is summed takes two more: shares, and their sums."""
    for steps in results(world, counted, codec):
        assert steps[0][0] == 1
        buckets = steps[1][0]
        assert buckets > 2
        assert [(count, messages) for count, messages in steps] == [
            (count, (rounds * count + 1) * (world - 1)) for count, _ in steps
        ]


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
        kept.append(b"".join(p.grad.cpu().numpy().tobytes() for p in model.parameters()))
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
        hook._worker.wait()
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


def repeated(rank: int, world: int, breaks: str) -> bytes:
    """A backward that ends early at all ranks is repeated, with what was kept before it."""
    model = Net()
    parallel = ddp(model)
    hook = gradwire.torch.compress(parallel, "topk:density=0.02", check_every=1)
    for step in range(2):
        loss_of(parallel, step, rank).backward()
    # As when a hook of the user raises in the middle, without DDP, which does not survive that.
    if breaks:
        slot = hook._worker.plan.groups[0].slots[-1]
        job = Bucket(0, False, positions=(slot.tensor.position,), gradients=[torch.ones(slot.tensor.shape)])
        hook._worker.hand_over(job)
        if breaks != "at once":
            hook._worker.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss_of(parallel, 2, rank).backward()
        state = hook.state_dict()
    return b"".join(tensor.cpu().numpy().tobytes() for tensor in state["residual"].values())


def test_a_step_that_all_ranks_begin_again_keeps_what_was_kept() -> None:
    undisturbed = results(2, repeated, "")
    assert results(2, repeated, "later") == undisturbed
    assert results(2, repeated, "at once") == undisturbed
