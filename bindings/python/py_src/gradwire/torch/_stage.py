"""How gradients come to where codecs read them, and means back: at once on the CPU, through pinned memory from a device."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

Gradients = list[torch.Tensor | None]


class Stage:
    """Of gradients on the CPU: codecs read them where they are."""

    #: Seconds spent on copies from and to a device.
    seconds = 0.0

    def mark(self) -> Any:
        """Called where a gradient was made, by the thread that made it: what :meth:`wait` is given before it is touched."""
        return None

    def wait(self, marks: Sequence[Any]) -> None:
        """What follows sees what was done before the marks."""

    def fetch(self, index: int, gradients: Gradients) -> Gradients:
        """The gradients of a bucket in memory of the CPU, which stays valid until the bucket comes again."""
        return gradients

    def store(self, host: Gradients, gradients: Gradients) -> None:
        """Copies what was fetched back to where it came from; it is there when this returns."""

    def fill(self, gradient: torch.Tensor, value: float) -> None:
        """Sets all elements."""
        gradient.fill_(value)

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the CPU, after the marks that were waited for."""
        return tensor

    def future(self) -> torch.futures.Future[torch.Tensor]:
        """A future for tensors of this device."""
        return torch.futures.Future()


class Streams(Protocol):
    """What :class:`DeviceStage` needs of a device: a stream of its own, beside that of the user."""

    def record(self) -> Any:
        """An event on the stream that the calling thread works on."""

    def wait(self, event: Any) -> None:
        """The own stream goes on after the event."""

    def use(self) -> contextlib.AbstractContextManager[Any]:
        """In it, the calling thread works on the own stream."""

    def synchronize(self) -> None:
        """Waits until the own stream has done all that it was given."""

    def pinned(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory of the CPU that the device copies from and to by itself."""

    def future(self) -> torch.futures.Future[torch.Tensor]:
        """A future for tensors of the device."""


class DeviceStage(Stage):
    """Copies through pinned memory, on a stream of its own, by one of the engine's threads at a time."""

    def __init__(self, streams: Streams, clock: Callable[[], float] = time.perf_counter) -> None:
        """Pinned memory is allocated as buckets come, and kept."""
        self._streams, self._clock = streams, clock
        self._pinned: dict[int, list[torch.Tensor]] = {}
        self._alone = threading.Lock()

    def mark(self) -> Any:
        """An event on the stream of the caller."""
        return self._streams.record()

    def wait(self, marks: Sequence[Any]) -> None:
        """The own stream does; the thread goes on."""
        for mark in marks:
            self._streams.wait(mark)

    def fetch(self, index: int, gradients: Gradients) -> Gradients:
        """In as many copies as there are gradients, all under way at once."""
        began = self._clock()
        kept = self._memory(index, gradients)
        host: Gradients = [None] * len(gradients)
        with self._alone, self._streams.use():
            for place, gradient in enumerate(gradients):
                if gradient is not None:
                    own = kept[place].view(gradient.shape)
                    own.copy_(gradient, non_blocking=True)
                    host[place] = own
            self._streams.synchronize()
            self.seconds += self._clock() - began
        return host

    def store(self, host: Gradients, gradients: Gradients) -> None:
        """Waits for the copies, so that streams of the user need not."""
        began = self._clock()
        with self._alone, self._streams.use():
            for own, gradient in zip(host, gradients, strict=True):
                if own is not None and gradient is not None:
                    gradient.copy_(own, non_blocking=True)
            self._streams.synchronize()
            self.seconds += self._clock() - began

    def fill(self, gradient: torch.Tensor, value: float) -> None:
        """On the own stream."""
        with self._alone, self._streams.use():
            gradient.fill_(value)
            self._streams.synchronize()

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy."""
        with self._alone, self._streams.use():
            return tensor.detach().cpu()

    def future(self) -> torch.futures.Future[torch.Tensor]:
        """Of the device."""
        return self._streams.future()

    def _memory(self, index: int, gradients: Gradients) -> list[torch.Tensor]:
        """Flat memory for each gradient; made anew where DDP cut its buckets anew."""
        sizes = [(0, torch.float32) if one is None else (one.numel(), one.dtype) for one in gradients]
        kept = self._pinned.get(index, [])
        if len(kept) != len(sizes) or any(
            have.numel() < n or have.dtype != t for have, (n, t) in zip(kept, sizes, strict=True)
        ):
            kept = self._pinned[index] = [self._streams.pinned(elements, dtype) for elements, dtype in sizes]
        return [memory[:elements] for memory, (elements, _) in zip(kept, sizes, strict=True)]


class CudaStreams:
    """CUDA, of one GPU."""

    def __init__(self, device: torch.device) -> None:
        """With a stream on this device."""
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)

    def record(self) -> Any:
        """On the current stream of the device."""
        return torch.cuda.current_stream(self._device).record_event()

    def wait(self, event: Any) -> None:
        """As CUDA's streams wait for events."""
        self._stream.wait_event(event)

    def use(self) -> contextlib.AbstractContextManager[Any]:
        """Also makes the device the current one."""
        context: contextlib.AbstractContextManager[Any] = torch.cuda.stream(self._stream)
        return context

    def synchronize(self) -> None:
        """Lets go of the GIL meanwhile."""
        self._stream.synchronize()

    def pinned(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """Page-locked."""
        return torch.empty(elements, dtype=dtype, pin_memory=True, device="cpu")

    def future(self) -> torch.futures.Future[torch.Tensor]:
        """Whoever waits for it waits for the device too."""
        return torch.futures.Future(devices=[self._device])


def stage_of(device: torch.device) -> Stage:
    """For tensors of a device."""
    return Stage() if device.type == "cpu" else DeviceStage(CudaStreams(device))
