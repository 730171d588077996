"""What the user may ask for, checked when it is given: a message names the option, its value and what is allowed."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

import torch

LARGEST_SEED = 2**64 - 1
#: A step is a word of a header.
LARGEST_STEP = 2**63 - 1
# Thirty years.
_LONGEST_SECONDS = 1e9
_LEAST_DENSITY = 1e-9
#: In place of the spelling of a codec: the hook chooses one.
AUTO = "auto"
_MOST_THREADS = 256
# Encoding mostly reads memory. More threads than these were not measured.
_ENOUGH_THREADS = 4


class Scaler(Protocol):
    """What is used of a ``GradScaler``."""

    def get_scale(self) -> float:
        """The scale of the gradients of the next backward."""


@dataclass(frozen=True)
class Options:
    """What the user asked for; see :func:`gradwire.torch.compress`."""

    codec: str
    rules: Mapping[str, str] | None
    dense_below: int
    seed: int
    timeout: float
    start_step: int
    check_every: int
    scaler: Scaler | None
    #: The optimizer whose learning rate is followed.
    optimizer: torch.optim.Optimizer | None
    density: Callable[[int], float] | None
    allow_untested: bool = False
    #: Whether codecs that change their memory in place keep what it held before each step.
    discardable: bool = False
    #: The interface or address by which ranks reach each other, and whether what they send is encrypted.
    network: str | None = None
    encrypt: bool | None = None
    #: How the payloads of linear codecs travel.
    wire: str = "f32"
    #: The largest norm of a gradient, over all ranks.
    clip_norm: float | None = None
    #: The threads that encode; `None` for as many as the machine has cores to spare.
    threads: int | None = None

    def __post_init__(self) -> None:
        """Refuses what is not allowed. What codecs and rules say is checked where it is parsed."""
        spelling("codec", self.codec)
        if self.rules is not None and not isinstance(self.rules, Mapping):
            raise type_error("rules", self.rules, "a dict of patterns and spellings, as {'*.bias': 'none'}")
        for pattern, rule in (self.rules or {}).items():
            spelling("rules: a pattern", pattern, "a name, which may hold * and ?")
            spelling(f"rules: {pattern!r}", rule)
        if self.codec == AUTO:
            self._check_auto()
        numbers = {
            "dense_below": whole("dense_below", self.dense_below),
            "seed": whole("seed", self.seed, most=LARGEST_SEED),
            "start_step": whole("start_step", self.start_step),
            "check_every": whole("check_every", self.check_every),
            "timeout": real("timeout", self.timeout, _is_patience, "seconds, more than 0 and at most 1e9"),
        }
        for option, value in numbers.items():
            # From here on they are numbers of Python.
            object.__setattr__(self, option, value)
        if self.scaler is not None and not callable(getattr(self.scaler, "get_scale", None)):
            raise type_error("scaler", self.scaler, "a GradScaler, or another object with get_scale()")
        if self.optimizer is not None and not _has_rate(self.optimizer):
            raise type_error("optimizer", self.optimizer, "an optimizer whose param_groups[0] has an lr")
        if self.density is not None and (not callable(self.density) or isinstance(self.density, type)):
            raise type_error("density", self.density, "a function of the step; a fixed density stands in the codec's spelling")
        flag("allow_untested", self.allow_untested)
        flag("discardable", self.discardable)
        if self.network is not None:
            spelling("network", self.network, "the name of an interface or an address")
        if self.encrypt is not None:
            flag("encrypt", self.encrypt)
        if self.wire not in ("f32", "bf16"):
            raise ValueError(f"wire={self.wire!r}: expected 'f32' or 'bf16'")
        if self.threads is not None:
            object.__setattr__(self, "threads", whole("threads", self.threads, least=1, most=_MOST_THREADS))
        if self.clip_norm is not None:
            most = real("clip_norm", self.clip_norm, lambda value: 0 < value < math.inf, "a finite number above 0")
            object.__setattr__(self, "clip_norm", most)

    def _check_auto(self) -> None:
        if self.optimizer is None:
            raise ValueError("codec='auto': it needs optimizer=, whose kind says which codecs go with it")
        others = {"rules": self.rules, "density": self.density, "clip_norm": self.clip_norm}
        given = [option for option, value in others.items() if value is not None]
        if self.wire != "f32":
            given.append("wire")
        if given:
            raise ValueError(f"codec='auto': {given[0]}= does not go with it: leave it out, or name a codec")

    def density_at(self, step: int) -> float | None:
        """What the user's function says, if there is one."""
        if self.density is None:
            return None
        given = self.density(step)
        return real(
            f"density({step})", given, lambda value: _LEAST_DENSITY <= value <= 1, f"a fraction from {_LEAST_DENSITY:g} to 1"
        )


def own_threads(device: torch.device) -> int:
    """The cores that are left to this rank of its host, if its own threads compute on the others; at least 1, at most 4.

    ``torchrun`` says how many ranks share the host.
    """
    try:
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    except ValueError:
        ranks = 1
    computing = torch.get_num_threads() if device.type == "cpu" else 1
    return max(1, min(_ENOUGH_THREADS, len(os.sched_getaffinity(0)) // max(ranks, 1) - computing))


def spelling(option: str, value: object, expected: str = "the spelling of a codec, as 'topk:density=0.01'") -> None:
    """Refuses what is no text."""
    if not isinstance(value, str):
        raise type_error(option, value, expected)


def flag(option: str, value: object) -> None:
    """Refuses what is neither True nor False."""
    if not isinstance(value, bool):
        raise type_error(option, value, "True or False")


def whole(option: str, value: object, least: int = 0, most: int = LARGEST_STEP) -> int:
    """A whole number in a range."""
    try:
        found = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        found = None
    if found is None or isinstance(value, bool):
        raise type_error(option, value, f"a whole number, {least} or more")
    if found < least:
        raise ValueError(f"{option}={value}: expected {least} or more")
    if found > most:
        raise ValueError(f"{option}={value}: expected at most {most}")
    return found


def real(option: str, value: object, is_allowed: Callable[[float], bool], expected: str) -> float:
    """A number that is allowed, or a tensor of one."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise type_error(option, value, expected)
    found = float(value)
    if math.isnan(found) or not is_allowed(found):
        raise ValueError(f"{option}={value}: expected {expected}")
    return found


def type_error(option: str, value: object, expected: str) -> TypeError:
    """What is raised where something of another type is expected."""
    text = repr(value)
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return TypeError(f"{option}={shown}: expected {expected}, got {type(value).__name__}")


def _is_patience(seconds: float) -> bool:
    return 0 < seconds <= _LONGEST_SECONDS


def _has_rate(optimizer: Any) -> bool:
    try:
        float(optimizer.param_groups[0]["lr"])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return False
    return True
