"""Sites of several processes, which DDP or FSDP keeps together: each exchanges a part with its like at the other sites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist

from ._errors import ExchangeError, OutOfStepError, PeerLostError, ReplicasDifferError
from ._plan import first_to_fit, is_split, local, needed

_WORDS = {2: torch.int16, 4: torch.int32}


def check_whole(model: torch.nn.Module, *, is_of_site: bool) -> None:
    """Refuses models that other processes hold a part of, unless those are of one site."""
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise ValueError("model: FullyShardedDataParallel hides which tensors it has; expected torch's fully_shard (FSDP2)")
    for name, parameter in model.named_parameters():
        if is_split(parameter) and not is_of_site:
            raise ValueError(f"{name}: it is split over processes, as FSDP does; pass within=, those of one site, and group=")


def own_rules(rules: Mapping[str, str], names: Iterable[str], own: Iterable[str], wire: str) -> dict[str, str]:
    """Of the rules for all tensors, those for what this process exchanges."""
    if wire != "f32":
        raise ValueError(f"wire={wire!r}: it does not go together with within= and rules=")
    needed(names, rules)
    fit = {first_to_fit(name, rules) for name in own}
    return {pattern: spelling for pattern, spelling in rules.items() if pattern in fit}


def broadcast(tensors: Iterable[tuple[torch.Tensor, int]], group: dist.ProcessGroup | None) -> None:
    """Copies each tensor from the rank of the group that it stands beside to all others."""
    works = [
        dist.broadcast(tensor.detach(), rank if group is None else dist.get_global_rank(group, rank), group, async_op=True)
        for tensor, rank in tensors
    ]
    for work in works:
        if work is not None:
            work.wait()


class Together:
    """One of the processes of a site, which train together."""

    def __init__(self, within: dist.ProcessGroup, tensors: Mapping[str, torch.Tensor]) -> None:
        """Of that process group, with all that they train."""
        if not isinstance(within, dist.ProcessGroup):
            raise TypeError(f"within={within!r}: expected the process group of the processes of one site")
        self._group = within
        self._rank, self._world = dist.get_rank(within), dist.get_world_size(within)
        self._whole = {name: tensor for name, tensor in tensors.items() if not is_split(tensor)}
        self._zero = torch.zeros((), dtype=torch.int64, device=next(iter(tensors.values())).device)

    def __repr__(self) -> str:
        return f"process {self._rank} of {self._world}"

    def trained_apart(self, exchanges: int) -> ExchangeError | None:
        """What is wrong before an exchange: with how many this process has made, or with its parameters."""
        words = [tensor.detach().view(_WORDS[tensor.element_size()]) for tensor in self._whole.values()]
        bits = sum((word.sum(dtype=torch.int64) for word in words), self._zero)
        try:
            last, first, most, least = self._most(exchanges, -exchanges, bits, -bits)
        except ExchangeError as error:
            return error
        if last != -first:
            return OutOfStepError(
                f"the processes of this site have made {-first} to {last} exchanges: load what all saved after the same one"
            )
        if most != -least:
            return ReplicasDifferError("the processes of this site trained apart: wrap the model in DDP(process_group=within)")
        return None

    def _most(self, *values: torch.Tensor | int) -> list[int]:
        """The most of each over the processes of this site."""
        told = torch.stack([self._zero + value for value in values])
        try:
            dist.all_reduce(told, dist.ReduceOp.MAX, self._group)
        except RuntimeError as error:
            raise PeerLostError(f"a process of this site is lost: {error}") from None
        found: list[int] = told.tolist()
        return found

    def _broadcast(self, tensors: Iterable[tuple[torch.Tensor, int]]) -> None:
        try:
            broadcast(tensors, self._group)
        except RuntimeError as error:
            raise PeerLostError(f"a process of this site is lost: {error}") from None


class Within(Together):
    """One that exchanges its part with its like at the other sites."""

    def __init__(
        self,
        within: dist.ProcessGroup,
        group: dist.ProcessGroup | None,
        tensors: Mapping[str, torch.Tensor],
        fragments: Sequence[Sequence[str]],
    ) -> None:
        """The other process group is that of the processes with which it exchanges."""
        super().__init__(within, tensors)
        if not isinstance(group, dist.ProcessGroup):
            raise TypeError(
                f"group={group!r}: within= goes together with sites=, or with group=, the processes of all sites that exchange "
                "with each other; init_device_mesh makes both"
            )
        if {*dist.get_process_group_ranks(within)} & {*dist.get_process_group_ranks(group)} != {dist.get_rank()}:
            raise ValueError("within, group: expected two process groups that have this process in common, and no other")
        #: Of tensors that are whole at all processes: the one that exchanges each.
        self._owners: dict[str, int] = {}
        self._fragments = fragments
        #: What this process exchanges of each fragment: its shards of split tensors, and its part of the whole ones.
        self.shares = self._share_out(tensors)

    def _share_out(self, tensors: Mapping[str, torch.Tensor]) -> list[list[str]]:
        loads = [0] * self._world
        shares = []
        for names in self._fragments:
            self._give_out([name for name in names if name in self._whole], loads)
            own = [name for name in names if self._owners.get(name, self._rank) == self._rank]
            shares.append([name for name in own if local(tensors[name]).numel()])
            if not shares[-1]:
                raise ValueError(
                    f"fragments={len(self._fragments)}: {self} has no tensor in one of them; expected fewer of either"
                )
        return shares

    def _give_out(self, names: Iterable[str], loads: list[int]) -> None:
        """Gives the tensors of a fragment, the largest first, to those that have least of it, and of all before."""
        here = [0] * self._world
        for name in sorted(names, key=lambda name: self._whole[name].numel(), reverse=True):
            rank = min(range(self._world), key=lambda rank: (here[rank], loads[rank]))
            self._owners[name] = rank
            here[rank] += self._whole[name].numel()
            loads[rank] += self._whole[name].numel()

    def check_end(self, failure: Exception | None) -> None:
        """Raises at all processes of this site if an exchange failed at one of them."""
        try:
            (has_failed,) = self._most(failure is not None)
        except ExchangeError as error:
            failure = failure or error
        if failure is not None:
            raise failure
        if has_failed:
            raise ExchangeError("another process of this site failed in this exchange, and says why")

    def brings(self, exchanges: int, fault: str) -> tuple[bool, str]:
        """Whether states that processes of this site bring are of different exchanges; and what is wrong with one of them."""
        every: list[tuple[int, str]] = [(exchanges, fault)] * self._world
        dist.all_gather_object(every, (exchanges, fault), self._group)
        wrong = (f"process {rank} of its site: {one}" for rank, (_, one) in enumerate(every) if one)
        return len({one for one, _ in every}) > 1, next(wrong, "")

    def share(self, fragment: int | None) -> None:
        """Copies whole tensors, of a fragment or all, to all processes of this site, each from the one that exchanged it."""
        names = self._whole if fragment is None else [name for name in self._fragments[fragment] if name in self._whole]
        self._broadcast((self._whole[name], self._owners[name]) for name in names)
