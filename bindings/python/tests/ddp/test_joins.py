"""Buckets whose messages are short share one, and no bit depends on it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Net, ddp, join_buckets, loss_of, parameters, results

import gradwire.torch
from gradwire.torch import DistributedOptimizer
from gradwire.torch._joins import END, LEAST_SECONDS, STEPS, Joins


def run(ranks: list[Joins], steps: int, bucket_bytes: list[int], seconds_per_byte: float, is_possible: bool = True) -> None:
    """Steps in which a message takes half a millisecond, and its bytes, and the first rank always waits for the second."""
    for _ in range(steps):
        for bucket, size in enumerate(bucket_bytes):
            told = [rank.own(bucket) for rank in ranks]
            for late, rank in enumerate(reversed(ranks)):
                rank.took(bucket, 0.0005 + size * seconds_per_byte + 0.01 * late)
                rank.saw(bucket, (bucket,), size)
                rank.heard(bucket, told)
        told = [rank.own(END) for rank in ranks]
        for late, rank in enumerate(reversed(ranks)):
            rank.took(END, 0.0005 + 0.01 * late)
            rank.heard(END, told)
            rank.end_step(is_possible)
        assert ranks[0].buckets == ranks[1].buckets


def test_a_bucket_waits_for_the_next_one_if_its_bytes_take_little_time() -> None:
    ranks = [Joins(), Joins()]
    sizes = [1_000, 20_000, 5_000, 100]
    # The first step cuts the buckets.
    run(ranks, STEPS, sizes, 1e-7)
    assert ranks[0].buckets == frozenset()
    run(ranks, 1, sizes, 1e-7)
    assert ranks[0].buckets == {0, 2}
    # Frames that become longer or shorter.
    run(ranks, 1, [14_000, 20_000, 20_000, 100], 1e-7)
    assert ranks[0].buckets == {0}
    run(ranks, 1, [14_000, 1_000, 20_000, 100], 1e-7)
    assert ranks[0].buckets == {0, 1}


def test_on_a_slow_link_none_waits_and_on_a_fast_one_all_do() -> None:
    for seconds_per_byte, expected in ((1e-3, frozenset()), (1e-10, {0, 1})):
        ranks = [Joins(), Joins()]
        run(ranks, STEPS + 1, [20_000, 30_000, 100], seconds_per_byte)
        assert ranks[0].buckets == expected
    assert 20_000 * 1e-10 < LEAST_SECONDS < 20_000 * 1e-3


def test_other_buckets_and_steps_without_frames_begin_again() -> None:
    ranks = [Joins(), Joins()]
    run(ranks, STEPS + 1, [100, 200, 300], 1e-9)
    assert ranks[0].buckets == {0, 1}
    run(ranks, 1, [100, 200, 300, 400], 1e-9)
    assert ranks[0].buckets == frozenset()
    run(ranks, STEPS, [100, 200, 300, 400], 1e-9)
    assert ranks[0].buckets == {0, 1, 2}
    run(ranks, 1, [100, 200, 300, 400], 1e-9, is_possible=False)
    assert ranks[0].buckets == frozenset()
    run(ranks, 2 * STEPS, [0, 0, 0, 0], 1e-9)
    assert ranks[0].buckets == frozenset()


def trained(rank: int, world: int, codec: str, joins: bool) -> tuple[bytes, list[int]]:
    """The parameters after some steps, one of which is not finite, and how often ranks sent something in each."""
    calls = 0
    send = dist.all_to_all_single

    def counting(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return send(*args, **options)

    model = Net()
    parallel = ddp(model, bucket_cap_mb=0.005)
    hook = gradwire.torch.compress(parallel, codec, check_every=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sent = []
    dist.all_to_all_single = counting
    for step in range(7):
        if joins and step == 3:
            join_buckets(hook)
        before = calls
        optimizer.zero_grad()
        loss = loss_of(parallel, step, rank)
        (loss * math.inf if step == 5 and rank == 1 else loss).backward()
        if all(torch.isfinite(one.grad).all() for one in model.parameters()):
            optimizer.step()
        hook.stats()
        sent.append(calls - before)
    assert hook.stats().skipped_steps == 1
    return parameters(model), sent


@pytest.mark.parametrize(
    ("world", "codec"), [(2, "topk:density=0.02"), (4, "topk:density=0.02"), (2, "qsgd:bits=4"), (2, "dgc")]
)
def test_buckets_that_share_a_message_have_the_same_means(world: int, codec: str) -> None:
    apart, joined = results(world, trained, codec, False), results(world, trained, codec, True)
    for (one, sent), (other, fewer) in zip(apart, joined, strict=True):
        assert one == other
        buckets = sent[4] - 1
        assert buckets > 2
        # A step that is not finite sends no frames from there on, and the one after it as usual.
        assert fewer[3:5] == [2, 2]
        assert fewer[6] == 2


def optimized(rank: int, world: int, joins: bool) -> bytes:
    """Without DDP, with a layer that one rank does not use."""
    model = Net(unused=True)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = DistributedOptimizer(inner, model.named_parameters(), "topk:density=0.02", bucket_cap_mb=0.005, check_every=1)
    for step in range(6):
        if joins and step == 3:
            join_buckets(optimizer.exchange)
        optimizer.zero_grad()
        loss_of(model, step, rank, skip=step > 3 and rank == 0).backward()
        optimizer.step()
    return parameters(model)


def test_an_optimizer_shares_messages_with_the_same_bits() -> None:
    assert results(2, optimized, False) == results(2, optimized, True)


def decided(rank: int, world: int) -> list[set[int]]:
    """What was decided after each step, by times as they are."""
    model = Net()
    parallel = ddp(model, bucket_cap_mb=0.005)
    hook = gradwire.torch.compress(parallel, "topk:density=0.02", check_every=1)
    found = []
    for step in range(STEPS + 6):
        model.zero_grad()
        loss_of(parallel, step, rank).backward()
        hook.stats()
        found.append(set(hook._joins.buckets))
    return found


def test_all_ranks_decide_alike() -> None:
    ranks = results(4, decided)
    assert all(rank == ranks[0] for rank in ranks)
    assert ranks[0][STEPS] == set()
