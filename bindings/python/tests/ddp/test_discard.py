"""A step that the loop throws away leaves nothing behind, at all ranks or at none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import Net, Raised, ddp, loss_of, parameters, results, run

import gradwire.torch

CODECS = [
    "none",
    "topk:density=0.02",
    "efsign",
    "qsgd:bits=4",
    "sidco:density=0.05",
    "dgc:density=0.05",
    "randomk:density=0.1",
    "maxnorm:bits=8,rounding=nearest,memory=ef",
    "powersgd:rank=2",
    "sharedk:density=0.05",
]
#: Those that change their memory in place.
IN_PLACE = ("dgc", "randomk", "maxnorm", "powersgd", "sharedk")


def kept(state: dict[str, Any]) -> Any:
    """All that a hook keeps, to be compared."""

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.cpu().numpy().tobytes()
        if isinstance(value, dict):
            return {key: plain(one) for key, one in value.items()}
        return [plain(one) for one in value] if isinstance(value, list | tuple) else value

    return plain({what: value for what, value in state.items() if what != "step"})


def train(rank: int, world: int, codec: str, bad: tuple[int, ...], scale: float) -> dict[str, Any]:
    """Eight steps, of which some have a gradient that is thrown away."""
    model = Net()
    parallel = ddp(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    hook = gradwire.torch.compress(parallel, codec, check_every=1, discardable=True)
    norms = []
    for step in range(8):
        optimizer.zero_grad()
        before = kept(hook.state_dict())
        factor = scale if step in bad and rank == 0 else 1.0
        (factor * loss_of(parallel, step, rank)).backward()
        if step in bad:
            hook.discard()
            assert kept(hook.state_dict()) == before
            continue
        norms.append(hook.stats().residual_norm)
        optimizer.step()
    hook.close()
    return {"parameters": parameters(model), "norms": norms}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("scale", [1e6, float("nan")])
def test_a_discarded_step_leaves_the_memories_as_they_were(codec: str, scale: float) -> None:
    """Also one that came to nothing by itself."""
    every = results(2, train, codec, (2, 3, 6), scale)
    assert all(one["parameters"] == every[0]["parameters"] for one in every)
    usual = max(norm for one in results(2, train, codec, (), 1.0) for norm in one["norms"])
    assert max(norm for one in every for norm in one["norms"]) <= 10 * usual + 1e-6


def alone(rank: int, world: int) -> None:
    """Rank 1 alone discards a step."""
    parallel = ddp(Net())
    hook = gradwire.torch.compress(parallel, "topk:density=0.05", timeout=15)
    loss_of(parallel, 0, rank).backward()
    if rank == 1:
        hook.discard()
    loss_of(parallel, 1, rank).backward()


def test_a_rank_that_discards_alone_is_named() -> None:
    for result in run(2, alone):
        assert isinstance(result, Raised), result
        assert result.name == "OutOfStepError", result
        assert "steps discarded" in result.text


def refused(rank: int, world: int, codec: str) -> list[str]:
    """What is said where there is nothing to discard."""
    parallel = ddp(Net())
    hook = gradwire.torch.compress(parallel, codec, timeout=15)
    said = []

    def attempt() -> None:
        try:
            hook.discard()
        except gradwire.torch.ExchangeError as error:
            said.append(str(error))

    attempt()
    loss_of(parallel, 0, rank).backward()
    attempt()
    attempt()
    loss_of(parallel, 1, rank).backward()
    hook.rescale(0.5)
    attempt()
    hook.load_state_dict(hook.state_dict())
    attempt()
    loss_of(parallel, 2, rank).backward()
    hook.close()
    return said


@pytest.mark.parametrize("codec", ["topk:density=0.05", *(one for one in CODECS if one.startswith(IN_PLACE))])
def test_where_there_is_nothing_to_discard_an_error_says_so(codec: str) -> None:
    said = results(2, refused, codec)[0]
    needs = "discardable=True" if codec.startswith(IN_PLACE) else ""
    # Before the first step; after one, and twice for that; after a change of the memories.
    words = ["no step", *([needs] if needs else []), needs or "no step", "no step", "no step"]
    assert len(said) == len(words), said
    assert all(word in text for word, text in zip(words, said, strict=True)), said


def opponents(rank: int, world: int, is_played: bool) -> bytes:
    """A discriminator, beside a generator whose backward goes through it, or without."""
    judge, maker = Net(), torch.nn.Embedding(40, 48)
    parallel = ddp(judge)
    gradwire.torch.compress(parallel, "topk:density=0.05", check_every=1)
    optimizer = torch.optim.SGD(judge.parameters(), lr=0.2)
    for step in range(5):
        if is_played:
            with parallel.no_sync():
                handle = judge.embed.register_forward_hook(lambda _, inputs, output: output + maker(inputs[0]))
                (1e4 * loss_of(parallel, 100 + step, rank)).backward()
                handle.remove()
        optimizer.zero_grad()
        loss_of(parallel, step, rank).backward()
        optimizer.step()
    return parameters(judge)


def test_a_backward_without_synchronisation_leaves_nothing_in_the_memories() -> None:
    assert results(2, opponents, True) == results(2, opponents, False)
