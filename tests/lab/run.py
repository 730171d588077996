#!/usr/bin/env python3
"""Tests in a lab of network namespaces: real processes, real TCP, links that are slow, late, lossy or cut.

usage: run.py [NAME ...]

A name is that of a module, a class or a test, such as network_test or hostile_test.HostileTest; without any, all run.
Builds what it needs with cargo. Needs root, or a kernel that gives users namespaces of their own; ip, ss and tc
(iproute2); nft (nftables); sysctl (procps); ethtool; nsenter, taskset and unshare (util-linux), and mpirun and libzmq for
the tests of those. Standard library only.
"""

import sys
import unittest

# Importing leaves no files behind.
sys.dont_write_bytecode = True

import programs
import sandbox

MODULES = ["network_test", "conformance_test", "hostile_test", "soak_test", "slow_test", "tcp_test", "torch_test"]

if __name__ == "__main__":
    if not sandbox.is_inside():
        programs.build()
    sandbox.enter()
    # Python would warn of processes that are left to the end of their network.
    unittest.main(module=None, argv=[sys.argv[0], *(sys.argv[1:] or MODULES)], verbosity=2, warnings="ignore")
