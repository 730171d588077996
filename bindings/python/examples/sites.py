"""Trains a small text model at sites that come, go and are late: start, stop and kill any of them as you like.

python examples/sites.py --store 127.0.0.1:29500 --hold        # first, and it stays: the store in which sites agree
python examples/sites.py --store 127.0.0.1:29500 --name one    # a site; as many as you like, each with a name of its own
torchrun --nproc-per-node=2 examples/sites.py --store 127.0.0.1:29500 --name two    # one of several processes
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import gradwire.torch

parser = argparse.ArgumentParser()
parser.add_argument("--store", default="127.0.0.1:29500", metavar="HOST:PORT")
parser.add_argument("--hold", action="store_true")
parser.add_argument("--name")
parser.add_argument("--exchanges", type=int, default=200)
parser.add_argument("--every", type=int, default=30)
parser.add_argument("--codec", default="topk:density=0.07,values=q4")
parser.add_argument("--quorum", type=int, default=2)
parser.add_argument("--patience", type=float, default=10)
parser.add_argument("--folder", type=Path, default=Path("sites"))
parser.add_argument("--text", type=Path, default=Path(__file__))
args = parser.parse_args()

host, port = args.store.rsplit(":", 1)
store = dist.TCPStore(host, int(port), is_master=args.hold, wait_for_workers=False)
while args.hold:
    time.sleep(60)

torch.set_num_threads(1)
torch.manual_seed(0)
text = torch.tensor(list(args.text.read_bytes()))
model = nn.Sequential(nn.Embedding(256, 64), nn.Flatten(), nn.Linear(8 * 64, 512), nn.ReLU(), nn.Linear(512, 256))
adamw = torch.optim.AdamW(model.parameters(), lr=2e-3)
called, within = model, None
if "TORCHELASTIC_RUN_ID" in os.environ:
    # Processes of one site, which DDP keeps together.
    dist.init_process_group("gloo")
    called, within = nn.parallel.DistributedDataParallel(model), dist.group.WORLD
leads = within is None or dist.get_rank() == 0

# Between sites, in place of a process group and DDP.
sites = gradwire.torch.Sites(store, args.name, quorum=args.quorum, patience=args.patience)
optimizer = gradwire.torch.LocalSteps(model, adamw, "average", args.every, args.codec, sites=sites, within=within, timeout=30)

args.folder.mkdir(parents=True, exist_ok=True)
saved, partial = args.folder / f"{args.name}.pt", args.folder / f"{args.name}.partial"
made = optimizer.rejoin(torch.load(saved, weights_only=True) if saved.exists() else None)
torch.seed()  # each process has batches of its own
while made < args.exchanges:
    window = text[torch.randint(0, len(text) - 9, (32, 1)) + torch.arange(9)]
    loss = nn.functional.cross_entropy(called(window[:, :8]), window[:, 8])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if optimizer.exchanges > made:
        made = optimizer.exchanges
        if not leads:
            continue
        print(f"exchange {made} at {optimizer.world} sites, loss {loss.item():.3f}", flush=True)
        # A site that is killed while it writes has the file of before.
        torch.save(optimizer.state_dict(), partial)
        partial.replace(saved)
optimizer.close()
