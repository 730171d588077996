"""Which tensor is sent how: rules by name, groups of tensors with one codec, what is kept for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire import Codec, Layout, Memory
from gradwire._core import _carry_over

Unit: TypeAlias = tuple[int, int, int, bool]
Kind: TypeAlias = Literal["frames", "rounds", "sum"]
#: Where tensors of this package are made, whatever torch.set_default_device says. Types are said everywhere, too.
CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Named:
    """A parameter that is trained: its name, and its position among all parameters of the model."""

    name: str
    position: int
    parameter: torch.nn.Parameter

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that codecs see: a number is a tensor of one element."""
        return tuple(self.parameter.shape) or (1,)


@dataclass(frozen=True, eq=False)
class Slot:
    """Where a tensor stands in the flat gradient of its group, and the unit that it is."""

    tensor: Named
    unit: Unit
    #: Its elements in the flat gradient, twice over the same memory.
    flat: torch.Tensor
    array: NDArray[np.float32]

    @property
    def range(self) -> slice:
        """Its elements in the flat gradient."""
        return slice(self.unit[1], self.unit[1] + self.unit[2])


def codec_of(spelling: str, dense_below: int) -> Codec:
    """The codec, with a unit for each tensor and small tensors dense, unless its spelling says how small."""
    codec = Codec(spelling)
    if codec.kind == "gossip":
        raise ValueError(f"{spelling}: it mixes models of neighbours, which is not what DDP does")
    if codec.max_packet_bytes is not None:
        raise ValueError(f"{spelling}: max_packet_bytes: frames are not cut into packets here")
    # The name of a codec of one's own begins with `x:`.
    _, colon, pairs = spelling.removeprefix("x:").partition(":")
    keys = {part.split("=")[0] for part in pairs.split(",") if part}
    if "clip" in keys:
        raise ValueError(
            f"{spelling}: clip: it bounds the norm of a rank's whole gradient, which is not known when the first part is sent; "
            "leave clip out"
        )
    if "unit=model" in pairs.split(","):
        raise ValueError(f"{spelling}: unit=model: DDP cuts the model into buckets; expected unit=tensor")
    wanted = [] if "unit" in keys else ["unit=tensor"]
    if not keys & {"dense_below", "dense_1d"}:
        wanted.append(f"dense_below={dense_below}")
    separator = "," if colon else ":"
    try:
        return Codec(spelling + separator + ",".join(wanted)) if wanted else codec
    except ValueError:
        return codec  # it has no units: none, f16, bf16


def _ruled(pattern: str, spelling: str, dense_below: int) -> Codec:
    try:
        return codec_of(spelling, dense_below)
    except ValueError as error:
        raise ValueError(f"rules: '{pattern}': {error}") from None


