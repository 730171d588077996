"""Sites that come, go and are late, and agree on each exchange in a store that all of them reach."""

from __future__ import annotations

import atexit
import contextlib
import json
import time
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch._C._distributed_c10d import HashStore, PrefixStore, Store

from ._agreement import Agreement, Arrival
from ._board import Board, how_left, leave
from ._errors import ExchangeError
from ._meet import Place
from ._options import real, whole

# How often the store is looked at.
_LOOK_SECONDS = 0.05
# Those who lost others in an exchange are all there after so long, unless they hang.
_LOST_SECONDS = 5.0
# Exchanges after which the store forgets who took part.
_REMEMBERED = 100
#: Those that say goodbye when the interpreter exits.
_alive: weakref.WeakSet[Attendance] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    for attendance in list(_alive):
        attendance.leave(is_over=False)


class Sites:
    """The sites of a run with :class:`LocalSteps`, which may come, go and be late.

    They find each other, and agree on each exchange, in a store of torch.distributed that all of them reach::

        store = torch.distributed.TCPStore("HOST", 29500, wait_for_workers=False)
        sites = Sites(store, "site-3", quorum=2, patience=30)
        optimizer = LocalSteps(model, inner, every=500, sites=sites, timeout=60)
        optimizer.rejoin(None)

    An exchange begins when all are there who were in the last one, or after ``patience`` with those who are there; nobody waits
    for one whose connections have ended. A site that is late, or new, joins when the next exchange is over, and gets the
    parameters while the others take their steps; a late one keeps how far its steps led. It comes to its first exchange as soon
    as the others do, after fewer steps. Sites need no process group, and a script may have one for something else.

    :param store: without it no exchange begins. Whoever reaches it can take part, and read the key of what sites send.
    :param name: of this site, unlike those of all others. Nobody waits for the site that had it before.
    :param quorum: the fewest sites that exchange. Fewer wait for others.
    :param patience: seconds for which those who are there wait for the others.
    :param gone_after: seconds after which new sites begin without those who were in, if none of these comes, and after which a
        site gives up that waits for a quorum: more than there are between two exchanges.
    :param parameters: how they travel to sites that lack them: ``"f32"``, or ``"bf16"``, half as many bytes. All then
        continue from what was sent, so the last 16 bits of each parameter are lost at all sites.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        quorum: int = 1,
        patience: float = 30.0,
        gone_after: float = 3600.0,
        parameters: str = "f32",
    ) -> None:
        """Nothing is said to the others yet."""
        if not isinstance(store, Store):
            raise TypeError(f"store: expected a store of torch.distributed, got {type(store).__name__}")
        if not isinstance(name, str) or not name:
            raise ValueError(f"name={name!r}: expected the name of this site")
        self._store, self._name = store, name
        self._quorum = whole("quorum", quorum, least=1)
        self._patience = real("patience", patience, lambda value: value > 0, "seconds, more than 0")
        if parameters not in ("f32", "bf16"):
            raise ValueError(f"parameters={parameters!r}: expected 'f32' or 'bf16'")
        self._parameters = parameters
        self._gone_after = real("gone_after", gone_after, lambda value: value > 0, "seconds, more than 0")


class _Failure(NamedTuple):
    """An exchange that failed here, and the sites whose messages did not come."""

    exchange: int
    lost: tuple[str, ...]


class Attendance:
    """One session of a site: from when it is made until it leaves."""

    def __init__(self, sites: Sites, gone: Callable[[], Iterable[int]]) -> None:
        """Alone, until it meets others.

        What is called returns the ranks whose connection with this one has ended, since it was connected.
        """
        self._sites = sites
        self._store = PrefixStore("gradwire/sites", sites._store)
        self.me = f"{sites._name}/{uuid.uuid4().hex[:12]}"
        self._last = Agreement(0)
        #: The number of the exchange for which this site has said that it is ready, until all agree who takes part; else 0.
        self._at = 0
        self._board = Board(self._store, self._last)
        self._epoch = 0
        #: Until others are met anew.
        self._failure: _Failure | None = None
        self._was_in = False
        #: That it waits for others, since it was with some.
        self._has_said = False
        self._gone = gone
        #: By rank.
        self._group: Sequence[str] = (self.me,)
        #: Where the sites that are connected meet.
        self.place = Place(HashStore(), "alone", 0, 1)
        _alive.add(self)

    def agree(self, settings: Mapping[str, Any]) -> None:
        """Compares what all sites have to ask for alike with what the first one asked for."""
        own = json.dumps(settings, sort_keys=True)
        with self._asking():
            first = json.loads(self._store.compare_set("settings", "", own))
        for key, asked in json.loads(own).items():
            if first.get(key) != asked:
                raise ValueError(f"the sites differ in {key}: {asked} here, {first.get(key)} where the run began")

    # Before each exchange.

    def meet(self, *, waits: bool = True) -> Agreement | None:
        """Waits until sites agree on an exchange, and this one takes part in it or from the next one on.

        Without ``waits``, nothing as long as the others are not ready: to be asked again.
        """
        with self._asking():
            while True:
                if not self._at:
                    self.come()
                if not waits and not self._store.check([f"agreed/{self._at}"]):
                    return None
                self._last, self._at = self._agreed(self._at), 0
                if self.me in self._last.everybody:
                    break
            self._epoch = self._last.epoch if self.me in self._last.members else 0
            return self._last

    def others_wait(self) -> bool:
        """Whether another site is ready for the next exchange, and this one is not."""
        with self._asking():
            return bool(Board(self._store, self._last).here())

    def come(self) -> bool:
        """Says that this site is ready for the next exchange. Returns whether it is late: others have exchanged without it."""
        with self._asking():
            before, self._last = self._last, self._newest()
            self._at = self._last.number + 1
            self._board = Board(self._store, self._last)
            lost = self._failure.lost if self._failure else ()
            if self._board.come(self.me, Arrival(self._sites._name, self._epoch, self._failure is not None, lost)):
                # The first one waits for the others anyway.
                Board(self._store, Agreement(self._last.number - _REMEMBERED)).forget()
            return self._epoch > 0 and self._last.number > before.number

    def _newest(self) -> Agreement:
        """The last agreement that there is."""
        hint = int(self._store.get("latest")) if self._store.check(["latest"]) else 0
        number = max(self._last.number, hint)
        while self._store.check([f"agreed/{number + 1}"]):
            number += 1
        return self._last if number == self._last.number else Agreement.heard(number, self._store.get(f"agreed/{number}"))

    def _agreed(self, number: int) -> Agreement:
        """Waits until any of those who are ready says who takes part."""
        place, came = f"agreed/{number}", time.monotonic()
        # From when those who are there wait for others: one of those who were in is among them, if any can come.
        since: float | None = None
        while not self._store.check([place]):
            gathering, now = self._board.gathering(self._lost()), time.monotonic()
            if gathering.gone.issuperset(self._last.everybody) and self._are_over():
                raise ExchangeError("the run is over: all sites of its last exchange have closed theirs, and hold its model")
            can_wait = gathering.members or gathering.is_complete
            since = (now if since is None else since) if can_wait else None
            is_late = now - came > self._sites._gone_after
            patience = self._sites._patience
            if gathering.are_missing_lost:
                patience = min(patience, _LOST_SECONDS)
            has_waited = is_late or (since is not None and now - since > patience)
            if (agreed := gathering.agreed(self._sites._quorum, has_waited=has_waited)) is not None:
                # If another one has said it before, that holds.
                self._store.compare_set(place, "", agreed.told())
                self._store.set("latest", str(number))
                break
            if has_waited:
                self._give_up_or_say(len(gathering.here), is_late=is_late)
            time.sleep(_LOOK_SECONDS)
        return Agreement.heard(number, self._store.get(place))

    def _lost(self) -> list[str]:
        """The sites whose connection has ended, of those who are connected.

        After an exchange that failed the connections of all have ended, and those of a late one when others connect anew.
        """
        if self._epoch != self._last.epoch or self._failure is not None:
            return []
        return self._sites_at(self._gone())

    def _sites_at(self, ranks: Iterable[int]) -> list[str]:
        """The sites of those ranks, which are lost to this one; none if it is likely the one who was cut off."""
        lost = [self._group[rank] for rank in ranks]
        is_cut_off = 1 < len(lost) == len(self._group) - 1
        return [] if is_cut_off else lost

    def _give_up_or_say(self, count: int, *, is_late: bool) -> None:
        """Where those who are there have waited long enough, and are too few."""
        there = f"sites that are there: {count}, quorum={self._sites._quorum}"
        are_over = self._are_over()
        if is_late or are_over:
            raise ExchangeError(f"{there}: {'all others have closed theirs' if are_over else 'no other came'}")
        if not self._has_said:
            self._has_said = True
            is_through = self._last.everybody and self._all_closed()
            through = "all sites of the last exchange have closed theirs; " if is_through else ""
            warnings.warn(f"gradwire: {there}: {through}waiting for others", stacklevel=2)

    def _are_over(self) -> bool:
        """Whether all others have closed theirs, so that the run has come to its end.

        Whoever was not in yet may be the first of those who go on with it.
        """
        return self._was_in and self._all_closed()

    def _all_closed(self) -> bool:
        others = [site for site in self._last.everybody if site != self.me]
        return all(how_left(self._store, site) == b"over" for site in others)

    # What came of the exchange.

    def ended(self, now: Agreement) -> None:
        """Tells those who failed in it that this site saw the end of the exchange."""
        with self._asking():
            self._store.set(f"ended/{now.number}", "1")

    def failed(self, now: Agreement, ranks: Iterable[int]) -> None:
        """The exchange failed here, as messages of those ranks did not come. Those who are left connect anew."""
        self._failure = _Failure(now.number, tuple(self._sites_at(ranks)))

    def missed_the_end(self) -> bool:
        """Whether the exchange that failed here came to its end elsewhere, and so with what this site had sent."""
        with self._asking():
            return self._failure is not None and self._store.check([f"ended/{self._failure.exchange}"])

    # Others to be connected with.

    def all_come(self, now: Agreement, sites: Sequence[str]) -> bool:
        """Whether all of those sites are there to be connected. All of them hear the same.

        Those who come in wait for the end of the exchange, unless its members meet again because it failed.
        """
        place = f"connect/{now.number}/{len(sites)}"
        waits = bool(now.members) and self.me in now.joins
        ends = time.monotonic() + (self._sites._gone_after if waits else self._sites._patience)
        following = Board(self._store, now)
        with self._asking():
            self._store.set(f"{place}/{self.me}", "1")
            while not self._store.check([place]):
                if self._store.check([f"{place}/{site}" for site in sites]):
                    self._store.compare_set(place, "", "go")
                elif time.monotonic() > ends or (waits and following.here().keys() & set(now.members)):
                    self._store.compare_set(place, "", "stop")
                else:
                    time.sleep(_LOOK_SECONDS)
            return bool(self._store.get(place) == b"go")

    def connect(self, now: Agreement, sites: Sequence[str]) -> None:
        """From now on those sites are connected."""
        self.place = Place(self._store, f"group/{now.number}/{len(sites)}", tuple(sites).index(self.me), len(sites))
        self._epoch, self._failure, self._group = now.epoch, None, sites
        self._was_in, self._has_said = True, False

    def lost(self) -> None:
        """From here on this site is among no others."""
        self._epoch, self._failure = 0, None

    def leave(self, *, is_over: bool) -> None:
        """Tells the others that this site is gone, so that they do not wait for it; or even that its run is over."""
        if self in _alive:
            _alive.discard(self)
            with contextlib.suppress(ExchangeError), self._asking():
                leave(self._store, self.me, "over" if is_over else "gone")

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, ExchangeError):
                raise
            raise ExchangeError(f"the store of the sites does not answer: {error}") from None
