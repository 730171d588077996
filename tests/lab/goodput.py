#!/usr/bin/env python3
"""How much of what four sites compute enters the model, while one of them is killed every minute.

usage: goodput.py RESULTS.jsonl [--seconds N] [--every N] [--away N]
       goodput.py RESULTS.jsonl --table

Trains on four hosts of the lab, at 100 Mbit/s: one GPT in two ways by the trainer, and a smaller model by PyTorch.

    local steps    thirty steps alone, then an exchange over ZeroMQ, which closes without sites that are missing
    every batch    dense gradients of every batch, over TCP; when a site dies, all start again from the last checkpoint
    in PyTorch     local steps at sites, by bindings/python/examples/sites.py; a fifth host holds their store, and stays

Each way is timed first without a kill, for so many seconds (600), and then with one every so many (60): site 1, 2, 3, 0 and so
on, by SIGKILL. Site 0 is the trainer's server, too. A site that was killed is started again after so many seconds (10), by the
command that it was started with. Work is batches of one site that are in the parameters: of those of a mean, and of steps that no
checkpoint lost. Goodput is work over that without a kill, in the minutes that both have: a batch takes longer as training goes
on. Each run is one line of RESULTS.jsonl, and is not made again. The text is read from GRADWIRE_DATA. Needs root, cargo, libzmq,
and what the lab needs (run.py); started by a Python that has torch and gradwire, it also measures them.
"""

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

# Importing leaves no files behind.
sys.dont_write_bytecode = True

import programs
from network import Network, address, wait_for
from tcp import at, new_key
from trainers import Keys, Process, begin_with_text, join, serve

SITES = range(4)
KILLED = [1, 2, 3, 0]
RATE = 100
MODEL = ["--workers", len(SITES), "--data", "tiny-shakespeare", "--optimizer", "adamw", "--steps", 10**6, "--eval-every", 0]
LOCAL_STEPS = 30
# Two seconds apart, as for steps of every batch.
LOCAL = ["--lr", 0.004, "--local-steps", LOCAL_STEPS, "--codec", "topk:density=0.07,values=q4", "--checkpoint-every", 1]
# An exchange with all takes half as long.
RULES = ["--quorum", 2, "--patience", 4, "--report-every", 1]
EVERY_BATCH = ["--lr", 0.004, "--codec", "none", "--checkpoint-every", 20, "--transport", "tcp"]
BEGINS_SECONDS = 120
STORE_PORT = 29500


class Sites:
    """A process on each host, and the folder of rank 0."""

    def __init__(self, folder, network):
        self.folder, self.network = folder, network
        self.keys = self.new_keys()
        self.processes = [self.start(site) for site in SITES]

    def kill(self, site):
        self.processes[site].process.kill()
        self.processes[site].process.wait()

    def lines(self):
        """Of metrics.jsonl, as far as they are written."""
        try:
            written = (self.folder / "run" / "metrics.jsonl").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in written.splitlines() if line.endswith("}")]

    def work(self):
        return sum(line["contributors"] for line in self.lines()) * self.batches


class LocalSteps(Sites):
    batches = LOCAL_STEPS

    def new_keys(self):
        return Keys(self.folder, len(SITES))

    def start(self, site):
        run = [*MODEL, *LOCAL]
        if site == 0:
            return serve(self.network, self.keys, run, *RULES, "--resume-or-start", self.folder / "run")
        return join(self.network, self.keys, site, run, "--resume-or-start", self.folder / f"site-{site}")

    def go_on(self, site):
        self.processes[site] = self.start(site)


class EveryBatch(Sites):
    batches = 1

    def new_keys(self):
        return new_key(self.folder / "run.key")

    def start(self, site):
        hosts = at(address(site + 1) for site in SITES)
        own = ["--resume-or-start", self.folder / "run"] if site == 0 else []
        command = [os.environ[programs.TRAINER], "train", *MODEL, *EVERY_BATCH, *hosts, "--key", self.keys, "--rank", site]
        return Process(self.network, site + 1, f"site-{site}", self.folder, [*command, *own])

    def go_on(self, _):
        """All of them, once the last has noticed."""
        for process in self.processes:
            process.process.wait(BEGINS_SECONDS)
        self.processes = [self.start(site) for site in SITES]


