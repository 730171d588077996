"""The processes that torch_lab.py asks, one on each host of a network, and what they and the machine have used."""

import hashlib
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions, version
from pathlib import Path

from network import Network
from torch_plan import DENSE, PATIENCE

HERE = Path(__file__).resolve().parent
# Ports of the processes that are asked side by side.
FIRST_PORT, PORTS = 29000, 500


class Hosts:
    """A network, and on its hosts one set of processes for each of those that are timed in turns."""

    def __init__(self, count, rate, old=None, congestion=None):
        self.count, self._old = count, old
        self._network = Network(count, rate=rate, congestion=congestion)
        # By their number, and by whether they have the older hook.
        self._sets = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for ranks in self._sets.values():
            ranks.end()
        self._network.__exit__()

    def ranks(self, number=0, is_old=False):
        """The processes of that number, which have read what they need."""
        key = number, is_old
        if key not in self._sets:
            port = FIRST_PORT + PORTS * len(self._sets)
            self._sets[key] = Ranks(self._network, self.count, port, self._old if is_old else None)
        self._sets[key].warm_up()
        return self._sets[key]

    def used_seconds(self):
        """CPU seconds that the processes have used."""
        return sum(ranks.used_seconds() for ranks in self._sets.values())


class Ranks:
    """Processes on the hosts of one network, that wait for what to do next."""

    def __init__(self, network, count, port, packages):
        self.count = count
        self._network, self._port, self._packages = network, port, packages
        self._processes = []
        # Of those that ended.
        self._used = 0.0

    def _start(self):
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        if self._packages:
            variables["PYTHONPATH"] = str(self._packages)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": variables}
        for rank, host in enumerate(self._network.hosts):
            command = [sys.executable, "-B", HERE / "torch_rank.py", rank, self.count]
            self._processes.append(self._network.start(host, command, **pipes))

    def end(self):
        """Ends the processes; returns the codes that they ended with."""
        self._used = self.used_seconds()
        for process in self._processes:
            process.kill()
            process.communicate()
        codes = [process.returncode for process in self._processes]
        self._processes = []
        return codes

    def warm_up(self):
        """Starts the processes, unless they have, and lets them read what they need."""
        if not self._processes:
            self.ask("begin", model="resnet", method=DENSE, encrypted=False)
            self.ask("end", rust=False)

    def used_seconds(self):
        """CPU seconds that the processes have used."""
        return self._used + sum(map(used_seconds, self._processes))

    def ask(self, what, **more):
        """The answers of all ranks, or the error of the first that ended."""
        if not self._processes:
            self._start()
        if what in ("begin", "train"):
            self._port += 1
            more["port"] = self._port
        for process in self._processes:
            print(json.dumps({"what": what, **more}), file=process.stdin, flush=True)
        end = time.monotonic() + PATIENCE[what]
        with ThreadPoolExecutor(self.count) as readers:
            reading = [readers.submit(process.stdout.readline) for process in self._processes]
            while time.monotonic() < end and not all(one.done() for one in reading):
                time.sleep(0.02)
                if any(one.done() and "error" in (one.result() or "error") for one in reading):
                    break
            silent = [rank for rank, one in enumerate(reading) if not one.done()]
            late = silent if time.monotonic() >= end else []
            if silent:
                for process in self._processes:
                    process.kill()
            lines = [one.result() for one in reading]
        answers = [json.loads(line) for line in lines if line]
        errors = [answer["error"] for answer in answers if "error" in answer]
        errors += [f"rank {rank}: no answer within {PATIENCE[what]} s" for rank in late]
        if errors or len(answers) < self.count:
            codes = self.end()
            errors += [
                f"rank {rank} ended: {codes[rank]}" for rank, line in enumerate(lines) if not line and rank not in silent
            ]
            return [{"error": errors[0]}]
        return answers


def machine(old=None, congestion=None):
    """What a measurement was made on, and with; `old` is a folder with an older gradwire, and `congestion` how the TCP of hosts
    avoids it, if not as the machine's does."""
    processor = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    found = {name: version(name) for name in ("torch", "gradwire")}
    found["congestion"] = congestion or Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    found |= {"old": package_of(old)} if old else {}
    return {"kind": "machine", "processor": processor.partition(": ")[2], "cores": os.cpu_count(), **found}


def package_of(folder):
    """The version of the gradwire in a folder, and a word that differs where its files do."""
    found = [one.version for one in distributions(name="gradwire", path=[str(folder)])]
    assert found, f"{folder} holds no gradwire: fill it with pip install --no-deps --target {folder} WHEEL"
    digest = hashlib.sha256()
    for file in sorted(Path(folder, "gradwire").rglob("*")):
        if file.suffix in (".py", ".so"):
            digest.update(file.read_bytes())
    return f"{found[0]} ({digest.hexdigest()[:8]})"


def busy_seconds():
    """CPU seconds that programs have used, of all cores; interrupts, which carry packets, left out."""
    user, nice, system, *_ = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def used_seconds(process):
    """What one process has used of it, with the programs that it started and waited for: the Rust exchange is one."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
