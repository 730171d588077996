"""Parameters that FSDP2 has split: what stands for the shard of this process where gradients are exchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ._plan import Named, is_split, local

Place = tuple[int, str, torch.nn.Parameter]


class Shards:
    """The parameters of an optimizer, each with what stands for it: another one in the memory of the shard, or it itself."""

    def __init__(self, places: Sequence[Place], group: dist.ProcessGroup | None) -> None:
        """Of parameters with their positions and names. The process group is that of the ranks with the same shards."""
        #: With what stands for them.
        self.places: list[Place] = []
        self._split: dict[int, torch.nn.Parameter] = {}
        for position, name, parameter in places:
            stand = parameter
            if is_split(parameter):
                _check_group(name, parameter, group)
                stand = torch.nn.Parameter(local(parameter), parameter.requires_grad)
                self._split[id(stand)] = parameter
            self.places.append((position, name, stand))

    def of(self, tensor: Named) -> torch.nn.Parameter:
        """The parameter for which the tensor's stands."""
        return self._split.get(id(tensor.parameter), tensor.parameter)

    def lend(self, tensors: Sequence[Named]) -> None:
        """From now on the gradients of shards are those of what stands for them, in the same memory."""
        for stand, parameter in self._pairs(tensors):
            stand.data = local(parameter)
            stand.grad = None if parameter.grad is None else local(parameter.grad)

    def take_back(self, tensors: Sequence[Named]) -> None:
        """Afterwards gradients that only other ranks had are here, too."""
        for stand, parameter in self._pairs(tensors):
            if parameter.grad is None and stand.grad is not None:
                parameter.grad = torch.zeros_like(parameter)
                local(parameter.grad).copy_(stand.grad)
            stand.grad = None

    def _pairs(self, tensors: Sequence[Named]) -> list[tuple[torch.nn.Parameter, torch.nn.Parameter]]:
        stands = (tensor.parameter for tensor in tensors)
        return [(stand, self._split[id(stand)]) for stand in stands if id(stand) in self._split]


def _check_group(name: str, parameter: torch.nn.Parameter, group: dist.ProcessGroup | None) -> None:
    split: Any = parameter
    ranks = set() if group is None else {*split.device_mesh.mesh.flatten().tolist()} & {*dist.get_process_group_ranks(group)}
    if ranks != {dist.get_rank()}:
        raise ValueError(
            f"{name}: it is split over processes, as FSDP does; pass group=, the ranks that have the same shard of it"
        )
