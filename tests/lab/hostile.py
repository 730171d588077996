#!/usr/bin/env python3
"""hostile.py ATTACK SERVER KEY SERVER_KEY PORT: a peer with a valid key that means harm.

It stands between an honest worker, which connects to PORT of the loopback interface without keys, and the server, and
passes on what they say but for the attack. So all that it does not attack is right: greeting, numbers, shapes.
A packet is described in transports/src/zmq/packet.rs.
"""

import random
import struct
import sys
from pathlib import Path

# Importing leaves no files behind.
sys.dont_write_bytecode = True

from zeromq import DEALER, ROUTER, Socket, ready

DATA = 4
# kind, session, seq, epoch, step, unit, chunk, total, offset
HEADER = struct.Struct("<BQQIQIIQQ")
# The chunk of a step in which workers send their frames; others belong to the roll, and so does this epoch, in which a
# worker asks to be let in.
FRAMES, ROLL = 0, 0xFFFFFFFF
# Messages before the attack begins: the worker has become a member by then.
PEACEFUL = 20


class Attack:
    """What becomes of a packet on its way to the server: a list of packets."""

    def __init__(self):
        self.draws = random.Random(1)
        self.seen = []

    def packet(self, packet):
        if packet[:1] != bytes([DATA]):
            return [packet]
        self.seen.append(packet)
        return self.data(packet) if len(self.seen) > PEACEFUL else [packet]

    def data(self, packet):
        return [packet]

    def idle(self):
        """Called when nothing has come for a moment."""
        return []


class Replay(Attack):
    """Everything twice, and something old with it."""

    def data(self, packet):
        return [packet, self.draws.choice(self.seen), packet]


class Reorder(Attack):
    """Packets are held back and let go in another order."""

    held = []

    def data(self, packet):
        self.held.append(packet)
        return self.idle() if len(self.held) > 3 else []

    def idle(self):
        self.draws.shuffle(self.held)
        packets, self.held = self.held, []
        return packets


def is_frame(packet):
    fields = HEADER.unpack_from(packet)
    return fields[6] == FRAMES and fields[3] != ROLL


class Frames(Attack):
    """Changes frames, and nothing else."""

    def data(self, packet):
        if not is_frame(packet):
            return [packet]
        fields = list(HEADER.unpack_from(packet))
        frame = self.frame(packet[HEADER.size :])
        fields[7] = len(frame)
        return [HEADER.pack(*fields) + frame]


class Garbage(Frames):
    """Messages of nothing but noise, up to the version at their end."""

    def frame(self, body):
        return self.draws.randbytes(len(body) - 1) + body[-1:]


class Damaged(Frames):
    """Frames with one byte changed."""

    def frame(self, body):
        at = self.draws.randrange(len(body))
        return body[:at] + bytes([body[at] ^ 0x40]) + body[at + 1 :]


class Stale(Frames):
    """The frame of an earlier step, which is a good one, under the number of this one."""

    def frame(self, body):
        return next(packet[HEADER.size :] for packet in self.seen if is_frame(packet))


class Oversized(Attack):
    """Announces a message of a terabyte."""

    def data(self, packet):
        fields = list(HEADER.unpack_from(packet))
        fields[7] = 1 << 40
        return [HEADER.pack(*fields) + packet[HEADER.size :]]


class Flood(Attack):
    """Sends much more in one piece than any packet has."""

    def data(self, packet):
        return [packet, bytes(64 << 20)]


class Half(Attack):
    """Begins messages and does not end them."""

    def data(self, packet):
        fields = list(HEADER.unpack_from(packet))
        fields[7] = 2 * (len(packet) - HEADER.size)
        return [HEADER.pack(*fields) + packet[HEADER.size :]]


class Noise(Attack):
    """Packets that are none, between those that are."""

    def data(self, packet):
        return [self.draws.randbytes(300), packet, b"", packet[: HEADER.size - 1]]


ATTACKS = {attack.__name__.lower(): attack for attack in Attack.__subclasses__() + Frames.__subclasses__()}


def main():
    attack, server, key, server_key, port = sys.argv[1:]
    attack = ATTACKS[attack]()
    inside, outside = Socket(ROUTER), Socket(DEALER)
    inside.bind(f"tcp://127.0.0.1:{port}")
    outside.use_keys(Path(key), server_key)
    outside.connect(server)
    worker = b""
    while True:
        waiting = ready([inside, outside], 20)
        packets = [] if waiting else attack.idle()
        if inside in waiting:
            worker, packet = inside.receive()
            packets += attack.packet(packet)
        for packet in packets:
            outside.send(packet)
        if outside in waiting:
            inside.send(worker, *outside.receive())


main()
