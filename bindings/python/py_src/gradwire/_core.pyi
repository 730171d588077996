from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NotRequired, Protocol, TypeAlias, TypedDict, final, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

_F32: TypeAlias = NDArray[np.float32]
_Dtype: TypeAlias = Literal["f32", "float32", "f16", "float16", "bf16", "bfloat16"]
_Unit: TypeAlias = tuple[int, int, int, bool]

class _DLPack(Protocol):
    # Exporters differ in the parameters that they take.
    @property
    def __dlpack__(self) -> Any: ...
    @property
    def __dlpack_device__(self) -> Any: ...

class _Shaped(Protocol):
    @property
    def shape(self) -> Any: ...

_Buffer: TypeAlias = Buffer | _DLPack
_Shape: TypeAlias = int | Sequence[int] | _Shaped
_LayoutLike: TypeAlias = Layout | int | Mapping[str, _Shape] | list[tuple[str, _Shape]]

class _UnitInfo(TypedDict):
    id: int
    start: int
    len: int
    kind: str
    held: int
    nbytes: int
    index: NotRequired[tuple[str, int]]
    values: NotRequired[tuple[str, int]]

class _FrameInfo(TypedDict):
    version: int
    codec: str
    divisor: Literal["contributors", "senders"]
    step: int
    fingerprint: int
    checksum: int
    nbytes: int
    elements: int
    held: int
    ratio: float
    units: list[_UnitInfo]

class _State(TypedDict):
    version: int
    codec: str
    residual: dict[str, _F32]
    momentum: dict[str, _F32] | None
    factors: _F32
    states: list[list[int]]
    arrays: dict[str, _F32]

__all__ = [
    "CODECS",
    "FORMAT_VERSIONS",
    "SAVED_MEMORY_VERSIONS",
    "VERSION",
    "Codec",
    "DecodeError",
    "EncodeError",
    "Exchange",
    "ExchangeError",
    "Frame",
    "Layout",
    "Limits",
    "LinearRound",
    "Listener",
    "Memory",
    "Mesh",
    "UnitSource",
    "_Bucket",
    "_Engine",
    "_Share",
    "_View",
    "add",
    "decode",
    "divide",
    "inspect",
    "register",
]

CODECS: Final[str]
FORMAT_VERSIONS: Final[tuple[int, ...]]
SAVED_MEMORY_VERSIONS: Final[tuple[int, ...]]
VERSION: Final[str]

class EncodeError(ValueError): ...
class DecodeError(ValueError): ...
class ExchangeError(RuntimeError): ...

@final
class Layout:
    def __new__(cls, tensors: _LayoutLike, /) -> Layout: ...
    @property
    def fingerprint(self) -> int: ...
    @property
    def names(self) -> list[str]: ...
    @property
    def shapes(self) -> list[tuple[int, ...]]: ...
    def slice(self, name: str) -> slice[int, int, None]: ...
    def __len__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Codec:
    def __new__(cls, spelling: str, /) -> Codec: ...
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> Literal["gather", "linear", "gossip"]: ...
    @property
    def memory(self) -> Literal["none", "ef", "momentum"]: ...
    @property
    def density(self) -> float | None: ...
    @property
    def warmup(self) -> int: ...
    @property
    def max_packet_bytes(self) -> int | None: ...
    @property
    def has_frames(self) -> bool: ...
    @property
    def is_linear(self) -> bool: ...
    def with_density(self, density: float) -> Codec: ...
    def in_epoch(self, epoch: int) -> Codec: ...
    def units(self, layout: _LayoutLike) -> list[_Unit]: ...
    def max_frame_bytes(self, layout: _LayoutLike, *, units: Sequence[_Unit] | None = None) -> int: ...
    @overload
    def encode(
        self,
        grad: _Buffer,
        layout: _LayoutLike | None = None,
        memory: Memory | None = None,
        *,
        step: int = 0,
        seed: int = 0,
        rank: int = 0,
        dtype: _Dtype | None = None,
        units: Sequence[_Unit] | None = None,
        out: None = None,
    ) -> bytes: ...
    @overload
    def encode(
        self,
        grad: _Buffer,
        layout: _LayoutLike | None = None,
        memory: Memory | None = None,
        *,
        step: int = 0,
        seed: int = 0,
        rank: int = 0,
        dtype: _Dtype | None = None,
        units: Sequence[_Unit] | None = None,
        out: Buffer,
    ) -> memoryview: ...
    def packets(
        self,
        grad: _Buffer,
        layout: _LayoutLike | None = None,
        memory: Memory | None = None,
        *,
        step: int = 0,
        seed: int = 0,
        rank: int = 0,
        dtype: _Dtype | None = None,
        units: Sequence[_Unit] | None = None,
        max_packet_bytes: int | None = None,
    ) -> list[bytes]: ...
    def begin(
        self,
        grad: _Buffer,
        layout: _LayoutLike | None = None,
        memory: Memory | None = None,
        *,
        step: int = 0,
        seed: int = 0,
        rank: int = 0,
        workers: int = 1,
        dtype: _Dtype | None = None,
        units: Sequence[_Unit] | None = None,
    ) -> list[LinearRound]: ...
    def _bench_encode(self, grad: _Buffer, memory: Memory | None = None, *, step: int = 0, fresh: bool = False) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

