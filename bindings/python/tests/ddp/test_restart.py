"""`torchrun --max-restarts`: where a rank dies, all are started again, and go on from the checkpoint to the same bits."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_restart import end_with_parent
end_with_parent()
import torch
import torch.distributed as dist
from ranks import Net, ddp, loss_of, parameters, use_device
import gradwire.torch

torch.set_num_threads(1)
use_device()
folder, kills = Path(sys.argv[1]), sys.argv[2] == "kills" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
dist.init_process_group("gloo")
rank = dist.get_rank()
model = Net()
parallel = ddp(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
hook = gradwire.torch.compress(parallel, "topk:density=0.05", check_every=1, timeout=20)
saved = folder / f"rank{{rank}}.pt"
if saved.exists():
    state = torch.load(saved, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    hook.load_state_dict(state["hook"])
for step in range(hook.step, 8):
    if kills and (step, rank) == (6, 1):
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    loss_of(parallel, step, rank).backward()
    optimizer.step()
    if step == 3:
        torch.save({{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "hook": hook.state_dict()}}, saved)
(folder / f"end{{rank}}").write_bytes(parameters(model))
(folder / f"steps{{rank}}").write_text(str(hook.stats().steps))
dist.destroy_process_group()
"""


def end_with_parent() -> None:
    """So that nothing stays where a test is killed, and with it torchrun."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def torchrun(folder: Path, *, kills: bool) -> list[bytes]:
    folder.mkdir()
    program = folder / "program.py"
    program.write_text(PROGRAM.format(tests=str(Path(__file__).parent)))
    command = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "--max-restarts=1",
        "--monitor-interval=0.1",
    ]
    # Else ranks that are started again find in the store where gloo listened before, and are refused there.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    arguments = [sys.executable, *command, str(program), str(folder), "kills" if kills else "lives"]
    ran = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=150, preexec_fn=end_with_parent)
    assert ran.returncode == 0, ran.stderr
    assert {(folder / f"steps{rank}").read_text() for rank in range(2)} == {"4" if kills else "8"}
    return [(folder / f"end{rank}").read_bytes() for rank in range(2)]


def test_ranks_that_torchrun_starts_again_go_on_to_the_same_bits(tmp_path: Path) -> None:
    cut = torchrun(tmp_path / "cut", kills=True)
    assert cut == torchrun(tmp_path / "whole", kills=False)
    assert cut[0] == cut[1]
