"""Tests over real processes; without torch there are none."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") and find_spec("torch").origin else ["test_*"]