class Group:
    """Tensors that are sent with one codec: their flat gradient, and what is kept for them."""

    def __init__(self, codec: Codec, tensors: Sequence[Named], *, discardable: bool = False) -> None:
        """Begins with nothing kept."""
        self.codec = codec
        self._is_copied_late = discardable
        self.kind: Kind = "sum" if codec.name == "none" else "rounds" if codec.is_linear else "frames"
        self.layout = Layout([(tensor.name, tensor.shape) for tensor in tensors])
        units = {unit[1]: unit for unit in codec.units(self.layout)}
        self.slots: list[Slot] = []
        self.flat = torch.zeros(sum(tensor.parameter.numel() for tensor in tensors), dtype=torch.float32, device=CPU)
        self.array: NDArray[np.float32] = self.flat.numpy()
        start = 0
        for tensor in tensors:
            size = tensor.parameter.numel()
            dense = units[start][3] if start in units and len(units) == len(tensors) else False
            flat = self.flat[start : start + size]
            self.slots.append(Slot(tensor, (tensor.position, start, size, dense), flat, flat.numpy()))
            start += size
        self.units = [slot.unit for slot in self.slots]
        keeps = self.kind != "sum" and codec.memory != "none"
        self.memory = Memory(codec, self.layout, units=self.units) if keeps else None
        self.before = Memory(codec, self.layout, units=self.units) if keeps else None
        #: Whether a step writes its residual to a memory of its own, and leaves the memory that it began with as it was. With
        #: error feedback it can: a frame is that of gradient + residual, in whichever memory either of them stands.
        self.is_beside = self.kind == "frames" and codec.memory == "ef"
        # Whether a step is under way: `before` holds what was kept when it began, until it holds or is undone.
        self._is_open = False
        # Otherwise: whether both memories hold the same.
        self._is_kept = True
        # In a step under way that writes beside: the units, by number, that it has not written yet.
        self._numbers = frozenset(unit[0] for unit in self.units)
        self._left: frozenset[int] = frozenset()

    @property
    def names(self) -> list[str]:
        """The names of its tensors, in the order of the model."""
        return [slot.tensor.name for slot in self.slots]

    @property
    def kept(self) -> Memory | None:
        """What is kept after the last step that holds, also while another one is under way."""
        return self.before if self._is_open else self.memory

    def begin_step(self) -> None:
        """From here on the memory changes. What it held stays in `before`, for a step that comes to nothing."""
        self._is_open = True
        if self.is_beside:
            self.memory, self.before = self.before, self.memory
            self._left = self._numbers
        else:
            self._copy()
            self._is_kept = False

    def wrote(self, numbers: frozenset[int]) -> None:
        """The step under way has written the units with these numbers to a memory beside."""
        self._left -= numbers

    def end_step(self) -> None:
        """The step holds: what it did not write stays as it was. Beside the forward pass, as this may copy."""
        if self.is_beside and self._left and self.memory is not None and self.before is not None:
            left = [unit for unit in self.units if unit[0] in self._left]
            _carry_over(self.codec, self.before, self.memory, left)
            self._left = frozenset()
        elif not self.is_beside and not self._is_copied_late:
            self._copy()
        self._is_open = False

    @property
    def is_discardable(self) -> bool:
        """Whether what was kept before the last step is still there."""
        return self.memory is None or self.is_beside or self._is_copied_late

    def undo_step(self) -> None:
        """Returns to what the memory held when the step began."""
        self.memory, self.before = self.before, self.memory
        self._is_open = False
        self._left = frozenset()
        self._is_kept = False
        if self.is_beside and self.before is not None:
            # It may hold a gradient that is not finite.
            self.before.clear()

    def _copy(self) -> None:
        if self.memory is not None and self.before is not None and not self._is_kept:
            self.before.copy_from(self.memory)
            self._is_kept = True

    def rescale(self, ratio: float) -> None:
        """Multiplies what is kept back."""
        if self.memory is not None:
            self.memory.rescale(ratio)
            self._is_kept = False

    def replace(self, memory: Memory) -> None:
        """Goes on with another memory."""
        self.memory = memory
        self._is_kept = False


@dataclass
class Part:
    """The tensors of one group that stand in one bucket."""

    group: Group
    slots: list[Slot] = field(default_factory=list)
    # Of each slot, where its gradient stands among those of the bucket.
    places: list[int] = field(default_factory=list)
    runs: list[slice] = field(default_factory=list)

    def find_runs(self) -> None:
        """Joins neighbours to ranges of the flat gradient."""
        self.runs = []
        for slot in self.slots:
            if self.runs and self.runs[-1].stop == slot.range.start:
                self.runs[-1] = slice(self.runs[-1].start, slot.range.stop)
            else:
                self.runs.append(slot.range)


