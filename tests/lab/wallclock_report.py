#!/usr/bin/env python3
"""The table and the plot of what wallclock.py has measured.

usage: wallclock_report.py RESULTS.jsonl TABLE.md [PLOT.png]

The plot needs matplotlib: python3 -m venv venv && venv/bin/pip install matplotlib.
"""

import json
import statistics
import sys
from pathlib import Path

# Importing leaves no files behind.
sys.dont_write_bytecode = True

from wallclock_plan import CURVES, HOSTS, MODELS, RATES, SEEDS, Curves

# Under that the answer is: do not compress.
LOWEST_CEILING = 1.5


class Report:
    """What the lines of a file say of one model."""

    def __init__(self, lines, model):
        self.lines, self.model = lines, model
        self.about = MODELS[model]
        self.curves = Curves(lines, model)
        self.target = self.curves.target()

    def find(self, **key):
        return [line for line in self.lines if {**key, "model": self.model}.items() <= line.items()]

    def timed(self, **key):
        """Seconds a step, the median of all rounds; none where it was not timed."""
        seconds = [line["seconds"] for line in self.find(**key)]
        return statistics.median(seconds) if seconds else None

    def compute(self, rate):
        return self.timed(kind="compute", rate=rate)

    def step(self, method, rate):
        """Seconds a step: for dense values, by whoever sums faster."""
        names = [method, f"native {method}"]
        return min(filter(None, (self.timed(kind="step", method=name, rate=rate) for name in names)))

    def ideal_ring(self, rate):
        """Seconds that the bytes of a dense f32 ring take on a link of so many Mbit/s."""
        params = self.find(kind="step")[0]["params"]
        return 2 * (HOSTS - 1) / HOSTS * params * 32 / (rate * 1e6)

    def ring(self, rate):
        return self.step("f32", rate) - self.compute(rate)

    def ceiling(self, rate):
        return (self.compute(rate) + self.ring(rate)) / self.compute(rate)

    def runs(self, method):
        """One for each seed, at the method's best learning rate."""
        return self.curves.of(method, self.curves.best_rate(method))

    def steps(self, method):
        return self.curves.median_steps(method, self.curves.best_rate(method))

    def seconds(self, method, rate):
        """To equal accuracy."""
        return self.steps(method) * self.step(method, rate)

    def speedup(self, method, rate):
        return self.seconds("f32", rate) / self.seconds(method, rate)

    def best(self, rate):
        return max(CURVES, key=lambda method: self.speedup(method, rate))


def links_table(report):
    yield "| link | compute alone | f32 ring, ideal | measured | ceiling | best | speedup | of the ceiling |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for rate in RATES:
        best, ceiling = report.best(rate), report.ceiling(rate)
        speedup = report.speedup(best, rate)
        times = [milliseconds(x) for x in (report.compute(rate), report.ideal_ring(rate), report.ring(rate))]
        verdict = best if ceiling >= LOWEST_CEILING else f"do not compress ({best})"
        cells = [f"{rate} Mbit/s", *times, f"{ceiling:.1f} ×", verdict, f"{speedup:.1f} ×", f"{speedup / ceiling:.0%}"]
        yield f"| {' | '.join(cells)} |"


def methods_table(report):
    yield "| method | rate | final | steps | bytes a step | " + " | ".join(
        f"ms a step, {rate} | s to accuracy | speedup" for rate in RATES
    ) + " |"
    yield "| --- " * (5 + 3 * len(RATES)) + "|"
    for method in CURVES:
        steps, lr = report.steps(method), report.curves.best_rate(method)
        bytes_up = report.find(kind="step", method=method)[0]["bytes_up"]
        cells = [method, f"{lr:g}", shown(report, report.curves.final(method, lr)), f"{steps:g}", f"{bytes_up:,.0f}"]
        for rate in RATES:
            cells += [f"{1000 * report.step(method, rate):.1f}", f"{report.seconds(method, rate):.2f}"]
            cells += [f"{report.speedup(method, rate):.1f} ×"]
        yield f"| {' | '.join(cells)} |".replace("inf", "–").replace(" 0.0 ×", " –")


def shown(report, value):
    return f"{100 * value:.2f} %" if report.about.rises else f"{value:.4f}"


def milliseconds(seconds):
    return f"{1000 * seconds:.1f} ms"


def table(reports):
    for report in reports:
        seeds = len(report.runs("f32"))
        # What a curve shows is the same on a busy machine.
        loads = [line["load"] for line in report.find() if line["kind"] != "curve"]
        yield f"\n## {report.about.name}, {report.find(kind='step')[0]['params']:,} parameters\n"
        yield (
            f"{report.about.steps} steps; equal accuracy is {shown(report, report.target)} on the validation part; "
            f"median of {seeds} seeds; load of the machine while steps were timed {min(loads):.1f} to {max(loads):.1f}.\n"
        )
        yield from links_table(report)
        yield ""
        yield from methods_table(report)


def plot(reports, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(reports), figsize=(5.2 * len(reports), 8.4), squeeze=False)
    colours = dict(zip(CURVES, pyplot.rcParams["axes.prop_cycle"].by_key()["color"]))
    for report, above, below in zip(reports, *axes):
        plot_curves(report, above, colours)
        plot_speedups(report, below, colours)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="lower center", ncols=4, frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path, dpi=110, bbox_inches="tight")


def plot_curves(report, axis, colours):
    """The mean of the seeds over time, at 100 Mbit/s."""
    for method in CURVES:
        runs = report.runs(method)
        seconds = [step * report.step(method, 100) for step, _ in runs[0]]
        values = [statistics.mean(value for _, value in at) for at in zip(*runs)]
        axis.plot(seconds, values, color=colours[method], label=method)
    axis.axhline(report.target, color="grey", linestyle=":", linewidth=1, label="equal accuracy")
    target = report.target
    axis.set_ylim(*((target - 0.15, target + 0.05) if report.about.rises else (target * 0.95, target * 1.4)))
    axis.set_xscale("log")
    axis.set_title(report.about.name)
    axis.set_xlabel("seconds of training at 100 Mbit/s")
    axis.set_ylabel("validation accuracy" if report.about.rises else "validation loss")


def plot_speedups(report, axis, colours):
    width = 0.8 / len(CURVES)
    for group, rate in enumerate(RATES):
        for at, method in enumerate(CURVES):
            place = group - 0.4 + (at + 0.5) * width
            axis.bar(place, report.speedup(method, rate), width * 0.9, color=colours[method])
        axis.hlines(report.ceiling(rate), group - 0.42, group + 0.42, color="black", linewidth=1.2)
        axis.annotate("ceiling", (group - 0.42, report.ceiling(rate)), fontsize=8, va="bottom")
    axis.set_yscale("log")
    axis.set_ylim(bottom=0.3)
    axis.set_xticks(range(len(RATES)), [f"{rate} Mbit/s" for rate in RATES])
    axis.set_ylabel("speed-up to equal accuracy, against f32")
    axis.axhline(1, color="grey", linewidth=0.6)


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    lines = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    measured = {line["model"] for line in lines if line["kind"] == "curve" and line["seed"] == SEEDS[-1]}
    reports = [Report(lines, model) for model in MODELS if model in measured]
    heading = Path(__file__).with_name("wallclock.template").read_text()
    Path(sys.argv[2]).write_text(heading + "\n".join(table(reports)) + "\n")
    if len(sys.argv) == 4:
        plot(reports, sys.argv[3])


main()
