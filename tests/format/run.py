#!/usr/bin/env python3
"""Holds decode.py, which was written from FORMAT.md alone, against the worked frames of FORMAT.md, against format.json and against folders.

usage: run.py [FOLDER ...]

Without folders: FORMAT.md, format.json, and the folders that tests/golden/README.md names. Of FORMAT.md, sections must be numbered in order,
links must lead somewhere, tables must be those of format.json, and worked frames must be golden ones. A folder has a manifest.txt, whose words
tests/golden/README.md explains. A dump of the decoded gradient beside the frame, FILE.f32, may stand in place of `values`.
Ends with code 1 if anything differs or nothing was compared. Standard library only.
"""

import math
import re
import sys
from array import array
from itertools import zip_longest
from pathlib import Path

# Importing leaves no files behind.
sys.dont_write_bytecode = True

import decode
import rounds
import tables
from decode import Decoder, FrameError, Layout, Limits, add_frames, crc32c, decode_memory, decode_void, frames, read_frames, to_bytes

ROOT = Path(__file__).resolve().parents[2]

# The folders of tests that have a manifest.
FOLDERS = ("golden", "golden/voids", "golden/memories", "golden/rounds", "messages", "bad")

# The pages that the bytes follow from, and the one with more worked frames.
PAGES = ["FORMAT.md", "WRITER.md"]
WORKED_PAGES = ["FORMAT.md", "tests/golden/WORKED.md"]

# A block of one of them: its kind, shapes, hex and values.
WORKED = re.compile(
    r"^```(frame|frames|memory|void)\nlayout ([^\n]*)\n(.*?)^= ?([^\n]*)\n```$", re.MULTILINE | re.DOTALL
)

# A heading of FORMAT.md with its number, and a link to one.
HEADING = re.compile(r"^##+ (([0-9.]+) .*)$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\((FORMAT\.md|WRITER\.md)?#([^)]*)\)")


def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


def line_at(name, text, offset):
    """Where an error is, for whoever has to find it."""
    return f"{name}:{text.count(chr(10), 0, offset) + 1}"


def anchors(text):
    """The anchors of the headings that have numbers."""
    return {re.sub(r"[^\w -]", "", heading.group(1).lower()).replace(" ", "-") for heading in HEADING.finditer(text)}


def sections():
    """Yields the number that each heading should have and the one it has; then the target of each link, twice if it exists, and
    the number that its text names, and the one it should."""
    for name in PAGES:
        text = page(name)
        section = subsection = 0
        for heading in HEADING.finditer(text):
            number = heading.group(2)
            is_section = "." not in number
            section, subsection = (section + 1, 0) if is_section else (section, subsection + 1)
            yield line_at(name, text, heading.start()), str(section) if is_section else f"{section}.{subsection}", number
        for link in LINK.finditer(text):
            label, target, anchor = link.groups()
            there = anchors(page(target or name))
            yield line_at(name, text, link.start()), anchor, anchor if anchor in there else "no such heading"
            named = re.search(r"section ([0-9.]*[0-9])$", label)
            if named:
                yield line_at(name, text, link.start()), anchor.partition("-")[0], named[1].replace(".", "")


def made_tables():
    """Yields each table of FORMAT.md that format.json makes: as it should be, and as it is."""
    text = page("FORMAT.md")
    written = dict(tables.written(text))
    for name, block in tables.made(text).items():
        rows = (block.splitlines(), written.get(name, "").splitlines())
        for row, stands in zip_longest(*rows, fillvalue="no row"):
            yield f"FORMAT.md, table of {name}, which tests/format/tables.py writes", row, stands


