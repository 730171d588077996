"""How much memory a hook adds to a rank that trains with DDP, at its peak: bytes a parameter, by codec.

Two ranks on this machine, each a process of its own for every codec, with one large layer; the peak is that of resident memory
(`VmHWM`), less that of the same rank without a hook.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch

CODECS = (
    "none",
    "f16",
    "bf16",
    "qsgd:bits=4",
    "topk:density=0.01",
    "dgc:density=0.01",
    "sidco:density=0.01",
    "powersgd:rank=2",
)
WORLD = 2
STEPS = 4
#: Until it has chosen, if no codec but the last suits the machine.
STEPS_OF_AUTO = 53


def _train(rank: int, meeting: str, codec: str | None, width: int, end: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=WORLD)
    # So that no bucket is smaller than the others.
    layers = (torch.nn.Linear(width, width, bias=False) for _ in range(4))
    ddp = DistributedDataParallel(torch.nn.Sequential(*layers), gradient_as_bucket_view=True)
    if codec is not None:
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1) if codec == "auto" else None
        gradwire.torch.compress(ddp, codec, optimizer=optimizer, check_every=0)
    for step in range(STEPS_OF_AUTO if codec == "auto" else STEPS):
        ddp(torch.randn(2, width, generator=torch.Generator().manual_seed(2 * step + rank))).square().mean().backward()
    dist.barrier()
    status = Path("/proc/self/status").read_text()
    end.send(1024 * int(status.split("VmHWM:")[1].split()[0]))


def peak(codec: str | None, width: int) -> int:
    """Bytes at the rank that takes more."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ends = [context.Pipe(duplex=False) for _ in range(WORLD)]
        meeting = f"{folder}/meeting"
        ranks = [context.Process(target=_train, args=(rank, meeting, codec, width, ends[rank][1])) for rank in range(WORLD)]
        for process in ranks:
            process.start()
        most: int = max(one.recv() for one, _ in ends)
        for process in ranks:
            process.join()
    return most


def main() -> None:
    """One line for each codec."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=2048, help="of four square layers")
    parser.add_argument("--codecs", nargs="+", default=CODECS, help="spellings")
    arguments = parser.parse_args()
    parameters = 4 * arguments.width**2
    plain = peak(None, arguments.width)
    print("| codec | bytes a parameter |")
    print("| --- | ---: |")
    for codec in arguments.codecs:
        print(f"| `{codec}` | {(peak(codec, arguments.width) - plain) / parameters:.1f} |", flush=True)


if __name__ == "__main__":
    main()
