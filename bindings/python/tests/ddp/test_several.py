"""Several optimizers inside of LocalSteps: one for matrices, one for all else."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from ranks import Net, Raised, loss_of, parameters, results, run, train
from torch import nn

from gradwire.torch import LocalSteps

EVERY = 3


def optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon where torch has it, as people pair it with AdamW."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() != 2]
    muon = getattr(torch.optim, "Muon", torch.optim.SGD)(matrices, lr=0.02, weight_decay=0.01)
    return [muon, torch.optim.AdamW(others, lr=0.01)]


def trained(rank: int, world: int) -> bytes:
    model = Net()
    optimizer = LocalSteps(model, optimizers(model), "average", EVERY, check_every=1)
    train(model, optimizer, range(2 * EVERY), rank)
    return parameters(model)


def naive(rank: int, world: int, ranks: int) -> bytes:
    """All ranks one after the other in one process, each with both optimizers."""
    models = [Net() for _ in range(ranks)]
    inner = [optimizers(model) for model in models]
    for begin in (0, EVERY):
        starts = [parameter.detach().clone() for parameter in models[0].parameters()]
        for rank, model in enumerate(models):
            for step in range(begin, begin + EVERY):
                model.zero_grad()
                loss_of(model, step, rank).backward()
                for one in inner[rank]:
                    one.step()
        with torch.no_grad():
            for start, *ends in zip(starts, *(model.parameters() for model in models), strict=True):
                start -= sum(start - end for end in ends) / ranks
                for end in ends:
                    end.copy_(start)
    return parameters(models[0])


def test_each_steps_with_its_own_parameters() -> None:
    assert results(2, trained) == results(1, naive, 2) * 2


def saved(rank: int, world: int) -> list[bytes]:
    """With and without an end between two exchanges; and with a schedule, which sets the rates of both."""

    def make() -> tuple[Net, LocalSteps, Any]:
        model = Net()
        optimizer = LocalSteps(model, optimizers(model), "nesterov", EVERY, "topk:density=0.05")
        return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))

    def go_on(model: nn.Module, optimizer: LocalSteps, schedule: Any, steps: range) -> None:
        for step in steps:
            train(model, optimizer, range(step, step + 1), rank)
            schedule.step()

    model, optimizer, schedule = make()
    go_on(model, optimizer, schedule, range(4))
    assert [group["lr"] for group in optimizer.param_groups] == [0.02 / 5, 0.01 / 5]
    assert len(optimizer.state) == len(list(model.parameters()))
    state = copy.deepcopy([one.state_dict() for one in (model, optimizer, schedule)])
    go_on(model, optimizer, schedule, range(4, 8))
    optimizer.close()
    other, resumed, later = make()
    for one, own in zip((other, resumed, later), state, strict=True):
        one.load_state_dict(own)
    go_on(other, resumed, later, range(4, 8))
    return [parameters(model), parameters(other)]


def test_it_goes_on_with_the_same_bits() -> None:
    for whole, resumed in results(2, saved):
        assert whole == resumed


def asked(rank: int, world: int) -> tuple[int, float | None, float]:
    """How often the closure was called for one step, what the step returned, and the loss."""
    model = Net()
    optimizer = LocalSteps(model, optimizers(model), "average", EVERY)
    losses = []

    def closure() -> float:
        optimizer.zero_grad()
        loss = loss_of(model, 0, rank)
        loss.backward()
        losses.append(float(loss))
        return losses[-1]

    returned = optimizer.step(closure)
    return len(losses), returned, losses[0]


def test_a_closure_is_called_once() -> None:
    ((count, returned, loss),) = results(1, asked)
    assert (count, returned) == (1, loss)


def refused(rank: int, world: int, what: str) -> None:
    model = Net()
    muon, adamw = optimizers(model)
    if what == "none":
        LocalSteps(model, [])
    elif what == "type":
        LocalSteps(model, [muon, model])  # type: ignore[list-item]
    elif what == "twice":
        LocalSteps(model, (muon, adamw, torch.optim.SGD([model.head.weight])))
    elif what == "stranger":
        LocalSteps(model, [muon, torch.optim.SGD(Net().parameters())])
    else:
        optimizer, alone = LocalSteps(model, [muon, adamw]), LocalSteps(model, adamw)
        train(model, optimizer, range(EVERY), rank)
        before = copy.deepcopy(optimizer.state_dict()["inner"])
        state = alone.state_dict()
        try:
            optimizer.load_state_dict({**state, "kept": optimizer.state_dict()["kept"]})
        finally:
            assert str(optimizer.state_dict()["inner"]) == str(before)


@pytest.mark.parametrize(
    ("what", "name", "told"),
    [
        ("none", "ValueError", "inner: expected one optimizer or more"),
        ("type", "TypeError", "inner: expected Optimizers, got Net among them"),
        ("twice", "ValueError", "inner: a parameter of shape (10, 96) is in two of the optimizers"),
        ("stranger", "ValueError", "is not in the model"),
        ("state", "ValueError", "state: expected that of 2 optimizers, as they were passed as inner"),
    ],
)
def test_refusals_say_why(what: str, name: str, told: str) -> None:
    (one,) = run(1, refused, what)
    assert isinstance(one, Raised), one
    assert (one.name, told in one.text) == (name, True), one
