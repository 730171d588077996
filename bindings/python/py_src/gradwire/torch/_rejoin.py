"""Ranks that go on together after some were lost or others came: whose state holds for all, and what each brings of its own."""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from ._local_state import check_kept, is_state
from ._meet import Meeting
from ._optimizer import _KEY
from ._options import type_error
from ._plan import CPU, local, on_cpu
from ._state import KEPT

if TYPE_CHECKING:
    from ._local import LocalSteps

State = dict[str, Any]
_PIECE_BYTES = 2**24


@dataclass(frozen=True)
class Brought:
    """What a rank tells all others of its state."""

    #: Exchanges that it has seen; -1 without a state.
    exchanges: int
    #: A hash of all that every rank has alike, and one of the arrays that its codecs keep.
    alike: str
    arrays: str
    #: Why its state cannot be used, or nothing.
    fault: str
    #: Whether processes of its site have states of different exchanges, which are left out.
    is_torn: bool


def share(brought: Brought, meeting: Meeting) -> list[Brought]:
    """What all ranks bring. Raises at all of them if that of one cannot be used."""
    every = [Brought(**one) for one in meeting.share("brought", asdict(brought))]
    for rank, one in enumerate(every):
        if one.fault:
            raise ValueError(f"rank {rank}: {one.fault}")
    if any(one.is_torn for one in every) and all(one.exchanges < 0 for one in every):
        raise ValueError("no site has states that all of its processes saved after the same exchange")
    return every


def first(every: Sequence[Brought]) -> int | None:
    """The first rank that has seen the most exchanges; none if no rank has a state."""
    most = max(one.exchanges for one in every)
    return None if most < 0 else next(rank for rank, one in enumerate(every) if one.exchanges == most)


def tell(own: Any, rank: int, to: Sequence[int], meeting: Meeting) -> Any:
    """That object of a rank, at those to whom it is sent; their own at all others. Its rank does not wait for that."""
    present = [rank, *to]
    if not to or meeting.rank not in present:
        return own
    gloo = meeting.gloo(present)
    if meeting.rank == rank:
        sent = pickle.dumps(on_cpu(own))
        threading.Thread(target=_send, args=(gloo, sent, len(to)), name="gradwire-tells").start()
        return own
    size = torch.zeros(1, dtype=torch.int64, device=CPU)
    gloo.recv([size], 0, 0).wait()
    told = torch.empty(int(size), dtype=torch.uint8, device=CPU)
    for piece in _pieces(told):
        gloo.recv([piece], 0, 0).wait()
    return pickle.loads(told.numpy().data)


def _send(gloo: Any, sent: bytes, count: int) -> None:
    """To so many others. One that is lost says so itself, or is missed at the next exchange."""
    told = torch.frombuffer(bytearray(sent), dtype=torch.uint8)
    left = list(range(1, count + 1))
    for piece in (torch.tensor([len(told)], device=CPU), *_pieces(told)):
        left = [one for one in left if _is_sent(gloo, piece, one)]


def _is_sent(gloo: Any, piece: torch.Tensor, to: int) -> bool:
    try:
        gloo.send([piece], to, 0).wait()
    except RuntimeError:
        return False
    return True


def _pieces(told: torch.Tensor) -> list[torch.Tensor]:
    """Views of it, each of which has to arrive within the timeout, however many there are."""
    return [told[start : start + _PIECE_BYTES] for start in range(0, len(told), _PIECE_BYTES)]


