"""One rank of torch_lab.py, on a host of its own.

usage: torch_rank.py RANK RANKS

Reads what it is to do from the standard input, one JSON object a line, and answers each with one line: what it measured,
or {"error": …}, after which it ends. All ranks are asked the same.
"""

import faulthandler
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

import gradwire
import torch
import torch.distributed as dist
import torch_models
from network import address
from programs import EXCHANGE
from torch.nn.parallel import DistributedDataParallel
from torch_hooks import register
from torch_plan import (
    COMPUTE_STEPS,
    FEWEST_STEPS,
    METHODS,
    MODELS,
    MOST_STEPS,
    PATIENCE,
    WARM_UP_STEPS,
    WARM_UP_STEPS_OF_OURS,
)

# Different batches, gone through again and again.
BATCHES = 8
# Steps of the Rust exchange, and where its ranks listen.
EXCHANGES = 30
EXCHANGE_PORT = 27000
CLIP = 5.0
EVALUATIONS = 2
# A rank says where it stands so long before it is killed for being late.
DUMP_SECONDS = 30
# Ranks wait for an evaluation of rank 0, and for what else a machine does.
TIMEOUT = timedelta(minutes=10)


class Loop:
    """Steps of one model, with DDP or without."""

    def __init__(self, model, batches, lr=1e-3):
        self.model, self.batches = model, batches
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.step = 0

    def run(self, steps):
        """Seconds of each step."""
        seconds = []
        for _ in range(steps):
            began = time.perf_counter()
            self.once(*self.batches[self.step % len(self.batches)])
            seconds.append(time.perf_counter() - began)
            self.step += 1
        return seconds

    def once(self, inputs, targets):
        self.optimizer.zero_grad()
        loss = self.model(inputs, targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()


class Counters:
    """Of this process, all threads, and of its host."""

    def __init__(self):
        self.cpu, self.sent = time.process_time(), sent_bytes()

    def since(self, before, steps):
        return {"cpu": (self.cpu - before.cpu) / steps, "sent": (self.sent - before.sent) / steps}


def sent_bytes():
    """At the interface, headers of Ethernet included."""
    (line,) = (line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("eth0:"))
    return int(line.split(":")[1].split()[8])


def time_method(rank, ranks, model, method, seconds):
    """A step with DDP and the method, and one of compute alone, before and behind."""
    random = torch.Generator().manual_seed(rank)
    batches = [torch_models.random_batch(model, random) for _ in range(BATCHES)]
    alone = Loop(torch_models.make(model), batches)
    ddp, hook = distributed(model, METHODS[method])
    loop = Loop(ddp, batches)
    alone.run(3)
    compute = timed_alone(alone)
    warm = loop.run(WARM_UP_STEPS_OF_OURS if hook else WARM_UP_STEPS)
    is_choosing = METHODS[method].argument == "auto"
    while is_choosing and hook.stats().choice is None:
        loop.run(1)
    warm = loop.run(1) if is_choosing else warm
    steps = agreed(min(MOST_STEPS, max(FEWEST_STEPS, int(seconds / warm[-1]))))
    counted = hook.stats() if hook else None
    dist.barrier()
    before = Counters()
    took = loop.run(steps)
    # Waits for what the hook still does.
    now = hook.stats() if hook else None
    dist.barrier()
    found = Counters().since(before, steps)
    if hook:
        parts = ("encode", "exchange", "decode", "exposed")
        found |= {part: seconds_of(now, counted, part) / steps for part in parts}
        found |= {"frame": (now.frame_bytes - counted.frame_bytes) / steps, "advice": hook.advice, "choice": now.choice}
        found["rust"] = exchange_seconds(ddp.module, METHODS[method].argument, rank, ranks)
    behind = timed_alone(alone)
    cpu = (compute["cpu"] + behind["cpu"]) / 2
    compute = statistics.median(compute["steps"] + behind["steps"])
    quarters = statistics.quantiles(took, n=4)
    found |= {"step": quarters[1], "low": quarters[0], "high": quarters[2], "steps": steps}
    if hook:
        hook.close()
    return found | {"compute": compute, "compute_cpu": cpu}


def distributed(model, method):
    """A DDP model, and its hook."""
    made = torch_models.make(model)
    options = {"bucket_cap_mb": method.bucket_cap_mb, "gradient_as_bucket_view": bool(method.views_of)}
    ddp = DistributedDataParallel(made, broadcast_buffers=False, **options)
    return ddp, register(ddp, method)


def seconds_of(now, before, part):
    return getattr(now, f"{part}_seconds") - getattr(before, f"{part}_seconds")


def exchange_seconds(model, spelling, rank, ranks):
    """CPU seconds of a step of the Rust exchange with the same gradient, over ZeroMQ between the same hosts. None for codecs
    that send no frames."""
    if spelling == "auto":
        return None
    codec = gradwire.Codec(spelling)
    if codec.is_linear or codec.name == "none":
        return None
    # As compress() has it.
    spelling += ",unit=tensor,dense_below=128"
    with tempfile.TemporaryDirectory() as folder:
        layout, gradient = Path(folder, "layout"), Path(folder, "gradient")
        tensors = ((name, *weights.shape) for name, weights in model.named_parameters())
        layout.write_text("\n".join(" ".join(map(str, tensor)) for tensor in tensors))
        gradient.write_bytes(torch.cat([weights.grad.flatten() for weights in model.parameters()]).numpy().tobytes())
        endpoints = [f"tcp://{address(host)}:{EXCHANGE_PORT}" for host in range(1, ranks + 1)]
        command = [os.environ[EXCHANGE], rank, EXCHANGES, spelling, layout, gradient, *endpoints]
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    return float(done.stdout)


def timed_alone(loop):
    """All ranks side by side, without a word to one another."""
    dist.barrier()
    before = time.process_time()
    steps = loop.run(COMPUTE_STEPS)
    cpu = (time.process_time() - before) / COMPUTE_STEPS
    dist.barrier()
    return {"steps": steps, "cpu": cpu}


def agreed(number):
    """The smallest of all ranks."""
    smallest = torch.tensor(number)
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
    return int(smallest)


def train(rank, ranks, model, method, steps):
    """What a model has learned, on real data, evaluated at rank 0."""
    # Read by those ranks alone that are to train.
    from torch_data import load

    data, about = load(model), MODELS[model]
    ddp, hook = distributed(model, METHODS[method])
    optimizer = torch.optim.SGD(ddp.parameters(), lr=about.lr)
    evaluations, losses, began = [], [], time.process_time()
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = about.lr * (1 - step / steps)
        optimizer.zero_grad()
        loss = ddp(*data.batch(step, rank, ranks))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % -(-steps // EVALUATIONS) == 0 or step + 1 == steps:
            evaluations.append([step + 1, evaluate(data, ddp.module) if rank == 0 else None])
            dist.barrier()
    if hook:
        hook.close()
    found = {"evaluations": evaluations, "train_loss": statistics.mean(losses[-max(1, steps // 10) :])}
    return found | {"core_seconds": time.process_time() - began}


def evaluate(data, model):
    with torch.no_grad():
        return data.evaluate(model)


def answer(rank, ranks, asked):
    what, port = asked.pop("what"), asked.pop("port")
    where = f"tcp://{address(1)}:{port}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=ranks, timeout=TIMEOUT)
    found = {"time": time_method, "train": train}[what](rank, ranks, **asked)
    dist.barrier()
    dist.destroy_process_group()
    return found


def main():
    rank, ranks = map(int, sys.argv[1:])
    faulthandler.enable()
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    # The answer holds the advice of the hook.
    warnings.filterwarnings("ignore", message="gradwire: ")
    # Of a newer torch, whose other name torch 2.4 does not have.
    warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
    for line in sys.stdin:
        asked = json.loads(line)
        faulthandler.dump_traceback_later(PATIENCE[asked["what"]] - DUMP_SECONDS)
        try:
            found = answer(rank, ranks, asked)
        except Exception as error:
            traceback.print_exc()
            print(json.dumps({"error": f"rank {rank}: {type(error).__name__}: {error}"[:300]}), flush=True)
            # Threads of others may wait for ever.
            os._exit(1)
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(found), flush=True)


main()
