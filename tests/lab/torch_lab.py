#!/usr/bin/env python3
"""What a step of PyTorch's DDP takes over slow links, with its own hooks and with gradwire's; and what models learn with each.

usage: torch_lab.py RESULTS.jsonl [--quick] [--only time|accuracy] [--models NAME,…] [--methods NAME,…] [--links NAME,…]
                    [--ranks N,…] [--rounds N] [--steps N] [--limit MINUTES] [--core-hours HOURS]

    time       seconds, CPU seconds and bytes of a step, on two and four hosts of the lab, at 100 and 1000 Mbit/s and without
               limit, in three rounds, in each of which the methods come in another order; compute alone is timed before and
               behind each of them
    accuracy   each method trains each model once on four hosts without limit, on data from GRADWIRE_DATA/data, for N steps if
               it is said; nothing is begun once HOURS of CPU time were used (8)

What is compared stands in torch_plan.py. Each measurement is one line of RESULTS.jsonl; those that are there are not made
again, so the program may be stopped and started at any time. With --limit it stops by itself. A line that was timed while
other programs used the cores is kept, marked by what they used ("others"), and timed again by the next start.
torch_report.py makes the table and the plot. --quick times few methods for moments, and fails if what it finds cannot be.

Run it with a Python that has torch and gradwire: ./ci.sh python makes one in the user's cache folder. Needs root, cargo and
libzmq, and what the lab needs (run.py).
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

# Importing leaves no files behind.
sys.dont_write_bytecode = True

import programs
import sandbox
from network import Network
from torch_plan import (
    DENSE,
    LINKS,
    METHODS,
    MODELS,
    MOST_OTHERS,
    NOTHING,
    PATIENCE,
    QUICK_METHODS,
    RANKS,
    ROUNDS,
    TIMED_SECONDS,
)

HERE = Path(__file__).resolve().parent
PORT = 29500
DIGITS = 5
ACCURACY_RANKS = 4
# Of a line, while it is measured.
SHOWN = "processor model ranks link round method step compute cpu others evaluations error".split()


class Results:
    def __init__(self, path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self.lines = [json.loads(line) for line in path.read_text().splitlines()]

    def has(self, **key):
        """Whether there is one that need not be made again."""
        found = (line for line in self.lines if key.items() <= line.items())
        return any("error" not in line and line.get("others", 0) <= MOST_OTHERS for line in found)

    def add(self, line):
        self.lines.append(line)
        with open(self.path, "a") as file:
            print(json.dumps(line), file=file)
        print(" ".join(f"{name}={line[name]}" for name in SHOWN if name in line), flush=True)

    def core_hours(self):
        return sum(line.get("core_seconds", 0) for line in self.lines) / 3600


class Ranks:
    """Processes on the hosts of one network, that wait for what to do next."""

    def __init__(self, count, rate):
        self.count = count
        self._network = Network(count, rate=rate)
        self._processes = []
        self._port = PORT

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._end()
        self._network.__exit__()

    def _start(self):
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": variables}
        for rank, host in enumerate(self._network.hosts):
            command = [sys.executable, "-B", HERE / "torch_rank.py", rank, self.count]
            self._processes.append(self._network.start(host, command, **pipes))

    def _end(self):
        """Ends the processes; returns the codes that they ended with."""
        for process in self._processes:
            process.kill()
            process.communicate()
        codes = [process.returncode for process in self._processes]
        self._processes = []
        return codes

    def warm_up(self):
        """Starts the processes, unless they have, and lets them read what they need."""
        if not self._processes:
            self.ask("time", model="resnet", method=DENSE, seconds=0)

    def used_seconds(self):
        """CPU seconds that the processes have used."""
        return sum(map(used_seconds, self._processes))

    def ask(self, what, **more):
        """The answers of all ranks, or the error of the first that ended."""
        if not self._processes:
            self._start()
        self._port += 1
        for process in self._processes:
            print(json.dumps({"what": what, "port": self._port, **more}), file=process.stdin, flush=True)
        end = time.monotonic() + PATIENCE[what]
        with ThreadPoolExecutor(self.count) as readers:
            reading = [readers.submit(process.stdout.readline) for process in self._processes]
            while time.monotonic() < end and not all(one.done() for one in reading):
                time.sleep(0.02)
                if any(one.done() and "error" in (one.result() or "error") for one in reading):
                    break
            silent = [rank for rank, one in enumerate(reading) if not one.done()]
            late = silent if time.monotonic() >= end else []
            if silent:
                for process in self._processes:
                    process.kill()
            lines = [one.result() for one in reading]
        answers = [json.loads(line) for line in lines if line]
        errors = [answer["error"] for answer in answers if "error" in answer]
        errors += [f"rank {rank}: no answer within {PATIENCE[what]} s" for rank in late]
        if errors or len(answers) < self.count:
            codes = self._end()
            errors += [f"rank {rank} ended: {codes[rank]}" for rank, line in enumerate(lines) if not line and rank not in silent]
            return [{"error": errors[0]}]
        return answers


def machine():
    """What a measurement was made on, and with."""
    processor = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    versions = {name: version(name) for name in ("torch", "gradwire")}
    return {"kind": "machine", "processor": processor.partition(": ")[2], "cores": os.cpu_count(), **versions}


def busy_seconds():
    """CPU seconds that programs have used, of all cores; interrupts, which carry packets, left out."""
    user, nice, system, *_ = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def used_seconds(process):
    """What one process has used of it, with the programs that it started and waited for: the Rust exchange is one."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def mean_of(answers):
    """Of all ranks; of what is no number, that of the first."""
    found = {}
    for name, first in answers[0].items():
        is_number = isinstance(first, float | int)
        value = sum(answer[name] for answer in answers) / len(answers) if is_number else first
        found[name] = float(f"{value:.{DIGITS}g}") if is_number else value
    return found


