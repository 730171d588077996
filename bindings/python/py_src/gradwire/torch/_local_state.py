"""What a rank of local steps saves, and how it continues from that with the same bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from ._agreement import Agreement
from ._options import type_error, whole

if TYPE_CHECKING:
    from ._local import LocalSteps

State = Mapping[str, Any]


@dataclass
class Pending:
    """An exchange that is under way: of which fragment, or of all tensors, and after how many steps it began."""

    fragment: int | None
    begun: int
    #: Where the steps had led when it began, of parameters that more steps move meanwhile.
    ends: dict[str, torch.Tensor]
    #: Of sites.
    agreement: Agreement | None = None


def saved(steps: LocalSteps) -> dict[str, Any]:
    """The state of a rank, which waits for the exchange that is under way."""
    pending = steps._pending
    if pending is not None:
        steps._outer.synchronize()
    return {
        "inner": steps._inner.state_dict(),
        "outer": steps._outer.state_dict(),
        "kept": {name: start.detach().clone() for name, (start, _) in steps._kept.items()},
        "taken": steps._taken,
        "pending": None if pending is None else _saved_pending(steps, pending),
    }


def _saved_pending(steps: LocalSteps, pending: Pending) -> dict[str, Any]:
    means = {name: steps._kept[name][0].grad for name in steps._names_of(pending.fragment)}
    return {
        "fragment": pending.fragment,
        "begun": pending.begun,
        "ends": {name: end.clone() for name, end in pending.ends.items()},
        "means": {name: mean.clone() for name, mean in means.items() if mean is not None},
    }


def is_state(state: object) -> TypeGuard[State]:
    """Whether it looks like a state of local steps."""
    return isinstance(state, Mapping) and state.keys() >= {"inner", "outer", "kept", "taken"}


def load(steps: LocalSteps, given: State | Sequence[State]) -> None:
    """Continues from a state, or from those of all old ranks. An exception changes nothing."""
    states = [given] if isinstance(given, Mapping) else given
    if not isinstance(states, list | tuple) or not states or not all(is_state(state) for state in states):
        raise type_error("state", given, "what state_dict() returned, or a list of the states of all old ranks")
    state = states[steps.exchange._worker.rank % len(states)]
    if len(states) > 1 and any(one["taken"] for one in states):
        raise ValueError("state: saved between two exchanges; to change the number of ranks, save right after one")
    check_kept(steps, state["kept"])
    # States of before have none.
    pending = state.get("pending")
    if pending is not None:
        _check_pending(steps, pending)
    taken = whole("state: taken", state["taken"])
    if steps._pending is not None:
        steps._outer.synchronize()
    before = steps._inner.state_dict()
    steps._inner.load_state_dict(state["inner"])
    try:
        steps._outer.load_state_dict(states[0]["outer"] if len(states) == 1 else [one["outer"] for one in states])
    except BaseException:
        steps._inner.load_state_dict(before)
        raise
    steps._taken = taken
    # The one that is under way is among the steps of the codecs, and was not gone to.
    steps._exchanges = steps._outer.exchange.step - (pending is not None)
    steps._forget_pending()
    with torch.no_grad():
        for name, (start, _) in steps._kept.items():
            start.copy_(state["kept"][name])
    if pending is not None:
        _load_pending(steps, pending)


def _load_pending(steps: LocalSteps, pending: State) -> None:
    ends = {name: end.to(steps._kept[name][1].device) for name, end in pending["ends"].items()}
    steps._pending = Pending(pending["fragment"], pending["begun"], ends)
    steps._outer._is_exchanged = True
    for name, mean in pending["means"].items():
        start = steps._kept[name][0]
        start.grad = mean.to(start.device, copy=True)


def check_kept(steps: LocalSteps, kept: Mapping[str, torch.Tensor]) -> None:
    """Raises if a state has other kept parameters than this rank."""
    lacks, strange = sorted(steps._kept.keys() - kept.keys()), sorted(kept.keys() - steps._kept.keys())
    if lacks or strange:
        what = f"it lacks {lacks[0]}" if lacks else f"it has {strange[0]}, which is not exchanged here"
        own = "" if steps._within is None else ": each process of a site loads what it saved itself"
        raise ValueError(f"state: {what}{own}")
    _check_shapes(steps, kept)


def _check_pending(steps: LocalSteps, pending: State) -> None:
    own = dict(enumerate(steps._names)).get(pending["fragment"], ())
    if not pending["means"].keys() == pending["ends"].keys() == set(own):
        raise ValueError(
            "state: saved during the exchange of a fragment that this one does not have; make it with as many fragments"
        )
    _check_shapes(steps, pending["means"])
    _check_shapes(steps, pending["ends"])


def _check_shapes(steps: LocalSteps, tensors: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        expected, given = tuple(steps._kept[name][0].shape), tuple(tensor.shape)
        if given != expected:
            raise ValueError(f"state: {name}: expected the shape {expected}, got {given}")
