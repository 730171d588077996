#!/usr/bin/env python3
"""Densities that change while a run goes on, against densities that do not: ResNet-20 and an LSTM, four workers.

usage: adaptive.py TRAINER FOLDER [--model resnet20|lstm] [--quick]
       adaptive.py TRAINER FOLDER --table

Runs every cell that is not finished, as study.py does; start it as often as there are cores to spare. GRADWIRE_DATA names the
folder that holds data/cifar-10 and data/ptb. --table prints bytes and seconds until a cell is as good as the dense one ends,
on links of 100 Mbit/s.

Seconds are modelled, so that cells may run beside each other on a busy machine: for each step the median time of computing of
all cells of the model, the cell's own median times of encoding and decoding, and its bytes over the link: 2(N-1)/N of the
gradient around a ring, or N-1 frames.
"""

import argparse
import itertools
import os
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

# Importing leaves no files behind.
sys.dont_write_bytecode = True

from report import head, row
from runs import Runs

WORKERS, LINK_BYTES_A_SECOND, LATENCY_SECONDS = 4, 100e6 / 8, 50e-6

# Controllers see windows that fit into runs of some hundred steps.
METHODS = {
    "dense": ["--codec", "none"],
    "0.1": ["--codec", "topk:density=0.1"],
    "0.01": ["--codec", "topk:density=0.01"],
    "0.001": ["--codec", "topk:density=0.001"],
    "GraVAC, exponential": ["--codec", "topk", "--adapt", "gravac:min=10,max=1000,window=50"],
    "GraVAC, geometric": ["--codec", "topk", "--adapt", "gravac:min=10,max=1000,window=50,policy=geometric"],
    "Accordion": ["--codec", "topk", "--adapt", "accordion:low=0.1,high=0.01,window=2"],
}


@dataclass(frozen=True)
class Model:
    """What is trained, with steps in an epoch, and what is better when it is larger."""

    data: str
    settings: tuple
    epochs: int
    steps_an_epoch: int
    measure: str
    sign: int


MODELS = {
    "resnet20": Model(
        "cifar-10",
        ("--batch", 128, "--lr", 0.1, "--momentum", 0.9, "--weight-decay", 1e-4, "--schedule", "step", "--decay-every", 780),
        15,
        78,
        "accuracy",
        1,
    ),
    "lstm": Model("ptb", ("--batch", 256, "--hidden", 100, "--clip-mean", 0.25, "--lr", 20), 6, 103, "perplexity", -1),
}
QUICK = {
    "resnet20": ("--data", "optdigits", "--batch", 64, "--steps", 4),
    "lstm": ("--data", "tiny-shakespeare", "--batch", 32, "--hidden", 16, "--steps", 4),
}


@dataclass(frozen=True)
class Cell:
    """One run."""

    model: str
    method: str

    @property
    def name(self):
        """Of its folder."""
        return f"{self.model}-{self.method.replace(', ', '-')}"


CELLS = [Cell(*pair) for pair in itertools.product(MODELS, METHODS)]


class Adaptive(Runs):
    """The runs of this file."""

    def __init__(self, trainer, folder, *, is_quick):
        super().__init__(trainer, folder)
        self.is_quick = is_quick

    def command(self, cell):
        """What `trainer train` is asked for."""
        command = ["--model", cell.model, "--workers", WORKERS, *METHODS[cell.method]]
        if self.is_quick:
            return [*command, *QUICK[cell.model]]
        model = MODELS[cell.model]
        folder = Path(os.environ["GRADWIRE_DATA"]) / "data" / model.data
        command += ["--data", model.data, "--data-dir", folder, "--epochs", model.epochs, *model.settings]
        return [*command, "--eval-every", model.steps_an_epoch, "--checkpoint-every", model.steps_an_epoch]


def seconds_of_steps(lines, compute, is_dense):
    """Of each step, on the link."""
    encode, decode = (statistics.median(line[f"{part}_ns"] for line in lines) / 1e9 for part in ("encode", "decode"))
    messages = 2 * (WORKERS - 1) if is_dense else 1
    for line in lines:
        # `bytes_up` counts what all workers sent.
        moving = messages * LATENCY_SECONDS + line["bytes_up"] / WORKERS / LINK_BYTES_A_SECOND
        yield compute + encode + decode + moving


def table(runs):
    """One row for each finished cell, and which of them needed least."""
    winners = []
    columns = ["model", "density", "median density", "best on validation", "MB a worker"]
    head([*columns, "to dense's end: epochs", "MB", "seconds"])
    for name, model in MODELS.items():
        cells = [cell for cell in CELLS if cell.model == name and runs.is_done(cell) and not runs.diverged(cell)]
        metrics = {cell.method: runs.metrics(cell) for cell in cells}
        if "dense" not in metrics:
            continue
        compute = statistics.median(line["compute_ns"] for lines in metrics.values() for line in lines) / 1e9
        reached = [line[model.measure] for line in metrics["dense"] if line.get(model.measure) is not None]
        rows = {method: row_of(model, method, lines, compute, reached[-1]) for method, lines in metrics.items()}
        for method, values in rows.items():
            row([name, method, *values])
        for column, what in ((-2, "bytes"), (-1, "seconds")):
            there = {method: float(values[column]) for method, values in rows.items() if values[column] != "-"}
            winners.append(f"{name}, fewest {what}: {min(there, key=there.get)}")
    print("", *winners, sep="\n")


def row_of(model, method, lines, compute, wanted):
    """What a cell needed until it was as good as wanted."""
    evaluated = [(at, line[model.measure]) for at, line in enumerate(lines) if line.get(model.measure) is not None]
    best = max(evaluated, key=lambda pair: model.sign * pair[1])[1]
    about = [f"{statistics.median(line['density'] for line in lines):.3g}", f"{best:.4g}", megabytes(lines)]
    at = next((at for at, value in evaluated if model.sign * (value - wanted) >= 0), None)
    if at is None:
        return [*about, "not reached", "-", "-"]
    seconds = sum(itertools.islice(seconds_of_steps(lines, compute, method == "dense"), at + 1))
    return [*about, f"{(at + 1) / model.steps_an_epoch:.0f}", megabytes(lines[: at + 1]), f"{seconds:.0f}"]


def megabytes(lines):
    """What a worker sent."""
    return f"{sum(line['bytes_up'] for line in lines) / WORKERS / 1e6:.1f}"


def main():
    """Runs or prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainer")
    parser.add_argument("folder")
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    runs = Adaptive(arguments.trainer, arguments.folder, is_quick=arguments.quick)
    if arguments.table:
        table(runs)
    else:
        runs.run_all([cell for cell in CELLS if arguments.model in (None, cell.model)])


if __name__ == "__main__":
    main()
