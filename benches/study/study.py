#!/usr/bin/env python3
"""The study of D. J. Harris on compressed gradients, repeated: an LSTM on Penn Treebank, eleven codecs.

usage: study.py TRAINER FOLDER [--part pre|one|four|seeds] [--cell NAME] [--hidden N --epochs N --early-stop N]
       study.py TRAINER FOLDER --list
       study.py TRAINER FOLDER --table

Runs every cell that is not finished; an interrupted one goes on from its checkpoint. A cell is one run of `trainer train`
with its folder in FOLDER. GRADWIRE_DATA names the folder that holds data/ptb. About 14 core-hours in all with the defaults:
the pre-runs, which choose the rate of each family of codecs, take 2 hours, one worker 6, four workers 3, more seeds 3. The
thesis's own size is --hidden 300 --epochs 50 --early-stop 10.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

# Importing leaves no files behind.
sys.dont_write_bytecode = True

from cells import CODECS, FAMILIES, NOMINAL, PARTS, PRE_RUNS, RATES, THESIS, family

# Of a global batch of 256 streams of 35 words: an epoch is as many steps.
STEPS_AN_EPOCH = 103


class Study:
    def __init__(self, arguments):
        self.trainer = Path(arguments.trainer).resolve()
        self.folder = Path(arguments.folder).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.hidden, self.epochs, self.early_stop = arguments.hidden, arguments.epochs, arguments.early_stop

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
        """The cell's own, or the one whose pre-run had the smallest validation loss."""
        if cell.rate is not None:
            return cell.rate
        runs = [pre for pre in PRE_RUNS if pre.codec == FAMILIES[family(cell.codec)]]
        assert all(self.is_done(pre) for pre in runs), f"{cell.name} needs the pre-runs of {family(cell.codec)} first"
        return min(runs, key=self.validation_loss).rate

    def validation_loss(self, cell):
        losses = [line["eval_loss"] for line in self.metrics(cell) if line.get("eval_loss") is not None]
        return losses[-1] if losses and not self.diverged(cell) else float("inf")

    def metrics(self, cell):
        path = self.path(cell) / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def run(self, cell):
        path = self.path(cell)
        if self.is_done(cell):
            return
        if (path / "checkpoints").exists():
            command = ["train", "--resume", path]
        else:
            command = ["train", "--model", "lstm", "--data", "ptb", "--data-dir", data_folder(), "--hidden", self.hidden]
            command += ["--batch", 256, "--workers", cell.workers, "--clip-mean", 0.25, "--lr", self.rate(cell)]
            epochs = self.epochs if cell.rate is None and self.epochs else cell.epochs
            command += ["--epochs", epochs, "--eval-every", STEPS_AN_EPOCH, "--checkpoint-every", STEPS_AN_EPOCH]
            command += ["--seed", cell.seed, "--codec", CODECS[cell.codec], "--out", path, "--force", *cell.more]
            if self.early_stop and cell.rate is None:
                command += ["--early-stop", self.early_stop]
        print(f"== {cell.name}", flush=True)
        done = subprocess.run([self.trainer, *map(str, command)], check=False, stderr=subprocess.PIPE, text=True)
        if done.returncode and "diverged" in done.stderr:
            (path / "diverged.txt").write_text(done.stderr)
        elif done.returncode:
            sys.exit(f"{cell.name}: {done.stderr}")

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
        for cell in cells:
            study.run(cell)


if __name__ == "__main__":
    main()
