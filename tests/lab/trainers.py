"""A server of training and its workers, on hosts of a network, and what they say."""

import os
import re
import subprocess
import sys

import programs
import sandbox
from network import address, wait_for
from programs import TRAINER

PORT = 5555
SECONDS = 120
# The server's host. Rank N is on host N + 1.
SERVER = 1


def endpoint():
    return f"tcp://{address(SERVER)}:{PORT}"


def begin_with_text():
    """Builds the trainer and goes on in a sandbox, if there is a text to train on."""
    if "GRADWIRE_DATA" not in os.environ:
        sys.exit("GRADWIRE_DATA names no folder; the text is read from its data/tiny-shakespeare")
    if not sandbox.is_inside():
        programs.build_trainer()
    sandbox.enter()


class Keys:
    """Key files of ranks 0 … world - 1 in a folder, and the server's list of them."""

    def __init__(self, folder, world):
        self.folder = folder
        lines = [f"{rank} {self.make(str(rank))}\n" for rank in range(world)]
        self.peers().write_text("".join(lines[1:]))

    def make(self, name):
        """A new pair; returns its public key."""
        keygen = [os.environ[TRAINER], "keygen", self.secret(name)]
        subprocess.run(keygen, check=True, stdout=subprocess.DEVNULL)
        return self.public(name)

    def secret(self, name):
        return self.folder / str(name)

    def public(self, name):
        return self.secret(name).with_suffix(".pub").read_text().split()[-1]

    def peers(self):
        return self.folder / "peers"


class Process:
    """A process on a host, whose lines go to a file."""

    def __init__(self, network, host, name, folder, command):
        self.name = name
        # Those of one name go on in one file.
        self.log = folder / f"{name}.log"
        with open(self.log, "a") as log:
            self.process = network.start(host, command, stdout=log, stderr=subprocess.STDOUT)

    def says(self, what, seconds=SECONDS):
        """Waits for a line that matches; returns the match."""
        return wait_for(lambda: re.search(what, self.all()), seconds, lambda: f"{self.name} says {what}:\n{self.end()}")

    def all(self):
        return self.log.read_text()

    def end(self):
        """Of what it said."""
        return self.all()[-3000:]

    def ends(self, seconds=SECONDS):
        """Waits for its end; returns the hash of its parameters."""
        code = self.process.wait(seconds)
        assert code == 0, f"{self.name} ended with {code}:\n{self.end()}"
        return re.findall(r"parameters: ([0-9a-f]{16})\n", self.all())[-1]


def serve(network, keys, run, *own):
    command = [os.environ[TRAINER], "serve", "--listen", endpoint(), "--key", keys.secret(0), "--peers", keys.peers()]
    return Process(network, SERVER, "server", keys.folder, [*command, *own, *run])


def join(network, keys, rank, run, *own, key=None):
    """A worker with the key of its rank, unless it has another one."""
    command = [os.environ[TRAINER], "join", "--server", endpoint(), "--server-key", keys.public(0)]
    command += ["--key", keys.secret(rank if key is None else key), "--rank", rank]
    return Process(network, rank + 1, f"worker-{rank}", keys.folder, [*command, *own, *run])


def join_without_keys(network, keys, rank, run, server, *own):
    command = [os.environ[TRAINER], "join", "--server", server, "--insecure", "--rank", rank]
    return Process(network, rank + 1, f"worker-{rank}", keys.folder, [*command, *own, *run])
