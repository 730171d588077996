"""Codecs written with numpy, for tests. Importing this registers them in the process, as a script would."""

from __future__ import annotations

import numpy as np

import gradwire


class Blocks:
    """The mean magnitude of each block, and a bit for each sign."""

    def __init__(self, block: str) -> None:
        self.block = int(block)
        if self.block < 1:
            raise ValueError(f"block={block}: expected a whole number above 0")

    def encode(self, values: np.ndarray, source: gradwire.UnitSource) -> bytes:
        starts = np.arange(0, len(values), self.block)
        sizes = np.diff(np.append(starts, len(values)))
        scales = (np.add.reduceat(np.abs(values), starts) / sizes).astype("<f4") if len(values) else np.zeros(0, "<f4")
        return self.block.to_bytes(4, "little") + scales.tobytes() + np.packbits(values < 0).tobytes()

    def decode(self, body: bytes, length: int) -> np.ndarray:
        block = int.from_bytes(body[:4], "little")
        count = -(-length // block)
        scales = np.repeat(np.frombuffer(body, "<f4", count, 4), block)[:length]
        signs = np.unpackbits(np.frombuffer(body, np.uint8, offset=4 + 4 * count), count=length)
        return np.where(signs == 1, -scales, scales)


class First:
    """The first coordinates, as many as the density says; raises if one is above `most`."""

    def __init__(self, most: str) -> None:
        self.most = float(most)

    def encode(self, values: np.ndarray, source: gradwire.UnitSource) -> tuple[bytes, int]:
        assert source.density is not None
        count = min(len(values), max(1, round(source.density * len(values))))
        sent = values[:count]
        above = np.flatnonzero(np.abs(sent) > self.most)
        if len(above):
            error = ValueError(f"more than {self.most}")
            error.index = int(above[0])  # type: ignore[attr-defined]
            raise error
        return sent.tobytes(), count

    def decode(self, body: bytes, length: int) -> tuple[np.ndarray, np.ndarray]:
        values = np.frombuffer(body, np.float32)
        return np.arange(len(values)), values


class Wrong:
    """A body of one byte; what goes wrong, as its key says."""

    def __init__(self, how: str) -> None:
        self.how = how

    def encode(self, values: np.ndarray, source: gradwire.UnitSource) -> object:
        wrong: dict[str, object] = {
            "type": "text",
            "long": bytes(10_000),
            "count": (b"1", len(values) + 1),
            "negative": (b"1", -1),
            "seed": np.array([source.seed, source.shared_seed], np.uint64).tobytes(),
        }
        return wrong.get(self.how, b"1")

    def decode(self, body: bytes, length: int) -> object:
        if self.how == "raises":
            raise KeyError("lost")
        wrong: dict[str, object] = {
            "shorter": np.zeros(length - 1),
            "text": "text",
            "infinite": np.full(length, np.inf),
            "descending": (np.arange(length)[::-1], np.zeros(length)),
            "outside": (np.arange(length) - 1, np.zeros(length)),
        }
        return wrong.get(self.how, np.zeros(length))


gradwire.register(
    "blocks", Blocks, number=0xF2, keys="block=16", summary="signs and scales", examples=["x:blocks", "x:blocks:block=3"]
)
gradwire.register("first", First, number=0xF3, law="exact", keys="most=inf", density=0.25)
gradwire.register("wrong", Wrong, number=0xF4, law="none", keys="how=right")