class InPyTorch(Sites):
    batches = LOCAL_STEPS

    def new_keys(self):
        host = len(SITES) + 1
        store = f"{address(host)}:{STORE_PORT}"
        self.command = [sys.executable, programs.ROOT / "bindings/python/examples/sites.py", "--store", store]
        text = Path(os.environ["GRADWIRE_DATA"]) / "data/tiny-shakespeare/input.txt"
        self.rest = ["--every", LOCAL_STEPS, "--patience", 4, "--exchanges", 10**6, "--folder", self.folder, "--text", text]
        os.environ.update(GLOO_SOCKET_IFNAME="eth0", OMP_NUM_THREADS="1")
        return Process(self.network, host, "store", self.folder, [*self.command, "--hold"])

    def start(self, site):
        return Process(self.network, site + 1, f"site-{site}", self.folder, [*self.command, "--name", f"site-{site}", *self.rest])

    def go_on(self, site):
        self.processes[site] = self.start(site)

    def lines(self):
        """What any site said of an exchange."""
        said = "".join(process.all() for process in self.processes)
        found = dict(re.findall(r"exchange (\d+) at (\d+) sites", said))
        return [{"contributors": int(count)} for count in found.values()]


WAYS = {"local steps": LocalSteps, "every batch": EveryBatch, "in PyTorch": InPyTorch}


def run(way, seconds, every=None, away=None):
    """The work of each minute, from the first step on."""
    with tempfile.TemporaryDirectory() as name, Network(len(SITES) + 1, rate=RATE) as network:
        sites = WAYS[way](Path(name), network)
        wait_for(sites.lines, BEGINS_SECONDS, lambda: "\n".join(process.end() for process in sites.processes))
        began, before, minutes, kills, dead = time.monotonic(), sites.work(), [], 0, None
        while (passed := time.monotonic() - began) < seconds:
            time.sleep(0.05)
            if every and dead is None and passed > every * (kills + 0.5):
                dead = KILLED[kills % len(KILLED)]
                sites.kill(dead)
                back, kills = passed + away, kills + 1
            if dead is not None and passed > back:
                sites.go_on(dead)
                dead = None
            if passed >= 60 * (len(minutes) + 1):
                now = sites.work()
                minutes.append(now - before)
                before = now
        minutes += [sites.work() - before] if 60 * len(minutes) < seconds else []
        for site in SITES:
            sites.kill(site)
    return {"way": way, "seconds": seconds, "every": every, "away": away, "kills": kills, "work": minutes}


def measure(results, chosen):
    results.touch()
    for way in WAYS if find_spec("torch") else [way for way in WAYS if way != "in PyTorch"]:
        for key in [(chosen.seconds, None, None), (chosen.seconds, chosen.every, chosen.away)]:
            lines = [json.loads(line) for line in results.read_text().splitlines()]
            if any((line["way"], line["seconds"], line["every"], line["away"]) == (way, *key) for line in lines):
                continue
            line = run(way, *key)
            with results.open("a") as file:
                print(json.dumps(line), file=file)
            print(json.dumps(line), flush=True)


def table(results):
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    print("| | minutes | batches a second without a kill | with one every minute | goodput | minutes: least | median | most |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for way in WAYS:
        calm, disturbed = sorted((line for line in lines if line["way"] == way), key=lambda line: line["kills"])
        minutes = list(zip(calm["work"], disturbed["work"]))
        usual, found = (sum(works) / 60 / len(minutes) for works in zip(*minutes, strict=True))
        shares = [work / before for before, work in minutes]
        shares = [found / usual, min(shares), statistics.median(shares), max(shares)]
        cells = [f"{share:.0%}".replace("%", " %") for share in shares]
        print(f"| {way} | {len(minutes)} | {usual:.0f} | {found:.0f} | {' | '.join(cells)} |")


def main():
    parser = argparse.ArgumentParser(usage=__doc__.partition("usage: ")[2].partition("\n\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--every", type=int, default=60)
    parser.add_argument("--away", type=int, default=10)
    parser.add_argument("--table", action="store_true")
    chosen = parser.parse_args()
    if chosen.table:
        table(chosen.results)
        return
    begin_with_text()
    measure(chosen.results, chosen)


if __name__ == "__main__":
    main()
