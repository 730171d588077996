"""What a step of GPT-2 (124 M parameters) takes at two ranks that share one GPU, and where the time goes.

Both ranks are on one machine, so their frames travel over the loopback; ranks that share a GPU also slow each other's
computation, which the row without exchange shows. Needs the package transformers.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch

WORLD = 2
CODECS = ("none", "none, wire=bf16", "bf16", "topk:density=0.01,values=q4", "topk:density=0.001,values=q4", "powersgd:rank=4")
#: Not of the hook: without any exchange, and DDP's own over gloo.
ALONE, DDP = "no exchange", "DDP over gloo"
#: Steps before those that are timed.
WARM = 3
PARTS = ("staging_seconds", "encode_seconds", "exchange_seconds", "decode_seconds", "exposed_seconds")


def _train(rank: int, meeting: str, methods: list[str], steps: int, tokens: int, end: Connection) -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=WORLD)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).cuda()
    for method in methods:
        end.send(_steps(model, method, steps, tokens, rank))
    # Until the other rank is done, too.
    end.recv()


def _steps(model: torch.nn.Module, method: str, steps: int, tokens: int, rank: int) -> list[float]:
    """Seconds of a step, and of its parts where there is a hook."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    hook = before = None
    if method not in (ALONE, DDP):
        codec, _, wire = method.partition(", wire=")
        hook = gradwire.torch.compress(ddp, codec, wire=wire or "f32", check_every=0, allow_untested=True)
    times: list[float] = []
    for step in range(WARM + steps):
        if hook is not None and step == WARM:
            before = hook.stats()
        inputs = torch.randint(50257, (1, tokens), generator=torch.Generator().manual_seed(2 * step + rank)).cuda()
        torch.cuda.synchronize()
        dist.barrier()
        began = time.perf_counter()
        with ddp.no_sync() if method == ALONE else contextlib.nullcontext():
            ddp(inputs, labels=inputs).loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
        optimizer.zero_grad()
    found = [statistics.median(times[WARM:])]
    if hook is not None and before is not None:
        after = hook.stats()
        found += [(getattr(after, part) - getattr(before, part)) / steps for part in PARTS]
        hook.close()
    return found


def measured(methods: list[str], steps: int, tokens: int) -> Iterator[list[str]]:
    """A row for each: milliseconds of a step at the slower rank."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ends = [context.Pipe() for _ in range(WORLD)]
        ranks = [
            context.Process(target=_train, args=(rank, f"{folder}/meeting", methods, steps, tokens, ends[rank][1]))
            for rank in range(WORLD)
        ]
        for process in ranks:
            process.start()
        for method in methods:
            times = [f"{1000 * max(each):.0f}" for each in zip(*(end.recv() for end, _ in ends), strict=True)]
            yield [f"`{method}`" if method in CODECS else method, *times, *["-"] * (len(PARTS) + 1 - len(times))]
        for end, _ in ends:
            end.send(None)
        for process in ranks:
            process.join()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1024, help="of each rank in a step")
    parser.add_argument("--methods", nargs="*", default=[ALONE, DDP, *CODECS])
    given = parser.parse_args()
    print(torch.cuda.get_device_name(), torch.__version__)
    print("| method | step | copies | encode | exchange | decode | step waits |")
    print("| --- " + "| ---: " * (len(PARTS) + 1) + "|")
    for row in measured(given.methods, given.steps, given.tokens):
        print("|", " | ".join(row), "|", flush=True)


if __name__ == "__main__":
    main()
