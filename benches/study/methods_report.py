"""What the runs and benches of methods.py say: tables of a page, and pictures."""

import json
import math
import re
import shlex
import statistics
from dataclasses import dataclass, replace

import methods_bench
from methods_cells import DENSE, GRADIENTS, LONG_STEPS, METHODS, REFERENCE, WORKERS
from methods_formulas import formula

# Student's t, 97.5 % points, by degrees of freedom.
T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}
# A difference is claimed from so many times the spread between seeds on.
SPREADS = 3
# Of the network that is trained.
SHAPES = [[784, 32], [32], [32, 10], [10]]
# Files of a record, and what is kept of a summary.
KEPT = ["summary.json", "diverged.txt", "state.json", "course.json", "errors.jsonl", *(f"times-{number}.jsonl" for number in range(9))]
KEPT_OF_A_SUMMARY = ["params", "steps", "accuracy", "final_loss", "bytes_up"]


def thinned(file):
    """What the tables need of a file. Command lines name folders of a machine."""
    if file.name != "summary.json":
        return file.read_bytes()
    summary = json.loads(file.read_text())
    # A record that was unpacked and continued has some that were thinned before.
    origin = summary.get("origin", summary)
    kept = {key: summary[key] for key in KEPT_OF_A_SUMMARY} | {key: origin[key] for key in ("commit", "cpu")}
    return (json.dumps(kept) + "\n").encode()


@dataclass
class Learned:
    """What the seeds of a method ended with: points of accuracy, or the loss of the GPT."""

    rate: float
    by_seed: dict
    is_inside: bool

    def mean(self):
        """Over the seeds."""
        return statistics.mean(self.by_seed.values())

    def spread(self):
        """The standard deviation between seeds."""
        return statistics.stdev(self.by_seed.values())

    def shown(self, digits=2):
        """Mean and spread."""
        return f"{self.mean():.{digits}f} ± {self.spread():.{digits}f}"


class Report:
    """All figures, by method."""

    def __init__(self, runs, kinds):
        self.runs, self.kinds = runs, kinds
        self.errors, self.times = methods_bench.read(runs, "errors.jsonl"), methods_bench.read(runs, "times-*.jsonl")
        # Bytes are compared with those of the reference.
        self.trained = [method for method in METHODS if runs.summary(runs.first(method)) and runs.summary(runs.first(REFERENCE))]
        self.at_steps = {method: found for method in self.trained for found in [learned(runs, method, "steps")] if found}
        self.at_bytes = {method: found for method in self.trained for found in [learned(runs, method, "bytes")] if found}
        self.at_length = {method: found for method in METHODS if method.trains("long") for found in [learned(runs, method, "long")] if found}
        self.of_gpt = {method: found for method in METHODS if method.trains("gpt") for found in [learned(runs, method, "gpt")] if found}

    def is_trained(self, method):
        """Whether its first cell is finished."""
        return method in self.trained

    def params(self):
        """Of the network."""
        return self.runs.summary(self.runs.first(REFERENCE))["params"]

    def measured(self, method, key):
        """Means over the gradients of each regime; none for what is not encoded as a gradient."""
        if method.options:
            return []
        lines = [[line for line in self.errors if line["codec"] == method.codec and line["regime"] == regime] for regime in GRADIENTS]
        return [statistics.mean(map(key, found)) for found in lines if found]

    def bits(self, method):
        """Of a coordinate, counted on recorded gradients."""
        return self.measured(method, lambda line: 8 * line["bytes"] / line["n"])

    def error(self, method):
        """‖decoded − p‖² / ‖p‖²; none of what is a step."""
        return [] if method.sends_steps else self.measured(method, lambda line: line["nmse"])

    def coding(self, method, key):
        """The median over all rounds, as a multiple of the time of a copy in the same turns."""
        times = [line[key] / line["memcpy_ms"] for line in self.times if line["codec"] == method.codec and not method.options]
        return f"{statistics.median(times):.2g}" if times else "–"

    def bits_in_training(self, method):
        """What a worker contributes to a batch: of a gather, once for each peer; of a sum, the share that a ring sends."""
        kind = "gather" if method.option("--exchange") == "sparse" else self.kinds[method.codec_name]
        if kind == "gather" and method.codec_name == "none":
            kind = "linear"
        copies = {"gather": WORKERS - 1, "linear": 2 * (WORKERS - 1) / WORKERS, "gossip": 2}[kind]
        return 8 * self.bytes_a_batch(method) / copies / self.params()

    def bytes_a_batch(self, method):
        """What a worker sends."""
        return self.runs.bytes_a_batch(self.runs.first(method))

    def formula(self, method):
        """In words, and for the network that is trained."""
        words, bits = formula(method, SHAPES)
        return words if bits is None or words == f"{bits:g}" else f"{words} = {bits:.3g}"

    def kept_bytes(self, method):
        """Of a coordinate, from step to step."""
        path = self.runs.path(self.runs.first(method)) / "state.json"
        return f"{json.loads(path.read_text())['bytes'] / self.params():.3g}" if path.exists() else "–"

    def courses(self, method):
        """Of the longer runs, by seed."""
        files = (self.runs.path(cell) / "course.json" for cell in self.runs.finals(method, "long"))
        return [json.loads(file.read_text()) for file in files if file.exists()]

    def difference(self, method):
        """To dense training with the same seeds: the mean, and half of its 95 % interval."""
        own, dense = self.at_steps[method].by_seed, self.at_steps[method.dense()].by_seed
        pairs = [own[seed] - dense[seed] for seed in sorted(own.keys() & dense.keys())]
        half = T[len(pairs) - 1] * statistics.stdev(pairs) / math.sqrt(len(pairs))
        return statistics.mean(pairs), half

    def verdict(self, method):
        """A difference is one if its interval excludes zero and it is large beside the spread between seeds."""
        if method == method.dense() or method.dense() not in self.at_steps:
            return "–", "–"
        mean, half = self.difference(method)
        spread = max(self.at_steps[method].spread(), self.at_steps[method.dense()].spread())
        is_one = abs(mean) > half and abs(mean) >= SPREADS * spread
        return f"{mean:+.2f} ± {half:.2f}", ("better" if mean > 0 else "worse") if is_one else "not shown"


