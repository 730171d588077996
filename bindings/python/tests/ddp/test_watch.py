"""Which rank is named as lost, and what is said of a compression that does not pay: without processes."""

from __future__ import annotations

import threading

import pytest

from gradwire.torch._advice import STEPS, Took, advice
from gradwire.torch._watch import Watch


class Shelf:
    """A store in one process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str, /) -> None:
        self.values[key] = value.encode()

    def get(self, key: str, /) -> bytes:
        return self.values[key]

    def check(self, keys: list[str], /) -> bool:
        return all(key in self.values for key in keys)


class Broken(Shelf):
    def check(self, keys: list[str], /) -> bool:
        raise RuntimeError("the store is gone")


class Hanging(Shelf):
    def check(self, keys: list[str], /) -> bool:
        return threading.Event().wait(1000)


def test_ranks_that_wait_are_not_missing() -> None:
    shelf = Shelf()
    watches = [Watch(shelf, rank, 4, timeout=60) for rank in range(4)]
    for rank in (0, 2, 3):
        watches[rank].begin(7)
    # Rank 0 fails at once; the others wait, and say so after a while. Rank 1 waited in an earlier step.
    shelf.set("gradwire/waits/1", "6")
    assert watches[0].missing() == [1]
    assert watches[3].missing() == [1]


@pytest.mark.parametrize("store", [Broken(), Hanging(), None])
def test_a_store_that_does_not_answer_names_nobody(store: Shelf | None) -> None:
    assert Watch(store, 0, 4, timeout=0.5).missing() == []


def test_of_two_ranks_it_is_the_other() -> None:
    assert Watch(None, 1, 2, timeout=60).missing() == [0]


def steps(encode: float, exchange: float, decode: float) -> list[Took]:
    """The first is slow, and in all but one a rank comes late."""
    usual = [Took(encode, exchange + late, decode) for late in (3, 3, 3, 3, 0, 3, 3, 3, 3)]
    return [Took(9, 9, 9), *usual]


@pytest.mark.parametrize(
    ("took", "dense", "ratio", "text"),
    [
        ((0.003, 0.004, 0.002), 0.1, 90, None),
        ((0.003, 0.004, 0.002), 0.004, 90, "coding alone takes longer than sending everything"),
        ((0.001, 0.09, 0.001), 0.05, 2.5, "only 2.5 times smaller"),
        ((0.001, 0.09, 0.001), 0.05, 90, "Messages take longer than bytes"),
    ],
)
def test_what_does_not_pay_is_said_and_why(
    took: tuple[float, float, float], dense: float, ratio: float, text: str | None
) -> None:
    told = advice(steps(*took), dense, ratio)
    assert len(steps(*took)) == STEPS
    if text is None:
        assert told is None
    else:
        assert told is not None
        assert text in told
        assert f"about {1e3 * dense:.1f} ms" in told