class Plan:
    """The groups of a model, and their parts in each bucket that was seen."""

    def __init__(
        self,
        tensors: Sequence[Named],
        spelling: str,
        rules: Mapping[str, str],
        dense_below: int,
        *,
        discardable: bool = False,
    ) -> None:
        """Sorts tensors into groups: the first rule whose pattern fits a name says how it is sent."""
        matched: set[str] = set()
        sorted_out: dict[str, tuple[Codec, list[Named]]] = {}
        default = codec_of(spelling, dense_below)
        ruled = {pattern: _ruled(pattern, rule, dense_below) for pattern, rule in rules.items()}
        for tensor in tensors:
            pattern = next((pattern for pattern in rules if fnmatchcase(tensor.name, pattern)), None)
            matched.add(pattern or "")
            codec = default if pattern is None else ruled[pattern]
            sorted_out.setdefault(str(codec), (codec, []))[1].append(tensor)
        for pattern in rules:
            if pattern not in matched:
                raise ValueError(f"rules: '{pattern}' is the first to fit no parameter that is trained")
        self.groups = [Group(codec, members, discardable=discardable) for codec, members in sorted_out.values()]
        self._homes = {slot.tensor.position: (group, slot) for group in self.groups for slot in group.slots}
        self._parts: dict[tuple[int, ...], list[Part]] = {}

    def parts(self, positions: tuple[int, ...]) -> list[Part]:
        """A bucket with these tensors, by group."""
        known = self._parts.get(positions)
        if known is not None:
            return known
        by_group: dict[int, Part] = {}
        for place in sorted(range(len(positions)), key=positions.__getitem__):
            group, slot = self._homes[positions[place]]
            part = by_group.setdefault(id(group), Part(group))
            part.slots.append(slot)
            part.places.append(place)
        parts = [by_group[id(group)] for group in self.groups if id(group) in by_group]
        for part in parts:
            part.find_runs()
        self._parts[positions] = parts
        return parts

    def memories(self) -> Iterable[Memory]:
        """What is kept, group by group."""
        return (group.kept for group in self.groups if group.kept is not None)


def tensors_of(ddp: torch.nn.parallel.DistributedDataParallel, *, allow_untested: bool = False) -> list[Named]:
    """The parameters that DDP reduces, with names as the wrapped module has them."""
    module: torch.nn.Module = ddp.module
    ignored: set[str] = set(getattr(ddp, "parameters_to_ignore", ()))
    places = enumerate(module.named_parameters())
    kept = [(position, name, parameter) for position, (name, parameter) in places if name not in ignored]
    lookups = (one for one in module.modules() if isinstance(one, torch.nn.Embedding | torch.nn.EmbeddingBag))
    sparse = {id(one.weight) for one in lookups if one.sparse}
    for _, name, parameter in kept:
        if parameter.requires_grad and id(parameter) in sparse:
            raise ValueError(
                f"{name}: its layer has sparse=True, and sparse gradients are not supported; expected sparse=False"
            )
    return trained(kept, allow_untested=allow_untested)


def trained(places: Iterable[tuple[int, str, torch.nn.Parameter]], *, allow_untested: bool = False) -> list[Named]:
    """Those of the parameters, given with their positions and names, that need a gradient."""
    named: list[Named] = []
    for position, name, parameter in places:
        if not parameter.requires_grad:
            continue
        _check_device(name, parameter.device, allow_untested)
        if named and parameter.device != named[0].parameter.device:
            first = named[0]
            raise ValueError(
                f"{name}: it is on {parameter.device}, {first.name} on {first.parameter.device}; expected one device"
            )
        if parameter.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise ValueError(f"{name}: expected float32, float16 or bfloat16, got {parameter.dtype}")
        if parameter.numel():
            named.append(Named(name, position, parameter))
    if not named:
        raise ValueError("the model has no parameter that is trained")
    return named


def _check_device(name: str, device: torch.device, allow_untested: bool) -> None:
    if device.type == "cpu" or (device.type == "cuda" and allow_untested):
        return
    if device.type == "cuda":
        raise ValueError(
            f"{name}: it is on {device}, where this was never run: pass allow_untested=True to try it, "
            "or move the model to the CPU"
        )
    raise ValueError(f"{name}: it is on {device}; expected the CPU (or CUDA, with allow_untested=True)")


def is_plain(gradient: torch.Tensor) -> bool:
    """Whether codecs may read and write it where it is."""
    return bool(gradient.dtype == torch.float32 and gradient.is_contiguous())


def bytes_of(tensor: torch.Tensor) -> Any:
    """The bytes of a tensor, without a copy where it is contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