def learned(runs, method, part):
    """None before all seeds are done."""
    best, cells = runs.best(method, part), runs.finals(method, part)
    if not cells or not all(map(runs.is_done, cells)) or any(map(runs.diverged, cells)):
        return None
    tuned = runs.tuned(method, part)
    ends = {cell.seed: runs.summary(cell) for cell in cells}
    by_seed = {seed: end["final_loss"] if part == "gpt" else 100 * end["accuracy"] for seed, end in ends.items()}
    return Learned(best.rate, by_seed, best not in (tuned[0], tuned[-1]))


def sends(report):
    """What is sent, how much of the gradient it misses, and what coding takes."""
    yield head("method", "kind", "bits by formula", "in training", "on recorded gradients", "error", "encode", "decode", "kept")
    for method in METHODS:
        bits, error = (" / ".join(f"{value:.2g}" for value in values) or "–" for values in (report.bits(method), report.error(method)))
        times = [report.coding(method, key) for key in ("encode_ms", "decode_ms")]
        counted = f"{report.bits_in_training(method):.3g}" if report.is_trained(method) else "–"
        yield row(shown(method), report.kinds[method.codec_name], report.formula(method), counted, bits, error, *times, report.kept_bytes(method))


def learns(report):
    """Accuracy, at equal steps and at equal bytes."""
    yield head("method", "rate", "accuracy", "to dense", "difference", "kB a batch", "batches for equal bytes", "accuracy at equal bytes", "loss of the GPT with AdamW")
    for method in METHODS:
        at_steps, at_bytes = report.at_steps.get(method), report.at_bytes.get(method)
        rate = "–" if not at_steps else f"{at_steps.rate:g}" + ("" if at_steps.is_inside else " (end)")
        cells = [rate, at_steps.shown(), *report.verdict(method)] if at_steps else ["–"] * 4
        cells.append(f"{report.bytes_a_batch(method) / 1000:.3g}" if report.is_trained(method) else "–")
        cells += [report.runs.batches(method, "bytes"), at_bytes.shown()] if at_bytes else ["–", "–"]
        yield row(shown(method), *cells, gpt(report, method))


