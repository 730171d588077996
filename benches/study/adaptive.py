#!/usr/bin/env python3
"""Densities that change while a run goes on, against densities that do not: ResNet-20 and an LSTM, four workers.

usage: adaptive.py TRAINER FOLDER [--model resnet20|lstm] [--quick]
       adaptive.py TRAINER FOLDER --table
       adaptive.py TRAINER FOLDER --plot FILE.png
       adaptive.py TRAINER FOLDER --export FILE     all cells but their checkpoints, as FILE (.tar.xz)

Runs every cell that is not finished, as study.py does; start it as often as there are cores to spare. GRADWIRE_DATA names the
folder that holds data/cifar-10 and data/ptb. --table prints bytes and seconds until a cell is as good as the dense one ends,
and until it comes near to that, on links of 100 Mbit/s. --plot draws the densities, and needs matplotlib. Both read what
--export wrote, unpacked.
"""

import argparse
import os
import sys
from pathlib import Path

# Importing leaves no files behind.
sys.dont_write_bytecode = True

import adaptive_report
import report
from adaptive_cells import CELLS, METHODS, MODELS, QUICK, WORKERS
from runs import Runs


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


def main():
    """Runs or prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainer")
    parser.add_argument("folder")
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--plot", metavar="FILE")
    parser.add_argument("--export", metavar="FILE", type=Path)
    arguments = parser.parse_args()
    runs = Adaptive(arguments.trainer, arguments.folder, is_quick=arguments.quick)
    if arguments.table:
        adaptive_report.table(runs)
    elif arguments.plot:
        adaptive_report.plot(runs, arguments.plot)
    elif arguments.export:
        report.export(runs, arguments.export)
    else:
        runs.run_all([cell for cell in CELLS if arguments.model in (None, cell.model)])


if __name__ == "__main__":
    main()
