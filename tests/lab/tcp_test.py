"""Training over TCP on hosts of their own: the two commands of docs/tcp.md, and hosts that die, stop or are cut off."""

import os
import signal
import tempfile
import time
import unittest
from pathlib import Path

from network import Network, address
from programs import TRAINER
from trainers import Process

PORT = 5700
SHORT = ["--steps", "30", "--eval-every", "0", "--hidden", "8"]
ENDLESS = ["--steps", "1000000", "--eval-every", "0", "--hidden", "8", "--checkpoint-every", "10"]
# docs/tcp.md: a rank from which no byte came for this time is gone. A machine that is busy adds to it.
SILENCE, SLACK = 10, 20


class Scene:
    """A rank on each of two hosts."""

    def __init__(self, run, **link):
        self.run, self.link = run, link

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.network = Network(2, **self.link)
        self.network.__enter__()
        self.key = Path(self.folder.name) / "run.key"
        self.key.touch(0o600)
        self.key.write_text(os.urandom(32).hex() + "\n")
        self.ranks = [self.start(rank) for rank in range(2)]
        return self

    def __exit__(self, *failure):
        self.network.__exit__(*failure)
        self.folder.cleanup()

    def start(self, rank, resumes=False):
        folder = Path(self.folder.name)
        hosts = ",".join(f"{address(host)}:{PORT}" for host in [1, 2])
        run = ["--resume", folder / "run"] if resumes else ["--transport", "tcp", *self.run]
        own = ["--out", folder / "run"] if rank == 0 and not resumes else []
        command = [os.environ[TRAINER], "train", *run, "--hosts", hosts, "--key", self.key, "--rank", rank, *own]
        return Process(self.network, rank + 1, f"rank {rank}", folder, command)

    def trains(self):
        """Waits until a checkpoint is there."""
        checkpoints = Path(self.folder.name) / "run/checkpoints"
        began = time.monotonic()
        while not any(checkpoints.glob("step-*")):
            assert time.monotonic() - began < 120, self.ranks[0].end()
            time.sleep(0.1)

    def notices(self, rank):
        """Waits until that rank says that the other one is gone; returns the seconds."""
        began = time.monotonic()
        self.ranks[rank].says("start all ranks again")
        return time.monotonic() - began


class TcpTest(unittest.TestCase):
    def test_two_commands_train_and_two_commands_go_on(self):
        with Scene(SHORT) as scene:
            scene.ranks[0].says("parameters: [0-9a-f]{16} on all 2 workers")
            scene.ranks[1].says("all steps are done")
            self.assertEqual([rank.process.wait(60) for rank in scene.ranks], [0, 0])
        with Scene(ENDLESS) as scene:
            scene.trains()
            scene.ranks[1].process.kill()
            self.assertLess(scene.notices(0), 5)
            scene.ranks = [scene.start(0, resumes=True), scene.start(1)]
            scene.ranks[0].says("Resuming at step")
            scene.ranks[1].says("all 2 ranks are there(?s:.*)all 2 ranks are there")

    def test_a_host_that_is_cut_off_is_noticed_at_both_ends(self):
        with Scene(ENDLESS) as scene:
            scene.trains()
            scene.network.cut(2)
            for rank in range(2):
                self.assertLess(scene.notices(rank), SILENCE + SLACK)

    def test_a_stopped_process_is_noticed_when_it_was_silent_for_too_long(self):
        with Scene(ENDLESS) as scene:
            scene.trains()
            scene.ranks[1].process.send_signal(signal.SIGSTOP)
            seconds = scene.notices(0)
            self.assertGreater(seconds, SILENCE - 2)
            self.assertLess(seconds, SILENCE + SLACK)


if __name__ == "__main__":
    unittest.main()
