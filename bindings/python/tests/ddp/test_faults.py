"""Ranks that fail, die, stop or differ end the others with a named error, and nothing hangs."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import torch
from ranks import Died, Net, Raised, break_engine, ddp, loss_of, run

import gradwire.torch

CODECS = ["topk:density=0.02", "powersgd:rank=1", "none"]
TIMEOUT = 6.0


def suffer(rank: int, world: int, codec: str, how: str) -> None:
    """Something happens to rank 1 in step 3."""
    model = Net()
    parallel = ddp(model)

    def density(step: int) -> float:
        if how == "raises" and rank == 1 and step == 3:
            raise KeyError("no density today")
        return 0.1

    hook = gradwire.torch.compress(parallel, codec, timeout=TIMEOUT, density=density, check_every=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        assert step <= 4, "too late"
        if rank == 1 and step == 3:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            if how == "differs":
                with torch.no_grad():
                    model.inner.weight[0, 0] += 1e-6
            if how == "encode":
                break_engine(hook, "on_encode")
            if how == "encode later":
                break_engine(hook, "on_encode", lambda job: job.index == 1)
            if how == "decode":
                break_engine(hook, "on_decode", lambda job: job.index == 0)
            if how == "decode last":
                break_engine(hook, "on_decode", lambda job: job.is_last)
            if how == "leaves":
                return
        optimizer.zero_grad()
        try:
            loss_of(parallel, step, rank).backward()
        except Exception as error:
            assert hook.state_dict()["step"] == step
            error.step = step  # type: ignore[attr-defined]
            assert step == 3
            raise
        optimizer.step()


def named(results: list[Any], rank: int, name: str, *texts: str) -> None:
    assert isinstance(results[rank], Raised), results
    assert results[rank].name == name, results[rank]
    for text in texts:
        assert text in results[rank].text, results[rank].text


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("world", [2, 4])
def test_an_exception_at_one_rank_reaches_all_in_the_same_step(world: int, codec: str) -> None:
    results = run(world, suffer, codec, "encode")
    named(results, 1, "MemoryError", "no room")
    for rank in set(range(world)) - {1}:
        named(results, rank, "PeerFailedError", "step 3", "rank 1: MemoryError: no room")


def test_an_exception_in_the_calling_thread_keeps_its_name() -> None:
    results = run(2, suffer, "topk:density=0.02", "raises")
    named(results, 1, "KeyError", "no density today")
    named(results, 0, "PeerFailedError", "rank 1: KeyError")


@pytest.mark.parametrize("how", ["decode", "decode last"])
def test_an_exception_while_decoding_reaches_all_in_the_same_step(how: str) -> None:
    results = run(2, suffer, "topk:density=0.02", how)
    named(results, 1, "MemoryError")
    named(results, 0, "PeerFailedError", "step 3", "rank 1: MemoryError")


@pytest.mark.parametrize("how", ["encode", "encode later"])
def test_an_exception_in_any_bucket_reaches_all_of_four_ranks(how: str) -> None:
    results = run(4, suffer, "topk:density=0.02", how)
    named(results, 1, "MemoryError", "no room")
    for rank in (0, 2, 3):
        named(results, rank, "PeerFailedError", "step 3", "rank 1: MemoryError: no room")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("how", ["killed", "stopped", "leaves"])
def test_a_rank_that_is_gone_ends_the_others_in_time(how: str, codec: str) -> None:
    began = time.monotonic()
    results = run(4 if codec.startswith("topk") else 2, suffer, codec, how)
    assert time.monotonic() - began < 60
    for rank, result in enumerate(results):
        if rank == 1:
            assert result is None if how == "leaves" else isinstance(result, Died)
        else:
            named(results, rank, "PeerLostError", "step 3, bucket 0: rank 1 did not answer within 6 s")
            assert result.seconds < 3 * TIMEOUT + 15


def test_replicas_that_differ_are_found_and_named() -> None:
    results = run(4, suffer, "topk:density=0.02", "differs")
    for rank in range(4):
        named(results, rank, "ReplicasDifferError", "step 3: inner.weight", "ranks [1]")


def disagree(rank: int, world: int, what: str) -> None:
    model = Net()
    parallel = ddp(model)
    if what == "codec":
        gradwire.torch.compress(parallel, f"topk:density=0.0{1 + rank}")
    if what == "seed":
        gradwire.torch.compress(parallel, "topk", seed=rank)
    if what == "density":
        gradwire.torch.compress(parallel, "topk", density=lambda step: 0.01 * (1 + rank), timeout=TIMEOUT)
        loss_of(parallel, 0, rank).backward()
    if what == "join":
        gradwire.torch.compress(parallel, "topk", timeout=TIMEOUT)
        with parallel.join(divide_by_initial_world_size=False):
            loss_of(parallel, 0, rank).backward()
    if what == "double":
        gradwire.torch.compress(ddp(model.double()), "topk")
    if what == "rule":
        gradwire.torch.compress(parallel, "topk", rules={"nothing.*": "none"})
    if what == "gossip":
        gradwire.torch.compress(parallel, "dpsgd")
    if what == "model":
        gradwire.torch.compress(parallel, "topk:unit=model")
    if what == "plain":
        gradwire.torch.compress(model, "topk")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "name", "text"),
    [
        ("codec", "ValueError", "the ranks differ in codec"),
        ("seed", "ValueError", "the ranks differ in seed: [0, 1]"),
        ("density", "OutOfStepError", "density"),
        ("join", "ExchangeError", "join(divide_by_initial_world_size=False): not supported"),
        ("double", "ValueError", "embed.weight: expected float32, float16 or bfloat16, got torch.float64"),
        ("rule", "ValueError", "'nothing.*'"),
        ("gossip", "ValueError", "not what DDP does"),
        ("model", "ValueError", "unit=model"),
        ("plain", "TypeError", "expected a DistributedDataParallel, got Net"),
    ],
)
def test_what_cannot_work_is_refused_with_its_name(what: str, name: str, text: str) -> None:
    results = run(2, disagree, what)
    for rank in range(2):
        named(results, rank, name, text)


def leave(rank: int, world: int) -> str:
    """Rank 0 ends while its thread waits for a rank that sleeps."""
    model = Net()
    parallel = ddp(model)
    hook = gradwire.torch.compress(parallel, "topk:density=0.02", timeout=30)
    if rank == 1:
        time.sleep(8)
        return "slept"
    hook._worker.wait = lambda for_means=False: None  # type: ignore[method-assign]
    hook._intake.submit(_Bucket(model))  # type: ignore[arg-type]
    return "left"


class _Bucket:
    """A bucket that nobody waits for."""

    def __init__(self, model: Net) -> None:
        self.model = model

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return False

    def buffer(self) -> torch.Tensor:
        return torch.ones(self.model.head.bias.numel())

    def parameters(self) -> list[torch.Tensor]:
        return [self.model.head.bias]

    def gradients(self) -> list[torch.Tensor]:
        return [torch.ones(self.model.head.bias.numel())]


def test_a_thread_that_waits_does_not_keep_the_interpreter() -> None:
    began = time.monotonic()
    results = run(2, leave)
    assert results == ["left", "slept"]
    assert time.monotonic() - began < 25
