"""What the runs of adaptive.py say: a table, and a plot of the densities.

Seconds are modelled, so that cells may run beside each other on a busy machine: for each step the median time of computing of
all cells of the model, the cell's own median times of encoding and decoding, and its bytes over the link: 2(N-1)/N of the
gradient around a ring, or N-1 frames.
"""

import statistics

from adaptive_cells import ADAPTIVE, CELLS, MODELS, WORKERS
from report import head, row

LINK_BYTES_A_SECOND, LATENCY_SECONDS = 100e6 / 8, 50e-6
# Of what dense gradients end with.
SHARES = [1.0, 0.95]


class Run:
    """A finished cell."""

    def __init__(self, cell, lines):
        self.cell, self.model, self.lines = cell, MODELS[cell.model], lines
        name = self.model.measure
        self.evaluated = [(at, line[name]) for at, line in enumerate(lines) if line.get(name) is not None]

    def end(self):
        return self.evaluated[-1][1]

    def needed(self, wanted, compute):
        """Epochs, megabytes of a worker and seconds until it was as good as wanted; None if it never was."""
        at = next((at for at, value in self.evaluated if self.model.is_as_good(value, wanted)), None)
        if at is None:
            return None
        return (at + 1) / self.model.steps_an_epoch, self.megabytes(at + 1), sum(self.seconds(compute)[: at + 1])

    def megabytes(self, steps=None):
        """What a worker sent. `bytes_up` counts what all workers sent."""
        return sum(line["bytes_up"] for line in self.lines[:steps]) / WORKERS / 1e6

    def seconds(self, compute):
        """Of each step, on the link."""
        encode, decode = (statistics.median(line[f"{part}_ns"] for line in self.lines) / 1e9 for part in ("encode", "decode"))
        messages = 2 * (WORKERS - 1) if self.cell.method == "dense" else 1
        coding = compute + encode + decode + messages * LATENCY_SECONDS
        return [coding + line["bytes_up"] / WORKERS / LINK_BYTES_A_SECOND for line in self.lines]

    def about(self):
        """Median and mean of the densities, the best that it came to, and what a worker sent in all."""
        densities = [line["density"] for line in self.lines]
        best = self.model.best(value for _, value in self.evaluated)
        return [f"{statistics.median(densities):.3g}", f"{statistics.mean(densities):.3g}", f"{best:.4g}"]


def finished(runs, name):
    """The runs of a model, the dense one first; none without it."""
    cells = [cell for cell in CELLS if cell.model == name and runs.is_done(cell) and not runs.diverged(cell)]
    found = [Run(cell, runs.metrics(cell)) for cell in cells]
    return found if found and found[0].cell.method == "dense" else []


def table(runs):
    """One row for each finished cell, and which of them needed least."""
    winners = []
    needed = [part for share in SHARES for part in (f"{share:.0%} of dense: epochs", "MB", "seconds")]
    head(["model", "density", "median", "mean", "best on validation", "MB a worker", *needed])
    for name, model in MODELS.items():
        found = finished(runs, name)
        if not found:
            continue
        compute = statistics.median(line["compute_ns"] for run in found for line in run.lines) / 1e9
        wanted = [model.nearly(found[0].end(), share) for share in SHARES]
        for run in found:
            parts = [part for target in wanted for part in shown(run.needed(target, compute))]
            row([name, run.cell.method, *run.about(), f"{run.megabytes():.1f}", *parts])
        for share, target in zip(SHARES, wanted):
            there = {run.cell.method: run.needed(target, compute) for run in found}
            there = {method: needs for method, needs in there.items() if needs}
            for what, place in (("bytes", 1), ("seconds", 2)):
                least = min(there, key=lambda method: there[method][place])
                winners.append(f"{name}, {share:.0%} of dense ({target:.4g}), fewest {what}: {least}")
    print("", *winners, sep="\n")


def shown(needs):
    """As a table has it."""
    return ["-", "-", "-"] if needs is None else [f"{needs[0]:.0f}", f"{needs[1]:.1f}", f"{needs[2]:.0f}"]


def plot(runs, path):
    """The density of each step, and the mean of each epoch."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = {"figsize": (9, 1.9 * len(ADAPTIVE)), "sharex": "col", "sharey": True, "layout": "constrained"}
    figure, axes = pyplot.subplots(len(ADAPTIVE), len(MODELS), **size)
    for column, (name, model) in zip(axes.T, MODELS.items()):
        found = {run.cell.method: run for run in finished(runs, name)}
        for axis, method in zip(column, ADAPTIVE):
            if method in found:
                plot_densities(axis, found[method])
            axis.set_title(f"{model.title}: {method}", fontsize=11)
            axis.set_xlim(0, model.epochs)
        column[-1].set_xlabel("epoch")
    for axis in axes[:, 0]:
        axis.set_ylabel("density")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    figure.savefig(path, dpi=110)


def plot_densities(axis, run):
    epoch = run.model.steps_an_epoch
    densities = [line["density"] for line in run.lines]
    axis.scatter([at / epoch for at in range(len(densities))], densities, s=3, color="tab:blue", label="each step")
    means = [statistics.mean(densities[at : at + epoch]) for at in range(0, len(densities), epoch)]
    axis.stairs(means, color="tab:orange", linewidth=1.5, baseline=None, label="mean of an epoch")
    axis.set_yscale("log")
    axis.grid(alpha=0.3)
