"""What a hook counted, as numbers for its user and as lines of a log: no processes, no tensors."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradwire.torch._record import Log, Now, stats_of

#: Two steps of 1000 float32 over four ranks: frames of 100 bytes that go to three others, and a vote of 2 bytes to each.
TOTALS = {
    "done": 2,
    "skipped": 1,
    "checks": 1,
    "sent": 612,
    "received": 590,
    "frame": 200,
    "dense": 8000,
    "held": 80,
    "encode": 0.25,
    "exchange": 0.5,
    "decode": 0.125,
}
NOTHING = dict.fromkeys(TOTALS, 0)
NOW = Now(step=7, codec="topk:density=0.01", epoch=3, loss=1.5, lr=0.1, norm=2.5, target_density=0.01, is_bad=False)


def stats(totals: dict[str, float], world: int) -> Any:
    return stats_of(totals, world, staging=0.5, exposed=0.75, norm=2.5)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_stats_relate_what_was_sent_to_dense_gradients() -> None:
    counted = stats(TOTALS, 4)
    assert counted.ratio == 8000 / 200
    # A ring sends 2 · 3/4 of the gradients, and receives as many.
    assert counted.wire_ratio == 2 * (2 * 3 / 4 * 8000) / (612 + 590)
    assert (counted.steps, counted.skipped_steps, counted.hash_checks) == (2, 1, 1)
    assert (counted.encode_seconds, counted.exchange_seconds, counted.decode_seconds) == (0.25, 0.5, 0.125)
    assert (counted.staging_seconds, counted.exposed_seconds, counted.residual_norm) == (0.5, 0.75, 2.5)


def test_stats_of_no_step_and_of_one_rank_divide_by_nothing() -> None:
    for totals, world in ((NOTHING, 4), ({**TOTALS, "sent": 0, "received": 0}, 1)):
        assert stats(totals, world).wire_ratio == 0
    assert stats(NOTHING, 4).ratio == 0
    assert str(stats(NOTHING, 4)).startswith("gradwire: 0 steps (0 skipped), 0.0 kB sent a step, 0.0 times smaller")


def test_stats_say_what_a_step_costs() -> None:
    assert str(stats(TOTALS, 4)) == (
        "gradwire: 2 steps (1 skipped), 0.3 kB sent a step, 40.0 times smaller; a step waits 375.0 ms "
        "(encode 125.0, exchange 250.0, decode 62.5, staging 250.0), residual 2.5"
    )


def test_a_line_counts_from_the_one_before_it_and_over_all_ranks(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", {**NOTHING, "sent": 12, "received": 10, "encode": 0.05}, 4)
    log.write(TOTALS, NOW)
    log.write({key: 2 * value for key, value in TOTALS.items()}, replace(NOW, step=8))
    first, second = lines(tmp_path / "log")
    assert (first["step"], second["step"]) == (7, 8)
    # What each rank sends goes to all others, so what this one received was sent by each of them to each.
    assert (first["bytes_up"], second["bytes_up"]) == (600 + 3 * 580, 612 + 3 * 590)
    assert first["bytes_down"] == first["bytes_up"]
    assert (first["encode_ns"], second["encode_ns"]) == (200_000_000, 250_000_000)
    assert (second["ratio"], second["contributors"]) == (40, 4)
    assert second["wire_ratio"] == stats(TOTALS, 4).wire_ratio
    # 80 coordinates of all ranks, of 4 · 2000.
    assert (second["density"], second["target_density"]) == (0.01, 0.01)


def test_what_is_not_known_or_no_number_is_null_or_zero(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", NOTHING, 4)
    for loss in (None, math.nan, math.inf):
        log.write(TOTALS, replace(NOW, loss=loss, lr=None, epoch=None, target_density=None))
    for line in lines(tmp_path / "log"):
        assert (line["loss"], line["lr"], line["epoch"], line["target_density"]) == (None, 0, 0, None)


def test_a_step_that_came_to_nothing_has_no_ratio(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", NOTHING, 4)
    log.write(TOTALS, replace(NOW, is_bad=True))
    log.write(TOTALS, NOW)
    bad, still = lines(tmp_path / "log")
    assert bad["ratio"] is None
    # Nothing was sent since.
    assert (still["ratio"], still["wire_ratio"], still["density"]) == (None, None, 0)


def test_a_file_that_cannot_be_written_is_refused_when_the_log_is_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Log(tmp_path / "no such folder" / "log", NOTHING, 4)
    Log(tmp_path / "log", NOTHING, 4)
    assert (tmp_path / "log").read_text() == ""
