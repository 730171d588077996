"""What kind of optimizer a user has, and which codecs go with it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gradwire import Codec

from ._options import AUTO


def is_sgd(optimizer: object) -> bool:
    """Whether it is plain SGD, with momentum or without, also where another object wraps it."""
    return any(isinstance(one, torch.optim.SGD) for one in _wrapped(optimizer))


def misfit(spelling: str, optimizer: object) -> str | None:
    """What to tell the user if the optimizer trains worse with the codec: that it does, and what goes with it."""
    names = (kind.__name__ for one in _wrapped(optimizer) for kind in type(one).__mro__)
    name = next((name for name in names if "Adam" in name), None)
    if name is None or spelling == AUTO:
        return None
    codec = Codec(spelling)
    if codec.density is None and codec.name != "powersgd":
        return None
    return (
        f"{name} trained worse with sparse and low-rank gradients, as {codec.name} makes them; qsgd:bits=4 goes with it, and "
        "for far fewer bytes gradwire.torch.LocalSteps (docs/optimizers.md)"
    )


def _wrapped(optimizer: object) -> Iterator[object]:
    """It, and the optimizers that it wraps, from the outside."""
    inner: object | None = optimizer
    while inner is not None:
        yield inner
        found = (getattr(inner, name, None) for name in ("optimizer", "optim"))
        inner = next((one for one in found if isinstance(one, torch.optim.Optimizer) and one is not inner), None)
