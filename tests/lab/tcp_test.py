"""Training over TCP on hosts of their own: how ranks find each other, and hosts that die, stop or are cut off."""

import signal
import unittest

from network import address, address_v6
from tcp import ENDLESS, PORT, SHORT, SILENCE, SLACK, Scene, at, name_hosts

THREE = [*ENDLESS, "--batch", "96"]


class TcpTest(unittest.TestCase):
    def test_two_commands_train_and_two_commands_go_on(self):
        with Scene(SHORT) as scene:
            scene.ends()
        with Scene(ENDLESS) as scene:
            scene.trains()
            scene.ranks[1].process.kill()
            self.assertLess(scene.notices(0), 5)
            scene.goes_on()

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

    def test_one_connection_of_three_that_is_reset_ends_the_run_at_all_ranks_at_once(self):
        with Scene(THREE, ranks=3) as scene:
            scene.trains()
            # Between ranks 2 and 1; rank 0 has lost none.
            scene.network.reset(3, PORT, to=2)
            for rank in range(3):
                self.assertLess(scene.notices(rank), 5)
            scene.goes_on()

    def test_one_connection_of_three_that_carries_nothing_more_ends_the_run_at_all_ranks(self):
        with Scene(THREE, ranks=3) as scene:
            scene.trains()
            scene.network.forget(3, PORT, to=2)
            for rank in range(3):
                self.assertLess(scene.notices(rank), SILENCE + SLACK)


class MeetingTest(unittest.TestCase):
    """Each way to find each other ends with the same parameters as two addresses of version 4."""

    @classmethod
    def setUpClass(cls):
        with Scene(SHORT) as scene:
            cls.expected = scene.ends()

    def trains(self, meet, **more):
        with Scene(SHORT, meet=meet, **more) as scene:
            self.assertEqual(scene.ends(), self.expected)

    def test_addresses_of_version_6(self):
        self.trains(at(map(address_v6, [1, 2])))

    def test_addresses_of_version_6_behind_a_slow_switch(self):
        self.trains(at(map(address_v6, [1, 2])), delay=2, loss=0.01)

    def test_names(self):
        name_hosts(self, node1=[address(1)], node2=[address_v6(2).strip("[]")])
        self.trains(at(["node1", "node2"]))

    def test_a_name_with_an_address_at_which_nobody_is(self):
        # Each of them is tried; rank 0 listens at its own.
        name_hosts(self, node1=[address_v6(1).strip("[]"), address(1)], node2=[address(2)])
        with Scene(SHORT, meet=at(["node1", "node2"]), late=[0]) as scene:
            scene.ranks[0] = scene.start(0, meet=at([address(1), "node2"]))
            self.assertEqual(scene.ends(), self.expected)

    def test_a_name_that_is_known_later(self):
        hosts = name_hosts(self, node2=[address(2)])
        with Scene(SHORT, meet=at(["node1", "node2"]), late=[0]) as scene:
            scene.ranks[1].says("waiting for rank 0 at node1:5700 [(]its name is not known")
            with open(hosts, "a") as file:
                file.write(f"{address(1)} node1\n")
            scene.ranks[0] = scene.start(0)
            self.assertEqual(scene.ends(), self.expected)

    def test_the_address_of_rank_0_alone(self):
        name_hosts(self, node1=[address(1)])
        for root in [address(1), address_v6(1), "node1"]:
            with self.subTest(root):
                self.trains(["--rendezvous", f"{root}:{PORT}", "--workers", 2])


if __name__ == "__main__":
    unittest.main()