class _OwnCodec(Protocol):
    def encode(self, values: _F32, source: UnitSource, /) -> Any: ...
    def decode(self, body: bytes, length: int, /) -> Any: ...

@final
class UnitSource:
    @property
    def step(self) -> int: ...
    @property
    def unit(self) -> int: ...
    @property
    def density(self) -> float | None: ...
    @property
    def seed(self) -> int: ...
    @property
    def shared_seed(self) -> int: ...

@final
class Memory:
    def __new__(cls, codec: Codec, layout: _LayoutLike, *, units: Sequence[_Unit] | None = None) -> Memory: ...
    @property
    def residual(self) -> _F32: ...
    @property
    def momentum(self) -> _F32 | None: ...
    @property
    def factors(self) -> _F32: ...
    @property
    def layout(self) -> Layout: ...
    def tensor(self, name: str) -> _F32: ...
    def norm(self) -> float: ...
    def clear(self) -> None: ...
    def rescale(self, ratio: float) -> None: ...
    def decay(self, factor: float) -> None: ...
    def give_back(self, frame: _Buffer | Frame) -> None: ...
    def save(self) -> bytes: ...
    def load(self, saved: _Buffer) -> None: ...
    def state_dict(self) -> _State: ...
    def load_state_dict(self, state: _State) -> None: ...
    def copy_from(self, other: Memory) -> list[str]: ...
    def copy(self) -> Memory: ...
    def __len__(self) -> int: ...

@final
class Listener:
    def __new__(
        cls,
        rank: int,
        address: str = "127.0.0.1:0",
        *,
        key: bytes | None = None,
        insecure: bool = False,
        terms: Mapping[str, object] | None = None,
    ) -> Listener: ...
    @property
    def address(self) -> str: ...
    def join(self, addresses: Sequence[str], timeout: float = 60.0) -> Mesh: ...

@final
class Mesh:
    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...
    @property
    def sent(self) -> int: ...
    @property
    def received(self) -> int: ...
    def close(self, timeout: float = 5.0) -> None: ...

@final
class Exchange:
    def __new__(
        cls,
        mesh: Mesh,
        codec: Codec,
        layout: _LayoutLike,
        *,
        units: Sequence[_Unit] | None = None,
        wire: Literal["f32", "bf16"] = "f32",
        seed: int = 0,
        timeout: float = 60.0,
    ) -> Exchange: ...
    @overload
    def mean(self, grad: _Buffer, memory: Memory | None = None, *, step: int, out: None = None) -> _F32: ...
    @overload
    def mean(self, grad: _Buffer, memory: Memory | None = None, *, step: int, out: _F32) -> _F32: ...
    def set_codec(self, codec: Codec) -> None: ...

@final
class Limits:
    def __new__(
        cls,
        layout: _LayoutLike,
        *,
        max_elements: int | None = None,
        max_body_bytes: int | None = None,
        max_entries: int | None = None,
        max_units: int | None = None,
        max_scratch_words: int | None = None,
        max_magnitude: float | None = None,
    ) -> Limits: ...
    @property
    def max_elements(self) -> int: ...
    @property
    def max_body_bytes(self) -> int: ...
    @property
    def max_entries(self) -> int: ...
    @property
    def max_units(self) -> int: ...
    @property
    def max_scratch_words(self) -> int: ...
    @property
    def max_magnitude(self) -> float: ...

