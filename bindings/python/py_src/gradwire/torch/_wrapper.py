"""What optimizers around another one have in common: groups, state and all else are those of the optimizer inside."""

from __future__ import annotations

from typing import Any

import torch


class Wrapper(torch.optim.Optimizer):
    """An optimizer around another one. The base class is not called: what it holds is the wrapped optimizer's."""

    _inner: torch.optim.Optimizer

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused, because what a new group learns would not be exchanged."""
        raise RuntimeError(f"add_param_group: make a new {type(self).__name__} with all parameters, and load its state")

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The parameter groups of the wrapped optimizer."""
        return self._inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of the wrapped optimizer."""
        return self._inner.state

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __getstate__(self) -> dict[str, Any]:  # type: ignore[override]
        raise TypeError(f"a {type(self).__name__} has a thread and cannot be pickled: save its state_dict()")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inner!r})"
