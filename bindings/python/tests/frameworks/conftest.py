"""Tests with Lightning, Transformers and Accelerate themselves: two ranks on the CPU, killed and resumed."""

import sys
from importlib.util import find_spec
from pathlib import Path

collect_ignore_glob = [] if find_spec("torch") and find_spec("torch").origin else ["test_*"]
# For `ranks`.
sys.path.insert(0, str(Path(__file__).parents[1] / "ddp"))
