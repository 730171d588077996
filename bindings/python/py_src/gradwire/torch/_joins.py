"""Which buckets share a message with the next one."""

from __future__ import annotations

from collections.abc import Iterable

#: Steps in which ranks measure what messages take.
STEPS = 10
#: A bucket waits for the next one if its bytes take less time than this to travel. A message of its own wakes several threads,
#: which takes as long from those that compute.
LEAST_SECONDS = 0.0015
#: The message that ends a step, in place of the number of a bucket.
END = -1


class Joins:
    """Measures, and decides from what all ranks know: they tell each other their times with the headers of messages.

    So all ranks decide alike. No bit of a mean depends on it.
    """

    def __init__(self) -> None:
        """Each bucket has a message of its own at first."""
        #: Those that go with the next one.
        self.buckets: frozenset[int] = frozenset()
        # By bucket: its tensors; the longest of the frames of all ranks, in bytes; and the shortest times that a message of it
        # alone took, in microseconds, at this rank and at any.
        self._tensors: dict[int, tuple[int, ...]] = {}
        self._bytes: dict[int, int] = {}
        self._own: dict[int, int] = {}
        self._shortest: dict[int, int] = {}
        self._seconds_per_byte: float | None = None
        self._steps = 0
        self._is_cut_anew = False

    def took(self, message: int, seconds: float) -> None:
        """The message of one bucket alone, or that which ends a step, took so long."""
        micros = max(1, round(1e6 * seconds))
        self._own[message] = min(micros, self._own.get(message, micros))

    def own(self, message: int) -> int:
        """What is told to the other ranks: microseconds, 0 if there are none yet."""
        return self._own.get(message, 0)

    def heard(self, message: int, micros: Iterable[int]) -> None:
        """What all ranks told with a message. The rank that came last did not wait for others, so the shortest counts."""
        known = [value for value in micros if value]
        if known:
            self._shortest[message] = min(known)

    def saw(self, bucket: int, tensors: tuple[int, ...], longest: int) -> None:
        """The tensors of a bucket, and how many bytes the longest of its frames had."""
        self._bytes[bucket] = longest
        if self._tensors.get(bucket) != tensors:
            self._tensors[bucket] = tensors
            self._is_cut_anew = True

    def end_step(self, is_possible: bool) -> None:
        """Decides for the next step. It is possible while all that is sent is frames."""
        if self._is_cut_anew or not is_possible:
            self._begin_again()
            return
        self._steps += 1
        if self._steps == STEPS:
            self._measure()
        if self._seconds_per_byte is not None:
            last, per_byte = max(self._bytes), self._seconds_per_byte
            took = {bucket: size * per_byte for bucket, size in self._bytes.items() if bucket != last}
            self.buckets = frozenset(bucket for bucket, seconds in took.items() if seconds < LEAST_SECONDS)

    def _measure(self) -> None:
        longest = max(self._bytes, key=self._bytes.__getitem__)
        took, least = self._shortest.get(longest), self._shortest.get(END)
        if took is not None and least is not None and self._bytes[longest]:
            self._seconds_per_byte = 1e-6 * max(0, took - least) / self._bytes[longest]

    def _begin_again(self) -> None:
        tensors = self._tensors
        self.__dict__ = Joins().__dict__
        self._tensors = tensors
