#!/usr/bin/env python3
"""In how many set-ups does compression pay?

usage: utility.py TRAINER FOLDER

With benches/utility/measured as FOLDER it prints the table of docs/advice.md from what was measured for it. With an empty
FOLDER it measures, which takes ten minutes and a Python with torch.

Asks `trainer advise` about every line of setups.csv, three times: with what the codecs of this project cost on this machine
(measured, and kept in FOLDER), with the times that are quoted for a V100, and with the time that top-k takes here in
PyTorch, written as GRACE has it. The list was written down before it was first asked. Links have 50 µs of latency. A gradient
travels in buckets of 25 MB beside the backward pass, which takes 1.1 times as long then. A codec pays if it shortens a step
by 5 % against the faster of dense f32 and dense bf16.

Times of computing in setups.csv are assumed for a graphics processor of the V100's kind, and not measured: what counts is
that they span what people train. Copies between a graphics processor and the memory of the host are not in them.
"""

import collections
import csv
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
CODECS = ["topk:density=0.01", "topk:density=0.001", "qsgd:bits=4,entropy=fixed", "efsign", "powersgd:rank=4", "randomk:density=0.01"]
BUCKET_BYTES = 25 << 20
SLOWDOWN, LATENCY_US = 1.1, 50

# Milliseconds of encoding and decoding ResNet-50 on a V100, as quoted from Agarwal et al. (arXiv 2103.00543), which could not
# be read in full; bytes follow from the methods. A top-k entry is an index and a value of four bytes each.
V100_PARAMS = 25_600_000
V100 = {
    "topk:density=0.01": (240.0, 0.01 * 8, {"sparse": {"density": 0.01}}),
    "efsign": (16.3, 1 / 8, "frames"),
    "powersgd:rank=4": (45.0, None, {"rounds": 2}),
}
ROUNDS = 5


def run(*arguments):
    return subprocess.run([*map(str, arguments)], check=True, capture_output=True, text=True).stdout


def measured(trainer, folder, params):
    """What codecs cost here on a gradient of so many values."""
    path = folder / f"costs-{params}.json"
    if not path.exists():
        ask = ["--params", params, "--compute-ms", 1, "--workers", 2, "--gbps", 1, "--iters", 3]
        run(trainer, "advise", *ask, "--codec", *CODECS, "--save-costs", path, "--force")
    return json.loads(path.read_text())


def of_v100(costs):
    """The same with the quoted times, in proportion to the parameters, and dense sums for nothing."""
    scale = costs["coordinates"] / V100_PARAMS
    ours = {cost["codec"]: cost for cost in costs["codecs"]}
    codecs = []
    for codec, (milliseconds, bytes_a_value, kind) in V100.items():
        size = ours[codec]["bytes"] if bytes_a_value is None else round(bytes_a_value * costs["coordinates"])
        times = {"encode_s": 1e-3 * milliseconds * scale, "decode_s": 0.0, "memcpy_s": 0.0}
        codecs.append({"codec": codec, "kind": kind, "bytes": size, **times})
    bf16 = {**costs["bf16"], "encode_s": 0.0, "decode_s": 0.0}
    return {**costs, "add_s": 0.0, "bf16": bf16, "codecs": codecs}


def grace_seconds(folder, params):
    """Encoding and decoding of top-k at 1 %, on one core: residual, selection, what was sent scattered, the rest kept."""
    path = folder / f"grace-{params}.json"
    if not path.exists():
        # Only what is measured needs it.
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)
        gradient, residual = torch.randn(params).pow(3), torch.zeros(params)
        k, times = max(1, params // 100), []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            corrected = residual + gradient
            _, indices = torch.topk(corrected.abs(), k, sorted=False)
            values = corrected[indices]
            sent = time.perf_counter()
            decoded = torch.zeros(params)
            decoded.scatter_(0, indices, values)
            received = time.perf_counter()
            residual = corrected - decoded
            times.append((time.perf_counter() - start - (received - sent), received - sent))
        path.write_text(json.dumps([statistics.median(column) for column in zip(*times, strict=True)]))
    return json.loads(path.read_text())


def of_grace(folder, costs):
    """Its top-k, which sends an index and a value of four bytes each."""
    ours = next(cost for cost in costs["codecs"] if cost["codec"] == "topk:density=0.01")
    encode, decode = grace_seconds(folder, costs["coordinates"])
    size = round(0.08 * costs["coordinates"])
    return {**costs, "codecs": [{**ours, "bytes": size, "encode_s": encode, "decode_s": decode}]}


def advise(trainer, costs, setup):
    buckets = max(1, -(-4 * int(setup["params"]) // BUCKET_BYTES))
    ask = ["--compute-ms", setup["compute_ms"], "--workers", setup["workers"], "--gbps", setup["gbps"]]
    ask += ["--latency-us", LATENCY_US, "--buckets", buckets, "--slowdown", SLOWDOWN, "--json"]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(costs, file)
        file.flush()
        return json.loads(run(trainer, "advise", "--costs", file.name, *ask))


def main():
    trainer, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    with open(HERE / "setups.csv", newline="") as file:
        setups = list(csv.DictReader(file))
    sources = {
        "this project, measured on one core": lambda costs: costs,
        "a V100, as quoted": of_v100,
        "top-k in PyTorch, as GRACE has it, measured on one core": lambda costs: of_grace(folder, costs),
    }
    print(f"| costs of codecs | pays in, of {len(setups)} | of those, with links of 10 Gbit/s or more | bf16 instead | what is taken |")
    print("| --- | --- | --- | --- | --- |")
    for name, change in sources.items():
        taken, fast, bf16 = collections.Counter(), 0, 0
        costs = {params: change(measured(trainer, folder, int(params))) for params in {setup["params"] for setup in setups}}
        for setup in setups:
            cell = advise(trainer, costs[setup["params"]], setup)
            choice = cell["choice"]
            if choice == cell["bf16"]["codec"]:
                bf16 += 1
            elif choice != cell["dense"]["codec"]:
                taken[choice] += 1
                fast += float(setup["gbps"]) >= 10
        of_fast = sum(float(setup["gbps"]) >= 10 for setup in setups)
        listed = ", ".join(f"`{codec}` {count}" for codec, count in taken.most_common())
        print(f"| {name} | {taken.total()} | {fast} of {of_fast} | {bf16} | {listed or '-'} |")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main()
