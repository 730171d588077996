"""Several optimizers as one: Muon for matrices and AdamW for all else, for example."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ._wrapper import Wrapper


class Several(Wrapper):
    """Optimizers that step one after the other. Groups are those of all, in their order, so one schedule sets all rates."""

    def __init__(self, inner: Sequence[torch.optim.Optimizer]) -> None:
        """Of which no two have a parameter in common."""
        if not inner:
            raise ValueError("inner: expected one optimizer or more")
        for one in inner:
            if not isinstance(one, torch.optim.Optimizer):
                raise TypeError(f"inner: expected Optimizers, got {type(one).__name__} among them")
        seen: set[int] = set()
        for group in (group for one in inner for group in one.param_groups):
            for parameter in group["params"]:
                if id(parameter) in seen:
                    raise ValueError(f"inner: a parameter of shape {tuple(parameter.shape)} is in two of the optimizers")
                seen.add(id(parameter))
        self._all = list(inner)
        #: Of what is asked for by name, the first has it.
        self._inner = inner[0]

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Those of all."""
        return [group for one in self._all for group in one.param_groups]

    @property
    def state(self) -> Any:  # type: ignore[override]
        """A copy of those of all."""
        return {parameter: state for one in self._all for parameter, state in one.state.items()}

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """A step of each."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for one in self._all:
            one.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Of each."""
        for one in self._all:
            one.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Those of all."""
        return {"all": [one.state_dict() for one in self._all]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:  # type: ignore[override]
        """Each has its own. If one refuses, all are as before."""
        given = state_dict.get("all")
        if not isinstance(given, list | tuple) or len(given) != len(self._all):
            raise ValueError(f"state: expected that of {len(self._all)} optimizers, as they were passed as inner")
        before = self.state_dict()["all"]
        try:
            for one, state in zip(self._all, given, strict=True):
                one.load_state_dict(state)
        except BaseException:
            for one, state in zip(self._all, before, strict=True):
                one.load_state_dict(state)
            raise

    def __repr__(self) -> str:
        return repr(self._all)
