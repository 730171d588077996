"""Training over links that are slow, far, cut or lopsided: edge and satellite are what ZeroMQ is here for, and TCP bears them.

Few steps and small models: each case takes at most about a minute, most of which is spent waiting for the link.
"""

import json
import os
import signal
import tempfile
import time
import unittest
from pathlib import Path

import tcp
import trainers
from network import Network, wait_for
from programs import TRAINER
from tcp import name_hosts
from trainers import Keys, join, serve

RUN = ["--workers", "2", "--eval-every", "0"]
# 610 parameters; the default model has 19,000; with this one there are 600,000.
SMALL, LARGE = ["--hidden", "8"], ["--hidden", "8000"]
TOPK = ["--codec", "topk:density=0.01"]
SECONDS = 240
WORKER = 2


class Scene:
    """A server, and a worker behind a link that the arguments describe."""

    def __init__(self, run, server=(), **link):
        batch = [] if "--batch" in run else ["--batch", "32"]
        self.run, self.own, self.link = [*RUN, *batch, *run], server, link

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        folder = Path(self.folder.name)
        self.network = Network(2, **self.link)
        self.network.__enter__()
        self.keys = Keys(folder, 2)
        self.out = folder / "run"
        self.server = serve(self.network, self.keys, self.run, "--out", self.out, "--report-every", "1", *self.own)
        self.server.says("listening at")
        self.began = time.monotonic()
        self.worker = join(self.network, self.keys, 1, self.run)
        return self

    def __exit__(self, *failure):
        self.network.__exit__(*failure)
        self.folder.cleanup()

    def ends(self):
        """Both end well and alike; returns what the server recorded of each step."""
        hashes = {process.ends(SECONDS) for process in [self.server, self.worker]}
        assert len(hashes) == 1, hashes
        print(f"{self.link}: {time.monotonic() - self.began:.0f} s", end=" ", flush=True)
        return [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]


class Links:
    """What each network trains over; who inherits this has `trains(steps, run, **link)`."""

    def test_a_modem_by_satellite(self):
        self.trains(3, SMALL, rate=0.064, delay=750)

    def test_the_default_model_behind_256_kbit(self):
        self.trains(10, TOPK, rate=0.256)

    def test_600_000_parameters_behind_1500_kbit(self):
        self.trains(3, [*LARGE, *TOPK], rate=1.5)

    def test_a_round_trip_of_600_ms(self):
        self.trains(10, SMALL, rate=20, delay=300)

    def test_a_line_that_is_ten_times_as_fast_down_as_up(self):
        self.trains(10, ["--codec", "qsgd:bits=4"], rate=0.2, to_hosts=2)

    def test_a_slow_and_lossy_link(self):
        self.trains(5, SMALL, rate=0.5, delay=100, loss=0.02)