def gpt(report, method):
    """The loss of the GPT, and how far it is from that of dense training."""
    found, dense = report.of_gpt.get(method), report.of_gpt.get(DENSE)
    if not found or not dense:
        return "–"
    away = "" if method == DENSE else f", {100 * (found.mean() / dense.mean() - 1):+.1f} %"
    return found.shown(3) + away + ("" if found.is_inside else " (end)")


def longer(report):
    """Longer runs: accuracy, bytes, and how many steps went by latents."""
    yield head("method", "rate", "accuracy", "MB of a worker", "kB a step, after training", "steps with latents")
    for method, found in report.at_length.items():
        sent = [course["bytes"] for course in report.courses(method)]
        megabytes = statistics.mean(map(sum, sent)) / WORKERS / 1e6
        name = shown(replace(method, codec=method.codec_of(LONG_STEPS)))
        yield row(name, f"{found.rate:g}", found.shown(), f"{megabytes:.3g}", *after_training(method, sent))


def after_training(method, sent):
    """What a worker sends in a step, and the share of steps with latents for each seed. These send less than a step that trains."""
    before = method.phases(LONG_STEPS)
    later = [value for run in sent for value in run[before:]]
    if not before:
        return kilobytes(later), "–"
    least = sent[0][before - 1]
    parts = {"with latents": [value for value in later if value < least], "without": [value for value in later if value >= least]}
    shares = (100 * statistics.mean(value < least for value in run[before:]) for run in sent)
    words = [f"{kilobytes(part)} {name}" for name, part in parts.items() if part]
    return ", ".join(words), ", ".join(f"{share:.0f}" for share in shares) + " %"


def kilobytes(sent):
    """Of a worker, in the mean."""
    return f"{statistics.mean(sent) / WORKERS / 1000:.3g}"


def weaknesses(report):
    """Where each is weak, and who described it."""
    yield head("method", "where it is weak", "source")
    for method in METHODS:
        yield row(shown(method), method.weak, method.source or "–")


def selection(report):
    """What it matters whose coordinates are sent, out of what they are chosen, and whether the others are kept."""
    yield head("method", "coordinates", "selected over", "memory", "accuracy", "to dense", "difference", "kB a batch")
    for method in METHODS:
        if method.selects:
            at_steps = report.at_steps.get(method)
            learned = [at_steps.shown(), *report.verdict(method)] if at_steps else ["–"] * 3
            counted = f"{report.bytes_a_batch(method) / 1000:.3g}" if report.is_trained(method) else "–"
            yield row(shown(method), method.coordinates, method.selected_over, method.memory, *learned, counted)


def spread(report):
    """How far seeds lie apart."""
    spreads = sorted(found.spread() for found in report.at_steps.values())
    if missing := len(METHODS) - len(spreads):
        yield f"{missing} of {len(METHODS)} methods lack runs, or diverged: they have no accuracy above."
        yield ""
    if METHODS[0] in report.at_steps:
        dense = report.at_steps[METHODS[0]].spread()
        yield f"Between the three seeds, accuracies spread by {dense:.2f} points with `none` (standard deviation), by"
        yield f"{statistics.median(spreads):.2f} in the median of all methods and by {spreads[-1]:.2f} at most."


TABLES = {"sends": sends, "learns": learns, "selection": selection, "weak": weaknesses, "spread": spread, "longer": longer}
MARK = re.compile(r"(<!-- methods: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def tables(runs, kinds):
    """All of them."""
    report = Report(runs, kinds)
    return "\n\n".join("\n".join(make(report)) for make in TABLES.values())


def written(page, runs, kinds):
    """The page with its tables."""
    report = Report(runs, kinds)
    return MARK.sub(lambda found: found[1] + "".join(line + "\n" for line in TABLES[found[2]](report)) + found[3], page)


def shown(method):
    """As one types it."""
    return " ".join(f"`{word}`" for word in [method.codec, shlex.join(map(str, method.options))] if word)


def head(*columns):
    """Two lines."""
    return row(*columns) + "\n" + row(*["---"] * len(columns))


def row(*values):
    """One line."""
    return "| " + " | ".join(map(str, values)) + " |"
