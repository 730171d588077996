#!/usr/bin/env python3
"""What shared coordinates save, from 4 to 256 workers.

usage: workers.py TRAINER FOLDER

With benches/utility/measured as FOLDER it prints the table of docs/choosing-a-codec.md from the bytes that were counted for
it. With an empty FOLDER it counts them, on a drawn gradient of 25 million values, which takes a minute.

The formulas are those of `trainer advise`, which picks the exchange of each row; `trainer simulate` then sends that exchange
message by message. Only moving is compared: the computing and the coding of a step are taken to be nothing. On links that are
alike and lose nothing, both have to agree. Where they differ by more than one in a thousand, the program fails.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

PARAMS = 25_000_000
CODECS = [
    "topk:density=0.01",
    "topk:density=0.01,values=q4",
    "randomk:density=0.01",
    "sharedk:density=0.01,by=leader",
    "sharedk:density=0.01,by=sketch",
]
WORKERS, GBPS, LATENCY_US = [4, 16, 64, 256], [0.1, 1.0], 50
# One message in ten thousand is sent again after the 200 ms that Linux waits at least.
LOSSES = "loss = 0.0001\nretry_ms = 200\n"
STEPS = 100


def run(*arguments):
    return subprocess.run([*map(str, arguments)], check=True, capture_output=True, text=True).stdout


def lines(*arguments):
    return [json.loads(line) for line in run(*arguments).splitlines()]


def costs(trainer, folder):
    """A file with the bytes of each codec. Its times are nothing: those of one machine would be no news of another."""
    path = folder / f"shared-{PARAMS}.json"
    if not path.exists():
        ask = ["--params", PARAMS, "--compute-ms", 1, "--workers", 2, "--gbps", 1, "--iters", 1, "--codec", *CODECS]
        run(trainer, "advise", *ask, "--save-costs", path)
        kept = json.loads(path.read_text())
        del kept["conditions"]
        kept["add_s"] = 0.0
        for cost in [kept["dense"], kept["bf16"], *kept["codecs"]]:
            cost |= {"encode_s": 0.0, "decode_s": 0.0, "memcpy_s": 0.0}
        path.write_text(json.dumps(kept, indent=2) + "\n")
    return path


def simulated(trainer, folder, sent, row, cell, more):
    """Seconds of the exchange of one row, the mean of many steps, replayed from a run of one step."""
    step = {"step": 0, "epoch": 0, "loss": 0.0, "lr": 0.0, "bytes_up": 0, "bytes_down": 0, "wire_ratio": None}
    step |= {"ratio": 4 * PARAMS / sent[row["codec"]], "contributors": cell["workers"], "compute_ns": 0, "encode_ns": 0}
    step |= {"exchange_ns": 0, "decode_ns": 0, "residual_norm": 0.0, "density": 0.0, "codec": row["codec"]}
    (folder / "metrics.jsonl").write_text(json.dumps(step) + "\n")
    links = f"workers = {cell['workers']}\ngbps = {cell['gbps']}\nlatency_us = {LATENCY_US}\n"
    (folder / "cluster.toml").write_text(links + more)
    ask = ["--cluster", folder / "cluster.toml", "--params", PARAMS, "--exchange", row["exchange"], "--steps", STEPS, "--json"]
    (told,) = lines(trainer, "simulate", folder, *ask)
    return told["outcome"]["exchange_ms"] / 1e3


def seconds(trainer, sent, row, cell):
    """By the formula, and simulated on links that lose messages."""
    formula = row["moving_ms"] / 1e3
    with tempfile.TemporaryDirectory() as folder:
        equal, lossy = (simulated(trainer, Path(folder), sent, row, cell, more) for more in ["", LOSSES])
    if abs(equal / formula - 1) > 1e-3:
        sys.exit(f"{row['codec']}, {cell['workers']} workers: {equal} s simulated, {formula} s by the formulas")
    return f"{formula:.3g}, {lossy:.3g}"


def main():
    trainer, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    file = costs(trainer, folder)
    kept = json.loads(file.read_text())
    sent = {"none": 4 * PARAMS} | {cost["codec"]: cost["bytes"] for cost in kept["codecs"]}
    ask = ["--compute-ms", 1, "--workers", ",".join(map(str, WORKERS)), "--gbps", ",".join(map(str, GBPS))]
    cells = lines(trainer, "advise", "--costs", file, *ask, "--latency-us", LATENCY_US, "--json")
    pairs = [(cell, row) for cell in cells for row in [cell["dense"], *cell["codecs"]]]
    rows = {(cell["workers"], cell["gbps"], row["codec"]): (cell, row) for cell, row in pairs}
    rates = "".join(f" seconds at {1000 * gbps:.0f} Mbit/s: formula, with losses |" for gbps in GBPS)
    print(f"| codec | workers | exchange | MB sent |{rates}\n{'| --- ' * (4 + len(GBPS))}|")
    for name in sent:
        for workers in WORKERS:
            of_rates = [rows[workers, gbps, name] for gbps in GBPS]
            times = " | ".join(seconds(trainer, sent, row, cell) for cell, row in of_rates)
            (_, row), *_ = of_rates
            print(f"| `{name}` | {workers} | {row['exchange']} | {row['bytes'] / 1e6:.3g} | {times} |")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main()
