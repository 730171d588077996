#!/usr/bin/env python3
"""The study of D. J. Harris on compressed gradients, repeated: an LSTM on Penn Treebank, eleven codecs.

usage: study.py TRAINER FOLDER [--part pre|one|four|seeds|rates|momentum] [--cell NAME] [--hidden N --epochs N --early-stop N] [--quick]
       study.py TRAINER FOLDER --list
       study.py TRAINER FOLDER --table          what the finished cells found, beside the thesis
       study.py TRAINER FOLDER --times          what encoding, exchange and computing take an epoch
       study.py TRAINER FOLDER --export FILE    all cells but their checkpoints, as FILE (.tar.xz); --table reads it unpacked

Runs every cell that is not finished; an interrupted one goes on from its checkpoint. A cell is one run of `trainer train`
with its folder in FOLDER. Start the program as often as the machine has cores to spare: each cell is run by one of them.
GRADWIRE_DATA names the folder that holds data/ptb. The thesis's own size is --hidden 300 --epochs 50 --early-stop 10.

--quick runs every cell in less than a minute, to see that all of it works: a small model, text that the trainer brings along,
and an epoch of five steps. What it learns says nothing.
"""

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

# Importing leaves no files behind.
sys.dont_write_bytecode = True

import report
from cells import CODECS, MOST_RATE, PARTS, STEPS_AN_EPOCH, TIMES
from runs import Runs

QUICK_HIDDEN, QUICK_BATCH, QUICK_STEPS_AN_EPOCH = 16, 32, 5


class Study(Runs):
    def __init__(self, arguments):
        super().__init__(arguments.trainer, arguments.folder)
        self.is_quick, self.hidden = arguments.quick, QUICK_HIDDEN if arguments.quick else arguments.hidden
        self.epochs, self.early_stop = arguments.epochs, arguments.early_stop
        if not (arguments.list or arguments.table or arguments.export):
            self.keep_settings()

    def keep_settings(self):
        """Cells of other settings have the same names, so a folder has one kind of them."""
        path = self.folder / "study.json"
        own = {"quick": self.is_quick, "hidden": self.hidden, "epochs": self.epochs, "early_stop": self.early_stop}
        if path.exists() and json.loads(path.read_text()) != own:
            sys.exit(f"{path}: the cells of this folder have other settings: {path.read_text().strip()}")
        path.write_text(json.dumps(own) + "\n")

    def rate(self, cell):
        """The cell's own, or the one whose pre-run had the smallest validation loss. Makes the pre-runs that are missing."""
        if cell.rate is not None:
            return cell.rate
        rates = list(cell.rates())
        while True:
            runs = [cell.pre_run(rate) for rate in rates]
            for run in runs:
                self.run(run)
            best = min(runs, key=self.validation_loss)
            if best is not runs[-1] or 2 * rates[-1] > MOST_RATE:
                return best.rate
            rates.append(2 * rates[-1])

    def validation_loss(self, cell):
        losses = [line["eval_loss"] for line in self.metrics(cell) if line.get("eval_loss") is not None]
        return losses[-1] if losses and not self.diverged(cell) else float("inf")

    def run_all(self, cells):
        super().run_all(cells)
        for cell in cells:
            # The larger rates that turn out to be needed.
            if cell.steps is None:
                self.rate(replace(cell, rate=None))

    def command(self, cell):
        command = ["--model", "lstm", *self.data(cell), "--hidden", self.hidden]
        command += ["--workers", cell.workers, "--clip-mean", 0.25, "--lr", self.rate(cell)]
        command += ["--seed", cell.seed, "--codec", CODECS[cell.codec]]
        command += [] if cell.momentum is None else ["--momentum", cell.momentum]
        stops = self.early_stop and cell.rate is None
        return [*command, "--early-stop", self.early_stop] if stops else command

    def data(self, cell):
        """What is read, in which batches, for how long, and how often it is evaluated and kept."""
        epochs = self.epochs if cell.rate is None and self.epochs else cell.epochs
        if self.is_quick:
            # Evaluated at the end alone: that takes longer than the steps.
            steps = QUICK_STEPS_AN_EPOCH * epochs
            what = ["--data", "tiny-shakespeare", "--batch", QUICK_BATCH, "--steps", steps]
        else:
            steps = STEPS_AN_EPOCH
            what = ["--data", "ptb", "--data-dir", data_folder(), "--batch", 256]
            what += ["--steps", cell.steps] if cell.steps else ["--epochs", epochs]
        return [*what, "--eval-every", steps, "--checkpoint-every", steps]


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
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--export", metavar="FILE")
    arguments = parser.parse_args()
    study = Study(arguments)
    cells = [cell for part, cells in PARTS.items() if arguments.part in (None, part) for cell in cells]
    if arguments.cell:
        cells = [cell for cell in cells if cell.name == arguments.cell]
    if arguments.list:
        for cell in cells:
            print(cell.name, "done" if study.is_done(cell) else "")
    elif arguments.table:
        report.table(study)
    elif arguments.times:
        study.run_all(TIMES)
        report.times(study)
    elif arguments.export:
        report.export(study, Path(arguments.export))
    else:
        study.run_all(cells)


if __name__ == "__main__":
    main()
