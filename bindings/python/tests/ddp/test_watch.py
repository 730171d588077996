"""How a lost rank is named, and what is said of a compression that does not pay: without processes."""

from __future__ import annotations

import pytest

from gradwire.torch._advice import HOOK, LOCAL_STEPS, OPTIMIZER, STEPS, Remedies, Took, advice
from gradwire.torch._errors import PeerLostError, error_of


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([1], "step 7, bucket 2: rank 1 did not answer within 60 s, or the connection ended: too late"),
        ([1, 3], "step 7, bucket 2: ranks 1, 3 did not answer within 60 s, or a connection ended: too late"),
        ([], "step 7, bucket 2: a rank did not answer within 60 s, or a connection ended: too late"),
    ],
)
def test_ranks_that_did_not_come_are_named(ranks: list[int], text: str) -> None:
    error = error_of(("peer lost", "too late", ranks, 2, None), 7, 60.0)
    assert isinstance(error, PeerLostError)
    assert (str(error), error.ranks) == (text, tuple(ranks))


def steps(encode: float, exchange: float, decode: float, all_of_it: float = 0.5) -> list[Took]:
    """The first is slow, and in all but one a rank comes late."""
    usual = [Took(encode, exchange + late, decode, all_of_it) for late in (3, 3, 3, 3, 0, 3, 3, 3, 3)]
    return [Took(9, 9, 9, 9), *usual]


@pytest.mark.parametrize(
    ("remedies", "step", "at_a_fast_link", "at_a_slow_one"),
    [
        (HOOK, "a step takes", "a cheaper codec, or no hook.", "larger buckets (bucket_cap_mb=), or no hook."),
        (
            OPTIMIZER,
            "a step takes",
            "a cheaper codec, or no DistributedOptimizer.",
            "larger buckets (bucket_cap_mb=), or no DistributedOptimizer.",
        ),
        (
            LOCAL_STEPS,
            "an exchange takes",
            'a cheaper codec, or codec="none".',
            'more steps between exchanges (every=), or codec="none".',
        ),
    ],
)
def test_what_is_advised_is_there_where_it_is_said(
    remedies: Remedies, step: str, at_a_fast_link: str, at_a_slow_one: str
) -> None:
    for exchange, coding, use in [(0.001, 0.2, at_a_fast_link), (0.2, 0.001, at_a_slow_one)]:
        told = advice(steps(coding / 2, exchange, coding / 2), 0.1, 90, remedies)
        assert told is not None
        assert told.startswith(f"compression does not pay: {step} ")
        assert told.endswith(f" {use}"), told


@pytest.mark.parametrize(("between", "is_said"), [(0.5, True), (0.89, True), (0.91, False), (30, False)])
def test_nothing_is_said_of_a_hundredth_of_the_time(between: float, is_said: bool) -> None:
    told = advice(steps(0.003, 0.004, 0.002, between), 0.004, 90)
    assert (told is not None) == is_said


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
