"""The state of a step under way does not exist: what is read, loaded or broken off in its middle is that of the step before."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Net, Raised, ddp, loss_of, parameters, results, run
from test_state_damage import CODECS, NAME, texts

import gradwire.torch
from gradwire.torch import DistributedOptimizer
from gradwire.torch._engine import Bucket


def in_the_middle(rank: int, world: int, codec: str) -> list[Any]:
    """Backward ends early, by an exception of the user: the state is that of the last complete step, and loads."""
    model = Net()
    parallel = ddp(model, bucket_cap_mb=0.005)
    hook = gradwire.torch.compress(parallel, codec, check_every=1, timeout=20)
    for step in range(3):
        model.zero_grad()
        loss_of(parallel, step, rank).backward()
    good = hook.state_dict()
    norm = hook.stats().residual_norm

    def bug(_: torch.Tensor) -> None:
        raise KeyError("a bug of the user")

    model.norm.weight.register_hook(bug)
    with pytest.raises(KeyError):
        loss_of(parallel, 3, rank).backward()
    began = time.monotonic()
    same = [texts(hook.state_dict()) == texts(good), hook.step == 3, hook.stats().residual_norm == norm]
    same.append(bool(torch.equal(hook.residual(NAME), good["residual"][NAME])) if good["residual"] else True)
    # The other buckets of the step come to nothing once a state is loaded.
    hook.load_state_dict(good)
    same += [texts(hook.state_dict()) == texts(good), time.monotonic() - began < 5]
    fresh = Net()
    fresh.load_state_dict(model.state_dict())
    again = ddp(fresh, bucket_cap_mb=0.005)
    other = gradwire.torch.compress(again, codec, check_every=1)
    other.load_state_dict(hook.state_dict())
    hook.close()
    loss_of(again, 3, rank).backward()
    return [*same, other.step == 4]


def all_in_the_middle(rank: int, world: int) -> dict[str, list[Any]]:
    return {codec: in_the_middle(rank, world, codec) for codec in (*CODECS, "qsgd:bits=4")}


def test_a_state_that_is_read_in_the_middle_of_a_step_is_that_before_it() -> None:
    for found in results(2, all_in_the_middle):
        assert all(all(same) for same in found.values()), found


def loaded_in_the_middle(rank: int, world: int) -> list[bool]:
    """A bucket is encoded, and then a state is loaded: the next step begins with what was loaded."""
    found = []
    for loads in (False, True):
        model = Net()
        parallel = ddp(model)
        hook = gradwire.torch.compress(parallel, "topk:density=0.02", check_every=1)
        for step in range(2):
            model.zero_grad()
            loss_of(parallel, step, rank).backward()
        good = hook.state_dict()
        if loads:
            slot = hook._worker.plan.groups[0].slots[-1]
            hook._worker.hand_over(
                Bucket(0, False, positions=(slot.tensor.position,), gradients=[torch.ones(slot.tensor.shape)])
            )
            hook._worker.wait()
            hook.load_state_dict(good)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.zero_grad()
            loss_of(parallel, 2, rank).backward()
        found.append(texts(hook.state_dict()))
    return [found[0] == found[1]]


def test_what_is_loaded_in_the_middle_of_a_step_is_what_the_next_one_begins_with() -> None:
    assert results(2, loaded_in_the_middle) == [[True], [True]]


def interrupt_a_wait(hook: Any) -> None:
    """Presses Ctrl-C once the next step waits for means."""
    # A shell has what it starts in the background ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    await_means, waits, pid = hook._worker.await_means, threading.Event(), os.getpid()

    def noted() -> None:
        waits.set()
        await_means()

    def press() -> None:
        waits.wait(20)
        time.sleep(0.3)
        os.kill(pid, signal.SIGINT)

    hook._worker.await_means = noted
    threading.Thread(target=press).start()


def interrupted(rank: int, world: int, codec: str, is_optimizer: bool) -> tuple[bool, float, str]:
    """Ctrl-C while rank 0 waits for rank 1, which does not come: what is saved then, and how long that takes."""
    model = Net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    if is_optimizer:
        optimizer = DistributedOptimizer(inner, model.named_parameters(), codec, timeout=60)
        hook, module = optimizer.exchange, model
    else:
        module = ddp(model, bucket_cap_mb=0.005)
        hook = gradwire.torch.compress(module, codec, timeout=60)
    for step in range(2):
        model.zero_grad()
        loss_of(module, step, rank).backward()
    good, weights = texts(hook.state_dict()), parameters(model)
    if rank == 1:
        # If its process ended before, that would be what the other one hears of.
        dist.barrier()
        return True, 0.0, ""
    interrupt_a_wait(hook)
    with pytest.raises(KeyboardInterrupt):
        loss_of(module, 2, rank).backward()
    began = time.monotonic()
    same = texts(hook.state_dict()) == good and hook.step == 2 and parameters(model) == weights
    hook.stats()
    hook.residual("inner.weight") if codec != "none" else None
    took = time.monotonic() - began
    with pytest.raises(gradwire.torch.ExchangeError, match="the wait for it was interrupted") as later:
        hook._worker.finish()
    hook.close()
    dist.barrier()
    return same, took, str(later.value)


@pytest.mark.parametrize(("codec", "is_optimizer"), [("topk:density=0.05", False), ("powersgd:rank=2", True)])
def test_a_state_can_be_saved_at_once_after_ctrl_c_in_a_wait(codec: str, is_optimizer: bool) -> None:
    first, _ = run(2, interrupted, codec, is_optimizer)
    assert not isinstance(first, Raised), first
    same, took, text = first
    assert same
    assert took < 1
    assert text == "step 2: the wait for it was interrupted"


def interrupted_late(rank: int, world: int) -> list[bool]:
    """The other rank comes after all, once nobody waits: the step does not hold where its means were not taken."""
    parallel = ddp(Net(), bucket_cap_mb=0.005)
    hook = gradwire.torch.compress(parallel, "powersgd:rank=1", timeout=30)
    # DDP cuts its buckets anew in the second step, with a collective of its own.
    for step in range(2):
        loss_of(parallel, step, rank).backward()
    good = texts(hook.state_dict())
    if rank == 1:
        time.sleep(2)
        with contextlib.suppress(gradwire.torch.ExchangeError):
            loss_of(parallel, 2, rank).backward()
        return [True]
    interrupt_a_wait(hook)
    with pytest.raises(KeyboardInterrupt):
        loss_of(parallel, 2, rank).backward()
    before = texts(hook.state_dict()) == good
    time.sleep(3)
    return [before, texts(hook.state_dict()) == good, hook.step == 2]


def test_a_step_that_was_broken_off_does_not_hold_later() -> None:
    for found in results(2, interrupted_late):
        assert all(found)
