"""Steps of all workers with the codecs of linear.py, factors.py and gossip.py, and the memories that they keep."""

import functools
import math
import operator
import struct

import gossip
import linear
from decode import Layout, absorb, crc32c, fl
from factors import powersgd, rank_of
from turn import Spelling, Turn, units_of

# How two elements are reduced, and how they stand in a file.
REDUCTIONS = {
    "sum-f32": (lambda a, b: fl(a + b), "f"),
    "max-f32": (max, "f"),
    "sum-i32": (operator.add, "i"),
    "and-u32": (operator.and_, "I"),
    "edge-f32": (None, "f"),
}

LINEAR = {f.__name__: f for f in (linear.none, linear.randomk, linear.maxnorm, linear.sharedk, linear.sketch, powersgd)}
GOSSIP = {f.__name__: f for f in (gossip.dpsgd, gossip.powergossip, gossip.choco)}


# Section 14


def arrays_of(spelling, layout):
    """Lengths of the arrays by name, in order."""
    n, momentum = layout.len, float(spelling.keys.get("momentum", 0))
    lengths = {}
    if spelling.name == "sharedk" and spelling.is_("feedback", "ef21"):
        lengths = {"mean of estimates": n, "estimate": n, "momentum": n if momentum > 0 else 0}
    elif spelling.name == "sketch" and spelling.is_("moments", "amsgrad"):
        lengths = {"mean of gradients": n if momentum > 0 else 0, "mean of squares": n, "largest mean of squares": n}
    elif spelling.name == "sketch" and not spelling.is_("error", "workers"):
        c = spelling.cells(n) + 16 * spelling.whole("rows") * len(units_of(spelling, layout))
        lengths = {"sketched error": c, "sketched momentum": c if momentum > 0 else 0}
    return {name: length for name, length in lengths.items() if length > 0}


def saved(kept, arrays, layout):
    """A memory as bytes."""
    factors = kept["factors"]
    out = b"GM" + bytes([3 if arrays else 1, 9 if factors else 1])
    out += struct.pack("<QQ", layout.fingerprint, layout.len)
    out += struct.pack("<Q", len(factors)) if factors else b""
    out += bytes([len(arrays)]) if arrays else b""
    for name, length in arrays.items():
        out += bytes([len(name)]) + name.encode() + struct.pack("<Q", length)
    values = kept["residual"] + factors + sum((kept[name] for name in arrays), [])
    out += struct.pack(f"<{len(values)}f", *values)
    return out + struct.pack("<I", crc32c(out))


# Steps of all workers


def normal(draw):
    return sum(draw() % 2**16 - 2**15 for _ in range(12)) * 2.0**-16


def heavy(draw):
    value, word = normal(draw), draw()
    zeros = (word & -word).bit_length() - 1 if word else 64
    return value * 2.0 ** (min(zeros, 31) - 20)


def drawn_input(text, count):
    """As tests/src/inputs.rs draws it."""
    name, _, seed = text.partition(":")
    state = int(seed)

    def draw():
        nonlocal state
        word, state = absorb(0, state), (state + 0x9E3779B97F4A7C15) % 2**64
        return word

    return [{"normal": normal, "heavy": heavy}[name](draw) for _ in range(count)]


class Run:
    """The steps of a line of the manifest: their payloads as bytes, `values`, and the memory of each worker."""

    def __init__(self, words):
        self.spelling, self.layout = Spelling(words["codec"]), Layout.parse(words["layout"])
        self.workers, self.seed = int(words["workers"]), int(words["seed"])
        self.units, self.rounds, self.bytes = units_of(self.spelling, self.layout), [], b""
        self.arrays = arrays_of(self.spelling, self.layout)
        self.kept = [self.empty() for _ in range(self.workers)]
        steps, n = range(int(words["step"]), int(words["step"]) + int(words["steps"])), self.layout.len
        if self.spelling.name in GOSSIP:
            self.values = self.mixed(steps, drawn_input(words["input"], 2 * n))
            return
        grads = iter(drawn_input(words["input"], len(steps) * self.workers * n))
        for step in steps:
            self.values = self.reduced(step, [[next(grads) for _ in range(n)] for _ in range(self.workers)])

    def empty(self):
        spelling, n = self.spelling, self.layout.len
        kept = {name: [0.0] * length for name, length in self.arrays.items()}
        is_nearest = "density" in spelling.keys or spelling.is_("rounding", "nearest")
        keeps = {"maxnorm": is_nearest, "none": False, "randomk": not spelling.is_("estimator", "unbiased")}
        if keeps.get(spelling.name, spelling.name in LINEAR):
            kept["residual"] = [0.0] * n
        shapes = self.layout.shapes if spelling.name == "powersgd" else []
        kept["factors"] = [0.0] * sum(rank_of(spelling, shape) * math.prod(shape[1:]) for shape in shapes)
        return kept

    def add(self, reduction, payloads):
        self.rounds.append(f"{reduction}:{len(payloads[0])}")
        for payload in payloads:
            self.bytes += struct.pack(f"<{len(payload)}{REDUCTIONS[reduction][1]}", *payload)

    def drive(self, generators):
        """Runs all rounds, and returns what the first generator returns."""
        said = [next(one) for one in generators]
        while True:
            reduction, payloads = said[0][0], [payload for _, payload in said]
            self.add(reduction, payloads)
            if reduction == "edge-f32":
                replies = payloads[::-1]
            else:
                two = REDUCTIONS[reduction][0]
                replies = [[functools.reduce(two, column) for column in zip(*payloads)]] * len(payloads)
            said, ended = [], []
            for one, reply in zip(generators, replies):
                try:
                    said.append(one.send(reply))
                except StopIteration as end:
                    ended.append(end.value)
            if ended:
                return ended[0]

    def reduced(self, step, grads):
        mean = []
        for unit in self.units:
            codec = linear.dense if unit.is_dense else LINEAR[self.spelling.name]
            parts = [grad[unit.start : unit.start + unit.len] for grad in grads]
            turns = [Turn(self, step, unit, rank) for rank in range(self.workers)]
            mean += self.drive([codec(turn, part) for turn, part in zip(turns, parts)])
        return mean

    def mixed(self, steps, models):
        n, codec = self.layout.len, GOSSIP[self.spelling.name]
        models = [[model[u.start : u.start + u.len] for u in self.units] for model in (models[:n], models[n:])]
        kept = [[[0.0] * self.edge_len(unit) for unit in self.units] for _ in range(2)]
        for step in steps:
            for at, unit in enumerate(self.units):
                self.drive([codec(Turn(self, step, unit, end), models[end][at], kept[end][at]) for end in range(2)])
        return sum(kept[0], [])

    def edge_len(self, unit):
        if self.spelling.name == "choco":
            return 2 * unit.len
        rank = self.spelling.whole("rank") if self.spelling.name == "powergossip" else 0
        shapes = [(shape[0], math.prod(shape[1:])) for shape in self.layout.shapes if len(shape) > 1]
        return sum(rank * (n + m) for n, m in shapes if rank < min(n, m))

    def memory(self, rank):
        return saved(self.kept[rank], self.arrays, self.layout)
