#!/usr/bin/env python3
"""The tables and the plot of what torch_lab.py has measured, and which targets are reached.

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
from operator import itemgetter
from pathlib import Path

# Importing leaves no files behind.
sys.dont_write_bytecode = True

from torch_plan import (
    DENSE,
    LINKS,
    METHODS,
    MODELS,
    MOST_EXCHANGE,
    MOST_OF_DENSE,
    MOST_OTHERS,
    MOST_STEP,
    MOST_WAIT,
    NOTHING,
    NOTHING_WITH_VIEWS,
    RANKS,
    ROUNDS,
)

CORES = 2
DOCUMENT_WIDTH = 110
SLOW, _, FREE = LINKS
BEGIN, END = "<!-- torch_report.py: begin -->", "<!-- torch_report.py: end -->"
NONE = "–"
PARTS = ["step", "compute", "encode", "decode"]
TICKS = [1, 1.5, 2, 3, 5, 10, 20, 50, 100]


class Report:
    def __init__(self, lines, takes_busy=False):
        """Of lines about the same, the last counts; of trainings, those of as many steps as were planned."""
        self.timed_on, self.trained_on = machines(lines, "time"), machines(lines, "accuracy")
        good = [line for line in lines if "error" not in line]
        self.failed = {(line["model"], line["method"]): line["error"] for line in lines if "error" in line}
        self.busy = sum(line.get("others", 0) > MOST_OTHERS for line in good)
        kept = [line for line in good if takes_busy or line.get("others", 0) <= MOST_OTHERS]
        self.times, self.learned = {}, {}
        for line in kept:
            if line["kind"] == "time":
                at = line["model"], line["ranks"], line["link"], line["method"]
                self.times.setdefault(at, {})[line["round"]] = line
            elif line["kind"] == "accuracy" and (takes_busy or line["steps"] == MODELS[line["model"]].steps):
                self.learned[line["model"], line["method"]] = line

    def rounds(self, *cell):
        """The lines of a model, a number of ranks, a link and a method, by round."""
        return self.times.get(cell, {})

    def median(self, cell, of):
        """Over rounds; none where it was not timed."""
        found = [of(line) for line in self.rounds(*cell).values()]
        found = [value for value in found if value is not None]
        return statistics.median(found) if found else None

    def paired(self, cell, other, of):
        """The median of the quotients of two methods in the same round."""
        mine, theirs = self.rounds(*cell), self.rounds(*cell[:3], other)
        both = [of(mine[turn]) / of(theirs[turn]) for turn in mine.keys() & theirs.keys()]
        return statistics.median(both) if both else None

    def added_cpu(self, cell):
        return self.median(cell, added_cpu)

    def exchange_share(self, cell):
        """Added CPU time, less that of a hook that does nothing, over that of the Rust exchange."""
        idle = NOTHING_WITH_VIEWS if METHODS[cell[3]].views_of else NOTHING
        nothing, rust = self.added_cpu((*cell[:3], idle)), self.median(cell, lambda line: line.get("rust"))
        if nothing is None or not rust:
            return None
        return max(0.0, self.added_cpu(cell) - nothing) / rust

    def learns(self, model, method):
        """What a model ended with."""
        line = self.learned.get((model, METHODS[method].views_of or method))
        return line["evaluations"][-1][1] if line else None

    def is_equal(self, model, method):
        """Whether it ended as well as with dense gradients; none where one of them is missing."""
        value, dense, about = self.learns(model, method), self.learns(model, DENSE), MODELS[model]
        if value is None or dense is None:
            return None
        return value >= dense - about.tolerance if about.rises else value <= dense * (1 + about.tolerance)

    def best(self, model, ranks, link):
        """Of ours, that with the shortest step, of those that learn as much as dense gradients as far as that is known."""
        timed = [name for name in METHODS if METHODS[name].is_ours and self.rounds(model, ranks, link, name)]
        timed = [name for name in timed if self.is_equal(model, name) is not False]
        return min(timed, key=lambda name: self.median((model, ranks, link, name), over_compute), default=None)


def machines(lines, kind):
    """What lines of a kind were measured on, each once: a line about the machine stands before what it measured."""
    found, now = {}, None
    for line in lines:
        if line["kind"] == "machine":
            now = f"{line['processor']}, {line['cores']} cores, torch {line['torch']}, gradwire {line['gradwire']}"
        elif line["kind"] == kind and now:
            found[now] = None
    return list(found)


def over_compute(line):
    return line["step"] / line["compute"]


def added_cpu(line):
    return line["cpu"] - line["compute_cpu"]


def wait(line):
    """Of a step, as a share of compute: what is left when compute and the CPU time that was added are taken off.

    Where ranks share a core, one computes while another waits.
    """
    shared = max(1, line["ranks"] / CORES)
    return max(0.0, line["step"] - line["compute"] - shared * added_cpu(line)) / line["compute"]


def targets(report):
    """Lines of a table: what is asked, for which, what was found, whether it is reached."""
    for model in MODELS:
        for ranks in RANKS:
            best = report.best(model, ranks, SLOW)
            if best:
                cell = (model, ranks, SLOW, best)
                where = described(report, *cell)
                most = MOST_STEP[ranks]
                yield verdict(f"step ≤ {most} × compute", where, report.median(cell, over_compute), most)
                yield verdict(f"exposed wait ≤ {100 * MOST_WAIT:g} % of compute", where, report.median(cell, wait), MOST_WAIT)
                share = report.exchange_share(cell)
                yield verdict(f"added CPU ≤ no-op hook's + {MOST_EXCHANGE} × Rust exchange's", where, share, MOST_EXCHANGE)
            best = report.best(model, ranks, FREE)
            if best:
                ratio = report.paired((model, ranks, FREE, best), DENSE, lambda line: line["step"])
                where = described(report, model, ranks, FREE, best)
                yield verdict(f"step ≤ {MOST_OF_DENSE} × all-reduce", where, ratio, MOST_OF_DENSE)


def compact_targets(report):
    """A row for each model and number of ranks; what is reached is bold."""
    slow, free = f"step / compute at {SLOW}", "step / all-reduce without limit"
    head = ["model, ranks", "hook", slow, "wait / compute", "added CPU / Rust exchange's", free]
    rows, is_in_doubt = [], False
    for model, about in MODELS.items():
        for ranks in RANKS:
            best = report.best(model, ranks, SLOW)
            if best:
                is_in_doubt |= report.is_equal(model, best) is None
                cell = (model, ranks, SLOW, best)
                quick = report.best(model, ranks, FREE)
                ratio = quick and report.paired((model, ranks, FREE, quick), DENSE, lambda line: line["step"])
                found = [
                    (report.median(cell, over_compute), MOST_STEP[ranks]),
                    (report.median(cell, wait), MOST_WAIT),
                    (report.exchange_share(cell), MOST_EXCHANGE),
                    (ratio, MOST_OF_DENSE),
                ]
                rows.append([f"{about.name}, {ranks}", best, *(marked(value, most) for value, most in found)])
    steps = " and ".join(f"{most} with {ranks} ranks" for ranks, most in MOST_STEP.items())
    text = (
        f"Targets: a step of {steps}; a wait of {MOST_WAIT}; added CPU, less that of a hook that does nothing, of "
        f"{MOST_EXCHANGE} × that of the Rust exchange; without limit a step of {MOST_OF_DENSE}, by our fastest hook there. What is "
        "reached is bold."
    )
    if is_in_doubt:
        text += " Whether these hooks learn as much as dense gradients is not measured yet."
    yield textwrap.fill(text, DOCUMENT_WIDTH) + "\n"
    yield from table(head, rows)


def parts(report):
    """Of a step of our fastest hook with two ranks, which have a core each, so that no work runs beside other work."""
    ranks, rows = RANKS[0], []
    for model, about in MODELS.items():
        best = report.best(model, ranks, SLOW)
        idle = best and (NOTHING_WITH_VIEWS if METHODS[best].views_of else NOTHING)
        if not best or not report.rounds(model, ranks, SLOW, idle):
            continue
        cell = (model, ranks, SLOW, best)
        step, compute, encode, decode = (report.median(cell, itemgetter(part)) for part in PARTS)
        nothing = report.median((*cell[:3], idle), lambda line: line["step"] - line["compute"])
        rest = step - compute - nothing - encode - decode
        found = [compute, nothing, encode, decode, rest, step, MOST_STEP[ranks] * compute]
        rows.append([about.name, best, *map(milliseconds, found)])
    if rows:
        yield f"\nMilliseconds of a step with {ranks} ranks at {SLOW}:\n"
        yield from table(["model", "hook", "compute", "no-op hook", "encode", "decode", "rest", "step", "target"], rows)


def marked(value, most):
    return f"**{number(value)}**" if value is not None and value <= most else number(value)


def described(report, model, ranks, link, method):
    doubt = ", not known to learn as much" if report.is_equal(model, method) is None else ""
    return f"{MODELS[model].name}, {ranks} ranks, {link}, {method}{doubt}"


def verdict(what, where, found, most):
    said = NONE if found is None else "reached" if found <= most else "not reached"
    return [what, where, number(found), said]


def table(head, rows):
    yield f"| {' | '.join(head)} |"
    yield "| --- " * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def number(value, digits=2, unit=""):
    return NONE if value is None else f"{value:.{digits}f}{unit}"


def milliseconds(seconds, digits=1):
    return NONE if seconds is None else f"{1000 * seconds:.{digits}f}"


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
                        line["compute"] for method in METHODS for line in report.rounds(model, ranks, link, method).values()
                    )
                    yield f"\n## {about.name}, {ranks} ranks, {link}\n"
                    yield f"Compute alone takes {milliseconds(alone)} ms.\n"
                    head = ["method", "ms a step", "quartiles", "× compute", "wait", "× all-reduce", "added CPU, ms"]
                    head += ["kB sent", "encode · exchange · decode · exposed, ms"]
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
    if not report.rounds(*cell):
        return None

    def of(name):
        return report.median(cell, lambda line: line.get(name))

    is_advised = any(line.get("advice") for line in report.rounds(*cell).values())
    parts = " · ".join(milliseconds(of(part)) for part in ("encode", "exchange", "decode", "exposed"))
    return [
        f"{cell[3]} (advises against itself)" if is_advised else cell[3],
        milliseconds(of("step")),
        f"{milliseconds(of('low'))} to {milliseconds(of('high'))}",
        number(report.median(cell, over_compute)),
        number(report.median(cell, lambda line: 100 * wait(line)), 0, " %"),
        number(report.paired(cell, DENSE, lambda line: line["step"]), 3),
        milliseconds(report.added_cpu(cell)),
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
    yield ""
    yield from compact_targets(report)
    yield from parts(report)


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
    axis.axvline(MOST_STEP[ranks], color="grey", linestyle=":", label=f"target at {SLOW}")
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
    every = ["\n## Targets\n", *table(["target", "where", "found", ""], targets(report))]
    asked.tables.write_text("\n".join([heading, *summary(report), *every, *details(report)]) + "\n")
    if asked.plot:
        plot(report, asked.plot)
    if asked.into:
        picture = [f"\n![Steps by method]({os.path.relpath(asked.plot, asked.into.parent)})"] if asked.plot else []
        asked.into.write_text(replaced(asked.into.read_text(), "\n".join([*summary(report), *picture])))
    for what, where, found, said in targets(report):
        print(f"{said}: {what}: {found} ({where})")
    if report.busy:
        print(f"{report.busy} lines were timed while other programs used more than {MOST_OTHERS} of a core")


if __name__ == "__main__":
    main()
