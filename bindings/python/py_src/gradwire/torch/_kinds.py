"""What kind of optimizer a user has, and which codecs go with it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch

from gradwire import Codec

from ._options import AUTO

#: Codecs that leave little of gradients, beside those that have a density.
_LEAVE_LITTLE = ("threshold", "powersgd", "efsign")


def is_sgd(optimizer: object) -> bool:
    """Whether it is plain SGD, with momentum or without, also where another object wraps it."""
    return any(isinstance(one, torch.optim.SGD) for one in _wrapped(optimizer))


def warn_of_misfit(spelling: str, optimizer: object) -> None:
    """Warns the caller of the function that calls this, if the optimizer trains worse with the codec."""
    if (text := _misfit(spelling, optimizer)) is not None:
        warnings.warn(f"gradwire: {text}", stacklevel=3)


def _misfit(spelling: str, optimizer: object) -> str | None:
    """That it does, and what goes with it."""
    names = (kind.__name__ for one in _wrapped(optimizer) for kind in type(one).__mro__)
    name = next((name for name in names if "Adam" in name), None)
    if name is None or spelling == AUTO:
        return None
    codec = Codec(spelling)
    if codec.density is None and codec.name not in _LEAVE_LITTLE:
        return None
    return (
        f"{name} trained worse with sparse and low-rank gradients and with signs, as {codec.name} makes them; qsgd:bits=4 goes "
        "with it, and for far fewer bytes gradwire.torch.LocalSteps (docs/optimizers.md)"
    )


def _wrapped(optimizer: object) -> Iterator[object]:
    """It, and the optimizers that it wraps, from the outside."""
    inner: object | None = optimizer
    while inner is not None:
        yield inner
        found = (getattr(inner, name, None) for name in ("optimizer", "optim"))
        inner = next((one for one in found if isinstance(one, torch.optim.Optimizer) and one is not inner), None)
