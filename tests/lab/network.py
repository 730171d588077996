"""Hosts around a switch: network namespaces on one machine, with links of a given rate, delay and loss.

Host N has the name hN and the addresses 10.77.0.N and fd77::N. Both directions of its link are token buckets of the kernel, whose
depth is one millisecond of the rate: frames of gradients are short, and a deep bucket would let them pass for nothing.
Delay and loss need no module of the kernel: they are made by a switch in user space (switch.py), frame by frame.

A host has one core, which it shares with others where there are more hosts than cores: on a machine of its own, too, no
process would go to the core of another host.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from sandbox import RUN

HERE = Path(__file__).resolve().parent
# A bucket holds one packet of the largest size at least; four leave room for timers that come late.
LARGEST_PACKET = 1514
SMALLEST_BUCKET_BYTES = 4 * LARGEST_PACKET
# How long packets may wait in a queue before more are dropped, in milliseconds, and how many may wait at least: a modem
# keeps more than a switch.
LONGEST_QUEUE = 50
FEWEST_QUEUED = 32
# Open MPI takes the hosts for one machine unless it is told, and notices a network that was cut only when it is asked to.
MPI_PARAMETERS = {
    "plm_rsh_agent": str(HERE / "host_agent.sh"),
    "plm_rsh_no_tree_spawn": "1",
    "pml": "ob1",
    "btl": "self,tcp",
    "btl_tcp_if_include": "eth0",
    "oob_tcp_if_include": "eth0",
    "mpi_yield_when_idle": "1",
    "oob_tcp_keepalive_time": "2",
    "oob_tcp_keepalive_intvl": "1",
    "oob_tcp_keepalive_probes": "3",
}


# A packet of a connection that is not known, and does not begin one, has the state `invalid`.
FORGETS = """
table inet forgets {
    chain output {
        type filter hook output priority 0;
        ct state invalid counter drop
    }
    chain input {
        type filter hook input priority 0;
        ct state invalid counter drop
    }
}
"""
FORGETS_PORT = """
table inet forgets_{own} {{
    chain output {{
        type filter hook output priority 0;
        tcp sport {own} drop
    }}
    chain input {{
        type filter hook input priority 0;
        tcp dport {own} drop
    }}
}}
"""


def address(host):
    return f"10.77.0.{host}"


def address_v6(host):
    """In brackets, as before a port."""
    return f"[fd77::{host}]"


class Network:
    """`count` hosts, numbered from 1. A rate is in Mbit/s, a delay in ms one way, a loss the share of packets.
    A host has that rate both ways, or the rate `to_hosts` for what it receives. TCP avoids congestion as the machine's does, or
    by the algorithm `congestion`.

    Without a rate links are as fast as the kernel is.
    """

    def __init__(self, count, rate=1000, delay=0, loss=0, seed=1, to_hosts=None, congestion=None):
        self.hosts = range(1, count + 1)
        self._switch = None
        for host in self.hosts:
            _make_host(host)
            if rate is not None:
                self.set_rate(host, rate, to_hosts)
            if congestion is not None:
                self._in(host, f"sysctl -q -w net.ipv4.tcp_congestion_control={congestion}")
        if delay or loss:
            self._switch = _switch_in_user_space(self.hosts, delay, loss, seed)
        else:
            _bridge(self.hosts)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._switch:
            self._switch.kill()
            self._switch.communicate()
        else:
            _ip("link del switch")
        for host in self.hosts:
            for process in _sh(f"ip netns pids h{host}").split():
                subprocess.run(["kill", "-9", process], check=False)
            _ip(f"link del v{host}")
            for kind in ("netns", "uts"):
                _sh(f"umount {RUN}/{kind}/h{host}")

    def set_rate(self, host, rate, to_host=None):
        """Mbit/s up and down, or up and `to_host` down."""
        _sh(f"tc -n h{host} qdisc replace dev eth0 root {_tokens(rate)}")
        _sh(f"tc qdisc replace dev v{host} root {_tokens(to_host or rate)}")

    def cut(self, host):
        """Nothing reaches the host or leaves it, and nobody is told."""
        _ip(f"link set v{host} down")

    def heal(self, host):
        _ip(f"link set v{host} up")

    def forget_when_idle(self, host, seconds):
        """From now on, the host forgets a connection that was idle for so long, as a router does that translates addresses:
        what is sent over it is dropped, and nobody is told."""
        for name, value in [("tcp_loose", 0), ("tcp_timeout_established", seconds)]:
            self._in(host, f"sysctl -q -w net.netfilter.nf_conntrack_{name}={value}")
        self._in(host, "nft -f -", input=FORGETS)

    def forgotten(self, host):
        """How many packets were dropped because their connection was forgotten."""
        return sum(int(count) for count in re.findall(r"packets (\d+)", self._in(host, "nft list table inet forgets")))

    def forget(self, host, port, to=None):
        """As if the host had just forgotten its connections to that port, or those of them that lead to that host."""
        for line in self._connections(host, port, to).splitlines():
            own = line.split()[2].rpartition(":")[2]
            self._in(host, "nft -f -", input=FORGETS_PORT.format(own=own))

    def reset(self, host, port, to):
        """Ends the connections of a host to that port of another one, and both systems know it."""
        ended = self._connections(host, port, to, "--kill")
        assert ended, f"host {host} has no connection to port {port} of host {to}"

    def _connections(self, host, port, to, *options):
        there = f"dst {address(to)} and" if to else ""
        return self._in(host, f"ss -Hnt {' '.join(options)} state established {there} dport = :{port}")

    def _in(self, host, command, **options):
        enter = ["nsenter", f"--net={RUN}/netns/h{host}", *command.split()]
        return subprocess.run(enter, check=True, stdout=subprocess.PIPE, text=True, **options).stdout

    def start(self, host, command, **options):
        """Starts a program on a host, as `subprocess.Popen` does."""
        return subprocess.Popen([*on_host(host), *map(str, command)], **options)

    def mpirun(self, command, variables=(), parameters=None, **options):
        """Starts a program under Open MPI, one process on each host. Only the named environment variables come along."""
        hosts = ",".join(f"{address(host)}:1" for host in self.hosts)
        launcher = ["mpirun", "--allow-run-as-root", "--host", hosts, "-n", str(len(self.hosts))]
        launcher += ["--map-by", "node", "--bind-to", "none"]
        for name, value in {**MPI_PARAMETERS, **(parameters or {})}.items():
            launcher += ["--mca", name, value]
        for name in variables:
            launcher += ["-x", name]
        return self.start(1, [*launcher, *command], **options)


def _tokens(rate):
    bucket = max(SMALLEST_BUCKET_BYTES, round(rate * 125))
    queue = max(LONGEST_QUEUE, round(FEWEST_QUEUED * LARGEST_PACKET * 8 / (rate * 1000)))
    return f"tbf rate {round(rate * 1000)}kbit burst {bucket} latency {queue}ms"


def on_host(host):
    """The beginning of a command that is to run on a host, as in `host_agent.sh`."""
    core = (RUN / "core" / f"h{host}").read_text()
    return ["taskset", "--cpu-list", core, "nsenter", f"--net={RUN}/netns/h{host}", f"--uts={RUN}/uts/h{host}"]


def _make_host(host):
    for kind in ("netns", "uts", "core"):
        (RUN / kind).mkdir(exist_ok=True)
        (RUN / kind / f"h{host}").touch()
    cores = sorted(os.sched_getaffinity(0))
    (RUN / "core" / f"h{host}").write_text(str(cores[(host - 1) % len(cores)]))
    # A name of its own, or MPI would talk through shared memory.
    _sh(f"unshare --net={RUN}/netns/h{host} --uts={RUN}/uts/h{host} hostname h{host}")
    _ip(f"link add v{host} address {_switch_side(host)} type veth peer name eth0 address {_mac(host)} netns h{host}")
    _ip(f"-n h{host} addr add {address(host)}/24 dev eth0")
    # Without the second in which others could say that they have it.
    _ip(f"-n h{host} addr add fd77::{host}/64 dev eth0 nodad")
    _ip(f"-n h{host} link set lo up")
    _ip(f"-n h{host} link set eth0 up")


def _bridge(hosts):
    _ip("link add switch type bridge")
    _ip("link set switch up")
    for host in hosts:
        _ip(f"link set v{host} master switch up")
    wait_for(lambda: all(_is_forwarding(host) for host in hosts), 10, lambda: "the switch forwards")


def _is_forwarding(host):
    (link,) = json.loads(_ip(f"-json -details link show v{host}"))
    return link["operstate"] == "UP" and link["linkinfo"]["info_slave_data"]["state"] == "forwarding"


def _switch_in_user_space(hosts, delay, loss, seed):
    for host in hosts:
        # Each packet for itself, with its checksum: the switch takes frames as they would be on a wire.
        _sh(f"nsenter --net={RUN}/netns/h{host} ethtool -K eth0 tx off sg off tso off gso off")
        _ip(f"link set v{host} up")
    command = [sys.executable, HERE / "switch.py", delay, loss, seed, len(hosts)]
    switch = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE)
    # It says so when it is ready.
    assert switch.stdout.readline() == b"ready\n", "the switch did not start"
    return switch


def _mac(host):
    return f"02:00:00:00:00:{host:02x}"


def _switch_side(host):
    return f"02:00:00:00:01:{host:02x}"


def _ip(arguments):
    return _sh(f"ip {arguments}")


def _sh(command):
    done = subprocess.run(command.split(), check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr.strip()}"
    return done.stdout


def wait_for(condition, seconds, what):
    """Asks again and again, until the condition holds; `what` says what it is."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {seconds} s: {what()}"
        time.sleep(0.05)
    return found
