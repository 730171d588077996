"""Spellings, layouts, encode and decode, and what they refuse."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gradwire import (
    CODECS,
    Codec,
    DecodeError,
    EncodeError,
    Frame,
    Layout,
    Limits,
    Memory,
    add,
    decode,
    divide,
    inspect,
)

LOSSY = [
    "topk:density=0.1",
    "topk:density=0.1,values=q4",
    "topk:density=0.05,index=smallest,values=q2,unit=tensor",
    "threshold:value=0.5",
    "dgc:density=0.1,momentum=0",
    "sidco:density=0.1",
    "qsgd:bits=8,bucket=128,rounding=nearest",
    "f16:memory=ef",
    "bf16:memory=ef",
]
FRAMED = [*LOSSY, "none", "f16", "bf16", "qsgd", "dgc", "randomk", "maxnorm", "topk:density=0.1,memory=none"]
SHAPES = {"w": (20, 30), "b": (30,), "scale": ()}

floats = st.floats(-1e10, 1e10, width=32)
gradients = arrays.arrays(np.float32, st.integers(0, 300), elements=floats)


def memory_for(codec: Codec, layout: Layout | int) -> Memory | None:
    return None if codec.memory == "none" else Memory(codec, layout)


def bits(values: np.ndarray) -> np.ndarray:
    """As integers, with one zero: a residual's sign of zero counts for nothing."""
    return np.where(values == 0, np.float32(0), values).view(np.uint32)


@pytest.mark.parametrize("spelling", FRAMED)
def test_frames_make_the_round_trip(spelling: str) -> None:
    codec, layout = Codec(spelling), Layout(SHAPES)
    grad = np.random.default_rng(1).normal(size=len(layout)).astype(np.float32)
    frame = codec.encode(grad, layout, memory_for(codec, layout), step=3, seed=5, rank=2)
    again = codec.encode(grad, layout, memory_for(codec, layout), step=3, seed=5, rank=2)
    assert frame == again
    parsed = Frame(frame, layout)
    assert (parsed.step, parsed.fingerprint, parsed.nbytes) == (3, layout.fingerprint, len(frame))
    values = decode(frame, layout)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, parsed.to_numpy())
    total = np.full(len(layout), 1, np.float32)
    add(frame, total, -0.5, layout=layout)
    np.testing.assert_array_equal(total, 1 + np.float32(-0.5) * values)
    if spelling == "none":
        np.testing.assert_array_equal(values, grad)


