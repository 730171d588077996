#!/usr/bin/env python3
"""Step times that `trainer advise` predicts, against those that are measured on hosts of the lab.

usage: advice_check.py RESULTS.jsonl [--quick]

In each round, for each model, rate and number of workers:

    inputs    `trainer advise` under mpirun on the hosts: what codecs cost with all hosts busy, and how fast the links are;
              then seconds a step of workers that do not talk to one another
    step      for each codec, what is predicted from the inputs of this round, and seconds a step over MPI, by the exchange
              that was advised

Nothing is fitted to the step times. The machine must do nothing else: a rank that waits yields its core, and any other program
then keeps it for milliseconds. Each line of RESULTS.jsonl is one measurement; those that are there are not made again,
so the program may be stopped and started at any time. At the end, also of a start that finds everything, it prints the
table. --quick: one model, one rate, one round, to see that it works.
"""

import array
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Importing leaves no files behind.
sys.dont_write_bytecode = True

import programs
import sandbox
from advice_plan import AFTERWARDS, EXCHANGES, METHODS, MODELS, ROUNDS, SEEN
from network import Network
from wallclock import EAGER, PIPE, Results, seconds_a_step

LEARNING_RATE = 0.05
# For how long steps are timed, and how many at least.
TIMED_SECONDS = 3
FEWEST_STEPS, MOST_STEPS = 16, 400
# How often workers are timed that do not talk to one another, and over how many steps.
TURNS_ALONE, STEPS_ALONE = 3, 100


def trainer(*arguments):
    return [os.environ[programs.TRAINER], *map(str, arguments)]


def train(model, workers, steps, out, *more):
    settings, batch = MODELS[model]
    fixed = ["--workers", workers, "--batch", batch * workers, "--steps", steps, "--eval-every", 0, "--hash-every", 0]
    return trainer("train", *settings, *fixed, "--out", out, *more)


