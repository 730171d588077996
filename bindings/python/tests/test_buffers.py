"""Every CPU buffer is read where it is."""

from __future__ import annotations

import array
from typing import Any

import golden
import numpy as np
import pytest

from gradwire import Codec, add, decode

CODEC = Codec("none")
VALUES = np.array([[0.5, -3.0], [0.0, 1.0]], np.float32)
FRAME = CODEC.encode(VALUES.reshape(-1))


class Lent:
    """What only knows DLPack."""

    def __init__(self, inner: Any, device: tuple[int, int] = (1, 0)) -> None:
        self.inner, self.on = inner, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.on

    def __dlpack__(self) -> Any:
        return self.inner.__dlpack__()


def buffers() -> dict[str, Any]:
    constant = VALUES.copy()
    constant.flags.writeable = False
    return {
        "numpy": VALUES,
        "read-only": constant,
        "memoryview": memoryview(VALUES),
        "array": array.array("f", VALUES.reshape(-1)),
        "dlpack": Lent(VALUES),
        "pinned": Lent(VALUES, (3, 0)),
        "strided": np.repeat(VALUES.reshape(-1), 2)[::2],
        "transposed": np.asfortranarray(VALUES),
    }


@pytest.mark.parametrize("kind", buffers())
def test_floats_are_read_from(kind: str) -> None:
    assert CODEC.encode(buffers()[kind], 4) == FRAME


def test_bytes_are_read_as_what_dtype_says() -> None:
    raw = VALUES.tobytes()
    for buffer in (raw, bytearray(raw), memoryview(raw), np.frombuffer(raw, np.uint8)):
        assert CODEC.encode(buffer, 4, dtype="f32") == FRAME
        with pytest.raises(TypeError, match="bytes need a dtype"):
            CODEC.encode(buffer, 4)
    with pytest.raises(ValueError, match="15 bytes are no whole number of float32"):
        CODEC.encode(raw[:15], 4, dtype="f32")
    with pytest.raises(ValueError, match="aligned to 4 bytes"):
        CODEC.encode(memoryview(bytearray(17))[1:], 4, dtype="f32")


def test_half_precision_is_read_in_both_forms() -> None:
    exact = CODEC.encode(VALUES.astype(np.float16), 4)
    assert exact == FRAME
    halves = golden.bf16_bits(VALUES.reshape(-1))
    assert CODEC.encode(halves, dtype="bf16") == FRAME
    assert CODEC.encode(halves.view(np.int16), dtype="bfloat16") == FRAME
    assert CODEC.encode(VALUES.astype(np.float16).view(np.uint16), 4, dtype="f16") == FRAME
    with pytest.raises(TypeError, match="16-bit integers need a dtype='bf16'"):
        CODEC.encode(halves)


def test_ml_dtypes_are_read() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert CODEC.encode(VALUES.astype(ml_dtypes.bfloat16), 4) == FRAME


def test_other_byte_orders_are_refused() -> None:
    with pytest.raises(TypeError, match="expected float32"):
        CODEC.encode(VALUES.astype(">f4"), 4)


def test_other_devices_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="expected a buffer on the CPU, got one on a device of kind 2"):
        CODEC.encode(Lent(VALUES, (2, 0)), 4)


def test_other_types_over_dlpack_are_refused() -> None:
    with pytest.raises(TypeError, match="got float64"):
        CODEC.encode(Lent(VALUES.astype(np.float64)), 4)
    with pytest.raises(TypeError, match="got int32"):
        CODEC.encode(Lent(VALUES.astype(np.int32)), 4)


def test_nothing_at_all_makes_a_frame() -> None:
    empty = np.zeros(0, np.float32)
    assert decode(CODEC.encode(empty), 0).shape == (0,)
    assert decode(CODEC.encode(Lent(empty)), 0).shape == (0,)


def test_what_is_lent_is_let_go_of() -> None:
    buffer = bytearray(VALUES.tobytes())
    CODEC.encode(buffer, 4, dtype="f32")
    buffer.append(0)  # BufferError while it is lent
    lent = Lent(VALUES)
    before = VALUES.base, VALUES.ctypes.data
    for _ in range(100):
        CODEC.encode(lent, 4)
    assert (VALUES.base, VALUES.ctypes.data) == before


def test_torch_tensors_are_read_and_written() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([[0.5, -3.0], [0.0, 1.0]])
    for form in (
        tensor,
        tensor.half(),
        tensor.bfloat16(),
        tensor.clone().requires_grad_(),
        torch.nn.Parameter(tensor),
    ):
        assert CODEC.encode(form, 4) == FRAME
    assert CODEC.encode(tensor.t().contiguous().t(), 4) == FRAME
    total = torch.zeros(4)
    add(FRAME, total)
    assert total.tolist() == [0.5, -3.0, 0.0, 1.0]
    frame = torch.frombuffer(bytearray(FRAME), dtype=torch.uint8)
    assert decode(frame, 4).tolist() == total.tolist()
    with pytest.raises(ValueError, match=r"on the CPU, got one on meta|Cannot pack|meta"):
        CODEC.encode(torch.zeros(4, device="meta"))
    with pytest.raises(TypeError, match="got float64"):
        CODEC.encode(tensor.double(), 4)