class SlowTest(Links, unittest.TestCase):
    def trains(self, steps, run, server=(), void=0, **link):
        """All steps but the first `void` have both frames, and nobody is missed."""
        with Scene(["--steps", steps, *run], server, **link) as scene:
            lines = scene.ends()
            self.assertEqual([line["contributors"] for line in lines], [0] * void + [2] * (steps - void))
            for process in [scene.server, scene.worker]:
                self.assertNotIn("is gone: nothing", process.all())

    def test_patience_begins_when_the_mean_can_be_there(self):
        """A dense mean takes six seconds on this link, and the first step ends before the parameters are there."""
        self.trains(4, [*TOPK, "--downlink", "none"], server=["--patience", 4], void=1, rate=0.1)

    def test_a_link_whose_rate_falls_to_a_hundredth_in_the_middle(self):
        with Scene(["--steps", 40, *TOPK, "--downlink", "none"], rate=20) as scene:
            scene.server.says("step 5: ")
            scene.network.set_rate(WORKER, 0.2)
            self.assertEqual(len(scene.ends()), 40)
            self.assertNotIn("is gone: nothing", scene.server.all())

    def test_a_link_that_is_cut_for_longer_than_anybody_is_waited_for(self):
        with Scene(["--steps", 1000000, *SMALL], rate=10) as scene:
            scene.server.says("step 5: ")
            scene.network.cut(WORKER)
            scene.server.says("rank 1 is gone: nothing was heard of it")
            scene.server.says("waiting for 2 ranks before step [0-9]+: 1 is there; rank 1 is not connected")
            scene.worker.says("the server is gone; waiting for it")
            scene.network.heal(WORKER)
            scene.worker.says("steps away|let in for step [0-9]+(.|\\n)*let in for step")
            before = scene.server.all().count(" 2 contributors")
            network_goes_on(scene.server, before)
            scene.server.process.send_signal(signal.SIGINT)

    def test_a_worker_that_sleeps_and_a_server_that_says_so(self):
        with Scene(["--steps", 1000000, *SMALL], rate=10) as scene:
            scene.server.says("step 5: ")
            scene.worker.process.send_signal(signal.SIGSTOP)
            scene.server.says("rank 1 is silent")
            scene.server.says("waiting for rank 1 for [0-9]+ s: step [0-9]+: nothing was heard of it for")
            scene.worker.process.send_signal(signal.SIGCONT)
            scene.server.says("rank 1 is here again; nothing was lost")
            network_goes_on(scene.server, scene.server.all().count(" 2 contributors"))

    def test_a_router_that_forgets_idle_connections_and_steps_that_take_longer(self):
        """Signs of life keep the connection in use."""
        with Scene(["--steps", 3, "--batch", 1198, "--hidden", "6000,6000", *TOPK], rate=1000) as scene:
            scene.network.forget_when_idle(WORKER, 1)
            lines = scene.ends()
            self.assertEqual([line["contributors"] for line in lines], [2, 2, 2])
            self.assertGreater(max(line["compute_ns"] for line in lines), 1.2e9, "the steps are too short")
            said = scene.server.all() + scene.worker.all()
            self.assertNotIn("is gone: nothing", said)
            # An end that gets no time on a busy machine gives no sign of life, and is silent until it does.
            silences = said.count(" is silent")
            self.assertEqual(said.count(" is here again; nothing was lost"), silences, said)
            if not silences:
                self.assertEqual(scene.network.forgotten(WORKER), 0)

    def test_a_worker_that_sleeps_until_its_connection_is_forgotten(self):
        with Scene(["--steps", 1000000, *SMALL], rate=10) as scene:
            scene.network.forget_when_idle(WORKER, 3)
            scene.server.says("step 5: ")
            # The whole host: the kernel of one that is awake would answer for a worker that is not.
            scene.worker.process.send_signal(signal.SIGSTOP)
            scene.network.cut(WORKER)
            scene.server.says("rank 1 is silent")
            time.sleep(8)
            scene.network.heal(WORKER)
            scene.worker.process.send_signal(signal.SIGCONT)
            scene.server.says("rank 1 is here again; nothing was lost")
            self.assertGreater(scene.network.forgotten(WORKER), 0)
            network_goes_on(scene.server, scene.server.all().count(" 2 contributors"))

    def test_a_router_that_forgets_a_connection_in_use(self):
        with Scene(["--steps", 1000000, *SMALL], rate=10) as scene:
            for times in range(1, 4):
                network_goes_on(scene.server, scene.server.all().count(" 2 contributors"))
                scene.network.forget(WORKER, trainers.PORT)
                # The worker makes the new connection. Whether the server has missed the old one is a matter of time.
                again = lambda times=times: scene.worker.all().count("rank 0 is here again; nothing was lost") >= times
                wait_for(again, SECONDS, lambda: f"the worker makes connection {times}:\n{scene.worker.end()}")
            network_goes_on(scene.server, scene.server.all().count(" 2 contributors"))
            self.assertNotIn("is gone", scene.server.all())

    def test_a_name_that_has_only_an_address_of_version_6(self):
        name_hosts(self, only6=["::1"])
        run = [*RUN, *SMALL, "--batch", "32", "--steps", "5"]
        with tempfile.TemporaryDirectory() as folder, Network(1) as network:
            keys = Keys(Path(folder), 2)
            own = ["--key", keys.secret(0), "--peers", keys.peers(), "--out", Path(folder) / "run"]
            own += ["--listen", "tcp://[::1]:5555"]
            server = trainers.Process(network, 1, "server", Path(folder), [os.environ[TRAINER], "serve", *own, *run])
            own = ["--key", keys.secret(1), "--server-key", keys.public(0), "--rank", "1"]
            own += ["--server", "tcp://only6:5555"]
            worker = trainers.Process(network, 1, "worker", Path(folder), [os.environ[TRAINER], "join", *own, *run])
            self.assertEqual(server.ends(SECONDS), worker.ends(SECONDS))


class TcpSlowTest(Links, unittest.TestCase):
    """Over TCP there is no server, and every rank needs all others."""

    RUN = ["--eval-every", "0", "--batch", "32", "--checkpoint-every", "10"]

    def trains(self, steps, run, **link):
        with tcp.Scene([*self.RUN, "--steps", steps, *run], **link) as scene:
            began = time.monotonic()
            scene.ends(SECONDS)
            print(f"{link}: {time.monotonic() - began:.0f} s", end=" ", flush=True)

    def test_a_link_whose_rate_falls_to_a_hundredth_in_the_middle(self):
        with tcp.Scene([*self.RUN, "--steps", 60, "--codec", "qsgd:bits=4"], rate=20) as scene:
            scene.trains()
            scene.network.set_rate(WORKER, 0.2)
            scene.ends(SECONDS)

    def test_a_link_that_is_cut_and_a_worker_that_sleeps_for_less_than_a_silence(self):
        with tcp.Scene([*self.RUN, "--steps", 1000000, *SMALL], rate=10) as scene:
            worker = scene.ranks[1].process
            for begins, ends in [
                (lambda: scene.network.cut(WORKER), lambda: scene.network.heal(WORKER)),
                (lambda: worker.send_signal(signal.SIGSTOP), lambda: worker.send_signal(signal.SIGCONT)),
            ]:
                scene.trains()
                begins()
                time.sleep(tcp.SILENCE / 2)
                ends()
            scene.trains()

    def test_a_router_that_forgets_idle_connections_and_a_rank_that_comes_late(self):
        """Signs of life keep the connection in use."""
        run = ["--eval-every", "0", "--batch", "96", "--steps", "30", *SMALL]
        with tcp.Scene(run, ranks=3, late=[1, 2], rate=1000) as scene:
            scene.network.forget_when_idle(WORKER, 3)
            scene.ranks[1] = scene.start(1)
            scene.ranks[1].says("waiting for rank 2")
            scene.ranks[0].says("waiting for rank 2")
            time.sleep(8)
            scene.ranks[2] = scene.start(2)
            scene.ends()
            self.assertEqual(scene.network.forgotten(WORKER), 0)


def network_goes_on(server, before):
    trainers.wait_for(
        lambda: server.all().count(" 2 contributors") > before + 5, SECONDS, lambda: f"the run goes on:\n{server.end()}"
    )