def digest(found: Any) -> str:
    """Of a tree of dictionaries, lists, tensors and plain values: all of its names, types, shapes and bits."""
    hashed = hashlib.sha256()

    def update(one: Any) -> None:
        if isinstance(one, Mapping):
            hashed.update(f"{len(one)} names ".encode())
            for name, value in sorted(one.items(), key=lambda item: repr(item[0])):
                hashed.update(f"{name!r}: ".encode())
                update(value)
        elif isinstance(one, list | tuple):
            hashed.update(f"{len(one)} values ".encode())
            for value in one:
                update(value)
        elif isinstance(one, torch.Tensor):
            hashed.update(f"{one.dtype} {tuple(one.shape)} ".encode())
            # Without elements it has no stride by which it could be seen as bytes.
            if one.numel():
                hashed.update(one.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        else:
            hashed.update(f"{one!r} ".encode())

    update(found)
    return hashed.hexdigest()


def common(told: State) -> State:
    """Of what a rank would tell others: all but what it has of its own, and they would not take."""
    if "outer" not in told:
        return told
    kept = {name: value for name, value in told["outer"][_KEY].items() if name != "rank"}
    kept["groups"] = [{name: value for name, value in one.items() if name != "states"} for one in kept["groups"]]
    return {**told, "outer": {**told["outer"], _KEY: kept}}


def arrays(kept: State) -> list[Any]:
    """What the codecs keep under names, of all groups."""
    return [(one["codec"], one["names"], sorted(one.get("arrays", {}).items())) for one in kept["groups"]]


def alike(kept: State) -> State:
    """Of what one rank keeps: all that every rank has alike, and shapes in place of what each has of its own."""
    shapes = {what: {name: tuple(one.shape) for name, one in kept[what].items()} for what in KEPT}
    return {**kept, **shapes}


def composed(told: State, own: State | None, at: tuple[int, int], weight: float, *, has_arrays: bool) -> State:
    """The state with which a rank continues. ``at`` is the rank and the number of ranks.

    It has what all ranks share, and the rank's own residual, times ``weight`` and as much as moves the mean as far as before.
    """
    rank, world = at
    found = {**told, "rank": rank, "world": world}
    factor = 0.0 if own is None else weight * world / own["world"]
    for what in KEPT:
        before: Mapping[str, torch.Tensor] = {} if own is None else own[what]
        found[what] = {
            name: before[name] * factor if name in before and tuple(before[name].shape) == shape else torch.zeros(shape)
            for name, shape in told[what].items()
        }
    states = {} if own is None else {(one["codec"], *one["names"]): one["states"] for one in own["groups"]}
    found["groups"] = [
        {
            **one,
            "states": states.get((one["codec"], *one["names"]), one["states"]),
            "arrays": one["arrays"] if has_arrays else {},
        }
        for one in told["groups"]
    ]
    return found


def check_fits(optimizer: torch.optim.Optimizer, state: State) -> None:
    """Raises what loading the state would raise; the optimizer stays as it is."""
    before = optimizer.state_dict()
    try:
        optimizer.load_state_dict(state)
    finally:
        optimizer.load_state_dict(before)


def usable(steps: LocalSteps, state: object) -> tuple[Mapping[str, Any] | None, str]:
    """A state that a rank brings; or none, and why."""
    try:
        if state is None:
            return None, ""
        if not is_state(state):
            raise type_error("state", state, "what state_dict() returned, or None")
        if state.get("pending") is not None:
            raise ValueError("state: saved during an exchange; save after synchronize()")
        check_kept(steps, state["kept"])
        # Reads it as if it were of this rank, and takes nothing.
        worker, kept = steps.exchange._worker, state["outer"][_KEY]
        steps.exchange._read({**kept, "rank": worker.rank, "world": worker.world})
        check_fits(steps._inner, state["inner"])
        check_fits(steps._outer._inner, {key: value for key, value in state["outer"].items() if key != _KEY})
    except (KeyError, TypeError, ValueError) as error:
        return None, str(error)
    return state, ""


def go_on(steps: LocalSteps, state: Mapping[str, Any] | None, residual_age: int) -> int:
    """Goes on from where the first of the ranks is that has seen the most exchanges. Returns how many."""
    own, fault = usable(steps, state)
    exchanges, is_torn = -1 if own is None else own["outer"][_KEY]["step"], False
    if steps._within is not None:
        is_torn, fault = steps._within.brings(exchanges, fault)
    if is_torn:
        own, exchanges = None, -1
    tells = _told(steps, own)
    of_arrays = "" if own is None else digest(arrays(own["outer"][_KEY]))
    worker = steps.exchange._worker
    meeting = Meeting(worker.place_for("rejoin"), worker.options.timeout, "call rejoin()")
    every = share(Brought(exchanges, digest(common(tells)), of_arrays, fault, is_torn), meeting)
    steps._forget_pending()
    knows = first(every)
    source = every[knows or 0]
    lacking = [other for other, one in enumerate(every) if one.alike != source.alike]
    if lacking and steps._at_sites is not None:
        tells = {**tells, "kept": steps._at_sites.as_sent(tells["kept"])}
    told = tell(tells, knows or 0, lacking, meeting)
    _go_to(steps, told["kept"])
    # Restarted ranks begin their fragments anew; sites are in the midst of theirs.
    steps._taken = 0 if steps._at_sites is None else told["taken"]
    made = steps._exchanges = max(0, source.exchanges)
    if knows is None:
        return 0
    steps._is_new = steps._at_sites is not None and worker.rank in lacking
    weight = max(0.0, 1.0 - (made - exchanges) / residual_age)
    kept = composed(
        told["outer"][_KEY],
        None if own is None else own["outer"][_KEY],
        (worker.rank, len(every)),
        weight,
        has_arrays=len({one.arrays for one in every}) == 1,
    )
    steps._outer.load_state_dict({**told["outer"], _KEY: kept})
    if own is not None:
        steps._inner.load_state_dict(own["inner"])
    return made


def _told(steps: LocalSteps, own: Mapping[str, Any] | None) -> dict[str, Any]:
    """What all ranks have alike, of the rank whose state holds."""
    if own is None:
        return {"kept": {name: start.detach().cpu() for name, (start, _) in steps._kept.items()}, "taken": 0}
    return {"kept": own["kept"], "taken": own["taken"], "outer": {**own["outer"], _KEY: alike(own["outer"][_KEY])}}


def _go_to(steps: LocalSteps, kept: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, (start, parameter) in steps._kept.items():
            start.copy_(kept[name])
            local(parameter).copy_(start)
    if steps._within is not None:
        steps._within.share(None)
