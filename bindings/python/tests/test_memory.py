"""What is kept from step to step, saved and restored."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from gradwire import Codec, DecodeError, Layout, Memory

SHAPES = {"w": (8, 5), "b": (5,)}
KEEPING = [
    "topk:density=0.1",
    "dgc:density=0.1",
    "sidco:density=0.1,unit=tensor",
    "powersgd:rank=2,min_rate=1",
    "sketch:density=0.1,cells=0.5,rows=1,momentum=0.9",
    "sketch:density=0.1,cells=0.5,rows=1,moments=amsgrad,unit=tensor",
    "sharedk:density=0.1,by=leader,feedback=ef21,momentum=0.5",
]


def grad(step: int, layout: Layout) -> np.ndarray:
    return np.random.default_rng(step).normal(size=len(layout)).astype(np.float32)


def run(codec: Codec, memory: Memory, steps: range) -> list[bytes]:
    sent = []
    for step in steps:
        if codec.has_frames:
            sent.append(codec.encode(grad(step, memory.layout), memory=memory, step=step))
            continue
        for unit in codec.begin(grad(step, memory.layout), memory=memory, step=step):
            while not unit.done:
                unit.advance()
            sent.append(unit.mean.tobytes())
    return sent


@pytest.mark.parametrize("spelling", KEEPING)
@pytest.mark.parametrize("way", ["bytes", "state", "copy"])
def test_a_restored_memory_goes_on_to_the_same_bytes(spelling: str, way: str) -> None:
    codec = Codec(spelling)
    memory, other = Memory(codec, SHAPES), Memory(codec, SHAPES)
    run(codec, memory, range(5))
    if way == "bytes":
        other.load(memory.save())
    elif way == "state":
        other.load_state_dict(memory.state_dict())
    else:
        other = memory.copy()
    assert other.save() == memory.save()
    assert run(codec, other, range(5, 10)) == run(codec, memory, range(5, 10))
    assert run(codec, Memory(codec, SHAPES), range(5, 10)) != run(codec, memory, range(5, 10))


def test_the_view_is_no_copy_and_cannot_be_written_to() -> None:
    codec = Codec("topk:density=0.2")
    memory = Memory(codec, 5)
    view = memory.residual
    codec.encode(np.arange(5, dtype=np.float32), memory=memory)
    assert view.tolist() == [0, 1, 2, 3, 0]
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        view.flags.writeable = True
    assert memory.residual.ctypes.data == view.ctypes.data
    assert (len(memory), memory.norm()) == (5, pytest.approx(np.sqrt(14)))
    del memory
    gc.collect()
    assert view.tolist() == [0, 1, 2, 3, 0]


def test_a_state_may_stand_in_another_order() -> None:
    codec = Codec("topk:density=0.1")
    memory, other = Memory(codec, SHAPES), Memory(codec, dict(reversed(SHAPES.items())))
    run(codec, memory, range(3))
    other.load_state_dict(memory.state_dict())
    for name in SHAPES:
        np.testing.assert_array_equal(memory.tensor(name), other.tensor(name))
    powersgd = Codec("powersgd:rank=1,min_rate=1")
    state = Memory(powersgd, SHAPES).state_dict()
    with pytest.raises(ValueError, match=r'expected the tensors in the order \["b", "w"\]'):
        Memory(powersgd, dict(reversed(SHAPES.items()))).load_state_dict(state)


def test_wrong_arrays_are_refused_and_change_nothing() -> None:
    codec = Codec("sharedk:density=0.1,by=leader,feedback=ef21,momentum=0.5")
    memory = Memory(codec, SHAPES)
    run(codec, memory, range(3))
    before, state = memory.save(), memory.state_dict()
    arrays = state["arrays"]
    assert list(arrays) == ["mean of estimates", "estimate", "momentum"]
    assert all(array.any() for array in arrays.values())
    for wrong, told in [
        ({}, r"arrays: expected .*, got \[\]"),
        ({**arrays, "estimate": arrays["estimate"][1:]}, "estimate: expected 45 elements, got 44"),
        ({**arrays, "estimate": np.full(45, np.inf, np.float32)}, "estimate: expected finite values"),
        ({**arrays, "more": arrays["estimate"]}, "arrays: expected"),
    ]:
        with pytest.raises(ValueError, match=told):
            memory.load_state_dict({**state, "arrays": wrong})
        assert memory.save() == before
    with pytest.raises(TypeError, match="arrays: expected a dict"):
        memory.load_state_dict({**state, "arrays": list(arrays)})
    with pytest.raises(ValueError, match="expected the tensors in the order"):
        Memory(codec, dict(reversed(SHAPES.items()))).load_state_dict(state)


def test_tensors_move_between_layouts() -> None:
    codec = Codec("dgc:density=0.1")
    memory = Memory(codec, SHAPES)
    run(codec, memory, range(3))
    new = Memory(codec, {"b": (5,), "v": (2,), "w": (5, 8)})
    assert new.copy_from(memory) == ["b"]
    np.testing.assert_array_equal(new.tensor("b"), memory.tensor("b"))
    assert not new.tensor("w").any()
    assert memory.copy_from(memory) == ["w", "b"]


def test_wrong_states_are_refused_and_change_nothing() -> None:
    codec = Codec("dgc:density=0.1")
    memory = Memory(codec, SHAPES)
    run(codec, memory, range(3))
    before, state = memory.save(), memory.state_dict()
    w, b = state["residual"]["w"], state["residual"]["b"]
    for wrong, kind, told in [
        ({"version": 2}, ValueError, "version 2: expected 1"),
        ({"residual": {"w": w}}, ValueError, "residual: the tensor 'b' is missing"),
        ({"residual": {"w": w, "b": b, "c": b}}, ValueError, r"unexpected tensors \['c'\]"),
        ({"residual": {"w": w.T.copy(), "b": b}}, ValueError, r"w: expected shape \[8, 5\], got \[5, 8\]"),
        ({"residual": {"w": w.astype(np.float64), "b": b}}, TypeError, "got float64"),
        ({"residual": {"w": w * np.float32("nan"), "b": b}}, ValueError, "expected finite values"),
        ({"residual": [w, b]}, TypeError, "expected a dict of name to array"),
        ({"momentum": None}, ValueError, "momentum: expected one"),
        ({"states": [[1, 2, 3, 4]]}, ValueError, "expected 0 states and 0 factors, got 1 and 0"),
        ({"factors": np.ones(3, np.float32)}, ValueError, "got 0 and 3"),
    ]:
        with pytest.raises(kind, match=told):
            memory.load_state_dict({**state, **wrong})
        assert memory.save() == before
    with pytest.raises(ValueError, match=r'arrays: expected \[\], got \["mean"\]'):
        memory.load_state_dict({**state, "arrays": {"mean": np.ones(45, np.float32)}})
    del state["arrays"]  # As in states from before there were any.
    memory.load_state_dict(state)
    del state["states"]
    with pytest.raises(ValueError, match="'states' is missing"):
        memory.load_state_dict(state)
    with pytest.raises(TypeError, match="expected what state_dict returned"):
        memory.load_state_dict([])
    for broken, told in [
        (before[:-1], "truncated"),
        (before[:9] + b"\0" + before[10:], "layout mismatch"),
        (before[:60] + bytes([before[60] ^ 1]) + before[61:], "checksum mismatch"),
        (Memory(Codec("topk"), SHAPES).save(), "invalid field: Memory"),
        (b"GW", "bad magic|truncated"),
    ]:
        with pytest.raises(DecodeError, match=told):
            memory.load(broken)
        assert memory.save() == before


def test_a_memory_is_cleared_and_rescaled() -> None:
    codec = Codec("topk:density=0.1")
    memory = Memory(codec, SHAPES)
    run(codec, memory, range(2))
    half = memory.residual * np.float32(0.5)
    memory.rescale(0.5)
    np.testing.assert_array_equal(memory.residual, half)
    for ratio in (float("nan"), 3e38):
        with pytest.raises(ValueError, match="expected a finite number"):
            memory.rescale(ratio * 10)
    np.testing.assert_array_equal(memory.residual, half)
    memory.clear()
    assert memory.save() == Memory(codec, SHAPES).save()


def test_what_is_kept_decays_and_never_grows() -> None:
    codec = Codec("topk:density=0.1")
    memory = Memory(codec, SHAPES)
    run(codec, memory, range(2))
    half = memory.residual * np.float32(0.5)
    memory.decay(0.5)
    np.testing.assert_array_equal(memory.residual, half)
    for factor in (-0.5, 1.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"factor=.*: expected a number from 0 to 1"):
            memory.decay(factor)
    memory.decay(1.0)
    np.testing.assert_array_equal(memory.residual, half)
    memory.decay(0.0)
    assert not memory.residual.any()


def test_what_is_given_back_must_fit() -> None:
    codec = Codec("topk:density=0.1")
    memory = Memory(codec, SHAPES)
    run(codec, memory, range(2))
    before = memory.save()
    for frame, told in [
        (Codec("none").encode(np.ones(45, np.float32)), "layout mismatch"),
        (b"nonsense", "bad magic"),
    ]:
        with pytest.raises(DecodeError, match=told):
            memory.give_back(frame)
        assert memory.save() == before


def test_many_views_and_memories_are_freed() -> None:
    codec = Codec("topk:density=0.1")
    for _ in range(50):
        view = Memory(codec, 1 << 20).residual
    assert not view.any()
