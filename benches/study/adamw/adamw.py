#!/usr/bin/env python3
"""Which compressed exchange goes with AdamW: small GPTs, four workers each, on a GPU.

usage: adamw.py RESULTS.jsonl [--tasks NAME,…] [--methods NAME,…] [--rates X,…] [--final] [--device NAME] [--processes N]
                [--limit SECONDS]

Trains each method at every rate, all rates of a method side by side in one process, and where the best is the first or the last,
the next one too. --final trains each method at its best rate with seeds that tuned nothing; --methods finalists stands for those
that are best in the first task at 50 and 100 times fewer bytes. What workers send are frames of the gradwire package, which are
made and read on the CPU; all else is computed on the device. A line of RESULTS.jsonl is one run; what is there is not run again.
--limit ends it after so many seconds, with what is done by then. GRADWIRE_DATA names the folder of the texts. report.py makes the
tables.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

# Importing leaves no files behind.
sys.dont_write_bytecode = True

import torch
from plan import METHODS, RATES, SEEDS, TASKS, TUNING_SEED, text
from report import best_rate, finalists, losses, read
from train import Run, train


def trained(task_name, method_name, runs, device, threads):
    """The lines of one method's runs, trained side by side."""
    torch.set_float32_matmul_precision("high")
    torch.set_num_threads(threads)
    task = TASKS[task_name]
    begin = None
    if task.begins_from is not None:
        before, rate = task.begins_from
        first = [Run(rate, TUNING_SEED)]
        begin = train(TASKS[before], METHODS["dense"], first, text(TASKS[before].text), device, threads)[1][0].cpu()
    found, _ = train(task, METHODS[method_name], runs, text(task.text), device, threads, begin)
    return [{"task": task_name, "method": method_name, **line} for line in found]


def wanted(lines, task, method, grid, *, is_final):
    """Runs that are missing: of the grid, or the ones with fresh seeds."""
    done = losses(lines, task, method)
    if is_final:
        rate = best_rate(lines, task, method)
        return [Run(rate, seed) for seed in SEEDS if rate is not None and (rate, seed) not in done]
    missing = [Run(rate, TUNING_SEED) for rate in grid if (rate, TUNING_SEED) not in done]
    if missing:
        return missing
    rates = sorted(rate for rate, seed in done if seed == TUNING_SEED)
    best = best_rate(lines, task, method)
    if best in (rates[0], rates[-1]):
        return [Run(best / 2 if best == rates[0] else best * 2, TUNING_SEED)]
    return []


def main():
    """Trains, or prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--tasks", default="shakespeare")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--rates", default=",".join(map(str, RATES)))
    parser.add_argument("--final", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="of each process")
    parser.add_argument("--limit", type=float, default=1e6)
    given = parser.parse_args()
    given.results.touch()
    lines = read(given.results)
    deadline = time.monotonic() + given.limit
    pool = ProcessPoolExecutor(given.processes, multiprocessing.get_context("spawn"))
    methods = finalists(lines, next(iter(TASKS))) if given.methods == "finalists" else given.methods.split(",")
    cells = [(task, method) for task in given.tasks.split(",") for method in methods]
    grid = [float(rate) for rate in given.rates.split(",")]
    running = {}

    def begin(task, method):
        if runs := wanted(lines, task, method, grid, is_final=given.final):
            running[pool.submit(trained, task, method, runs, given.device, given.threads)] = (task, method)

    for cell in cells:
        begin(*cell)
    while running:
        try:
            done = next(as_completed(running, timeout=max(0.1, deadline - time.monotonic())))
        except TimeoutError:
            print("the limit of time is reached", flush=True)
            for process in list(pool._processes.values()):
                process.kill()
            # Without waiting for what was not done.
            os._exit(0)
        cell = running.pop(done)
        if done.exception() is not None:
            print(*cell, repr(done.exception()), flush=True)
            continue
        lines += done.result()
        with given.results.open("a") as file:
            for line in done.result():
                print(json.dumps(line), file=file)
                print(*cell, line["rate"], line["seed"], line["validation"][-1][1], line["bytes"], line["seconds"], flush=True)
        if not given.final:
            begin(*cell)
    pool.shutdown()


if __name__ == "__main__":
    main()
