"""A residual that grows at once is spoken of, once; what a loop throws away is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from ranks import Net, ddp, loss_of, results

import gradwire.torch
from gradwire.torch import DistributedOptimizer, LocalSteps
from gradwire.torch._spikes import Spikes


def seen(norms: list[float]) -> Spikes:
    spikes = Spikes()
    for step, norm in enumerate(norms):
        spikes.see(step, norm)
    return spikes


def test_a_norm_of_many_times_the_median_is_told_once() -> None:
    spikes = seen([1.0, 3.0] * 6)
    assert spikes.tell(12) is None
    spikes.see(12, 50.0)
    # It is not what norms are from now on.
    spikes.see(13, 100.0)
    spikes.see(14, 70.0)
    # The loop may still throw it away.
    assert spikes.tell(13) is None
    told = spikes.tell(14)
    assert told is not None
    assert told.startswith("step 13: what this rank keeps back is 33 times what it was")
    spikes.see(15, 200.0)
    assert spikes.tell(16) is None


@pytest.mark.parametrize(
    "norms",
    [
        [0.0] * 40 + [100.0],
        [1.0] * 9 + [100.0],
        [1.1**step for step in range(200)],
        [],
    ],
    ids=["from nothing", "too few", "slowly", "none"],
)
def test_what_is_young_grows_slowly_or_begins_from_nothing_is_not_spoken_of(norms: list[float]) -> None:
    assert seen(norms).tell(1000) is None


def test_what_was_discarded_or_changed_by_the_user_is_not_spoken_of() -> None:
    spikes = seen([1.0] * 10 + [100.0])
    spikes.discard()
    assert spikes.tell(11) is None
    spikes.see(11, 100.0)
    spikes.forget()
    spikes.see(12, 1000.0)
    assert spikes.tell(13) is None


def warned(rank: int, world: int, discards: bool, follows: bool) -> list[str]:
    """Of thirty steps, one has a large gradient at rank 1; the learning rate falls to a thousandth."""
    model = Net()
    parallel = ddp(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = gradwire.torch.compress(parallel, "topk:density=0.05", optimizer=optimizer if follows else None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(30):
            optimizer.zero_grad()
            is_bad = step == 20 and rank == 1
            (loss_of(parallel, step, rank) * (1e5 if is_bad else 1.0)).backward()
            if step == 20 and discards:
                hook.discard()
            elif step < 20:
                # What is sent of the spike later would make gradients of all ranks large.
                optimizer.step()
            if follows and step == 12:
                optimizer.param_groups[0]["lr"] *= 1e-3
        hook.stats()
    hook.close()
    return [str(one.message) for one in caught if "keeps back" in str(one.message)]


def test_a_rank_speaks_of_its_own_spike_unless_it_is_discarded() -> None:
    first, second = results(2, warned, False, False)
    assert first == []
    assert len(second) == 1
    assert second[0].startswith("gradwire: step 20: what this rank keeps back is ")
    assert "hook.discard()" in second[0]
    assert results(2, warned, True, True) == [[], []]


def without_ddp(rank: int, world: int, wrap: Callable[[Net], DistributedOptimizer | LocalSteps]) -> list[str]:
    """Of 23 steps, one has a large gradient at rank 1."""
    model = Net()
    optimizer = wrap(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(23):
            optimizer.zero_grad()
            (loss_of(model, step, rank) * (1e5 if step == 20 and rank == 1 else 1.0)).backward()
            optimizer.step()
        optimizer.exchange.stats()
    optimizer.close()
    return [str(one.message) for one in caught if "keeps back" in str(one.message)]


def exchanged(model: Net) -> DistributedOptimizer:
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    return DistributedOptimizer(inner, model.named_parameters(), "topk:density=0.05")


def alone(model: Net) -> LocalSteps:
    return LocalSteps(model, torch.optim.SGD(model.parameters(), lr=0.1), "average", 1, "topk:density=0.05")


@pytest.mark.parametrize(
    ("wrap", "remedy"),
    [(exchanged, "call optimizer.exchange.discard() in place"), (alone, "To keep it small, clip gradients before step()")],
)
def test_without_ddp_a_rank_speaks_of_its_own_spike_too(
    wrap: Callable[[Net], DistributedOptimizer | LocalSteps], remedy: str
) -> None:
    first, second = results(2, without_ddp, wrap)
    assert first == []
    assert len(second) == 1
    assert second[0].startswith("gradwire: step 20: what this rank keeps back is ")
    assert remedy in second[0]
