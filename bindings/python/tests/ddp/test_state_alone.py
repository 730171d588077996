"""What a state says and what is read of it, without a process group: the engine is stood in for by its memories."""

from __future__ import annotations

import copy
import io
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from ranks import Net

from gradwire import Codec, Memory
from gradwire.torch._keep import Keep
from gradwire.torch._plan import Group, Plan, trained
from gradwire.torch._state import choice, for_this_rank

State = dict[str, Any]

CODECS = [
    "topk:density=0.05",
    "dgc:density=0.05",
    "sidco:density=0.05",
    "randomk:density=0.1",
    "powersgd:rank=2",
    "sharedk:density=0.05",
    "maxnorm:bits=8,rounding=nearest,memory=ef",
    "sketch:density=0.05,cells=0.5,rows=1,moments=amsgrad",
]
SEED = 5
NAME = "inner.weight"


class Core:
    """The memories of an engine, by lane, and where it is."""

    def __init__(self, plan: Plan) -> None:
        self.memories = {group.lane: group.new_memory() for group in plan.groups if group.keeps}
        self.at: tuple[Any, ...] = (0, None, None, False, "none")

    def read(self, memories: list[tuple[int, Memory]]) -> tuple[Any, ...]:
        for lane, memory in memories:
            memory.load_state_dict(self.memories[lane].state_dict())
        return self.at

    def load(self, memories: list[tuple[int, Memory]], step: int, scale: float | None, lr: float | None) -> None:
        self.memories.update(memories)
        self.at = (step, scale, lr, False, "none")


class Rank:
    """What a rank keeps of a model."""

    def __init__(
        self, codec: str, rank: int = 0, world: int = 1, names: Callable[[str], str | None] = lambda name: name
    ) -> None:
        """Parameters are called as `names` says, and those without a name are not trained."""
        called = [(at, names(name), one) for at, (name, one) in enumerate(Net().named_parameters())]
        tensors = trained((at, name, one) for at, name, one in called if name is not None)
        self.plan = Plan(tensors, codec, {"head.*": "none"}, 128)
        self.core, self.rank, self.world = Core(self.plan), rank, world
        self.keep = Keep(self.core, self.plan, codec, SEED, rank, world)  # type: ignore[arg-type]

    def step(self, number: int) -> list[bytes]:
        """Sends a gradient, alone. Returns what was sent."""
        sent = [self._send(group, number) for group in self.plan.groups if group.keeps]
        self.core.at = (number + 1, 1024.0, 0.1, False, "holds")
        return sent

    def _send(self, group: Group, number: int) -> bytes:
        memory = self.core.memories[group.lane]
        gradient = np.random.default_rng([self.rank, number]).normal(size=len(group.layout)).astype(np.float32)
        keys: Any = {"step": number, "seed": SEED, "rank": self.rank, "units": group.units}
        if not group.codec.is_linear:
            return bytes(group.codec.encode(gradient, group.layout, memory, **keys))
        sent = b""
        for unit in group.codec.begin(gradient, group.layout, memory, workers=self.world, **keys):
            while not unit.done:
                sent += unit.payload.tobytes()
                unit.advance()
        return sent

    def state(self) -> State:
        return self.keep.state(None)

    def load(self, state: object) -> None:
        loaded = self.keep.read(state)
        loaded.warn()
        self.keep.take(loaded)