def time_cell(results, ranks, key, seconds):
    ranks.warm_up()
    began, busy, used = time.monotonic(), busy_seconds(), ranks.used_seconds()
    answers = ranks.ask("time", model=key["model"], method=key["method"], seconds=seconds)
    line = {**key, **mean_of(answers)}
    if "error" not in line:
        own = ranks.used_seconds() - used
        line["others"] = round(max(0.0, busy_seconds() - busy - own) / (time.monotonic() - began), 3)
    results.add(line)


def time_all(results, chosen, is_over):
    """Round by round, so that one that was stopped has measured everything equally often."""
    for turn in range(1, chosen.rounds + 1):
        for count in chosen.ranks:
            for link in chosen.links:
                keys = [key for key in keys_of(chosen, turn, count, link) if not results.has(**key)]
                if keys and not is_over():
                    with Ranks(count, LINKS[link]) as ranks:
                        for key in keys:
                            if not is_over():
                                time_cell(results, ranks, key, chosen.seconds)


def keys_of(chosen, turn, count, link):
    """The methods in another order in each round."""
    by = (turn - 1) * len(chosen.methods) // chosen.rounds
    order = [*chosen.methods[by:], *chosen.methods[:by]]
    for model in chosen.models:
        for method in order:
            yield {"kind": "time", "model": model, "ranks": count, "link": link, "round": turn, "method": method}


def train_all(results, chosen, is_over):
    # Dense gradients first, with which all others are compared.
    methods = sorted((name for name in chosen.methods if METHODS[name].learns), key=lambda name: name != DENSE)
    for method in methods:
        for model in chosen.models:
            key = {"kind": "accuracy", "model": model, "method": method, "steps": chosen.steps or MODELS[model].steps}
            if results.has(**key) or is_over() or results.core_hours() >= chosen.core_hours:
                continue
            with Ranks(ACCURACY_RANKS, None) as ranks:
                answers = ranks.ask("train", model=model, method=method, steps=key["steps"])
            line = {**key, "ranks": ACCURACY_RANKS, "lr": MODELS[model].lr, **mean_of(answers)}
            if "error" not in line:
                line["core_seconds"] = round(sum(answer["core_seconds"] for answer in answers), 1)
            results.add(line)


