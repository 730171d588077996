"""Ranks on hosts of their own, and one more host from which they are attacked, over ZeroMQ and over TCP.

In no case do the parameters change for it, and the log names who did what. Over ZeroMQ a server goes on with two
honest workers; over TCP the run ends, and goes on from its checkpoint.
"""

import re
import sys
import tempfile
import unittest
from pathlib import Path

import tcp
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


class TcpHostileTest(unittest.TestCase):
    """Two ranks over TCP, and a third host from which they are attacked.

    Without the key an attacker gets nowhere. One that can change what is sent ends the run, since every rank needs all
    others; the run then resumes from its checkpoint and ends as if nothing had happened.
    """

    RUN = ["--steps", "100", "--eval-every", "0", "--hidden", "8", "--checkpoint-every", "10"]
    WITHOUT_KEY = ["--insecure"]
    LISTEN = ["--listen", f"{address(3)}:{tcp.PORT}"]

    @classmethod
    def setUpClass(cls):
        with tcp.Scene(cls.RUN) as scene:
            cls.expected = scene.ends()

    def throw_out(self, scene):
        """Starts strangers that send something other than a greeting. The rank hangs up on each."""
        # Half of a preface; a good one, and a hello of 2^64 - 1 bytes; noise.
        openings = ["6772616477", "67726164776972650200" + "00" + "07" + "ff" * 8, "5a" * 200]
        raw = [sys.executable, "-c", RAW, address(1), tcp.PORT]
        attacks = [scene.network.start(3, [*raw, opening]) for opening in openings]
        self.assertEqual([attack.wait(60) for attack in attacks], [0] * len(attacks))

    def test_who_has_no_key_or_a_wrong_one_is_not_let_in(self):
        with tcp.Scene(self.RUN, others=1, late=[1]) as scene:
            wrong = scene.start(1, host=3, security=[*self.LISTEN, "--key", tcp.new_key(scene.folder / "other.key")])
            wrong.says("rank 0 at .* has another key: copy one key file to all hosts")
            self.assertEqual(wrong.process.wait(60), 2)
            none = scene.start(1, host=3, security=[*self.LISTEN, *self.WITHOUT_KEY])
            none.says("rank 0 at .* encrypts, and this end has no key")
            self.assertEqual(none.process.wait(60), 2)
            scene.ranks[1] = scene.start(1)
            self.assertEqual(scene.ends(), self.expected)

    def test_who_has_the_key_and_comes_as_a_rank_that_is_there_is_turned_away(self):
        with tcp.Scene(tcp.ENDLESS, others=1) as scene:
            scene.trains()
            again = scene.start(1, host=3, security=[*self.LISTEN, "--key", scene.key, "--wait", "3"])
            again.says("that rank is there already")
            self.assertEqual(again.process.wait(60), 1)
            self.assertEqual([rank.process.poll() for rank in scene.ranks], [None, None])

    def test_half_a_greeting_and_bytes_of_another_protocol_are_cut_off(self):
        with tcp.Scene(self.RUN, others=1, late=[1]) as scene:
            scene.ranks[0].says("listens at")
            self.throw_out(scene)
            scene.ranks[1] = scene.start(1)
            self.assertEqual(scene.ends(), self.expected)

    def test_a_run_goes_on_while_strangers_knock(self):
        with tcp.Scene(tcp.ENDLESS, others=1) as scene:
            scene.trains()
            self.throw_out(scene)
            scene.trains()
            self.assertEqual([rank.process.poll() for rank in scene.ranks], [None, None])

    def attacked(self, name, says, security=None):
        with tcp.Scene(self.RUN, others=1, late=[0, 1]) as scene:
            scene.ranks[0] = scene.start(0, security=security)
            relay = [sys.executable, Path(__file__).with_name("hostile_tcp.py"), name, f"{address(1)}:{tcp.PORT}", RELAY_PORT]
            Process(scene.network, 3, "hostile", scene.folder, relay).says("ready")
            meet = ["--hosts", f"{address(3)}:{RELAY_PORT},{address(2)}:{tcp.PORT}"]
            scene.ranks[1] = scene.start(1, meet=meet, security=security)
            scene.ranks[0].says(says)
            scene.ranks[1].says("rank 0 is gone; start all ranks again")
            self.assertEqual([rank.process.wait(60) for rank in scene.ranks], [1, 1])
            self.assertNotIn("parameters:", scene.ranks[0].all())
            scene.goes_on()
            self.assertEqual(scene.ends(), self.expected)

    def test_sealed_bytes_that_are_changed_repeated_dropped_or_swapped_end_the_run_and_change_nothing(self):
        for name in ["flip", "repeat", "drop", "swap"]:
            with self.subTest(name):
                self.attacked(name, "rank 1 is gone; start all ranks again")

    def test_without_a_key_frames_that_are_none_or_damaged_or_old_end_the_run_by_name_and_change_nothing(self):
        for name, says in [
            ("garbage", "frame of rank 1 refused: not a gradwire frame"),
            ("damaged", "frame of rank 1 refused: "),
            ("stale", "frame of rank 1 belongs to step 0, this rank is at step"),
        ]:
            with self.subTest(name):
                self.attacked(name, says, self.WITHOUT_KEY)

    def test_without_a_key_who_breaks_the_protocol_is_gone(self):
        # The last one ends no message that it begins.
        for name in ["oversized", "noise", "half"]:
            with self.subTest(name):
                self.attacked(name, "rank 1 is gone; start all ranks again", self.WITHOUT_KEY)

    def test_without_a_key_who_sends_more_than_there_is_room_for_is_named(self):
        self.attacked("flood", "rank 1 filled the inbox with messages that nobody waits for", self.WITHOUT_KEY)
