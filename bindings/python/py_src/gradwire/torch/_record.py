"""What a hook counted, as its user sees it and as a line of a log. Nothing here knows of processes or threads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._stats import Stats

#: What the engine counts, by name; times are in seconds.
Totals = Mapping[str, float]


@dataclass(frozen=True)
class Now:
    """What a line says beside counts."""

    step: int
    codec: str
    epoch: int | None
    loss: float | None
    lr: float | None
    norm: float
    target_density: float | None
    is_bad: bool


def stats_of(totals: Totals, world: int, *, staging: float, exposed: float, norm: float, choice: str | None = None) -> Stats:
    """Bytes and times so far."""
    moved = totals["sent"] + totals["received"]
    dense, frame = int(totals["dense"]), int(totals["frame"])
    ring = 4 * dense * (world - 1) / world
    return Stats(
        steps=int(totals["done"]),
        skipped_steps=int(totals["skipped"]),
        bytes_sent=int(totals["sent"]),
        bytes_received=int(totals["received"]),
        frame_bytes=frame,
        dense_bytes=dense,
        ratio=dense / frame if frame else 0.0,
        wire_ratio=ring / moved if moved else 0.0,
        encode_seconds=totals["encode"],
        exchange_seconds=totals["exchange"],
        decode_seconds=totals["decode"],
        staging_seconds=staging,
        exposed_seconds=exposed,
        residual_norm=norm,
        hash_checks=int(totals["checks"]),
        choice=choice,
    )


class Log:
    """A file with a line for each step, with the keys of the trainer's ``metrics.jsonl``."""

    def __init__(self, path: Path, before: Totals, world: int) -> None:
        """Opens the file, to see whether it can be written."""
        with path.open("a"):
            self._path, self._before, self._world = path, before, world

    def write(self, totals: Totals, now: Now) -> None:
        """Appends a line."""
        line = json.dumps(self._line(totals, now))
        with self._path.open("a") as file:
            file.write(line + "\n")

    def _line(self, totals: Totals, now: Now) -> dict[str, Any]:
        delta = {key: value - self._before[key] for key, value in totals.items()}
        self._before = totals
        world, dense = self._world, delta["dense"]
        # Of all ranks: what each sends goes to all others, and what is summed costs all the same.
        all_bytes = int(delta["sent"] + (world - 1) * delta["received"])
        moved = delta["sent"] + delta["received"]
        loss = None if now.loss is None else float(now.loss)
        return {
            "step": now.step,
            "codec": now.codec,
            "epoch": now.epoch or 0,
            "loss": loss if loss is not None and math.isfinite(loss) else None,
            "lr": now.lr or 0.0,
            "bytes_up": all_bytes,
            "bytes_down": all_bytes,
            "ratio": dense / delta["frame"] if delta["frame"] and not now.is_bad else None,
            "wire_ratio": 4 * dense * (world - 1) / world / moved if moved else None,
            "contributors": world,
            "encode_ns": int(1e9 * delta["encode"]),
            "exchange_ns": int(1e9 * delta["exchange"]),
            "decode_ns": int(1e9 * delta["decode"]),
            "residual_norm": now.norm,
            "density": delta["held"] / (world * dense / 4) if dense else 0.0,
            "target_density": now.target_density,
        }
