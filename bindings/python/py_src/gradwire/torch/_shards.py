"""Parameters that FSDP2 has split: what stands for the shard of this process where gradients are exchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ._plan import is_split, local

_Place = tuple[int, str, torch.nn.Parameter]


class Shards:
    """Those of an optimizer. None, if nothing is split."""

    def __init__(self, places: Sequence[_Place], group: dist.ProcessGroup | None) -> None:
        """Of parameters with their positions and names. The process group is that of the ranks with the same shards."""
        #: Split parameters, and in their place parameters in the memory of this process's shard.
        self.pairs: list[tuple[torch.nn.Parameter, torch.nn.Parameter]] = []
        self.places: list[_Place] = []
        for position, name, parameter in places:
            stand = parameter
            if is_split(parameter):
                _check_group(name, parameter, group)
                stand = torch.nn.Parameter(local(parameter), parameter.requires_grad)
                self.pairs.append((parameter, stand))
            self.places.append((position, name, stand))

    def lend(self) -> None:
        """From now on, gradients of shards are those of what stands for them, in the same memory."""
        for parameter, stand in self.pairs:
            stand.data = local(parameter)
            stand.grad = None if parameter.grad is None else local(parameter.grad)

    def take_back(self) -> None:
        """Afterwards those that only other ranks had are here, too."""
        for parameter, stand in self.pairs:
            if parameter.grad is None and stand.grad is not None:
                parameter.grad = torch.zeros_like(parameter)
                local(parameter.grad).copy_(stand.grad)
            stand.grad = None


def _check_group(name: str, parameter: torch.nn.Parameter, group: dist.ProcessGroup | None) -> None:
    split: Any = parameter
    ranks = set() if group is None else {*split.device_mesh.mesh.flatten().tolist()} & {*dist.get_process_group_ranks(group)}
    if ranks != {dist.get_rank()}:
        raise ValueError(
            f"{name}: it is split over processes, as FSDP does; pass group=, the ranks that have the same shard of it"
        )
