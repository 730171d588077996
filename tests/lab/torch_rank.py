"""One rank of torch_lab.py, on a host of its own.

usage: torch_rank.py RANK RANKS

Reads what it is to do from the standard input, one JSON object a line, and answers each with one line: what it measured,
or {"error": …}, after which it ends. All ranks are asked the same: to train, or to begin with a method, to take steps of it
or of compute alone, and to end.
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
from torch_plan import COMPUTE_STEPS, METHODS, MODELS, PATIENCE

# Different batches, gone through again and again.
BATCHES = 8
# Steps of the Rust exchange, and where its ranks listen.
EXCHANGES = 30
EXCHANGE_PORT = 27000
# Codecs that take every element for itself, and send so much that few steps must do.
WITHOUT_UNITS, FEW_EXCHANGES = ("f16", "bf16"), 5
# What the hook counts in seconds.
PARTS = ("encode", "exchange", "decode", "exposed")
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
    """Of this process, all threads, and of its host; and of the hook, where it is gradwire's."""

    def __init__(self, hook):
        # It waits for what the hook still does.
        stats = hook.stats() if hook else None
        self.all = {"cpu": time.process_time(), "sent": sent_bytes()}
        if stats:
            self.all |= {part: getattr(stats, f"{part}_seconds") for part in PARTS} | {"frame": stats.frame_bytes}

    def since(self, before):
        return {name: value - before.all[name] for name, value in self.all.items()}


def sent_bytes():
    """At the interface, headers of Ethernet included."""
    (line,) = (line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("eth0:"))
    return int(line.split(":")[1].split()[8])


class Timing:
    """A model with DDP and a method, whose steps are taken in turns with those of other processes."""

    def __init__(self, rank, ranks, model, method, encrypted):
        self.rank, self.ranks, self.method = rank, ranks, METHODS[method]
        random = torch.Generator().manual_seed(rank)
        batches = [torch_models.random_batch(model, random) for _ in range(BATCHES)]
        self.alone = Loop(torch_models.make(model), batches)
        self.ddp, self.hook = distributed(model, self.method, encrypted)
        self.loop = Loop(self.ddp, batches)

    def begin(self):
        """Seconds of a step, once all is warm."""
        self.alone.run(3)
        warm = self.loop.run(self.method.warm_up_steps)
        while self.method.argument == "auto" and self.hook.stats().choice is None:
            warm = self.loop.run(1)
        return {"warm": warm[-1]}

    def compute(self):
        """Steps of compute alone, of all ranks side by side, without a word to one another."""
        dist.barrier()
        before = time.process_time()
        steps = self.alone.run(COMPUTE_STEPS)
        cpu = (time.process_time() - before) / COMPUTE_STEPS
        dist.barrier()
        return {"steps": steps, "cpu": cpu}

    def steps(self, count, lead):
        """Seconds of each of `count` steps, and what they used together, after `lead` steps that do not count."""
        self.loop.run(lead)
        dist.barrier()
        before = Counters(self.hook)
        took = self.loop.run(count)
        used = Counters(self.hook)
        dist.barrier()
        return {"took": took, "used": used.since(before)}

    def end(self, rust):
        """With `rust`, times the Rust exchange of the same gradient, too."""
        if not self.hook:
            return {}
        choice = getattr(self.hook.stats(), "choice", None)
        found = {"advice": self.hook.advice, "choice": choice}
        if rust:
            found["rust"] = exchange_seconds(self.ddp.module, self.method.argument, self.rank, self.ranks)
        self.hook.close()
        return found


def distributed(model, method, encrypted=False):
    """A DDP model, and its hook."""
    made = torch_models.make(model)
    options = {"bucket_cap_mb": method.bucket_cap_mb, "gradient_as_bucket_view": bool(method.views_of)}
    ddp = DistributedDataParallel(made, broadcast_buffers=False, **options)
    return ddp, register(ddp, method, encrypted)


def exchange_seconds(model, spelling, rank, ranks):
    """CPU seconds of a step of the Rust exchange with the same gradient, over TCP between the same hosts. None for codecs
    that send no frames."""
    if spelling == "auto":
        return None
    codec = gradwire.Codec(spelling)
    if codec.is_linear or codec.name == "none":
        return None
    exchanges = FEW_EXCHANGES
    if codec.name not in WITHOUT_UNITS:
        # As compress() has it.
        spelling, exchanges = f"{spelling},unit=tensor,dense_below=128", EXCHANGES
    with tempfile.TemporaryDirectory() as folder:
        layout, gradient = Path(folder, "layout"), Path(folder, "gradient")
        tensors = ((name, *weights.shape) for name, weights in model.named_parameters())
        layout.write_text("\n".join(" ".join(map(str, tensor)) for tensor in tensors))
        gradient.write_bytes(torch.cat([weights.grad.flatten() for weights in model.parameters()]).numpy().tobytes())
        addresses = [f"{address(host)}:{EXCHANGE_PORT}" for host in range(1, ranks + 1)]
        command = [os.environ[EXCHANGE], rank, exchanges, spelling, layout, gradient, *addresses]
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    return float(done.stdout)


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


class Answers:
    """To what this rank is asked."""

    def __init__(self, rank, ranks):
        self.rank, self.ranks, self.timing = rank, ranks, None

    def to(self, what, asked):
        if what == "train":
            self._meet(asked.pop("port"))
            found = train(self.rank, self.ranks, **asked)
            self._part()
        elif what == "begin":
            self._meet(asked.pop("port"))
            self.timing = Timing(self.rank, self.ranks, **asked)
            found = self.timing.begin()
        else:
            found = getattr(self.timing, what)(**asked)
        if what == "end":
            self.timing = None
            self._part()
        return found

    def _meet(self, port):
        where = f"tcp://{address(1)}:{port}"
        dist.init_process_group("gloo", init_method=where, rank=self.rank, world_size=self.ranks, timeout=TIMEOUT)

    def _part(self):
        dist.barrier()
        dist.destroy_process_group()


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
    answers = Answers(rank, ranks)
    for line in sys.stdin:
        asked = json.loads(line)
        what = asked.pop("what")
        faulthandler.dump_traceback_later(PATIENCE[what] - DUMP_SECONDS)
        try:
            found = answers.to(what, asked)
        except Exception as error:
            traceback.print_exc()
            print(json.dumps({"error": f"rank {rank}: {type(error).__name__}: {error}"[:300]}), flush=True)
            # Threads of others may wait for ever.
            os._exit(1)
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(found), flush=True)


main()
