#!/usr/bin/env python3
"""A long run of a server and eight workers on hosts of their own, disturbed all the time.

usage: soak.py [STEPS [SEED]]

By seed, workers are killed, stopped for a while, cut off and started again, and so is the server, which goes on from its
checkpoint. Shortly before the end everybody is there again. Then
  * nothing has hung, and every process ends well,
  * all replicas are the same, bit for bit,
  * what was sent and what is kept add up, step by step, up to what was reported lost (conservation.py),
  * the server has written down every step once, in order,
  * its memory has not grown, neither from one server to the next nor in the last one,
  * and the accuracy is within one point of the run that nobody disturbed.
Prints what was done and what was found, and ends with code 1 where one of these does not hold.
"""

import collections
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Importing leaves no files behind.
sys.dont_write_bytecode = True

import programs
import sandbox
import trainers
from conservation import LOST_SERVER, Books
from network import Network, wait_for
from trainers import Keys, join, serve

WORKERS = range(1, 9)
SETTINGS = ["--workers", 9, "--data", "optdigits", "--hidden", 16, "--batch", 72, "--lr", 0.1]
SETTINGS += ["--codec", "topk:density=0.02", "--checkpoint-every", 100, "--eval-every", 0]
# A step closes with five of nine, the server's own frame included, when others are late.
RULES = ["--quorum", 5, "--patience", 0.5, "--report-every", 10]
# Between two disturbances, and how long one lasts: uniform in these, in seconds.
PAUSE, LENGTH = (0.1, 1.0), (0.2, 2.5)
# Of ten disturbances: kills, stops, cuts of workers, and one in ten of the server.
KINDS = ["kill", "kill", "kill", "stop", "stop", "stop", "cut", "cut", "cut", "server"]
# At the end, in which nobody is disturbed.
CALM_STEPS = 500
# Without a new step for so long, something hangs.
HANGS_SECONDS = 90
# From one server to the next, and within the last one while nobody is disturbed. The first quarter of the run is left to
# buffers that grow; what grows later grows for ever.
MEMORY_FACTOR, MEMORY_BYTES, CALM_MEMORY_BYTES = 1.05, 4 << 20, 1 << 20
ACCURACY_POINTS = 0.01


class Soak:
    def __init__(self, folder, network, steps, seed):
        self.folder, self.network, self.steps = folder, network, steps
        self.draws = random.Random(seed)
        self.keys = Keys(folder, 9)
        self.run = [*SETTINGS, "--steps", steps]
        self.server = self.serve(self.run, "--out", folder / "run")
        self.workers = {rank: self.join(rank) for rank in WORKERS}
        # When each disturbed worker is to be left alone again, and what does that.
        self.disturbed = {}
        self.done = collections.Counter()
        # Bytes of the server's memory, a sample for each step that was seen, until and since nobody is disturbed.
        self.memory, self.calm_memory = [], []

    def serve(self, run, *own):
        return serve(self.network, self.keys, run, *RULES, *self.trace(0), *own)

    def join(self, rank):
        return join(self.network, self.keys, rank, self.run, *self.trace(rank))

    def trace(self, rank):
        return ["--trace", self.folder / f"trace-{rank}"]

    def step(self):
        """How far the run is, by what its server says."""
        return max(map(int, re.findall(r"^step (\d+):", self.server.all(), re.MULTILINE)), default=0)

    def moments_until(self, last, memory):
        """Yields the time, again and again, until the run has come so far; adds what the server holds at each step seen."""
        step, since = 0, time.monotonic()
        while step < last:
            time.sleep(0.05)
            now, seen = time.monotonic(), self.step()
            if seen > step:
                step, since = seen, now
                memory.append(resident_bytes(self.server.process.pid))
            assert now - since < HANGS_SECONDS, f"hangs at step {step}:\n{self.server.end()}"
            yield now

    def disturb_until(self, last):
        next_time = 0
        for now in self.moments_until(last, self.memory):
            self.leave_alone(now)
            if now >= next_time and self.memory:
                next_time = now + self.draws.uniform(*PAUSE)
                self.disturb(now)
        self.leave_alone(float("inf"))

    def watch_until(self, last):
        for _ in self.moments_until(last, self.calm_memory):
            pass

    def disturb(self, now):
        kind, rank, until = self.draws.choice(KINDS), self.draws.choice(WORKERS), now + self.draws.uniform(*LENGTH)
        if kind == "server":
            self.restart_server(self.draws.choice([signal.SIGKILL, signal.SIGINT]))
        elif rank in self.disturbed:
            return
        elif kind == "kill":
            self.workers[rank].process.kill()
            self.workers[rank].process.wait()
            self.disturbed[rank] = until, lambda: self.workers.update({rank: self.join(rank)})
        elif kind == "stop":
            self.workers[rank].process.send_signal(signal.SIGSTOP)
            self.disturbed[rank] = until, lambda: self.workers[rank].process.send_signal(signal.SIGCONT)
        else:
            self.network.cut(rank + 1)
            self.disturbed[rank] = until, lambda: self.network.heal(rank + 1)
        self.done[kind] += 1

    def leave_alone(self, now):
        """Those whose time has come."""
        for rank in [rank for rank, (until, _) in self.disturbed.items() if until <= now]:
            self.disturbed.pop(rank)[1]()

    def restart_server(self, how):
        if not list((self.folder / "run" / "checkpoints").glob("step-*")):
            return
        self.server.process.send_signal(how)
        self.server.process.wait(trainers.SECONDS)
        self.server = self.serve([], "--resume", self.folder / "run")

    def is_complete(self):
        return re.findall(r" (\d+) contributors,", self.server.all())[-1] == "9"

    def end(self):
        """Waits for the end of everybody; returns the hashes of their parameters, and the accuracy."""
        hashes = [process.ends(HANGS_SECONDS) for process in [self.server, *self.workers.values()]]
        (accuracy,) = re.findall(r"^test accuracy ([0-9.]+)", self.server.all(), re.MULTILINE)
        return hashes, float(accuracy)


