#!/usr/bin/env python3
"""The tables and the plot of what torch_lab.py has measured, and which targets are met.

usage: torch_report.py RESULTS.jsonl TABLES.md [PLOT.png] [--into DOCUMENT.md] [--busy]

With --into, a summary takes the place of what stands between the two lines of the document that mark it. With --busy lines
count, too, that were timed while other programs used the cores: for a look, not for publishing. The plot needs matplotlib.
"""

import argparse
import json
import os
import statistics
import sys
import textwrap
from collections import Counter
from operator import itemgetter
from pathlib import Path

# Importing leaves no files behind.
sys.dont_write_bytecode = True

from torch_figures import NONE, SURE, Report, interval, milliseconds, number, over_compute, table, wait
from torch_plan import DENSE, LINKS, METHODS, MODELS, MOST_OTHERS, NOTHING, RANKS, ROUNDS, SLOW
from torch_targets import STEP_METHOD, STEP_RANKS, comparison, targets, verdicts

DOCUMENT_WIDTH = 110
BEGIN, END = "<!-- torch_report.py: begin -->", "<!-- torch_report.py: end -->"
PARTS = ["step", "compute", "encode", "decode"]
TICKS = [1, 1.5, 2, 3, 5, 10, 20, 50, 100]


def parts(report):
    """Of a step with two ranks, which have a core each, so that no work runs beside other work."""
    rows = []
    for model, about in MODELS.items():
        cell = (model, STEP_RANKS, SLOW, STEP_METHOD)
        nothing = report.median((*cell[:3], NOTHING), lambda line: line["step"] - line["compute"])
        if report.rounds(cell) and nothing is not None:
            step, compute, encode, decode = (report.median(cell, itemgetter(part)) for part in PARTS)
            rest = step - compute - nothing - encode - decode
            found = [compute, nothing, encode, decode, rest, step]
            rows.append([about.name, *map(milliseconds, found)])
    if rows:
        yield f"\nMilliseconds of a step of {STEP_METHOD} with {STEP_RANKS} ranks at {SLOW}:\n"
        yield from table(["model", "compute", "no-op hook", "encode", "decode", "rest", "step"], rows)


def learned(report, model, method):
    value = report.learns(model, method)
    if value is None:
        return NONE
    shown = f"{100 * value:.1f} %" if MODELS[model].rises else f"{value:.3f}"
    return shown if report.is_equal(model, method) else f"{shown} (worse)"


def details(report):
    for model, about in MODELS.items():
        for ranks in RANKS:
            for link in LINKS:
                rows = [row for method in METHODS if (row := detail(report, (model, ranks, link, method)))]
                if rows:
                    alone = statistics.median(
                        line["compute"] for method in METHODS for line in report.rounds((model, ranks, link, method)).values()
                    )
                    yield f"\n## {about.name}, {ranks} ranks, {link}\n"
                    yield f"Compute alone takes {milliseconds(alone)} ms.\n"
                    head = ["method", "ms a step", "quartiles", "× compute", "wait", "× all-reduce", "added CPU, ms"]
                    head += ["÷ Rust exchange's", "kB sent", "encode · exchange · decode · exposed, ms"]
                    yield from table(head, rows)
    rows = [
        [about.name, method, *trained(report, model, method)]
        for model, about in MODELS.items()
        for method in METHODS
        if (model, method) in report.learned
    ]
    if rows:
        yield "\n## What is learned, four ranks\n"
        yield from table(["model", "method", "steps", "rate", "ends with", "training loss"], rows)
    for (model, method), error in report.failed.items():
        yield f"\n{MODELS[model].name}, {method}, failed: {error.splitlines()[0]}"


def trained(report, model, method):
    line = report.learned[model, method]
    return [str(line["steps"]), f"{line['lr']:g}", learned(report, model, method), number(line["train_loss"], 3)]


def detail(report, cell):
    if not report.rounds(cell):
        return None

    def of(name):
        return report.median(cell, lambda line: line.get(name))

    is_advised = any(line.get("advice") for line in report.rounds(cell).values())
    parts = " · ".join(milliseconds(of(part)) for part in ("encode", "exchange", "decode", "exposed"))
    return [
        f"{cell[3]} (advises against itself)" if is_advised else cell[3],
        milliseconds(of("step")),
        f"{milliseconds(of('low'))} to {milliseconds(of('high'))}",
        number(report.median(cell, over_compute)),
        number(report.median(cell, lambda line: 100 * wait(line)), 0, " %"),
        number(report.paired(cell, DENSE, lambda line: line["step"]), 3),
        milliseconds(report.added_cpu(cell)),
        number(report.exchange_share(cell) if METHODS[cell[3]].is_ours else None),
        f"{of('sent') / 1000:,.0f}",
        parts if METHODS[cell[3]].is_ours else NONE,
    ]


