"""Ranks of training over TCP, each on a host of its own: the two commands of docs/tcp.md."""

import os
import subprocess
import tempfile
import time
from pathlib import Path

from network import Network, address, wait_for
from programs import TRAINER
from trainers import Process

PORT = 5700
SHORT = ["--steps", "30", "--eval-every", "0", "--hidden", "8"]
ENDLESS = ["--steps", "1000000", "--eval-every", "0", "--hidden", "8", "--checkpoint-every", "10"]
# docs/tcp.md: a rank from which no byte came for this time is gone. A machine that is busy adds to it.
SILENCE, SLACK = 10, 20


def at(hosts):
    """The option that says where ranks are."""
    return ["--hosts", ",".join(f"{host}:{PORT}" for host in hosts)]


def new_key(path):
    """A file with a key that all ranks share."""
    path.touch(0o600)
    path.write_text(os.urandom(32).hex() + "\n")
    return path


class Scene:
    """A rank on each of so many hosts, and others without one; rank N is on host N + 1."""

    def __init__(self, run, ranks=2, others=0, meet=None, late=(), **link):
        """`meet` is how all find each other, if not by their addresses; ranks in `late` are not started yet."""
        self.run, self.link, self.late = ["--transport", "tcp", *run], link, late
        self.count, self.others = ranks, others
        self.meet = meet or at(address(host) for host in range(1, ranks + 1))

    def __enter__(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.folder = Path(self.scratch.name)
        self.network = Network(self.count + self.others, **self.link)
        self.network.__enter__()
        self.key = new_key(self.folder / "run.key")
        self.ranks = [None if rank in self.late else self.start(rank) for rank in range(self.count)]
        return self

    def __exit__(self, *failure):
        self.network.__exit__(*failure)
        self.scratch.cleanup()

    def start(self, rank, host=None, resumes=False, meet=None, security=None):
        """As all others are started, but for what is said; the same command that resumes is not the first one."""
        run = ["--resume", self.folder / "run"] if resumes else self.run
        own = ["--out", self.folder / "run"] if rank == 0 and not resumes else []
        own += security if security is not None else ["--key", self.key]
        command = [os.environ[TRAINER], "train", *run, *(meet or self.meet), *own, "--rank", rank]
        name = f"rank {rank}" if host is None else f"rank {rank} on host {host}"
        return Process(self.network, host or rank + 1, name, self.folder, command)

    def trains(self):
        """Waits until there is a checkpoint that is not there yet."""
        before = self.checkpoints()
        wait_for(lambda: self.checkpoints() - before, 120, self.ranks[0].end)

    def checkpoints(self):
        return {path.name for path in (self.folder / "run/checkpoints").glob("step-*")}

    def goes_on(self):
        """Starts all ranks again, and waits until they train."""
        self.ranks = [self.start(rank, resumes=rank == 0) for rank in range(self.count)]
        self.ranks[0].says("Resuming at step")
        for rank in self.ranks[1:]:
            rank.says(f"all {self.count} ranks are there(?s:.*)all {self.count} ranks are there")

    def notices(self, rank):
        """Waits until that rank says that another one is gone; returns the seconds."""
        began = time.monotonic()
        self.ranks[rank].says("start all ranks again")
        return time.monotonic() - began

    def ends(self, seconds=120):
        """All end well; returns the hash of the parameters, of which rank 0 says that it is that of all."""
        for rank in self.ranks[1:]:
            rank.says("all steps are done", seconds)
        found = self.ranks[0].says(f"parameters: ([0-9a-f]{{16}}) on all {self.count} workers", seconds)
        codes = [rank.process.wait(60) for rank in self.ranks]
        assert codes == [0] * self.count, codes
        return found[1]


def name_hosts(test, **addresses):
    """Until the end of the test, names stand for addresses and nothing else does; returns the file, which may be changed."""
    hosts = Path(tempfile.mkdtemp()) / "hosts"
    named = [f"{address} {name}\n" for name, addresses in addresses.items() for address in addresses]
    hosts.write_text("".join(["127.0.0.1 localhost\n", *named]))
    subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
    test.addCleanup(subprocess.run, ["umount", "/etc/hosts"], check=True)
    return hosts
