#!/usr/bin/env python3
"""Longer runs than those of methods.py, one for each method: ResNet-20, a CNN and an LSTM, by means and by gossip.

usage: longer.py TRAINER FOLDER RECORD [--task NAME ...] [--quick]
       longer.py --table RECORD

Runs in FOLDER whatever RECORD has no line of, and adds one for each run that is finished; an interrupted run goes on from its
checkpoint. Start it as often as there are cores to spare.
GRADWIRE_DATA names the folder that holds data/cifar-10, data/fashion-mnist and data/ptb. --quick takes a few steps of each on shipped digits.
"""

import argparse
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

# Importing leaves no files behind.
sys.dont_write_bytecode = True

from report import head, row
from runs import Runs

SEED = 11
RESNET = ("--model", "resnet20", "--lr", 0.1, "--momentum", 0.9, "--weight-decay", 1e-4, "--schedule", "cosine", "--batch", 128)
LSTM = ("--model", "lstm", "--hidden", 100, "--clip", 0.25, "--lr", 20, "--schedule", "cosine", "--batch", 64)
CNN = ("--model", "cnn", "--lr", 0.1, "--schedule", "cosine", "--batch", 64)
# Codecs, and what else `trainer train` is asked for. Every method has the rate of dense training.
LGC = "x:lgc:dense_steps=20,train_steps=180"
MEANS = [
    "none",
    "qsgd:bits=4",
    "maxnorm:bits=4",
    "maxnorm:bits=2",
    "powersgd:rank=2",
    "topk:density=0.01",
    "topk:density=0.01,values=q2",
    "sharedk:density=0.01,by=leader",
    "efsign",
    LGC,
    "maxnorm:bits=4+8",
    # With the bytes of LGC.
    "topk:density=0.024",
    "topk:density=0.18,values=q2",
    "sharedk:density=0.029,by=leader",
    f"{LGC},decoders=4",
]
# What LGC is compared with, at equal steps and with its bytes.
LEARNED = [
    "none",
    "topk:density=0.01",
    "topk:density=0.01,values=q2",
    "sharedk:density=0.01,by=leader",
    LGC,
    f"{LGC},decoders=4",
    "topk:density=0.028",
    "topk:density=0.24,values=q2",
    "sharedk:density=0.034,by=leader",
]
# The most telling first, for a study that is stopped.
GOSSIP = [
    "none",
    "dpsgd",
    "powergossip:rank=1",
    "choco:density=0.1,diffusion=0.1",
    "powergossip:rank=1,iterations=8",
    "powergossip:rank=1 --topology torus",
    "choco:density=1,values=sign,diffusion=0.45,dense_1d",
    "dpsgd --topology torus",
    "powergossip:rank=1,iterations=2",
    "powergossip:rank=1,iterations=16",
]


@dataclass(frozen=True)
class Task:
    """What is trained by how many workers."""

    data: str
    settings: tuple
    length: tuple
    workers: int
    methods: list


TASKS = {
    "resnet20": Task("cifar-10", RESNET, ("--epochs", 6), 4, MEANS),
    "resnet20-gossip": Task("cifar-10", RESNET, ("--epochs", 3), 8, GOSSIP),
    "lstm-gossip": Task("ptb", LSTM, ("--epochs", 1), 8, GOSSIP),
    "cnn": Task("fashion-mnist", CNN, ("--steps", 400), 4, LEARNED),
}


@dataclass(frozen=True)
class Cell:
    """One run."""

    task: str
    method: str

    @property
    def name(self):
        """Of its folder."""
        return f"{self.task}-{self.method}".translate(str.maketrans(":, ", "---"))


CELLS = [Cell(name, method) for name, task in TASKS.items() for method in task.methods]


class Longer(Runs):
    """The runs of this file."""

    def __init__(self, trainer, folder, record, *, is_quick):
        super().__init__(trainer, folder)
        self.record, self.is_quick = record, is_quick

    def is_done(self, cell):
        """A record may come from another machine, without its folders."""
        return any(cell == Cell(line["task"], line["method"]) for line in lines_of(self.record)) or super().is_done(cell)

    def _train(self, cell):
        super()._train(cell)
        if self.summary(cell):
            with open(self.record, "a") as record:
                record.write(json.dumps(self.line(cell)) + "\n")

    def command(self, cell):
        """What `trainer train` is asked for."""
        task = TASKS[cell.task]
        command = ["--codec", *cell.method.split(), "--workers", task.workers, "--seed", SEED]
        if self.is_quick:
            return [*command, "--steps", 4, "--eval-every", 0, "--batch", 16]
        folder = Path(os.environ["GRADWIRE_DATA"]) / "data" / task.data
        command += ["--data", task.data, "--data-dir", folder, *task.settings, *task.length]
        return [*command, "--hash-every", 0, "--checkpoint-every", 20]

    def line(self, cell):
        """What the tables need of a finished run."""
        wanted = ["steps", "params", "bytes_up", "accuracy", "perplexity", "consensus_distance", "compute_seconds"]
        summary = self.summary(cell)
        found = {"task": cell.task, "method": cell.method} | {key: summary[key] for key in wanted if key in summary}
        found["neighbours"] = self.metrics(cell)[-1]["contributors"] - 1
        return found | {key: summary["origin"][key] for key in ("commit", "cpu")}


def lines_of(record):
    """What is known, as far as anything is."""
    return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


def tables(lines):
    """One for each task."""
    for name, task in TASKS.items():
        found = {line["method"]: line for line in lines if line["task"] == name}
        dense = found.get("none")
        if not dense or len(found) == 1:
            continue
        is_text, is_gossip = "perplexity" in dense, task.methods is GOSSIP
        print(f"{name}: {task.workers} workers, {dense['steps']} steps", end="\n\n")
        columns = ["method", "test perplexity" if is_text else "test accuracy", "to dense", "kB a step and worker"]
        head(columns + ["kB an edge", "consensus distance"] * is_gossip)
        for method in filter(found.get, task.methods):
            line = found[method]
            quality, same = ((each["perplexity"] if is_text else 100 * each["accuracy"]) for each in (line, dense))
            kilobytes = line["bytes_up"] / line["steps"] / task.workers / 1000
            parts = [f"{quality:.2f}", f"{quality - same:+.2f}", f"{kilobytes:.4g}"]
            if is_gossip:
                is_mixed = "consensus_distance" in line
                parts += [f"{kilobytes / line['neighbours']:.4g}", f"{line['consensus_distance']:.3g}"] if is_mixed else ["–", "0"]
            row([f"`{method}`", *parts])
        print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainer", nargs="?")
    parser.add_argument("folder", nargs="?")
    parser.add_argument("record", nargs="?", type=Path)
    parser.add_argument("--task", action="append", choices=TASKS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    if args.table:
        tables(lines_of(args.table))
    elif args.record:
        runs = Longer(args.trainer, args.folder, args.record, is_quick=args.quick)
        runs.run_all([cell for cell in CELLS if cell.task in (args.task or TASKS)])
    else:
        parser.error("expected TRAINER FOLDER RECORD, or --table RECORD")


if __name__ == "__main__":
    main()
