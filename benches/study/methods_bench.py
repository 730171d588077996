"""What `trainer codec bench` measures for methods.py on recorded gradients: bits, errors and times."""

import json
import os
import subprocess
from functools import cache
from pathlib import Path

from methods_cells import GRADIENTS, METHODS, TIMED

# Times that a codec is measured in a round; the trainer reports the median.
TURNS = 9


def measure(runs, kinds, *, rounds):
    """Of each codec that lacks them: bits and errors once, for they do not change; then times, once for each round."""
    folder = runs.folder / "bench"
    folder.mkdir(exist_ok=True)
    # Gossip encodes differences of models.
    measured = [method for method in METHODS if method.is_fixed and kinds[method.codec_name] != "gossip"]
    codecs = sorted({method.codec for method in measured if not method.is_learned})
    errors = folder / "errors.jsonl"
    if new := without(errors, codecs):
        files = [(regime, name) for regime, names in inputs(runs).items() for name in names]
        add(errors, [line for regime, name in files for line in bench(runs, new, regime, name, 1)])
    for number in range(rounds):
        times = folder / f"times-{number}.jsonl"
        if new := without(times, codecs):
            add(times, bench(runs, new, "residual", TIMED, 1 if runs.is_quick else TURNS))


def without(file, codecs):
    """Those of the codecs that have no line there."""
    known = {line["codec"] for line in lines(file)}
    return [codec for codec in codecs if codec not in known]


@cache
def cpu_clock(folder):
    """A library that makes the bench measure the time of the processor: on a busy machine, work of some milliseconds waits for
    a core in nearly every turn, and its median says nothing."""
    library = folder / "bench" / "cpu_clock.so"
    source = Path(__file__).with_name("cpu_clock.c")
    subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source], check=True)
    return str(library)


def inputs(runs):
    """By regime."""
    return {"raw": [TIMED]} if runs.is_quick else GRADIENTS


def path(runs, name):
    """Of a gradient. Without data, the parameters of a cell are one."""
    if runs.is_quick:
        return next(runs.folder.glob("*/checkpoints/*/model.safetensors"))
    return Path(os.environ["GRADWIRE_DATA"]) / "gradients" / f"{name}.safetensors"


def bench(runs, codecs, regime, name, turns):
    """A line for each codec."""
    file = path(runs, name)
    command = [runs.trainer, "codec", "bench", "--json", "--iters", turns, "--input", file]
    command += [word for codec in codecs for word in ("--codec", codec)]
    print(f"== bench {name}", flush=True)
    environment = {**os.environ, "LD_PRELOAD": cpu_clock(runs.folder)}
    done = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True, env=environment)
    for codec, line in zip(codecs, map(json.loads, done.stdout.splitlines()), strict=True):
        kept = {key: line[key] for key in ("n", "k", "bytes", "nmse", "encode_ms", "decode_ms", "memcpy_ms")}
        yield {"codec": codec, "regime": regime, "name": name, **kept}


def add(file, measured):
    """All of it or nothing."""
    text = "".join(json.dumps(line) + "\n" for line in [*lines(file), *measured])
    file.write_text(text)


def lines(file):
    """None before anything was measured."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def read(runs, pattern):
    """All lines of the files of that name."""
    files = sorted((runs.folder / "bench").glob(pattern))
    return [line for file in files for line in lines(file)]