def resident_bytes(process):
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmRSS:\s*(\d+) kB", status).group(1)) << 10


def growth(memory):
    """Bytes that were enough in the second and in the last quarter."""
    quarter = len(memory) // 4
    return min(memory[quarter : 2 * quarter]), min(memory[3 * quarter :])


def undisturbed_accuracy(folder, steps):
    command = [os.environ[programs.TRAINER], "train", "--exchange", "server", *SETTINGS, "--steps", steps]
    command += ["--out", folder / "undisturbed"]
    subprocess.run([*map(str, command)], check=True, capture_output=True)
    return json.loads((folder / "undisturbed" / "summary.json").read_text())["accuracy"]


def soak(steps, seed):
    """Returns what was found, by name, each with whether it is right."""
    # What a process holds is what it uses: its allocator gives back at once what is free.
    os.environ["MIMALLOC_PURGE_DELAY"] = "0"
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name, Network(9, rate=100) as network:
        folder = Path(name)
        run = Soak(folder, network, steps, seed)
        run.disturb_until(steps - CALM_STEPS)
        wait_for(run.is_complete, HANGS_SECONDS, run.server.end)
        run.watch_until(steps - CALM_STEPS // 5)
        hashes, accuracy = run.end()
        seconds = time.monotonic() - started
        written = [json.loads(line)["step"] for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
        books = Books(folder, range(9))
        (whole, steps_seen, void, wrong), (reasons, unknown) = books.steps(), books.breaks()
        reported, unfounded = books.losses(run.server.all())
        lost = [float(norm) for norm in re.findall(r"its residual is lost: norm ([0-9.]+)", run.server.all())]
        undisturbed = undisturbed_accuracy(folder, steps)
    (early, late), calm = growth(run.memory), run.calm_memory
    return {
        "run": (f"{steps} steps, seed {seed}, {seconds:.0f} s, load {os.getloadavg()[0]:.1f}", True),
        "disturbed": (", ".join(f"{kind} {times}" for kind, times in sorted(run.done.items())), True),
        "sums": (
            f"{whole} of {steps_seen} steps have the lines of all contributors and add up, but for {len(wrong)}: {wrong[:2]}; "
            f"{void} frames were late, or their steps void, and given back",
            not wrong and whole > 0.9 * steps_seen,
        ),
        "kept from step to step": (
            f"but for {', '.join(f'{reason}: {times} times' for reason, times in reasons.items())}; "
            f"and without a reason {len(unknown)} times: {unknown[:2]}",
            not unknown and reasons[LOST_SERVER] <= len(WORKERS) * run.done["server"],
        ),
        "reported lost": (
            f"{reported} times, norms up to {max(lost, default=0):.3f}; in no line {len(unfounded)} times: {unfounded[:2]}",
            # A worker may say what it keeps back, lose the server in that step, and die.
            len(unfounded) <= run.done["server"],
        ),
        "replicas": (f"{len(hashes)}, {len(set(hashes))} different", len(set(hashes)) == 1),
        "steps written down": (f"{len(written)}, each once and in order", written == list(range(steps))),
        "memory of the servers": (
            f"{early / 1e6:.1f} MB in the second quarter, {late / 1e6:.1f} MB in the last",
            late <= MEMORY_FACTOR * early + MEMORY_BYTES,
        ),
        "memory of the last server, calm": (
            f"from {calm[0] / 1e6:.1f} MB to {calm[-1] / 1e6:.1f} MB",
            calm[-1] <= calm[0] + CALM_MEMORY_BYTES,
        ),
        "accuracy": (f"{accuracy:.4f}, undisturbed {undisturbed:.4f}", accuracy >= undisturbed - ACCURACY_POINTS),
    }


def main():
    steps, seed = (*map(int, sys.argv[1:]), *(10_000, 1)[len(sys.argv) - 1 :])
    found = soak(steps, seed)
    for name, (what, is_right) in found.items():
        print(f"{name}: {what}{'' if is_right else '  WRONG'}")
    sys.exit(0 if all(is_right for _, is_right in found.values()) else 1)


if __name__ == "__main__":
    if not sandbox.is_inside():
        programs.build()
    sandbox.enter()
    main()
