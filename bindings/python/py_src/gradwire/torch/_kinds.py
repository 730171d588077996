"""What kind of optimizer a user has."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def is_sgd(optimizer: object) -> bool:
    """Whether it is plain SGD, with momentum or without, also where another object wraps it."""
    return any(isinstance(one, torch.optim.SGD) for one in wrapped(optimizer))


def wrapped(optimizer: object) -> Iterator[object]:
    """It, and the optimizers that it wraps, from the outside."""
    inner: object | None = optimizer
    while inner is not None:
        yield inner
        found = (getattr(inner, name, None) for name in ("optimizer", "optim"))
        inner = next((one for one in found if isinstance(one, torch.optim.Optimizer) and one is not inner), None)
