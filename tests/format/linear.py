"""Linear codecs, written from section 16 of FORMAT.md, and from WRITER.md where it leads there.

A codec is a generator at one worker, for one unit and step: it yields a reduction and a payload, is sent the reduced payload,
and returns the mean.
"""

import math

from decode import absorb, drawn_alone, drawn_tile, fl
from turn import largest, mix, plus, scaled, strided


def whole(turn, p):
    sums = yield "sum-f32", p
    return [fl(value / turn.workers) for value in sums]


def none(turn, grad):
    return (yield from whole(turn, grad))


def dense(turn, grad):
    mean = yield from whole(turn, plus(turn.residual(), grad))
    turn.keep([0.0] * turn.unit.len)
    return mean


def randomk(turn, grad):
    spelling, length = turn.spelling, turn.unit.len
    k = spelling.count(length)
    columns = (length, length) if spelling.is_("block", "run") else None
    drawn = drawn_tile(turn.stream(), k, length, *columns) if columns else drawn_alone(turn.stream(), k, length)
    positions, p = sorted(drawn), plus(turn.residual(), grad)
    factor = fl(length / k) if spelling.is_("estimator", "unbiased") else 1.0
    sums = yield "sum-f32", [fl(p[at] * factor) for at in positions]
    turn.keep([0.0 if at in positions else value for at, value in enumerate(p)])
    mean = [0.0] * length
    for at, value in zip(positions, sums):
        mean[at] = fl(value / turn.workers)
    return mean


# Section 16.1


