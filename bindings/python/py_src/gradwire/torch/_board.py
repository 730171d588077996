"""What sites tell each other about one exchange, in their store."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import astuple
from typing import TYPE_CHECKING

from ._agreement import Agreement, Arrival, Gathering

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class Board:
    """The exchange that follows an agreement, as far as its sites have told. What was read once is not asked for again."""

    def __init__(self, store: Store, last: Agreement) -> None:
        """Nothing is read yet."""
        self._store, self._last, self._number = store, last, last.number + 1
        self._here: dict[str, Arrival] = {}
        #: Places of the list of those who are ready that are not read, and how many there are.
        self._unread: list[int] = []
        self._length = 0
        self._gone: set[str] = set()
        #: How many sites had left when it was last asked which.
        self._departures = -1
        self._has_ended = False

    def come(self, site: str, arrival: Arrival) -> bool:
        """Says that a site is ready. Returns whether it is the first one."""
        said = json.dumps([site, *astuple(arrival)])
        place = self._store.add(f"here/{self._number}", 1)
        self._store.set(f"here/{self._number}/{place}", said)
        return bool(place == 1)

    def here(self) -> dict[str, Arrival]:
        """Those who are ready."""
        length = self._store.add(f"here/{self._number}", 0)
        places = [*self._unread, *range(self._length + 1, length + 1)]
        self._unread, self._length = [], length
        for place in places:
            key = f"here/{self._number}/{place}"
            if self._store.check([key]):
                site, name, epoch, has_failed, lost = json.loads(self._store.get(key))
                self._here[site] = Arrival(name, epoch, has_failed, tuple(lost))
            else:
                # Whoever took the place is about to fill it.
                self._unread.append(place)
        return self._here

    def gathering(self, lost: Iterable[str] = ()) -> Gathering:
        """All that decides who takes part. Those who are lost did not tell that they are gone."""
        self._gone.update(lost)
        here, expected = self.here(), self._last.everybody
        if any(site not in here for site in expected):
            self._look_who_left(expected)
        if not self._has_ended and any(one.has_failed for one in here.values()):
            self._has_ended = self._store.check([f"ended/{self._last.number}"])
        return Gathering(self._last, here, frozenset(self._gone), self._has_ended)

    def _look_who_left(self, expected: tuple[str, ...]) -> None:
        departures = self._store.add("departures", 0)
        if departures != self._departures:
            self._departures = departures
            self._gone.update(site for site in expected if self._store.check([f"left/{site}"]))

    def forget(self) -> None:
        """Takes from the store what no site looks at any longer. A store that cannot forget keeps it."""
        with contextlib.suppress(RuntimeError):
            for place in range(1, self._store.add(f"here/{self._number}", 0) + 1):
                self._store.delete_key(f"here/{self._number}/{place}")
            for what in (f"here/{self._number}", f"agreed/{self._number}", f"ended/{self._last.number}"):
                self._store.delete_key(what)


def leave(store: Store, site: str, how: str) -> None:
    """Says that a site is gone, and how."""
    store.set(f"left/{site}", how)
    store.add("departures", 1)


def how_left(store: Store, site: str) -> bytes:
    """How it left; nothing if it did not."""
    return store.get(f"left/{site}") if store.check([f"left/{site}"]) else b""
