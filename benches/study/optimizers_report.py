"""What the runs of optimizers.py say.

The ratio is the bytes of an f32 ring over the bytes sent, over the whole run, frames with their headers and whatever else the
steps exchange; a rank of N sends 2(N-1)/N of the gradient around a ring.
"""

import json
import math
import statistics

from optimizers_cells import METHODS, SEEDS, TASKS, Method
from report import head, row

# A candidate that trails dense training by more than this after tuning is not followed up.
STOP = 0.05
# Upper 5 % points of Student's t, by degrees of freedom.
T = {1: 6.314, 2: 2.920, 3: 2.353, 4: 2.132, 5: 2.015, 6: 1.943, 7: 1.895}
TRAIN_BATCHES = 50


# What is kept of a step, and how many digits of a loss.
KEPT, DIGITS = ["step", "loss", "bytes_up", "eval_loss", "accuracy"], 7


def thinned(file):
    """What the tables need of a file: thousands of steps would be megabytes of times."""
    if file.name != "metrics.jsonl":
        return file.read_bytes()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines = [{key: shown(line[key]) for key in KEPT if line.get(key) is not None} for line in lines]
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()


def shown(value):
    """A number with the digits that are kept."""
    return round(value, DIGITS) if isinstance(value, float) else value


def table(runs):
    """A row for each method of each task, and one for each finalist with fresh seeds."""
    for task in TASKS:
        dense = runs.best(task, next(iter(METHODS)))
        if not dense:
            continue
        print(f"{task}, one seed, each method at its best rate", end="\n\n")
        measure = "test accuracy" if TASKS[task].images else "validation loss"
        head(["method", "rates tried", "best", "inside", measure, "to dense", "train loss", "ratio f32, bf16", "batches to dense's end"])
        for method in METHODS:
            if best := runs.best(task, method):
                row(screened(runs, task, best, dense))
        finals(runs, task)


def screened(runs, task, cell, dense):
    """A method at its best rate."""
    tuned, loss = runs.tuned(task, cell.method), runs.loss(cell)
    if math.isinf(loss):
        return [f"`{cell.method}`", len(tuned), "-", "-", "diverged", "-", "-", "-", "-"]
    inside = "yes" if cell not in (tuned[0], tuned[-1]) else "no"
    is_tuned = inside == "yes" and len(tuned) >= len(TASKS[task].rates)
    tried = f"{tuned[0].rate:g} to {tuned[-1].rate:g}"
    found = accuracies(loss, runs.loss(dense)) if TASKS[task].images else losses(loss, runs.loss(dense), is_tuned)
    parts = [*found, f"{train_loss(runs, cell):.4f}", ratios(runs, cell), steps_to(runs, cell, runs.loss(dense))]
    return [f"`{cell.method}`", tried, f"{cell.rate:g}", inside, *parts]


def losses(loss, dense, is_tuned):
    """A loss, and how far it is behind."""
    behind = loss / dense - 1
    return f"{loss:.4f}", f"{behind:+.1%}{', stopped' if behind > STOP and is_tuned else ''}"


def accuracies(errors, dense):
    """An accuracy, and how far it is from the other, in points."""
    return f"{1 - errors:.1%}", f"{100 * (dense - errors):+.1f}"


def train_loss(runs, cell):
    """Of the last steps."""
    return statistics.mean(line["loss"] for line in runs.metrics(cell)[-TRAIN_BATCHES // METHODS[cell.method].batches:])


def ratios(runs, cell):
    """To a ring of f32, and to one of bf16."""
    summary = runs.summary(cell)
    batches = summary["steps"] * METHODS[cell.method].batches
    ring = 2 * (TASKS[cell.task].workers - 1) * 4 * summary["params"] * batches
    return f"{ring / summary['bytes_up']:.1f} ×, {ring / 2 / summary['bytes_up']:.1f} ×"


def steps_to(runs, cell, wanted):
    """Batches until the first evaluation that is as good as dense training's last."""
    return next((step for step, loss in runs.evaluations(cell) if loss <= wanted), "-")


def finals(runs, task):
    """Paired differences to dense training, with the seeds that tuned nothing."""
    dense = paired(runs, task, next(iter(METHODS)))
    if not dense:
        return
    print("", f"{task}, fresh seeds", "", sep="\n")
    is_of_images = TASKS[task].images
    end = f"{'lower' if is_of_images else 'upper'} end of the one-sided 95 % interval"
    measures = ["test accuracy", "points to dense, paired"] if is_of_images else ["validation loss", "to dense AdamW, paired"]
    own = [] if is_of_images else ["to its optimizer's dense form", end]
    head(["method", "seeds", *measures, end, *own])
    for method in METHODS:
        found, mean = paired(runs, task, method), statistics.mean
        if len(found.keys() & dense.keys()) < 2:
            continue
        if is_of_images:
            row([f"`{method}`", len(found), f"{1 - mean(found.values()):.1%}", *points(found, dense)])
        else:
            of_own = difference(found, paired(runs, task, dense_form(method)))
            row([f"`{method}`", len(found), f"{mean(found.values()):.4f}", *difference(found, dense), *of_own])


def dense_form(method):
    """The method with the same optimizer that exchanges whole gradients of every batch; without one, that with AdamW."""
    wanted = Method(METHODS[method].optimizer, "none")
    return next((name for name, one in METHODS.items() if one == wanted), next(iter(METHODS)))


def difference(losses, others):
    """The mean of the paired differences, and the upper end of its interval; without two pairs, neither."""
    differences = [losses[seed] / others[seed] - 1 for seed in losses.keys() & others.keys()]
    if len(differences) < 2:
        return "-", "-"
    mean, reach = interval(differences)
    return f"{mean:+.2%}", f"{mean + reach:+.2%}"


def points(errors, others):
    """The mean of the paired differences of accuracies, and the lower end of its interval."""
    mean, reach = interval([100 * (others[seed] - errors[seed]) for seed in errors.keys() & others.keys()])
    return f"{mean:+.1f}", f"{mean - reach:+.1f}"


def interval(differences):
    """Their mean, and how far from it the end of the one-sided 95 % interval is."""
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return statistics.mean(differences), T[len(differences) - 1] * error


def paired(runs, task, method):
    """Losses by seed."""
    cells = [cell for seed in SEEDS for cell in runs.seeded(task, method, seed)]
    return {cell.seed: runs.loss(cell) for cell in cells}
