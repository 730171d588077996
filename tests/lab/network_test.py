"""The network itself: what it promises to the tests that run in it."""

import os
import subprocess
import sys
import textwrap
import unittest

import sandbox
from network import Network, address, wait_for

PORT = 5000
# Sends a second's worth and more; prints Mbit/s of what was received after the first tenth.
RECEIVE = f"""
    import socket, time
    server = socket.create_server(("", {PORT}))
    print("ready", flush=True)
    stream, _ = server.accept()
    start = None
    total = 0
    while chunk := stream.recv(1 << 16):
        if start is None:
            start = time.monotonic()
        else:
            total += len(chunk)
    print(total * 8e-6 / (time.monotonic() - start))
"""
SEND = f"""
    import socket, sys
    stream = socket.create_connection((sys.argv[1], {PORT}))
    stream.sendall(bytes(int(sys.argv[2])))
"""
# Answers datagrams, and asks with numbered ones; prints the answers' round trips in milliseconds.
ECHO = f"""
    import socket
    echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    echo.bind(("", {PORT}))
    print("ready", flush=True)
    while True:
        echo.sendto(*echo.recvfrom(100))
"""
ASK = f"""
    import socket, sys, time
    ask = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ask.settimeout(0.2)
    for number in range(int(sys.argv[2])):
        start = time.monotonic()
        ask.sendto(b"%d" % number, (sys.argv[1], {PORT}))
        try:
            while ask.recv(100) != b"%d" % number:
                pass
            print((time.monotonic() - start) * 1000)
        except TimeoutError:
            pass
"""

# A lab of its own, for as long as nobody kills it.
LAB = """
    import sys, time
    sys.path.insert(0, sys.argv[1])
    import sandbox
    sandbox.enter()
    from network import Network
    with Network(2) as network:
        network.start(1, ["sleep", "4321"])
        print("ready", flush=True)
        time.sleep(60)
"""


def program(text, *arguments):
    return [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)]


def count_processes(command):
    counted = subprocess.run(["pgrep", "-f", "-c", command], check=False, capture_output=True, text=True)
    return int(counted.stdout)


class NetworkTest(unittest.TestCase):
    def measure_rate(self, network, bytes_):
        with network.start(2, program(RECEIVE), stdout=subprocess.PIPE, text=True) as receiver:
            self.assertEqual(receiver.stdout.readline(), "ready\n")
            network.start(1, program(SEND, address(2), bytes_)).wait(60)
            return float(receiver.stdout.read())

    def round_trips(self, network, count):
        with network.start(2, program(ECHO), stdout=subprocess.PIPE) as echo:
            self.assertEqual(echo.stdout.readline(), b"ready\n")
            ask = network.start(1, program(ASK, address(2), count), stdout=subprocess.PIPE, text=True)
            answers, _ = ask.communicate(timeout=120)
            echo.kill()
        return [float(line) for line in answers.splitlines()]

    def test_links_have_the_rate_that_was_asked_for(self):
        for rate, megabytes in [(10, 2), (100, 20)]:
            with self.subTest(rate=rate), Network(2, rate=rate) as network:
                measured = [self.measure_rate(network, megabytes * 1_000_000) for _ in range(3)]
                # Headers of Ethernet, IP and TCP are part of it; the first bucket is full.
                self.assertLess(max(measured), rate * 1.02)
                # A machine that does something else meanwhile does not always keep a link busy.
                self.assertGreater(max(measured), rate * 0.85)

    def test_links_without_a_rate_have_no_bucket(self):
        for rate, has_bucket in [(10, True), (None, False)]:
            with self.subTest(rate=rate), Network(2, rate=rate) as network:
                asked = network.start(1, "tc qdisc show dev eth0".split(), stdout=subprocess.PIPE, text=True)
                self.assertEqual("tbf" in asked.communicate()[0], has_bucket)

    def test_packets_are_delayed_both_ways(self):
        with Network(2, delay=20) as network:
            trips = sorted(self.round_trips(network, 20))
        self.assertEqual(len(trips), 20)
        self.assertGreaterEqual(trips[0], 40)
        self.assertLess(trips[len(trips) // 2], 60)

    def test_packets_are_lost_one_by_one(self):
        with Network(2, delay=1, loss=0.1) as network:
            answered = len(self.round_trips(network, 300)) / 300
        # Twice one in ten; four standard deviations.
        self.assertAlmostEqual(answered, 0.81, delta=0.09)

    def test_a_cut_link_carries_nothing_until_it_is_healed(self):
        for delay in (0, 1):
            with self.subTest(delay=delay), Network(2, delay=delay) as network:
                self.assertTrue(self.round_trips(network, 3))
                network.cut(2)
                self.assertFalse(self.round_trips(network, 3))
                network.heal(2)
                wait_for(lambda: self.round_trips(network, 3), 10, lambda: "the link is there again")

    def test_hosts_have_names_of_their_own(self):
        with Network(3) as network:
            asked = [network.start(host, ["hostname"], stdout=subprocess.PIPE) for host in network.hosts]
            self.assertEqual([name.communicate()[0] for name in asked], [b"h1\n", b"h2\n", b"h3\n"])

    def test_a_killed_lab_leaves_nothing_and_labs_do_not_meet(self):
        """Two more labs inside of this one, with the same names and addresses, one of which is killed."""
        inner = program(LAB, os.path.dirname(__file__))
        labs = [sandbox.start(inner, stdout=subprocess.PIPE) for _ in range(2)]
        for lab in labs:
            self.assertEqual(lab.stdout.readline(), b"ready\n")
        self.assertEqual(count_processes("sleep 4321"), 2)
        labs[0].kill()
        wait_for(lambda: count_processes("sleep 4321") == 1, 10, lambda: "nothing is left of the killed lab")
        self.assertIsNone(labs[1].poll())
        labs[1].kill()
        for lab in labs:
            lab.communicate()
