"""How long a rank encodes a bucket of 25 MB, and decodes it again: milliseconds, least and median of many steps.

By codec, number of tensors in the bucket and number of threads. One process of one rank, so nothing travels, and one frame is
decoded where `n` ranks have `n`. Run it on a machine that does nothing else: least and median then agree.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from itertools import pairwise, product

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch

CODECS = ("topk:density=0.01", "qsgd:bits=4")
#: 25 MB, DDP's default for a bucket.
ELEMENTS = 25 * 2**20 // 4
STEPS = 40


class Products(torch.nn.Module):
    """Sums of products with several tensors of parameters. The gradient of each is its part of the input."""

    def __init__(self, tensors: int) -> None:
        """With so many tensors, all of one length."""
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.zeros(ELEMENTS // tensors) for _ in range(tensors))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Their sum."""
        parts = inputs.split(ELEMENTS // len(self.weights))
        return torch.stack([part @ weight for part, weight in zip(parts, self.weights, strict=False)]).sum()


def seconds_of(codec: str, tensors: int, threads: int) -> tuple[list[float], list[float]]:
    """To encode and to decode, of each step but the first ones."""
    ddp = DistributedDataParallel(Products(tensors), bucket_cap_mb=26)
    hook = gradwire.torch.compress(ddp, codec, threads=threads, check_every=0)
    random = torch.Generator().manual_seed(1)
    encode, decode = [0.0], [0.0]
    for _ in range(STEPS):
        ddp(torch.randn(ELEMENTS, generator=random)).backward()
        stats = hook.stats()
        encode.append(stats.encode_seconds)
        decode.append(stats.decode_seconds)
    hook.close()
    return _each(encode), _each(decode)


def _each(sums: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(sums)][5:]


def main() -> None:
    """One line for each codec and numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tensors", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--codecs", nargs="+", default=CODECS, help="spellings")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
        print("| codec | tensors | threads | encode: least | median | decode: least | median |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
        for codec, tensors, threads in product(arguments.codecs, arguments.tensors, arguments.threads):
            taken = seconds_of(codec, tensors, threads)
            cells = (f"{1e3 * of:.1f}" for times in taken for of in (min(times), statistics.median(times)))
            print(f"| `{codec}` | {tensors} | {threads} | {' | '.join(cells)} |", flush=True)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
