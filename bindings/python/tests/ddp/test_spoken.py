"""What the hook says by itself: warnings, advice, and its parts under the profiler."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from ranks import Net, batch, ddp, loss_of, results
from torch import nn

import gradwire.torch


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
    assert "all-reduce of as many values takes about 0.0 ms. The link is fast" in advice
    assert silent == []


@pytest.mark.parametrize(("dense_seconds", "steps"), [(1e6, 15), (0.0, 11)])
def test_compression_that_pays_or_is_young_is_not_spoken_of(dense_seconds: float, steps: int) -> None:
    assert results(2, advised, dense_seconds, steps) == [([], None, True)] * 2


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
