"""The GIL is let go of, and objects that threads share stay whole."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import numpy as np
import pytest

from gradwire import Codec, Frame, Layout, Memory, add, decode, divide

ELEMENTS = 4_000_000


def gradient() -> np.ndarray:
    return np.random.default_rng(1).normal(size=ELEMENTS).astype(np.float32)


class Other:
    """A thread that counts whenever it gets the GIL, and gives it back at once."""

    def __enter__(self) -> Self:
        self.count, self.ends = 0, False
        # So long that nobody takes the GIL from a thread: it changes hands only where it is let go of.
        self.interval = sys.getswitchinterval()
        sys.setswitchinterval(1000)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def run(self) -> None:
        while not self.ends:
            self.count += 1
            time.sleep(0)

    def __exit__(self, *_: object) -> None:
        self.ends = True
        sys.setswitchinterval(self.interval)
        self.thread.join()

    def runs_during(self, call: Callable[[], object]) -> bool:
        before = self.count
        call()
        return self.count != before


def calls(elements: int) -> dict[str, Callable[[], Callable[[], object]]]:
    """What is to let go of the GIL for many elements: each makes what a call needs, and returns the call."""
    grad = np.random.default_rng(1).normal(size=elements).astype(np.float32)
    sparse, dense, linear = Codec("topk:density=0.3"), Codec("none"), Codec("powersgd:rank=2")
    kept = Memory(sparse, elements)
    frame, saved, total = dense.encode(grad), kept.save(), np.zeros(elements, np.float32)
    parsed = Frame(frame, elements)
    out = np.zeros(dense.max_frame_bytes(elements), np.uint8)
    rows = Layout({"w": (elements // 20, 20)})

    def begin() -> Callable[[], object]:
        memory = Memory(linear, rows)
        return lambda: linear.begin(grad, memory=memory)

    def advance() -> Callable[[], object]:
        [unit] = linear.begin(grad, memory=Memory(linear, rows))
        return unit.advance

    ready: dict[str, Callable[[], object]] = {
        "encode": lambda: sparse.encode(grad, memory=kept),
        "encode, out=": lambda: dense.encode(grad, out=out),
        "packets": lambda: sparse.packets(grad, memory=kept, max_packet_bytes=60_000),
        "Frame": lambda: Frame(frame, elements),
        "add": lambda: add(parsed, total),
        "to_numpy": lambda: parsed.to_numpy(total),
        "decode": lambda: decode(frame, elements, out=total),
        "divide": lambda: divide(total, 3),
        "norm": kept.norm,
        "save": kept.save,
        "load": lambda: kept.load(saved),
    }
    return {**{name: (lambda call=call: call) for name, call in ready.items()}, "begin": begin, "advance": advance}


NAMES = list(calls(20))


@pytest.fixture(scope="module")
def large() -> dict[str, Callable[[], Callable[[], object]]]:
    return calls(2_000_000)


@pytest.mark.parametrize("what", NAMES)
def test_the_gil_is_let_go_of_for_much_work(what: str, large: dict[str, Callable[[], Callable[[], object]]]) -> None:
    large[what]()()  # what is imported or allocated once
    # Where it is not let go of, no try of any number sees the other thread; where it is, that thread needs a core in time.
    for _ in range(50):
        call = large[what]()
        with Other() as other:
            if any(other.runs_during(call) for _ in range(1 if what == "advance" else 3)):
                return
    pytest.fail("the other thread did not run")


@pytest.mark.parametrize("what", NAMES)
def test_the_gil_is_kept_for_little_work(what: str) -> None:
    make = calls(400)[what]
    make()()
    call = make()
    with Other() as other:
        assert not any(other.runs_during(call) for _ in range(1 if what == "advance" else 100))


def test_threads_may_share_a_codec_and_a_frame() -> None:
    codec = Codec("topk:density=0.01,memory=none")
    grads = [np.random.default_rng(i).normal(size=100_000).astype(np.float32) for i in range(8)]
    expected = [codec.encode(grad) for grad in grads]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(codec.encode, grads)) == expected
        frame = Frame(expected[0], 100_000)
        for values in pool.map(lambda _: frame.to_numpy(), range(8)):
            np.testing.assert_array_equal(values, decode(expected[0], 100_000))


def test_a_memory_that_is_in_use_says_so() -> None:
    codec = Codec("topk:density=0.3,index=smallest,values=q4")
    memory, grad = Memory(codec, ELEMENTS), gradient()
    thread = threading.Thread(target=lambda: codec.encode(grad, memory=memory))
    refused = 0
    thread.start()
    while thread.is_alive():
        try:
            memory.norm()
        except RuntimeError as error:
            refused += 1
            assert "another thread is using it" in str(error)
        time.sleep(0.001)
    assert refused > 0
    assert memory.norm() > 0
