"""Collectives of one process group, all called by one thread, in an order that is the same at all ranks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

import torch
import torch.distributed as dist

# Below, everything goes to everyone, which takes one message time; above, each rank sums a part, which takes fewer bytes.
_ALL_TO_ALL_ABOVE_BYTES = 32 << 10
_PROBE_ELEMENTS = 1 << 19


class Wire:
    """The process group, and the bytes that were handed to it.

    Sums are added in rank order, element by element, so that their bits depend neither on their place in a bucket nor on the
    way that they took.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        """Counts from zero."""
        self.group = group
        self.rank = dist.get_rank(group)
        self.world = dist.get_world_size(group)
        self.sent = 0
        self.received = 0
        # Of all ranks.
        self.total = 0

    def _count(self, sent: int, received: int, total: int) -> None:
        self.sent += sent
        self.total += total
        self.received += received

    def all_gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        """A tensor of the same size from every rank."""
        if self.world == 1:
            return [own]
        outs = [torch.empty_like(own) for _ in range(self.world)]
        dist.all_gather(outs, own, group=self.group)
        travels = own.numel() * own.element_size() * (self.world - 1)
        self._count(travels, travels, travels * self.world)
        return outs

    def gather_bytes(self, own: bytes, sizes: Sequence[int]) -> list[bytes]:
        """As many bytes from each rank as `sizes` says, which all ranks know."""
        if self.world == 1 or not any(sizes):
            return [own if rank == self.rank else b"" for rank in range(self.world)]
        others = self.world - 1
        out_sizes = [0 if rank == self.rank else size for rank, size in enumerate(sizes)]
        in_sizes = [0 if rank == self.rank else len(own) for rank in range(self.world)]
        given = torch.empty(len(own) * others, dtype=torch.uint8)
        if own:
            given.view(others, len(own))[:] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        taken = torch.empty(sum(out_sizes), dtype=torch.uint8)
        dist.all_to_all_single(taken, given, out_sizes, in_sizes, group=self.group)
        self._count(given.numel(), taken.numel(), sum(sizes) * others)
        pieces = split(taken, out_sizes)
        return [own if rank == self.rank else pieces[rank].numpy().tobytes() for rank in range(self.world)]

    def reduce(self, values: torch.Tensor, how: Literal["sum", "max"] = "sum") -> None:
        """Replaces values by their sum or maximum over all ranks."""
        if self.world == 1 or not values.numel():
            return
        if values.numel() * values.element_size() <= _ALL_TO_ALL_ABOVE_BYTES:
            values.copy_(_fold(self.all_gather(values), how))
            return
        share = -(-values.numel() // self.world)
        padded = torch.zeros(share * self.world, dtype=values.dtype)
        padded[: values.numel()] = values
        taken = torch.empty_like(padded)
        dist.all_to_all_single(taken, padded, group=self.group)
        travels = share * values.element_size() * (self.world - 1)
        self._count(travels, travels, travels * self.world)
        reduced = self.all_gather(_fold(split(taken, [share] * self.world), how))
        torch.cat(reduced, out=padded)
        values.copy_(padded[: values.numel()])

    def dense_seconds(self, count: int) -> float:
        """What PyTorch's all-reduce of so many float32 takes about, by two of at most 2 MiB. All ranks call it together."""
        some, few = min(count, _PROBE_ELEMENTS), min(count, _PROBE_ELEMENTS // 32)
        long, short = self._time(some), self._time(few)
        if some == few:
            return long
        return short + max(long - short, 0.0) * (count - few) / (some - few)

    def _time(self, count: int) -> float:
        """The shortest of three, as ranks come at different times to the first. Bytes are not counted: no step sends them."""
        values, times = torch.zeros(count), []
        for _ in range(3):
            began = time.perf_counter()
            dist.all_reduce(values, group=self.group)
            times.append(time.perf_counter() - began)
        return min(times)


def split(values: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    """Views of consecutive elements."""
    return list(torch.split(values, list(sizes)))


def _fold(parts: list[torch.Tensor], how: Literal["sum", "max"]) -> torch.Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        if how == "sum":
            total += part
        else:
            torch.maximum(total, part, out=total)
    return total
