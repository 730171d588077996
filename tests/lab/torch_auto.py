#!/usr/bin/env python3
"""Whether the codec that the hook chooses is as fast as the best that it may choose, by what torch_lab.py has timed.

usage: torch_auto.py RESULTS.jsonl [--busy]

One line for each model, number of ranks and link: what was chosen, the step with it, that of the fastest of the list,
and their ratio, from medians over rounds. --busy counts what was timed beside other programs, too. Times are taken by

    torch_lab.py RESULTS.jsonl --only time --models lstm,gpt --ranks 2 --methods "gradwire none,…,gradwire auto"
"""

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from torch_plan import AUTO, CHOICES, MOST_OF_BEST, MOST_OTHERS, PLAIN


def judged(lines, is_busy=False):
    """Of each cell: what was chosen in most rounds, the step with `auto`, the fastest method, and its step."""
    cells = defaultdict(lambda: defaultdict(list))
    for line in lines:
        counts = line["kind"] == "time" and "error" not in line and (is_busy or line["others"] <= MOST_OTHERS)
        if counts and line.get("variant", PLAIN) == PLAIN and line["method"] in (AUTO, *CHOICES):
            cells[line["model"], line["ranks"], line["link"]][line["method"]].append(line)
    for cell, methods in cells.items():
        steps = {name: statistics.median(line["step"] for line in found) for name, found in methods.items()}
        own = steps.pop(AUTO, None)
        if own and steps:
            chosen = statistics.mode(line["choice"].split(" from step")[0] for line in methods[AUTO])
            best = min(steps, key=steps.get)
            yield cell, chosen, own, best, steps[best]


def main():
    flags = [word for word in sys.argv[1:] if word.startswith("--")]
    (path,) = (word for word in sys.argv[1:] if not word.startswith("--"))
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    for (model, ranks, link), chosen, own, best, step in judged(lines, "--busy" in flags):
        verdict = "reached" if own <= MOST_OF_BEST * step else "not reached"
        times = f"{chosen}: {1e3 * own:.1f} ms; {best}: {1e3 * step:.1f} ms; {own / step:.2f}: {verdict}"
        print(f"{model}, {ranks} ranks, {link}: {times}")


if __name__ == "__main__":
    main()
