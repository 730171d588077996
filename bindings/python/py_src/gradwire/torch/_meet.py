"""How ranks find each other: through a store, which is that of their process group unless they have none."""

from __future__ import annotations

import datetime
import json
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store

import gradwire
from gradwire import Listener, Mesh

from ._errors import ExchangeError, PeerLostError
from ._network import LOOPBACK, address_on, host_id, with_port

# How often the store is looked at.
_LOOK_SECONDS = 0.01
_KEY_BYTES = 32
# How many hooks were made for each process group; all ranks make theirs in the same order.
_made: weakref.WeakKeyDictionary[dist.ProcessGroup, int] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Place:
    """Where ranks meet: a store that all of them reach, and a name that no others have there."""

    store: Store
    name: str
    rank: int
    world: int


def place_of(group: dist.ProcessGroup) -> Place:
    """A new one for the ranks of a process group. All of them ask for it in the same order."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    _made[group] = _made.get(group, 0) + 1
    store = HashStore() if world == 1 else _store_of(group)
    # The store outlives ranks that torchrun starts again, and what they said before.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Place(store, f"{attempt}/{group.group_name}/{_made[group]}", rank, world)


def mesh_of(place: Place, settings: Mapping[str, Any], *, timeout: float, network: str | None, encrypt: bool | None) -> Mesh:
    """Connects the ranks of a place, once all of them ask for the same.

    The key of what they send goes through the store, so who reads the store has the key.
    """
    rank = place.rank
    if place.world == 1:
        return _join(Listener(0), [LOOPBACK], timeout)
    meeting = Meeting(place, timeout, "make their hook or optimizer")
    told = meeting.share("settings", {**settings, "host": host_id()})
    _check_alike(settings, told)
    are_together = len({one["host"] for one in told}) == 1
    address = address_on(network, are_together)
    key = meeting.key()
    everywhere = meeting.share("network", {"address": address, "encrypt": encrypt})
    _check_alike({"encrypt": encrypt}, everywhere)
    are_on_loopback = all(one["address"] in (LOOPBACK, "::1") for one in everywhere)
    is_encrypted = not are_on_loopback if encrypt is None else encrypt
    try:
        listener = Listener(rank, with_port(address), key=key if is_encrypted else None, insecure=not is_encrypted)
    except gradwire.ExchangeError as error:
        raise ExchangeError(f"network: {error}") from None
    mesh = _join(listener, meeting.share("address", listener.address), timeout)
    # A rank that ends at once would end connections that the others do not know of yet.
    meeting.share("joined", True)
    return mesh


def _join(listener: Listener, addresses: list[str], timeout: float) -> Mesh:
    try:
        return listener.join(addresses, timeout=timeout)
    except gradwire.ExchangeError as error:
        raise PeerLostError(f"the ranks did not meet: {error}") from None


class Meeting:
    """What ranks tell each other by the store, under keys that no other meeting has."""

    def __init__(self, place: Place, timeout: float, what: str) -> None:
        """Each waits so many seconds for the others, which are to do that."""
        self.rank = place.rank
        self._store, self._world = place.store, place.world
        self._timeout, self._what = timeout, what
        self._prefix = f"gradwire/{place.name}"

    def share(self, what: str, own: Any) -> list[Any]:
        """What every rank says."""
        self._store.set(f"{self._prefix}/{what}/{self.rank}", json.dumps(own))
        keys = [f"{self._prefix}/{what}/{rank}" for rank in range(self._world)]
        return [json.loads(value) for value in self._wait(keys)]

    def key(self) -> bytes:
        """Random bytes that all have."""
        place = f"{self._prefix}/key"
        if self.rank == 0:
            self._store.set(place, os.urandom(_KEY_BYTES).hex())
        return bytes.fromhex(self._wait([place])[0].decode())

    def gloo(self, ranks: Sequence[int]) -> Any:
        """Connects some of the ranks, this one among them, without a process group: for what is too large for the store."""
        store, limit = PrefixStore(f"{self._prefix}/gloo", self._store), datetime.timedelta(seconds=self._timeout)
        return dist.ProcessGroupGloo(store, list(ranks).index(self.rank), len(ranks), limit)

    def _wait(self, keys: list[str]) -> list[bytes]:
        ends = time.monotonic() + self._timeout
        while not self._store.check(keys):
            if time.monotonic() > ends:
                missing = [int(key.rpartition("/")[2]) for key in keys[: self._world] if not self._store.check([key])]
                raise PeerLostError(f"ranks {missing} did not {self._what} within {self._timeout:g} s", missing)
            time.sleep(_LOOK_SECONDS)
        return [self._store.get(key) for key in keys]


def _check_alike(own: Mapping[str, Any], every: list[Any]) -> None:
    for key in own:
        values = [other.get(key) for other in every]
        if any(value != values[0] for value in values):
            raise ValueError(f"the ranks differ in {key}: {values}")


def _store_of(group: dist.ProcessGroup) -> Store:
    """Where the ranks of the group met."""
    try:
        store: Store = dist.distributed_c10d._world.pg_map[group][1]
    except (AttributeError, KeyError, IndexError):
        raise ExchangeError("this version of torch does not say where the ranks of a process group met") from None
    return store
