#!/usr/bin/env python3
"""hostile_tcp.py ATTACK RANK_0 PORT: a host on the way from rank 1 to rank 0, which means harm.

Rank 1 connects to PORT of this host in place of rank 0, and what it sends is passed on but for the attack. Against ranks with a
key it knows as much as any host on the way does: where records of Noise begin. Against ranks without one it is as good as a
rank that means harm itself: it reads frames and writes others. Both are described in transports/src/tcp/frame.rs and
greeting.rs.
"""

import random
import socket
import struct
import sys
import threading

PREFACE, HANDSHAKE = 11, 50
# kind, length; epoch, step, unit, chunk
HEADER, TAG = struct.Struct("<BQ"), struct.Struct("<IQII")
MESSAGE = 1
# Longer payloads are frames of gradients.
FRAME_BYTES = 60
# Records, or frames of gradients, before the attack begins: the run has begun by then.
PEACEFUL = 40


class Stream:
    def __init__(self, stream):
        self.file = stream.makefile("rb")

    def take(self, count):
        found = self.file.read(count)
        if len(found) < count:
            raise EOFError
        return found


class Records:
    """What an attack makes of sealed records, once."""

    def pieces(self, stream):
        yield stream.take(PREFACE + HANDSHAKE)
        count = 0
        while True:
            length = stream.take(2)
            record, count = length + stream.take(int.from_bytes(length, "little")), count + 1
            if count == PEACEFUL:
                yield from self.attack(record, stream)
            else:
                yield record


class Flip(Records):
    """One bit is another one."""

    def attack(self, record, _):
        yield record[:-1] + bytes([record[-1] ^ 1])


class Repeat(Records):
    """One record comes twice."""

    def attack(self, record, _):
        yield record + record


class Drop(Records):
    """One record never comes."""

    def attack(self, *_):
        yield b""


class Swap(Records):
    """One record comes after the next one."""

    def attack(self, record, stream):
        length = stream.take(2)
        yield length + stream.take(int.from_bytes(length, "little")) + record


class Frames:
    """What an attack makes of frames of gradients, all of them once it has begun."""

    def __init__(self):
        self.draws = random.Random(1)
        self.seen = []

    def pieces(self, stream):
        yield stream.take(PREFACE)
        while True:
            header = stream.take(HEADER.size)
            kind, length = HEADER.unpack(header)
            if kind != MESSAGE:
                yield header + stream.take(length)
                continue
            tag, payload = stream.take(TAG.size), stream.take(length)
            if length >= FRAME_BYTES:
                self.seen.append(payload)
            is_attacked = length >= FRAME_BYTES and len(self.seen) > PEACEFUL
            yield self.attack(tag, payload) if is_attacked else message(tag, payload)


def message(tag, payload):
    return HEADER.pack(MESSAGE, len(payload)) + tag + payload


class Garbage(Frames):
    """Nothing but noise, up to the version at its end."""

    def attack(self, tag, payload):
        return message(tag, self.draws.randbytes(len(payload) - 1) + payload[-1:])


class Damaged(Frames):
    """One byte is another one."""

    def attack(self, tag, payload):
        at = self.draws.randrange(len(payload))
        return message(tag, payload[:at] + bytes([payload[at] ^ 0x40]) + payload[at + 1 :])


class Stale(Frames):
    """A good frame, of an earlier step."""

    def attack(self, tag, _):
        return message(tag, self.seen[0])


class Oversized(Frames):
    """Announces a terabyte."""

    def attack(self, tag, payload):
        return HEADER.pack(MESSAGE, 1 << 40) + tag + payload


class Noise(Frames):
    """A frame of a kind that there is not."""

    def attack(self, tag, payload):
        return HEADER.pack(99, 0) + message(tag, payload)


class Half(Frames):
    """Begins a message and does not end it."""

    def attack(self, tag, payload):
        return HEADER.pack(MESSAGE, 1 << 20) + tag + payload


class Flood(Frames):
    """Messages that nobody waits for, more than there is room for, before one that is waited for."""

    def attack(self, tag, payload):
        epoch, step, unit, chunk = TAG.unpack(tag)
        others = (TAG.pack(epoch, step + 1000 + ahead, unit, chunk) for ahead in range(10_000))
        return b"".join(message(other, payload) for other in others) + message(tag, payload)


ATTACKS = {attack.__name__.lower(): attack for attack in Records.__subclasses__() + Frames.__subclasses__()}


def relay(attack, near, to):
    far = socket.create_connection(to)
    threading.Thread(target=back, args=(far, near), daemon=True).start()
    try:
        for piece in attack.pieces(Stream(near)):
            far.sendall(piece)
    except (EOFError, OSError):
        pass
    close(near, far)


def back(far, near):
    """What rank 0 says is passed on as it is."""
    try:
        while some := far.recv(1 << 16):
            near.sendall(some)
    except OSError:
        pass
    close(near, far)


def close(*streams):
    for stream in streams:
        try:
            stream.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def main():
    attack, to, port = sys.argv[1:]
    host, _, to_port = to.rpartition(":")
    listener = socket.create_server(("", int(port)))
    print("ready", flush=True)
    while True:
        near, _ = listener.accept()
        there = (host, int(to_port))
        threading.Thread(target=relay, args=(ATTACKS[attack](), near, there), daemon=True).start()


main()
