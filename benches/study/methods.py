#!/usr/bin/env python3
"""A row for every method that exists: what it sends, what that takes and what it learns; four workers as threads.

usage: methods.py TRAINER FOLDER [--quick]
       methods.py TRAINER FOLDER --bench           bits, errors and times on recorded gradients alone; wants a quiet machine
       methods.py TRAINER FOLDER --list            the methods that lack cells
       methods.py TRAINER FOLDER --table           the tables, as far as cells are finished
       methods.py TRAINER FOLDER --page FILE       writes them into a page, between its marks
       methods.py TRAINER FOLDER --plot FILE       two pictures of the same; needs matplotlib
       methods.py TRAINER FOLDER --export FILE     all that the tables need, as FILE (.tar.xz); unpacked, it is a FOLDER again

Fails if `trainer codec list` has a codec without a method here. Runs every cell that is not finished: each method at three
rates with one seed, then at its best rate with three others, in each part of the study; longer runs take the rates of the
shorter ones. GRADWIRE_DATA names the folder that
holds gradients/ and data/fashion-mnist. --quick runs every method for some steps, to see that all of it works.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

# Importing leaves no files behind.
sys.dont_write_bytecode = True

import methods_bench
import methods_cells
import methods_plot
import methods_report
import report
from methods_cells import (
    BATCH,
    FACTOR,
    LONG_STEPS,
    METHODS,
    MOST_RATES,
    PARTS,
    QUICK_STEPS,
    REFERENCE,
    SEEDS,
    STEPS,
    TUNING_SEED,
    WINDOW,
    WORKERS,
    Cell,
)
from runs import Runs


class Methods(Runs):
    """The runs of this file."""

    def __init__(self, trainer, folder, *, is_quick):
        super().__init__(trainer, folder)
        self.is_quick = is_quick

    def command(self, cell):
        """What `trainer train` is asked for."""
        method, steps = cell.method, self.exchanges(cell)
        # Rules name codecs themselves.
        codec = () if method.option("--rules") else ("--codec", method.codec_of(steps))
        command = [*self.task(cell, steps), *codec, *method.options, "--workers", WORKERS]
        command += ["--steps", steps, "--lr", cell.rate, "--seed", cell.seed, "--eval-every", 0, "--hash-every", 0]
        # What it keeps is counted in a checkpoint.
        return [*command, "--checkpoint-every", steps if cell == self.first(method) else 0]

    def task(self, cell, steps):
        """What is trained."""
        if cell.part == "gpt":
            optimizer = () if cell.method.option("--optimizer") else ("--optimizer", "adamw")
            return [*methods_cells.GPT_TASK, *optimizer, "--warmup", steps // 10]
        if self.is_quick:
            return [*methods_cells.QUICK_TASK, "--batch", BATCH]
        return [*methods_cells.TASK, "--data-dir", Path(os.environ["GRADWIRE_DATA"]) / "data" / "fashion-mnist", "--batch", BATCH]

    def exchanges(self, cell):
        """The trainer counts these as steps."""
        return max(1, self.batches(cell.method, cell.part) // cell.method.local_steps)

    def batches(self, method, part):
        """At equal bytes, as many as the reference's bytes pay for; that takes the first cells of both."""
        steps = QUICK_STEPS if self.is_quick else LONG_STEPS if part == "long" else STEPS
        if part != "bytes" or method == REFERENCE:
            return steps
        budget = self.bytes_a_batch(self.first(REFERENCE)) * STEPS
        return max(1, min(methods_cells.MOST_STEPS, round(budget / self.bytes_a_batch(self.first(method)))))

    def bytes_a_batch(self, cell):
        """What a worker sends."""
        summary = self.summary(cell)
        return summary["bytes_up"] / WORKERS / (summary["steps"] * cell.method.local_steps)

    def first(self, method):
        """The cell that is run first."""
        return Cell(method, "steps", method.rates("steps")[0], TUNING_SEED)

    def loss(self, cell):
        """At the end; infinite for a run that diverged."""
        loss = None if self.diverged(cell) else self.summary(cell)["final_loss"]
        return float("inf") if loss is None else loss

    def is_tuned_anew(self, method, part):
        """Where equal bytes are far fewer steps, another rate may be the best. Longer runs have the rate of the others."""
        if part == "long":
            return False
        return part != "bytes" or self.batches(method, part) < STEPS / 2

    def tuned(self, method, part):
        """The finished cells that choose a rate, by rate."""
        part = part if self.is_tuned_anew(method, part) else "steps"
        rates = method.rates(part)
        tried = [max(rates) * FACTOR**step for step in range(MOST_RATES, -MOST_RATES - len(rates), -1)]
        cells = [Cell(method, part, float(f"{rate:.6g}"), TUNING_SEED) for rate in sorted(tried)]
        return [cell for cell in cells if self.is_done(cell)]

    def best(self, method, part):
        """The cell with the smallest loss; None before one is finished."""
        return min(self.tuned(method, part), key=self.loss, default=None)

    def tune(self, method, part):
        """Tries the rates, and a further one while the best is at an end."""
        if not self.is_tuned_anew(method, part):
            return
        rates = method.rates(part)[: 1 if self.is_quick else None]
        self.run_all([Cell(method, part, rate, TUNING_SEED) for rate in rates])
        while not self.is_quick and (cell := self.beyond(method, part)):
            self.run(cell)

    def beyond(self, method, part):
        """The next rate, where the best one is at an end."""
        tuned, best = self.tuned(method, part), self.best(method, part)
        if len(tuned) >= MOST_RATES or best not in (tuned[0], tuned[-1]):
            return None
        rate = best.rate / FACTOR if best == tuned[0] else best.rate * FACTOR
        return Cell(method, part, float(f"{rate:.6g}"), TUNING_SEED)

    def finals(self, method, part):
        """At the best rate, with the seeds that are reported. Those of the reference are the same at equal steps and bytes."""
        best = self.best(method, part)
        part = "steps" if method == REFERENCE and part == "bytes" else part
        return [Cell(method, part, best.rate, seed) for seed in SEEDS] if best else []

    def lacks(self, method, part):
        """Whether a cell is left."""
        if not all(self.is_done(self.first(needed)) for needed in (REFERENCE, method)):
            return method.trains(part)
        cells = self.finals(method, part)
        return method.trains(part) and not (cells and all(map(self.is_done, cells)))

    def count_state(self, method):
        """Writes down how many bytes a worker keeps between steps, as its file of a checkpoint has them."""
        path = self.path(self.first(method))
        for file in path.glob("checkpoints/*/rank-0.safetensors"):
            (path / "state.json").write_text(json.dumps({"bytes": data_bytes(file)}) + "\n")

    def keep_course(self, cell):
        """Writes down what all workers sent in each step, and how the loss fell."""
        if lines := self.metrics(cell):
            losses = [statistics.mean(line["loss"] for line in part) for part in in_parts(lines)]
            course = {"bytes": [line["bytes_up"] for line in lines], "loss": [round(loss, 4) for loss in losses]}
            (self.path(cell) / "course.json").write_text(json.dumps(course) + "\n")


