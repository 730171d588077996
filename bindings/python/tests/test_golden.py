"""Frames from Python are those of every other way, byte for byte."""

from __future__ import annotations

import golden
import numpy as np
import pytest

from gradwire import Codec, Frame, Layout, Memory, decode, inspect

EVERY = pytest.mark.parametrize("line", golden.ALL, ids=lambda line: line.name)
# Only an exchange asks for the mean over senders.
CONTRIBUTORS = [line for line in golden.ALL if "divisor" not in line.fields]
ENCODED = pytest.mark.parametrize("line", CONTRIBUTORS, ids=lambda line: line.name)


def memory_before(line: golden.Golden, codec: Codec, layout: Layout) -> Memory | None:
    if codec.memory == "none":
        return None
    memory = Memory(codec, layout, units=line.units)
    state = memory.state_dict()

    def by_tensor(flat: golden.F32) -> dict[str, golden.F32]:
        return {name: flat[layout.slice(name)].reshape(shape) for name, shape in zip(layout.names, layout.shapes, strict=True)}

    state["residual"] = by_tensor(line.before("residual"))
    if state["momentum"] is not None:
        state["momentum"] = by_tensor(line.before("momentum"))
    if line.states:
        state["states"] = line.states
    memory.load_state_dict(state)
    return memory


@EVERY
def test_frames_decode_to_the_stated_values(line: golden.Golden) -> None:
    values = decode(line.frame, line.shapes)
    assert golden.digest(values) == line.fields["values"]
    fields = inspect(line.frame, line.shapes)
    assert fields["nbytes"] == len(line.frame)
    assert Frame(line.frame, line.shapes).held == fields["held"]


@ENCODED
def test_inputs_encode_to_the_same_bytes(line: golden.Golden) -> None:
    codec, layout = Codec(line.fields["codec"]), Layout(line.shapes)
    memory = memory_before(line, codec, layout)
    grad, dtype = line.gradient
    key = {name: int(line.fields[name]) for name in ("step", "seed", "rank")}
    if codec.max_packet_bytes is not None:
        packets = codec.packets(grad, layout, memory, dtype=dtype, units=line.units, **key)
        frame = packets[int(line.fields["packet"])]
    else:
        frame = codec.encode(grad, layout, memory, dtype=dtype, units=line.units, **key)
    assert frame == line.frame
    if memory is not None:
        assert golden.digest(memory.residual) == line.fields["kept"]
        if "kept_momentum" in line.fields:
            assert golden.digest(memory.momentum) == line.fields["kept_momentum"]
        if "kept_states" in line.fields:
            kept = ",".join(f"{word:x}" for state in memory.state_dict()["states"] for word in state)
            assert kept == line.fields["kept_states"]


def test_every_codec_with_frames_is_among_them() -> None:
    names = {Codec(line.fields["codec"]).name for line in golden.ALL}
    assert names >= {"none", "f16", "bf16", "topk", "threshold", "qsgd", "randomk", "dgc", "sidco"}
    assert len(golden.ALL) > 200
    assert np.isfinite(golden.values_of("normal:1", 100)).all()
