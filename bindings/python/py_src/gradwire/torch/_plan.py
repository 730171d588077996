"""Which tensor is sent how: rules by name, groups of tensors with one codec, what is kept for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

import torch
from torch.utils._pytree import tree_map

from gradwire import Codec, Layout, Memory

Unit: TypeAlias = tuple[int, int, int, bool]
Kind: TypeAlias = Literal["frames", "rounds", "sum"]
# What `torch.compile` puts into the names of parameters.
_COMPILED = "_orig_mod."
#: Where tensors of this package are made, whatever torch.set_default_device says. Types are said everywhere, too.
CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Named:
    """A parameter that is trained: its plain name, and its position among all parameters of the model."""

    name: str
    position: int
    parameter: torch.nn.Parameter

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that codecs see: a number is a tensor of one element."""
        return tuple(self.parameter.shape) or (1,)


@dataclass(frozen=True, eq=False)
class Slot:
    """Where a tensor stands in the layout of its group: the unit that it is."""

    tensor: Named
    unit: Unit


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
            "leave clip out, or pass clip_norm="
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
    """Tensors that are sent with one codec. The engine has a lane for them, with what is kept for them."""

    def __init__(self, codec: Codec, tensors: Sequence[Named], lane: int) -> None:
        """With the number of the lane."""
        self.codec = codec
        self.lane = lane
        self.kind: Kind = "sum" if codec.name == "none" else "rounds" if codec.is_linear else "frames"
        self.layout = Layout([(tensor.name, tensor.shape) for tensor in tensors])
        units = {unit[1]: unit for unit in codec.units(self.layout)}
        self.slots: list[Slot] = []
        start = 0
        for tensor in tensors:
            size = tensor.parameter.numel()
            dense = units[start][3] if start in units and len(units) == len(tensors) else False
            self.slots.append(Slot(tensor, (tensor.position, start, size, dense)))
            start += size
        self.units = [slot.unit for slot in self.slots]
        self.keeps = self.kind != "sum" and codec.memory != "none"

    @property
    def names(self) -> list[str]:
        """The names of its tensors, in the order of the model."""
        return [slot.tensor.name for slot in self.slots]

    def new_memory(self) -> Memory:
        """A memory that holds nothing."""
        return Memory(self.codec, self.layout, units=self.units)


@dataclass
class Part:
    """The tensors of one group that stand in one bucket."""

    group: Group
    slots: list[Slot] = field(default_factory=list)
    # Of each slot, where its gradient stands among those of the bucket.
    places: list[int] = field(default_factory=list)


class Plan:
    """The groups of a model, and their parts in each bucket that was seen."""

    def __init__(
        self,
        tensors: Sequence[Named],
        spelling: str,
        rules: Mapping[str, str],
        dense_below: int,
        first_lane: int = 0,
    ) -> None:
        """Sorts tensors into groups: the first rule whose pattern fits a name says how it is sent."""
        sorted_out: dict[str, tuple[Codec, list[Named]]] = {}
        default = codec_of(spelling, dense_below)
        ruled = {pattern: _ruled(pattern, rule, dense_below) for pattern, rule in rules.items()}
        for tensor in tensors:
            pattern = first_to_fit(tensor.name, rules)
            codec = default if pattern is None else ruled[pattern]
            sorted_out.setdefault(str(codec), (codec, []))[1].append(tensor)
        needed([tensor.name for tensor in tensors], rules)
        sets = enumerate(sorted_out.values(), first_lane)
        self.groups = [Group(codec, members, lane) for lane, (codec, members) in sets]
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
        self._parts[positions] = parts
        return parts


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
        if is_split(parameter):
            raise ValueError(f"{name}: it is split over processes; DistributedOptimizer and LocalSteps take such, not DDP")
        _check_device(name, parameter.device, allow_untested)
        if named and parameter.device != named[0].parameter.device:
            first = named[0]
            raise ValueError(
                f"{name}: it is on {parameter.device}, {first.name} on {first.parameter.device}; expected one device"
            )
        if parameter.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise ValueError(f"{name}: expected float32, float16 or bfloat16, got {parameter.dtype}")
        if parameter.numel():
            named.append(Named(plain(name), position, parameter))
    if not named:
        raise ValueError("the model has no parameter that is trained")
    return named


def _check_device(name: str, device: torch.device, allow_untested: bool) -> None:
    if device.type == "cpu" or (device.type == "cuda" and allow_untested):
        return
    if device.type == "cuda":
        raise ValueError(
            f"{name}: it is on {device}, where not all tests pass yet: pass allow_untested=True to try it, "
            "or move the model to the CPU"
        )
    raise ValueError(f"{name}: it is on {device}; expected the CPU (or CUDA, with allow_untested=True)")


def first_to_fit(name: str, rules: Iterable[str]) -> str | None:
    """The pattern by which a tensor of this name is sent."""
    return next((pattern for pattern in rules if fnmatchcase(name, plain(pattern))), None)


def needed(names: Iterable[str], rules: Iterable[str]) -> set[str]:
    """The patterns by which tensors of these names are sent. None may be idle."""
    found = {pattern for name in names if (pattern := first_to_fit(name, rules)) is not None}
    for pattern in rules:
        if pattern not in found:
            raise ValueError(f"rules: '{pattern}' is the first to fit no parameter that is trained")
    return found


def uncompiled(model: torch.nn.Module) -> torch.nn.Module:
    """The model that `torch.compile` was given."""
    found: torch.nn.Module = getattr(model, "_orig_mod", model)
    return found


def plain(name: str) -> str:
    """The name of a parameter as it is where nothing is compiled."""
    return name.replace(_COMPILED, "")


def is_split(tensor: torch.Tensor) -> bool:
    """Whether processes have a shard of it each: a DTensor, wherever a version of torch keeps that class."""
    return hasattr(tensor, "to_local")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this process has of it, in the same memory."""
    to_local: Callable[[], torch.Tensor] | None = getattr(tensor, "to_local", None)
    return (tensor if to_local is None else to_local()).detach()


def on_cpu(tree: Any) -> Any:
    """A tree of dictionaries and lists whose tensors are on the CPU: others may have other devices."""
    return tree_map(lambda one: one.cpu() if isinstance(one, torch.Tensor) else one, tree)


def is_plain(gradient: torch.Tensor) -> bool:
    """Whether codecs may read and write it where it is."""
    return bool(gradient.dtype == torch.float32 and gradient.is_contiguous())


def bytes_of(tensor: torch.Tensor) -> Any:
    """The bytes of a tensor, without a copy where it is contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
