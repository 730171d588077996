"""The gradients of a bucket as codecs see them: looked at once for as long as they stay where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire._core import _Tensors

from ._plan import CPU, Part, Slot, is_plain

Gradients = list[torch.Tensor | None]
Array = NDArray[np.float32]


class Share:
    """The gradients of one part of a bucket."""

    def __init__(self, part: Part, host: Gradients) -> None:
        """Looks at them; nothing is copied."""
        self.part = part
        #: Gradients that codecs read where they are, and are replaced by means there; with their places in the bucket.
        self.plain: list[tuple[Slot, int, Array]] = []
        #: Gradients of other types, or not contiguous, which are copied to the flat gradient of the group, and from `means`.
        self.copied: list[tuple[Slot, torch.Tensor]] = []
        #: Tensors that this rank did not use, and where they stand in the bucket.
        self.absent: list[tuple[Slot, int]] = []
        for slot, place in zip(part.slots, part.places, strict=True):
            gradient = host[place]
            if gradient is None:
                self.absent.append((slot, place))
            elif is_plain(gradient):
                self.plain.append((slot, place, flat_of(gradient)))
            else:
                self.copied.append((slot, gradient))
        #: Of tensors that are not plain.
        self.means: dict[int, torch.Tensor] = {}
        present = [slot for slot, _, _ in self.plain] + [slot for slot, _ in self.copied]
        self.units = frozenset(slot.unit[0] for slot in present)
        self.gradients: _Tensors | None = None
        self._targets: _Tensors | None = None
        if part.group.is_beside and self.units:
            arrays = {slot.unit: array for slot, _, array in self.plain} | {slot.unit: slot.array for slot, _ in self.copied}
            self.gradients = _tensors(arrays)
            numbers = {unit: number for number, unit in enumerate(sorted(arrays))}
            #: The number of each plain tensor among the gradients, by its place in the bucket.
            self._numbers = {place: numbers[slot.unit] for slot, place, _ in self.plain}

    def sources(self, taken: Mapping[int, torch.Tensor]) -> list[tuple[int, Array]]:
        """Of the gradients, those that are elsewhere: their numbers, and where they are."""
        return [(self._numbers[place], flat_of(gradient)) for place, gradient in taken.items() if place in self._numbers]

    def copy_in(self) -> None:
        """Copies gradients that are not plain to where codecs read them."""
        for slot, gradient in self.copied:
            slot.flat.view(gradient.shape).copy_(gradient)

    def copy_out(self) -> None:
        """Copies means to gradients that are not plain."""
        for slot, gradient in self.copied:
            gradient.copy_(self.means[slot.tensor.position].view(gradient.shape))

    def targets(self) -> _Tensors:
        """Where means are written."""
        if self._targets is None:
            made = (*self.copied, *self.absent)
            self.means = {slot.tensor.position: torch.empty(slot.unit[2], dtype=torch.float32, device=CPU) for slot, _ in made}
            if self.means or self.gradients is None:
                arrays = {slot.unit: array for slot, _, array in self.plain}
                for slot, _ in made:
                    arrays[slot.unit] = self.means[slot.tensor.position].numpy()
                self._targets = _tensors(arrays)
            else:
                self._targets = self.gradients
        return self._targets


class Lent:
    """The gradients of a bucket, part by part."""

    def __init__(self, parts: Sequence[Part], host: Gradients) -> None:
        """Of these gradients, as long as they stay where they are."""
        self.parts, self.host = parts, host
        self.shares = [Share(part, host) for part in parts]


def flat_of(gradient: torch.Tensor) -> Array:
    """The elements of a plain gradient, in the same memory."""
    elements: Array = gradient.detach().numpy().reshape(-1)
    return elements


def _tensors(arrays: dict[tuple[int, int, int, bool], Array]) -> _Tensors:
    units = sorted(arrays)
    return _Tensors([arrays[unit] for unit in units], units)
