"""What a hook leaves behind when it ends: nothing that could need the interpreter while that goes away."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import hashlib
import io
import os
import signal
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import Net, break_engine, ddp, loss_of, results
from torch.utils.data import DataLoader

import gradwire
import gradwire.torch

#: A parameter of `mallopt`: from so many bytes on, memory that is freed goes back to the system.
M_MMAP_THRESHOLD = -3


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
def test_the_threads_end_with_the_hook(codec: str) -> None:
    for before, during, behind in results(2, close, codec, False):
        assert during == before + 2, "a thread of the hook, and one of the sockets"
        assert behind == before


def test_they_end_too_where_the_program_has_destroyed_all_groups() -> None:
    """As at the end of a script, where the hook is the last to know the group."""
    for _, during, behind in results(3, close, "topk:density=0.1", True):
        assert behind == during - 2


def lets_go(rank: int, world: int, kind: str) -> list[tuple[int, int, bool, bool]]:
    """After each of six models: threads, bytes of memory, and whether hook and model are gone."""
    # Else the C library keeps memory for later, as much as it likes.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 16)
    found = []
    for _ in range(6):
        model = Net(1500)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        if kind == "hook":
            run: Any = ddp(model)
            hook: Any = gradwire.torch.compress(run, "topk:density=0.01")
        else:
            run = model
            hook = gradwire.torch.DistributedOptimizer(inner, model.named_parameters(), "topk:density=0.01")
        for step in range(2):
            loss_of(run, step, rank).backward()
        gone = weakref.ref(hook), weakref.ref(model.embed.weight)
        del model, inner, run, hook
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        found.append((_threads(), pages * os.sysconf("SC_PAGE_SIZE"), gone[0]() is None, gone[1]() is None))
        # The next model of the other rank comes when this one is gone.
        dist.barrier()
    return found


@pytest.mark.parametrize("kind", ["hook", "optimizer"])
def test_a_hook_ends_with_its_model(kind: str) -> None:
    for found in results(2, lets_go, kind, seconds=400):
        threads, memory, hooks, models = zip(*found, strict=True)
        assert all(hooks)
        assert all(models)
        assert len(set(threads)) == 1
        # One model with its memories takes 200 MB.
        assert memory[-1] - memory[1] < 10e6


def closes_after_a_failure(rank: int, world: int) -> float:
    """Seconds that it takes to close a hook whose exchange has failed."""
    parallel = ddp(Net())
    hook = gradwire.torch.compress(parallel, "topk:density=0.1", timeout=30)
    loss_of(parallel, 0, rank).backward()
    if rank == 1:
        break_engine(hook, "on_encode")
    with pytest.raises((MemoryError, gradwire.torch.PeerFailedError)):
        loss_of(parallel, 1, rank).backward()
    began = time.monotonic()
    hook.close()
    return time.monotonic() - began


def test_a_hook_that_has_failed_is_closed_at_once() -> None:
    assert max(results(2, closes_after_a_failure)) < 2.5


def ends_as(child: int, said: Path) -> str:
    """What the child said, once it has ended; where it hangs, if it does."""
    deadline = time.monotonic() + 30
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGUSR1)
            time.sleep(1)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"hangs: {said.read_text()}"
        time.sleep(0.001)
    return said.read_text()


def in_child(call: Callable[[], str]) -> str:
    """What `call` returns in a process that is forked from this one."""
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "said").open("w") as said:
        faulthandler.register(signal.SIGUSR1, file=said)
        child = os.fork()
        if child == 0:
            try:
                said.write(call())
            except BaseException as error:
                said.write(repr(error))
            said.flush()
            # Not all that torch has registered for the exit survives a fork.
            os._exit(0)
        return ends_as(child, Path(said.name))


def digest(state: object) -> str:
    into = io.BytesIO()
    torch.save(state, into)
    return hashlib.sha256(into.getvalue()).hexdigest()


def forks(rank: int, world: int) -> tuple[dict[str, str], str, int]:
    """What children say that are forked right after a backward; the state at that time; steps afterwards."""
    parallel = ddp(Net())
    hook = gradwire.torch.compress(parallel, "topk:density=0.1", timeout=50)
    for step in range(2):
        loss_of(parallel, step, rank).backward()

    def closes() -> str:
        hook.close()
        return "closed"

    calls = {"close": closes, "state": lambda: digest(hook.state_dict()), "step": lambda: str(hook.step)}
    said = {name: in_child(call) for name, call in calls.items()}
    state = digest(hook.state_dict())
    loss_of(parallel, 2, rank).backward()
    return said, state, hook.step


def test_a_forked_process_has_the_state_and_leaves_the_hook_alone() -> None:
    for said, state, steps in results(2, forks):
        assert said == {"close": "closed", "state": state, "step": "2"}
        assert steps == 3


def forks_in_the_middle(rank: int, world: int) -> tuple[list[str], int]:
    """What children say that are forked while a thread of the hook holds a lock, and what is left of a step to do."""
    may_go, has_come = threading.Event(), threading.Event()
    may_go.set()

    class Slow:
        """A codec that keeps the engine waiting while it changes a memory."""

        def encode(self, values: np.ndarray, source: gradwire.UnitSource) -> bytes:
            has_come.set()
            may_go.wait(60)
            return values.astype(np.float16).tobytes()

        def decode(self, body: bytes, length: int) -> np.ndarray:
            return np.frombuffer(body, np.float16).astype(np.float32)

    gradwire.register("slow", Slow, number=0xF3)
    parallel = ddp(Net())
    hook = gradwire.torch.compress(parallel, "x:slow", timeout=50)
    loss_of(parallel, 0, rank).backward()
    hook._worker.settle()

    def closes() -> str:
        hook.close()
        return f"step {hook.step}"

    may_go.clear()
    has_come.clear()
    backward = threading.Thread(target=lambda: loss_of(parallel, 1, rank).backward())
    backward.start()
    assert has_come.wait(30)
    said = [in_child(call) for call in (closes, lambda: str(hook.stats().steps), lambda: digest(hook.state_dict()))]
    may_go.set()
    backward.join()
    return said, hook.step


def test_a_process_that_is_forked_in_the_middle_of_a_step_waits_for_no_thread() -> None:
    for (closed, stats, state), steps in results(2, forks_in_the_middle):
        assert (closed, stats) == ("step 1", "1")
        assert state.startswith("ExchangeError")
        assert "call it before the fork" in state
        assert steps == 2


def loads(rank: int, world: int) -> int:
    """Steps with batches that forked processes make."""
    parallel = ddp(Net())
    hook = gradwire.torch.compress(parallel, "topk:density=0.1", timeout=50)
    loader = DataLoader(range(12), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        for step, _ in enumerate(loader):
            loss_of(parallel, step, rank).backward()
    return hook.step


def test_a_loader_with_forked_workers_loads_for_a_model_with_a_hook() -> None:
    assert results(2, loads) == [6, 6]
