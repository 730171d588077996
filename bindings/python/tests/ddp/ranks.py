"""Runs a function at several ranks, each a process with gloo."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map

from gradwire.torch import _plan
from gradwire.torch._engine import Bucket, Engine

#: Where ranks have their models and data. With "cuda" all ranks share one GPU.
DEVICE = os.environ.get("GRADWIRE_TEST_DEVICE", "cpu")

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["pytest", "torch._dynamo", "torch.optim", "torch.nn.parallel", "gradwire.torch"])


class Died:
    """In place of the result of a rank that returned none: how its process ended."""

    def __init__(self, code: int | None) -> None:
        self.code = code

    def __repr__(self) -> str:
        return f"Died({self.code})"


class Raised:
    """In place of the result of a rank that raised."""

    def __init__(self, error: BaseException, seconds: float) -> None:
        self.name, self.text, self.seconds = type(error).__name__, str(error), seconds
        self.trace = "".join(traceback.format_exception(error))

    def __repr__(self) -> str:
        return self.trace


def use_device() -> None:
    """From now on this process makes its tensors on the device that is tested, and the same bits each time."""
    if DEVICE != "cpu":
        _plan._check_device = lambda *_: None
        torch.set_default_device(DEVICE)
        torch.use_deterministic_algorithms(True, warn_only=True)


def _main(
    rank: int, world: int, folder: str, seconds: float, end: Connection, call: Callable[..., Any], args: Sequence[Any]
) -> None:
    torch.set_num_threads(1)
    # What hangs says where, also with the lock of the interpreter held.
    stacks = _stacks(folder, rank).open("w")
    faulthandler.dump_traceback_later(max(seconds - 3, 1), file=stacks)
    meeting = Path(folder) / "meeting"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    # A rank that is done at once would close connections that the others have not accepted yet: their meeting fails.
    dist.barrier()
    use_device()
    started = time.monotonic()
    try:
        result = call(rank, world, *args)
    except BaseException as error:
        result = Raised(error, time.monotonic() - started)
    end.send(tree_map(lambda part: part.cpu() if isinstance(part, torch.Tensor) else part, result))
    end.close()


def run(world: int, call: Callable[..., Any], *args: Any, seconds: float = 120, on_pids: Any = None) -> list[Any]:
    """What `call(rank, world, *args)` returned at each rank; :class:`Raised` or :class:`Died` where it did not return."""
    with tempfile.TemporaryDirectory() as folder:
        pipes = [CONTEXT.Pipe(duplex=False) for _ in range(world)]
        ranks = [
            CONTEXT.Process(target=_main, args=(rank, world, folder, seconds, pipes[rank][1], call, args))
            for rank in range(world)
        ]
        for process in ranks:
            process.start()
        for _, end in pipes:
            end.close()
        if on_pids is not None:
            on_pids([process.pid for process in ranks])
        results: list[Any] = [None] * world
        open_ends = {pipes[rank][0]: rank for rank in range(world)}
        deadline = time.monotonic() + seconds
        try:
            while open_ends:
                ready = wait(list(open_ends), timeout=deadline - time.monotonic())
                assert ready, _hanging(folder, sorted(open_ends.values()), results)
                for end in ready:
                    rank = open_ends.pop(end)
                    try:
                        results[rank] = end.recv()
                    except EOFError:
                        ranks[rank].join(10)
                        results[rank] = Died(ranks[rank].exitcode)
                # A stopped rank never answers: once all others have, it is killed.
                if open_ends and all(_is_stopped(ranks[rank].pid) for rank in open_ends.values()):
                    for rank in open_ends.values():
                        ranks[rank].kill()
            for rank, process in enumerate(ranks):
                process.join(15)
                assert process.exitcode is not None, f"rank {rank} does not exit"
                if not isinstance(results[rank], Died):
                    assert process.exitcode == 0, f"rank {rank} ended with {process.exitcode}"
        finally:
            for process in ranks:
                with contextlib.suppress(Exception):
                    process.kill()
                    process.join(5)
    return results


def _stacks(folder: str, rank: int) -> Path:
    return Path(folder) / f"stacks-{rank}"


def _hanging(folder: str, ranks: list[int], results: list[Any]) -> str:
    stacks = "".join(f"rank {rank}:\n{_stacks(folder, rank).read_text()}" for rank in ranks)
    return f"ranks {ranks} hang; the others: {results}\n{stacks}"


def _is_stopped(pid: int | None) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def results(world: int, call: Callable[..., Any], *args: Any, seconds: float = 120) -> list[Any]:
    """As :func:`run`, where every rank has to return."""
    found = run(world, call, *args, seconds=seconds)
    for rank, result in enumerate(found):
        assert not isinstance(result, Raised | Died), f"rank {rank}: {result!r}"
    return found


class Net(nn.Module):
    """A few layers of several sizes: small ones, one that some steps do not use, and one that none does."""

    def __init__(self, width: int = 48, unused: bool = False) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.embed = nn.Embedding(40, width)
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 2 * width)
        self.sometimes = nn.Linear(2 * width, 2 * width)
        self.head = nn.Linear(2 * width, 10)
        if unused:
            self.never = nn.Linear(width, width)

    def forward(self, tokens: torch.Tensor, skip: bool = False) -> torch.Tensor:
        hidden = torch.tanh(self.inner(self.norm(self.embed(tokens).mean(1))))
        if not skip:
            hidden = hidden + torch.tanh(self.sometimes(hidden))
        return self.head(hidden)


def batch(step: int, rank: int, world: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch that is the same whenever it is asked for."""
    random = torch.Generator().manual_seed(1000 * step + rank)
    tokens = torch.randint(0, 40, (8, 5), generator=random, device="cpu").to(DEVICE)
    return tokens, tokens.sum(1) % 10


def normal(seed: int, *shape: int) -> torch.Tensor:
    """Normal draws that are the same whenever they are asked for."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), device="cpu").to(DEVICE)


def loss_of(model: nn.Module, step: int, rank: int, **kwargs: Any) -> torch.Tensor:
    tokens, targets = batch(step, rank)
    return nn.functional.cross_entropy(model(tokens, **kwargs), targets)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, rank: int) -> None:
    """With a batch of its own at each step."""
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step, rank).backward()
        optimizer.step()


def ddp(model: nn.Module, **options: Any) -> DistributedDataParallel:
    options.setdefault("bucket_cap_mb", 0.02)
    if options["bucket_cap_mb"] is None:
        del options["bucket_cap_mb"]
    return DistributedDataParallel(model, **options)


def broken(*_: Any) -> Any:
    """What the thread of an engine raises where a test wants it to fail."""
    raise MemoryError("no room")


def break_engine(hook: Engine, what: str, where: Callable[[Bucket], bool] = lambda job: True) -> None:
    """From now on the thread of the engine raises in some buckets: ``on_encode`` or ``on_decode``."""
    hand_over = hook._worker.hand_over

    def handed_over(job: Bucket) -> None:
        if where(job):
            setattr(job, what, broken)
        hand_over(job)

    hook._worker.hand_over = handed_over  # type: ignore[method-assign]


def parameters(model: nn.Module) -> bytes:
    """The bytes of all parameters."""
    return b"".join(parameter.detach().cpu().numpy().tobytes() for parameter in model.parameters())
