"""One line at rank 0 says that an optimizer trains worse with a codec, also if the hook was not told of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import Net, ddp, loss_of, results

import gradwire.torch


def said(act: Callable[[], Any]) -> list[str]:
    """What is said meanwhile."""
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        act()
    return [str(one.message) for one in log if "gradwire: " in str(one.message)]


def step(model: torch.nn.Module, *optimizers: Any) -> None:
    loss_of(model, 0, 0).backward()
    for optimizer in optimizers:
        optimizer.step()


def with_each(rank: int, world: int, codec: str, kind: str) -> list[list[str]]:
    model = Net()
    inner = getattr(torch.optim, kind)(model.parameters(), lr=0.01)
    named = said(lambda: gradwire.torch.compress(ddp(model), codec, optimizer=inner).close())
    parameters = model.named_parameters()
    wrapped = said(lambda: gradwire.torch.DistributedOptimizer(inner, parameters, codec).exchange.close())
    if codec == "auto":
        return [named, wrapped]
    parallel = ddp(model)
    hook = gradwire.torch.compress(parallel, codec)
    seen = said(lambda: [step(parallel, inner) for _ in range(3)])
    hook.close()
    return [named, wrapped, seen]


@pytest.mark.parametrize(
    ("codec", "kind", "warns"),
    [
        ("topk:density=0.01", "AdamW", True),
        ("dgc:density=0.01", "Adam", True),
        ("powersgd:rank=2", "NAdam", True),
        ("efsign", "AdamW", True),
        ("threshold:value=0.1", "AdamW", True),
        ("topk:density=0.01", "SGD", False),
        ("topk:density=0.01", "Adagrad", False),
        ("qsgd:bits=4", "AdamW", False),
        ("none", "AdamW", False),
        ("auto", "AdamW", False),
    ],
)
def test_one_line_says_if_a_codec_and_an_optimizer_do_not_go_together(codec: str, kind: str, warns: bool) -> None:
    first, other = results(2, with_each, codec, kind)
    assert not any(other)
    for lines in first:
        assert len(lines) == int(warns), lines
        for text in lines:
            assert text.startswith(f"gradwire: {kind} trained worse"), text
            assert f"{codec.partition(':')[0]} makes them; qsgd:bits=4 goes with it" in text, text


def with_rules(rank: int, world: int) -> None:
    model = Net()
    adam = torch.optim.AdamW(model.parameters())
    name = max(model.named_parameters(), key=lambda one: one[1].numel())[0]
    for codec, rules, misfit in (
        ("qsgd:bits=4", {name: "topk:density=0.1"}, "topk"),
        ("efsign", {name: "topk:density=0.1"}, "efsign"),
        ("topk:density=0.1", {"*": "qsgd:bits=4"}, None),
        ("none", {name: "qsgd:bits=8"}, None),
    ):
        lines = said(
            lambda codec=codec, rules=rules: gradwire.torch.compress(ddp(model), codec, rules=rules, optimizer=adam).close()
        )
        assert [f"as {misfit} makes them" in line for line in lines] == ([] if misfit is None else [True]), lines


def test_what_counts_are_the_codecs_that_tensors_have() -> None:
    results(1, with_rules)


def unnamed(rank: int, world: int) -> dict[str, list[str]]:
    model, stranger = Net(), Net()
    parallel = ddp(model)
    hook = gradwire.torch.compress(parallel, "topk:density=0.1")
    matrices = [one for one in model.parameters() if one.dim() == 2]
    others = [one for one in model.parameters() if one.dim() != 2]
    sgd, adam, other = torch.optim.SGD(others[:2], lr=0.1), torch.optim.AdamW(matrices), torch.optim.Adam(others[2:])
    schedule = torch.optim.lr_scheduler.StepLR(adam, 1)
    found = {
        "of another model": said(lambda: step(stranger, torch.optim.AdamW(stranger.parameters()))),
        "before any step": said(lambda: step(parallel)),
        "first": said(lambda: step(parallel, sgd, adam, other)),
        "later": said(lambda: [step(parallel, sgd, adam, other), schedule.step()]),
    }
    hook.close()
    return found


def closed(rank: int, world: int) -> list[str]:
    model = Net()
    parallel = ddp(model)
    hook = gradwire.torch.compress(parallel, "topk:density=0.1")
    hook.close()
    return said(lambda: torch.optim.AdamW(model.parameters()).step())


def test_an_optimizer_that_was_not_named_is_seen_at_its_first_step() -> None:
    first, other = results(2, unnamed)
    assert {when: len(lines) for when, lines in first.items()} == {
        "of another model": 0,
        "before any step": 0,
        "first": 1,
        "later": 0,
    }
    assert first["first"][0].startswith("gradwire: AdamW trained worse")
    assert not any(other.values())
    assert results(1, closed) == [[]]


def with_muon(rank: int, world: int, codec: str) -> list[str]:
    model = torch.nn.Linear(32, 32, bias=False)
    optimizer = torch.optim.Muon(model.parameters())
    return said(lambda: gradwire.torch.compress(ddp(model), codec, optimizer=optimizer).close())


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_is_an_optimizer_like_adamw() -> None:
    (sparse,), (quantized,) = (results(1, with_muon, codec) for codec in ("topk:density=0.1", "qsgd:bits=4"))
    assert [line.startswith("gradwire: Muon trained worse") for line in sparse] == [True]
    assert quantized == []