def summary(report):
    """× compute at the slow link, for each model and number of ranks, and what each model ends with."""
    head, rows = ["method"], []
    for about in MODELS.values():
        head += [f"{about.name}: {' · '.join(map(str, RANKS))} ranks", "ends with"]
    for method in METHODS:
        row = [method]
        for model in MODELS:
            steps = (report.median((model, ranks, SLOW, method), over_compute) for ranks in RANKS)
            row += [" · ".join(number(step) for step in steps), learned(report, model, method)]
        rows.append(row)
    for what, where in (("Timed", report.timed_on), ("Trained", report.trained_on)):
        for one in where:
            yield f"{what} on {one}."
    rounds = max((turn for cell in report.times.values() for turn in cell), default=0)
    yield f"Medians over {rounds} of {ROUNDS} rounds.\n"
    yield f"Seconds a step over those of compute alone, at {SLOW}; what each model ends with after training.\n"
    yield from table(head, rows)
    judged = list(targets(report))
    if any(target.found for target in judged):
        yield from described_targets(judged)
    yield from comparison(report)
    yield from parts(report)


def described_targets(judged):
    counts = Counter(target.verdict for target in judged)
    text = (
        "The hook against PyTorch's own hooks and against an older one: quotients of steps, and of the CPU time that each adds "
        f"to compute, taken in turns; the median, and in brackets where it lies with {100 * SURE:.0f} % certainty. The target of "
        "each is 1. What is met is bold, and what is certain to be above its target is missed. Nothing is encrypted but in the "
        f"last column. Of {len(judged)} targets: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) + "."
    )
    yield "\n" + textwrap.fill(text, DOCUMENT_WIDTH)
    limited = [target for target in judged if "× compute" in target.what]
    rows = [[target.what, target.where, interval(target.found), target.verdict] for target in limited]
    yield ""
    yield from table(["target", "where", "found", ""], rows)


def plot(report, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shape = {"figsize": (5 * len(MODELS), 4.2 * len(RANKS)), "sharex": True, "sharey": True, "squeeze": False}
    figure, axes = pyplot.subplots(len(RANKS), len(MODELS), **shape)
    for ranks, row in zip(RANKS, axes):
        for model, axis in zip(MODELS, row):
            plot_steps(report, axis, model, ranks)
    axes[0][0].invert_yaxis()
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="lower center", ncols=len(LINKS) + 1, frameon=False)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.savefig(path, dpi=100, bbox_inches="tight")


def plot_steps(report, axis, model, ranks):
    timed = {link: [report.median((model, ranks, link, method), over_compute) or 0 for method in METHODS] for link in LINKS}
    timed = {link: values for link, values in timed.items() if any(values)}
    height = 0.8 / max(1, len(timed))
    for at, (link, values) in enumerate(timed.items()):
        axis.barh([place + at * height for place in range(len(METHODS))], values, height * 0.9, label=link)
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_xscale("log")
    axis.set_xlim(0.8, 100)
    axis.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    middle = height * (len(timed) - 1) / 2
    axis.set_yticks([place + middle for place in range(len(METHODS))], METHODS, fontsize=7)
    axis.set_title(f"{MODELS[model].name}, {ranks} ranks")
    axis.set_xlabel("step, × compute alone")


def replaced(document, text):
    """The document with the text between its two marks."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, f"the document lacks {BEGIN} or {END}"
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main():
    parser = argparse.ArgumentParser(usage=__doc__.partition("usage: ")[2].partition("\n\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("tables", type=Path)
    parser.add_argument("plot", type=Path, nargs="?")
    parser.add_argument("--into", type=Path)
    parser.add_argument("--busy", action="store_true")
    asked = parser.parse_args()
    report = Report([json.loads(line) for line in asked.results.read_text().splitlines()], asked.busy)
    heading = Path(__file__).with_name("torch.template").read_text()
    every = ["\n## Targets\n", *verdicts(report)]
    asked.tables.write_text("\n".join([heading, *summary(report), *every, *details(report)]) + "\n")
    if asked.plot:
        plot(report, asked.plot)
    if asked.into:
        picture = [f"\n![Steps by method]({os.path.relpath(asked.plot, asked.into.parent)})"] if asked.plot else []
        asked.into.write_text(replaced(asked.into.read_text(), "\n".join([*summary(report), *picture])))
    for target in targets(report):
        print(f"{target.verdict}: {target.what}: {interval(target.found)} ({target.where})")
    if report.busy:
        print(f"{report.busy} lines were timed while other programs used more than {MOST_OTHERS} of a core")


if __name__ == "__main__":
    main()
