#!/usr/bin/env python3
"""How good the magnitudes of `q4` and `q8` are at the bytes that they take.

usage: codebooks.py GRADIENTS     a folder with MODEL/*.safetensors; needs numpy

For the largest 1 % of each gradient it fits magnitudes as core/src/coding/values/codebook/fit.rs does (Lloyd from magnitudes
spaced evenly in the logarithm), the magnitudes of least squared error, and the least error that it finds among magnitudes
whose numbers have no more entropy than those of today: Lloyd with a price for each bit, from several starts and at several
prices. Entropy is what rANS takes of a number, in bits; the sign is one more in each case.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np

BINS, ROUNDS = 512, 24
# Densities of a start: as this power of the density of values. 1/3 has the least error, 0 the least entropy.
POWERS = (0, 0.1, 0.15, 0.2, 0.25, 0.3, 1 / 3)
# Squared error that a bit may cost, over the mean squared error. 1.4 is right where there are many magnitudes.
PRICES = (0, 0.2, 0.5, 0.8, 1.1, 1.4, 2.0, 2.8)


def selected(path):
    """The magnitudes of the largest 1 %."""
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    assert all(tensor["dtype"] == "F32" for name, tensor in json.loads(data[8:start]).items() if name != "__metadata__")
    values = np.abs(np.frombuffer(data[start:], dtype="<f4"))
    return np.sort(values)[-max(1, round(0.01 * len(values))) :]


def points(values):
    """Counts and means of the bins of the fit."""
    bits = values.view(np.uint32)
    shift = next(shift for shift in range(23) if (int(bits[-1]) >> shift) - (int(bits[0]) >> shift) < BINS)
    _, bins, counts = np.unique(bits >> shift, return_inverse=True, return_counts=True)
    return counts, np.bincount(bins, weights=values) / counts


def even_start(values, size):
    """Spaced evenly in the logarithm, as the fit begins today."""
    low, high = map(int, values.view(np.uint32)[[0, -1]])
    return np.array([low + (high - low) * (2 * i + 1) // (2 * size) for i in range(size)], dtype=np.uint32).view(np.float32)


def dense_start(counts, means, size, power):
    """As dense as a power of the density of values."""
    widths = np.concatenate([means[1:], means[-1:]]) - np.concatenate([means[:1], means[:-1]])
    shares = np.cumsum(counts**power * widths ** (1 - power))
    return np.interp((np.arange(size) + 0.5) / size * shares[-1], shares, means)


def cells(book, values, surcharge):
    """The magnitude of each value: the nearest, but for what its bits cost."""
    gaps = np.maximum(np.diff(book), 1e-300)
    borders = np.clip((book[1:] + book[:-1]) / 2 + np.diff(surcharge) / (2 * gaps), book[:-1], book[1:])
    return np.searchsorted(np.maximum.accumulate(borders), values, side="right")


def lloyd(counts, means, book, price, rounds=ROUNDS):
    """Magnitudes, and the surcharge of each."""
    book, surcharge = book.astype(float), np.zeros(len(book))
    for _ in range(rounds):
        cell = cells(book, means, surcharge)
        members = np.bincount(cell, weights=counts, minlength=len(book))
        sums = np.bincount(cell, weights=counts * means, minlength=len(book))
        book = np.maximum.accumulate(np.where(members > 0, sums / np.maximum(members, 1), book))
        error = (counts * (means - book[cell]) ** 2).sum() / counts.sum()
        surcharge = -price * error * np.log2(np.maximum(members, 1e-3) / counts.sum())
    return book, surcharge


def judged(values, fitted):
    """Squared error as a share of the squares, and entropy of the numbers."""
    book, surcharge = fitted
    cell = cells(book, values, surcharge)
    shares = np.bincount(cell) / len(values)
    shares = shares[shares > 0]
    return ((values - book[cell]) ** 2).sum() / (values.astype(float) ** 2).sum(), -(shares * np.log2(shares)).sum()


def main():
    print("| gradient | values | error over the least | bits more for the least | least error at no more bits, over today's |")
    print("| --- | --- | --- | --- | --- |")
    best = []
    for name, size in (("q4", 8), ("q8", 128)):
        rows, rules = [], []
        for path in sorted(Path(sys.argv[1]).glob("*/*.safetensors")):
            values = selected(path)
            # As in tests/values.rs.
            if len(values) < 2500:
                continue
            counts, means = points(values)
            starts = [even_start(values, size), *(dense_start(counts, means, size, power) for power in POWERS)]
            error, bits = judged(values, lloyd(counts, means, starts[0], 0))
            least, its_bits = judged(values, lloyd(counts, means, starts[-1], 0, rounds=300))
            tried = np.array([[judged(values, lloyd(counts, means, start, price)) for price in PRICES] for start in starts])
            rules.append(np.stack([tried[..., 0] / error, tried[..., 1] - bits]))
            same = tried[..., 0][tried[..., 1] <= bits].min() / error
            rows.append((error / least, its_bits - bits, same))
            print(f"| {path.parent.name}/{path.stem} | `{name}` | {error / least:.2f} | {its_bits - bits:+.2f} | {same:.2f} |")
        means = np.mean(rows, axis=0)
        print(f"| mean of {len(rows)} | `{name}` | {means[0]:.2f} | {means[1]:+.2f} | {means[2]:.2f} |")
        errors, bits = np.moveaxis(rules, 1, 0)
        start, price = np.unravel_index(np.where(bits.mean(0) <= 0, errors.mean(0), np.inf).argmin(), errors.shape[1:])
        errors, bits = errors[:, start, price], bits[:, start, price]
        best.append(
            f"{name}: one rule for all, start {['even', *(f'{power:.2f}' for power in POWERS)][start]}, price {PRICES[price]}: error over today's {errors.mean():.2f}"
            f" ({errors.min():.2f} to {errors.max():.2f}), bits {bits.mean():+.2f} ({bits.min():+.2f} to {bits.max():+.2f})"
        )
    print("", *best, sep="\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main()
