"""Trains a small text model with DDP and compressed gradients, and resumes where it was stopped.

torchrun --nproc-per-node=2 examples/ddp.py --steps 100 --codec topk:density=0.01
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch

parser = argparse.ArgumentParser()
parser.add_argument("--codec", default="topk:density=0.01")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--folder", type=Path, default=Path("run"))
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()
args.folder.mkdir(parents=True, exist_ok=True)

text = torch.tensor(list(Path(__file__).read_bytes()))
model = nn.Sequential(nn.Embedding(256, 64), nn.Flatten(), nn.Linear(8 * 64, 512), nn.ReLU(), nn.Linear(512, 256))
ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

# The two lines: before the first backward, at all ranks.
hook = gradwire.torch.compress(ddp, args.codec, optimizer=optimizer)
hook.log(args.folder / "metrics.jsonl")

saved = args.folder / f"rank{rank}.pt"  # each rank keeps its own: what it has not sent yet differs
if saved.exists():
    state = torch.load(saved, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    hook.load_state_dict(state["hook"])

for step in range(hook.step, args.steps):
    random = torch.Generator().manual_seed(step * dist.get_world_size() + rank)
    starts = torch.randint(0, len(text) - 9, (32, 1), generator=random)
    window = text[starts + torch.arange(9)]
    loss = nn.functional.cross_entropy(ddp(window[:, :8]), window[:, 8])
    optimizer.zero_grad()
    hook.loss = loss.item()
    loss.backward()
    optimizer.step()
    if (step + 1) % 50 == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "hook": hook.state_dict()}, saved)
if rank == 0:
    print(f"loss {hook.loss}; {hook.stats()}")
dist.destroy_process_group()
