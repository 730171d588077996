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
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

# Importing leaves no files behind.
sys.dont_write_bytecode = True

import programs
import sandbox
from network import Network, address
from tcp import at, new_key
from trainers import Process

RANKS = range(4)
RATE = 100
ENDS_SECONDS = 900
# Batches; and settings, with as many tokens of each worker as in the study: 512 and 1,024.
MODELS = {"small": (120, ["--batch", 64]), "large": (40, ["--batch", 128, "--hidden", "256,256,256,256"])}
NESTEROV = ["--outer-lr", 0.7, "--outer-momentum", 0.9]
# The batches between two exchanges, and what `trainer train` is asked for. The rate does not matter here.
METHODS = {
    "dense": (1, ["--optimizer", "adamw", "--codec", "none"]),
    "gradients-qsgd": (1, ["--optimizer", "adamw", "--codec", "qsgd:bits=4"]),
    "local4-topk-18%": (4, ["--optimizer", "adamw", "--codec", "topk:density=0.18,values=q4", "--local-steps", 4]),
    "local4-topk-7%": (4, ["--optimizer", "adamw", "--codec", "topk:density=0.07,values=q4", "--local-steps", 4]),
    "local30-nesterov": (30, ["--optimizer", "adamw", "--codec", "none", "--local-steps", 30, *NESTEROV]),
    "local30-streaming": (
        10,
        ["--optimizer", "adamw", "--codec", "qsgd:bits=4", "--local-steps", 30, *NESTEROV, "--fragments", 3, "--delayed"],
    ),
    "muon": (1, ["--optimizer", "muon", "--codec", "none"]),
    "muon-local4-topk-7%": (4, ["--optimizer", "muon", "--codec", "topk:density=0.07,values=q4", "--local-steps", 4]),
}


def seconds(model, method):
    """Of a batch."""
    (batches, sizes), (every, settings) = MODELS[model], METHODS[method]
    steps = batches // every
    with tempfile.TemporaryDirectory() as name, Network(len(RANKS), rate=RATE) as network:
        folder, hosts = Path(name), at(address(rank + 1) for rank in RANKS)
        key, lines = new_key(folder / "run.key"), folder / "run" / "metrics.jsonl"
        run = ["--data", "tiny-shakespeare", "--workers", len(RANKS), "--lr", 0.001, "--steps", steps, "--eval-every", 0]
        run += [*sizes, *settings, "--transport", "tcp", *hosts, "--key", key]
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
    results.touch()
    for number in range(rounds):
        for model in models:
            for method in METHODS:
                cell = {"model": model, "method": method, "round": number}
                if METHODS[method][0] > MODELS[model][0] // 4:
                    continue
                done = [json.loads(line) for line in results.read_text().splitlines()]
                if any(cell.items() <= line.items() for line in done):
                    continue
                line = {**cell, "seconds": round(seconds(model, method), 4), "load": round(os.getloadavg()[0], 2)}
                with results.open("a") as file:
                    print(json.dumps(line), file=file)
                print(json.dumps(line), flush=True)


def table(results):
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    for model in MODELS:
        print(f"\n| {model} | rounds | ms a batch | of dense's, paired |\n| --- | ---: | ---: | ---: |")
        found = {(line["method"], line["round"]): line["seconds"] for line in lines if line["model"] == model}
        for method in METHODS:
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
        table(chosen.results)
        return
    if "GRADWIRE_DATA" not in os.environ:
        sys.exit("GRADWIRE_DATA names no folder; the text is read from its data/tiny-shakespeare")
    if not sandbox.is_inside():
        programs.build_trainer()
    sandbox.enter()
    measure(chosen.results, chosen.models.split(","), chosen.rounds)


if __name__ == "__main__":
    main()
