"""Numbers that ranks tell each other in a bucket of its own, ahead of those of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradwire import Codec, Layout
from gradwire._core import _Bucket, _Share

from ._plan import CPU


class Word:
    """So many numbers of each rank, as a lane of the engine. All ranks hear the same bits."""

    def __init__(self, lane: int, rank: int, world: int, count: int) -> None:
        """With the number of the lane."""
        self._lane, self._rank, self._world = lane, rank, world
        self._codec = Codec("none")
        self._layout = Layout([("what each rank says", (world, count))])
        self._units = self._codec.units(self._layout)
        # A row for each rank, which the others leave at 0. So the sum has what each of them said, bit for bit.
        self._said = torch.zeros(world, count, dtype=torch.float32, device=CPU)
        address = self._said.data_ptr()
        self._share = _Share(lane, [(self._units[0][0], world * count, address, address)])

    @property
    def lane(self) -> tuple[Any, ...]:
        """As the engine makes it."""
        return self._codec, self._layout, self._units, False, "f32"

    def bucket(self, own: Sequence[float], opening: Any, agreed: int, failure: BaseException | None = None) -> _Bucket:
        """What begins a step, with what this rank says, or why it fails."""
        self._said.zero_()
        self._said[self._rank] = torch.tensor(own, dtype=torch.float32, device=CPU)
        lanes, codecs, scale, lr = opening
        return _Bucket(
            0,
            False,
            done=lambda _: None,
            keep=self._said,
            agreed=agreed,
            opening=([*lanes, self._lane], [*codecs, self._codec], scale, lr),
            shares=[self._share],
            failure=failure,
        )

    def heard(self) -> list[list[float]]:
        """What each rank said, once that bucket is a mean."""
        return [[self._world * float(mean) for mean in row] for row in self._said]