def check_quick(results):
    """That the machinery measures, not how fast the machine is."""
    failed = [line for line in results.lines if "error" in line]
    assert not failed, failed
    timed = [line for line in results.lines if line["kind"] == "time"]
    cells = {(line["model"], line["ranks"], line["link"]) for line in timed}
    for model, count, link in sorted(cells):
        lines = (line for line in timed if (line["model"], line["ranks"], line["link"]) == (model, count, link))
        check_cells({line["method"]: line for line in lines}, 8 * MODELS[model].params * (count - 1) / count)
    print("quick: what was measured can be")


def check_cells(found, ring):
    """Of one model, number of ranks and link, by method; a ring of dense gradients sends so many bytes."""
    dense = found[DENSE]["sent"]
    assert ring < dense < 1.2 * ring, f"{DENSE} sends {dense} bytes, expected {ring} and little more"
    for name, line in found.items():
        assert line["step"] > 0 and line["compute"] > 0 and line["cpu"] > 0, line
        if METHODS[name].is_ours:
            assert 0 < line["frame"] <= line["sent"], line
        most = {NOTHING: 0.01, DENSE: 1.2, "gradwire none": 1.2, "fp16": 0.7, "bf16": 0.7}.get(name, 0.5)
        assert line["sent"] <= most * ring, f"{name} sends {line['sent']} bytes, more than {most} of a dense ring"


def parse(arguments):
    def names(of):
        def parsed(text):
            known = {str(one): one for one in of}
            if unknown := set(text.split(",")) - set(known):
                raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: expected some of {', '.join(known)}")
            return [known[one] for one in text.split(",")]

        return parsed

    parser = argparse.ArgumentParser(usage=__doc__.partition("usage: ")[2].partition("\n\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=["time", "accuracy"])
    parser.add_argument("--models", type=names(MODELS), default=[*MODELS])
    parser.add_argument("--methods", type=names(METHODS))
    parser.add_argument("--links", type=names(LINKS))
    parser.add_argument("--ranks", type=names(RANKS))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--limit", type=float, default=float("inf"))
    parser.add_argument("--core-hours", type=float, default=8)
    chosen = parser.parse_args(arguments)
    chosen.methods = chosen.methods or (QUICK_METHODS if chosen.quick else [*METHODS])
    chosen.links = chosen.links or ([next(iter(LINKS))] if chosen.quick else [*LINKS])
    chosen.ranks = chosen.ranks or (RANKS[:1] if chosen.quick else RANKS)
    chosen.rounds = chosen.rounds or (1 if chosen.quick else ROUNDS)
    chosen.seconds = 0.3 if chosen.quick else TIMED_SECONDS
    return chosen


def main():
    chosen = parse(sys.argv[1:])
    results, began = Results(chosen.results), time.monotonic()

    def is_over():
        return time.monotonic() - began > 60 * chosen.limit

    if not results.has(**machine()):
        results.add(machine())
    if chosen.only != "accuracy":
        time_all(results, chosen, is_over)
    if chosen.only == "accuracy" or not (chosen.only or chosen.quick):
        if "GRADWIRE_DATA" not in os.environ:
            sys.exit("accuracy needs GRADWIRE_DATA, the folder that holds data/")
        train_all(results, chosen, is_over)
    if chosen.quick:
        check_quick(results)
    print(f"{time.monotonic() - began:.0f} s; {results.core_hours():.2f} core-hours of training in all")


if __name__ == "__main__":
    parse(sys.argv[1:])
    if not sandbox.is_inside():
        programs.build_exchange()
    sandbox.enter()
    main()
