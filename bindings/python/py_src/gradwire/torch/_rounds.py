"""Who takes part in an exchange, where sites come, go and are late."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Round:
    """What was agreed of one exchange. A site has the name of its session, which is another one after a restart."""

    number: int
    #: Those who exchange; nobody at the start of a run, or if fewer than the quorum are left.
    members: tuple[str, ...] = ()
    #: Those who come in behind the exchange.
    joins: tuple[str, ...] = ()
    #: Whether members connect anew before they exchange.
    is_anew: bool = False
    #: The round in which those who are in behind this one came together.
    epoch: int = 0

    @property
    def everybody(self) -> tuple[str, ...]:
        """All who are in behind this round."""
        return self.members + self.joins

    def told(self) -> str:
        """As sites tell each other."""
        return json.dumps([self.members, self.joins, self.is_anew, self.epoch])

    @classmethod
    def heard(cls, number: int, told: bytes) -> Round:
        """That :meth:`told` says."""
        members, joins, is_anew, epoch = json.loads(told)
        return cls(number, tuple(members), tuple(joins), is_anew, epoch)


@dataclass(frozen=True)
class Arrival:
    """What a site says when it comes to a round."""

    #: Which it keeps when it is started again.
    name: str
    #: The round in which those came together among whom it is; 0 if it is among none.
    epoch: int
    #: Whether its last exchange failed.
    has_failed: bool


@dataclass(frozen=True)
class Coming:
    """A round that is not agreed yet."""

    #: The round before.
    last: Round
    here: Mapping[str, Arrival]
    #: Those who have left in order.
    gone: frozenset[str]
    #: Whether any site has seen the end of the last exchange. Then whoever failed in it has missed that.
    has_ended: bool

    @property
    def members(self) -> tuple[str, ...]:
        """Those who were in behind the last round, and are here."""
        return tuple(site for site in self.last.everybody if self._is_member(site))

    def _is_member(self, site: str) -> bool:
        own = self.here.get(site)
        return own is not None and own.epoch == self.last.epoch and not (own.has_failed and self.has_ended)

    @property
    def is_complete(self) -> bool:
        """Whether nobody can come any more who was in. A session of the same name is that site, started again."""
        names = {one.name for one in self.here.values()}
        return all(site in self.here or site in self.gone or name_of(site) in names for site in self.last.everybody)

    def agreed(self, quorum: int, *, has_waited: bool) -> Round | None:
        """What it comes to, once that can be said: as soon as nobody is missing, or after all have waited long enough."""
        members, number = self.members, self.last.number + 1
        others = tuple(site for site in self.here if site not in members)
        if len(self.here) < quorum or not (has_waited or (members and self.is_complete)):
            return None
        if len(members) < quorum:
            return Round(number, (), members + others, epoch=number)
        is_anew = members != self.last.everybody or any(self.here[site].has_failed for site in members)
        return Round(number, members, others, is_anew, number if others or is_anew else self.last.epoch)


def name_of(site: str) -> str:
    """Of a session."""
    return site.rpartition("/")[0]
