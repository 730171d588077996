"""LocalSteps whose exchanges take turns over fragments, or are under way while ranks go on."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from ranks import Net, Raised, adamw, parameters, results, run, train
from torch import nn

from gradwire.torch import LocalSteps
from gradwire.torch._fragments import cut, due

EVERY = 4
STEPS = 15
#: Fragments and overlap.
WAYS = [(1, 2), (1, EVERY), (2, 0), (2, 1), (2, 2), (3, 0), (EVERY, 1)]


@pytest.mark.parametrize(
    ("sizes", "count", "fragments"),
    [
        ([10, 1, 1, 10, 5, 5, 8], 3, [[0, 1, 2], [3, 4], [5, 6]]),
        ([100, 1, 1], 3, [[0], [1], [2]]),
        ([1, 1, 100], 3, [[0], [1], [2]]),
        ([1, 1, 100, 1], 2, [[0, 1], [2, 3]]),
        ([3, 3], 1, [[0, 1]]),
    ],
)
def test_fragments_are_runs_of_nearly_equal_size(sizes: list[int], count: int, fragments: list[list[int]]) -> None:
    found = cut({str(at): size for at, size in enumerate(sizes)}, count)
    assert found == [[str(at) for at in fragment] for fragment in fragments]


@pytest.mark.parametrize(("every", "count"), [(1, 1), (4, 1), (7, 3), (3, 3), (30, 4), (5, 2)])
def test_each_fragment_has_one_turn_in_each_round(every: int, count: int) -> None:
    turns = [due(taken, every, count) for taken in range(1, 3 * every + 1)]
    assert [turn for turn in turns if turn is not None] == 3 * list(range(count))
    at = [taken for taken, turn in enumerate(turns) if turn is not None]
    assert {late - soon for soon, late in pairwise(at)} <= {every // count, -(-every // count)}
    assert turns[every - 1] == count - 1


def made(model: nn.Module, way: tuple[int, int], codec: str = "none") -> LocalSteps:
    fragments, overlap = way
    return LocalSteps(model, adamw(model), "nesterov", EVERY, codec, fragments=fragments, overlap=overlap, check_every=1)


def trained(rank: int, world: int, way: tuple[int, int]) -> tuple[bytes, bytes]:
    """Before and after the last exchange."""
    model = Net()
    optimizer = made(model, way)
    train(model, optimizer, range(STEPS), rank)
    before = parameters(model)
    optimizer.synchronize()
    optimizer.synchronize()
    return before, parameters(model)


class Naive:
    """All ranks one after the other in one process, with plain tensors."""

    def __init__(self, ranks: int, way: tuple[int, int]) -> None:
        fragments, self.overlap = way
        self.models = [Net() for _ in range(ranks)]
        self.inner = [adamw(model) for model in self.models]
        self.own = [list(model.parameters()) for model in self.models]
        self.kept = [nn.Parameter(parameter.detach().clone()) for parameter in self.own[0]]
        self.outer = torch.optim.SGD(self.kept, lr=0.7, momentum=0.9, nesterov=True)
        sizes = {str(at): kept.numel() for at, kept in enumerate(self.kept)}
        self.fragments = [[int(name) for name in names] for names in cut(sizes, fragments)]
        self.pending: tuple[int, list[int], list[list[torch.Tensor]]] | None = None

    def run(self, steps: int) -> list[bytes]:
        for step in range(steps):
            for rank, model in enumerate(self.models):
                train(model, self.inner[rank], range(step, step + 1), rank)
            with torch.no_grad():
                self.after(step + 1)
        return [parameters(model) for model in self.models]

    def after(self, taken: int) -> None:
        turn = due(taken, EVERY, len(self.fragments))
        if turn is not None or (self.pending is not None and taken - self.pending[0] >= self.overlap):
            self.apply(keeps=True)
        if turn is not None:
            self.begin(taken, self.fragments[turn])
            if self.overlap == 0:
                self.apply(keeps=False)

    def begin(self, taken: int, fragment: list[int]) -> None:
        self.pending = taken, fragment, [[own[at].clone() for own in self.own] for at in fragment]

    def apply(self, keeps: bool) -> None:
        if self.pending is None:
            return
        (_, fragment, ends), self.pending = self.pending, None
        for kept in self.kept:
            kept.grad = None
        for at, begun in zip(fragment, ends, strict=True):
            self.kept[at].grad = sum(self.kept[at] - end for end in begun) / len(self.models)
        self.outer.step()
        for at, begun in zip(fragment, ends, strict=True):
            for own, end in zip(self.own, begun, strict=True):
                own[at].copy_(self.kept[at] + (own[at] - end) if keeps else self.kept[at])

    @torch.no_grad()
    def synchronize(self) -> bytes:
        self.apply(keeps=self.overlap > 0)
        self.begin(0, list(range(len(self.kept))))
        self.apply(keeps=False)
        return parameters(self.models[0])


def naive(rank: int, world: int, ranks: int, way: tuple[int, int]) -> list[tuple[bytes, bytes]]:
    form = Naive(ranks, way)
    before = form.run(STEPS)
    after = form.synchronize()
    return [(one, after) for one in before]


@pytest.mark.parametrize("way", WAYS)
def test_steps_are_those_of_a_naive_form(way: tuple[int, int]) -> None:
    (expected,) = results(1, naive, 2, way)
    found = results(2, trained, way)
    assert found == expected
    assert found[0][0] != found[1][0]


def counted(rank: int, world: int, codec: str, rules: dict[str, str]) -> list[int]:
    model = Net()
    optimizer = LocalSteps(model, adamw(model), "average", EVERY, codec, fragments=2, rules=rules, dense_below=0)
    sizes = [sum(optimizer._kept[name][0].numel() for name in names) for names in optimizer._names]
    sent = []
    for step in range(EVERY):
        train(model, optimizer, range(step, step + 1), rank)
        sent.append(optimizer.exchange.stats().frame_bytes)
    return [*sizes, sent[EVERY // 2 - 1], sent[EVERY - 1] - sent[EVERY // 2 - 1]]


@pytest.mark.parametrize(
    ("codec", "rules"), [("none", {}), ("topk:density=1", {}), ("topk:density=1", {"head.*": "none", "embed.*": "bf16"})]
)
def test_only_the_fragment_whose_turn_it_is_travels(codec: str, rules: dict[str, str]) -> None:
    for first, second, sent, later in results(2, counted, codec, rules):
        # Frames have headers, and bf16 takes half.
        assert 0.4 * 4 * first < sent < 1.1 * 4 * first
        assert 0.4 * 4 * second < later < 1.1 * 4 * second


def saved(rank: int, world: int, way: tuple[int, int], codec: str, at: int) -> list[bytes]:
    """With and without an end in the middle, also while an exchange is under way."""
    torch.manual_seed(0)
    model = Net()
    optimizer = made(model, way, codec)
    train(model, optimizer, range(at), rank)
    state = copy.deepcopy({"model": model.state_dict(), "local": optimizer.state_dict()})
    train(model, optimizer, range(at, STEPS), rank)
    # Saving has changed nothing.
    plain = Net()
    undisturbed = made(plain, way, codec)
    train(plain, undisturbed, range(STEPS), rank)
    # The other has an exchange of its own under way when it loads.
    other = Net()
    resumed = made(other, way, codec)
    train(other, resumed, range(EVERY + 1), rank)
    other.load_state_dict(state["model"])
    resumed.load_state_dict(state["local"])
    train(other, resumed, range(at, STEPS), rank)
    for one in (optimizer, undisturbed, resumed):
        one.close()
    return [parameters(model), parameters(plain), parameters(other)]


@pytest.mark.parametrize("codec", ["none", "topk:density=0.05,decay=0.9", "powersgd:rank=1"])
@pytest.mark.parametrize(("way", "at"), [((1, 3), 5), ((1, 3), 7), ((2, 1), 6), ((2, 2), 7), ((3, 0), 5)])
def test_it_goes_on_with_the_same_bits(way: tuple[int, int], codec: str, at: int) -> None:
    for whole, undisturbed, resumed in results(2, saved, way, codec, at):
        assert whole == undisturbed == resumed


def decayed(rank: int, world: int, decay: str) -> list[bytes]:
    """What is kept of each tensor after one exchange of each of two fragments."""
    model = Net()
    optimizer = made(model, (2, 0), f"topk:density=0.05{decay}")
    train(model, optimizer, range(EVERY), rank)
    kept = [optimizer.exchange.residual(name) for name, _ in model.named_parameters()]
    optimizer.close()
    return [residual.cpu().numpy().tobytes() for residual in kept]


def test_what_is_kept_of_a_fragment_decays_with_its_own_exchanges_alone() -> None:
    for plain, halved in zip(results(2, decayed, ""), results(2, decayed, ",decay=0.5"), strict=True):
        for one, half in zip(plain, halved, strict=True):
            values, found = (torch.frombuffer(bytearray(kept), dtype=torch.float32) for kept in (one, half))
            assert torch.equal(found, 0.5 * values)
        # One of each fragment at least.
        assert any(plain[0])
        assert any(plain[-2])


def recovers(rank: int, world: int, way: tuple[int, int]) -> list[Any]:
    """One rank diverges; all go back to their checkpoint and on."""
    model = Net()
    optimizer = made(model, way)
    train(model, optimizer, range(5), rank)
    state = copy.deepcopy({"model": model.state_dict(), "local": optimizer.state_dict()})
    train(model, optimizer, range(5, 9), rank)
    whole = parameters(model)
    if rank == 1:
        with torch.no_grad():
            model.head.bias[3] = math.nan
    told = ""
    try:
        train(model, optimizer, range(9, 14), rank)
    except Exception as error:
        told = str(error)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["local"])
    train(model, optimizer, range(5, 9), rank)
    return [told, whole == parameters(model)]


@pytest.mark.parametrize("way", [(1, 0), (1, 2), (2, 1)])
def test_after_a_rank_diverged_all_go_on_from_a_checkpoint(way: tuple[int, int]) -> None:
    for told, is_same in results(2, recovers, way):
        assert "was not finite" in told
        assert is_same


def foreign(rank: int, world: int, fragments: int) -> bool:
    """A state with an exchange under way, for one with other fragments, which then goes on as if nothing had been."""
    state = None
    ends = []
    for loads in (False, True):
        model = Net()
        optimizer = made(model, (2, 1))
        train(model, optimizer, range(2), rank)
        state = state or copy.deepcopy(optimizer.state_dict())
        other = Net()
        refuses = made(other, (fragments, 1))
        train(other, refuses, range(EVERY), rank)
        if loads:
            with pytest.raises(ValueError, match="make it with as many fragments"):
                refuses.load_state_dict(state)
        train(other, refuses, range(EVERY, STEPS), rank)
        ends.append(parameters(other))
        optimizer.close()
        refuses.close()
    return ends[0] == ends[1]


@pytest.mark.parametrize("fragments", [1, 3, EVERY])
def test_a_state_of_other_fragments_is_refused_and_changes_nothing(fragments: int) -> None:
    assert results(2, foreign, fragments) == [True, True]


DAMAGE: dict[str, Callable[[dict[str, Any]], object]] = {
    "inner": lambda state: state["inner"]["param_groups"].pop(),
    "outer": lambda state: state["outer"]["param_groups"].pop(),
    "another rank": lambda state: state["outer"]["gradwire"].update(rank=7),
    "kept lacks one": lambda state: state["kept"].pop("head.bias"),
    "kept shape": lambda state: state["kept"].update({"head.bias": torch.zeros(3, 3)}),
    "taken": lambda state: state.update(taken=-1),
    "mean lacks one": lambda state: state["pending"]["means"].popitem(),
    "mean shape": lambda state: state["pending"]["means"].update(dict.fromkeys(state["pending"]["means"], torch.zeros(3, 3))),
    "end lacks one": lambda state: state["pending"]["ends"].popitem(),
    "end shape": lambda state: state["pending"]["ends"].update(dict.fromkeys(state["pending"]["ends"], torch.zeros(3, 3))),
}


def refuses_damage(rank: int, world: int, way: tuple[int, int]) -> dict[str, str]:
    """Offers one damaged state after the other between the steps, exchanges under way or not; says which were taken."""
    model, other = Net(), Net()
    optimizer, offered = made(model, way), made(other, way)
    train(model, optimizer, range(EVERY), rank)
    state = optimizer.state_dict()
    taken = {}
    for step in range(STEPS):
        train(other, offered, range(step, step + 1), rank)
        for name, damage in DAMAGE.items():
            damaged = copy.deepcopy(state)
            damage(damaged)
            try:
                offered.load_state_dict(damaged)
                taken[name] = "taken"
            except ValueError:
                pass
    whole = Net()
    alone = made(whole, way)
    train(whole, alone, range(STEPS), rank)
    if parameters(whole) != parameters(other):
        taken["bits"] = "others"
    return taken


@pytest.mark.parametrize("way", [(1, 2), (2, 1)])
def test_a_damaged_state_is_refused_and_changes_nothing(way: tuple[int, int]) -> None:
    assert results(2, refuses_damage, way) == [{}, {}]


def refused(rank: int, world: int, options: dict[str, Any]) -> None:
    model = Net()
    LocalSteps(model, adamw(model), every=EVERY, **(options or {"overlap": rank}))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"overlap": 5}, "overlap=5: expected at most every // fragments, 4"),
        ({"fragments": 2, "overlap": 3}, "overlap=3: expected at most every // fragments, 2"),
        ({"fragments": 0}, "fragments=0: expected 1 or more"),
        ({"fragments": 5}, "fragments=5: expected at most every, 4"),
        ({"fragments": 2, "codec": "auto"}, "compares exchanges of all tensors"),
        ({}, "overlap"),
    ],
)
def test_refusals_say_why(options: dict[str, Any], told: str) -> None:
    for one in run(2, refused, options):
        assert isinstance(one, Raised), one
        assert told in one.text, one.text
