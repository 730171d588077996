"""A bucket of gradients as the engine takes it: addresses of tensors, and what is to be done with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gradwire._core import _Share

from ._plan import CPU, Part, Slot, is_plain

Gradients = list[torch.Tensor | None]


@dataclass
class Bucket:
    """What the calling thread hands over: gradients, to be replaced by their means in place."""

    index: int
    is_last: bool
    #: Whether this rank has run out of inputs in DDP's `join`. Its gradients are then zeros, made up so that it takes part in
    #: the exchange, and it makes no steps, so its parameters are old.
    is_idle: bool = False
    #: The tensors, by their positions in the model, and their gradients. `None` stands for a tensor that this rank did not use;
    #: it is replaced if another rank used the tensor.
    positions: tuple[int, ...] = ()
    gradients: Gradients = field(default_factory=list)
    #: Gradients that are not there but where backward made them, by their places in the bucket.
    taken: dict[int, torch.Tensor] = field(default_factory=dict)
    #: Called once the gradients are means, or the exchange has failed.
    done: Callable[[], None] = lambda: None
    #: Marks of the stage, set where the gradients were made; and the gradients in memory of the CPU, if that is other memory.
    marks: list[Any] = field(default_factory=list)
    host: Gradients = field(default_factory=list)
    #: Whether the next bucket of this number has the same list of gradients, where they are now.
    stays: bool = False
    lent: Lent | None = None
    #: A bit for each tensor that any rank used.
    used: bytes = b""
    scale: float | None = None
    lr: float | None = None
    density: float | None = None
    failure: BaseException | None = None
    #: Called by the thread of the engine: before it reads gradients, and after it has written means.
    on_encode: Callable[[Bucket], None] | None = None
    on_decode: Callable[[Bucket], None] | None = None

    def describe(self, parts: Sequence[Part], known: Lent | None) -> Lent:
        """Where the gradients in memory of the CPU are, looked at again only where they have moved."""
        if known is None or known.host is not self.host or known.parts is not parts:
            known = Lent(parts, self.host)
        self.lent = known
        return known

    def fill_absent(self, is_used: Callable[[int], bool]) -> None:
        """Puts means in the place of gradients that only other ranks have."""
        for place, (slot, mean) in (self.lent.absent if self.lent else {}).items():
            if is_used(slot.tensor.position):
                self.gradients[place] = mean.view(tuple(slot.tensor.parameter.shape))


class Lent:
    """The gradients of a bucket, share by share."""

    def __init__(self, parts: Sequence[Part], host: Gradients) -> None:
        """Of these gradients, as long as they stay where they are."""
        self.parts, self.host = parts, host
        #: Gradients of other types, or not contiguous, with the memory in which codecs see them.
        self.copied: list[tuple[torch.Tensor, torch.Tensor]] = []
        #: Tensors that this rank did not use, by their places in the bucket, with the memory for their means.
        self.absent: dict[int, tuple[Slot, torch.Tensor]] = {}
        self._numbers: dict[int, tuple[int, int]] = {}
        self.shares = [self._share(number, part) for number, part in enumerate(parts)]

    def _share(self, number: int, part: Part) -> _Share:
        tensors = []
        for at, (slot, place) in enumerate(zip(part.slots, part.places, strict=True)):
            unit, _, size, _ = slot.unit
            gradient = self.host[place]
            if gradient is None:
                mean = torch.empty(size, dtype=torch.float32, device=CPU)
                self.absent[place] = slot, mean
                tensors.append((unit, size, 0, mean.data_ptr()))
                continue
            if is_plain(gradient):
                self._numbers[place] = number, at
                seen = gradient
            else:
                seen = torch.empty(size, dtype=torch.float32, device=CPU)
                self.copied.append((gradient, seen))
            tensors.append((unit, size, seen.data_ptr(), seen.data_ptr()))
        return _Share(part.group.lane, tensors)

    def elsewhere(self, taken: Mapping[int, torch.Tensor]) -> list[tuple[int, int, int]]:
        """Of the gradients, those that are elsewhere: share, place in it, and address."""
        return [(*self._numbers[place], one.data_ptr()) for place, one in taken.items() if place in self._numbers]

    def copy_in(self) -> None:
        """Copies gradients that are not plain to where codecs read them."""
        for gradient, seen in self.copied:
            seen.view(gradient.shape).copy_(gradient)

    def copy_out(self) -> None:
        """Copies means to gradients that are not plain."""
        for gradient, seen in self.copied:
            gradient.copy_(seen.view(gradient.shape))
