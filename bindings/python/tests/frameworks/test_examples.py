"""The examples of frameworks train, and a second start goes on where the first ended."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from test_restart import end_with_parent

EXAMPLES = Path(__file__).parents[2] / "examples"


def last_line(example: str, folder: Path, *arguments: str) -> tuple[float, int, int]:
    """The loss at the end, the step there, and the steps of this run."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(EXAMPLES / example)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [*command, "--folder", str(folder), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        preexec_fn=end_with_parent,
    )
    assert ran.returncode == 0, ran.stderr
    told = re.search(r"^loss ([\d.]+) after (\d+) steps; gradwire: (\d+) steps \(0 skipped\)", ran.stdout, re.MULTILINE)
    assert told, ran.stdout
    return float(told[1]), int(told[2]), int(told[3])


@pytest.mark.parametrize(
    ("framework", "example", "option", "first", "second"),
    [("lightning", "with_lightning.py", "--epochs", 1, 2), ("transformers", "with_trainer.py", "--steps", 30, 40)],
)
def test_an_example_trains_and_goes_on(
    tmp_path: Path, framework: str, example: str, option: str, first: int, second: int
) -> None:
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    begun, step, steps = last_line(example, tmp_path, option, str(first))
    ended, last_step, steps_after = last_line(example, tmp_path, option, str(second))
    assert step == steps > 0
    assert last_step * first == step * second
    assert steps_after == last_step - step
    # It began at ln 256, 5.5.
    assert 4.5 > begun > ended
