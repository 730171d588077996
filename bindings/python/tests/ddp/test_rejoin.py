"""LocalSteps that go on after ranks were lost, or with ranks that are new."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from ranks import Net, Raised, adamw, parameters, results, train

from gradwire.torch import LocalSteps, _rejoin
from gradwire.torch._meet import Meeting

EVERY = 2
CODECS = ["none", "topk:density=0.05", "efsign", "powersgd:rank=2", "qsgd:bits=4"]


def made(seed: int, codec: str) -> tuple[Net, LocalSteps]:
    torch.manual_seed(seed)
    model = Net()
    return model, LocalSteps(model, adamw(model), "nesterov", EVERY, codec, check_every=1)


def packed(found: Any) -> bytes:
    """As bytes, which outlive the process that made them."""
    file = io.BytesIO()
    torch.save(found, file)
    return file.getvalue()


def unpacked(every: list[bytes]) -> list[Any]:
    return [torch.load(io.BytesIO(one), weights_only=False) for one in every]


def flat(state: dict[str, Any]) -> torch.Tensor:
    """What is kept back of all tensors."""
    kept = state["outer"]["gradwire"]["residual"]
    return torch.cat([kept[name].flatten() for name in sorted(kept)]) if kept else torch.zeros(0)


def before(rank: int, world: int, codec: str) -> bytes:
    """States behind each of three exchanges, and one of a step later."""
    model, optimizer = made(0, codec)
    states = []
    for exchange in range(3):
        train(model, optimizer, range(exchange * EVERY, (exchange + 1) * EVERY), rank)
        states.append(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer, range(3 * EVERY, 3 * EVERY + 1), rank)
    states.append(copy.deepcopy(optimizer.state_dict()))
    optimizer.close()
    return packed(states)


def after(rank: int, world: int, codec: str, brought: bytes, age: int = 20) -> bytes:
    """Of ranks that come together again, each with its own model at other parameters."""
    model, optimizer = made(5 + rank, codec)
    sent: list[int] = []
    tell = _rejoin.tell

    def noted(own: Any, source: int, to: list[int], meeting: Meeting) -> Any:
        sent.extend(to if source == rank else [])
        return tell(own, source, to, meeting)

    _rejoin.tell = noted  # type: ignore[assignment]
    made_so_far = optimizer.rejoin(torch.load(io.BytesIO(brought), weights_only=False)[rank], residual_age=age)
    found = {
        "exchanges": made_so_far,
        "sent to": sent,
        "begins": parameters(model),
        "state": copy.deepcopy(optimizer.state_dict()),
    }
    train(model, optimizer, range(2 * EVERY), rank)
    found |= {"ends": parameters(model), "steps": optimizer.state_dict()["outer"]["gradwire"]["step"]}
    optimizer.close()
    return packed(found)


def kept(state: dict[str, Any]) -> bytes:
    return b"".join(one.numpy().tobytes() for one in state["kept"].values())


def velocity(state: dict[str, Any]) -> torch.Tensor:
    return torch.cat([one["momentum_buffer"].flatten() for one in state["outer"]["state"].values()])


@pytest.mark.parametrize("codec", CODECS)
def test_those_that_are_left_go_on_without_a_lost_rank(codec: str) -> None:
    states = unpacked(results(3, before, codec))
    brought = [states[0][3], states[2][3]]
    found = unpacked(results(2, after, codec, packed(brought)))
    assert len({one["ends"] for one in found}) == 1
    # All have the same, so nobody has to be told.
    assert [one["sent to"] for one in found] == [[], []]
    for own, one in zip(brought, found, strict=True):
        assert (one["exchanges"], one["steps"]) == (3, 5)
        # A step after the last exchange is lost.
        assert one["begins"] == kept(own) == kept(states[1][2])
        assert torch.equal(velocity(one["state"]), velocity(own))
        assert one["state"]["inner"]["state"][0]["step"] == own["inner"]["state"][0]["step"]
        # It moves the mean of two as far as it would have moved that of three.
        assert torch.equal(flat(one["state"]), flat(own) * (2 / 3))
    assert codec in ("none", "qsgd:bits=4") or flat(found[0]["state"]).count_nonzero()


@pytest.mark.parametrize(("codec", "age"), [*((codec, 4) for codec in CODECS), ("topk:density=0.05", 1)])
def test_new_ranks_and_late_ones_get_what_the_others_have(codec: str, age: int) -> None:
    states = unpacked(results(2, before, codec))
    # The first one has missed an exchange, the last one is new.
    brought = [states[1][1], states[0][2], None]
    found = unpacked(results(3, after, codec, packed(brought), age))
    assert len({one["ends"] for one in found}) == 1
    assert {(one["exchanges"], one["begins"]) for one in found} == {(3, kept(states[0][2]))}
    assert [one["sent to"] for one in found] == [[], [0, 2], []]
    for own, weight, one in zip(brought, (1 - 1 / age, 1.0, 0.0), found, strict=True):
        assert torch.equal(velocity(one["state"]), velocity(states[0][2]))
        expected = torch.zeros_like(flat(states[0][2])) if own is None else flat(own) * (weight * 3 / 2)
        assert torch.equal(flat(one["state"]), expected)
    assert not found[2]["state"]["inner"]["state"]


def test_without_any_state_all_get_the_parameters_of_the_first() -> None:
    found = unpacked(results(2, after, "topk:density=0.05", packed([None, None])))
    torch.manual_seed(5)
    assert {(one["exchanges"], one["begins"]) for one in found} == {(0, parameters(Net()))}
    assert len({one["ends"] for one in found}) == 1


def refuses(rank: int, world: int, bad: bytes) -> list[str]:
    model, optimizer = made(rank, "topk:density=0.05")
    begins, told = parameters(model), ""
    try:
        optimizer.rejoin(torch.load(io.BytesIO(bad), weights_only=False)[rank])
    except (TypeError, ValueError) as error:
        told = str(error)
    assert parameters(model) == begins
    optimizer.close()
    return [told]


def test_a_state_that_cannot_be_used_is_refused_at_all_ranks() -> None:
    state = unpacked(results(2, before, "topk:density=0.05"))[0][2]
    other = copy.deepcopy(state)
    other["kept"]["head.bias"] = torch.zeros(3)
    torn = copy.deepcopy(state)
    torn["outer"]["gradwire"]["residual"]["head.weight"][0, 0] = float("nan")
    fewer, outer = copy.deepcopy(state), copy.deepcopy(state)
    fewer["inner"]["param_groups"][0]["params"].pop()
    outer["outer"]["param_groups"] *= 2
    for bad, why in [
        (7, "rank 1: state=7: expected what state_dict() returned, or None, got int"),
        (other, "rank 1: state: head.bias: expected the shape (10,), got (3,)"),
        (torn, "rank 1: state: residual: head.weight: expected finite values"),
        (fewer, "rank 1: loaded state dict contains a parameter group"),
        (outer, "rank 1: loaded state dict has a different number of parameter groups"),
        ({**state, "pending": {"fragment": 0}}, "rank 1: state: saved during an exchange"),
    ]:
        found = results(2, refuses, packed([state, bad]))
        assert not any(isinstance(one, Raised) for one in found), found
        assert {one[0].startswith(why) for one in found} == {True}, found
