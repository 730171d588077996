#!/usr/bin/env python3
"""decode.py DECODE: what the example decode.c prints of every golden frame is what the decoder written from FORMAT.md
reads, with as little knowledge of the layout. The same of frames that the Python package makes, where it is installed."""

import subprocess
import sys
import tempfile
from array import array
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "format"))
from decode import FrameError, add_frames, read_frames  # noqa: E402

SPELLINGS = [
    "none",
    "bf16",
    "topk:density=0.01",
    "topk:density=0.05,index=bitmap,values=q8",
    "dgc:density=0.01",
    "qsgd:bits=4",
    "efsign",
]


def printed(program, path):
    """The values that the program prints, by their places, or what it says is wrong."""
    run = subprocess.run([program, path], capture_output=True, text=True, check=False)
    if run.returncode:
        return run.stderr.strip().split(": ", 1)[1]
    lines = [line.split() for line in run.stdout.splitlines() if not line.startswith("#")]
    return {int(index): array("f", [float(value)]) for index, value in lines}


def differs(held, dense):
    """The first place at which what was printed and the whole gradient have different bits."""
    zero = array("f", [0.0])
    for index, value in enumerate(dense):
        # A sum with zero has no negative zero.
        if held.get(index, zero)[0] + 0.0 != value:
            return index
    return None if all(index < len(dense) for index in held) else len(dense)


def golden(program):
    same = shapes = 0
    for path in sorted((ROOT / "tests" / "golden").glob("*.bin")):
        held = printed(program, path)
        try:
            dense = add_frames(read_frames(path.read_bytes(), None))
        except FrameError as error:
            assert str(error) == "LayoutUnknown" and "without the shapes" in held, (path, error, held)
            shapes += 1
            continue
        if "without the shapes" in held:
            # FORMAT.md's decoder tells one vector by its fingerprint.
            shapes += 1
            continue
        assert not isinstance(held, str), (path, held)
        assert differs(held, dense) is None, (path, differs(held, dense))
        same += 1
    print(f"{same} golden frames decode alike; {shapes} need their shapes")
    assert same > 300


def from_python(program):
    try:
        import gradwire
        import numpy as np
    except ImportError:
        print("frames from Python: SKIPPED, the package is not installed")
        return
    layout = gradwire.Layout({"weight": (30, 50), "bias": (30,)})
    grad = np.random.default_rng(7).normal(size=1530).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "frame.bin"
        for spelling in SPELLINGS:
            codec = gradwire.Codec(spelling)
            memory = {"layout": layout}
            if codec.memory != "none":
                memory = {"memory": gradwire.Memory(codec, layout)}
            path.write_bytes(codec.encode(grad, **memory, step=3, rank=1))
            total = np.zeros(1530, np.float32)
            gradwire.add(path.read_bytes(), total, layout=layout)
            held = printed(program, path)
            assert not isinstance(held, str), (spelling, held)
            assert differs(held, total) is None and any(total), (spelling, differs(held, total))
    print(f"{len(SPELLINGS)} frames from gradwire {gradwire.__version__} for Python decode alike")


golden(sys.argv[1])
from_python(sys.argv[1])