@settings(max_examples=30, deadline=None)
@given(grad=gradients, spelling=st.sampled_from(LOSSY), step=st.integers(0, 2**64 - 1))
def test_sent_and_kept_are_what_was_there(grad: np.ndarray, spelling: str, step: int) -> None:
    codec = Codec(spelling)
    memory = Memory(codec, len(grad))
    before = np.zeros(len(grad), np.float32)
    for again in range(2):
        try:
            frame = codec.encode(grad, memory=memory, step=(step + again) % 2**64)
        except EncodeError as error:  # too large for half precision
            assert "overflows" in str(error)
            np.testing.assert_array_equal(memory.residual, before)
            return
        there = before + grad
        sent = decode(frame, len(grad))
        np.testing.assert_array_equal(bits(sent + memory.residual), bits(there))
        before = memory.residual.copy()
    memory.give_back(frame)
    np.testing.assert_array_equal(bits(memory.residual), bits(there))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_damaged_bytes_are_refused_and_change_nothing(data: st.DataObject) -> None:
    codec = Codec(data.draw(st.sampled_from(FRAMED)))
    grad = np.random.default_rng(2).normal(size=64).astype(np.float32)
    frame = bytearray(codec.encode(grad, memory=memory_for(codec, 64)))
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    total = np.full(64, 7, np.float32)
    for broken in (bytes(frame), bytes(frame[: data.draw(st.integers(0, len(frame) - 1))]), b"", b"GW"):
        with pytest.raises(DecodeError):
            add(broken, total)
        with pytest.raises(DecodeError):
            inspect(broken)
    assert (total == 7).all()


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(noise: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(noise, 10)


@pytest.mark.parametrize(
    ("spelling", "told"),
    [
        ("topk:density=7", "density=7: expected a fraction from 1e-9 to 1"),
        ("topk:densty=0.1", "topk has no key 'densty': expected one of density"),
        ("qsgd:bits=9", "bits=9: expected one of ternary 2 3 4 5 6 7 8"),
        ("topq", "unknown codec 'topq': expected one of none, f16"),
        ("threshold", "key 'value' is missing"),
        ("topk:index=rice,index=raw", "key 'index' is given twice"),
        ("powersgd:memory=none", "memory=none: powersgd is biased"),
    ],
)
def test_spellings_are_refused_with_the_key_and_its_range(spelling: str, told: str) -> None:
    with pytest.raises(ValueError, match=told.replace("'", ".")):
        Codec(spelling)


def test_a_codec_says_what_it_is() -> None:
    codec = Codec("topk:values=q4,density=0.010")
    assert str(codec) == "topk:density=0.01,values=q4"
    assert repr(codec) == "Codec('topk:density=0.01,values=q4')"
    assert codec == Codec(str(codec))
    assert codec != Codec("topk")
    assert hash(codec) == hash(Codec(str(codec)))
    assert pickle.loads(pickle.dumps(codec)) == codec
    assert copy.copy(codec) == codec
    assert (codec.name, codec.kind, codec.memory, codec.density) == ("topk", "gather", "ef", 0.01)
    assert Codec("powersgd").density is None
    for name in CODECS.split(", "):
        assert Codec(name + (":value=1" if name == "threshold" else "")).name == name


def test_layouts_come_from_all_that_has_shapes() -> None:
    arrays_of = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    layout = Layout(SHAPES)
    assert layout == Layout(arrays_of) == Layout(list(SHAPES.items())) == Layout(layout)
    assert pickle.loads(pickle.dumps(layout)) == layout
    assert (len(layout), layout.names, layout.shapes) == (631, ["w", "b", "scale"], [(20, 30), (30,), ()])
    assert Layout({"a": 5}).shapes == [(5,)]
    assert Layout(5).fingerprint == Layout({"a": (5,)}).fingerprint
    assert hash(layout) == hash(Layout(SHAPES))
    with pytest.raises(KeyError, match="no tensor 'x'"):
        layout.slice("x")
    for wrong, kind, told in [
        (-1, ValueError, "expected a length from 0"),
        ({"a": "b"}, TypeError, "expected a shape for 'a'"),
        (1.5, TypeError, "expected a Layout, a length, a dict"),
        ([("a", 1), ("a", 2)], ValueError, "'a' stands twice"),
        ({"a": (2**40, 2**40)}, ValueError, "more elements than can be addressed"),
    ]:
        with pytest.raises(kind, match=told):
            Layout(wrong)


def test_wrong_arguments_are_named_and_change_nothing() -> None:
    codec = Codec("topk:density=0.5")
    memory = Memory(codec, 4)
    grad = np.arange(4, dtype=np.float32)
    codec.encode(grad, memory=memory)
    before = memory.save()
    for wrong, kind, told in [
        ({"grad": grad[:3]}, ValueError, "grad: expected 4 elements, as the layout has, got 3"),
        ({"grad": grad.astype(np.float64)}, TypeError, "expected float32, float16 or bfloat16, got float64"),
        ({"grad": grad.astype(np.int32)}, TypeError, "got int32"),
        ({"grad": [1.0, 2.0]}, TypeError, "expected a CPU buffer .* got list"),
        ({"layout": 5}, ValueError, "grad: expected 5 elements"),
        ({"layout": {"w": (2, 2)}}, ValueError, "layout: expected the memory's, 4 elements in 1 tensors"),
        ({"memory": None}, ValueError, r"pass memory=Memory\(codec, layout\), or spell memory=none"),
        ({"rank": 2**30}, ValueError, "rank=1073741824: expected a whole number below"),
        ({"step": -1}, OverflowError, "negative"),
        ({"dtype": "f64"}, ValueError, "dtype='f64': expected one of f32 f16 bf16"),
        ({"dtype": "f16"}, TypeError, "expected elements that can be float16, got float32"),
        ({"units": [(0, 0, 3, False), (1, 2, 2, False)]}, ValueError, "unit 1 is not"),
        ({"units": [(0, 0, 5, False)]}, ValueError, "ranges of 4 elements"),
        ({"units": []}, ValueError, "expected one or more"),
        ({"out": bytearray(3)}, ValueError, r"out: expected \d+ bytes or more"),
        ({"out": bytes(1000)}, ValueError, "out: expected a writable buffer, got a read-only one"),
        ({"out": np.zeros(100, np.float32)}, TypeError, "out: expected bytes"),
        ({"grad": np.array([1, np.inf, 2, 3], np.float32)}, EncodeError, "non-finite value at coordinate 1"),
    ]:
        arguments = {"grad": grad, "memory": memory, **wrong}
        with pytest.raises(kind, match=told):
            codec.encode(**arguments)
        assert memory.save() == before
    with pytest.raises(ValueError, match="none: it keeps nothing and takes no memory"):
        Codec("none").encode(grad, memory=memory)
    with pytest.raises(ValueError, match="it keeps nothing and has no memory"):
        Memory(Codec("none"), 4)
    with pytest.raises(EncodeError, match="this codec has no frames"):
        Codec("powersgd").encode(grad, memory=Memory(Codec("powersgd"), 4))
    with pytest.raises(ValueError, match="none: it has no density"):
        Codec("none").with_density(0.1)
    with pytest.raises(ValueError, match="density=2: expected"):
        codec.with_density(2)


def test_outputs_must_be_writable_floats_of_the_layout() -> None:
    frame = Codec("none").encode(np.arange(4, dtype=np.float32))
    constant = np.zeros(4, np.float32)
    constant.flags.writeable = False
    for wrong, kind, told in [
        (np.zeros(3, np.float32), ValueError, "expected 4 elements|layout mismatch"),
        (np.zeros(4), TypeError, "expected float32, float16 or bfloat16, got float64"),
        (np.zeros(4, np.float16), TypeError, "expected float32, got float16"),
        (np.zeros(8, np.float32)[::2], ValueError, "contiguous memory in row-major order"),
        (constant, ValueError, "expected a writable buffer, got a read-only one"),
        (None, TypeError, "expected a CPU buffer"),
    ]:
        with pytest.raises(kind, match=told):
            add(frame, wrong)
        with pytest.raises(kind, match=told):
            Frame(frame, 4).add_to(wrong)
        if wrong is not None:
            with pytest.raises(kind, match=told):
                decode(frame, 4, out=wrong)
    out = np.full(4, 9, np.float32)
    assert decode(frame, 4, out=out) is out
    assert out.tolist() == [0, 1, 2, 3]
    assert Frame(frame, 4).to_numpy(out) is out
    with pytest.raises(DecodeError, match="layout mismatch"):
        decode(frame, {"w": (2, 2)}, out=out)
    with pytest.raises(ValueError, match="contributors=0"):
        divide(out, 0)
    assert divide(np.array([1, np.inf], np.float32), 2) == 1


def test_a_frame_can_go_into_a_buffer_of_the_caller() -> None:
    codec, grad = Codec("f16"), np.arange(100, dtype=np.float32)
    expected = codec.encode(grad)
    for out in (bytearray(codec.max_frame_bytes(100)), np.full((20, 50), 0xA5, np.uint8)):
        view = codec.encode(grad, out=out)
        assert isinstance(view, memoryview)
        assert view == expected
        assert decode(view, 100)[99] == 99
    grad.flags.writeable = True
    with pytest.raises(ValueError, match="in the memory of the gradient"):
        codec.encode(grad, out=grad.view(np.uint8))


def test_limits_are_the_callers() -> None:
    frame = Codec("topk:density=0.5,memory=none").encode(np.arange(100, dtype=np.float32))
    assert decode(frame, 100, limits=Limits(100)).any()
    assert Limits(100).max_elements == 100
    for limit, told in [
        ({"max_elements": 99}, "Elements"),
        ({"max_entries": 49}, "Entries"),
        ({"max_body_bytes": 10}, "BodyBytes"),
        ({"max_units": 0}, "Units"),
        ({"max_scratch_words": 1}, "ScratchWords"),
        ({"max_magnitude": 10.0}, "Magnitude"),
    ]:
        with pytest.raises(DecodeError, match=f"limit exceeded: {told}"):
            Frame(frame, 100, limits=Limits(100, **limit))
    with pytest.raises(DecodeError, match="limit exceeded: Elements"):
        inspect(frame, max_elements=99)


def test_a_frame_does_not_change_with_the_buffer_it_came_from() -> None:
    buffer = bytearray(Codec("none").encode(np.arange(4, dtype=np.float32)))
    frame = Frame(buffer, 4)
    buffer[:] = bytes(len(buffer))
    assert frame.to_numpy().tolist() == [0, 1, 2, 3]
    assert frame.to_bytes()[:2] == b"GW"
    assert len(frame) == len(buffer)


@pytest.mark.parametrize("spelling", ["none", "f16", "bf16"])
def test_dense_frames_of_any_length_are_whole_objects(spelling: str) -> None:
    """They are encoded into the object that is returned, which is allocated before, and a little longer."""
    codec = Codec(spelling)
    for elements in (10, 40_000, 1_200_000):
        grad = np.random.default_rng(1).normal(size=elements).astype(np.float32)
        third = elements // 3
        for units in (None, [(0, 0, third, False), (5, third + 1, third, False)]):
            frame = codec.encode(grad, units=units)
            assert isinstance(frame, bytes)
            most = codec.max_frame_bytes(elements, units=units)
            assert most - 40 * len(units or "1") < len(frame) < most
            into = codec.encode(grad, units=units, out=np.full(most, 9, np.uint8))
            assert bytes(into) == frame
            # What Python does with objects of their length.
            assert hash(frame) == hash(bytes(into))
            assert (frame + b"x")[:-1] == frame[:] == b"".join([frame])
            assert pickle.loads(pickle.dumps(frame)) == frame
            sent = grad if units is None else np.concatenate([grad[:third], grad[third + 1 : 2 * third + 1]])
            values = decode(frame, elements)
            held = values if units is None else np.concatenate([values[:third], values[third + 1 : 2 * third + 1]])
            np.testing.assert_allclose(held, sent, rtol=0 if spelling == "none" else 0.01, atol=1e-6)
    bad = np.zeros(1_200_000, np.float32)
    bad[-1] = np.nan
    with pytest.raises(EncodeError, match="coordinate 1199999"):
        codec.encode(bad)


@pytest.mark.parametrize("spelling", ["dgc:clip=1", "dgc:density=0.01,clip=0.000001,nesterov"])
def test_a_codec_that_would_clip_refuses_to_encode(spelling: str) -> None:
    """How much depends on the number of workers, and nobody says how many there are."""
    codec, gradient = Codec(spelling), np.ones(100, np.float32)
    memory = Memory(codec, 100)
    for call in (codec.encode, lambda *args, **kwargs: codec.packets(*args, max_packet_bytes=64, **kwargs)):
        with pytest.raises(ValueError, match="clip: it depends on the number of workers"):
            call(gradient, memory=memory)
    assert not memory.residual.any()
