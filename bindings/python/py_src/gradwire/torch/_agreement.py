"""Who takes part in an exchange, where sites come, go and are late."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Agreement:
    """Who takes part in one exchange. A site has the name of its session, which is another one after a restart."""

    number: int
    #: Those who exchange; nobody at the start of a run, or if fewer than the quorum are left.
    members: tuple[str, ...] = ()
    #: Those who take part from the next exchange on.
    joins: tuple[str, ...] = ()
    #: Whether members connect anew before they exchange.
    is_anew: bool = False
    #: The agreement since which nobody has left or joined.
    epoch: int = 0

    @property
    def everybody(self) -> tuple[str, ...]:
        """All who are expected at the next exchange."""
        return self.members + self.joins

    def told(self) -> str:
        """As sites tell each other."""
        return json.dumps([self.members, self.joins, self.is_anew, self.epoch])

    @classmethod
    def heard(cls, number: int, told: bytes) -> Agreement:
        """The one of which :meth:`told` is this."""
        members, joins, is_anew, epoch = json.loads(told)
        return cls(number, tuple(members), tuple(joins), is_anew, epoch)


@dataclass(frozen=True)
class Arrival:
    """What a site says when it is ready to exchange."""

    #: Which it keeps when it is started again.
    name: str
    #: That of the agreement by which it is connected to others; 0 if it is connected to none.
    epoch: int
    #: Whether its last exchange failed.
    has_failed: bool
    #: The sites whose messages did not come in that.
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gathering:
    """Sites that are ready to exchange, and have not agreed who takes part."""

    #: The agreement before.
    last: Agreement
    here: Mapping[str, Arrival]
    #: Those who have left, or are lost.
    gone: frozenset[str]
    #: Whether any site has seen the end of the last exchange. Then whoever failed in it has missed that.
    has_ended: bool

    @property
    def members(self) -> tuple[str, ...]:
        """Those who were expected, and are here."""
        return tuple(site for site in self.last.everybody if self._is_member(site))

    def _is_member(self, site: str) -> bool:
        own = self.here.get(site)
        return own is not None and own.epoch == self.last.epoch and not (own.has_failed and self.has_ended)

    @property
    def is_complete(self) -> bool:
        """Whether nobody is missing."""
        return not self._missing

    @property
    def are_missing_lost(self) -> bool:
        """Whether all who are missing were lost in the last exchange, by any of those who are here."""
        return bool(self._missing) and self._missing <= {site for one in self.here.values() for site in one.lost}

    @property
    def _missing(self) -> set[str]:
        """A site that was started again, under its name, is not among them."""
        names = {one.name for one in self.here.values()}
        gone = (site for site in self.last.everybody if site not in self.here and site not in self.gone)
        return {site for site in gone if _name_of(site) not in names}

    def agreed(self, quorum: int, *, has_waited: bool) -> Agreement | None:
        """Who takes part: known as soon as nobody is missing, or after those who are here have waited long enough."""
        members, number = self.members, self.last.number + 1
        others = tuple(site for site in self.here if site not in members)
        if len(self.here) < quorum or not (has_waited or (members and self.is_complete)):
            return None
        if len(members) < quorum:
            return Agreement(number, (), members + others, epoch=number)
        is_anew = members != self.last.everybody or any(self.here[site].has_failed for site in members)
        return Agreement(number, members, others, is_anew, number if others or is_anew else self.last.epoch)


def _name_of(site: str) -> str:
    """Of a session."""
    return site.rpartition("/")[0]
