"""Measurements, each a line of a file and made once."""

import json
import os


class Results:
    def __init__(self, path):
        self.path = path
        path.touch()
        self.lines = [json.loads(line) for line in path.read_text().splitlines()]

    def has(self, **key):
        return any(key.items() <= line.items() for line in self.lines)

    def add(self, **line):
        line["load"] = round(os.getloadavg()[0], 2)
        self.lines.append(line)
        with open(self.path, "a") as file:
            print(json.dumps(line), file=file)
        shown = {name: value for name, value in line.items() if name != "evaluations"}
        print(shown, flush=True)
