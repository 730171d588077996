"""What calling from Python costs over the Rust call, on the same buffers.

The Rust call is timed inside the extension, around nothing but the codec crate's own encode. It writes into a buffer that is
kept, as `out=` does; in the rows that say so, into memory that is allocated for the call and freed after it, as a new `bytes`
object is. Calls alternate, each with a memory of its own, so that both see the same machine. Medians, in microseconds; those
of the last two columns are of pairs of calls.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from gradwire import Codec, Memory

SPELLINGS = ("topk:density=0.01", "topk:density=0.01,values=q4", "qsgd:bits=4", "f16", "none")


def measure(spelling: str, elements: int, rounds: int, *, into: bool, fresh: bool) -> tuple[float, float, float, float]:
    """Medians: the call from Python, the Rust call, and of the pairs how much more and how many times as much."""
    codec = Codec(spelling)
    grads = [np.random.default_rng(seed).normal(size=elements).astype(np.float32) for seed in range(2)]
    memories = [None if codec.memory == "none" else Memory(codec, elements) for _ in range(2)]
    encode: Callable[..., object] = codec.encode
    if into:
        encode = partial(codec.encode, out=np.zeros(codec.max_frame_bytes(elements), np.uint8))
    python, rust = [], []

    def from_python(step: int) -> None:
        before = time.perf_counter_ns()
        encode(grads[step % 2], memory=memories[0], step=step)
        python.append(time.perf_counter_ns() - before)

    def from_rust(step: int) -> None:
        rust.append(codec._bench_encode(grads[step % 2], memories[1], step=step, fresh=fresh))

    for step in range(rounds):
        # Who comes second finds the gradient in the caches.
        for call in (from_python, from_rust) if step % 4 < 2 else (from_rust, from_python):
            call(step)
    warm = rounds // 5
    pairs = list(zip(python[warm:], rust[warm:], strict=True))
    more = statistics.median(ours - rusts for ours, rusts in pairs)
    ratio = statistics.median(ours / rusts for ours, rusts in pairs)
    return statistics.median(python[warm:]) / 1e3, statistics.median(rust[warm:]) / 1e3, more / 1e3, ratio


def main() -> None:
    """One line for each codec and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", type=int, default=25_000_000, help="elements of the large gradient")
    parser.add_argument("--rounds", type=int, default=25, help="pairs of calls on the large gradient")
    parser.add_argument("--codecs", nargs="+", default=SPELLINGS, help="spellings")
    arguments = parser.parse_args()
    print("| codec | elements | from Python, µs | Rust call, µs | more, µs | ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for elements, rounds in ((1_000, 5_000), (arguments.large, arguments.rounds)):
        for spelling in arguments.codecs:
            # Dense frames are as large as the gradient: new memory of that size costs as much as the codec, or more.
            ways: tuple[tuple[str, bool, bool], ...] = (("", False, False),)
            if spelling in ("f16", "none") and elements > 1_000:
                ways += ((", both into new memory", False, True), (", `out=`", True, False))
            for way, into, fresh in ways:
                python, rust, more, ratio = measure(spelling, elements, rounds, into=into, fresh=fresh)
                name = f"`{spelling}`{way}"
                print(f"| {name} | {elements:,} | {python:,.1f} | {rust:,.1f} | {more:,.1f} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
