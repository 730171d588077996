"""The targets of the hook for PyTorch, at 100 Mbit/s and without encryption, and which of them are met."""

from dataclasses import dataclass

from torch_figures import NONE, Figure, added_cpu_in_turns, figure, interval, number, over_compute, steps_in_turns, table
from torch_plan import DENSE, ENCRYPTED, ENCRYPTED_RANKS, METHODS, MODELS, OLD, PLAIN, RANKS, RIVALS, SLOW

# A step of that method over compute alone, with two ranks.
STEP_METHOD, STEP_RANKS = "gradwire top-k 0.1 % q4", 2
MOST_STEP = {"lstm": 1.38, "gpt": 1.25}
# Whether the median is at most what it may be; and whether even the least that it may be is more.
MET, UNDECIDED, MISSED = "met", "undecided", "missed"


@dataclass(frozen=True)
class Target:
    what: str
    cell: tuple
    found: Figure | None
    most: float = 1.0

    @property
    def verdict(self):
        if self.found is None:
            return "not timed"
        return MET if self.found.median <= self.most else MISSED if self.found.low > self.most else UNDECIDED

    @property
    def where(self):
        model, ranks, _, method = self.cell
        return f"{MODELS[model].name}, {ranks} ranks, {method}"


def targets(report):
    """Every one, also those that were not timed."""
    for model in MODELS:
        for ranks in RANKS:
            yield from targets_of(report, model, ranks)


def targets_of(report, model, ranks):
    if ranks == STEP_RANKS and model in MOST_STEP:
        cell = (model, ranks, SLOW, STEP_METHOD)
        yield Target(f"step ≤ {MOST_STEP[model]} × compute", cell, over_compute_in_turns(report, cell), MOST_STEP[model])
    for method, rival in RIVALS.items():
        cell = (model, ranks, SLOW, method)
        name = "PyTorch's all-reduce" if rival == DENSE else f"PyTorch's {rival} hook"
        yield Target(f"step ≤ that of {name}", cell, over_rival(report, cell, rival))
    for method, about in METHODS.items():
        if about.is_in_old and not about.views_of:
            yield from targets_of_old(report, (model, ranks, SLOW, method))


def targets_of_old(report, cell):
    yield Target("step ≤ the older hook's", cell, over_old(report, cell, steps_in_turns))
    yield Target("added CPU ≤ the older hook's", cell, over_old(report, cell, added_cpu_in_turns))


def over_compute_in_turns(report, cell):
    rounds = report.rounds(cell).values()
    return figure([step / line["compute"] for line in rounds for step in steps_in_turns(line)])


def over_rival(report, cell, rival):
    return report.in_turns((cell, PLAIN), ((*cell[:3], rival), PLAIN), steps_in_turns)


def over_old(report, cell, of_turns):
    return report.in_turns((cell, PLAIN), (cell, OLD), of_turns)


def verdicts(report):
    """A table of all targets."""
    rows = ([target.what, target.where, interval(target.found), target.verdict] for target in targets(report))
    yield from table(["target", "where", "found", ""], rows)


def comparison(report):
    """Of each model: the hook without encryption against PyTorch's hooks and the older one, and with encryption."""
    for model, about in MODELS.items():
        rows = [row for method in METHODS if (row := compared(report, model, method))]
        if rows:
            yield f"\n{about.name}, at {SLOW}, with {' · '.join(map(str, RANKS))} ranks:\n"
            head = ["method", "step ÷ PyTorch's", "step ÷ older hook's", "added CPU ÷ older hook's"]
            yield from table([*head, "× compute", f"× compute, {ENCRYPTED_RANKS} ranks, encrypted"], rows)


def compared(report, model, method):
    """A row, with one figure for each number of ranks; none for a method that is compared with nothing."""
    cells = [(model, ranks, SLOW, method) for ranks in RANKS]
    if not any(report.rounds(cell, ENCRYPTED) for cell in cells):
        return None
    rival = RIVALS.get(method)
    row = [
        [marked(Target("", cell, over_rival(report, cell, rival))) if rival else NONE for cell in cells],
        [marked(Target("", cell, over_old(report, cell, steps_in_turns))) for cell in cells],
        [marked(Target("", cell, over_old(report, cell, added_cpu_in_turns))) for cell in cells],
        [number(report.median(cell, over_compute)) for cell in cells],
        [number(report.median((model, ENCRYPTED_RANKS, SLOW, method), over_compute, ENCRYPTED))],
    ]
    return [method, *(" · ".join(part) if any(one != NONE for one in part) else NONE for part in row)]


def marked(target):
    """What is met is bold, and what is missed says so."""
    text = interval(target.found)
    return {MET: f"**{text}**", MISSED: f"{text}, missed"}.get(target.verdict, text)
