"""Adds up what the workers of a run wrote down with `--trace`, step by step.

Nothing may be lost in silence. For every step and every worker, sums over all coordinates satisfy
    kept before + gradient = sent + kept after,
where nothing is sent by who is not among the contributors, and what these sent adds up to the mean times their number.
From one step to the next a worker keeps what it kept, bit for bit. When it was let in again, it is a new process with nothing; or
it went back with the server to an earlier step, and to what it kept then; or what it kept counts less. A step in which it
lost the server gives everything back; where the server had taken it in and goes on from there, the worker does so, too.
"""

import collections
import json
import math
import re

# Sums of about a thousand values, each rounded a few times in f32.
TOLERANCE = 1e-4
# Steps away after which what was kept back counts nothing: the default of `trainer join`.
RESIDUAL_AGE = 200
LOST_SERVER = "back after a step in which the server was lost"


class Books:
    def __init__(self, folder, ranks):
        self.lines = {rank: read(folder / f"trace-{rank}") for rank in ranks}
        self.let_in = {rank: let_in(folder / (f"worker-{rank}.log" if rank else "server.log")) for rank in ranks}

    def steps(self):
        """How many steps add up, and the first of those that do not; some miss the line of a worker that was killed."""
        by_step = collections.defaultdict(dict)
        wrong, whole, void = [], 0, 0
        for rank, lines in self.lines.items():
            for line in lines:
                sent = line["kept_before"] + line["gradient"] - line["kept_after"]
                if rank in line["contributors"]:
                    # A step that is made again after a restart of the server has another mean, or is the same.
                    by_step[line["step"], line["mean"], tuple(line["contributors"])][rank] = sent
                else:
                    void += 1
                    if not is_close(sent, 0):
                        wrong.append((rank, line))
        for (step, mean, contributors), sent in by_step.items():
            if len(sent) == len(contributors):
                whole += 1
                if not is_close(sum(sent.values()), mean * len(contributors)):
                    wrong.append((step, mean * len(contributors), sent))
        return whole, len(by_step), void, wrong

    def breaks(self):
        """Where a worker does not keep what it kept, by reason, and where there is none."""
        reasons, unknown = collections.Counter(), []
        for rank, lines in self.lines.items():
            for number, (last, line) in enumerate(zip(lines, lines[1:]), 1):
                if line["kept_before"] == last["kept_after"]:
                    continue
                if line["step"] in self.let_in[rank]:
                    reasons[why_other(lines[:number], last, line)] += 1
                else:
                    unknown.append((rank, last, line))
        return reasons, unknown

    def losses(self, log):
        """What the server reported as lost, and that for which no worker kept as much."""
        reported = re.findall(r"rank (\d+) is gone; its residual is lost: norm ([0-9.]+)", log)
        norms = {
            rank: {f"{line[norm]:.6f}" for line in lines for norm in ("norm_before", "norm_after")} | {"0.000000"}
            for rank, lines in self.lines.items()
        }
        return len(reported), [(rank, norm) for rank, norm in reported if norm not in norms[int(rank)]]


def read(path):
    """The last line of a process that was killed may be cut short."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}") and line.startswith("{")]


def let_in(log):
    """The steps at which a worker, or its server, began or began again."""
    return {int(step) for step in re.findall(r"(?:let in for|continuing at) step (\d+)", log.read_text())}


def why_other(before, last, line):
    """Why a line begins with something else than the last one ended with."""
    kept = line["kept_before"]
    if kept == 0 and line["norm_before"] == 0:
        return "a new process, or away too long"
    same = (other["kept_before"] for other in before if other["step"] == line["step"])
    previous = (other["kept_after"] for other in before if other["step"] == line["step"] - 1)
    if kept in same or kept in previous:
        return "back to an earlier step"
    missed = abs(line["step"] - (last["step"] + 1))
    if is_close(kept, last["kept_after"] * max(0, 1 - missed / RESIDUAL_AGE)):
        return "away"
    return LOST_SERVER


def is_close(one, other):
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
