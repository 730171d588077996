"""Gossip at one end of an edge, written from section 16 of FORMAT.md.

A codec is a generator that yields its payload and is sent that of the other end. It changes the model of the unit, a list, and
what the edge keeps of the unit.
"""

import functools
import math
import operator

from decode import Stream, fl
from factors import completed, outer, product, transposed
from turn import largest

# The edge of all golden payloads.
LOWER_RANK, HIGHER_RANK, WEIGHT = 0, 1, 0.5


def towards(x, theirs, mine):
    return [fl(x + fl(WEIGHT * fl(other - own))) for x, other, own in zip(x, theirs, mine)]


def dpsgd(turn, model, kept):
    theirs = yield "edge-f32", list(model)
    model[:] = towards(model, theirs, model)


def powergossip(turn, model, kept):
    spelling = turn.spelling
    rank, rounds = spelling.whole("rank"), spelling.whole("iterations")
    draws = Stream(turn.stream().u64(LOWER_RANK * 2**32 + HIGHER_RANK), turn.step, turn.unit.id, 0x3FFFFFFF, 1)
    far = fl(WEIGHT * spelling.real("diffusion")) * (1 if turn.rank == 0 else -1)
    blocks, place = [], 0
    for shape, start, end in turn.tensors():
        n, m = (shape[0], (end - start) // shape[0]) if len(shape) > 1 else (0, 0)
        is_matrix = rank < min(n, m)
        blocks.append((start, end, n, m, place, is_matrix))
        place += rank * (n + m) if is_matrix else 0
    for number in range(rounds):
        is_even, payload = (turn.step * rounds + number) % 2 == 0, []
        for start, end, n, m, at, is_matrix in blocks:
            x = model[start:end]
            if not is_matrix:
                payload += x if number == 0 else []
                continue
            p, q = slice(at, at + rank * n), slice(at + rank * n, at + rank * (n + m))
            fixed, height = (q, m) if is_even else (p, n)
            kept[fixed] = completed(kept[fixed], height, lambda i, fixed=fixed: draws.u64(fixed.start + i))
            payload += (product if is_even else transposed)(x, m, kept[fixed])
        theirs, mine = (yield "edge-f32", payload), payload
        for start, end, n, m, at, is_matrix in blocks:
            x = model[start:end]
            if not is_matrix:
                if number == 0:
                    model[start:end] = towards(x, theirs, mine)
                    theirs, mine = theirs[end - start :], mine[end - start :]
                continue
            p, q = slice(at, at + rank * n), slice(at + rank * n, at + rank * (n + m))
            learned = p if is_even else q
            count = learned.stop - learned.start
            high, low = (theirs, mine) if turn.rank == 0 else (mine, theirs)
            kept[learned] = [fl(a - b) for a, b in zip(high[:count], low[:count])]
            theirs, mine = theirs[count:], mine[count:]
            model[start:end] = [fl(a + fl(far * b)) for a, b in zip(x, outer(kept[p], kept[q], n, m))]


def choco(turn, model, kept):
    spelling, length = turn.spelling, turn.unit.len
    has_signs = spelling.is_("values", "sign") and not turn.unit.is_dense
    count = length if turn.unit.is_dense else spelling.count(length)
    believed = [slice(0, length), slice(length, 2 * length)]
    own, other = believed[turn.rank], believed[1 - turn.rank]
    lacking = [fl(x - said) for x, said in zip(model, kept[own])]
    chosen = list(range(length)) if count == length else largest(lacking, count)
    positions = [] if count == length else [float(at) for at in chosen + [length] * (count - len(chosen))]
    values = [lacking[at] for at in chosen]
    if has_signs:
        magnitude = fl(functools.reduce(operator.add, map(abs, values), 0.0) / max(len(values), 1))
        words = [0.0] * -(-count // 24)
        for j, value in enumerate(values):
            words[j // 24] += (math.copysign(1, value) < 0) << j % 24
        values = [magnitude, *words]
    else:
        values += [0.0] * (count - len(values))
    mine = positions + values
    theirs = yield "edge-f32", mine
    for payload, part in ((mine, own), (theirs, other)):
        positions, values = payload[: len(positions)], payload[len(positions) :]
        said = kept[part]
        for j in range(count):
            at = int(positions[j]) if positions else j
            sign = -1 if has_signs and int(values[1 + j // 24]) >> j % 24 & 1 else 1
            if at < length:
                value = fl(said[at] + sign * values[0 if has_signs else j])
                said[at] = max(-(2.0**126), min(value, 2.0**126))
        kept[part] = said
    far = fl(WEIGHT * spelling.real("diffusion"))
    model[:] = [fl(x + fl(far * fl(b - a))) for x, a, b in zip(model, kept[own], kept[other])]
