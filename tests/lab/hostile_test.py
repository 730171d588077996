"""A server with two honest workers on hosts of their own, and a third host from which they are attacked.

Whatever it does, the run of the others ends with the same parameters at all of them, and the log says who did what.
"""

import re
import sys
import tempfile
import unittest
from pathlib import Path

import trainers
from network import Network, address
from trainers import Keys, Process, join, join_without_keys, serve

HONEST, HOSTILE = (1, 2), 3
STEPS = 1500
# The server goes on without the hostile worker, also where that keeps the others waiting.
RULES = ["--quorum", "3", "--patience", "1"]
RELAY_PORT = 6000
# Sends the given bytes, and waits until it is thrown out.
RAW = """
import socket, sys
stream = socket.create_connection((sys.argv[1], int(sys.argv[2])))
stream.sendall(bytes.fromhex(sys.argv[3]))
try:
    while stream.recv(100):
        pass
except ConnectionResetError:
    pass
"""


class Scene:
    """The honest part of a run."""

    def __init__(self, rules, steps=STEPS, **link):
        self.folder = tempfile.TemporaryDirectory()
        self.keys = Keys(Path(self.folder.name), 4)
        self.network = Network(4, **link)
        self.run = ["--workers", "4", "--steps", steps, "--hidden", "8", "--hash-every", "0"]
        own = ["--out", self.keys.folder / "run", *rules]
        self.server = serve(self.network, self.keys, self.run, *own)
        self.server.says("listening")
        self.workers = [self.join(rank) for rank in HONEST]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.network.__exit__()
        self.folder.cleanup()

    def join(self, rank, **key):
        return join(self.network, self.keys, rank, self.run, **key)

    def join_without_keys(self, server, *own):
        return join_without_keys(self.network, self.keys, HOSTILE, self.run, server, *own)

    def attack(self, name):
        """An honest worker behind a hostile relay, which holds the key."""
        command = [sys.executable, Path(__file__).with_name("hostile.py"), name, trainers.endpoint()]
        command += [self.keys.secret(HOSTILE), self.keys.public(0), RELAY_PORT]
        Process(self.network, HOSTILE + 1, "hostile", self.keys.folder, command)
        return self.join_without_keys(f"tcp://127.0.0.1:{RELAY_PORT}")

    def hashes(self, seconds=trainers.SECONDS):
        """Those of the parameters at the end."""
        return {process.ends(seconds) for process in [self.server, *self.workers]}


class HostileTest(unittest.TestCase):
    def attacked(self, name, what_the_server_says):
        with Scene(RULES) as scene:
            scene.attack(name)
            scene.server.says(what_the_server_says)
            self.assertEqual(len(scene.hashes()), 1)

    def test_who_has_no_key_or_a_wrong_one_is_not_let_in(self):
        with Scene(RULES) as scene:
            stranger = scene.keys.make("stranger")
            scene.join(HOSTILE, key="stranger")
            scene.server.says(f"key {re.escape(stranger)} is not on the list")
            scene.join_without_keys(trainers.endpoint(), "--beyond-loopback")
            scene.server.says("was not let in: the handshake failed")
            self.assertEqual(len(scene.hashes()), 1)

    def test_half_a_greeting_and_bytes_of_another_protocol_are_cut_off(self):
        # The signature of ZMTP and then silence; the claim of a frame of 2^56 bytes; noise.
        openings = ["ff00000000000000017f", "020100000000000000", "5a" * 200]
        # Each is cut off after half a minute, which a handshake may take. On a machine of any speed, so many steps over
        # links of 10 ms each way take a minute.
        with Scene(RULES, steps=2 * STEPS, delay=10) as scene:
            raw = [sys.executable, "-c", RAW, address(trainers.SERVER), trainers.PORT]
            attacks = [scene.network.start(HOSTILE + 1, [*raw, opening]) for opening in openings]
            self.assertEqual([attack.wait(60) for attack in attacks], [0] * len(attacks))
            self.assertIsNone(scene.server.process.poll(), "the run was over before they were cut off")
            self.assertEqual(len(scene.hashes(300)), 1)

    def test_replayed_and_reordered_packets_change_nothing(self):
        hashes = set()
        for name in [None, "replay", "reorder"]:
            with self.subTest(name), Scene([]) as scene:
                scene.workers.append(scene.attack(name) if name else scene.join(HOSTILE))
                hashes |= scene.hashes()
        self.assertEqual(len(hashes), 1)

    def test_frames_of_noise_are_refused_by_name_and_the_mean_goes_without(self):
        self.attacked("garbage", f"step [0-9]+: frame of rank {HOSTILE} refused: not a gradwire frame")

    def test_damaged_frames_are_refused_by_name_and_the_mean_goes_without(self):
        self.attacked("damaged", f"step [0-9]+: frame of rank {HOSTILE} refused: .*checksum")

    def test_who_sends_an_old_frame_again_is_put_out(self):
        self.attacked("stale", f"rank {HOSTILE} is out until it asks again: .*step")

    def test_who_announces_too_much_is_put_out(self):
        self.attacked("oversized", f"rank {HOSTILE} is gone: it broke the protocol: .*announced a message of")

    def test_who_sends_too_much_at_once_loses_its_connection(self):
        self.attacked("flood", f"rank {HOSTILE} is silent")

    def test_who_does_not_end_its_messages_is_put_out(self):
        self.attacked("half", f"rank {HOSTILE} is gone: it broke the protocol: .*does not continue its message")

    def test_packets_that_are_none_are_dropped_by_name(self):
        self.attacked("noise", f"dropped from rank {HOSTILE}: 300 bytes that are no packet")
