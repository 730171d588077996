"""Ranks wait for each other from when anything last moved between them: a slow link is not a lost rank."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from ranks import ddp, results
from relay import Relay
from torch import nn

import gradwire.torch
from gradwire import Listener
from gradwire.torch import _meet

TIMEOUT = 3.0
#: Seconds that each piece takes over the slow link.
PAUSE = 0.04
#: Parameters whose gradient takes a few times TIMEOUT over it, beside what the buffers of the system hold.
COUNT = 5_000_000


class SlowListener:
    """Others reach this rank over a slow link."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        listener = Listener(*args, **kwargs)
        self.join = listener.join
        self.address = Relay(listener.address, lambda _: time.sleep(PAUSE)).address


def train(rank: int, world: int, slow: int, codec: str) -> tuple[float, float]:
    """Two steps; the seconds of the second one and what the gradient was."""
    if rank == slow:
        _meet.Listener = SlowListener  # type: ignore[misc]
    model = nn.Linear(COUNT, 1, bias=False)
    parallel = ddp(model, bucket_cap_mb=None)
    hook = gradwire.torch.compress(parallel, codec, timeout=TIMEOUT, encrypt=False, check_every=0)
    for _ in range(2):
        started = time.monotonic()
        model.zero_grad()
        parallel(torch.full((1, COUNT), 1.0 + rank)).sum().backward()
    gradient = model.weight.grad
    assert gradient is not None
    assert bool((gradient == gradient[0, 0]).all())
    hook.close()
    return time.monotonic() - started, float(gradient[0, 0])


@pytest.mark.parametrize(("world", "slow"), [(2, 0), (3, 1)])
def test_a_bucket_may_travel_for_longer_than_ranks_wait(world: int, slow: int) -> None:
    """With three ranks, the link between the last two is slow, and the first one hears from them that it works."""
    found: list[Any] = results(world, train, slow, "none")
    assert {gradient for _, gradient in found} == {(1 + world) / 2}
    assert max(seconds for seconds, _ in found) > 2 * TIMEOUT, "the link was quick"
