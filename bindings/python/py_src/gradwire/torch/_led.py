"""Sites of several processes that come and go: the first process of a site exchanges for all, which DDP keeps together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ._errors import ExchangeError
from ._plan import on_cpu
from ._within import Together


class Led(Together):
    """One process of a site, the first of which leads."""

    def __init__(self, within: dist.ProcessGroup, tensors: Mapping[str, torch.Tensor]) -> None:
        """With all that the site trains."""
        super().__init__(within, tensors)
        self.leads = self._rank == 0

    def check(self, exchanges: int) -> None:
        """Raises at all processes if they trained apart."""
        if (failure := self.trained_apart(exchanges)) is not None:
            raise failure

    def tell(self, place: Sequence[int], failure: BaseException | None = None) -> list[int]:
        """Where the leader is, at all processes. If it has failed, all raise."""
        told = torch.stack([self._zero + one for one in (failure is not None, *place)])
        try:
            self._broadcast([(told, 0)])
        except ExchangeError as error:
            failure = failure or error
        if failure is not None:
            raise failure
        found: list[int] = told.tolist()
        if found[0]:
            raise ExchangeError("the first process of this site, which exchanges for it, has failed, and says why")
        return found[1:]

    def share(self) -> None:
        """Copies the leader's parameters to all."""
        self._broadcast([(tensor, 0) for tensor in self._whole.values()])

    def share_object(self, own: Any) -> Any:
        """That object of the leader."""
        held = [on_cpu(own) if self.leads else None]
        dist.broadcast_object_list(held, dist.get_global_rank(self._group, 0), self._group)
        return held[0]
