"""What codecs with rounds share: a spelling, units, and one turn of a worker."""

import functools
import math
import operator

from decode import Stream, fl

# Of the keys that a spelling may leave out, those that are asked for: WRITER.md.
DEFAULTS = {
    "sharedk": {"by": "sketch", "rows": "1", "columns": "1", "candidates": "8", "lowpass": "1", "momentum": "0.9"},
    "sketch": {"cells": "0.2", "rows": "5", "momentum": "0.9", "squares": "0.999", "floor": "0.001"},
    "powersgd": {"rank": "1", "min_rate": "2", "start": "0"},
    "powergossip": {"rank": "1", "iterations": "1", "diffusion": "1"},
    "choco": {"diffusion": "0.05", "unit": "tensor"},
}


class Spelling:
    def __init__(self, text):
        self.name, _, pairs = text.partition(":")
        self.keys = dict(DEFAULTS.get(self.name, {}))
        for pair in filter(None, pairs.split(",")):
            key, _, value = pair.partition("=")
            self.keys[key] = value or "true"

    def is_(self, key, value):
        return self.keys.get(key) == value

    def real(self, key):
        return fl(float(self.keys[key]))

    def whole(self, key):
        return int(self.keys[key])

    def billionths(self, key="density"):
        return math.floor(float(self.keys.get(key, "0.01")) * 10**9 + 0.5)

    def count(self, length):
        return min(max((length * self.billionths() + 5 * 10**8) // 10**9, 1), length)

    def cells(self, length):
        return -(-length * self.billionths("cells") // 10**9)


class Unit:
    def __init__(self, number, start, length, is_dense=False):
        self.id, self.start, self.len, self.is_dense = number, start, length, is_dense


def units_of(spelling, layout):
    if not spelling.is_("unit", "tensor"):
        return [Unit(0, 0, layout.len)]
    units, start = [], 0
    for shape in layout.shapes:
        is_dense = spelling.is_("dense_1d", "true") and len(shape) < 2
        units.append(Unit(len(units), start, math.prod(shape), is_dense))
        start += math.prod(shape)
    return units


class Turn:
    """One unit in one step at one worker. What the worker keeps is lists for the whole layout."""

    def __init__(self, run, step, unit, rank):
        self.spelling, self.layout, self.workers, self.seed = run.spelling, run.layout, run.workers, run.seed
        self.step, self.unit, self.rank, self.kept = step, unit, rank, run.kept[rank]

    def stream(self, step=None, source=0x3FFFFFFF, purpose=1):
        return Stream(self.seed, self.step if step is None else step, self.unit.id, source, purpose)

    def get(self, name):
        return self.kept[name][self.unit.start : self.unit.start + self.unit.len]

    def put(self, name, values):
        self.kept[name][self.unit.start : self.unit.start + self.unit.len] = values

    def residual(self):
        return self.get("residual") if "residual" in self.kept else [0.0] * self.unit.len

    def keep(self, values):
        if "residual" in self.kept:
            self.put("residual", values)

    def tensors(self):
        """Shape, and where in the unit, of each tensor of which the unit has a part; the shape is empty if it is cut."""
        origin = 0
        for shape in self.layout.shapes:
            end = origin + math.prod(shape)
            first, last = max(origin, self.unit.start), min(end, self.unit.start + self.unit.len)
            if first < last:
                yield shape if (first, last) == (origin, end) else [], first - self.unit.start, last - self.unit.start
            origin = end


def plus(a, b):
    return [fl(a + b) for a, b in zip(a, b)]


def scaled(factor, values):
    return [fl(factor * value) for value in values]


def mix(b, kept, values):
    """fl(fl(b · kept) + fl(fl(1 − b) · value)), or the values alone if b is 0."""
    return plus(scaled(b, kept), scaled(fl(1 - b), values)) if b > 0 else list(values)


def largest(values, count):
    found = sorted((at for at, value in enumerate(values) if value != 0), key=lambda at: (-abs(values[at]), at))
    return sorted(found[:count])


def strided(values):
    q = [functools.reduce(operator.add, values[j::8], 0.0) for j in range(8)]
    return tree(q, lambda a, b: a + b)


def tree(q, add):
    return add(add(add(q[0], q[4]), add(q[2], q[6])), add(add(q[1], q[5]), add(q[3], q[7])))
