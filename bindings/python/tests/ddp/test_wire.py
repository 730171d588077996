"""Collectives of the hook alone: what arrives, what is sent, and in which order sums are added."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import results

from gradwire.torch._wire import Wire

SIZES = (1, 8_192, 8_193, 100_003, 1_000_000, 2_200_001)


def wire() -> Wire:
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    return Wire(group)


def values_of(rank: int, size: int) -> np.ndarray:
    """Of so many magnitudes that another order of addition gives another sum."""
    random = np.random.default_rng([rank, size])
    return (random.normal(size=size) * 10.0 ** random.integers(-6, 6, size)).astype(np.float32)


def summed(rank: int, world: int) -> list[tuple[bytes, int, int]]:
    own, found = wire(), []
    for size in SIZES:
        values, before = torch.from_numpy(values_of(rank, size)), own.sent
        own.reduce(values)
        found.append((values.numpy().tobytes(), own.sent - before, own.received))
    largest = torch.from_numpy(values_of(rank, 50_000))
    own.reduce(largest, "max")
    return [*found, (largest.numpy().tobytes(), 0, 0)]


@pytest.mark.parametrize("world", [2, 3])
def test_sums_are_added_in_rank_order_and_cost_what_a_ring_costs(world: int) -> None:
    ranks = results(world, summed)
    assert all([row[0] for row in rows] == [row[0] for row in ranks[0]] for rows in ranks)
    for size, (data, sent, _) in zip(SIZES, ranks[0], strict=False):
        total = values_of(0, size)
        for rank in range(1, world):
            total += values_of(rank, size)
        assert data == total.tobytes(), size
        if size > SIZES[1]:
            # Segments are rounded up to a whole share for each rank.
            assert 0 <= sent - 8 * size * (world - 1) / world < 8 * world
    assert ranks[0][-1][0] == np.max([values_of(rank, 50_000) for rank in range(world)], axis=0).tobytes()


def mailed(rank: int, world: int) -> list[list[bytes]]:
    own, found = wire(), []
    # A short message after a long one, of more and of fewer bytes in all.
    for length, room in ((5_000, 6_000), (3, 6_000), (3, 100), (200, 100)):
        frame = bytes([rank + 1]) * (length + rank)
        headers, begun = own.gather_messages(bytes([rank] * 16), frame, room)
        assert [bytes(header) for header in headers] == [bytes([other] * 16) for other in range(world)]
        sizes = [length + other for other in range(world)]
        found.append([bytes(data) for data in begun])
        rest = own.gather_rest(frame, begun, sizes, room)
        assert [bytes(data) for data in rest] == [bytes([other + 1]) * size for other, size in enumerate(sizes)]
    return found


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_message_holds_the_frame_and_zeros(world: int) -> None:
    for rank, found in enumerate(results(world, mailed)):
        for (length, room), begun in zip(((5_000, 6_000), (3, 6_000), (3, 100), (200, 100)), found, strict=True):
            for other, data in enumerate(begun):
                held = (bytes([other + 1]) * (length + other))[:room]
                assert data == (held if other == rank else held + bytes(room - len(held)))
