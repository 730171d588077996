"""The outer optimizer of local steps, which moves the parameters of the last exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

Outer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]


def outer_of(outer: str | Outer, kept: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """That of the name, or what the function makes, of the parameters that are kept."""
    make = _BY_NAME.get(outer) if isinstance(outer, str) else outer
    if not callable(make):
        raise ValueError(f"outer={outer!r}: expected 'nesterov', 'average', or a function that makes an optimizer")
    made = make(kept)
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(f"outer: expected an Optimizer of what it was given, got {type(made).__name__}")
    return made


def _nesterov(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


def _average(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


_BY_NAME: dict[str, Outer] = {"nesterov": _nesterov, "average": _average}
