"""`torchrun --nnodes=1:2`: a host joins a training and dies, and the ranks that are there go on.

With the hook they go on from what all had kept, which lies in a folder that all see; with local steps each from its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from test_restart import end_with_parent

PROGRAM = """
import json, os, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_restart import end_with_parent
end_with_parent()
import torch
import torch.distributed as dist
from ranks import Net, ddp, loss_of, use_device
import gradwire.torch

torch.set_num_threads(1)
use_device()
folder = Path(sys.argv[1])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = Net()
parallel = ddp(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
hook = gradwire.torch.compress(parallel, "topk:density=0.05", check_every=1, timeout=20)


def path(step, rank, world):
    return folder / f"{{step}}.{{rank}}.{{world}}.pt"


# The last step after which all ranks of that time have saved.
saved = [tuple(map(int, found.stem.split("."))) for found in folder.glob("*.pt")]
whole = [(step, old) for step, rank, old in saved if rank == 0 and all(path(step, one, old).exists() for one in range(old))]
if whole:
    step, old = max(whole)
    states = [torch.load(path(step, one, old), weights_only=True) for one in range(old)]
    model.load_state_dict(states[0]["model"])
    hook.load_state_dict([state["hook"] for state in states])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
while True:
    optimizer.zero_grad()
    loss_of(parallel, hook.step, rank).backward()
    optimizer.step()
    partial = folder / f"partial{{rank}}"
    torch.save({{"model": model.state_dict(), "hook": hook.state_dict()}}, partial)
    partial.replace(path(hook.step, rank, world))
    with (folder / "log").open("a") as log:
        log.write(json.dumps([hook.step, rank, world, attempt]) + "\\n")
    time.sleep(0.1)
"""


LOCAL = """
import json, os, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_restart import end_with_parent
end_with_parent()
import torch
import torch.distributed as dist
from ranks import Net, adamw, train, use_device
from gradwire.torch import LocalSteps

torch.set_num_threads(1)
use_device()
folder, site = Path(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = Net()
optimizer = LocalSteps(model, adamw(model), "nesterov", 2, "topk:density=0.05", check_every=1, timeout=20)
own, partial = folder / f"{{site}}.pt", folder / f"{{site}}.partial"
made = optimizer.rejoin(torch.load(own, weights_only=True) if own.exists() else None)
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
while True:
    train(model, optimizer, range(2 * made, 2 * made + 2), rank)
    made += 1
    torch.save(optimizer.state_dict(), partial)
    partial.replace(own)
    with (folder / "log").open("a") as log:
        log.write(json.dumps([made, rank, world, attempt]) + "\\n")
    time.sleep(0.1)
"""


@contextlib.contextmanager
def agent(folder: Path, port: int, site: str) -> Iterator[subprocess.Popen[bytes]]:
    """A host with one rank. Both are on this machine."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=1"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=grows", "--local-addr=127.0.0.1"),
        # A host waits so long for others to begin with, and one that is silent for so long is gone.
        *("--rdzv-conf=last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=5", "--monitor-interval=0.1"),
    ]
    # Else hosts that are there already do not tell one that joins where to meet, and torchrun ends.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with (folder / f"host{time.monotonic()}").open("wb") as said:
        process = subprocess.Popen(
            [*command, str(folder / "program.py"), str(folder), site],
            env=environment,
            stdout=said,
            stderr=said,
            preexec_fn=end_with_parent,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(20)


def lines(folder: Path) -> list[tuple[int, int, int, int]]:
    """Of each step that was taken: its number, the rank, the ranks, and how often they were started again."""
    log = folder / "log"
    return [tuple(json.loads(line)) for line in log.read_text().splitlines()] if log.exists() else []


def wait_for(folder: Path, what: Callable[[list[Any]], bool]) -> None:
    ends = time.monotonic() + 240
    while not what(lines(folder)):
        told = "\n".join(found.read_text() for found in folder.glob("host*"))
        assert time.monotonic() < ends, f"{lines(folder)[-3:]}\n{told}"
        time.sleep(0.1)


@pytest.mark.parametrize("program", [PROGRAM, LOCAL], ids=["hook", "local steps"])
def test_a_host_may_join_and_die(tmp_path: Path, program: str) -> None:
    (tmp_path / "program.py").write_text(program.format(tests=str(Path(__file__).parent)))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with agent(tmp_path, port, "first"):
        wait_for(tmp_path, lambda seen: len(seen) >= 3)
        with agent(tmp_path, port, "second") as second:
            wait_for(tmp_path, lambda seen: sum(world == 2 and rank == 1 for _, rank, world, _ in seen) >= 3)
            second.send_signal(signal.SIGKILL)
            second.wait(20)
            wait_for(tmp_path, lambda seen: sum(world == 1 and attempt == 1 for *_, world, attempt in seen) >= 3)
    seen = [(step, world, attempt) for step, rank, world, attempt in lines(tmp_path) if rank == 0]
    # That a host joins is not counted by torchrun, that the other one is lost is.
    assert list(dict.fromkeys(one[1:] for one in seen)) == [(1, 0), (2, 0), (1, 1)]
    for (before, *of_it), (step, *of_other) in pairwise(seen):
        # Where ranks are started again, a step that not all had saved is repeated, and one that all had may not stand here.
        assert step - before in ((1,) if of_it == of_other else (0, 1, 2)), seen
