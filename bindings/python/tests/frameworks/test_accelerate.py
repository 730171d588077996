"""Accelerate's `save_state` and `load_state` keep what all ranks keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from launched import CODEC, as_torchrun, kill, killed_and_resumed, misfits
from ranks import Net, Raised, loss_of, parameters, results, run

accelerate = pytest.importorskip("accelerate", reason="Accelerate is not installed: pip install accelerate")
from gradwire.integrations.accelerate import compress  # noqa: E402


def train(rank: int, world: int, folder: str, kills: bool, resumes: bool) -> dict[str, Any]:
    as_torchrun(rank, world)
    accelerator = accelerate.Accelerator(cpu=True)
    inner = Net()
    model, optimizer = accelerator.prepare(inner, torch.optim.SGD(inner.parameters(), lr=0.2, momentum=0.9))
    hook = compress(accelerator, model, CODEC, check_every=1)
    if resumes:
        accelerator.load_state(folder)
    for step in range(hook.step, 8):
        optimizer.zero_grad()
        accelerator.backward(loss_of(model, step, rank))
        optimizer.step()
        if step == 3:
            accelerator.save_state(folder)
        if step == 5 and kills:
            kill()
    return {"parameters": parameters(inner), "steps": hook.stats().steps, "step": hook.step}


def test_a_loop_that_was_killed_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    resumed, whole = killed_and_resumed(train, str(tmp_path))
    assert [one["parameters"] for one in resumed] == [one["parameters"] for one in whole]
    assert [(one["steps"], one["step"]) for one in resumed] == [(4, 8)] * 2
    # With another number of ranks, too.
    assert [(one["steps"], one["step"]) for one in results(3, train, f"{tmp_path}/cut", False, True)] == [(4, 8)] * 3


def compiled(rank: int, world: int, backend: str) -> bytes:
    as_torchrun(rank, world)
    accelerator = accelerate.Accelerator(cpu=True, dynamo_backend=backend)
    inner = Net()
    model, optimizer = accelerator.prepare(inner, torch.optim.SGD(inner.parameters(), lr=0.2))
    assert hasattr(model, "_orig_mod") == (backend == "eager")
    hook = compress(accelerator, model, CODEC, check_every=1)
    for step in range(4):
        optimizer.zero_grad()
        accelerator.backward(loss_of(model, step, rank))
        optimizer.step()
    assert hook.stats().steps == 4
    return parameters(inner)


def test_a_compiled_model_is_exchanged_like_any_other() -> None:
    assert results(2, compiled, "eager") == results(2, compiled, "no")


def with_adamw(rank: int, world: int, codec: str) -> list[str]:
    as_torchrun(rank, world)
    accelerator = accelerate.Accelerator(cpu=True)
    inner = Net()
    model, optimizer = accelerator.prepare(inner, torch.optim.AdamW(inner.parameters()))

    def one_step() -> None:
        compress(accelerator, model, codec)
        accelerator.backward(loss_of(model, 0, rank))
        optimizer.step()

    return misfits(one_step)


@pytest.mark.parametrize(("codec", "first"), [(CODEC, ["AdamW"]), ("qsgd:bits=4", []), ("auto", [])])
def test_one_line_says_that_the_codec_does_not_go_with_the_optimizer(codec: str, first: list[str]) -> None:
    assert results(2, with_adamw, codec) == [first, []]


def unprepared(rank: int, world: int) -> None:
    as_torchrun(rank, world)
    compress(accelerate.Accelerator(cpu=True), Net(), CODEC)


def test_a_model_that_was_not_prepared_for_several_processes_is_refused() -> None:
    (raised,) = run(1, unprepared)
    assert isinstance(raised, Raised), raised
    assert raised.name == "TypeError"
    assert "expected the DistributedDataParallel that accelerator.prepare(model) returns" in raised.text
