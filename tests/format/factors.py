"""Matrices as products of two factors: `powersgd`, written from section 16.5 of FORMAT.md."""

import functools
import math
import operator

from decode import fl
from turn import plus, tree


def product(x, columns, factor):
    """M·Q."""
    rows, result = len(x) // columns, []
    for j in range(0, len(factor), columns):
        for i in range(rows):
            q = [0.0] * 8
            for t in range(columns):
                q[t % 8] = fl(q[t % 8] + fl(x[i * columns + t] * factor[j + t]))
            result.append(tree(q, lambda a, b: fl(a + b)))
    return result


def transposed(x, columns, factor):
    """Mᵀ·P."""
    rows, result = len(x) // columns, []
    for j in range(0, len(factor), rows):
        for t in range(columns):
            terms = (fl(factor[j + i] * x[i * columns + t]) for i in range(rows))
            result.append(functools.reduce(lambda a, b: fl(a + b), terms, 0.0))
    return result


def outer(p, q, rows, columns):
    """P·Qᵀ."""
    result = []
    for i in range(rows):
        for t in range(columns):
            terms = (fl(p[j * rows + i] * q[j * columns + t]) for j in range(len(p) // rows))
            result.append(functools.reduce(lambda a, b: fl(a + b), terms, 0.0))
    return result


def inner(a, b):
    return functools.reduce(operator.add, (x * y for x, y in zip(a, b)), 0.0)


def orthonormal(factor, height):
    done = []
    for at in range(0, len(factor), height):
        v = factor[at : at + height]
        before = math.sqrt(inner(v, v))
        for a in done + done:
            share = inner(a, v)
            v = [fl(x - share * y) for x, y in zip(v, a)]
        left = math.sqrt(inner(v, v))
        is_kept = before >= 2**-100 and left > before * 2**-18
        done.append([fl(x / left) if is_kept else 0.0 for x in v])
    return sum(done, [])


def completed(factor, height, draw):
    columns, is_drawn = orthonormal(factor, height), False
    for at in range(0, len(columns), height):
        if not any(columns[at : at + height]):
            columns[at : at + height] = [(draw(i) >> 40) / 2**23 - 1 for i in range(at, at + height)]
            is_drawn = True
    return orthonormal(columns, height) if is_drawn else columns


def rank_of(spelling, shape):
    """The rank of a tensor that `powersgd` compresses, or 0."""
    if len(shape) < 2:
        return 0
    n, m = shape[0], math.prod(shape[1:])
    rank = min(spelling.whole("rank"), n, m)
    return rank if rank * (n + m) * spelling.whole("min_rate") < n * m else 0


def powersgd(turn, grad):
    spelling, p = turn.spelling, plus(turn.residual(), grad)
    first, factors, matrices, wholes = [], [], [], []
    place = kept = sum(
        rank_of(spelling, shape) * math.prod(shape[1:]) for shape in turn.layout.shapes[: tensors_before(turn)]
    )
    for shape, start, end in turn.tensors():
        rank = rank_of(spelling, shape) if turn.step >= spelling.whole("start") else 0
        if not rank:
            wholes.append((start, end, len(first)))
            first += p[start:end]
            continue
        n, m = shape[0], (end - start) // shape[0]
        q = turn.kept["factors"][place : place + rank * m]
        q = completed(q, m, lambda i, start=start: turn.stream().u64(start + i))
        matrices.append((start, end, n, m, rank, len(first)))
        first += product(p[start:end], m, q)
        place += rank * m
    mean, rest = [0.0] * turn.unit.len, [0.0] * turn.unit.len
    first = [fl(value / turn.workers) for value in (yield "sum-f32", first)]
    for start, end, at in wholes:
        mean[start:end] = first[at : at + end - start]
    if not matrices:
        turn.keep(rest)
        return mean
    columns = [orthonormal(first[at : at + rank * n], n) for _, _, n, _, rank, at in matrices]
    for (start, end, _, m, _, _), basis in zip(matrices, columns):
        factors += transposed(p[start:end], m, basis)
    factors = [fl(value / turn.workers) for value in (yield "sum-f32", factors)]
    turn.kept["factors"][kept:place] = factors
    for (start, end, n, m, rank, _), basis in zip(matrices, columns):
        q, factors = factors[: rank * m], factors[rank * m :]
        mean[start:end] = outer(basis, q, n, m)
        rest[start:end] = [fl(value - sent) for value, sent in zip(p[start:end], mean[start:end])]
    turn.keep(rest)
    return mean


def tensors_before(turn):
    origin = 0
    for number, shape in enumerate(turn.layout.shapes):
        if origin >= turn.unit.start:
            return number
        origin += math.prod(shape)
    return len(turn.layout.shapes)
