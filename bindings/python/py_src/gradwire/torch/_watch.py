"""Which rank is missing when a collective fails: the ranks that wait say so in the store of their process group."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Protocol

# A rank that has waited for this long says so, and says it again whenever it looks.
_PATIENCE_SECONDS = 1.0
_LOOK_SECONDS = 0.5
# After a failure, ranks are asked for this long.
_ASK_SECONDS = 5.0


class Store(Protocol):
    """What is used of a store of torch.distributed."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...


class Watch:
    """A thread that writes to the store while collectives stall, and reads it after one failed. Else it does nothing.

    The store may hang: it may be where the lost rank was. So only this thread touches it, and nobody waits for it for long.
    """

    def __init__(self, store: Store | None, rank: int, world: int, timeout: float) -> None:
        """Without a store, or for two ranks, nothing is asked."""
        self._store, self._rank, self._world = store, rank, world
        self._ask_seconds = min(_ASK_SECONDS, timeout)
        self._step, self._since = 0, 0.0
        self._asked, self._answered = threading.Event(), threading.Event()
        self._missing: list[int] | None = None
        self._ends = False
        self._thread: threading.Thread | None = None
        if store is not None and world > 2:
            self._thread = threading.Thread(target=self._run, name="gradwire-watch", daemon=True)
            self._thread.start()

    def begin(self, step: int) -> None:
        """A collective of this step begins."""
        self._step, self._since = step, time.monotonic()

    def end(self) -> None:
        """It has ended."""
        self._since = 0.0

    def close(self) -> None:
        """Ends the thread."""
        self._ends = True
        self._asked.set()

    def missing(self) -> list[int]:
        """Ranks that did not come to the collective that failed here; empty where that is not known."""
        if self._world == 2:
            return [1 - self._rank]
        if self._thread is None or self._ends:
            return []
        self._asked.set()
        self._answered.wait(self._ask_seconds + 1)
        return self._missing or []

    def _run(self) -> None:
        with contextlib.suppress(Exception):
            while not self._asked.wait(_LOOK_SECONDS):
                since = self._since
                if since and time.monotonic() - since > _PATIENCE_SECONDS:
                    self._say()
            if not self._ends:
                self._say()
                self._missing = self._ask()
        self._answered.set()

    def _say(self) -> None:
        assert self._store is not None
        self._store.set(f"gradwire/waits/{self._rank}", str(self._step))

    def _ask(self) -> list[int]:
        """Ranks that have not said that they wait in this step. Asks until all but one have, or time is up."""
        began = time.monotonic()
        while True:
            silent = [rank for rank in range(self._world) if rank != self._rank and not self._waits(rank)]
            waited = time.monotonic() - began
            if waited > self._ask_seconds or not silent or (len(silent) == 1 and waited > 2 * _LOOK_SECONDS):
                return silent
            time.sleep(_LOOK_SECONDS / 5)

    def _waits(self, rank: int) -> bool:
        assert self._store is not None
        key = f"gradwire/waits/{rank}"
        return self._store.check([key]) and int(self._store.get(key)) >= self._step
