"""The state of a hook as its user keeps it: all of it is checked before any of it is taken over."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from gradwire import Codec, Memory

from ._options import LARGEST_SEED, flag, real, spelling, type_error, whole
from ._plan import Group, plain

VERSION = 1
#: What is kept for each tensor.
KEPT = ("residual", "momentum")
_STATE_WORDS = 4
# What all ranks have alike.
_SHARED = ("seed", "step", "epoch", "scale", "lr", "auto")

State = dict[str, Any]


def of_group(group: Group, memory: Memory) -> State:
    """What a memory holds of a group."""
    state: State = {**memory.state_dict()}
    return {
        **{what: {name: torch.from_numpy(array) for name, array in (state[what] or {}).items()} for what in KEPT},
        "codec": state["codec"],
        "names": group.names,
        "factors": torch.from_numpy(state["factors"]),
        "states": [list(words) for words in state["states"]],
        "arrays": {name: torch.from_numpy(array) for name, array in state["arrays"].items()},
    }


def for_this_rank(given: object, rank: int, world: int) -> State:
    """The state from which a rank continues, with those of the old ranks that are no more."""
    if isinstance(given, Mapping):
        state = _checked(given, "state")
        if (state["rank"], state["world"]) == (rank, world):
            return state
        raise ValueError(
            f"state: it is of rank {state['rank']} of {state['world']}, this is rank {rank} of {world}; "
            "expected that of the same rank, or a list of the states of all old ranks"
        )
    if not isinstance(given, list | tuple) or not given:
        raise type_error("state", given, "what state_dict() returned, or a list of the states of all old ranks")
    states = [_checked(one, f"state {number} of {len(given)}") for number, one in enumerate(given)]
    if [(one["rank"], one["world"]) for one in states] != [(old, len(states)) for old in range(len(states))]:
        raise ValueError("state: expected the states of all old ranks, in rank order")
    _check_alike(states)
    return states[rank] if len(states) == world else _merged(states, rank, world)


def memory_from(group: Group, state: State) -> tuple[Memory, list[str]]:
    """A new memory for a group, and the names of the tensors that were found."""
    memory = group.new_memory()
    new: State = {**memory.state_dict()}
    taken = []
    for slot in group.slots:
        name = slot.tensor.name
        if name not in state["residual"]:
            continue
        for what in KEPT:
            kept = state[what].get(name)
            if kept is not None and tuple(kept.shape) != slot.tensor.shape:
                raise ValueError(f"state: {what}: {name}: expected shape {slot.tensor.shape}, got {tuple(kept.shape)}")
            if kept is not None and new[what] is not None:
                new[what][name] = kept.numpy()
        taken.append(name)
    for old in state["groups"]:
        if old["names"] == group.names and Codec(old["codec"]).name == group.codec.name:
            _take_words(group, old, new)
    memory.load_state_dict(new)  # type: ignore[arg-type]
    return memory, taken


def _take_words(group: Group, old: State, new: State) -> None:
    """Takes factors, states of units and arrays over; if they are of another rank, say, the codec begins with its own."""
    is_same = old["codec"] == new["codec"]
    sizes: Mapping[str, Any] = new if is_same else Memory(Codec(old["codec"]), group.layout, units=group.units).state_dict()
    for what in ("factors", "states"):
        if len(old[what]) != len(sizes[what]):
            raise ValueError(f"state: {old['codec']}: expected {len(sizes[what])} {what}, got {len(old[what])}")
        if len(old[what]) == len(new[what]):
            new[what] = old[what].numpy() if what == "factors" else old[what]
    lengths = {name: len(array) for name, array in old["arrays"].items()}
    expected = {name: len(array) for name, array in sizes["arrays"].items()}
    if lengths and lengths != expected:
        raise ValueError(f"state: {old['codec']}: expected arrays of {expected} elements, got {lengths}")
    if lengths == {name: len(array) for name, array in new["arrays"].items()}:
        new["arrays"] = {name: array.numpy() for name, array in old["arrays"].items()}


def _checked(state: object, of: str) -> State:
    """A copy of the state, whose tensors are on the CPU; the tensors themselves are not copied there."""
    if not isinstance(state, Mapping):
        raise type_error(of, state, "what state_dict() returned")
    if state.get("version") != VERSION:
        raise ValueError(f"{of}: version {state.get('version')}: expected {VERSION}")
    at = _Part(of, state)
    spelling(f"{of}: codec", at["codec"])
    checked: State = {
        "rank": whole(f"{of}: rank", at["rank"]),
        "world": whole(f"{of}: world", at["world"], least=1),
        "seed": whole(f"{of}: seed", at["seed"], most=LARGEST_SEED),
        "step": whole(f"{of}: step", at["step"]),
        "epoch": None if at["epoch"] is None else whole(f"{of}: epoch", at["epoch"]),
        "scale": None if at["scale"] is None else real(f"{of}: scale", at["scale"], _is_scale, "a finite number above 0"),
        "lr": None if at["lr"] is None else real(f"{of}: lr", at["lr"], math.isfinite, "a finite number"),
        **{what: _tensors(f"{of}: {what}", at[what]) for what in KEPT},
        "auto": choice(f"{of}: auto", state.get("auto")),
    }
    if not isinstance(at["groups"], list | tuple):
        raise type_error(f"{of}: groups", at["groups"], "a list")
    checked["groups"] = [_group(f"{of}: group {number}", one, checked) for number, one in enumerate(at["groups"])]
    _check_names(f"{of}: momentum", checked["momentum"], checked["residual"], "no residual is there for")
    return checked


def choice(of: str, told: object) -> dict[str, Any] | None:
    """What a state says of a choice; `None` for a hook that chose nothing."""
    if told is None:
        return None
    if not isinstance(told, Mapping) or told.keys() != {"codec", "wire", "owes"}:
        raise type_error(of, told, "a dict with 'codec', 'wire' and 'owes'")
    flag(f"{of}: owes", told["owes"])
    if told["codec"] is not None:
        spelling(f"{of}: codec", told["codec"])
        spelling(f"{of}: wire", told["wire"], "'f32' or 'bf16'")
    return dict(told)


class _Part:
    """A dictionary whose keys have to be there."""

    def __init__(self, of: str, part: Mapping[str, Any]) -> None:
        self._of, self._part = of, part

    def __getitem__(self, key: str) -> Any:
        if key not in self._part:
            raise ValueError(f"{self._of}: '{key}' is missing")
        return self._part[key]


def _is_scale(scale: float) -> bool:
    return 0 < scale < math.inf


def _group(of: str, group: object, state: State) -> State:
    if not isinstance(group, Mapping):
        raise type_error(of, group, "a dict")
    at = _Part(of, group)
    spelling(f"{of}: codec", at["codec"])
    Codec(at["codec"])
    if not isinstance(at["names"], list | tuple) or not all(isinstance(name, str) for name in at["names"]):
        raise type_error(f"{of}: names", at["names"], "a list of names")
    names = [plain(name) for name in at["names"]]
    _check_names(f"{of}: residual", names, state["residual"], "nothing is there for")
    if any(name in state["momentum"] for name in names):
        _check_names(f"{of}: momentum", names, state["momentum"], "nothing is there for")
    states = at["states"]
    if not isinstance(states, list | tuple):
        raise type_error(f"{of}: states", states, "a list")
    for words in states:
        if not isinstance(words, list | tuple) or len(words) != _STATE_WORDS:
            raise type_error(f"{of}: states", words, f"lists of {_STATE_WORDS} words")
    factors = _tensor(f"{of}: factors", at["factors"])
    if factors.dim() != 1:
        raise ValueError(f"{of}: factors: expected one dimension, got shape {tuple(factors.shape)}")
    # States from before there were arrays have none.
    arrays = _tensors(f"{of}: arrays", group.get("arrays", {}))
    for name, array in arrays.items():
        if array.dim() != 1:
            raise ValueError(f"{of}: arrays: {name}: expected one dimension, got shape {tuple(array.shape)}")
    return {
        "codec": at["codec"],
        "names": names,
        "factors": factors,
        "states": [[whole(f"{of}: states", word, most=2**32 - 1) for word in words] for words in states],
        "arrays": arrays,
    }


def _tensors(of: str, tensors: object) -> dict[str, torch.Tensor]:
    if not isinstance(tensors, Mapping):
        raise type_error(of, tensors, "a dict of names and tensors")
    for name in tensors:
        spelling(f"{of}: a name", name, "the name of a tensor")
    return {plain(name): _tensor(f"{of}: {name}", tensor) for name, tensor in tensors.items()}


def _tensor(of: str, tensor: object) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise type_error(of, tensor, "a tensor")
    if tensor.dtype != torch.float32 or tensor.layout != torch.strided or tensor.device.type == "meta":
        got = f"{tensor.dtype}, {tensor.layout}, on {tensor.device}"
        raise TypeError(f"{of}: expected a dense tensor of float32, got {got}")
    values = tensor.detach().cpu().contiguous()
    if not bool(torch.isfinite(values).all()):
        raise ValueError(f"{of}: expected finite values, got a NaN or an infinity")
    return values


def _check_names(of: str, names: Iterable[str], among: Mapping[str, Any], what: str) -> None:
    missing = [name for name in names if name not in among]
    if missing:
        raise ValueError(f"{of}: {what} {', '.join(missing[:5])}{', …' if len(missing) > 5 else ''}")


def _check_alike(states: Sequence[State]) -> None:
    """States of all ranks behind the same step of the same model."""
    for key in _SHARED:
        values = [state[key] for state in states]
        if any(value != values[0] for value in values):
            raise ValueError(f"state: the old ranks differ in {key}: {values}")
    for what in KEPT:
        first = {name: tuple(tensor.shape) for name, tensor in states[0][what].items()}
        for state in states:
            other = {name: tuple(tensor.shape) for name, tensor in state[what].items()}
            differ = sorted(name for name in first.keys() | other.keys() if first.get(name) != other.get(name))
            if differ:
                raise ValueError(f"state: {what}: rank {state['rank']} has other tensors than rank 0: {', '.join(differ[:5])}")


def _merged(states: Sequence[State], rank: int, world: int) -> State:
    """What old ranks owe to the mean, at the new rank that takes it over."""
    merged = dict(states[rank % len(states)])
    for what in KEPT:
        total = {name: torch.zeros_like(tensor) for name, tensor in states[0][what].items()}
        for old in range(rank, len(states), world):
            for name, tensor in states[old][what].items():
                total[name] += tensor * (world / len(states))
        merged[what] = total
    groups = [{(group["codec"], *group["names"]): group["arrays"] for group in state["groups"]} for state in states]
    merged["groups"] = [_with_shared_arrays(group, groups) for group in merged["groups"]]
    return merged


def _with_shared_arrays(group: State, all_ranks: Sequence[Mapping[tuple[str, ...], State]]) -> State:
    """A group, with arrays only if all old ranks have the same: those of one rank say nothing of what another one sent."""
    arrays, key = group["arrays"], (group["codec"], *group["names"])
    found = [groups.get(key, {}) for groups in all_ranks]
    are_shared = all(
        one.keys() == arrays.keys() and all(torch.equal(array, arrays[name]) for name, array in one.items()) for one in found
    )
    return {**group, "arrays": arrays if are_shared else {}}