@final
class Frame:
    def __new__(cls, frame: _Buffer, layout: _LayoutLike, *, limits: Limits | None = None) -> Frame: ...
    @property
    def codec(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def fingerprint(self) -> int: ...
    @property
    def checksum(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def elements(self) -> int: ...
    @property
    def held(self) -> int: ...
    @property
    def ratio(self) -> float: ...
    @property
    def units(self) -> list[_UnitInfo]: ...
    def add_to(self, acc: _Buffer, weight: float = 1.0) -> None: ...
    def to_numpy(self, out: _F32 | None = None) -> _F32: ...
    def to_bytes(self) -> bytes: ...
    def __len__(self) -> int: ...

@final
class LinearRound:
    @property
    def unit(self) -> _Unit: ...
    @property
    def range(self) -> tuple[int, int]: ...
    @property
    def index(self) -> int: ...
    @property
    def reduction(self) -> Literal["sum", "max", "min", "and", "gather", "broadcast"]: ...
    @property
    def source(self) -> int | None: ...
    @property
    def done(self) -> bool: ...
    @property
    def payload(self) -> NDArray[np.float32 | np.int32 | np.uint32 | np.uint8]: ...
    def advance(self) -> None: ...
    @property
    def mean(self) -> _F32: ...
    def abandon(self) -> None: ...

def decode(frame: _Buffer | Frame, layout: _LayoutLike, *, limits: Limits | None = None, out: _F32 | None = None) -> _F32: ...
def add(
    frame: _Buffer | Frame,
    acc: _Buffer,
    weight: float = 1.0,
    *,
    layout: _LayoutLike | None = None,
    limits: Limits | None = None,
) -> None: ...
def inspect(frame: _Buffer | Frame, layout: _LayoutLike | None = None, *, max_elements: int = 268435456) -> _FrameInfo: ...
def divide(acc: _Buffer, contributors: int) -> int | None: ...
def register(
    name: str,
    make: Callable[..., _OwnCodec],
    *,
    number: int,
    law: Literal["exact", "rounded", "none"] = "rounded",
    keys: str = "",
    summary: str = "",
    examples: Sequence[str] | None = None,
    density: float | None = None,
) -> None: ...

# For gradwire.torch.
_Where: TypeAlias = tuple[int, float | None, float | None, bool, Literal["none", "holds", "nothing"]]

@final
class _Share:
    def __new__(cls, lane: int, tensors: Sequence[tuple[int, int, int, int]]) -> _Share: ...

@final
class _Bucket:
    def __new__(
        cls,
        index: int,
        is_last: bool,
        *,
        done: Callable[[bytes], None],
        keep: object,
        agreed: int = 0,
        opening: tuple[Sequence[int], Sequence[Codec], float | None, float | None] | None = None,
        shares: Sequence[_Share] = ...,
        elsewhere: Sequence[tuple[int, int, int]] = ...,
        elements: int = 0,
        used: bytes = ...,
        parameters: Sequence[tuple[int, int]] = ...,
        failure: BaseException | None = None,
        fetch: Callable[[], tuple[Sequence[_Share], Sequence[tuple[int, int]]]] | None = None,
        store: Callable[[bool], None] | None = None,
        trace: Callable[[str], object] | None = None,
    ) -> _Bucket: ...
    @property
    def index(self) -> int: ...

@final
class _Engine:
    def __new__(
        cls,
        mesh: Mesh,
        lanes: Sequence[tuple[Codec, Layout, Sequence[_Unit], bool, str]],
        names: Sequence[str],
        after: Callable[[int, float | None], int | None],
        seed: int,
        timeout: float,
        threads: int,
    ) -> _Engine: ...
    @property
    def is_pending(self) -> bool: ...
    def give(self, bucket: _Bucket) -> bool: ...
    def wait(self, for_means: bool) -> bool: ...
    def idle_seconds(self) -> float: ...
    def failure(self) -> tuple[str, str, list[int], int, BaseException | None] | None: ...
    def break_off(self, text: str) -> bool: ...
    def fail(self, text: str) -> None: ...
    def view(self) -> _View: ...
    def read(self, memories: Sequence[tuple[int, Memory]]) -> _Where: ...
    def load(self, memories: Sequence[tuple[int, Memory]], step: int, scale: float | None, lr: float | None) -> None: ...
    def rescale(self, ratio: float) -> None: ...
    def is_discardable(self, lane: int) -> bool: ...
    def discard(self) -> None: ...
    def before_fork(self, seconds: float) -> None: ...
    def after_fork(self) -> bool: ...
    def close(self) -> None: ...

@final
class _View:
    def progress(self) -> _Where: ...
    def norm(self, lanes: Sequence[int], *, is_sampled: bool = False) -> float: ...
    def totals(self) -> dict[str, float]: ...
