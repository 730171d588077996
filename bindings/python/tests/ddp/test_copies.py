"""Copies of a model that DDP wraps, as people make them: for averages, for checkpoints, to try something out."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import Net, ddp, loss_of, parameters, results
from torch import nn
from torch.optim.swa_utils import AveragedModel

import gradwire.torch
from gradwire.torch import DistributedOptimizer


def saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


WAYS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "average": AveragedModel,
    "save": saved,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "copy of a copy": lambda model: copy.deepcopy(copy.deepcopy(model)),
    "as a part": lambda model: copy.deepcopy({"model": nn.Sequential(model)})["model"][0],
}


def copied(rank: int, world: int) -> dict[str, Any]:
    """A copy is made in the middle of training, which goes on as it would without, and the copy can be trained too."""
    found: dict[str, Any] = {}
    for name, way in {"": lambda model: model, **WAYS}.items():
        model = Net()
        parallel = ddp(model, gradient_as_bucket_view=name == "deepcopy")
        hook = gradwire.torch.compress(parallel, "topk:density=0.05", check_every=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        other, told = None, []
        for step in range(4):
            if step == 2:
                with warnings.catch_warnings(record=True) as log:
                    warnings.simplefilter("always")
                    other = way(parallel)
                told = [str(one.message) for one in log if "gradwire" in str(one.message)]
                same = parameters(other) == parameters(parallel)
            optimizer.zero_grad()
            loss_of(parallel, step, rank).backward()
            optimizer.step()
        trained = 0
        if name:
            # Without a hook, gradients of a copy are means as of any DDP model; then with a hook of its own.
            inner = other.module if name == "average" else other
            loss_of(inner, 9, rank).backward()
            again = gradwire.torch.compress(inner, "none", check_every=1)
            inner.zero_grad()
            loss_of(inner, 9, rank).backward()
            trained = again.step
            again.close()
        found[name] = (parameters(model), hook.step, same, trained, told)
        hook.close()
    return found


@pytest.fixture(scope="module")
def two_ranks() -> Any:
    return results(2, copied)


@pytest.mark.parametrize("way", WAYS)
def test_a_model_with_a_hook_is_copied_like_any_other(way: str, two_ranks: Any) -> None:
    for rank in two_ranks:
        weights, steps, same, trained, told = rank[way]
        assert weights == rank[""][0], "the copy has changed the training"
        assert (steps, same, trained) == (4, True, 1)
        assert told == ["a copy of this model has no gradwire hook: to train it compressed, call compress for it"]


def alone(rank: int, world: int) -> list[str]:
    """The hook itself, and an optimizer, are no values."""
    model = Net()
    hook = gradwire.torch.compress(ddp(model), "topk")
    other = Net()
    optimizer = DistributedOptimizer(torch.optim.SGD(other.parameters(), lr=0.1), other.named_parameters(), "topk")
    found = []
    for one in (hook, optimizer.exchange, optimizer):
        for way in (copy.copy, copy.deepcopy, pickle.dumps, lambda one: torch.save(one, io.BytesIO())):
            with pytest.raises(TypeError, match=r"save its state_dict\(\)") as refused:
                way(one)
            assert type(one).__name__ in str(refused.value)
            found.append(type(one).__name__)
    # Its model is copied as ever.
    saved(other)
    assert parameters(copy.deepcopy(other)) == parameters(other)
    return found


def test_a_hook_itself_cannot_be_copied() -> None:
    assert results(1, alone) == [["Hook"] * 4 + ["Exchange"] * 4 + ["DistributedOptimizer"] * 4]
