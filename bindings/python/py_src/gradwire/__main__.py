"""The command line: ``python -m gradwire encode|decode|inspect|bench|list``.

Gradients are ``.npy``, ``.npz`` and, where the package safetensors is installed, ``.safetensors`` files with float32 or
float16 arrays. The flat gradient is the arrays in the order of the file. A frame file is one frame and nothing else.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import gradwire
from gradwire import Codec, Layout, Memory

Arrays = dict[str, NDArray[np.generic]]
BENCHED = ("none", "f16", "topk:density=0.01", "topk:density=0.01,values=q4", "qsgd:bits=4")


def ensure_free(result: Path, force: bool, *inputs: Path | None) -> None:
    """Refuses a place for a result: never that of a file that is read, and that of another one only with --force."""
    if not result.exists():
        return
    for path in inputs:
        if path is not None and path.exists() and result.samefile(path):
            raise ValueError(f"{result}: the same file as {path}, which this command reads; give another name")
    if not force:
        raise ValueError(f"{result}: exists already; give another name, or --force to overwrite it")


def whole(result: Path, write: Callable[[Path], object]) -> None:
    """Writes a file whole or not at all: under another name first."""
    result = result.resolve()
    part = result.with_name(f".gradwire-{result.name}")
    try:
        write(part)
        part.replace(result)
    finally:
        part.unlink(missing_ok=True)


def read(path: Path) -> Arrays:
    """The arrays of a gradient file, by name."""
    match path.suffix:
        case ".npy":
            return {path.stem: np.load(path, allow_pickle=False)}
        case ".npz":
            with np.load(path, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        case ".safetensors":
            try:
                from safetensors.numpy import load_file
            except ImportError:
                raise ValueError(f"{path}: pip install safetensors reads it") from None
            loaded: Arrays = load_file(path)
            return loaded
        case _:
            raise ValueError(f"{path}: expected a .npy, .npz or .safetensors file")


def write(path: Path, layout: Layout, values: NDArray[np.float32]) -> None:
    """The arrays of a layout to a gradient file."""
    arrays = {name: values[layout.slice(name)].reshape(shape) for name, shape in zip(layout.names, layout.shapes, strict=True)}
    match path.suffix:
        case ".npy":
            np.save(path, values if len(arrays) != 1 else next(iter(arrays.values())))
        case ".npz":
            np.savez(path, allow_pickle=False, **arrays)
        case ".safetensors":
            try:
                from safetensors.numpy import save_file
            except ImportError:
                raise ValueError(f"{path}: pip install safetensors writes it") from None
            save_file(arrays, path)
        case _:
            raise ValueError(f"{path}: expected a .npy, .npz or .safetensors file")


def flatten(path: Path) -> tuple[Layout, NDArray[np.float32]]:
    """One flat gradient, and what is in it."""
    arrays = read(path)
    for name, array in arrays.items():
        if array.dtype not in (np.float32, np.float16):
            raise ValueError(f"{path}: {name}: expected float32 or float16, got {array.dtype}")
    parts = [np.ravel(array).astype(np.float32) for array in arrays.values()]
    flat: NDArray[np.float32] = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    return Layout({name: array.shape for name, array in arrays.items()}), flat


def memory_of(codec: Codec, layout: Layout) -> Memory | None:
    """What the codec keeps, before the first step."""
    return None if codec.memory == "none" else Memory(codec, layout)


def table(rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as they have to be; all but the first to the right."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = (
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in texts
    )
    return "\n".join(line.rstrip() for line in lines)


def encode(arguments: argparse.Namespace) -> None:
    """One gradient file to one frame."""
    codec = Codec(arguments.codec)
    ensure_free(arguments.frame, arguments.force, arguments.gradient)
    layout, grad = flatten(arguments.gradient)
    key = {"step": arguments.step, "seed": arguments.seed, "rank": arguments.rank}
    frame = codec.encode(grad, layout, memory_of(codec, layout), **key)
    whole(arguments.frame, lambda path: path.write_bytes(frame))
    ratio = 4 * len(layout) / len(frame)
    print(f"{arguments.frame}: {len(frame)} bytes, {ratio:.1f} times smaller than float32")


def layout_like(path: Path | None) -> Layout | None:
    """The layout of a gradient file, if one is given."""
    return None if path is None else Layout({name: array.shape for name, array in read(path).items()})


def decode(arguments: argparse.Namespace) -> None:
    """One frame to a gradient file."""
    ensure_free(arguments.gradient, arguments.force, arguments.frame, arguments.like)
    frame = arguments.frame.read_bytes()
    layout = layout_like(arguments.like)
    if layout is None:
        # Enough for an honest frame, and not a gigabyte for a hundred bytes.
        units = gradwire.inspect(frame, max_elements=max(1 << 22, len(frame) << 12))["units"]
        layout = Layout(max((unit["start"] + unit["len"] for unit in units), default=0))
    values = gradwire.decode(frame, layout)
    whole(arguments.gradient, lambda path: write(path, layout, values))
    print(f"{arguments.gradient}: {len(layout)} elements")


def inspect(arguments: argparse.Namespace) -> None:
    """Every field of a frame, and its units."""
    fields = gradwire.inspect(arguments.frame.read_bytes(), layout_like(arguments.like))
    shown = {
        "codec": fields["codec"],
        "version": fields["version"],
        "step": fields["step"],
        "divisor": fields["divisor"],
        "fingerprint": f"{fields['fingerprint']:016x}",
        "checksum": f"{fields['checksum']:08x}",
        "bytes": fields["nbytes"],
        "elements": fields["elements"],
        "held": fields["held"],
        "ratio": f"{fields['ratio']:.2f}",
    }
    print("\n".join(f"{name:<12} {value}" for name, value in shown.items()))
    print()
    rows: list[Sequence[object]] = [("unit", "start", "elements", "kind", "held", "bytes", "index", "values")]
    for unit in fields["units"]:
        sections = [" ".join(map(str, section)) if section else "" for section in (unit.get("index"), unit.get("values"))]
        rows.append((unit["id"], unit["start"], unit["len"], unit["kind"], unit["held"], unit["nbytes"], *sections))
    print(table(rows))


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    """The median of some calls."""
    times = []
    for _ in range(repeats):
        before = time.perf_counter()
        work()
        times.append(time.perf_counter() - before)
    return 1e3 * statistics.median(times)


def bench(arguments: argparse.Namespace) -> None:
    """Bytes, error and time of codecs on one gradient."""
    layout, grad = flatten(arguments.gradient)
    norm = float(np.linalg.norm(grad)) or 1.0
    rows: list[Sequence[object]] = [("codec", "bytes", "bits/element", "error", "encode ms", "decode ms")]
    for spelling in arguments.codecs or BENCHED:
        codec = Codec(spelling)
        memory = memory_of(codec, layout)
        frame = codec.encode(grad, layout, memory)
        values = np.zeros(len(layout), np.float32)
        gradwire.add(frame, values, layout=layout)
        error = float(np.linalg.norm(grad - values)) / norm

        encode_once = partial(codec.encode, grad, layout, memory)
        add_once = partial(gradwire.add, frame, values, layout=layout)
        encoding = milliseconds(encode_once, arguments.repeats)
        decoding = milliseconds(add_once, arguments.repeats)
        bits = 8 * len(frame) / max(len(layout), 1)
        rows.append((codec, len(frame), f"{bits:.3f}", f"{error:.4f}", f"{encoding:.3f}", f"{decoding:.3f}"))
    said = f"error is relative, of the first step; times are medians of {arguments.repeats}"
    print(f"{arguments.gradient}: {len(layout)} elements; {said}")
    print(table(rows))


def list_codecs(_: argparse.Namespace) -> None:
    """Every codec, with what it keeps."""
    rows: list[Sequence[object]] = [("codec", "kind", "memory", "frames")]
    for name in gradwire.CODECS.split(", "):
        codec = Codec(f"{name}:value=0.01" if name == "threshold" else name)
        rows.append((codec, codec.kind, codec.memory, "yes" if codec.has_frames else "no"))
    print(table(rows))


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    top = argparse.ArgumentParser(prog="python -m gradwire", description="Codecs on gradient files")
    top.add_argument("--version", action="version", version=gradwire.__version__)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    made = command("encode", encode, "write the frame that a codec makes of a gradient file")
    made.add_argument("codec", help="its spelling, for instance topk:density=0.01")
    made.add_argument("gradient", type=Path)
    made.add_argument("frame", type=Path)
    for name in ("step", "seed", "rank"):
        made.add_argument(f"--{name}", type=int, default=0)
    read_back = command("decode", decode, "write the gradient that a frame decodes to")
    read_back.add_argument("frame", type=Path)
    read_back.add_argument("gradient", type=Path)
    for writes in (made, read_back):
        writes.add_argument("--force", action="store_true", help="overwrite the result if it exists")
    shown = command("inspect", inspect, "show every field of a frame, and its units")
    shown.add_argument("frame", type=Path)
    for reads in (read_back, shown):
        reads.add_argument("--like", type=Path, help="a gradient file with the layout of the frame")
    measured = command("bench", bench, "measure codecs on a gradient file: bytes, error, time")
    measured.add_argument("gradient", type=Path)
    measured.add_argument("codecs", nargs="*", help=f"spellings; else {' '.join(BENCHED)}")
    measured.add_argument("--repeats", type=int, default=5)
    command("list", list_codecs, "list the codecs")
    return top


def main() -> int:
    """Runs one command; an error is one line."""
    try:
        try:
            arguments = parser().parse_args()
            arguments.run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads has seen enough. Python would flush the rest when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, OverflowError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
