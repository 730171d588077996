"""What the lanes of the engine keep, as a state that users save and load."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch

from gradwire import Memory
from gradwire._core import _Engine

from ._auto import Auto
from ._plan import Plan
from ._state import KEPT, VERSION, State, for_this_rank, memory_from, of_group


@dataclass(frozen=True)
class Loaded:
    """A state that was checked, and what becomes of it here."""

    state: State
    #: By lane.
    memories: list[tuple[int, Memory]]
    #: What is kept for tensors that are not sent here.
    apart: dict[str, dict[str, torch.Tensor]]

    def warn(self) -> None:
        """Says what is kept and not sent."""
        for name, tensor in self.apart["residual"].items():
            if norm := float(tensor.norm()):
                text = f"state: {name} is not sent here; what was kept for it, of norm {norm:.3g}, stays"
                warnings.warn(text, stacklevel=4)


class Keep:
    """The memories of the groups that have one, and what is kept for tensors that have none here."""

    def __init__(
        self, core: _Engine, plan: Plan, codec: str, seed: int, rank: int, world: int, auto: Auto | None = None
    ) -> None:
        """Nothing is kept yet."""
        self._core, self._codec, self._seed = core, codec, seed
        self._rank, self._world, self._auto = rank, world, auto
        self._groups = [group for group in plan.groups if group.keeps]
        self._apart: dict[str, dict[str, torch.Tensor]] = {what: {} for what in KEPT}

    def state(self, epoch: int | None) -> dict[str, Any]:
        """As it was after the last step that holds."""
        # Who chooses dense gradients keeps nothing.
        groups = self._groups if self._auto is None or self._auto.owes else []
        memories = [(group.lane, group.new_memory()) for group in groups]
        apart = self._apart
        step, scale, lr, _, _ = self._core.read(memories)
        kept = [of_group(group, memory) for group, (_, memory) in zip(groups, memories, strict=True)]
        both = {what: dict(apart[what]) for what in KEPT}
        for state in kept:
            for what in KEPT:
                both[what] |= state.pop(what)
        return {
            "version": VERSION,
            "codec": self._codec,
            "rank": self._rank,
            "world": self._world,
            "seed": self._seed,
            "step": step,
            "epoch": epoch,
            "scale": scale,
            "lr": lr,
            **both,
            "groups": kept,
            **({} if self._auto is None else {"auto": self._auto.state()}),
        }

    def residual(self, name: str) -> torch.Tensor:
        """A copy of the residual of one tensor."""
        for group in self._groups:
            if name in group.names:
                memory = group.new_memory()
                self._core.read([(group.lane, memory)])
                return torch.from_numpy(memory.tensor(name).copy())
        raise KeyError(f"{name!r}: nothing is kept for a tensor of this name; see the keys of state_dict()['residual']")

    def read(self, given: object) -> Loaded:
        """All that there is to check of a state."""
        state = for_this_rank(given, self._rank, self._world)
        if state["seed"] != self._seed:
            raise ValueError(f"state: seed {state['seed']}: expected {self._seed}, as it was passed to compress")
        if self._auto is not None:
            self._auto.number_in(state)
        memories, taken = [], set()
        for group in self._groups:
            memory, names = memory_from(group, state)
            memories.append((group.lane, memory))
            taken.update(names)
        apart = {what: {name: one.clone() for name, one in state[what].items() if name not in taken} for what in KEPT}
        return Loaded(state, memories, apart)

    def take(self, loaded: Loaded) -> None:
        """Goes on from there."""
        state, self._apart = loaded.state, loaded.apart
        self._core.load(loaded.memories, state["step"], state["scale"], state["lr"])
        if self._auto is not None:
            self._auto.take(state)
