#!/usr/bin/env python3
"""Seconds a batch of the methods of docs/optimizers.md: four hosts of the lab, over TCP at 100 Mbit/s.

usage: optimizer_seconds.py RESULTS.jsonl [--models NAME,…] [--rounds N]
       optimizer_seconds.py RESULTS.jsonl --table

Trains all methods of a round one after the other, and times their batches after the first fourth. The models are the trainer's
GPT (small, 120 batches), and one of 3.2 million parameters (large, 40 batches, and no method that takes more than 10 between two
exchanges). What a synchronous run learns does not depend on its network, so losses come from runs in one process. Each run is
one line of RESULTS.jsonl, and is not made again. The text is read from GRADWIRE_DATA. Needs root, cargo, and what the lab needs
(run.py).
"""

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

# Importing leaves no files behind.
sys.dont_write_bytecode = True

sys.path.append(str(Path(__file__).parents[2] / "benches" / "study"))

import programs
from network import Network, address
from optimizers_cells import METHODS
from results import Results
from tcp import at, new_key
from trainers import Process, begin_with_text

RANKS = range(4)
RATE = 100
ENDS_SECONDS = 900
# Batches; and settings, with as many tokens of each worker as in the study: 512 and 1,024.
MODELS = {"small": (120, ["--batch", 64]), "large": (40, ["--batch", 128, "--hidden", "256,256,256,256"])}
# Of optimizers_cells.py; the rate does not matter here.
TIMED = [
    "dense",
    "gradients-qsgd",
    "local4-topk-18%",
    "local4-topk-7%",
    "local30-nesterov",
    "local30-streaming",
    "muon",
    "muon-local4-topk-7%",
]


def seconds(model, method):
    """Of a batch."""
    (batches, sizes), every = MODELS[model], METHODS[method].batches
    steps = batches // every
    with tempfile.TemporaryDirectory() as name, Network(len(RANKS), rate=RATE) as network:
        folder, hosts = Path(name), at(address(rank + 1) for rank in RANKS)
        key, lines = new_key(folder / "run.key"), folder / "run" / "metrics.jsonl"
        run = ["--data", "tiny-shakespeare", "--workers", len(RANKS), "--lr", 0.001, "--steps", steps, "--eval-every", 0]
        run += [*sizes, *METHODS[method].command(), "--transport", "tcp", *hosts, "--key", key]
        command = [os.environ[programs.TRAINER], "train", *run]
        out = [["--out", folder / "run"], *([] for _ in RANKS[1:])]
        processes = [
            Process(network, rank + 1, f"rank-{rank}", folder, [*command, "--rank", rank, *out[rank]]) for rank in RANKS
        ]
        times = []
        end = time.monotonic() + ENDS_SECONDS
        while len(times) < steps:
            time.sleep(0.002)
            there = lines.read_bytes().count(b"\n") if lines.exists() else 0
            times += [time.monotonic()] * (there - len(times))
            assert time.monotonic() < end, "\n".join(process.end() for process in processes)
        for process in processes:
            process.process.kill()
            process.process.wait()
    first = batches // 4 // every
    return (times[-1] - times[first - 1]) / (every * (steps - first))


def measure(results, models, rounds):
    for number, model, method in itertools.product(range(rounds), models, TIMED):
        cell = {"model": model, "method": method, "round": number}
        if METHODS[method].batches <= MODELS[model][0] // 4 and not results.has(**cell):
            results.add(**cell, seconds=round(seconds(model, method), 4))


def table(lines):
    for model in MODELS:
        print(f"\n| {model} | rounds | ms a batch | of dense's, paired |\n| --- | ---: | ---: | ---: |")
        found = {(line["method"], line["round"]): line["seconds"] for line in lines if line["model"] == model}
        for method in TIMED:
            rounds = [number for name, number in found if name == method]
            if rounds:
                own = statistics.median(found[method, number] for number in rounds)
                shares = statistics.median(found[method, number] / found["dense", number] for number in rounds)
                print(f"| `{method}` | {len(rounds)} | {1000 * own:.0f} | {shares:.2f} |")


def main():
    parser = argparse.ArgumentParser(usage=__doc__.partition("usage: ")[2].partition("\n\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--table", action="store_true")
    chosen = parser.parse_args()
    if chosen.table:
        table(Results(chosen.results).lines)
        return
    begin_with_text()
    measure(Results(chosen.results), chosen.models.split(","), chosen.rounds)


if __name__ == "__main__":
    main()
