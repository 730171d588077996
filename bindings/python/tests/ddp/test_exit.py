"""What a hook leaves behind when it ends: nothing that could need the interpreter while that goes away."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from ranks import Net, ddp, loss_of, results

import gradwire.torch


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def close(rank: int, world: int, codec: str, destroyed: bool) -> tuple[int, int, int]:
    """Threads before the hook, with it, and behind it."""
    parallel = ddp(Net())
    before = _threads()
    hook = gradwire.torch.compress(parallel, codec)
    for step in range(3):
        loss_of(parallel, step, rank).backward()
    during = _threads()
    if destroyed:
        dist.destroy_process_group()
        before = 0
    hook.close()
    hook.close()
    behind = _threads()
    # Where it is not destroyed, the group of the program is still there and works.
    if not destroyed:
        dist.barrier()
    return before, during, behind


@pytest.mark.parametrize("codec", ["topk:density=0.1", "powersgd:rank=1", "none"])
def test_the_threads_of_gloo_end_with_the_hook(codec: str) -> None:
    for before, during, behind in results(2, close, codec, False):
        assert during >= before + 4, "two threads of the hook, and at least two of gloo"
        assert behind == before


def test_they_end_too_where_the_program_has_destroyed_all_groups() -> None:
    """As at the end of a script, where the hook is the last to know the group."""
    for _, during, behind in results(3, close, "topk:density=0.1", True):
        assert behind <= during - 4


def closes_after_a_failure(rank: int, world: int) -> float:
    """Seconds that it takes to close a hook whose exchange has failed."""
    parallel = ddp(Net())
    hook = gradwire.torch.compress(parallel, "topk:density=0.1", timeout=30)
    loss_of(parallel, 0, rank).backward()
    if rank == 1:
        hook._exchange = None  # type: ignore[method-assign,assignment]
    with pytest.raises((TypeError, gradwire.torch.PeerFailedError)):
        loss_of(parallel, 1, rank).backward()
    began = time.monotonic()
    hook.close()
    return time.monotonic() - began


def test_a_hook_that_has_failed_is_closed_at_once() -> None:
    assert max(results(2, closes_after_a_failure)) < 2.5


def forks(rank: int, world: int) -> tuple[int, int]:
    """How a process ends that is forked from one with a hook, and runs what is registered for its exit; steps afterwards."""
    parallel = ddp(Net())
    hook = gradwire.torch.compress(parallel, "topk:density=0.1", timeout=15)
    for step in range(2):
        loss_of(parallel, step, rank).backward()
    child = os.fork()
    if child == 0:
        # Not all that torch has registered survives a fork; what the hook has is what is looked at.
        hook.close()
        os._exit(7)
    _, status = os.waitpid(child, 0)
    loss_of(parallel, 2, rank).backward()
    return os.waitstatus_to_exitcode(status), hook.step


def test_a_forked_process_leaves_the_hook_alone() -> None:
    assert results(2, forks) == [(7, 3)] * 2
