"""Namespaces of its own for a program, so that the kernel takes back whatever it leaves: processes, interfaces, files.

Nothing in here has to be undone. When the first process of a process namespace ends, by whatever signal, the kernel
kills all others in it; network namespaces and mounts go with the last process that uses them. Labs beside one another
share nothing, so they may use the same names and addresses.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

INSIDE = "GRADWIRE_LAB_INSIDE"
# An in-memory file system that only this sandbox sees.
RUN = Path("/run")
SCRATCH = RUN / "lab"


def is_inside():
    return os.environ.get(INSIDE) == "1"


def enter():
    """Runs this program in a sandbox and ends as it does; returns where it is in one already."""
    if not is_inside():
        if os.geteuid() != 0:
            sys.exit("the lab needs root")
        sys.exit(run([sys.executable, *sys.argv]))
    # A shell has what it starts in the background ignore the signal, and so would all that is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Inside of this one there may be another.
    del os.environ[INSIDE]
    subprocess.run(["mount", "-t", "tmpfs", "lab", RUN], check=True)
    SCRATCH.mkdir()
    os.environ["TMPDIR"] = str(SCRATCH)


def run(command, **options):
    sandbox = start(command, **options)
    signal.signal(signal.SIGTERM, lambda *_: sandbox.kill())
    # Of a terminal, which tells the program inside as well.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return sandbox.wait()


def start(command, **options):
    """Killed, or left by its parent, it is gone with all that is in it."""
    namespaces = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    environment = {**os.environ, INSIDE: "1"}
    return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *namespaces, *command], env=environment, **options)
