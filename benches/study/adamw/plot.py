#!/usr/bin/env python3
"""Curves of the runs of adamw.py: the loss on the part that validates, against tokens and against what a worker has sent.

usage: plot.py RESULTS.jsonl PLOT.png

A method has its best rate. With seeds that tuned nothing, the line is their mean and the band their smallest and largest;
otherwise it is the one seed that chose the rate, and dashed. Needs matplotlib.
"""

import statistics
import sys
from pathlib import Path

import matplotlib
from report import DENSE, TUNING_SEED, WORKERS, best_rate, fresh, of, read

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.lines import Line2D

#: By task, what it is called, the tokens of a batch of all workers, and a loss: a larger one says only that training has begun.
TASKS = {
    "shakespeare": ("3,199,744 parameters", 4096, 2.6),
    "small": ("105,152 parameters", 2048, 2.6),
    "small-ptb": ("words, 740,992 parameters", 2048, 7.0),
}
#: By method, what it is called and its colour.
METHODS = {
    DENSE: ("AdamW, dense", "black"),
    "muon": ("Muon, dense", "grey"),
    "local30-nesterov": ("DiLoCo: 30 steps, outer momentum, f32", "tab:olive"),
    "local30-nesterov-qsgd": ("DiLoCo: 30 steps, outer momentum, QSGD", "tab:green"),
    "local30-streaming": ("Streaming DiLoCo: three parts in turn, QSGD", "tab:pink"),
    "local30-sparseloco": ("SparseLoCo's settings: 30 steps, 1.56 %", "tab:red"),
    "local8-topk-18%": ("8 steps of AdamW, top-k 18 %", "tab:cyan"),
    "local4-topk-7%": ("4 steps of AdamW, top-k 7 %", "tab:blue"),
    "muon-local4-topk-7%": ("4 steps of Muon, top-k 7 %", "tab:orange"),
    "muon-local4-topk-7%-tensor": ("4 steps of Muon, top-k 7 % of each tensor", "tab:brown"),
    "demo-3%": ("DeMo, 3 %", "tab:purple"),
}

def runs(lines, task, method):
    """Those to be drawn, and whether they have seeds of their own."""
    if len(repeated := fresh(lines, task, method)) > 1:
        return list(repeated.values()), True
    rate = best_rate(lines, task, method)
    return [line for key, line in of(lines, task, method).items() if key == (rate, TUNING_SEED)], False


def course(chosen, most_loss):
    """Batches, and of the losses there the mean, the least and the most."""
    batches = [batch for batch, _ in chosen[0]["validation"]]
    losses = zip(*([loss for _, loss in line["validation"]] for line in chosen), strict=True)
    points = [(batch, statistics.mean(some), min(some), max(some)) for batch, some in zip(batches, losses, strict=True)]
    return zip(*(point for point in points if point[1] <= most_loss), strict=True)


def draw(axes, lines, task):
    """A curve for each method, on both axes."""
    about, tokens, most_loss = TASKS[task]
    for method, (_, colour) in METHODS.items():
        chosen, is_fresh = runs(lines, task, method)
        if not chosen:
            continue
        batches, mean, least, most = course(chosen, most_loss)
        # Every exchange is as long as the others, but for what a codec saves.
        sent = statistics.mean(line["bytes"] / line["batches"] for line in chosen) / WORKERS
        for axis, unit in zip(axes, (tokens, sent), strict=True):
            at = [batch * unit / 1e6 for batch in batches]
            axis.plot(at, mean, "-" if is_fresh else "--", color=colour, linewidth=1.3)
            if is_fresh:
                axis.fill_between(at, least, most, color=colour, alpha=0.25, linewidth=0)
    axes[0].set(xlabel="million tokens of all workers", ylabel=f"validation loss, {about}")
    axes[1].set(xlabel="MB that a worker has sent", xscale="log")
    for axis in axes:
        axis.grid(color="0.92")


def main():
    """Makes the picture."""
    lines = read(Path(sys.argv[1]))
    pyplot.rcParams.update({"font.size": 9})
    figure, axes = pyplot.subplots(len(TASKS), 2, figsize=(9, 10.8), sharey="row")
    for row, task in zip(axes, TASKS, strict=True):
        draw(row, lines, task)
    handles = [Line2D([], [], color=colour, label=name) for name, colour in METHODS.values()]
    figure.legend(handles=handles, ncols=2, loc="lower center", frameon=False)
    figure.tight_layout(rect=(0, 0.13, 1, 1))
    figure.savefig(sys.argv[2], dpi=110)


if __name__ == "__main__":
    main()