def known_numbers():
    """Yields the numbers of each room of format.json, and those that decode.py knows; then names and kinds."""
    rooms = tables.rooms()
    yield "rooms", sorted(rooms), sorted(decode.KNOWN)
    for name, room in rooms.items():
        yield f"numbers of {name}", sorted(tables.numbers(room)), sorted(decode.KNOWN.get(name, ()))
        lists = [tables.numbers(room), tables.free(room), set(map(int, room["never"]))]
        yield f"numbers of {name} that are in two lists", [], sorted(n for n in range(room["size"]) if sum(n in one for one in lists) > 1)
    for value in rooms["codec"]["values"]:
        yield f"codec {value['number']}", value["name"], decode.CODECS[value["number"]]
        yield f"kinds of {value['name']}", set(value["kinds"]), decode.KINDS_OF[value["number"]]
    for value in rooms["kind"]["values"]:
        yield f"kind {value['number']}", value["name"], decode.KINDS[value["number"]]
    for value in rooms["index coder"]["values"]:
        yield f"index coder {value['number']}", value["name"], decode.INDEX_CODERS[value["number"]]


def bad_frames():
    """Yields each line of the manifest of tests/bad as words."""
    return manifest(ROOT / "tests" / "bad")


def refused_numbers():
    """Yields for each bad frame the number for which format.json says that it is refused, and the one that decode.py names."""
    never, also = {}, {}
    for name, room in tables.rooms().items():
        for number, files in room["never"].items():
            never.update({file: (name, int(number)) for file in files})
        for one in room.get("also", []):
            also.update({file: room["refusal"] for file in one["files"]})
    stated = {words["file"]: words for words in bad_frames()}
    for file, words in stated.items():
        yield f"bad frame {file}", never.get(file), refusal(words).number
        if file in never:
            yield f"bad frame {file}", tables.rooms()[never[file][0]]["refusal"], error_name(words["error"])
    for file, name in also.items():
        yield f"bad frame {file}", name, error_name(stated[file]["error"]) if file in stated else "no such frame"
    for file in never.keys() - stated.keys():
        yield f"bad frame {file}", "in the manifest", "no such frame"


def refusals():
    """Yields the names of refusals of format.json, and those of FORMAT.md, decode.py and tests/bad."""
    registry = tables.registry()
    names, others = set(registry["refusals"]), set(registry["refusals of several messages"])
    found = set(re.findall(r"`([A-Z]\w+(?:\([A-Z]\w+\))?)`", page("FORMAT.md")))
    every = names | others | set(registry["refusals of the library"])
    yield "names in FORMAT.md alone", [], sorted(name for name in found - every if name.partition("(")[0] in {one.partition("(")[0] for one in every})
    yield "names in format.json alone", [], sorted(every - found - {"Codec"})
    source = (Path(__file__).parent / "decode.py").read_text(encoding="utf-8")
    raised = set(re.findall(r'"([A-Z]\w+(?:\([A-Z]\w+\))?)"\)', source))
    # Experiments are read by whoever takes part; codecs of rules by whoever knows the rules.
    yield "names in decode.py", sorted((names | others) - {"Experiment", "Codec"}), sorted(raised)
    provoked = {error_name(words["error"]) for words in bad_frames()}
    # Those depend on the reader, not on the bytes alone.
    yield "names in tests/bad", sorted(names - {"Experiment", "LayoutUnknown"}), sorted(provoked)


def hexadecimal_bytes(text):
    return bytes.fromhex(text.partition(";")[0])


def expected_values(text, length):
    """Decimals in order, or position:value pairs with zeros between them."""
    values = array("f", bytes(4 * length))
    for position, word in enumerate(text.split()):
        pair = word.split(":")
        values[int(pair[0]) if len(pair) == 2 else position] = float(pair[-1])
    return values


def blocks():
    """Yields each worked block: where it is, whether a writer makes it, its kind, shapes, bytes and values."""
    for name in WORKED_PAGES:
        text = page(name)
        for block in WORKED.finditer(text):
            kind, shapes, lines, values = block.groups()
            before = text[: block.start()].rstrip().rpartition("\n")[2]
            data = b"".join(hexadecimal_bytes(line) for line in lines.splitlines())
            is_written = not before.startswith("No writer makes this one")
            yield line_at(name, text, block.start()), is_written, kind, shapes, data, values


def worked_frames():
    """Yields what each worked block says and what its bytes decode to."""
    for place, _, kind, shapes, data, values in blocks():
        layout = Layout.parse(shapes)
        count = len(values.split()) if kind == "memory" else layout.len
        expected = values if kind == "void" else expected_values(values, count).tobytes()
        yield place, expected, outcome(data, layout, kind)


