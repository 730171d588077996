#!/usr/bin/env python3
"""Writes the tables of FORMAT.md that follow from format.json.

usage: tables.py

A table stands between the comments `<!-- format.json: NAME -->` and `<!-- end -->`. run.py names each table that differs from what this
program would write. Standard library only.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"(<!-- format\.json: ([^>]*) -->\n).*?(<!-- end -->)", re.DOTALL)


def registry():
    return json.loads((ROOT / "format.json").read_text(encoding="utf-8"))


def rooms():
    return {room["room"]: room for room in registry()["rooms"]}


def numbers(room):
    """The numbers of a room that are in use."""
    first, last = room.get("range", (0, -1))
    return {value["number"] for value in room.get("values", [])} | set(range(first, last + 1))


def text(room, number):
    return hex(number) if room.get("hex") and number > 0xE0 else str(number)


def span(room, pair):
    first, last = (text(room, number) for number in pair)
    return first if first == last else f"{first} … {last}"


def free(room):
    """The numbers of a room for later versions."""
    return {number for first, last in room["free"] for number in range(first, last + 1)}


def spans(room, pairs):
    return ", ".join(span(room, pair) for pair in pairs)


def table(titles, rows):
    return "\n".join("| " + " | ".join(row) + " |" for row in [titles, ["---"] * len(titles), *rows]) + "\n"


def codecs():
    room, kinds = rooms()["codec"], {value["number"]: value["name"] for value in rooms()["kind"]["values"]}
    rows = []
    for value in room["values"]:
        rows.append([str(value["number"]), value["text"], ", ".join(f"{kind} {kinds[kind]}" for kind in value["kinds"])])
    first, last = room["experiments"]
    unused = set(range(first)) - numbers(room)
    rows.append([spans(room, runs(unused)), "not assigned", "none"])
    rows.append([span(room, (first, last)), "[experiments](#{room})", "0 dense, and the kind with the codec's own number"])
    rows.append([spans(room, [(last + 1, room["size"] - 1)]), "reserved", "none"])
    return table(["id", "codec", "kinds that its units may have"], rows)


def flags():
    room = rooms()["flag"]
    rows = [[str(value["number"]), f"`{value['name']}`", value["text"]] for value in room["values"]]
    reserved = spans(room, runs(set(range(room["size"])) - numbers(room)))
    rows.append([reserved, "reserved", "must be 0; otherwise a reader refuses the frame: `UnknownFlag`"])
    return table(["bit", "name", "meaning"], rows)


def runs(those):
    """Ascending numbers as pairs of first and last."""
    pairs = []
    for number in sorted(those):
        if pairs and pairs[-1][1] == number - 1:
            pairs[-1][1] = number
        else:
            pairs.append([number, number])
    return pairs


def kinds():
    room = rooms()["kind"]
    rows = [[str(value["number"]), value["name"], f"[section {{{value['section']} number}}](#{{{value['section']}}})"] for value in room["values"]]
    unused = set(range(room["size"])) - numbers(room) - set(range(room["experiments"][0], room["experiments"][1] + 1))
    rows.append([span(room, room["experiments"]), "of experiments", "[section {room number}](#{room})"])
    rows.append([spans(room, runs(unused)), "not assigned", ""])
    return table(["kind", "name", "unit body"], rows)


def coders():
    index, values = rooms()["index coder"], rooms()["value format"]
    left = [[str(value["number"]), value["name"], value["section"]] for value in index["values"]]
    right = []
    for value in values["values"]:
        right.append([str(value["number"]), value["name"], value["section"]])
    for room, rows in ((index, left), (values, right)):
        unused = set(range(room["size"])) - numbers(room)
        rows.append([spans(room, runs(unused)), "not assigned", ""])
    rows = []
    for at in range(max(len(left), len(right))):
        cells = []
        for half in (left, right):
            number, name, section = half[at] if at < len(half) else ("", "", "")
            cells.append([number, name, f"[{{{section} number}}](#{{{section}}})" if section else ""])
        rows.append([*cells[0], "", *cells[1]])
    return table(["index coder", "name", "section", "", "value format", "name", "section"], rows)


def codebook_packings():
    rows = [[str(value["number"]), value["name"], value["text"]] for value in rooms()["codebook packing"]["values"]]
    return table(["packing", "name", "symbols"], rows)


def level_packings():
    rows = [[str(value["number"]), value["name"], value["holds"], value["text"]] for value in rooms()["level packing"]["values"]]
    return table(["packing", "name", "coordinates it holds", "bytes"], rows)


TABLES = {
    "codecs": codecs,
    "flags": flags,
    "kinds": kinds,
    "coders": coders,
    "codebook packings": codebook_packings,
    "level packings": level_packings,
}

# The sections that tables name, by the title of their headings.
SECTIONS = {
    "void": "Void frames",
    "dense": "Kind 0: dense",
    "sparse": "Kind 1: sparse",
    "levels": "Kind 2: levels",
    "seeded": "Kind 3: seeded",
    "signs": "Kind 5: signs",
    "raw": "Index coder 0: raw",
    "bitmap": "Index coder 1: bitmap",
    "rice": "Index coder 2: rice",
    "context": "Index coder 3: context",
    "context-max": "Index coder 4: context-max",
    "chunks": "Index coder 6: chunks",
    "values": "Value formats 0, 1, 2: f32, f16, bf16",
    "codebook": "Value format 3: codebook",
    "planes": "Value formats 4, 5, 6: f32, f16, bf16 in planes",
    "levels context": "Packing 4: context",
    "rans": "rANS sections",
    "mean": "From frames to a mean",
    "room": "Versions and room",
}


def anchored(block, page):
    """The block with numbers and anchors of sections in place of their names."""
    for name, title in SECTIONS.items():
        number = re.search(rf"^##+ ([0-9.]+) {re.escape(title)}$", page, re.MULTILINE)[1]
        anchor = re.sub(r"[^\w -]", "", f"{number} {title}".lower()).replace(" ", "-")
        block = block.replace(f"{{{name} number}}", number).replace(f"{{{name}}}", anchor)
    return block


def made(page):
    """The tables by their names, as format.json makes them for this page."""
    return {name: anchored(make(), page) for name, make in TABLES.items()}


def written(page):
    """Names and text of the tables that stand in the page."""
    return [(block[2], block[0][len(block[1]) : -len(block[3])]) for block in BLOCK.finditer(page)]


def main():
    path = ROOT / "FORMAT.md"
    page = path.read_text(encoding="utf-8")
    blocks = made(page)
    path.write_text(BLOCK.sub(lambda block: block[1] + blocks[block[2]] + block[3], page), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
