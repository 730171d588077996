#!/usr/bin/env python3
"""What a step of PyTorch's DDP takes over slow links, with its own hooks and with gradwire's; and what models learn with each.

usage: torch_lab.py RESULTS.jsonl [--quick] [--old FOLDER] [--only time|accuracy] [--models NAME,…] [--methods NAME,…]
                    [--links NAME,…] [--ranks N,…] [--rounds N] [--steps N] [--limit MINUTES] [--core-hours HOURS]
                    [--congestion NAME]

    time       seconds, CPU seconds and bytes of a step, on two and four hosts of the lab, at 100 and 1000 Mbit/s and without
               limit, in three rounds, in each of which the methods come in another order; compute alone is timed before and
               behind each of them. At 100 Mbit/s a method of gradwire takes turns with itself encrypted, on two hosts, and,
               with --old, with the hook of another gradwire: `pip install --no-deps --target FOLDER WHEEL` puts it into FOLDER.
               A method that has to be as fast as one of PyTorch's takes turns with that one.
    accuracy   each method trains each model once on four hosts without limit, on data from GRADWIRE_DATA/data, for N steps if
               it is said; nothing is begun once HOURS of CPU time were used (8)

Three rounds of times take an hour and three quarters, and end after two hours: what is missing then, the next start times.
With --limit, all ends after so many minutes. What is compared stands in torch_plan.py. Each measurement is one line of
RESULTS.jsonl; those that are there are not made again, so the program may be stopped and started at any time. A line that was
timed while other programs used the cores is kept, marked by what they used ("others"), and timed again by the next start.
torch_report.py makes the tables and the plot, and says which targets are met. --congestion is how the TCP of all hosts avoids
congestion, by a name that the machine has in net.ipv4.tcp_allowed_congestion_control; its results belong in a file of their
own. --quick times few methods for moments, and fails if what it finds cannot be.

Run it with a Python that has torch and gradwire: ./ci.sh python makes one in the user's cache folder. Needs root, cargo, and
what the lab needs (run.py), but no libzmq and no MPI.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

# Importing leaves no files behind.
sys.dont_write_bytecode = True

import programs
import sandbox
from torch_cell import mean_of, time_cell
from torch_plan import (
    AUTO,
    DENSE,
    LINKS,
    METHODS,
    MODELS,
    MOST_OTHERS,
    NOTHING,
    PLAIN,
    QUICK_METHODS,
    RANKS,
    ROUNDS,
    TIMED_SECONDS,
    parties,
)
from torch_ranks import Hosts, machine, package_of

ACCURACY_RANKS = 4
# Times end after this, unless --limit says something else.
TIMED_MINUTES = 120
# Of a line, while it is measured.
SHOWN = "processor old model ranks link round method variant step compute cpu others evaluations error".split()


class Results:
    def __init__(self, path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self.lines = [json.loads(line) for line in path.read_text().splitlines()]

    def has(self, **key):
        """Whether there is one that need not be made again."""
        found = (line for line in self.lines if key.items() <= line.items())
        return any("error" not in line and line.get("others", 0) <= MOST_OTHERS for line in found)

    def add(self, line):
        self.lines.append(line)
        with open(self.path, "a") as file:
            print(json.dumps(line), file=file)
        print(" ".join(f"{name}={line[name]}" for name in SHOWN if name in line), flush=True)

    def core_hours(self):
        return sum(line.get("core_seconds", 0) for line in self.lines) / 3600


def time_all(results, chosen, is_over):
    """Round by round, so that one that was stopped has measured everything equally often."""
    for turn in range(1, chosen.rounds + 1):
        for count in chosen.ranks:
            for link in chosen.links:
                cells = [cell for cell in cells_of(chosen, turn, count, link) if not all(results.has(**key) for key in cell)]
                if cells and not is_over():
                    with Hosts(count, LINKS[link], chosen.old, chosen.congestion) as hosts:
                        for cell in cells:
                            if not is_over():
                                time_cell(results, hosts, cell, chosen.seconds)


def cells_of(chosen, turn, count, link):
    """Of each model the methods, in another order in each round; a cell is what is timed in turns."""
    by = (turn - 1) * len(chosen.methods) // chosen.rounds
    for model in chosen.models:
        place = {"kind": "time", "model": model, "ranks": count, "link": link, "round": turn}
        for method in [*chosen.methods[by:], *chosen.methods[:by]]:
            members = parties(method, count, link, chosen.old is not None, chosen.methods)
            if members:
                yield [{**place, "method": name, "variant": variant} for name, variant in members]


def missing(results, chosen):
    """How many cells are not timed."""
    places = [(turn, count, link) for turn in range(1, chosen.rounds + 1) for count in chosen.ranks for link in chosen.links]
    cells = [cell for place in places for cell in cells_of(chosen, *place)]
    return sum(not all(results.has(**key) for key in cell) for cell in cells)


def train_all(results, chosen, is_over):
    # Dense gradients first, with which all others are compared.
    methods = sorted((name for name in chosen.methods if METHODS[name].learns), key=lambda name: name != DENSE)
    for method in methods:
        for model in chosen.models:
            key = {"kind": "accuracy", "model": model, "method": method, "steps": chosen.steps or MODELS[model].steps}
            if results.has(**key) or is_over() or results.core_hours() >= chosen.core_hours:
                continue
            with Hosts(ACCURACY_RANKS, None) as hosts:
                answers = hosts.ranks().ask("train", model=model, method=method, steps=key["steps"])
            line = {**key, "ranks": ACCURACY_RANKS, "lr": MODELS[model].lr, **mean_of(answers)}
            if "error" not in line:
                line["core_seconds"] = round(sum(answer["core_seconds"] for answer in answers), 1)
            results.add(line)


def check_quick(results):
    """That the machinery measures, not how fast the machine is."""
    failed = [line for line in results.lines if "error" in line]
    assert not failed, failed
    timed = [line for line in results.lines if line["kind"] == "time" and line["variant"] == PLAIN]
    cells = {(line["model"], line["ranks"], line["link"]) for line in timed}
    for model, count, link in sorted(cells):
        lines = (line for line in timed if (line["model"], line["ranks"], line["link"]) == (model, count, link))
        check_cells({line["method"]: line for line in lines}, 8 * MODELS[model].params * (count - 1) / count)
    print("quick: what was measured can be")


def check_cells(found, ring):
    """Of one model, number of ranks and link, by method; a ring of dense gradients sends so many bytes."""
    dense = found[DENSE]["sent"]
    assert ring < dense < 1.2 * ring, f"{DENSE} sends {dense} bytes, expected {ring} and little more"
    for name, line in found.items():
        assert line["step"] > 0 and line["compute"] > 0 and line["cpu"] > 0, line
        if METHODS[name].is_ours:
            assert 0 < line["frame"] <= line["sent"], line
        most = {NOTHING: 0.01, DENSE: 1.2, "gradwire none": 1.2, AUTO: 1.2}.get(name, 0.7 if "16" in name else 0.5)
        assert line["sent"] <= most * ring, f"{name} sends {line['sent']} bytes, more than {most} of a dense ring"


def parse(arguments):
    def names(of):
        def parsed(text):
            known = {str(one): one for one in of}
            if unknown := set(text.split(",")) - set(known):
                raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: expected some of {', '.join(known)}")
            return [known[one] for one in text.split(",")]

        return parsed

    parser = argparse.ArgumentParser(usage=__doc__.partition("usage: ")[2].partition("\n\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--old", type=Path)
    parser.add_argument("--only", choices=["time", "accuracy"])
    parser.add_argument("--models", type=names(MODELS), default=[*MODELS])
    parser.add_argument("--methods", type=names(METHODS))
    parser.add_argument("--links", type=names(LINKS))
    parser.add_argument("--ranks", type=names(RANKS))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--limit", type=float)
    parser.add_argument("--core-hours", type=float, default=8)
    parser.add_argument("--congestion")
    chosen = parser.parse_args(arguments)
    chosen.methods = chosen.methods or (QUICK_METHODS if chosen.quick else [*METHODS])
    chosen.links = chosen.links or ([next(iter(LINKS))] if chosen.quick else [*LINKS])
    chosen.ranks = chosen.ranks or (RANKS[:1] if chosen.quick else RANKS)
    chosen.rounds = chosen.rounds or (1 if chosen.quick else ROUNDS)
    if chosen.old:
        package_of(chosen.old)
        chosen.old = chosen.old.resolve()
    chosen.seconds = 0.3 if chosen.quick else TIMED_SECONDS
    return chosen


def main():
    chosen = parse(sys.argv[1:])
    results, began = Results(chosen.results), time.monotonic()

    def is_over(limit):
        return time.monotonic() - began > 60 * limit

    about = machine(chosen.old, chosen.congestion)
    if not results.has(**about):
        results.add(about)
    if chosen.only != "accuracy":
        time_all(results, chosen, lambda: is_over(chosen.limit or TIMED_MINUTES))
        print(f"{missing(results, chosen)} cells are not timed yet; the next start times them")
    if chosen.only == "accuracy" or not (chosen.only or chosen.quick):
        if "GRADWIRE_DATA" not in os.environ:
            sys.exit("accuracy needs GRADWIRE_DATA, the folder that holds data/")
        train_all(results, chosen, lambda: is_over(chosen.limit or float("inf")))
    if chosen.quick:
        check_quick(results)
    print(f"{time.monotonic() - began:.0f} s; {results.core_hours():.2f} core-hours of training in all")


if __name__ == "__main__":
    parse(sys.argv[1:])
    if not sandbox.is_inside():
        programs.build_exchange()
    sandbox.enter()
    main()
