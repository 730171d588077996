"""The programs that are tested, built by cargo before the lab opens: there is no network in it."""

import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRAINER, MPI_RANKS, ZMQ_RANKS = "GRADWIRE_LAB_TRAINER", "GRADWIRE_LAB_MPI_RANKS", "GRADWIRE_LAB_ZMQ_RANKS"
TCP_RANKS = "GRADWIRE_LAB_TCP_RANKS"
EXCHANGE = "GRADWIRE_LAB_EXCHANGE"


def build():
    """Inside of the lab, the environment says where they are."""
    build_trainer()
    ranks = "test --no-run -p gradwire-transports --features mpi,zmq,conformance --test"
    os.environ[MPI_RANKS] = _build(f"{ranks} mpi", "mpi")
    os.environ[TCP_RANKS] = _build(f"{ranks} tcp", "tcp")
    os.environ[ZMQ_RANKS] = _build(f"{ranks} zmq", "zmq")


def build_trainer():
    os.environ[TRAINER] = _build("build -p gradwire-trainer --features mpi,zmq", "trainer")


def build_exchange():
    """With which torch_lab.py compares the hook."""
    os.environ[EXCHANGE] = _build("build -p gradwire-benches --example exchange_cpu", "exchange_cpu")


def _build(command, name):
    verb, *flags = command.split()
    command = ["cargo", verb, "--release", *flags, "--message-format=json-render-diagnostics"]
    lines = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    built = [json.loads(line) for line in lines]
    (program,) = [one["executable"] for one in built if one.get("executable") and one["target"]["name"] == name]
    return program
