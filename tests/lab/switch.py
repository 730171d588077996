#!/usr/bin/env python3
"""switch.py DELAY_MS LOSS SEED HOSTS: an Ethernet switch among v1 … vHOSTS that delays every frame and loses some.

Each frame is lost or not by a draw of its own. Which frames a seed loses follows from their order, which is the
network's.
"""

import collections
import random
import select
import socket
import sys
import time

# What Python's socket module does not name.
ETH_P_ALL = 3
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
SOL_PACKET, PACKET_IGNORE_OUTGOING = 263, 23

# One frame, a virtual LAN's tag included.
LARGEST_FRAME = 1518
QUEUE_BYTES = 16 << 20
# In the first byte of an address: it is one of several hosts, as where an address of version 6 is looked for.
GROUP = 1


def port(name):
    """A socket that hears what comes in at an interface, and sends there."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    opened.bind((name, ETH_P_ALL))
    opened.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    for option in (SO_SNDBUFFORCE, SO_RCVBUFFORCE):
        opened.setsockopt(socket.SOL_SOCKET, option, QUEUE_BYTES)
    opened.setblocking(False)
    return opened


class Switch:
    def __init__(self, ports, delay, loss, seed):
        self.ports, self.delay, self.loss = ports, delay, loss
        self.draws = random.Random(seed)
        # Due time, port and frame; the delay is the same for all, so they are in order.
        self.waiting = collections.deque()

    def run(self):
        while True:
            until_due = max(0, self.waiting[0][0] - time.monotonic()) if self.waiting else None
            for ready in select.select(self.ports, [], [], until_due)[0]:
                self.take(ready)
            self.deliver()

    def take(self, source):
        """All frames that wait at a port."""
        try:
            while True:
                frame = source.recv(LARGEST_FRAME)
                if self.draws.random() >= self.loss:
                    due = time.monotonic() + self.delay
                    self.waiting.extend((due, to, frame) for to in self.ways(source, frame))
        except OSError:
            # Nothing is left, or the link is cut.
            return

    def ways(self, source, frame):
        if frame[0] & GROUP:
            return [to for to in self.ports if to is not source]
        # The last byte of a host's hardware address is its number.
        host = frame[5]
        return [self.ports[host - 1]] if 0 < host <= len(self.ports) else []

    def deliver(self):
        while self.waiting and self.waiting[0][0] <= time.monotonic():
            _, to, frame = self.waiting.popleft()
            try:
                to.send(frame)
            except OSError:
                # Its queue is full, or its link is cut: the frame is lost, as at any switch.
                continue


def main():
    delay, loss, seed, hosts = sys.argv[1:]
    ports = [port(f"v{host}") for host in range(1, int(hosts) + 1)]
    print("ready", flush=True)
    Switch(ports, float(delay) / 1000, float(loss), int(seed)).run()


main()
