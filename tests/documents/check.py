#!/usr/bin/env python3
"""Checks every document and every Rust comment of the repository.

* Each relative link leads to a file that is there, and each `#anchor` to a heading of it.
* Each line has at most as many characters as rustfmt.toml allows, but for tables, code, headings, addresses and
  words that cannot be broken.
* Fences of code stand on lines of their own, and the rows of a table have as many cells as its head.

    tests/documents/check.py            # from anywhere inside the repository
    tests/documents/check.py --self-test
"""

import re
import subprocess
import sys
from pathlib import Path

FENCE = re.compile(r"^\s*(?:```+|~~~+)([^`]*)$")
LINK = re.compile(r"(?<!\\)\[(?:[^\[\]`]|`[^`]*`|\[[^\]]*\])*\]\(([^()\s]+(?:\([^()]*\)[^()\s]*)?)\)")
OPENING = re.compile(r"^\s*#!?\[.*doc = \"```")
RULE = re.compile(r"^\s*(\|[ :]*---[-: ]*)+\|\s*$")
COMMENT = re.compile(r"^\s*//[/!]?(?: |$)")


def without_code(lines):
    """The lines with a number each, blocks of code left out."""
    inside = False
    for number, line in enumerate(lines, 1):
        if FENCE.match(line):
            inside = not inside
        elif not inside:
            yield number, line


def anchors(text):
    """The anchors that GitHub makes of the headings of a document."""
    found, counts = set(), {}
    for _, line in without_code(text.split("\n")):
        heading = re.match(r"#{1,6} +(.*?) *#*$", line)
        if heading:
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).replace("`", "").lower()
            slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
            seen = counts.get(slug, 0)
            counts[slug] = seen + 1
            found.add(f"{slug}-{seen}" if seen else slug)
    return found


def broken_links(path, text, read):
    """Links of a document that lead nowhere. `read` gives the text of a file, or None."""
    for number, line in without_code(text.split("\n")):
        for target in LINK.findall(re.sub(r"`[^`]*`", lambda code: "`" * len(code[0]), line)):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            there = (path.parent / file) if file else path
            there_text = text if not file else read(there)
            if there_text is None:
                yield f"{path}:{number}: {target}: there is no such file"
            elif anchor and there.suffix == ".md" and anchor not in anchors(there_text):
                yield f"{path}:{number}: {target}: there is no such heading"


