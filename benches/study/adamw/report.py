#!/usr/bin/env python3
"""What the runs of adamw.py say, as the tables of docs/optimizers.md.

usage: report.py RESULTS.jsonl [TASK …]
"""

import json
import math
import statistics
import sys
from pathlib import Path

DENSE, TUNING_SEED, WORKERS = "dense", 0, 4
#: A method that trails dense training by more than this after tuning is not followed up.
STOP = 0.05
#: How many times fewer bytes than an f32 ring are looked for.
GOALS = (50, 100)
#: Upper 5 % points of Student's t, by degrees of freedom.
T = {1: 6.314, 2: 2.920, 3: 2.353, 4: 2.132, 5: 2.015, 6: 1.943, 7: 1.895}


def read(path):
    """All runs."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def of(lines, task, method):
    """The runs of a method, by rate and seed."""
    return {(line["rate"], line["seed"]): line for line in lines if (line["task"], line["method"]) == (task, method)}


def last(line):
    """The loss at the end on the part that validates."""
    loss = line["validation"][-1][1]
    return loss if math.isfinite(loss) else math.inf


def losses(lines, task, method):
    """By rate and seed."""
    return {key: last(line) for key, line in of(lines, task, method).items()}


def best_rate(lines, task, method):
    """That of the smallest loss with the seed that tunes; None before there is one."""
    tuned = {rate: loss for (rate, seed), loss in losses(lines, task, method).items() if seed == TUNING_SEED}
    return min(tuned, key=tuned.get, default=None)


def ratio(line):
    """The bytes of an f32 ring over those that were sent."""
    return 2 * (WORKERS - 1) / WORKERS * 4 * line["parameters"] * line["batches"] / line["bytes"]


def finalists(lines, task):
    """Dense, and for each goal the method with the least loss that reaches it, up to a twentieth."""
    found = [DENSE]
    for goal in GOALS:
        best = {}
        for method in {line["method"] for line in lines if line["task"] == task}:
            run = of(lines, task, method).get((best_rate(lines, task, method), TUNING_SEED))
            if run and ratio(run) >= 0.95 * goal:
                best[method] = last(run)
        found += [min(best, key=best.get)] if best else []
    return list(dict.fromkeys(found))


def row(cells):
    """Of a table."""
    print("|", " | ".join(str(cell) for cell in cells), "|")


def head(names):
    """Of a table."""
    row(names)
    row(["---"] * len(names))


def table(lines, task):
    """A row for each method at its best rate, then those with fresh seeds."""
    methods = list(dict.fromkeys(line["method"] for line in lines if line["task"] == task))
    if not methods:
        return
    if DENSE not in methods:
        rates = ((method, best_rate(lines, task, method)) for method in methods)
        ends = (f"{method} {last(of(lines, task, method)[rate, TUNING_SEED]):.4f} at {rate:g}" for method, rate in rates)
        print(f"{task}, without a dense run: {', '.join(ends)}", end="\n\n")
        return
    print(f"{task}, one seed, each method at its best rate", end="\n\n")
    head(["method", "rates", "best", "inside", "validation loss", "to dense", "train loss", "ratio f32, bf16", "batches to dense's end"])
    dense = of(lines, task, DENSE)[best_rate(lines, task, DENSE), TUNING_SEED]
    for method in methods:
        row(screened(lines, task, method, dense))
    finals = [found for method in methods if (found := final(lines, task, method))]
    if len(finals) > 1:
        print("", f"{task}, fresh seeds", "", sep="\n")
        head(["method", "seeds", "ratio f32, bf16", "validation loss", "paired difference", "upper end of the one-sided 95 % interval", "train loss", "more batches to dense's end"])
        for found in finals:
            row(found)


def screened(lines, task, method, dense):
    """A method at its best rate."""
    runs, rate = of(lines, task, method), best_rate(lines, task, method)
    rates = sorted(rate for rate, seed in runs if seed == TUNING_SEED)
    best = runs[rate, TUNING_SEED]
    behind = last(best) / last(dense) - 1
    is_inside = rate not in (rates[0], rates[-1])
    verdict = f"{behind:+.1%}{', stopped' if is_inside and behind > STOP else ''}"
    return [
        f"`{method}`",
        f"{rates[0]:g} to {rates[-1]:g}",
        f"{rate:g}",
        "yes" if is_inside else "no",
        f"{last(best):.4f}",
        verdict,
        f"{best['train']:.4f}",
        f"{ratio(best):.1f} ×, {ratio(best) / 2:.1f} ×",
        batches_to(best, last(dense)) or "-",
    ]


def batches_to(line, wanted):
    """Batches until the first evaluation that is as good, between two of them by a straight line; None if none is."""
    before = None
    for batch, loss in line["validation"]:
        if loss <= wanted:
            if before is None:
                return batch
            share = (before[1] - wanted) / (before[1] - loss)
            return round(before[0] + share * (batch - before[0]))
        before = (batch, loss)
    return None


def fresh(lines, task, method):
    """The runs with seeds that tuned nothing, by seed: at the best rate, or else at the next best that was repeated."""
    runs = of(lines, task, method)
    tuned = {rate: last(line) for (rate, seed), line in runs.items() if seed == TUNING_SEED}
    for rate in sorted(tuned, key=tuned.get):
        if found := {seed: line for (other, seed), line in runs.items() if other == rate and seed != TUNING_SEED}:
            return found
    return {}


def final(lines, task, method):
    """Paired differences to dense training, with the seeds that tuned nothing."""
    own, dense = fresh(lines, task, method), fresh(lines, task, DENSE)
    shared = sorted(own.keys() & dense.keys())
    if not shared:
        return None
    differences = [last(own[seed]) / last(dense[seed]) - 1 for seed in shared]
    ratios = statistics.mean(ratio(own[seed]) for seed in shared)
    reached = [batches_to(own[seed], last(dense[seed])) for seed in shared]
    batches = next(iter(own.values()))["batches"]
    more = "not reached" if None in reached else f"{statistics.mean(reached) / batches - 1:+.0%}"
    return [
        f"`{method}`",
        len(shared),
        f"{ratios:.1f} ×, {ratios / 2:.1f} ×",
        f"{statistics.mean(last(own[seed]) for seed in shared):.4f}",
        f"{statistics.mean(differences):+.2%}",
        upper_end(differences),
        f"{statistics.mean(own[seed]['train'] for seed in shared):.4f}",
        more,
    ]


def upper_end(differences):
    """Of the one-sided 95 % interval; one seed has none."""
    if len(differences) == 1:
        return "-"
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return f"{statistics.mean(differences) + T[len(differences) - 1] * error:+.2%}"


if __name__ == "__main__":
    found = read(Path(sys.argv[1]))
    for name in sys.argv[2:] or dict.fromkeys(line["task"] for line in found):
        table(found, name)
