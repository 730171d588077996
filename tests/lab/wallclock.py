#!/usr/bin/env python3
"""Time to equal accuracy, with and without compression, of four workers on links of 10, 100 and 1000 Mbit/s.

usage: wallclock.py RESULTS.jsonl [MODEL ...]

What a synchronous run learns does not depend on its network: a run over MPI has the parameters of the run in one process,
bit for bit. So the two factors of the time are measured apart, each where it can be measured best:

    curve     accuracy by step, in one process; each learning rate of the grid with one seed, the best two with all
    step      seconds a step, over MPI on four hosts of the lab, at each rate, in several rounds
    compute   seconds a step of four workers that do not talk to one another, before and behind the steps of each rate in each
              round

Each measurement is one line of RESULTS.jsonl. Those that are there are not made again, so the program may be stopped and
started at any time; wallclock_report.py makes a table and a plot of them. The models are mlp (Fashion-MNIST, which is read
from GRADWIRE_DATA/data/fashion-mnist), cnn (optdigits) and gpt (tiny Shakespeare).
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Importing leaves no files behind.
sys.dont_write_bytecode = True

import programs
import sandbox
from network import Network
from results import Results
from wallclock_plan import CURVES, HOSTS, METHODS, MODELS, RATES, ROUNDS, SEEDS, STEPS_OF, Curves

# A step is timed from outside, by the lines of progress. Those of the first part are not counted: buffers grow, and
# a full bucket of tokens waits.
WARM_UP = 0.2
# For how long steps are timed, and how many at least.
TIMED_SECONDS = 4
FEWEST_STEPS = 16
MOST_STEPS = 500
# A message of up to 1 MiB goes out at once. By default the library asks first above 64 KiB, and the answer waits behind what
# its sender has put on the link: f32 then takes up to twice as long, by either ring.
EAGER = {f"btl_tcp_{limit}": str(1 << 20) for limit in ("eager_limit", "rndv_eager_limit", "max_send_size")}
PIPE = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}


def train(model, method, steps, *more, workers=HOSTS):
    """The arguments that a measurement has in common with all others of its model and method."""
    arguments = [os.environ[programs.TRAINER], "train", *MODELS[model].settings, *METHODS[method], *map(str, more)]
    arguments += ["--workers", str(workers), "--batch", str(MODELS[model].batch // HOSTS * workers)]
    if MODELS[model].folder:
        arguments += ["--data-dir", str(Path(os.environ["GRADWIRE_DATA"]) / "data" / MODELS[model].folder)]
    return [*arguments, "--steps", str(steps), "--checkpoint-every", "0", "--hash-every", "0"]


def measure_curve(results, model, method, lr, seed):
    key = {"kind": "curve", "model": model, "method": method, "lr": lr, "seed": seed}
    if results.has(**key):
        return
    with tempfile.TemporaryDirectory() as folder:
        settings = ["--lr", lr, "--seed", seed, "--eval-every", MODELS[model].eval_every]
        run = train(model, method, MODELS[model].steps, *settings, "--out", f"{folder}/run")
        done = subprocess.run(run, check=False, capture_output=True, text=True)
        # A rate that is too high for a method is an answer, too.
        assert done.returncode == 0 or "training has diverged" in done.stderr, done.stderr
        metrics = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")] if done.returncode == 0 else []
    measure = MODELS[model].measure
    evaluations = [[line["step"] + 1, line[measure]] for line in metrics if measure in line]
    results.add(**key, evaluations=evaluations)


def measure_compute(results, model, rate, turn, place):
    key = {"kind": "compute", "model": model, "rate": rate, "round": turn, "place": place}
    if results.has(**key):
        return
    with tempfile.TemporaryDirectory() as folder, Network(HOSTS) as network:
        steps = MOST_STEPS // 2
        alone = train(model, "f32", steps, "--eval-every", 0, workers=1)
        runs = [network.start(host, [*alone, "--out", f"{folder}/{host}"], **PIPE) for host in network.hosts]
        # They go on side by side; the slowest is what the others would wait for.
        with ThreadPoolExecutor() as readers:
            seconds = max(readers.map(seconds_a_step, runs))
    results.add(**key, seconds=seconds, steps=steps)


def measure_step(results, model, method, rate, turn):
    key = {"kind": "step", "model": model, "method": method, "rate": rate, "round": turn}
    if results.has(**key):
        return
    with tempfile.TemporaryDirectory() as folder, Network(HOSTS, rate=rate) as network:
        steps, wanted = 0, FEWEST_STEPS
        # A first run tells how many steps there is time for, and so does each that was much too short.
        while wanted > 1.25 * steps:
            steps, out = wanted, Path(folder) / str(wanted)
            command = train(model, method, steps, "--eval-every", 0, "--seed", SEEDS[0], "--out", out)
            with network.mpirun(command, parameters=EAGER, **PIPE) as job:
                seconds = seconds_a_step(job)
            wanted = min(int(TIMED_SECONDS / seconds), MOST_STEPS)
        summary = json.loads((out / "summary.json").read_text())
    parts = {part: summary[f"{part}_seconds"] / steps for part in ("compute", "encode", "exchange", "decode")}
    sent = summary["bytes_up"] / steps / HOSTS
    results.add(**key, seconds=seconds, steps=steps, bytes_up=sent, params=summary["params"], **parts)


def seconds_a_step(process):
    """From when the lines of progress of a run come."""
    seen, said = [], []
    for line in process.stdout:
        said.append(line)
        if found := STEPS_OF.search(line):
            seen.append((int(found.group(1)), time.monotonic()))
    assert process.wait() == 0, "".join(said)
    # The last line waits for the evaluation at the end. So does the one before it, where the last step follows it at once:
    # a line is shown with the next step.
    (first, start), (last, end) = seen[int(WARM_UP * len(seen))], seen[-3]
    return (end - start) / (last - first)


def main():
    path, *models = sys.argv[1:]
    results = Results(Path(path))
    models = models or MODELS
    # What takes a quiet machine comes first: what is learned in how many steps is the same on a busy one.
    for turn in range(1, max(ROUNDS.values()) + 1):
        rates = [rate for rate in RATES if turn <= ROUNDS[rate]]
        for model, rate in itertools.product(models, rates):
            measure_compute(results, model, rate, turn, "before")
            for method in METHODS:
                measure_step(results, model, method, rate, turn)
            measure_compute(results, model, rate, turn, "behind")
    for model in models:
        for method in CURVES:
            for lr in MODELS[model].learning_rates:
                measure_curve(results, model, method, lr, SEEDS[0])
        for seed in SEEDS:
            measure_curve(results, model, "f32", Curves(results.lines, model).reference_rate(), seed)
        for method in CURVES:
            for lr in sorted(Curves(results.lines, model).candidates(method)):
                for seed in SEEDS:
                    measure_curve(results, model, method, lr, seed)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if not sandbox.is_inside():
        programs.build()
    sandbox.enter()
    main()
