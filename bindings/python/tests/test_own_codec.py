"""Codecs written with numpy: their spelling, their frames, and what their mistakes become."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import own_codecs  # registers them
import pytest

import gradwire

GRAD = np.random.default_rng(3).normal(size=100).astype(np.float32)


def test_it_has_a_spelling_and_the_keys_of_every_codec() -> None:
    codec = gradwire.Codec("x:blocks:block=3,unit=tensor,dense_below=5")
    assert (codec.name, codec.kind, codec.memory, codec.density) == ("x:blocks", "gather", "ef", None)
    assert str(codec) == "x:blocks:block=3,unit=tensor,dense_below=5"
    assert str(gradwire.Codec("x:blocks:block=16")) == "x:blocks", "what is a default is not printed"
    assert gradwire.Codec("x:first").with_density(0.5) == gradwire.Codec("x:first:density=0.5")
    assert pickle.loads(pickle.dumps(codec)) == codec
    assert codec.units({"w": (4, 4), "b": (4,)}) == [(0, 0, 16, False), (1, 16, 4, True)]
    for spelling, text in [
        ("x:blocks:block=0", "block=0: expected a whole number above 0"),
        ("x:blocks:block=a", "invalid literal for int"),
        ("x:blocks:size=1", "x:blocks has no key 'size': expected one of block memory decay unit dense_below dense_1d"),
        ("x:wrong:memory=ef", "memory=ef: this codec says that it keeps nothing"),
        ("x:block", "unknown codec 'x:block': expected one of"),
    ]:
        with pytest.raises(ValueError, match=text):
            gradwire.Codec(spelling)


@pytest.mark.parametrize("spelling", ["x:blocks", "x:blocks:block=3", "x:first:density=0.1", "x:first:density=1"])
def test_what_is_sent_and_kept_adds_up(spelling: str) -> None:
    codec, layout = gradwire.Codec(spelling), gradwire.Layout({"w": (8, 10), "b": (20,)})
    memory, sent, given = gradwire.Memory(codec, layout), np.zeros(100, np.float64), np.zeros(100, np.float64)
    for step in range(5):
        frame = codec.encode(GRAD, layout, memory, step=step)
        total = gradwire.decode(frame, layout)
        sent += total
        given += GRAD
        np.testing.assert_allclose(sent + memory.residual, given, atol=1e-5)
    info = gradwire.inspect(frame, layout)
    assert info["units"][0]["kind"] == "python"
    assert info["units"][0]["held"] == np.count_nonzero(total)
    # Every bit is checked before the codec sees any.
    for at in range(0, len(frame), 7):
        damaged = bytearray(frame)
        damaged[at] ^= 4
        with pytest.raises(gradwire.DecodeError):
            gradwire.decode(bytes(damaged), layout)


def test_an_exception_names_the_coordinate_and_changes_nothing() -> None:
    codec = gradwire.Codec("x:first:density=0.5,most=5")
    memory = gradwire.Memory(codec, 100)
    codec.encode(GRAD, memory=memory)
    before, grad = memory.save(), GRAD.copy()
    grad[17] = 40
    with pytest.raises(gradwire.EncodeError, match=r"coordinate 17: .*: ValueError: more than 5.0$") as raised:
        codec.encode(grad, memory=memory)
    assert repr(raised.value.__cause__) == "ValueError('more than 5.0')"
    assert memory.save() == before
    # The next error is another's.
    with pytest.raises(gradwire.EncodeError, match="non-finite") as raised:
        codec.encode(np.full(100, np.nan, np.float32), memory=memory)
    assert raised.value.__cause__ is None
    assert memory.save() == before


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("type", TypeError),
        ("long", None),
        ("count", None),
        ("negative", OverflowError),
        ("raises", KeyError),
        ("shorter", None),
        ("text", ValueError),
        ("infinite", None),
        ("descending", None),
        ("outside", ValueError),
    ],
)
def test_mistakes_of_a_codec_are_errors_of_its_sender(how: str, cause: type[Exception] | None) -> None:
    with pytest.raises(gradwire.EncodeError) as raised:
        gradwire.Codec(f"x:wrong:how={how}").encode(GRAD)
    assert isinstance(raised.value.__cause__, cause or type(None)), repr(raised.value.__cause__)


def test_a_frame_that_its_codec_refuses_is_an_error_of_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = gradwire.Codec("x:wrong").encode(GRAD)
    assert not gradwire.decode(frame, 100).any()

    def refuse(self: Any, body: bytes, length: int) -> None:
        raise RuntimeError("not mine")

    monkeypatch.setattr(own_codecs.Wrong, "decode", refuse)
    with pytest.raises(gradwire.DecodeError, match=r": RuntimeError: not mine$") as raised:
        gradwire.decode(frame, 100)
    assert repr(raised.value.__cause__) == "RuntimeError('not mine')"


def test_draws_depend_on_seed_step_and_rank_and_some_are_shared() -> None:
    codec, seen = gradwire.Codec("x:wrong:how=seed"), {}
    for key in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 0, 0)]:
        seed, step, rank = key
        body = codec.encode(GRAD, seed=seed, step=step, rank=rank)[-16:]
        seeds = tuple(np.frombuffer(body, np.uint64))
        assert seen.setdefault(key, seeds) == seeds
    own, shared = zip(*seen.values(), strict=True)
    assert len(set(own)) == 4
    assert seen[0, 0, 0][1] == seen[0, 0, 1][1], "the same at every rank"
    assert len(set(shared)) == 3


def test_many_threads_use_one_codec() -> None:
    codec, grads = gradwire.Codec("x:blocks"), [np.roll(GRAD, at).repeat(300) for at in range(8)]
    expected = [gradwire.Codec("x:blocks:memory=none").encode(grad) for grad in grads]

    def encode(grad: np.ndarray) -> bytes:
        return codec.encode(grad, memory=gradwire.Memory(codec, len(grad)))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(encode, grads)) == expected


def test_what_cannot_be_registered_says_why() -> None:
    def register(name: str, **options: Any) -> str:
        with pytest.raises((ValueError, OverflowError)) as raised:
            gradwire.register(name, own_codecs.Blocks, **{"number": 0xFA, "keys": "block=16", **options})
        return str(raised.value)

    assert "a codec of that name is registered" in register("blocks")
    assert "codec 'x:blocks' has it" in register("other", number=0xF2)
    assert register("other", number=0x10) == "number=16: expected 0xf0 to 0xfe"
    assert register("other", law="maybe") == "law='maybe': expected one of exact rounded none"
    assert "expected a fraction" in register("other", density=2.0)
    assert "example 'x:other:block=0': ValueError: block=0" in register("other", examples=["x:other:block=0"])
    assert "1 to 32 characters" in register("Other")
    with pytest.raises(ValueError, match="has no attribute 'encode'"):
        gradwire.register("other", lambda block: object(), number=0xFA, keys="block=16")
    with pytest.raises(ValueError, match="unknown codec 'x:other'"):
        gradwire.Codec("x:other")
