#!/usr/bin/env python3
"""The study of D. J. Harris on compressed gradients, repeated: an LSTM on Penn Treebank, eleven codecs.

usage: study.py TRAINER FOLDER [--part pre|one|four|seeds] [--cell NAME] [--hidden N --epochs N --early-stop N] [--quick]
       study.py TRAINER FOLDER --list
       study.py TRAINER FOLDER --table

Runs every cell that is not finished; an interrupted one goes on from its checkpoint. A cell is one run of `trainer train`
with its folder in FOLDER. Start the program as often as the machine has cores to spare: each cell is run by one of them.
GRADWIRE_DATA names the folder that holds data/ptb. The thesis's own size is --hidden 300 --epochs 50 --early-stop 10.

--quick runs every cell in less than a minute, to see that all of it works: a small model, text that the trainer brings along,
and an epoch of five steps. What it learns says nothing.
"""

import argparse
import fcntl
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

# Importing leaves no files behind.
sys.dont_write_bytecode = True

from cells import CODECS, FAMILIES, MOST_RATE, NOMINAL, PARTS, RATES, THESIS, family, pre_run

# Of a global batch of 256 streams of 35 words: an epoch is as many steps.
STEPS_AN_EPOCH = 103
QUICK_HIDDEN, QUICK_BATCH, QUICK_STEPS_AN_EPOCH = 16, 32, 5


class Study:
    def __init__(self, arguments):
        self.trainer = Path(arguments.trainer).resolve()
        self.folder = Path(arguments.folder).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.is_quick, self.hidden = arguments.quick, QUICK_HIDDEN if arguments.quick else arguments.hidden
        self.epochs, self.early_stop = arguments.epochs, arguments.early_stop
        if not (arguments.list or arguments.table):
            self.keep_settings()

    def keep_settings(self):
        """Cells of other settings have the same names, so a folder has one kind of them."""
        path = self.folder / "study.json"
        own = {"quick": self.is_quick, "hidden": self.hidden, "epochs": self.epochs, "early_stop": self.early_stop}
        if path.exists() and json.loads(path.read_text()) != own:
            sys.exit(f"{path}: the cells of this folder have other settings: {path.read_text().strip()}")
        path.write_text(json.dumps(own) + "\n")

    def path(self, cell):
        return self.folder / cell.name

    def summary(self, cell):
        """What a finished cell ended with; None for one that is not finished."""
        path = self.path(cell) / "summary.json"
        return json.loads(path.read_text()) if path.exists() else None

    def diverged(self, cell):
        return (self.path(cell) / "diverged.txt").exists()

    def is_done(self, cell):
        return self.summary(cell) is not None or self.diverged(cell)

    def rate(self, cell):
        """The cell's own, or the one whose pre-run had the smallest validation loss. Makes the pre-runs that are missing."""
        if cell.rate is not None:
            return cell.rate
        rates = list(RATES)
        while True:
            runs = [pre_run(FAMILIES[family(cell.codec)], rate) for rate in rates]
            for run in runs:
                self.run(run)
            best = min(runs, key=self.validation_loss)
            if best is not runs[-1] or 2 * rates[-1] > MOST_RATE:
                return best.rate
            rates.append(2 * rates[-1])

    def validation_loss(self, cell):
        losses = [line["eval_loss"] for line in self.metrics(cell) if line.get("eval_loss") is not None]
        return losses[-1] if losses and not self.diverged(cell) else float("inf")

    def metrics(self, cell):
        path = self.path(cell) / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def run_all(self, cells):
        """Leaves out what another program runs, and comes back to it."""
        while left := [cell for cell in cells if not self.is_done(cell)]:
            ran = [self.run(cell, waits=False) for cell in left]
            if not any(ran):
                self.run(left[0])
        for cell in cells:
            # The larger rates that turn out to be needed.
            self.rate(replace(cell, rate=None))

    def run(self, cell, *, waits=True):
        """Whether this program ran it."""
        with open(self.folder / f"{cell.name}.lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
            except BlockingIOError:
                return False
            if self.is_done(cell):
                return False
            self.train(cell)
            return True

    def train(self, cell):
        path = self.path(cell)
        if (path / "checkpoints").exists():
            command = ["train", "--resume", path]
        else:
            epochs = self.epochs if cell.rate is None and self.epochs else cell.epochs
            command = ["train", "--model", "lstm", *self.data(epochs), "--hidden", self.hidden]
            command += ["--workers", cell.workers, "--clip-mean", 0.25, "--lr", self.rate(cell)]
            command += ["--seed", cell.seed, "--codec", CODECS[cell.codec], "--out", path, "--force", *cell.more]
            if self.early_stop and cell.rate is None:
                command += ["--early-stop", self.early_stop]
        print(f"== {cell.name}", flush=True)
        done = subprocess.run([self.trainer, *map(str, command)], check=False, stderr=subprocess.PIPE, text=True)
        if done.returncode and "diverged" in done.stderr:
            (path / "diverged.txt").write_text(done.stderr)
        elif done.returncode:
            sys.exit(f"{cell.name}: {done.stderr}")

    def data(self, epochs):
        """What is read, in which batches, for how long, and how often it is evaluated and kept."""
        if self.is_quick:
            # Evaluated at the end alone: that takes longer than the steps.
            steps = QUICK_STEPS_AN_EPOCH * epochs
            what = ["--data", "tiny-shakespeare", "--batch", QUICK_BATCH, "--steps", steps]
        else:
            steps = STEPS_AN_EPOCH
            what = ["--data", "ptb", "--data-dir", data_folder(), "--batch", 256, "--epochs", epochs]
        return [*what, "--eval-every", steps, "--checkpoint-every", steps]

    def table(self):
        print("| codec | workers | seed | rate | nominal ratio | counted ratio | validation ppl | test ppl | thesis, 1 and 2 workers |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for cell in [*PARTS["one"], *PARTS["four"], *PARTS["seeds"]]:
            if not self.is_done(cell):
                continue
            about = f"| {cell.codec} | {cell.workers} | {cell.seed} | {self.rate(cell):g} | {NOMINAL[cell.codec]:g} ×"
            thesis = ", ".join("-" if value is None else f"{value:.1f}" for value in THESIS[cell.codec])
            if self.diverged(cell):
                print(f"{about} | - | diverged | diverged | {thesis} |")
                continue
            summary = self.summary(cell)
            perplexities = [line["perplexity"] for line in self.metrics(cell) if line.get("perplexity") is not None]
            ratio = f"{summary['ratio']:.3g} ×"
            print(f"{about} | {ratio} | {min(perplexities):.1f} | {summary['perplexity']:.1f} | {thesis} |")


def data_folder():
    return Path(os.environ["GRADWIRE_DATA"]) / "data" / "ptb"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainer")
    parser.add_argument("folder")
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--cell")
    parser.add_argument("--hidden", type=int, default=100)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--early-stop", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    study = Study(arguments)
    cells = [cell for part, cells in PARTS.items() if arguments.part in (None, part) for cell in cells]
    if arguments.cell:
        cells = [cell for cell in cells if cell.name == arguments.cell]
    if arguments.list:
        for cell in cells:
            print(cell.name, "done" if study.is_done(cell) else "")
    elif arguments.table:
        study.table()
    else:
        study.run_all(cells)


if __name__ == "__main__":
    main()