def written_frames():
    """Yields for each worked block whether a golden file has its bytes, which is how they are known to be what a writer makes."""
    folders = [ROOT / "tests" / name for name in ("golden", "golden/voids", "golden/memories", "messages")]
    golden = {path.read_bytes() for folder in folders for path in folder.glob("*.bin")}
    for place, is_written, _, _, data, _ in blocks():
        if is_written:
            yield place, "golden", "golden" if data in golden else "in no golden file"


def read(data, layout, kind="frame", limits=None):
    """The decoded values as bytes, or what a void frame says."""
    if kind == "void":
        step, index = decode_void(data, layout)
        return f"step {step}, coordinate {index}"
    if kind.endswith("memory"):
        return to_bytes(decode_memory(data, layout))
    return to_bytes(add_frames(read_frames(data, layout)) if kind == "frames" else Decoder(data, layout, limits).gradient())


def outcome(data, layout, kind="frame", limits=None):
    """As `read`, or the name of the rule that the bytes break."""
    try:
        return read(data, layout, kind, limits)
    except FrameError as error:
        return str(error)


def refusal(words):
    """The error with which decode.py refuses the bytes of a line of a manifest."""
    try:
        data = (ROOT / "tests" / "bad" / f"{words['file']}.bin").read_bytes()
        read(data, Layout.parse(words["layout"]), words.get("reader", "frame"), limits_of(words))
    except FrameError as error:
        return error
    return FrameError("accepted")