def in_parts(values):
    """A curve's points: so many values for each, that one step's chance does not show."""
    return [values[start : start + WINDOW] for start in range(0, len(values), WINDOW)]


def data_bytes(file):
    """Of a safetensors file, its header left out."""
    with open(file, "rb") as opened:
        return file.stat().st_size - 8 - int.from_bytes(opened.read(8), "little")


def registry(trainer):
    """The kinds of all codecs, by name. Fails if one has no method."""
    listed = subprocess.run([trainer, "codec", "list", "--json"], check=True, capture_output=True, text=True).stdout
    entries = [json.loads(line) for line in listed.splitlines()]
    names = {name["name"]: entry["kind"] for entry in entries for name in entry["names"]}
    if missing := sorted(names.keys() - {method.codec_name for method in METHODS}):
        sys.exit(f"methods_cells.py has no method of {', '.join(missing)}, which `trainer codec list` has")
    return names


def run(runs, kinds, arguments):
    """All that is not finished."""
    for part in ["steps"] if runs.is_quick else PARTS:
        for method in (method for method in in_turn() if method.trains(part)):
            runs.tune(method, part)
            runs.count_state(method)
            if not runs.is_quick:
                runs.run_all(runs.finals(method, part))
            if part == "long":
                for cell in runs.finals(method, part):
                    runs.keep_course(cell)
    methods_bench.measure(runs, kinds, rounds=1 if runs.is_quick else arguments.rounds)


def in_turn():
    """All methods: first those that others are compared with, then one of every codec, so that an unfinished study has both."""
    seen = Counter()
    place = {}
    for method in METHODS:
        place[method] = (method not in (REFERENCE, method.dense()), seen[method.codec_name])
        seen[method.codec_name] += 1
    return sorted(METHODS, key=place.get)


def main():
    """Runs or prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainer", type=Path)
    parser.add_argument("folder")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=7, help="of the bench")
    parser.add_argument("--bench", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--page", metavar="FILE", type=Path)
    parser.add_argument("--plot", metavar="FILE", type=Path)
    parser.add_argument("--export", metavar="FILE", type=Path)
    arguments = parser.parse_args()
    runs = Methods(arguments.trainer, arguments.folder, is_quick=arguments.quick)
    kinds = registry(runs.trainer)
    if arguments.table:
        print(methods_report.tables(runs, kinds))
    elif arguments.page:
        arguments.page.write_text(methods_report.written(arguments.page.read_text(), runs, kinds))
    elif arguments.plot:
        methods_plot.plot(methods_report.Report(runs, kinds), arguments.plot)
    elif arguments.export:
        report.export(runs, arguments.export, methods_report.thinned, methods_report.KEPT)
    elif arguments.list:
        print(*(f"{method.spelling}: {PARTS[part]}" for part in PARTS for method in METHODS if runs.lacks(method, part)), sep="\n")
    elif arguments.bench:
        methods_bench.measure(runs, kinds, rounds=arguments.rounds)
    else:
        run(runs, kinds, arguments)


if __name__ == "__main__":
    main()