def gradient(model, folder):
    """A gradient as a safetensors file: what one step of plain SGD took from the parameters, over the learning rate."""
    out = Path(folder) / model
    more = ["--codec", "none", "--lr", LEARNING_RATE, "--checkpoint-every", 1]
    subprocess.run(train(model, 1, 12, out, *more), check=True, stdout=subprocess.DEVNULL)
    before, after = (read(path) for path in sorted(out.glob("checkpoints/*/model.safetensors"))[-2:])
    header, data, at = {}, b"", 0
    for name, (shape, values) in after.items():
        taken = array.array("f", ((a - b) / LEARNING_RATE for a, b in zip(before[name][1], values, strict=True)))
        data += taken.tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, len(data)]}
        at = len(data)
    text = json.dumps(header).encode()
    path = Path(folder) / f"{model}.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def read(path):
    """The parameters of a checkpoint, by name."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if name.startswith("params/"):
            begin, end = entry["data_offsets"]
            tensors[name] = (entry["shape"], array.array("f", data[begin:end]))
    return tensors


def measure_inputs(results, key, folder, path):
    if results.has(kind="inputs", **key):
        return
    costs = Path(folder) / "costs.json"
    codecs = [method for method in METHODS if not method.startswith("none")]
    ask = ["advise", "--input", path, "--compute-ms", 1, "--json", "--save-costs", costs, "--force", "--codec", *codecs]
    with Network(key["workers"], rate=key["rate"]) as network:
        with network.mpirun(trainer(*ask), parameters=EAGER, **PIPE) as job:
            told = job.communicate()[0]
        assert job.returncode == 0, told
    cell = json.loads(next(line for line in told.splitlines() if line.startswith("{")))
    compute = statistics.median(seconds_alone(key, Path(folder) / str(turn)) for turn in range(TURNS_ALONE))
    link = {name: cell[name] for name in ("gbps", "latency_us", "burst_bytes")}
    results.add(kind="inputs", **key, **link, compute=compute, costs=json.loads(costs.read_text()))


def seconds_alone(key, folder):
    """Seconds a step of workers that go on side by side; the slowest is what the others would wait for."""
    with Network(key["workers"], rate=key["rate"]) as network:
        alone = [train(key["model"], 1, STEPS_ALONE, folder / str(host), "--codec", "none") for host in network.hosts]
        runs = [network.start(host, command, **PIPE) for host, command in zip(network.hosts, alone, strict=True)]
        with ThreadPoolExecutor() as readers:
            return max(readers.map(seconds_a_step, runs))


def predict(results, key, folder):
    """What is said of each codec, with the inputs of this round."""
    (inputs,) = (line for line in results.lines if line["kind"] == "inputs" and key.items() <= line.items())
    costs = Path(folder) / "inputs.json"
    costs.write_text(json.dumps(inputs["costs"]))
    ask = ["--costs", costs, "--compute-ms", 1e3 * inputs["compute"], "--workers", key["workers"]]
    ask += ["--gbps", inputs["gbps"], "--latency-us", inputs["latency_us"], "--burst-bytes", inputs["burst_bytes"], "--json"]
    told = subprocess.run(trainer("advise", *ask), check=True, capture_output=True, text=True).stdout
    cell = json.loads(told)
    return {row["codec"]: row for row in [cell["dense"], cell["bf16"], *cell["codecs"]]}


def measure_step(results, key, method, row):
    if results.has(kind="step", method=method, **key):
        return
    command = [*METHODS[method], "--exchange", EXCHANGES[row["exchange"]]]
    with tempfile.TemporaryDirectory() as folder, Network(key["workers"], rate=key["rate"]) as network:
        steps, wanted = 0, FEWEST_STEPS
        # A first run tells how many steps there is time for.
        while wanted > 1.25 * steps:
            steps, out = wanted, Path(folder) / str(wanted)
            run = train(key["model"], key["workers"], steps, out, *command, "--checkpoint-every", 0)
            with network.mpirun(run, parameters=EAGER, **PIPE) as job:
                seconds = seconds_a_step(job)
            wanted = min(int(TIMED_SECONDS / seconds), MOST_STEPS)
    results.add(kind="step", method=method, **key, exchange=row["exchange"], predicted=row["step_ms"] / 1e3, seconds=seconds)


def combinations(results):
    """Median of prediction and measurement over the rounds, by combination, and how far measurements are from theirs."""
    steps = {}
    for line in results.lines:
        if line["kind"] == "step":
            steps.setdefault((line["model"], line["rate"], line["workers"], line["method"]), []).append(line)
    for key, lines in steps.items():
        seconds = [line["seconds"] for line in lines]
        measured, predicted = statistics.median(seconds), statistics.median(line["predicted"] for line in lines)
        repeat = max(abs(value / measured - 1) for value in seconds)
        yield key, lines[0]["exchange"], predicted, measured, predicted / measured - 1, repeat


def report(results):
    rows = list(combinations(results))
    print("| model | Mbit/s | workers | codec | exchange | predicted ms | measured ms | error | repeats differ by |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for (model, rate, workers, method), exchange, predicted, measured, error, repeat in rows:
        times = f"{1e3 * predicted:.1f} | {1e3 * measured:.1f} | {100 * error:+.1f} % | {100 * repeat:.1f} %"
        print(f"| {model} | {rate} | {workers} | `{method}` | {exchange} | {times} |")
    print("\n| combinations | median error | worst | repeats differ by | outside |")
    print("| --- | --- | --- | --- | --- |")
    for what, chosen in [
        ("all", rows),
        ("looked at while the model was made", [row for row in rows if row[0][:3] in SEEN]),
        ("measured after it was frozen", [row for row in rows if row[0][:3] in AFTERWARDS]),
    ]:
        if chosen:
            errors = [abs(row[4]) for row in chosen]
            repeats = statistics.median(row[5] for row in chosen)
            outside = sum(abs(row[4]) > max(0.25, 2 * row[5]) for row in chosen)
            median, worst = f"{100 * statistics.median(errors):.1f} %", f"{100 * max(errors):.1f} %"
            print(f"| {len(chosen)}, {what} | {median} | {worst} | {100 * repeats:.1f} % | {outside} |")
    print("\nRepeats: the median. Outside: of 25 %, or of twice their repeats where that is more.")


def main():
    paths = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    results = Results(Path(paths[0]))
    is_quick = "--quick" in sys.argv
    places, rounds = ([("mlp", 100, 2)], 1) if is_quick else ([*SEEN, *AFTERWARDS], ROUNDS)
    with tempfile.TemporaryDirectory() as folder:
        gradients = {model: gradient(model, folder) for model in {model for model, *_ in places}}
        for turn in range(1, rounds + 1):
            for model, rate, count in places:
                key = {"model": model, "rate": rate, "workers": count, "round": turn}
                with tempfile.TemporaryDirectory() as scratch:
                    measure_inputs(results, key, scratch, gradients[model])
                    rows = predict(results, key, scratch)
                    for method in METHODS:
                        measure_step(results, key, method, rows[method])
    report(results)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if not sandbox.is_inside():
        programs.build()
    sandbox.enter()
    main()
