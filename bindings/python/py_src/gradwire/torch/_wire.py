"""Collectives of one process group, all called by one thread, in an order that is the same at all ranks."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal, Self, TypeAlias

import torch
import torch.distributed as dist

from ._plan import CPU

# Below, all values go to all ranks, which takes one message time. Above, each rank sums a part, which takes fewer bytes.
_ALL_TO_ALL_ABOVE_BYTES = 32 << 10
# Above that, they go in segments, of this size at least, so that a link has something to carry in both directions at any
# time: with one segment, two ranks leave a third of a slow link idle. No rank sends more messages than these to all others.
_MESSAGES = 16
_SMALLEST_SEGMENT_BYTES = 256 << 10
_SEGMENTS_AHEAD = 2
# Lengths of messages whose memory is kept.
_MAILS = 32
_PROBE_ELEMENTS = 1 << 19
# What threads of a group that is not idle get at the end, and those of an idle one at most.
_GRACE_SECONDS = 0.1
_PATIENCE_SECONDS = 2.0
# Of how many tensors is known whether gloo still holds them: many more than it has threads.
_LENT = 64


View: TypeAlias = "memoryview[int]"


class _Mail:
    """Bytes for all other ranks and bytes from them, each twice over the same memory."""

    def __init__(self, given: torch.Tensor, taken: torch.Tensor) -> None:
        """Over the memory of two tensors."""
        self.given_tensor, self.taken_tensor = given, taken
        self.given, self.taken = given.numpy().data, taken.numpy().data


class _Segment:
    """Consecutive values on their way to their sum: each rank adds up a share, in rank order, and sends it to all others."""

    def __init__(self, values: torch.Tensor, wire: Wire) -> None:
        """Sends the values to the ranks that add them up."""
        self._values, self._wire = values, wire
        share = -(-values.numel() // wire.world)
        self._whole = values
        if share * wire.world != values.numel():
            self._whole = torch.zeros(share * wire.world, dtype=values.dtype, device=values.device)
            self._whole[: values.numel()] = values
        self._taken = torch.empty_like(self._whole)
        wire._lend(values, self._whole, self._taken)
        self._work: Any = dist.all_to_all_single(self._taken, self._whole, group=wire.group, async_op=True)
        travels = share * values.element_size() * (wire.world - 1)
        wire._count(2 * travels, 2 * travels, 2 * travels * wire.world)

    def gather(self, how: Literal["sum", "max"]) -> Self:
        """Adds up this rank's share once it is there, and begins to gather those of all ranks."""
        self._work.wait()
        self._own = _fold(split(self._taken, [len(self._taken) // self._wire.world] * self._wire.world), how)
        self._wire._lend(self._own)
        self._work = dist.all_gather_into_tensor(self._whole, self._own, group=self._wire.group, async_op=True)
        return self

    def finish(self) -> None:
        """Waits for the sum, which is then in the place of the values."""
        self._work.wait()
        if self._whole is not self._values:
            self._values.copy_(self._whole[: self._values.numel()])


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
        # Bytes of all ranks.
        self.total = 0
        self._kept = torch.empty(0, dtype=torch.uint8, device=CPU)
        self._mails: dict[int, _Mail] = {}
        self._lent: deque[weakref.ref[torch.Tensor]] = deque(maxlen=_LENT)

    def _lend(self, *tensors: torch.Tensor) -> None:
        """Gloo gets tensors of which Python keeps nothing when their collective has ended."""
        self._lent.extend(map(weakref.ref, tensors))

    def close(self, is_idle: bool) -> None:
        """Ends the threads of the process group, if it is idle; else gives them a moment.

        A thread of gloo lets go of the tensors of a collective after that has ended, and for that it takes the lock of the
        interpreter. If the interpreter is on its way out by then, the process is aborted. If the end of the group waits for the
        thread, it must not hold the lock, as it does in torch 2.4. So this waits until nothing is held any more.
        """
        group = self.__dict__.pop("group", None)
        if group is None:
            return
        if not is_idle:
            # A collective of a lost rank would be waited for.
            time.sleep(_GRACE_SECONDS)
            return
        ends = time.monotonic() + _PATIENCE_SECONDS
        mails = (tensor for mail in self._mails.values() for tensor in (mail.given_tensor, mail.taken_tensor))
        lent = [*self._lent, *map(weakref.ref, mails)]
        self._mails.clear()
        while any(one() is not None for one in lent) and time.monotonic() < ends:
            time.sleep(0.001)
        # If the program has destroyed all groups, this is the last reference.
        with contextlib.suppress(ValueError, AssertionError):
            dist.destroy_process_group(group)

    def _count(self, sent: int, received: int, total: int) -> None:
        self.sent += sent
        self.total += total
        self.received += received

    def all_gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        """A tensor of the same size from every rank."""
        if self.world == 1:
            return [own]
        outs = [torch.empty_like(own) for _ in range(self.world)]
        self._lend(own, *outs)
        dist.all_gather(outs, own, group=self.group)
        travels = own.numel() * own.element_size() * (self.world - 1)
        self._count(travels, travels, travels * self.world)
        return outs

    def gather_messages(self, header: bytes, own: bytes, room: int) -> tuple[list[View], list[View]]:
        """The headers of all ranks, and with each the first `room` bytes that its rank has for the others.

        One collective of as many bytes from each rank, whatever it has: what is missing to `room` is sent as zeros. What is
        returned stays valid until the next call.
        """
        begin = own[:room]
        if self.world == 1:
            return [memoryview(header)], [memoryview(begin)]
        head, size = len(header), len(header) + room
        mail = self._mail_for(size * (self.world - 1))
        for start in range(0, len(mail.given), size):
            body, end = start + head, start + head + len(begin)
            mail.given[start:body] = header
            mail.given[body:end] = begin
            mail.given[end : start + size] = bytes(size - head - len(begin))
        sizes = [0 if rank == self.rank else size for rank in range(self.world)]
        dist.all_to_all_single(mail.taken_tensor, mail.given_tensor, sizes, sizes, group=self.group)
        self._count(len(mail.given), len(mail.given), size * self.world * (self.world - 1))
        starts = iter(range(0, len(mail.taken), size))
        rows = [None if rank == self.rank else mail.taken[(start := next(starts)) : start + size] for rank in range(self.world)]
        headers = [memoryview(header) if row is None else row[:head] for row in rows]
        return headers, [memoryview(begin) if row is None else row[head:] for row in rows]

    def gather_rest(self, own: bytes, begun: Sequence[View], sizes: Sequence[int], room: int) -> list[View]:
        """All bytes of each rank: `sizes` says how many, and `begun` holds the first `room` of them."""
        missing = [max(size - room, 0) for size in sizes]
        if self.world == 1:
            return [memoryview(own)]
        if not any(missing):
            return [data[:size] for data, size in zip(begun, sizes, strict=True)]
        rest = torch.frombuffer(bytearray(own[room:] or b"0"), dtype=torch.uint8)[: missing[self.rank]]
        rests = self._to_each(rest, missing)
        whole = (bytes(data) + more.numpy().tobytes() for data, more in zip(begun, rests, strict=True))
        return [memoryview(data)[:size] for data, size in zip(whole, sizes, strict=True)]

    def _mail_for(self, size: int) -> _Mail:
        """Memory for so many bytes each way, kept from call to call."""
        if size > self._kept.numel() // 2:
            self._kept = torch.zeros(2 * (size + size // 8), dtype=torch.uint8, device=CPU)
            self._mails.clear()
        # Of each bucket, and of the message that ends a step; lengths of frames may change from step to step.
        if len(self._mails) > _MAILS:
            self._mails.clear()
        if size not in self._mails:
            half = self._kept.numel() // 2
            self._mails[size] = _Mail(self._kept[:size], self._kept[half : half + size])
        return self._mails[size]

    def _to_each(self, own: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
        """The bytes that each rank has for all others, `sizes` of them: one message to each, not a ring of messages."""
        others = self.world - 1
        out_sizes = [0 if rank == self.rank else size for rank, size in enumerate(sizes)]
        in_sizes = [0 if rank == self.rank else own.numel() for rank in range(self.world)]
        given = own.repeat(others) if others > 1 else own
        taken = torch.empty(sum(out_sizes), dtype=torch.uint8, device=CPU)
        self._lend(own, given, taken)
        dist.all_to_all_single(taken, given, out_sizes, in_sizes, group=self.group)
        self._count(given.numel(), taken.numel(), sum(sizes) * others)
        pieces = split(taken, out_sizes)
        return [own if rank == self.rank else pieces[rank] for rank in range(self.world)]

    def reduce(self, values: torch.Tensor, how: Literal["sum", "max"] = "sum") -> None:
        """Replaces values by their sum or maximum over all ranks."""
        if self.world == 1 or not values.numel():
            return
        if values.numel() * values.element_size() <= _ALL_TO_ALL_ABOVE_BYTES:
            values.copy_(_fold(self.all_gather(values), how))
            return
        # While one segment is gathered, the next ones are summed, so that the link has something to carry in both directions.
        summed: deque[_Segment] = deque()
        gathered: list[_Segment] = []
        for part in torch.split(values, self._segment(values)):
            summed.append(_Segment(part, self))
            if len(summed) > _SEGMENTS_AHEAD:
                gathered.append(summed.popleft().gather(how))
        gathered += [segment.gather(how) for segment in summed]
        for segment in gathered:
            segment.finish()

    def _segment(self, values: torch.Tensor) -> int:
        """Elements of a segment, a multiple of the number of ranks unless there is but one."""
        least: int = _SMALLEST_SEGMENT_BYTES // values.element_size()
        wanted: int = max(int(values.numel()) * self.world // _MESSAGES, least)
        segment: int = wanted + -wanted % self.world
        return segment

    def dense_seconds(self, count: int) -> float:
        """What PyTorch's all-reduce of so many float32 takes about, by two of at most 2 MiB. All ranks call it together."""
        some, few = min(count, _PROBE_ELEMENTS), min(count, _PROBE_ELEMENTS // 32)
        long, short = self._time(some), self._time(few)
        if some == few:
            return long
        return short + max(long - short, 0.0) * (count - few) / (some - few)

    def _time(self, count: int) -> float:
        """The shortest of three, as ranks come to the first at different times. Bytes are not counted: no step sends them."""
        values, times = torch.zeros(count, dtype=torch.float32, device=CPU), []
        self._lend(values)
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
