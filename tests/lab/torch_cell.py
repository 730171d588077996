"""Times the steps of a cell of torch_lab.py: of a method, and of those that take turns with it."""

import statistics
import time

from torch_plan import ENCRYPTED, FEWEST_STEPS, MANY_STEPS, MOST_STEPS, OLD, PLAIN, SLOW, TURNS
from torch_ranks import busy_seconds

DIGITS = 5


class Party:
    """One of those that take turns."""

    def __init__(self, ranks, key):
        self.key, self.error, self.count = key, None, 0
        self._ranks = ranks
        # Seconds of all steps; of each turn the median and the CPU seconds of a step; what was used in all.
        self._steps, self._turns, self._cpu_turns, self._used = [], [], [], {}

    def begin(self, seconds):
        about = {name: self.key[name] for name in ("model", "method")}
        found = self.ask("begin", **about, encrypted=self.key["variant"] == ENCRYPTED)
        self.count = found and max(FEWEST_STEPS, min(MOST_STEPS, int(seconds / found["warm"])))

    def ask(self, what, **more):
        """The mean of the answers of all ranks; none once there was an error."""
        if self.error is None:
            found = mean_of(self._ranks.ask(what, **more))
            self.error = found.get("error")
        return None if self.error else found

    def turn(self, turns):
        count = self.count // turns
        found = self.ask("steps", count=count, lead=int(count >= MANY_STEPS))
        if found:
            self._steps += found["took"]
            self._turns.append(rounded(statistics.median(found["took"])))
            self._cpu_turns.append(rounded(found["used"]["cpu"] / count))
            for name, value in found["used"].items():
                self._used[name] = self._used.get(name, 0) + value

    def line(self):
        """What was found of it; it ends."""
        is_compared = self.key["variant"] == PLAIN and self.key["link"] == SLOW
        found = self.ask("end", rust=is_compared)
        if self.error:
            return {**self.key, "error": self.error}
        low, middle, high = map(rounded, statistics.quantiles(self._steps, n=4))
        used = {name: rounded(value / len(self._steps)) for name, value in self._used.items()}
        turns = {"turns": self._turns, "cpu_turns": self._cpu_turns}
        return {**self.key, **used, **found, "step": middle, "low": low, "high": high, "steps": len(self._steps), **turns}


def time_cell(results, hosts, keys, seconds):
    """Adds a line for each of them."""
    olds = [key["variant"] == OLD for key in keys]
    all_ranks = [hosts.ranks(olds[:at].count(is_old), is_old) for at, is_old in enumerate(olds)]
    began, busy, used = time.monotonic(), busy_seconds(), hosts.used_seconds()
    parties = [Party(ranks, key) for ranks, key in zip(all_ranks, keys)]
    for party in parties:
        party.begin(seconds)
    before = compute_alone(parties)
    take_turns([party for party in parties if not party.error], keys[0]["round"])
    behind = compute_alone(parties)
    lines = [party.line() for party in parties]
    own = hosts.used_seconds() - used
    others = round(max(0.0, busy_seconds() - busy - own) / (time.monotonic() - began), 3)
    for line in lines:
        if "error" not in line and before and behind:
            line["compute"] = rounded(statistics.median(before["steps"] + behind["steps"]))
            line["compute_cpu"] = rounded((before["cpu"] + behind["cpu"]) / 2)
        results.add({**line, "others": others})


def take_turns(parties, first):
    """Each is the first one equally often."""
    turns = min([TURNS, *(party.count for party in parties)])
    for turn in range(turns):
        by = (first + turn) % len(parties)
        for party in [*parties[by:], *parties[:by]]:
            party.turn(turns)


def compute_alone(parties):
    """By the processes of one of them; the model is that of all."""
    return next((found for party in parties if (found := party.ask("compute"))), None)


def mean_of(answers):
    """Of all ranks; of what is no number, that of the first."""
    first = answers[0]
    if isinstance(first, dict):
        return {name: mean_of([answer[name] for answer in answers]) for name in first}
    if isinstance(first, list) and first and isinstance(first[0], float):
        return [mean_of(list(one)) for one in zip(*answers)]
    return rounded(sum(answers) / len(answers)) if isinstance(first, float | int) else first


def rounded(value):
    return float(f"{value:.{DIGITS}g}")