def manifest(folder):
    """The lines of a folder's manifest as words."""
    for line in (folder / "manifest.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            yield dict(word.split("=", 1) for word in line.split())


def error_name(text):
    """The name of an error without what it was called with, but for the field or limit it speaks of."""
    has_field = text.startswith(("InvalidField", "LimitExceeded"))
    return text if has_field else re.match(r"\w+", text).group()


def limits_of(words):
    """The one limit that the line sets; the others stand in nobody's way."""
    field, _, value = words.get("limit", "").partition(":")
    return Limits(math.inf, **({field: float(value)} if field else {}))


def digest(data):
    """As manifests write it: the bits of up to 16 values, or FNV-1a over all bytes."""
    if len(data) <= 64:
        bits = [data[i : i + 4][::-1].hex() for i in range(0, len(data), 4)]
        return f"[{','.join(bits)}]"
    state = 0xCBF29CE484222325
    for byte in data:
        state = ((state ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"fnv:{state:016x}"


def folder_frames(folder):
    """Yields what the manifest expects of each frame, and what it decodes to."""
    for words in manifest(folder):
        path = folder / f"{words['file']}.bin"
        layout = Layout.parse(words["layout"])
        kind = words.get("reader", "frame")
        if kind == "rounds":
            continue
        actual = outcome(path.read_bytes(), layout, kind, limits_of(words))
        dump = path.with_suffix(".f32")
        if "index" in words:
            yield str(path), f"step {words['step']}, coordinate {words['index']}", actual
            yield str(path), "Void", outcome(path.read_bytes(), layout)
        elif "error" in words:
            yield str(path), error_name(words["error"]), actual
        elif dump.exists():
            yield str(path), dump.read_bytes(), actual
        else:
            yield str(path), words["values"], actual if isinstance(actual, str) else digest(actual)
        if "frames" in words:
            yield f"{path}, frames", words["frames"], str(len(list(frames(path.read_bytes()))))


def manifest_words():
    """Yields the words of each manifest that tests/golden/README.md does not explain."""
    text = (ROOT / "tests" / "golden" / "README.md").read_text(encoding="utf-8")
    explained = {word for row in re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE) for word in re.findall(r"`(\w+)`", row)}
    for name in FOLDERS:
        yield f"words of tests/{name}", [], sorted({word for words in manifest(ROOT / "tests" / name) for word in words} - explained)


def folder_rounds(folder):
    """Yields of each golden payload and of the memories after them what the file holds, and what the codecs of rounds.py make."""
    runs = {}
    for words in manifest(folder):
        name = words["file"]
        data = (folder / f"{name}.bin").read_bytes()
        if words["reader"] == "memory":
            yield name, data, runs[words["after"]].memory(int(words["rank"]))
            continue
        run = runs[name] = rounds.Run(words)
        yield f"{name}, rounds", words["rounds"], ",".join(run.rounds)
        yield name, data, run.bytes
        yield f"{name}, values", words["values"], digest(to_bytes(array("f", run.values)))


def frames_without_layout(folder):
    """Yields what a reader with the layout decodes of each golden frame, or that it needs the shapes, and what one without it does."""
    for words in manifest(folder):
        layout = Layout.parse(words["layout"])
        path = folder / f"{words['file']}.bin"
        decoder = Decoder(path.read_bytes(), layout)
        end = max(unit.start + unit.len for unit in decoder.units)
        is_told = layout.shapes == [[end]] or not any(unit.needs_shapes for unit in decoder.units)
        yield str(path), to_bytes(decoder.gradient()[:end]) if is_told else "LayoutUnknown", outcome(path.read_bytes(), None)


def several_messages():
    """Yields what files of several messages decode to: groups and packets in any order, and what does not belong together."""

    def golden(folder, name):
        return (ROOT / "tests" / folder / f"{name}.bin").read_bytes()

    layout = Layout.parse("2x2+2+2x2")
    one, other = frames(golden("messages", "worked"))
    both = to_bytes(add_frames(read_frames(one + other, layout)))
    senders = sealed(other[:4] + b"\x01" + other[5:])
    later = sealed(other[:24] + b"\x04" + other[25:])
    void = golden("golden/voids", "topk")
    for name, data, expected in [
        ("groups in another order", other + one, both),
        ("a group twice", one + other + one, "Units"),
        ("another flag", one + senders, "Mixed"),
        ("another step", one + later, "Mixed"),
        ("a message that is cut", one + other[:-1], "Truncated"),
        ("bytes that are no message", one + other + b"GM", "TrailingBytes"),
        ("no message", b"", "Truncated"),
    ]:
        yield name, expected, outcome(data, layout, "frames")
    yield "groups without the layout", both, outcome(other + one, None, "frames")
    yield "a void frame among others", "Void", outcome(void + golden("golden", "topk_raw_width_7"), Layout.parse("8"), "frames")


def sealed(message):
    """The message with the checksum that its other bytes ask for."""
    return message[:20] + crc32c(message[:20] + message[24:]).to_bytes(4, "little") + message[24:]


def compare(name, results):
    count = failures = 0
    for source, expected, actual in results:
        count += 1
        if expected != actual:
            failures += 1
            shown = [digest(one) if isinstance(one, bytes) else one for one in (expected, actual)]
            print(f"{source}: expected {shown[0]}, found {shown[1]}")
    print(f"{name}: {count - failures} of {count} agree")
    return count > 0 and failures == 0


def main():
    of_page = [
        ("sections and links of FORMAT.md and WRITER.md", sections()),
        ("tables of FORMAT.md from format.json", made_tables()),
        ("numbers of format.json in decode.py", known_numbers()),
        ("numbers of format.json in tests/bad", refused_numbers()),
        ("names of refusals", refusals()),
        ("worked frames", worked_frames()),
        ("worked frames that are golden", written_frames()),
        ("files of several messages", several_messages()),
        ("words of manifests", manifest_words()),
    ]
    sources = of_page if len(sys.argv) == 1 else []
    folders = sys.argv[1:] or [ROOT / "tests" / name for name in FOLDERS]
    if len(sys.argv) == 1:
        sources.append(("golden frames without their layouts", frames_without_layout(folders[0])))
        sources.append(("golden payloads, and memories after them", folder_rounds(ROOT / "tests" / "golden" / "rounds")))
    sources += [(str(folder), folder_frames(Path(folder))) for folder in folders]
    return 0 if all([compare(name, results) for name, results in sources]) else 1


if __name__ == "__main__":
    sys.exit(main())
