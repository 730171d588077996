"""LocalSteps: ranks that step alone, and exchange how far that led."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import pytest
import torch
from ranks import DEVICE, Net, Raised, adamw, loss_of, parameters, results, run, train
from torch import nn

from gradwire.torch import LocalSteps
from gradwire.torch._trials import Trials

EVERY = 3
#: Exchanges in which two codecs are tried in vain and a third one is taken.
TRIED = 9 + 7 + 7


def trained(rank: int, world: int, outer: str, steps: int) -> bytes:
    model = Net()
    optimizer = LocalSteps(model, adamw(model), outer, EVERY, check_every=1)
    train(model, optimizer, range(steps), rank)
    optimizer.synchronize()
    optimizer.synchronize()
    assert optimizer.exchange.step == math.ceil(steps / EVERY)
    return parameters(model)


def naive(rank: int, world: int, ranks: int, outer: dict[str, Any], steps: int) -> bytes:
    """All ranks one after the other in one process, with plain tensors."""
    models = [Net() for _ in range(ranks)]
    inner = [adamw(model) for model in models]
    kept = [nn.Parameter(parameter.detach().clone()) for parameter in models[0].parameters()]
    optimizer = torch.optim.SGD(kept, **outer)
    for begin in range(0, steps, EVERY):
        for rank, model in enumerate(models):
            train(model, inner[rank], range(begin, min(begin + EVERY, steps)), rank)
        with torch.no_grad():
            for start, *ends in zip(kept, *(model.parameters() for model in models), strict=True):
                start.grad = sum(start - end for end in ends) / ranks
            optimizer.step()
            for start, *ends in zip(kept, *(model.parameters() for model in models), strict=True):
                for end in ends:
                    end.copy_(start)
    return parameters(models[0])


@pytest.mark.parametrize(
    ("outer", "naively"), [("nesterov", {"lr": 0.7, "momentum": 0.9, "nesterov": True}), ("average", {"lr": 1.0})]
)
def test_steps_are_those_of_a_naive_form(outer: str, naively: dict[str, Any]) -> None:
    # The last exchange is asked for, after one step.
    assert results(2, trained, outer, 7) == results(1, naive, 2, naively, 7) * 2


def telescoped(rank: int, world: int) -> dict[str, list[bytes]]:
    """Of three tensors: where a step began, what was sent of it, and where the exchange led."""
    model = Net()
    optimizer = LocalSteps(model, adamw(model), "average", EVERY, "topk:density=0.05", rules={"head.*": "none"})
    named = {name: model.get_parameter(name).detach() for name in ("inner.weight", "sometimes.weight", "head.weight")}
    starts = {name: one.clone() for name, one in named.items()}
    train(model, optimizer, range(1), rank)
    ways = {name: starts[name] - one for name, one in named.items()}
    optimizer.synchronize()
    for name in ("inner.weight", "sometimes.weight"):
        residual = optimizer.exchange.residual(name).to(DEVICE)
        assert residual.count_nonzero()
        ways[name] -= residual
    return {name: [part.cpu().numpy().tobytes() for part in (starts[name], ways[name], named[name])] for name in named}


def test_what_is_kept_back_and_what_moves_parameters_is_the_sum_of_all_ways() -> None:
    ranks = results(2, telescoped)
    for name in ranks[0]:
        (start, sent, end), (_, other, same) = (map(floats, one[name]) for one in ranks)
        assert torch.equal(end, same)
        assert torch.equal(end, start - (sent + other) / 2), name


def floats(values: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(values), dtype=torch.float32)


CODECS = ["none", "topk:density=0.05,decay=0.9", "powersgd:rank=1"]


def saved(rank: int, world: int, codec: str, at: int) -> list[bytes]:
    """With and without an end in the middle, also between two exchanges."""

    def make(seed: int) -> tuple[Net, LocalSteps]:
        torch.manual_seed(seed)
        model = Net()
        return model, LocalSteps(model, adamw(model), "nesterov", EVERY, codec)

    model, optimizer = make(0)
    train(model, optimizer, range(at), rank)
    state = copy.deepcopy({"model": model.state_dict(), "local": optimizer.state_dict()})
    train(model, optimizer, range(at, 8), rank)
    optimizer.close()
    other, resumed = make(1)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(state["model"])
    resumed.load_state_dict(state["local"])
    train(other, resumed, range(at, 8), rank)
    return [parameters(model), parameters(other)]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("at", [4, 6])
def test_it_goes_on_with_the_same_bits(codec: str, at: int) -> None:
    for whole, resumed in results(2, saved, codec, at):
        assert whole == resumed


def chosen(rank: int, world: int, resumes: bool) -> dict[str, Any]:
    """No codec is hidden but the third. The run ends a step behind an exchange, and is maybe resumed there."""
    own = Trials.says
    Trials.says = lambda self: own(self) and [1.0, *[0.0 if self.at == 2 else 0.5] * 5]  # type: ignore[method-assign]
    model = Net()
    optimizer = LocalSteps(model, adamw(model), "average", 2, "auto", check_every=1)
    train(model, optimizer, range(2 * TRIED), rank)
    before, told = optimizer.exchange.stats(), optimizer.exchange.stats().choice
    train(model, optimizer, range(2 * TRIED, 2 * TRIED + 5), rank)
    dense = optimizer.exchange.stats().dense_bytes - before.dense_bytes
    ratio = dense / (optimizer.exchange.stats().frame_bytes - before.frame_bytes)
    if resumes:
        state = copy.deepcopy(optimizer.state_dict())
        optimizer.close()
        optimizer = LocalSteps(model, adamw(model), "average", 2, "auto", check_every=1)
        optimizer.load_state_dict(state)
    train(model, optimizer, range(2 * TRIED + 5, 2 * TRIED + 10), rank)
    stats = optimizer.exchange.stats()
    return {"bits": parameters(model), "told": told, "again": stats.choice, "ratio": ratio, "norm": stats.residual_norm}


def test_it_chooses_a_codec_for_its_exchanges() -> None:
    whole, resumed = results(2, chosen, False), results(2, chosen, True)
    assert len({one["bits"] for one in (*whole, *resumed)}) == 1
    for one in (*whole, *resumed):
        assert one["told"].startswith(f"auto: topk:density=0.1 from step {TRIED} on: its exchange adds at most 5% to a step.")
        assert 4 < one["ratio"] < 10, one["ratio"]
        assert one["norm"] > 0
    assert resumed[0]["again"] == "auto: topk:density=0.1, as in the state that was loaded"


def scaled(rank: int, world: int) -> dict[str, Any]:
    """One rank overflows in one step; a schedule sets the rate of the steps."""
    model = Net()
    inner = adamw(model)
    optimizer = LocalSteps(model, inner, "average", EVERY, "topk:density=0.05")
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0)
    for step in range(2 * EVERY):
        optimizer.zero_grad()
        loss = loss_of(model, step, rank) * (math.inf if (step, rank) == (1, 1) else 1)
        scaler.scale(loss).backward()
        if step % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
    return {
        "parameters": parameters(model),
        "exchanges": optimizer.exchange.step,
        "steps": int(inner.state[model.head.bias]["step"]),
        "scale": scaler.get_scale(),
        "rate": inner.param_groups[0]["lr"],
    }


def test_a_rank_that_overflows_comes_to_the_exchange_with_the_others() -> None:
    fine, overflowed = results(2, scaled)
    assert fine["parameters"] == overflowed["parameters"]
    assert (fine["steps"], overflowed["steps"]) == (6, 5)
    assert (fine["scale"], overflowed["scale"]) == (1024, 512)
    assert fine["exchanges"] == overflowed["exchanges"] == 2
    assert fine["rate"] == pytest.approx(1e-2 * 0.9**6)


def unscaled(rank: int, world: int) -> list[bytes]:
    """A power of two as scale changes no bit."""
    ends = []
    for scaler in (None, torch.amp.GradScaler(DEVICE, init_scale=1024.0)):
        model = Net()
        optimizer = LocalSteps(model, torch.optim.SGD(model.parameters(), lr=0.1), every=2)
        for step in range(4):
            optimizer.zero_grad()
            loss = loss_of(model, step, rank)
            if scaler is None:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        ends.append(parameters(model))
        optimizer.close()
    return ends


def test_a_scale_is_taken_off_before_a_step() -> None:
    for plain, with_scaler in results(2, unscaled):
        assert plain == with_scaler


def narrow(rank: int, world: int) -> list[Any]:
    """Parameters of 16 bits; what is kept has 32."""
    model = Net().to(torch.bfloat16)
    optimizer = LocalSteps(model, torch.optim.SGD(model.parameters(), lr=0.1), "average", 2)
    train(model, optimizer, range(8), rank)
    kept = {name: start for name, (start, _) in optimizer._kept.items()}
    assert all(start.dtype == torch.float32 for start in kept.values())
    assert any(not torch.equal(start, start.bfloat16().float()) for start in kept.values())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, kept[name].bfloat16()), name
    return [start.detach().cpu().numpy().tobytes() for start in kept.values()]


def test_parameters_of_16_bits_lose_nothing_at_an_exchange() -> None:
    one, other = results(2, narrow)
    assert one == other


def diverges(rank: int, world: int) -> None:
    model = Net()
    optimizer = LocalSteps(model, adamw(model), every=2)
    train(model, optimizer, range(2), rank)
    before = [start.detach().clone() for start, _ in optimizer._kept.values()]
    if rank == 1:
        with torch.no_grad():
            model.head.bias[3] = math.nan
    try:
        train(model, optimizer, range(2, 4), rank)
    finally:
        for kept, (start, _) in zip(before, optimizer._kept.values(), strict=True):
            assert torch.equal(kept, start)


def test_all_ranks_are_told_of_one_that_diverged() -> None:
    for one in run(2, diverges):
        assert isinstance(one, Raised), one
        assert one.name == "ExchangeError", one
        assert "was not finite" in one.text


def refused(rank: int, world: int, what: str) -> None:
    model, other = Net(), Net()
    inner = adamw(model)
    if what == "every":
        LocalSteps(model, inner, every=0)
    elif what == "outer":
        LocalSteps(model, inner, "adam")
    elif what == "made":
        LocalSteps(model, inner, lambda kept: None)
    elif what == "inner":
        LocalSteps(model, adamw(other))
    elif what == "model":
        LocalSteps(inner, inner)
    elif what == "gossip":
        LocalSteps(model, inner, codec="dpsgd")
    else:
        optimizer = LocalSteps(model, inner)
        state = optimizer.state_dict()
        if what == "state":
            optimizer.load_state_dict({"inner": {}})
        elif what == "shape":
            optimizer.load_state_dict({**state, "kept": {**state["kept"], "head.bias": torch.zeros(3)}})
        elif what == "names":
            optimizer.load_state_dict({**state, "kept": {**state["kept"], "tail.bias": torch.zeros(3)}})
        elif what == "between":
            optimizer.load_state_dict([{**state, "taken": 2}, state])
        elif what == "group":
            optimizer.add_param_group({"params": []})


@pytest.mark.parametrize(
    ("what", "name", "told"),
    [
        ("every", "ValueError", "every=0: expected 1 or more"),
        ("outer", "ValueError", "outer='adam': expected 'nesterov', 'average', or a function"),
        ("made", "TypeError", "outer: expected an Optimizer of what it was given, got NoneType"),
        ("inner", "ValueError", "inner: a parameter of shape (40, 48) is not in the model"),
        ("model", "TypeError", "model: expected a Module, got AdamW"),
        ("gossip", "ValueError", "it mixes models of neighbours"),
        ("state", "TypeError", "expected what state_dict() returned"),
        ("shape", "ValueError", "state: head.bias: expected the shape (10,), got (3,)"),
        ("names", "ValueError", "state: it has tail.bias, which is not exchanged here"),
        ("between", "ValueError", "saved between two exchanges"),
        ("group", "RuntimeError", "make a new LocalSteps with all parameters"),
    ],
)
def test_refusals_say_why(what: str, name: str, told: str) -> None:
    (one,) = run(1, refused, what)
    assert isinstance(one, Raised), one
    assert one.name == name, one
    assert told in one.text, one.text


def regrouped(rank: int, world: int, saved: list[bytes]) -> bytes:
    model = Net()
    optimizer = LocalSteps(model, adamw(model), "nesterov", EVERY, "topk:density=0.05")
    if saved:
        states = [torch.load(io.BytesIO(one), weights_only=True) for one in saved]
        model.load_state_dict(states[0]["model"])
        optimizer.load_state_dict([state["local"] for state in states])
        train(model, optimizer, range(EVERY, 2 * EVERY), rank)
        return parameters(model)
    train(model, optimizer, range(EVERY), rank)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "local": optimizer.state_dict()}, file)
    return file.getvalue()


def test_a_run_goes_on_with_another_number_of_ranks() -> None:
    saved = results(2, regrouped, [])
    ends = results(3, regrouped, saved)
    assert len(set(ends)) == 1