def saved(state: State) -> State:
    """As it comes out of a file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def bits(part: Any) -> Any:
    """A state in a form that can be compared."""
    if isinstance(part, torch.Tensor):
        return (str(part.dtype), tuple(part.shape), part.numpy().tobytes())
    if isinstance(part, dict):
        return {key: bits(one) for key, one in part.items()}
    return [bits(one) for one in part] if isinstance(part, list | tuple) else part


def after(codec: str, steps: int, rank: int = 0, world: int = 1) -> Rank:
    made = Rank(codec, rank, world)
    for number in range(steps):
        made.step(number)
    return made


@pytest.mark.parametrize("codec", CODECS)
def test_what_was_saved_goes_on_with_the_same_bits(codec: str) -> None:
    old, new = after(codec, 3), Rank(codec)
    state = saved(old.state())
    assert state["residual"].keys() == {name for name, _ in Net().named_parameters() if not name.startswith("head.")}
    assert any(one.any() for one in state["residual"].values())
    new.load(state)
    assert bits(new.state()) == bits(state) == bits(old.state())
    assert [new.step(number) for number in (3, 4)] == [old.step(number) for number in (3, 4)]
    assert bits(new.state()) == bits(old.state())


def test_a_codec_that_keeps_nothing_has_a_state_too() -> None:
    state = saved(after("qsgd:bits=4", 3).state())
    assert (state["residual"], state["momentum"], state["groups"]) == ({}, {}, [])
    Rank("qsgd:bits=4").load(state)


@pytest.mark.parametrize("codec", ["topk:density=0.05", "dgc:density=0.05", "powersgd:rank=2"])
def test_a_state_is_a_copy(codec: str) -> None:
    old = after(codec, 2)
    state = old.state()
    before = bits(state)
    old.step(2)
    assert bits(state) == before
    new = Rank(codec)
    new.load(state)
    new.step(2)
    assert bits(state) == before


@pytest.mark.parametrize("codec", ["dgc:density=0.05", "powersgd:rank=2"])
def test_names_of_compiled_models_are_plain_ones(codec: str) -> None:
    compiled = Rank(codec, names=lambda name: f"_orig_mod.{name.replace('.', '._orig_mod.')}")
    for number in range(2):
        compiled.step(number)
    plain = after(codec, 2)
    assert bits(compiled.state()) == bits(plain.state())
    # Also in files of before that was so.
    state = plain.state()
    for what in ("residual", "momentum"):
        state[what] = {f"_orig_mod.{name}": one for name, one in state[what].items()}
    for group in state["groups"]:
        group["names"] = [f"_orig_mod.{name}" for name in group["names"]]
    new = Rank(codec)
    new.load(saved(state))
    assert bits(new.state()) == bits(plain.state())


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_a_state_of_another_version_is_refused(version: Any) -> None:
    state = after("topk:density=0.05", 1).state()
    with pytest.raises(ValueError, match=f"^state: version {version}: expected 1$"):
        Rank("topk:density=0.05").keep.read({**state, "version": version})


@pytest.mark.parametrize("codec", ["topk:density=0.05", "powersgd:rank=2"])
def test_each_part_that_is_missing_is_named(codec: str) -> None:
    state = after(codec, 1).state()
    for key in state.keys() - {"version"}:
        with pytest.raises(ValueError, match=f"^state: '{key}' is missing$"):
            Rank(codec).keep.read({other: one for other, one in state.items() if other != key})
    for key in state["groups"][0].keys() - {"arrays"}:
        cut = copy.deepcopy(state)
        del cut["groups"][0][key]
        with pytest.raises(ValueError, match=f"^state: group 0: '{key}' is missing$"):
            Rank(codec).keep.read(cut)
    cut = copy.deepcopy(state)
    del cut["residual"][NAME]
    with pytest.raises(ValueError, match=rf"^state: group 0: residual: nothing is there for {re.escape(NAME)}$"):
        Rank(codec).keep.read(cut)


def test_of_many_names_that_are_missing_five_are_said() -> None:
    state = after("topk:density=0.05", 1).state()
    state["residual"] = {}
    first = ", ".join(state["groups"][0]["names"][:5])
    with pytest.raises(ValueError, match=rf"nothing is there for {re.escape(first)}, …$"):
        Rank("topk:density=0.05").keep.read(state)


def test_a_tensor_of_another_shape_is_refused_with_both_shapes_and_nothing_changes() -> None:
    rank = after("topk:density=0.05", 2)
    before, state = bits(rank.state()), rank.state()
    state["residual"][NAME] = state["residual"][NAME].t().contiguous()
    with pytest.raises(ValueError, match=r"^state: residual: inner\.weight: expected shape \(96, 48\), got \(48, 96\)$"):
        rank.load(state)
    assert bits(rank.state()) == before


def test_a_state_of_another_rank_or_seed_says_what_is_expected() -> None:
    state = after("topk:density=0.05", 1, 1, 2).state()
    with pytest.raises(
        ValueError, match="it is of rank 1 of 2, this is rank 0 of 2; expected that of the same rank, or a list"
    ):
        Rank("topk:density=0.05", 0, 2).keep.read(state)
    with pytest.raises(ValueError, match=r"of rank 1 of 2, this is rank 1 of 3; .* a list of the states of all old ranks$"):
        Rank("topk:density=0.05", 1, 3).keep.read(state)
    with pytest.raises(ValueError, match=r"^state: seed 9: expected 5, as it was passed to compress$"):
        Rank("topk:density=0.05", 1, 2).keep.read({**state, "seed": 9})


def test_a_renamed_tensor_keeps_what_was_kept_and_gets_it_back() -> None:
    codec = "topk:density=0.05"
    state = after(codec, 2).state()
    renamed = Rank(codec, names=lambda name: name.replace("inner.", "first."))
    with pytest.warns(UserWarning, match=r"^state: inner\.weight is not sent here; what was kept for it, of norm ") as told:
        renamed.load(state)
    norm = float(str(told[0].message).rpartition("norm ")[2].partition(",")[0])
    assert norm == pytest.approx(float(state["residual"][NAME].norm()), rel=0.01)
    between = renamed.state()
    assert not between["residual"]["first.weight"].any()
    assert torch.equal(between["residual"][NAME], state["residual"][NAME])
    again = Rank(codec)
    with warnings.catch_warnings():
        # Of the new names nothing is kept, so there is nothing to warn of.
        warnings.simplefilter("error")
        again.load(saved(between))
    assert all(torch.equal(again.state()["residual"][name], one) for name, one in state["residual"].items())


def test_a_tensor_that_is_not_trained_keeps_what_was_kept() -> None:
    codec = "dgc:density=0.05"
    state = after(codec, 2).state()
    frozen = Rank(codec, names=lambda name: None if name == NAME else name)
    with pytest.warns(UserWarning, match=r"inner\.weight is not sent here"):
        frozen.load(state)
    frozen.step(2)
    later = frozen.state()
    for what in ("residual", "momentum"):
        assert torch.equal(later[what][NAME], state[what][NAME])
    assert not torch.equal(later["residual"]["embed.weight"], state["residual"]["embed.weight"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("topk:density=0.05", "dgc:density=0.05"),
        ("dgc:density=0.05", "topk:density=0.05"),
        ("powersgd:rank=1", "powersgd:rank=2"),
    ],
)
def test_another_codec_takes_the_residuals_over_and_begins_the_rest_anew(old: str, new: str) -> None:
    state, fresh, rank = after(old, 2).state(), Rank(new).state(), Rank(new)
    rank.load(state)
    taken = rank.state()
    assert bits(taken["residual"]) == bits(state["residual"])
    assert bits(taken["groups"]) == bits(fresh["groups"])
    assert taken["step"] == 2
    rank.step(2)


@pytest.mark.parametrize(("old", "new"), [(4, 2), (2, 4), (3, 2), (2, 3), (1, 2), (3, 1), (2, 2)])
def test_what_is_owed_to_the_mean_does_not_depend_on_the_number_of_ranks(old: int, new: int) -> None:
    codec = "dgc:density=0.05"
    before = [saved(after(codec, 2, rank, old).state()) for rank in range(old)]
    for rank in range(new):
        state = for_this_rank(before, rank, new)
        for what in ("residual", "momentum"):
            for name in before[0][what]:
                # Old rank i goes to new rank i modulo the new number.
                heirs = [one[what][name].double() for at, one in enumerate(before) if at % new == rank]
                owed = sum(heirs, torch.zeros_like(before[0][what][name]).double()) * (new / old)
                torch.testing.assert_close(state[what][name].double(), owed, rtol=1e-6, atol=1e-6)
        Rank(codec, rank, new).load(before)


def test_arrays_that_old_ranks_do_not_share_begin_anew_with_another_number_of_ranks() -> None:
    codec = "sharedk:density=0.05,by=leader,feedback=ef21"
    apart = [saved(after(codec, 2, rank, 2).state()) for rank in range(2)]
    assert all(array.any() for array in apart[0]["groups"][0]["arrays"].values())
    alike = [saved(after(codec, 2).state()) | {"rank": rank, "world": 2} for rank in range(2)]
    for states, are_kept in [(apart, False), (alike, True)]:
        rank = Rank(codec, 0, 3)
        rank.load(states)
        arrays = rank.state()["groups"][0]["arrays"]
        expected = states[0]["groups"][0]["arrays"]
        assert arrays.keys() == expected.keys()
        if are_kept:
            assert bits(arrays) == bits(expected)
        else:
            assert not any(array.any() for array in arrays.values())


def test_a_state_from_before_there_were_arrays_is_read() -> None:
    rank, state = Rank("powersgd:rank=2"), after("powersgd:rank=2", 2).state()
    for group in state["groups"]:
        del group["arrays"]
    rank.load(state)
    assert bits(rank.state()["residual"]) == bits(state["residual"])


@pytest.mark.parametrize("key", ["seed", "step", "epoch", "scale", "lr", "auto"])
def test_old_ranks_that_differ_are_refused(key: str) -> None:
    states = [after("topk:density=0.05", 1, rank, 2).state() for rank in range(2)]
    other = {"codec": "none", "wire": "f32", "owes": False} if key == "auto" else 7
    states[1][key] = other
    with pytest.raises(ValueError, match=f"^state: the old ranks differ in {key}: "):
        for_this_rank(states, 0, 3)


def test_a_list_holds_all_old_ranks_in_their_order() -> None:
    states = [after("topk:density=0.05", 1, rank, 3).state() for rank in range(3)]
    for given in (states[:2], states[::-1], [states[0]] * 3):
        with pytest.raises(ValueError, match=r"^state: expected the states of all old ranks, in rank order$"):
            for_this_rank(given, 0, 2)


CHOSEN: State = {"codec": "topk:density=0.01", "wire": "f32", "owes": True}


@pytest.mark.parametrize("told", [None, CHOSEN, {"codec": None, "wire": None, "owes": False}])
def test_a_choice_is_read_as_it_was_told(told: Any) -> None:
    assert choice("auto", told) == told


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ("topk", "auto='topk': expected a dict with 'codec', 'wire' and 'owes'"),
        ({"codec": None, "owes": False}, "expected a dict with 'codec', 'wire' and 'owes'"),
        ({**CHOSEN, "more": 1}, "expected a dict with 'codec', 'wire' and 'owes'"),
        ({**CHOSEN, "owes": 1}, "auto: owes=1: expected True or False"),
        ({**CHOSEN, "codec": 3}, "auto: codec=3: expected the spelling of a codec"),
        ({**CHOSEN, "wire": None}, "auto: wire=None: expected 'f32' or 'bf16'"),
    ],
)
def test_a_choice_that_is_none_is_refused(told: Any, text: str) -> None:
    with pytest.raises(TypeError, match=re.escape(text)):
        choice("auto", told)


def test_words_of_a_codec_are_taken_over_only_by_the_same_one() -> None:
    rank = after("powersgd:rank=2", 2)
    assert Codec(rank.state()["groups"][0]["codec"]).name == "powersgd"
    state = rank.state()
    factors = state["groups"][0]["factors"]
    assert factors.any()
    same, other = Rank("powersgd:rank=2"), Rank("topk:density=0.05")
    same.load(state)
    other.load(state)
    assert bits(same.state()["groups"][0]["factors"]) == bits(factors)
    assert len(other.state()["groups"][0]["factors"]) == 0
