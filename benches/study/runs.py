"""Training runs in one folder, which go on where they stopped, and which several programs make side by side."""

import fcntl
import json
import subprocess
import sys
from pathlib import Path


class Runs:
    """Each cell has a `name`, which is also its folder. `command(cell)` says how `trainer` is asked for it."""

    def __init__(self, trainer, folder):
        self.trainer = Path(trainer).resolve()
        self.folder = Path(folder).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)

    def path(self, cell):
        return self.folder / cell.name

    def summary(self, cell):
        """What a finished cell ended with; None for one that is not finished."""
        path = self.path(cell) / "summary.json"
        return json.loads(path.read_text()) if path.exists() else None

    def diverged(self, cell):
        return (self.path(cell) / "diverged.txt").exists()

    def is_done(self, cell):
        return self.summary(cell) is not None or self.diverged(cell)

    def metrics(self, cell):
        path = self.path(cell) / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def run_all(self, cells):
        """Leaves out what another program runs, and comes back to it."""
        while left := [cell for cell in cells if not self.is_done(cell)]:
            ran = [self.run(cell, waits=False) for cell in left]
            if not any(ran):
                self.run(left[0])

    def run(self, cell, *, waits=True):
        """Whether this program ran it."""
        with open(self.folder / f"{cell.name}.lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
            except BlockingIOError:
                return False
            if self.is_done(cell):
                return False
            self._train(cell)
            return True

    def _train(self, cell):
        path = self.path(cell)
        is_begun = (path / "checkpoints").exists()
        command = ["--resume", path] if is_begun else [*self.command(cell), "--out", path, "--force"]
        print(f"== {cell.name}", flush=True)
        command = [self.trainer, "train", *map(str, command)]
        done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
        if done.returncode and "diverged" in done.stderr:
            (path / "diverged.txt").write_text(done.stderr)
        elif done.returncode:
            sys.exit(f"{cell.name}: {done.stderr}")
