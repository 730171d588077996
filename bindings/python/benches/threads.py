"""How long a rank encodes a bucket of 25 MB, by codec and number of threads: milliseconds, least and median of many steps.

One process of one rank, so nothing travels. Run it on a machine that does nothing else: least and median then agree.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch

CODECS = ("topk:density=0.01", "qsgd:bits=4")
#: 25 MB, DDP's default for a bucket.
ELEMENTS = 25 * 2**20 // 4
STEPS = 40


def encode_seconds(codec: str, threads: int) -> list[float]:
    """Of each step but the first ones."""
    # Of the sum of products, the gradient is the input.
    ddp = DistributedDataParallel(torch.nn.Linear(ELEMENTS, 1, bias=False), bucket_cap_mb=26)
    hook = gradwire.torch.compress(ddp, codec, threads=threads, check_every=0)
    random = torch.Generator().manual_seed(1)
    seconds, before = [], 0.0
    for _ in range(STEPS):
        ddp(torch.randn(ELEMENTS, generator=random)).backward()
        now = hook.stats().encode_seconds
        seconds.append(now - before)
        before = now
    hook.close()
    return seconds[5:]


def main() -> None:
    """One line for each codec and number."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--codecs", nargs="+", default=CODECS, help="spellings")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
        print("| codec | threads | least | median |")
        print("| --- | ---: | ---: | ---: |")
        for codec in arguments.codecs:
            for threads in arguments.threads:
                taken = encode_seconds(codec, threads)
                both = f"{1e3 * min(taken):.1f} | {1e3 * statistics.median(taken):.1f}"
                print(f"| `{codec}` | {threads} | {both} |", flush=True)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
