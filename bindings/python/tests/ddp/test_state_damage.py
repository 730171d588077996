"""A state that is not what `state_dict` returned is refused as a whole."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest
import torch
from ranks import Net, ddp, loss_of, results

import gradwire.torch
from gradwire.torch import DistributedOptimizer

CODECS = ["topk:density=0.05", "powersgd:rank=2", "dgc:density=0.05", "sidco:density=0.05"]
NAME = "inner.weight"
State = dict[str, Any]


class Nothing:
    """In place of a state of `None`: a change that returns `None` has changed the state in its place."""


def changed(where: str, value: Any, at: str = NAME) -> Callable[[State], Any]:
    """A state whose part is replaced: by a value, or by what a function makes of it."""

    def change(state: State) -> None:
        held = state[where] if where not in ("residual", "momentum") else state[where][at]
        new = value(held) if callable(value) else value
        if where in ("residual", "momentum"):
            state[where][at] = new
        else:
            state[where] = new

    return change


def without(*keys: Any) -> Callable[[State], Any]:
    def change(state: Any) -> None:
        for key in keys[:-1]:
            state = state[key]
        del state[keys[-1]]

    return change


def in_group(key: str, value: Callable[[Any], Any]) -> Callable[[State], Any]:
    def change(state: State) -> None:
        state["groups"][0][key] = value(state["groups"][0][key])

    return change


KEYS = ["version", "codec", "rank", "world", "seed", "step", "epoch", "scale", "lr", "residual", "momentum", "groups"]
#: What is done to a state, and what the refusal says.
DAMAGE: list[tuple[Callable[[State], Any], str]] = [
    *((without(key), f"'{key}' is missing" if key != "version" else "version None") for key in KEYS),
    *((without("groups", 0, key), f"group 0: '{key}' is missing") for key in ("codec", "names", "factors", "states")),
    (lambda state: {}, "version None: expected 1"),
    (lambda state: Nothing, "state=None: expected what state_dict() returned"),
    (lambda state: 3, "state=3: expected what state_dict() returned"),
    (lambda state: "state", "state='state': expected what state_dict() returned"),
    (lambda state: [], "state=[]: expected what state_dict() returned"),
    (lambda state: [None, state], "state 0 of 2=None: expected what"),
    (lambda state: [state, state], "in rank order"),
    (changed("version", 2), "version 2: expected 1"),
    (changed("codec", None), "codec=None: expected the spelling"),
    (changed("step", "x"), "step='x': expected a whole number"),
    (changed("step", None), "step=None: expected a whole number"),
    (changed("step", 1.5), "step=1.5: expected a whole number"),
    (changed("step", -1), "step=-1: expected 0 or more"),
    (changed("step", 2**70), f"step={2**70}: expected at most"),
    (changed("rank", 7), "it is of rank 7 of 1"),
    (changed("world", 3), "it is of rank 0 of 3"),
    (changed("world", 0), "world=0: expected 1 or more"),
    (changed("seed", 5), "seed 5: expected 0"),
    (changed("seed", None), "seed=None: expected a whole number"),
    (changed("epoch", "x"), "epoch='x': expected a whole number"),
    (changed("epoch", -1), "epoch=-1: expected 0 or more"),
    (changed("scale", "x"), "scale='x': expected a finite number above 0"),
    (changed("scale", 0.0), "scale=0.0: expected a finite number above 0"),
    (changed("scale", math.inf), "scale=inf: expected a finite number above 0"),
    (changed("lr", math.nan), "lr=nan: expected a finite number"),
    (changed("lr", []), "lr=[]: expected a finite number"),
    (changed("residual", None), f"residual: {NAME}=None: expected a tensor"),
    (changed("residual", lambda one: one.tolist()), f"residual: {NAME}="),
    (changed("residual", lambda one: one.cpu().numpy()), f"residual: {NAME}="),
    (changed("residual", lambda one: one * math.nan), f"residual: {NAME}: expected finite values"),
    (changed("residual", lambda one: one + math.inf), f"residual: {NAME}: expected finite values"),
    (changed("residual", lambda one: one.double()), f"residual: {NAME}: expected a dense tensor of float32, got torch.float64"),
    (changed("residual", lambda one: one.half()), f"residual: {NAME}: expected a dense tensor of float32, got torch.float16"),
    (changed("residual", lambda one: one.to_sparse()), f"residual: {NAME}: expected a dense tensor"),
    (changed("residual", lambda one: one.to("meta")), f"residual: {NAME}: expected a dense tensor"),
    (changed("residual", lambda one: one[:-1]), f"residual: {NAME}: expected shape (96, 48), got (95, 48)"),
    (changed("residual", lambda one: one.reshape(-1)), f"residual: {NAME}: expected shape (96, 48)"),
    (changed("residual", lambda one: one.t()), f"residual: {NAME}: expected shape (96, 48), got (48, 96)"),
    (changed("residual", math.nan, at="apart"), "residual: apart=nan: expected a tensor"),
    (changed("residual", lambda _: torch.tensor([math.nan]), at="apart"), "residual: apart: expected finite values"),
    (without("residual", NAME), f"residual: nothing is there for {NAME}"),
    (lambda state: state.update(residual=[]), "residual=[]: expected a dict of names and tensors"),
    (lambda state: state["residual"].update({3: torch.zeros(1)}), "residual: a name=3: expected the name of a tensor"),
    (lambda state: state.update(momentum=None), "momentum=None: expected a dict of names and tensors"),
    (lambda state: state["momentum"].update(nobody=torch.zeros(1)), "momentum: no residual is there for nobody"),
    (lambda state: state["momentum"].update({NAME: torch.zeros(3)}), "momentum: "),
    (changed("groups", None), "groups=None: expected a list"),
    (changed("groups", [1]), "group 0=1: expected a dict"),
    (in_group("codec", lambda _: "nonesuch"), "unknown codec 'nonesuch'"),
    (in_group("codec", lambda _: 3), "group 0: codec=3: expected the spelling"),
    (in_group("names", lambda names: "".join(names)), "group 0: names="),
    (in_group("names", lambda names: [*names, "nobody"]), "group 0: residual: nothing is there for nobody"),
    (in_group("factors", lambda one: torch.cat([one, torch.zeros(1)])), "factors, got "),
    (in_group("factors", lambda one: one.tolist()), "group 0: factors="),
    (in_group("factors", lambda one: torch.zeros(2, 2)), "group 0: factors: expected one dimension"),
    (in_group("factors", lambda one: one.double()), "group 0: factors: expected a dense tensor of float32"),
    (in_group("factors", lambda one: torch.full((max(len(one), 1),), math.nan)), "group 0: factors: expected finite values"),
    (in_group("states", lambda words: [*words, [0, 0, 0, 0]]), "states, got "),
    (in_group("states", lambda _: [["a"]]), "group 0: states=['a']: expected lists of 4 words"),
    (in_group("states", lambda _: [["a", 0, 0, 0]]), "group 0: states='a': expected a whole number"),
    (in_group("states", lambda _: [[2**32, 0, 0, 0]]), "group 0: states=4294967296: expected at most 4294967295"),
    (in_group("states", lambda _: 3), "group 0: states=3: expected a list"),
    (in_group("arrays", lambda _: []), "group 0: arrays=[]: expected a dict of names and tensors"),
    (in_group("arrays", lambda _: {"mean": torch.zeros(2, 2)}), "group 0: arrays: mean: expected one dimension"),
    (in_group("arrays", lambda _: {"mean": torch.zeros(2)}), "expected arrays of {} elements, got {'mean': 2}"),
    (in_group("arrays", lambda _: {"mean": torch.full((2,), math.inf)}), "group 0: arrays: mean: expected finite values"),
]
#: Of codecs that keep these.
SHORTER: dict[str, list[tuple[Callable[[State], Any], str]]] = {
    "powersgd:rank=2": [
        (in_group("factors", lambda one: one[:-1]), "factors, got "),
        (in_group("factors", lambda one: one[:0]), "factors, got 0"),
        # Of another rank, but too short for that.
        (
            lambda state: state["groups"][0].update(codec=state["groups"][0]["codec"].replace("rank=2", "rank=1")),
            "factors, got ",
        ),
    ],
    "sidco:density=0.05": [
        (in_group("states", lambda words: words[:-1]), "states, got "),
        (in_group("states", lambda words: []), "states, got 0"),
    ],
    "dgc:density=0.05": [
        (without("momentum", NAME), f"momentum: nothing is there for {NAME}"),
        (changed("momentum", lambda one: one * math.inf), f"momentum: {NAME}: expected finite values"),
        (changed("momentum", lambda one: one[:-1]), f"momentum: {NAME}: expected shape (96, 48)"),
    ],
}


def texts(state: Any) -> str:
    """A state in a form that can be compared and sent."""
    return repr(
        [
            (key, crc32(value.cpu().numpy().tobytes()) if isinstance(value, torch.Tensor) else value)
            for key, value in flat(state)
        ]
    )


def flat(state: Any, name: str = "") -> list[tuple[str, Any]]:
    if isinstance(state, dict):
        return [pair for key, value in state.items() for pair in flat(value, f"{name}.{key}")]
    if isinstance(state, list):
        return [pair for key, value in enumerate(state) for pair in flat(value, f"{name}.{key}")]
    return [(name, state)]


def damaged(rank: int, world: int, codec: str) -> list[tuple[str, str, bool]]:
    """What loading each damaged state raises, and whether nothing has changed by it."""
    warnings.simplefilter("ignore")
    parallel = ddp(Net())
    hook = gradwire.torch.compress(parallel, codec)
    model = Net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = DistributedOptimizer(inner, model.named_parameters(), codec)
    for step in range(2):
        for one in (parallel, model):
            one.zero_grad()
            loss_of(one, step, rank).backward()
        optimizer.step()
    good = hook.state_dict()
    good["residual"]["apart"] = torch.ones(2)
    hook.load_state_dict(good)
    hook.load_state_dict([good])
    loss_of(parallel, 2, rank).backward()
    whole = optimizer.state_dict()
    found = []
    for change, expected in [*(DAMAGE if codec in CODECS[:2] else []), *SHORTER.get(codec, [])]:
        state, inside = copy.deepcopy(good), copy.deepcopy(whole)
        instead = change(state)
        state = state if instead is None else None if instead is Nothing else instead
        before, before_inside = texts(hook.state_dict()), texts(optimizer.state_dict())
        inside["gradwire"] = state
        raised = []
        for load in (lambda state=state: hook.load_state_dict(state), lambda inside=inside: optimizer.load_state_dict(inside)):
            try:
                load()
                raised.append("accepted")
            except (ValueError, TypeError) as error:
                raised.append(str(error))
        is_same = before == texts(hook.state_dict()) and before_inside == texts(optimizer.state_dict())
        found.append((expected, raised[0], is_same and all(expected in text for text in raised)))
    # The inner optimizer refuses, and the hook's part is not taken either.
    before = texts(optimizer.state_dict())
    torn = copy.deepcopy(whole)
    torn["gradwire"]["step"] = 99
    torn["param_groups"] = []
    with pytest.raises(ValueError, match="loaded state dict"):
        optimizer.load_state_dict(torn)
    found.append(("torn", "torn", before == texts(optimizer.state_dict())))
    # And it goes on.
    loss_of(parallel, 3, rank).backward()
    return found


def all_damaged(rank: int, world: int) -> dict[str, list[tuple[str, str, bool]]]:
    return {codec: damaged(rank, world, codec) for codec in CODECS}


def test_a_damaged_state_changes_nothing() -> None:
    for codec, found in results(1, all_damaged)[0].items():
        for expected, text, is_fine in found:
            assert is_fine, (codec, expected, text)


def lists(rank: int, world: int) -> list[str]:
    """Lists of states that do not belong together."""
    hook = gradwire.torch.compress(ddp(Net()), "topk:density=0.05")
    state = hook.state_dict()
    found = []
    for change in (
        lambda one: one.update(step=3),
        lambda one: one.update(scale=2.0),
        lambda one: one.update(seed=1),
        lambda one: one["residual"].update(nobody=torch.ones(3)),
        lambda one: (one["residual"].pop(NAME), one["groups"].clear()),
        lambda one: one["residual"].update({NAME: torch.ones(2)}),
    ):
        states = [copy.deepcopy({**state, "rank": old, "world": 3}) for old in range(3)]
        change(states[1])
        with pytest.raises(ValueError, match="state: ") as refused:
            hook.load_state_dict(states)
        found.append(str(refused.value))
    assert hook.step == 0
    return found


def test_states_of_ranks_that_do_not_belong_together_are_refused() -> None:
    for found in results(2, lists):
        assert [text.partition("state: ")[2].split(":")[0] for text in found] == [
            "the old ranks differ in step",
            "the old ranks differ in scale",
            "the old ranks differ in seed",
            "residual",
            "residual",
            "residual",
        ]
        assert all("rank 1 has other tensors than rank 0" in text for text in found[3:])
