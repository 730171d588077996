"""Linear codecs over an all-reduce that numpy does."""

from __future__ import annotations

import numpy as np
import pytest

from gradwire import Codec, EncodeError, Layout, LinearRound, Memory

SHAPES = {"w": (12, 10), "b": (10,)}
LINEAR = [
    "none",
    "randomk:density=0.3",
    "maxnorm:bits=8",
    "maxnorm:bits=4+8",
    "maxnorm:bits=4,density=0.1",
    "sharedk:density=0.05,by=leader",
    "sharedk:density=0.02,columns=2,candidates=2",
    "powersgd:rank=2",
    "powersgd:rank=1,unit=tensor,dense_1d",
]

REDUCE = {"sum": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and}


def reduce(rounds: list[LinearRound], payloads: list[np.ndarray]) -> np.ndarray:
    """What all ranks have after the round."""
    kind = rounds[0].reduction
    if kind == "gather":
        return np.concatenate([np.split(payload, len(payloads))[rank] for rank, payload in enumerate(payloads)])
    if kind == "broadcast":
        return payloads[rounds[0].source].copy()
    return REDUCE[kind].reduce(payloads)


def drive(ranks: list[list[LinearRound]]) -> None:
    """All-reduce of every unit, round by round, in rank order."""
    for units in zip(*ranks, strict=True):
        while not units[0].done:
            payloads = [unit.payload for unit in units]
            reduced = reduce(list(units), payloads)
            for unit, payload in zip(units, payloads, strict=True):
                payload[:] = reduced
                unit.advance()


@pytest.mark.parametrize("spelling", LINEAR)
def test_all_ranks_have_the_same_mean_and_lose_nothing(spelling: str) -> None:
    codec, layout = Codec(spelling), Layout(SHAPES)
    assert codec.is_linear
    memories = [None if codec.memory == "none" else Memory(codec, layout) for _ in range(3)]
    owed = np.zeros(len(layout))
    for step in range(4):
        grads = [np.random.default_rng((step, rank)).normal(size=len(layout)).astype(np.float32) for rank in range(3)]
        owed += np.sum(grads, axis=0, dtype=np.float64)
        ranks = [
            codec.begin(grad, layout, memory, step=step, seed=9, rank=rank, workers=3)
            for rank, (grad, memory) in enumerate(zip(grads, memories, strict=True))
        ]
        drive(ranks)
        for units in zip(*ranks, strict=True):
            for unit in units:
                assert unit.mean.tobytes() == units[0].mean.tobytes()
            owed[slice(*units[0].range)] -= 3.0 * units[0].mean
    kept = sum(memory.residual.astype(np.float64) for memory in memories if memory is not None)
    if spelling == "none" or codec.memory == "ef":
        np.testing.assert_allclose(owed, kept, atol=1e-4)


@pytest.mark.parametrize("spelling", ["randomk:density=0.3", "powersgd:rank=1"])
@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_who_gives_up_keeps_everything_back(spelling: str, rounds: int) -> None:
    codec, layout = Codec(spelling), Layout(SHAPES)
    memory = Memory(codec, layout)
    grad = np.random.default_rng(1).normal(size=len(layout)).astype(np.float32)
    for unit in codec.begin(grad, memory=memory):
        unit.advance()
    before = memory.residual.copy()
    [unit] = codec.begin(grad, memory=memory, step=1)
    for _ in range(rounds):
        if not unit.done:
            unit.advance()
    unit.abandon()
    np.testing.assert_array_equal(memory.residual, before + grad)
    for what in (lambda: unit.payload, lambda: unit.mean, unit.advance):
        with pytest.raises(ValueError, match=r"no further round|after the last round"):
            what()


def test_rounds_say_what_they_are() -> None:
    codec = Codec("maxnorm:bits=4")
    [unit] = codec.begin(np.arange(10, dtype=np.float32), units=[(7, 2, 6, False)])
    assert (unit.unit, unit.range, unit.index, unit.reduction) == ((7, 2, 6, False), (2, 8), 0, "max")
    with pytest.raises(ValueError, match="after the last round"):
        _ = unit.mean
    unit.advance()
    assert (unit.reduction, unit.payload.dtype.name) == ("sum", "int32")
    payload = unit.payload
    unit.advance()
    with pytest.raises(ValueError, match="no further round"):
        unit.advance()
    del unit
    assert len(payload) > 0  # still there


def test_wrong_rounds_are_refused() -> None:
    grad = np.ones(4, np.float32)
    with pytest.raises(ValueError, match="its frames are gathered; rounds are for linear codecs"):
        Codec("topk").begin(grad)
    with pytest.raises(EncodeError, match="non-finite value at coordinate 2"):
        Codec("none").begin(np.array([1, 2, np.nan, 3], np.float32))
    with pytest.raises(ValueError, match="pass memory="):
        Codec("powersgd").begin(grad)
    with pytest.raises(ValueError, match="rank=2, workers=2: expected a rank below the workers"):
        Codec("none").begin(grad, rank=2, workers=2)
    with pytest.raises(ValueError, match="workers=8454661: the sums of 8454660 fit"):
        Codec("maxnorm:bits=8").begin(grad, workers=8454661)
