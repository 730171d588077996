"""What torch_lab.py has measured, by model, number of ranks, link and method."""

import statistics
from dataclasses import dataclass
from math import comb

from torch_plan import DENSE, METHODS, MODELS, MOST_OTHERS, NOTHING, NOTHING_WITH_VIEWS, PLAIN

CORES = 2
# How sure it is that a median lies in its interval.
SURE = 0.95


@dataclass(frozen=True)
class Figure:
    """A median, and between which of the values that it is of the true one lies, as far as they are enough to say so."""

    median: float
    low: float
    high: float
    count: int


def figure(values):
    """Without any assumption on how they are spread; of fewer than six values, the smallest and the largest."""
    values = sorted(values)
    if not values:
        return None
    count = len(values)
    # The true median lies below the value number `cut`, from 0, as seldom as so many of `count` coins show heads.
    cut = 0
    while 2 * sum(comb(count, heads) for heads in range(cut + 2)) <= (1 - SURE) * 2**count:
        cut += 1
    return Figure(statistics.median(values), values[cut], values[-1 - cut], count)


class Report:
    def __init__(self, lines, takes_busy=False):
        """Of lines about the same, the last counts; of trainings, those of as many steps as were planned."""
        good = [line for line in lines if "error" not in line]
        self.failed = {(line["model"], line["method"]): line["error"] for line in lines if "error" in line}
        self.busy = sum(line.get("others", 0) > MOST_OTHERS for line in good)
        self.times, self.learned = {}, {}
        machine = None
        for line in good:
            if line["kind"] == "machine":
                machine = described_machine(line)
            elif not takes_busy and line.get("others", 0) > MOST_OTHERS:
                continue
            elif line["kind"] == "time":
                at = line["model"], line["ranks"], line["link"], line["method"], line.get("variant", PLAIN)
                self.times.setdefault(at, {})[line["round"]] = {**line, "machine": machine}
            elif takes_busy or line["steps"] == MODELS[line["model"]].steps:
                self.learned[line["model"], line["method"]] = {**line, "machine": machine}
        self.timed_on = unique(line["machine"] for cell in self.times.values() for line in cell.values())
        self.trained_on = unique(line["machine"] for line in self.learned.values())

    def rounds(self, cell, variant=PLAIN):
        """The lines of a model, a number of ranks, a link and a method, by round."""
        return self.times.get((*cell, variant), {})

    def values(self, cell, of, variant=PLAIN):
        """Of each round in which there is one."""
        found = (of(line) for line in self.rounds(cell, variant).values())
        return [value for value in found if value is not None]

    def median(self, cell, of, variant=PLAIN):
        """Over rounds; none where it was not timed."""
        found = self.values(cell, of, variant)
        return statistics.median(found) if found else None

    def paired(self, cell, other, of):
        """The median of the quotients of two methods in the same round."""
        mine, theirs = self.rounds(cell), self.rounds((*cell[:3], other))
        both = [of(mine[turn]) / of(theirs[turn]) for turn in mine.keys() & theirs.keys()]
        return statistics.median(both) if both else None

    def in_turns(self, cell, other, of_turns):
        """The quotients of two that took turns, of all turns of all rounds; `of_turns` finds the values of a line."""
        mine, theirs = self.rounds(*cell), self.rounds(*other)
        pairs = [pair for turn in mine.keys() & theirs.keys() for pair in zip(of_turns(mine[turn]), of_turns(theirs[turn]))]
        return figure([one / two for one, two in pairs if two > 0])

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


def described_machine(line):
    old = f", older hook {line['old']}" if "old" in line else ""
    congestion = f", TCP by {line['congestion']}" if "congestion" in line else ""
    return f"{line['processor']}, {line['cores']} cores, torch {line['torch']}, gradwire {line['gradwire']}{old}{congestion}"


def unique(names):
    return list(dict.fromkeys(name for name in names if name))


def over_compute(line):
    return line["step"] / line["compute"]


def added_cpu(line):
    return line["cpu"] - line["compute_cpu"]


def steps_in_turns(line):
    """Seconds of a step, of each turn."""
    return line.get("turns", [line["step"]])


def added_cpu_in_turns(line):
    return [cpu - line["compute_cpu"] for cpu in line.get("cpu_turns", [line["cpu"]])]


def wait(line):
    """Of a step, as a share of compute: what is left when compute and the CPU time that was added are taken off.

    Where ranks share a core, one computes while another waits.
    """
    shared = max(1, line["ranks"] / CORES)
    return max(0.0, line["step"] - line["compute"] - shared * added_cpu(line)) / line["compute"]


NONE = "–"


def table(head, rows):
    yield f"| {' | '.join(head)} |"
    yield "| --- " * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def number(value, digits=2, unit=""):
    return NONE if value is None else f"{value:.{digits}f}{unit}"


def milliseconds(seconds, digits=1):
    return NONE if seconds is None else f"{1000 * seconds:.{digits}f}"


def interval(found):
    return NONE if found is None else f"{found.median:.2f} ({found.low:.2f} to {found.high:.2f})"