def can_be_shorter(line, width):
    """Whether a line of prose that is too long has a place to break it before `width`."""
    text = re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)|\[`[^\]]*\]", lambda part: "x" * len(part[0]), line)
    start = len(text) - len(re.sub(r"^\s*(//[/!]? ?)?\s*([-*+] |\d+\. )?", "", text))
    return " " in text[start:width]


def long_lines(path, text, width):
    """Lines of prose with more characters than allowed."""
    lines = text.split("\n")
    is_rust = path.suffix == ".rs"
    if is_rust:
        # An attribute may open a block of code, one form of it after the other.
        opens = [OPENING.search(line) is not None for line in lines]
        opens = [now and not before for before, now in zip([False, *opens], opens)]
        lines = ["```" if opened else line if COMMENT.match(line) else "" for line, opened in zip(lines, opens)]
        # A block of code in a comment ends with the comment.
        lines = [re.sub(r"^(\s*//[/!]?) ?(\s*(?:```|~~~).*)$", r"\2", line) for line in lines]
    for number, line in without_code(lines):
        bare = re.sub(r"^\s*//[/!]? ?", "", line) if is_rust else line
        if len(line) <= width or bare.lstrip().startswith(("|", "#", "<", "![")) or "://" in bare:
            continue
        if bare.startswith("    ") or re.match(r"\[[^\]]+\]: ", bare):
            continue
        if can_be_shorter(line, width):
            yield f"{path}:{number}: {len(line)} characters, {width} are allowed"


def broken_fences(path, text):
    """Fences that do not open or close a block of code where a reader sees one."""
    opened = None
    for number, line in enumerate(text.split("\n"), 1):
        fence = FENCE.match(line)
        if fence is None:
            if "```" in line:
                yield f"{path}:{number}: a fence within a line"
        elif opened is None:
            opened = number
            # A language, and for a part that a program reads, what it is about.
            if len(fence[1].split()) > 2:
                yield f"{path}:{number}: text after a fence"
        else:
            opened = None
            if fence[1].strip():
                yield f"{path}:{number}: text after a fence"
    if opened is not None:
        yield f"{path}:{opened}: this block of code has no end"


def broken_tables(path, text):
    """Rows with another number of cells than the head of their table, and tables that became prose."""
    cells = None
    for number, line in without_code(text.split("\n")):
        if re.search(r"\|[ :]*---", line) and not RULE.match(line):
            yield f"{path}:{number}: a table within a line"
        if not line.lstrip().startswith("|"):
            cells = None
            continue
        here = len(re.findall(r"(?<!\\)\|", line)) - 1
        cells = cells or here
        if here != cells:
            yield f"{path}:{number}: {here} cells, where the head of the table has {cells}"


def self_test():
    text = "# A `b` c\n[x](#a-b-c) [y](#no) [z](other.md#there) [w](none.md)\n```\n[v](none.md)\n```\n"
    read = {"other.md": "## There\n"}
    found = list(broken_links(Path("a.md"), text, lambda path: read.get(str(path))))
    assert found == ["a.md:2: #no: there is no such heading", "a.md:2: none.md: there is no such file"], found
    lines = "short\n| a very long row of a table |\na line that is too long\n`code that is too long`\n"
    assert list(long_lines(Path("a.md"), lines, 15)) == ["a.md:3: 23 characters, 15 are allowed"]
    rust = "let a_long_name = 1; // fine\n/// a comment that is long\n/// ```\n/// code in it that is long\n/// ```\n"
    assert list(long_lines(Path("a.rs"), rust, 15)) == ["a.rs:2: 26 characters, 15 are allowed"]
    opened = '#[cfg_attr(a, doc = "```")]\n#[cfg_attr(b, doc = "```ignore")]\n/// code that is very long\n/// ```\n'
    assert not list(long_lines(Path("a.rs"), opened, 15))
    fences = "```sh\na | b\n```\n```sh a --b c\nd ```\n```\ne ``` f\n```toml\n"
    assert list(broken_fences(Path("a.md"), fences)) == [
        "a.md:4: text after a fence",
        "a.md:5: a fence within a line",
        "a.md:7: a fence within a line",
        "a.md:8: this block of code has no end",
    ]
    tables = "| a | b |\n| --- | --- |\n| `c \\| d` | e |\n| f | g | h |\n\n| a |\n| b |\n\n| a | b | | --- | --- | | c\n"
    assert list(broken_tables(Path("a.md"), tables)) == [
        "a.md:4: 3 cells, where the head of the table has 2",
        "a.md:9: a table within a line",
    ]


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = Path(subprocess.run(["git", "rev-parse", "--show-toplevel"], check=True, text=True,
                               stdout=subprocess.PIPE).stdout.strip())
    listed = subprocess.run(["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "*.md", "*.rs"],
                            check=True, text=True, stdout=subprocess.PIPE).stdout.split("\n")
    results = root / "benches" / "results"
    width = int(re.search(r"^max_width = (\d+)$", (root / "rustfmt.toml").read_text(), re.M)[1])

    def read(path):
        if path.is_dir():
            return ""
        if not path.is_file():
            return None
        return path.read_text() if path.suffix == ".md" else ""

    found = []
    for path in (root / name for name in listed if name):
        if not path.is_file():
            continue
        text = path.read_text()
        if path.suffix == ".md":
            found += broken_links(path, text, read)
            found += broken_fences(path, text)
            found += broken_tables(path, text)
        # Results are what a program printed.
        if results not in path.parents:
            found += long_lines(path, text, width)
    for line in found:
        print(line.replace(f"{root}/", ""))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
