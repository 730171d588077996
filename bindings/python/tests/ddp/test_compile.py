"""A compiled model trains as it does without."""

from __future__ import annotations

import copy
from typing import Any

import torch
from ranks import Net, adamw, ddp, loss_of, parameters, results, train

import gradwire.torch
from gradwire.torch import LocalSteps, dense_embeddings_and_norms

STEPS = 8


def compiled(rank: int, world: int, backend: str | None) -> bytes:
    model = Net()
    # The compiler refuses buckets that are smaller than the first one.
    parallel = ddp(model, bucket_cap_mb=1)
    called = parallel if backend is None else torch.compile(parallel, backend=backend)
    rules = dense_embeddings_and_norms(called)
    assert sorted(rules) == ["embed.weight", "norm.bias", "norm.weight"]
    hook = gradwire.torch.compress(called, "topk:density=0.05", rules=rules, check_every=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(called, step, rank).backward()
        optimizer.step()
    counted = hook.stats()
    assert (counted.steps, counted.hash_checks, counted.skipped_steps) == (STEPS, STEPS, 0)
    return parameters(model)


def test_a_compiled_model_is_exchanged_like_any_other() -> None:
    """Of this backend operations are those of the model, so bits are the same, too."""
    plain, eager = results(2, compiled, None), results(2, compiled, "eager")
    assert eager == plain
    first, second = results(2, compiled, "aot_eager")
    assert first == second


def names_of(rank: int, world: int) -> dict[str, Any]:
    """A state of before and after `torch.compile`, which puts a word of its own into names; and one with that word in it."""
    inner = Net()
    state = None
    found: dict[str, Any] = {"residuals": []}
    for model, rule in ((inner, "embed.*"), (torch.compile(inner, backend="eager"), "_orig_mod.embed.*")):
        parallel = ddp(model, bucket_cap_mb=1)
        hook = gradwire.torch.compress(parallel, "topk:density=0.05", rules={rule: "none"})
        if state is not None:
            hook.load_state_dict(state)
            found["continued"] = float((hook.residual("inner.weight") - state["residual"]["inner.weight"]).abs().sum())
        loss_of(parallel, 0, rank).backward()
        state = hook.state_dict()
        found["residuals"].append(sorted(state["residual"]))
        hook.close()
    old = {
        **state,
        "residual": {f"_orig_mod.{name}": one for name, one in state["residual"].items()},
        "groups": [{**one, "names": [f"_orig_mod.{name}" for name in one["names"]]} for one in state["groups"]],
    }
    hook = gradwire.torch.compress(ddp(Net(), bucket_cap_mb=1), "topk:density=0.05", rules={"embed.*": "none"})
    hook.load_state_dict(old)
    found["old"] = float((hook.residual("inner.weight") - state["residual"]["inner.weight"]).abs().sum())
    return found


def test_names_and_states_are_those_of_the_model_that_is_not_compiled() -> None:
    for found in results(2, names_of):
        assert found["residuals"][0] == found["residuals"][1]
        assert "embed.weight" not in found["residuals"][0]
        assert (found["continued"], found["old"]) == (0.0, 0.0)


def local_steps(rank: int, world: int, first: bool, second: bool) -> bytes:
    """A run that ends and is continued, each part with a compiled model or without."""
    state, done = None, 0
    for is_compiled in (first, second):
        inner = Net()
        model = torch.compile(inner, backend="eager") if is_compiled else inner
        optimizer = LocalSteps(model, adamw(model), every=2, codec="topk:density=0.05", rules={"head.*": "none"}, fragments=2)
        if state is not None:
            inner.load_state_dict(state["model"])
            optimizer.load_state_dict(state["local"])
        train(model, optimizer, range(done, done + 3), rank)
        state, done = copy.deepcopy({"model": inner.state_dict(), "local": optimizer.state_dict()}), done + 3
        optimizer.close()
    return parameters(inner)


def test_local_steps_of_a_compiled_model_are_those_of_the_model() -> None:
    """States of either are states of the other."""
    bits = {one for first in (False, True) for second in (False, True) for one in results(2, local_steps, first, second)}
    assert len(bits) == 2, "the last steps of each rank are its own"
