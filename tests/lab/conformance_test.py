"""The contract of the transports, kept by four processes on hosts of their own."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from network import Network, address, address_v6
from programs import MPI_RANKS, TCP_RANKS, TRAINER, ZMQ_RANKS

HOSTS = 4
# Of each run; a minute is usual on a busy machine.
SECONDS = 300
SAID = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
# A slow link; one that is fast, far and lossy.
LINKS = [{"rate": 100}, {"rate": 1000, "delay": 2, "loss": 0.01}]


class ConformanceTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_four_hosts_keep_the_contract_over_mpi(self):
        for link in LINKS:
            with self.subTest(**link), Network(HOSTS, **link) as network:
                self.must_pass("a rank passed conformance", 4, [self.mpi_job(network, "conformance")])

    def test_four_hosts_make_the_means_that_threads_make_over_mpi(self):
        with Network(HOSTS, rate=100) as network:
            self.must_pass("a rank passed exchange", 4, [self.mpi_job(network, "exchange")])

    def test_four_hosts_keep_the_contract_over_zmq(self):
        self.write_keys()
        for link in LINKS:
            with self.subTest(**link), Network(HOSTS, **link) as network:
                ranks = [self.zmq_rank(network, host) for host in network.hosts]
                self.must_pass("test result: ok. 1 passed", 1, ranks)

    def test_four_hosts_keep_the_contract_over_tcp(self):
        (self.folder / "key").touch(0o600)
        (self.folder / "key").write_text(os.urandom(32).hex())
        for link, named in zip(LINKS, [address, address_v6]):
            with self.subTest(**link), Network(HOSTS, **link) as network:
                ranks = [self.tcp_rank(network, host, named) for host in network.hosts]
                self.must_pass("test result: ok. 1 passed", 1, ranks)

    def must_pass(self, what, times, processes):
        """A test program that was asked for a test it does not have is content, too; so what it says is counted."""
        for process in processes:
            said, _ = process.communicate(timeout=SECONDS)
            self.assertEqual((process.returncode, said.count(what)), (0, times), said)

    def mpi_job(self, network, case):
        variables = {"GRADWIRE_MPI_CASE": case, "GRADWIRE_MPI_FOLDER": str(self.folder)}
        command = [os.environ[MPI_RANKS], "--exact", "rank", "--nocapture", "--test-threads=1"]
        return network.mpirun(command, variables, env={**os.environ, **variables}, **SAID)

    def write_keys(self):
        """A key pair for each rank, named by its number, and the list of who they are and where they listen."""
        peers = ""
        for rank in range(HOSTS):
            keygen = [os.environ[TRAINER], "keygen", self.folder / str(rank)]
            subprocess.run(keygen, check=True, stdout=subprocess.DEVNULL)
            public = (self.folder / f"{rank}.pub").read_text().split()[-1]
            peers += f"{rank} {public} tcp://{address(rank + 1)}:5555\n"
        (self.folder / "peers").write_text(peers)

    def zmq_rank(self, network, host):
        variables = {"GRADWIRE_TEST_ZMQ_FOLDER": str(self.folder), "GRADWIRE_TEST_ZMQ_RANK": str(host - 1)}
        return self.rank(network, host, ZMQ_RANKS, variables)

    def tcp_rank(self, network, host, named):
        hosts = ",".join(f"{named(each)}:5700" for each in network.hosts)
        variables = {"GRADWIRE_TEST_TCP_HOSTS": hosts, "GRADWIRE_TEST_TCP_KEY": str(self.folder / "key")}
        return self.rank(network, host, TCP_RANKS, {**variables, "GRADWIRE_TEST_TCP_RANK": str(host - 1)})

    def rank(self, network, host, program, variables):
        command = [os.environ[program], "--exact", "conformance::rank_in_a_process_of_its_own"]
        return network.start(host, command, env={**os.environ, **variables}, **SAID)
