#!/usr/bin/env python3
"""Which compressed exchange goes with AdamW: a small GPT on tiny Shakespeare and ResNet-20, four workers or sixteen as threads.

usage: optimizers.py TRAINER FOLDER [--task NAME ...] [--method NAME ...] [--quick]
       optimizers.py TRAINER FOLDER --final        the finalists at their best rate, with seeds that tuned nothing
       optimizers.py TRAINER FOLDER --list         the cells that are left
       optimizers.py TRAINER FOLDER --table        what the finished cells found
       optimizers.py TRAINER FOLDER --export FILE  losses and bytes of all cells, as FILE (.tar.xz); unpacked, it is a FOLDER again

Trains every method at every rate, and where the best rate is the first or last, at the next one, too. Runs every cell that is
not finished; an interrupted one goes on from its checkpoint. Start it as often as there are cores to spare. GRADWIRE_DATA names the
folder that holds data/cifar-10. --quick runs every method for some steps at one rate on what ships with the trainer, to see that
all of it works.
"""

import argparse
import sys
from pathlib import Path

# Importing leaves no files behind.
sys.dont_write_bytecode = True

import optimizers_report
import report
from optimizers_cells import FINALISTS, FINALISTS_OF_IMAGES, METHODS, SEEDS, SEEDS_OF_IMAGES, TASKS, TUNING_SEED, Cell
from runs import Runs


class Optimizers(Runs):
    """The runs of this file."""

    def __init__(self, trainer, folder, *, is_quick):
        super().__init__(trainer, folder)
        self.is_quick = is_quick

    def command(self, cell):
        """What `trainer train` is asked for."""
        method = METHODS[cell.method]
        command = [*TASKS[cell.task].command(method.batches, is_quick=self.is_quick), *method.command()]
        return [*command, "--workers", TASKS[cell.task].workers, "--lr", cell.rate, "--seed", cell.seed]

    def loss(self, cell):
        """At the end, on the validation part, for images the share of errors; infinite for a run that diverged, None for one that
        is not finished."""
        if self.diverged(cell):
            return float("inf")
        return self.evaluations(cell)[-1][1] if self.is_done(cell) else None

    def evaluations(self, cell):
        """Batches and losses on the validation part, for images the shares of errors."""
        batches, is_of_images = METHODS[cell.method].batches, TASKS[cell.task].images
        lines = [line for line in self.metrics(cell) if line.get("eval_loss") is not None]
        return [(batches * (line["step"] + 1), 1 - line["accuracy"] if is_of_images else line["eval_loss"]) for line in lines]

    def seeded(self, task, method, seed):
        """The finished cells of this seed, by rate."""
        names = [path.name for path in self.folder.glob(f"{task}-{method}-lr*-s{seed}")]
        rates = sorted(float(name.split("-lr")[1].rsplit("-s", 1)[0]) for name in names)
        return [cell for rate in rates if self.is_done(cell := Cell(task, method, rate, seed))]

    def tuned(self, task, method):
        """The finished cells that choose the rate, by rate."""
        return self.seeded(task, method, TUNING_SEED)

    def best(self, task, method):
        """The cell with the smallest loss; None before one is finished."""
        return min(self.tuned(task, method), key=self.loss, default=None)

    def screening(self, task, methods):
        """The cells that choose rates and are not finished, in the order in which to run them."""
        rates = TASKS[task].rates[: 1 if self.is_quick else None]
        methods = [method for method in methods if method in (TASKS[task].methods or methods)]
        cells = [Cell(task, method, rate, TUNING_SEED) for rate in rates for method in methods]
        return [cell for cell in cells if not self.is_done(cell)]

    def beyond(self, task, methods):
        """For each method whose best rate is at an end of the grid, the next rate beyond."""
        for method in methods:
            tuned, best = self.tuned(task, method), self.best(task, method)
            if tuned and best in (tuned[0], tuned[-1]):
                yield Cell(task, method, best.rate * (0.5 if best == tuned[0] else 2), TUNING_SEED)

    def screen(self, task, methods):
        """Runs them all."""
        self.run_all(self.screening(task, methods))
        while not self.is_quick and (cells := list(self.beyond(task, methods))):
            self.run_all(cells)

    def finals(self, task):
        """Those of the finalists that are not finished, at the rates that were chosen."""
        methods, seeds = (FINALISTS_OF_IMAGES, SEEDS_OF_IMAGES) if TASKS[task].images else (FINALISTS, SEEDS)
        best = {method: self.best(task, method) for method in methods}
        cells = [Cell(task, method, best[method].rate, seed) for seed in seeds for method in methods if best[method]]
        return [cell for cell in cells if not self.is_done(cell)]


def main():
    """Runs or prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainer")
    parser.add_argument("folder")
    parser.add_argument("--task", choices=TASKS, action="append")
    parser.add_argument("--method", choices=METHODS, action="append")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--final", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--export", metavar="FILE", type=Path)
    arguments = parser.parse_args()
    runs = Optimizers(arguments.trainer, arguments.folder, is_quick=arguments.quick)
    methods = arguments.method or list(METHODS)
    if arguments.table:
        optimizers_report.table(runs)
    elif arguments.export:
        report.export(runs, arguments.export, optimizers_report.thinned)
    else:
        for task in arguments.task or TASKS:
            if arguments.list:
                print(*(cell.name for cell in [*runs.screening(task, methods), *runs.finals(task)]), sep="\n")
            elif arguments.final:
                runs.run_all(runs.finals(task))
            else:
                runs.screen(task, methods)


if __name__ == "__main__":
    main()
