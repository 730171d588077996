"""The golden frames of the repository: how each was made, and what it decodes to. See tests/golden/README.md."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
FOLDER = Path(__file__).resolve().parents[3] / "tests" / "golden"
GAMMA = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1
COLUMNS = 48


def words(seed: int, count: int) -> NDArray[np.uint64]:
    """The first words of SplitMix64."""
    with np.errstate(over="ignore"):
        state = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GAMMA)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return state ^ (state >> np.uint64(31))


def normal_of(draws: NDArray[np.uint64]) -> F32:
    """One value for each row of twelve words."""
    total = ((draws & np.uint64(0xFFFF)).astype(np.int64) - (1 << 15)).sum(axis=-1)
    return (total.astype(np.float64) * 2.0**-16).astype(np.float32)


def normal(seed: int, n: int) -> F32:
    return normal_of(words(seed, 12 * n).reshape(n, 12))


def heavy(seed: int, n: int) -> F32:
    draws = words(seed, 13 * n).reshape(n, 13)
    zeros = np.array([(int(w) & -int(w)).bit_length() - 1 if w else 64 for w in draws[:, 12]])
    return normal_of(draws[:, :12]) * np.exp2(np.minimum(zeros, 31) - 20.0).astype(np.float32)


def denormal(seed: int, n: int) -> F32:
    draws = words(seed, 3 * n).reshape(n, 3)
    magnitude = (draws[:, 0] & np.uint64(0x007FFFFF)) >> (draws[:, 1] % np.uint64(24))
    return (magnitude | (draws[:, 2] & np.uint64(1)) << np.uint64(31)).astype(np.uint32).view(np.float32)


def wide(seed: int, n: int) -> F32:
    draws = words(seed, 2 * n).reshape(n, 2)
    exponent = draws[:, 0] % np.uint64(221)
    return (exponent << np.uint64(23) | draws[:, 1] & np.uint64(0x807FFFFF)).astype(np.uint32).view(np.float32)


def sparse(seed: int, n: int) -> F32:
    draws, values, at = words(seed, 13 * n), np.zeros(n, np.float32), 0
    for i in range(n):
        at += 1
        if draws[at - 1] % np.uint64(64) == 0:
            values[i] = normal_of(draws[at : at + 12])
            at += 12
    return values


def rows(seed: int, n: int) -> F32:
    draws = iter(words(seed, 4 * n + 1000).tolist())

    def scale(most: int) -> int:
        return next(draws) % most - next(draws) % most

    columns = np.array([scale(5) for _ in range(COLUMNS)])
    values = np.zeros(0, np.float32)
    while len(values) < n:
        row_scale, is_copy = scale(5), scale(4) > 1
        if is_copy and len(values) >= COLUMNS:
            row = values[-COLUMNS:]
        else:
            row = normal(seed ^ len(values), COLUMNS) * np.exp2(row_scale + columns).astype(np.float32)
        values = np.concatenate([values, row])
    return values[:n]


def floats_of(text: str) -> F32:
    bits = [
        struct.unpack("<f", struct.pack("<I", int(word, 16)))[0] if word.startswith("0x") else np.float32(word)
        for word in text.split(",")
        if word
    ]
    return np.array(bits, np.float32)


def values_of(text: str, n: int) -> F32:
    name, _, argument = text.partition(":")
    if name == "zero":
        return np.zeros(n, np.float32)
    if name == "negzero":
        return np.full(n, -0.0, np.float32)
    if name == "list":
        return floats_of(argument)
    seed = int(argument)
    if name == "ties":
        choice = np.array([2, -2, 1, -1, 0.5, -0.5, 0.0, -0.0], np.float32)
        return choice[(words(seed, n) % np.uint64(8)).astype(np.intp)]
    if name == "uneven":
        loudness = np.array([1.0, 0.125, 0.015625, 0.0], np.float32)
        return normal(seed, n) * loudness[np.arange(n) // 500 % 4]
    makers = {
        "normal": normal,
        "heavy": heavy,
        "denormal": denormal,
        "range": wide,
        "sparse": sparse,
        "rows": rows,
    }
    return makers[name](seed, n)


def bf16_bits(values: F32) -> NDArray[np.uint16]:
    """Rounded to nearest, ties to even; without NaN."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def digest(values: F32) -> str:
    if len(values) <= 16:
        return "[" + ",".join(f"{bits:08x}" for bits in values.view(np.uint32)) + "]"
    state = 0xCBF29CE484222325
    for byte in values.astype("<f4").tobytes():
        state = (state ^ byte) * 0x100000001B3 & MASK
    return f"fnv:{state:016x}"


def unit_of(text: str) -> tuple[int, int, int, bool]:
    parts = text.split(":")
    return int(parts[0]), int(parts[1]), int(parts[2]), parts[3:] == ["dense"]


@dataclass
class Golden:
    """One line of the manifest."""

    fields: dict[str, str]

    @property
    def name(self) -> str:
        return self.fields["file"]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes = [shape for shape in self.fields["layout"].split("+") if shape]
        return {
            f"t{i}": () if shape == "-" else tuple(int(size) for size in shape.split("x")) for i, shape in enumerate(shapes)
        }

    @property
    def elements(self) -> int:
        return sum(int(np.prod(shape, dtype=np.int64)) for shape in self.shapes.values())

    @property
    def frame(self) -> bytes:
        return (FOLDER / f"{self.name}.bin").read_bytes()

    @property
    def units(self) -> list[tuple[int, int, int, bool]] | None:
        units = self.fields.get("units")
        return [unit_of(unit) for unit in units.split(";")] if units else None

    @property
    def gradient(self) -> tuple[NDArray[np.generic], str | None]:
        """The buffer, and the dtype that has to be named with it."""
        values = values_of(self.fields["input"], self.elements)
        if self.fields["format"] == "f16":
            return values.astype(np.float16), None
        if self.fields["format"] == "bf16":
            return bf16_bits(values), "bf16"
        return values, None

    def before(self, part: str) -> F32:
        return values_of(self.fields[part], self.elements)

    @property
    def states(self) -> list[list[int]]:
        numbers = [int(word, 16) for word in self.fields.get("states", "").split(",") if word]
        return [numbers[i : i + 4] for i in range(0, len(numbers), 4)]


def read() -> Iterator[Golden]:
    for line in (FOLDER / "manifest.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            yield Golden(dict(word.split("=", 1) for word in line.split()))


ALL = list(read())