def order(stream, length):
    h = max(((length - 1).bit_length() + 1) // 2, 4)
    keys = [stream.u64(d) for d in range(6)]

    def at(i):
        while True:
            left, right = i >> h, i % 2**h
            for key in keys:
                left, right = right, left ^ (absorb(key, right) >> (64 - h))
            i = left << h | right
            if i < length:
                return i

    return at


def cutoff(spelling, values):
    if "sigmas" not in spelling.keys:
        return math.inf
    mean, square = strided(values) / len(values), strided([value * value for value in values]) / len(values)
    variance = square - mean * mean
    return math.inf if variance < mean * mean else fl(spelling.real("sigmas") * math.sqrt(variance))


def divided(a, b):
    """a / b as floats do it, for a not below 0."""
    return fl(a / b) if b else (math.inf if a else math.nan)


def draw_u16(stream, i):
    return stream.block(i // 8)[i % 8 // 2] >> (16 * (i % 2)) & 0xFFFF


def level(value, largest_level, spanning, norm, draw):
    a = min(fl(abs(value) * fl(spanning / norm)), largest_level)
    q = round(a * 65536)
    if draw is None:
        found = 0 if fl(abs(value) + abs(value)) < fl(norm / spanning) else q + 32768 >> 16
    else:
        found = q + draw >> 16
    return -found if value < 0 else found


def sent_by_maxnorm(turn):
    """The coordinates that are sent, ascending."""
    length = turn.unit.len
    if "density" not in turn.spelling.keys:
        return range(length)
    k = turn.spelling.count(length)
    blocks = -(-length // k)
    first, at = min(turn.step % blocks * k, length - k), order(turn.stream(turn.step // blocks), length)
    return sorted(at(place) for place in range(first, first + k))


def packed(numbers, width, fields):
    """Words of so many fields of `width` bits, the first in the lowest bits."""
    words = [0] * -(-len(numbers) // fields)
    for j, number in enumerate(numbers):
        words[j // fields] |= number << j % fields * width
    return words


def field(words, j, width, fields):
    return (words[j // fields] >> j % fields * width) % 2**width


def levels_of(turn, values, s, spanning, r):
    spelling = turn.spelling
    is_nearest = "density" in spelling.keys or spelling.is_("rounding", "nearest")
    rounding = turn.stream(source=turn.rank, purpose=0)
    draws = (None if is_nearest else draw_u16(rounding, j) for j in range(len(values)))
    return [level(value, s, steps, r, draw) for value, steps, draw in zip(values, spanning, draws)]


def maxnorm(turn, grad):
    spelling, workers, sent = turn.spelling, turn.workers, sent_by_maxnorm(turn)
    bits, _, fine = spelling.keys.get("bits", "4").partition("+")
    s = spelling.whole("levels") if "levels" in spelling.keys else 2 ** (int(bits) - 1) - 1
    p = plus(turn.residual(), grad)
    values = [p[at] for at in sent]
    (r,) = yield "max-f32", [min(max(map(abs, values)), cutoff(spelling, values))]
    spanning = [s] * len(values)
    if fine:
        finer = 2 ** (int(fine) - 1) - 1
        bits = yield "and-u32", packed([fl(abs(value) * divided(finer, r)) <= s for value in values], 1, 32)
        spanning = [finer if field(bits, j, 1, 32) else s for j in range(len(values))]
    levels = levels_of(turn, values, s, spanning, r) if r >= 2**-100 else [0] * len(values)
    width = (2 * workers * s).bit_length()
    words = yield "sum-i32", packed([one + s for one in levels], width, 31 // width)
    mean, rest = [0.0] * turn.unit.len, list(p)
    for j, at in enumerate(sent):
        scale = fl(r / spanning[j]) if r >= 2**-100 else 0.0
        mean[at] = fl(fl(scale * (field(words, j, width, 31 // width) - workers * s)) / workers)
        rest[at] = fl(p[at] - fl(scale * levels[j]))
    turn.keep(rest)
    return mean


# Section 16.2


class Table:
    def __init__(self, rows, columns, stream):
        self.rows, self.columns, self.stream = rows, columns, stream
        self.cells = rows * columns

    def places(self, i):
        """Cell and sign of a coordinate in each row."""
        for row in range(self.rows):
            h = absorb(self.stream.u64(row), i // 16)
            cell = ((h >> 32) * (self.columns // 16) >> 32) * 16 + ((i % 16) ^ (h % 16))
            yield row * self.columns + cell, -1 if h >> (4 + i % 16) & 1 else 1

    def sketch(self, p):
        cells = [0.0] * self.cells
        for i, value in enumerate(p):
            for cell, sign in self.places(i):
                cells[cell] = fl(cells[cell] + sign * value)
        return cells

    def estimates(self, cells, length):
        return [sorted(sign * cells[cell] for cell, sign in self.places(i))[(self.rows - 1) // 2] for i in range(length)]


# Section 16.3


def bid(stream, rank):
    draw = stream.u64(0)
    x = (rank * (draw % 2**32 | 1) + (draw >> 32)) % 2**24
    return (x ^ x >> 12) * 10368889 % 2**24


def shared_sums(turn, p):
    """The coordinates that are sent, and their sums."""
    spelling, length = turn.spelling, turn.unit.len
    k, rows = spelling.count(length), spelling.whole("rows")
    m = min(k * spelling.whole("candidates"), length)
    table = Table(rows, max(-(-m * spelling.whole("columns") // 16), 1) * 16, turn.stream())
    if spelling.is_("by", "sketch") and table.cells + m < length:
        cells = yield "sum-f32", table.sketch(p)
        found = largest(table.estimates(cells, length), m)
        sums = yield "sum-f32", [p[at] for at in found]
        return [(found[j], sums[j]) for j in largest(sums, k)]
    if spelling.is_("by", "leader") and 2 * k + 1 < length:
        own = bid(turn.stream(), turn.rank)
        (best,) = yield "max-f32", [float(own)]
        chosen = [at + 1 for at in largest(p, k)] if own == best else []
        found = []
        for at in (yield "sum-i32", chosen + [0] * (k - len(chosen))):
            if at > (found[-1] + 1 if found else 0) and at <= length:
                found.append(at - 1)
        return list(zip(found, (yield "sum-f32", [p[at] for at in found])))
    return list(enumerate((yield "sum-f32", p)))


def sharedk(turn, grad):
    spelling, is_ef21 = turn.spelling, turn.spelling.is_("feedback", "ef21")
    if is_ef21:
        b, h = spelling.real("momentum"), turn.get("estimate")
        v = mix(b, turn.get("momentum") if b > 0 else grad, grad)
        p = [fl(v - h) for v, h in zip(v, h)]
    else:
        p = plus(turn.residual(), grad)
    sums = yield from shared_sums(turn, p)
    mean, rest = [0.0] * turn.unit.len, list(p)
    for at, value in sums:
        mean[at], rest[at] = fl(value / turn.workers), 0.0
    if not is_ef21:
        a = spelling.real("lowpass")
        turn.keep(rest if a == 1 else plus(scaled(fl(1 - a), turn.residual()), scaled(a, rest)))
        return mean
    for at, _ in sums:
        h[at] = fl(h[at] + p[at])
    turn.put("estimate", h)
    if b > 0:
        turn.put("momentum", v)
    turn.put("mean of estimates", plus(turn.get("mean of estimates"), mean))
    return turn.get("mean of estimates")


# Section 16.4


def sketch(turn, grad):
    spelling, unit, rows = turn.spelling, turn.unit, turn.spelling.whole("rows")
    columns = max(spelling.cells(unit.len) // (16 * rows), 1) * 16
    if spelling.is_("moments", "amsgrad"):
        return (yield from amsgrad(turn, grad, columns))
    if rows * columns >= unit.len:
        return (yield from dense(turn, grad))
    k, mean = spelling.count(unit.len), [0.0] * unit.len
    if spelling.is_("error", "workers"):
        table, p = Table(rows, columns, turn.stream()), plus(turn.residual(), grad)
        estimates = table.estimates((yield "sum-f32", table.sketch(p)), unit.len)
        for at in largest(estimates, k):
            mean[at] = fl(estimates[at] / turn.workers)
        turn.keep([fl(value - sent) for value, sent in zip(p, mean)])
        return mean
    table, b = Table(rows, columns, turn.stream(0)), spelling.real("momentum")
    u = [fl(value / turn.workers) for value in (yield "sum-f32", table.sketch(grad))]
    first = spelling.cells(unit.start) + 16 * rows * unit.id
    kept = slice(first, first + table.cells)
    if b > 0:
        u = plus(scaled(b, turn.kept["sketched momentum"][kept]), u)
    e = plus(turn.kept["sketched error"][kept], u)
    estimates = table.estimates(e, unit.len)
    for at in largest(estimates, k):
        mean[at] = estimates[at]
        for cell, _ in table.places(at):
            e[cell] = u[cell] = 0.0
    turn.kept["sketched error"][kept] = e
    if b > 0:
        turn.kept["sketched momentum"][kept] = u
    return mean


def amsgrad(turn, grad, columns):
    spelling, length = turn.spelling, turn.unit.len
    b, b2, floor = (spelling.real(key) for key in ("momentum", "squares", "floor"))
    table = Table(spelling.whole("rows"), columns, turn.stream())
    m = mix(b, turn.get("mean of gradients") if b > 0 else grad, grad)
    p, is_whole = plus(turn.residual(), m), table.cells >= length
    sums = yield "sum-f32", p if is_whole else table.sketch(p)
    said = [fl(value / turn.workers) for value in (sums if is_whole else table.estimates(sums, length))]
    v, w = turn.get("mean of squares"), turn.get("largest mean of squares")

    def square(i, h):
        return fl(fl(b2 * (v[i] if w[i] > 0 else floor)) + fl(fl(1 - b2) * fl(h * h)))

    def peak(i, h):
        return max(w[i], floor, square(i, h))

    def quotient(i, h):
        return fl(h / fl(math.sqrt(peak(i, h))))

    chosen = largest([quotient(i, said[i]) for i in range(length)], length if is_whole else spelling.count(length))
    h = [said[i] if i in chosen else 0.0 for i in range(length)]
    if b > 0:
        turn.put("mean of gradients", m)
    turn.put("mean of squares", [square(i, h[i]) for i in range(length)])
    turn.put("largest mean of squares", [peak(i, h[i]) for i in range(length)])
    turn.keep([0.0 if is_whole and h[i] != 0 else fl(p[i] - h[i]) for i in range(length)])
    return [quotient(i, h[i]) if h[i] != 0 else 0.0 for i in range(length)]
