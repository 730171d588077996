#!/usr/bin/env python3
"""Decodes one gradwire frame, or several of one gradient, as FORMAT.md says and from nothing else.

usage: decode.py FRAME [--layout 'SHAPE;SHAPE'] [--out VALUES.f32]

A shape is its dimensions joined by 'x' ('10x64'), 'scalar' for none. Without --layout the last unit ends the gradient,
and index coders 3 and 4 are read only if the fingerprint is that of one shape of one dimension. Prints the header and the units; --out receives the decoded gradient as
little-endian f32. A frame that breaks a rule prints the rule's name on stderr and ends with code 2.

Written to be compared with FORMAT.md, section by section: plain before fast. Standard library only.
"""

import argparse
import math
import struct
import sys
from array import array
from itertools import accumulate
from operator import xor

# Elements that a gradient may have where no layout says how many it has.
MOST_ELEMENTS = 1 << 28

F32_MAX = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]
SHARED = 0x3FFFFFFF
SELECTION = 1
LARGEST_U32 = 0xFFFFFFFF


class FrameError(Exception):
    """A rule that the frame breaks; the text is its name. If a number is to blame, `number` is its room and the number."""

    def __init__(self, name, number=None):
        super().__init__(name)
        self.number = number


def require(holds, name):
    if not holds:
        raise FrameError(name)


# The numbers that this decoder knows, by the field that holds them.
KNOWN = {
    "version": {1},
    "codec": {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10},
    "flag": {0, 2},
    "kind": {0, 1, 2, 3, 5},
    "dense format": {0, 1, 2},
    "seeded format": {0, 1, 2, 16, 17, 18, 32, 33, 34},
    "index coder": {0, 1, 2, 3, 4, 6},
    "value format": {0, 1, 2, 3, 4, 5, 6},
    "rice block": set(range(4, 17)),
    "chunk": set(range(6, 17)),
    "chunk width": set(range(18)),
    "codebook packing": {0, 1, 2, 3},
    "codebook log2": set(range(8)),
    "f32 shift": set(range(24)),
    "f16 shift": set(range(11)),
    "bf16 shift": set(range(8)),
    "heads": set(range(128)),
    "level bits": {2, 3, 4, 5, 6, 7, 8, 10},
    "levels": set(range(1, 128)),
    "norm": {0, 1},
    "norm coding": {0, 1, 2},
    "level packing": {0, 1, 2, 3, 4},
    "lanes": {0, 1, 2, 3, 4, 5},
    "classes": set(range(1, 16)),
    "memory version": {1, 3},
    "memory kind": {0, 1, 2, 3},
}


def known(room, number, name):
    if number not in KNOWN[room]:
        raise FrameError(name, (room, number))


def known_bits(room, bits, name):
    for bit in range(bits.bit_length()):
        if bits >> bit & 1:
            known(room, bit, name)


# Section 1: conventions


def fl(x):
    """x rounded to f32. Exact for one operation on two f32, which f64 holds with digits to spare."""
    try:
        return struct.unpack("<f", struct.pack("<f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def f32_values(data):
    values = array("f")
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def f16_values(data):
    return struct.unpack(f"<{len(data) // 2}e", data)


def bf16_values(data):
    widened = bytearray(2 * len(data))
    widened[2::4] = data[0::2]
    widened[3::4] = data[1::2]
    return f32_values(bytes(widened))


class Reader:
    """Bytes from front to back."""

    def __init__(self, data):
        self.data = data
        self.at = 0

    def left(self):
        return len(self.data) - self.at

    def take(self, count):
        require(count <= self.left(), "Truncated")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, count):
        return int.from_bytes(self.take(count), "little")

    def varint(self):
        value = shift = 0
        while True:
            byte = self.number(1)
            require(shift == 0 or byte != 0, "InvalidField(Varint)")
            require(shift < 63 or byte <= 1, "InvalidField(Varint)")
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def finish(self):
        require(self.left() == 0, "TrailingBytes")


class Bits:
    """A bit string, from its first bit on; bits past the end are 0. Bytes enter a window as they are needed."""

    def __init__(self, data):
        self.data = data
        self.total = 8 * len(data)
        self.at = 0
        self.window = 0
        self.held = 0
        self.loaded = 0

    def fill(self, width):
        while self.held < width:
            chunk = self.data[self.loaded : self.loaded + 32]
            self.window |= int.from_bytes(chunk, "little") << self.held
            self.loaded += 32
            self.held += 256

    def take(self, width):
        if self.held < width:
            self.fill(width)
        value = self.window & ((1 << width) - 1)
        self.window >>= width
        self.held -= width
        self.at += width
        return value

    def unary(self):
        """Zeros up to the next one, which is consumed too; None if no one is left."""
        zeros = 0
        while self.window == 0:
            if self.at + self.held >= self.total:
                return None
            zeros += self.held
            self.at += self.held
            self.held = 0
            self.fill(1)
        more = (self.window & -self.window).bit_length()
        self.take(more)
        return zeros + more - 1

    def left(self):
        return self.total - self.at

    def is_padding(self):
        """Fewer than eight bits are left, all 0."""
        left = self.left()
        return 0 <= left < 8 and self.take(left) == 0


# Section 2: message

CODECS = ["none", "f16", "bf16", "topk", "threshold", "qsgd", "randomk", "dgc", "sidco", "efsign", "redsync"]
KINDS = ["dense", "sparse", "levels", "seeded", None, "signs"]
INDEX_CODERS = {0: "raw", 1: "bitmap", 2: "rice", 3: "context", 4: "context-max", 6: "chunks"}
KINDS_OF = [{0}, {0}, {0}, {0, 1}, {0, 1}, {0, 2}, {0, 3}, {0, 1}, {0, 1}, {0, 5}, {0, 1}]


def crc32c_table():
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


CRC32C = crc32c_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ CRC32C[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


class Header:
    BYTES = 24

    def __init__(self, data):
        reader = Reader(data)
        require(reader.take(2) == b"GW", "BadMagic")
        known("version", reader.number(1), "UnsupportedVersion")
        self.codec = reader.number(1)
        self.flags = int.from_bytes(data[4:6], "little")
        is_void_experiment = self.flags == 4 and 0xF0 <= self.codec < 0xFF
        if not is_void_experiment:
            known("codec", self.codec, "UnknownCodec")
        reader.number(2)
        known_bits("flag", self.flags, "UnknownFlag")
        self.is_void = self.flags == 4
        require(self.is_void or self.flags < 2, "UnknownFlag")
        self.unit_count = reader.number(2)
        require((self.unit_count == 0) == self.is_void, "InvalidField(UnitCount)")
        self.fingerprint = reader.number(8)
        self.body_bytes = reader.number(4)
        self.checksum = reader.number(4)

    def name(self):
        return CODECS[self.codec] if self.codec < len(CODECS) else "experiment"

    def __str__(self):
        divisor = "senders" if self.flags & 1 else "contributors"
        return (
            f"version 1, codec {self.codec} {self.name()}, mean over {divisor}, {self.unit_count} units, "
            f"fingerprint {self.fingerprint:016x}, body {self.body_bytes} bytes, checksum {self.checksum:08x}"
        )


# Section 3: layout fingerprint


def absorb(state, word):
    mask = (1 << 64) - 1
    z = ((state ^ word) + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


class Layout:
    def __init__(self, shapes):
        self.tensors = max(len(shapes), 1)
        self.shapes = shapes
        self.len = sum(math.prod(shape) for shape in shapes)
        state = absorb(int.from_bytes(b"gradwire", "little"), len(shapes))
        for shape in shapes:
            state = absorb(state, len(shape))
            for dimension in shape:
                state = absorb(state, dimension)
        self.fingerprint = state

    @staticmethod
    def parse(text):
        """Shapes separated by ';' or, as in manifests, by '+'."""

        def shape(part):
            return [] if part in ("scalar", "-") else [int(dimension) for dimension in part.split("x")]

        return Layout([shape(part) for part in text.replace("+", ";").split(";")] if text else [])


class Limits:
    """Section 11: the library's values for `n` elements in `tensors` tensors, unless told otherwise."""

    def __init__(self, n, tensors=1, **others):
        self.elements = n
        self.body_bytes = 8 * n + 1024 * tensors
        self.entries = n
        self.scratch_words = 2 * n + 8192 * tensors
        self.units = 65535
        self.magnitude = F32_MAX
        vars(self).update(others)


# Section 4: body


class Unit:
    """A unit header, and what its body decodes to: `add` is a function of the accumulator."""

    def __init__(self, unit_id, start, length, kind):
        self.id = unit_id
        self.start = start
        self.len = length
        self.kind = kind
        self.entries = 0
        self.scratch_words = 0
        self.about = ""
        self.needs_shapes = False
        self.add = None


def decode_void(frame, layout):
    """Step and coordinate of a void frame, section 4.2."""
    header = Header(frame)
    require(header.fingerprint == layout.fingerprint, "LayoutMismatch")
    whole = Reader(frame)
    head = whole.take(Header.BYTES)
    body = whole.take(header.body_bytes)
    whole.finish()
    require(crc32c(head[:20] + body) == header.checksum, "ChecksumMismatch")
    require(header.is_void, "not a void frame")
    reader = Reader(body)
    step = reader.varint()
    index = reader.varint()
    reader.finish()
    require(index < layout.len, "IndexOutOfRange")
    return step, index


class Decoder:
    """A frame. Without a layout and not `alone`, `finish` is still to be told where the last unit of all messages ends."""

    def __init__(self, frame, layout=None, limits=None, alone=True):
        header = self.header = Header(frame)
        require(layout is None or header.fingerprint == layout.fingerprint, "LayoutMismatch")
        self.limits = limits or (Limits(layout.len, layout.tensors) if layout else Limits(MOST_ELEMENTS))
        require(header.body_bytes <= self.limits.body_bytes, "LimitExceeded(BodyBytes)")
        require(header.unit_count <= self.limits.units, "LimitExceeded(Units)")
        whole = Reader(frame)
        head = whole.take(Header.BYTES)
        body = whole.take(header.body_bytes)
        whole.finish()
        require(crc32c(head[:20] + body) == header.checksum, "ChecksumMismatch")
        require(not header.is_void, "Void")
        self.shapes = layout.shapes if layout else None
        # Sections that wait for the shapes, which may follow from where the last unit ends.
        self.waiting = []
        self.reader = Reader(body)
        self.step = self.reader.varint()
        self.units = []
        next_id = next_start = elements = entries = scratch_words = 0
        for _ in range(header.unit_count):
            unit = self.unit_header(next_id, next_start, layout)
            elements += unit.len
            require(elements <= self.limits.elements, "LimitExceeded(Elements)")
            getattr(self, KINDS[unit.kind])(unit)
            entries += unit.entries
            require(entries <= self.limits.entries, "LimitExceeded(Entries)")
            scratch_words += unit.entries + unit.scratch_words
            require(scratch_words <= self.limits.scratch_words, "LimitExceeded(ScratchWords)")
            next_id, next_start = unit.id + 1, unit.start + unit.len
            self.units.append(unit)
        self.reader.finish()
        self.len = layout.len if layout else next_start
        if alone or layout:
            self.finish(self.len)

    def finish(self, length):
        """Reads the sections that wait for the shapes."""
        self.len = length
        for read in self.waiting:
            require(Layout([[length]]).fingerprint == self.header.fingerprint, "LayoutUnknown")
            self.shapes = [[length]]
            read()
        self.waiting = []

    def unit_header(self, next_id, next_start, layout):
        unit_id = next_id + self.reader.varint()
        require(unit_id <= LARGEST_U32, "InvalidField(Unit)")
        start = next_start + self.reader.varint()
        length = self.reader.varint()
        in_range = length <= LARGEST_U32 and (layout is None or start + length <= layout.len)
        require(in_range, "UnitOutOfRange")
        kind = self.reader.number(1)
        known("kind", kind, "InvalidField(Kind)")
        require(kind in KINDS_OF[self.header.codec], "InvalidField(Kind)")
        return Unit(unit_id, start, length, kind)

    def gradient(self):
        acc = array("f", bytes(4 * self.len))
        for unit in self.units:
            unit.add(acc)
        return acc

    def check_values(self, values):
        require(all(map(math.isfinite, values)), "NonFiniteValue")
        require(max(map(abs, values), default=0) <= self.limits.magnitude, "LimitExceeded(Magnitude)")

    def fixed_values(self, value_format, count):
        """Values in format 0, 1 or 2."""
        width, parse = [(4, f32_values), (2, f16_values), (2, bf16_values)][value_format]
        values = parse(self.reader.take(count * width))
        self.check_values(values)
        return values

    # Section 5

    def dense(self, unit):
        value_format = self.reader.number(1)
        known("dense format", value_format, "InvalidField(Coding)")
        # Formats 1 and 2 have the numbers of the codecs that cast to them.
        require(value_format == 0 or value_format == self.header.codec <= 2, "InvalidField(Coding)")
        values = self.fixed_values(value_format, unit.len)
        unit.about = ["f32", "f16", "bf16"][value_format]

        def add(acc):
            for i, value in enumerate(values, unit.start):
                acc[i] += value

        unit.add = add

    # Section 6

    def sparse(self, unit):
        k = unit.entries = self.reader.varint()
        require(k <= unit.len, "InvalidField(Entries)")
        if k == 0:
            unit.about = "k 0"
            unit.add = lambda acc: None
            return
        coding = self.reader.number(1)
        coder, value_format = coding & 15, coding >> 4
        known("index coder", coder, "InvalidField(Coding)")
        known("value format", value_format, "InvalidField(Coding)")
        if coder in (3, 4):
            positions = self.context(k, unit, coder == 4)
        else:
            positions = {0: self.raw, 1: self.bitmap, 2: self.rice, 6: self.chunks}[coder](k, unit.len)
        if value_format > 3:
            values = self.value_planes(unit, value_format - 4, k)
        else:
            values = self.codebook(unit, k) if value_format == 3 else self.fixed_values(value_format, k)
        if coder in (3, 4):
            # Positions and values are decoded one after the other, in the same memory.
            unit.scratch_words = max(unit.scratch_words, position_words(unit.len, coder == 4))
        coder_name = INDEX_CODERS[coder]
        format_name = ["f32", "f16", "bf16", "codebook", "f32 in planes", "f16 in planes", "bf16 in planes"][value_format]
        unit.about = f"k {k}, {coder_name}, {format_name}"
        unit.add = lambda acc: add_entries(acc, unit.start, positions, values)

    def raw(self, k, length):
        width = (length - 1).bit_length()
        bits = Bits(self.reader.take((k * width + 7) // 8))
        positions = [bits.take(width) for _ in range(k)]
        ascending = all(a < b for a, b in zip(positions, positions[1:]))
        require(ascending and positions[-1] < length, "IndexOutOfRange")
        require(bits.is_padding(), "TrailingBytes")
        return positions

    def bitmap(self, k, length):
        section = self.reader.take((length + 7) // 8)
        positions = [8 * i + bit for i, byte in enumerate(section) if byte for bit in range(8) if byte >> bit & 1]
        require(len(positions) == k and positions[-1] < length, "InvalidField(Bitmap)")
        return positions

    def rice(self, k, length):
        section = Reader(self.reader.take(self.reader.varint()))
        require(section.left() >= (k + 7) // 8, "Truncated")
        block_log2 = section.number(1)
        known("rice block", block_log2, "InvalidField(Rice)")
        blocks = (k + (1 << block_log2) - 1) >> block_log2
        parameter_bits = Bits(section.take((5 * blocks + 7) // 8))
        parameters = [parameter_bits.take(5) for _ in range(blocks)]
        low_total = sum(r * min(1 << block_log2, k - (b << block_log2)) for b, r in enumerate(parameters))
        lows = Bits(section.take((low_total + 7) // 8))
        highs = Bits(section.take(section.left()))
        positions = []
        position = -1
        for entry in range(k):
            r = parameters[entry >> block_log2]
            high = highs.unary()
            require(high is not None, "Truncated")
            position += 1 + (high << r | lows.take(r))
            require(position < length, "IndexOutOfRange")
            positions.append(position)
        require(all(plane.is_padding() for plane in (parameter_bits, lows, highs)), "TrailingBytes")
        return positions

    def chunks(self, k, length):
        section = Reader(self.reader.take(self.reader.varint()))
        require(section.left() >= (k + 7) // 8, "Truncated")
        chunk_log2 = section.number(1)
        least = section.varint()
        width = section.number(1)
        known("chunk", chunk_log2, "InvalidField(Chunks)")
        known("chunk width", width, "InvalidField(Chunks)")
        bits = Bits(section.take(section.left()))
        positions = []
        for start in range(0, length, 1 << chunk_log2):
            end = min(start + (1 << chunk_log2), length)
            left = k - len(positions)
            number = left if end == length else least + bits.take(width)
            require(number <= min(left, end - start), "IndexOutOfRange")
            position = start
            for left in range(number, 0, -1):
                room = end - position - left
                r = 0
                while left + 1 << r + 1 <= room:
                    r += 1
                high = bits.unary()
                require(high is not None, "Truncated")
                gap = high << r | bits.take(r)
                require(gap <= room, "IndexOutOfRange")
                positions.append(position + gap)
                position += gap + 1
        require(bits.is_padding(), "TrailingBytes")
        return positions

    def context(self, k, unit, by_coordinate):
        section = self.reader.take(self.reader.varint())
        require(len(section) >= (k + 4095) // 4096 - 1, "Truncated")
        unit.needs_shapes = True
        positions = []

        def read():
            coder = RangeDecoder(section)
            if coder.bit(4096):
                positions.extend(memoryless(coder, k, unit.len))
            else:
                unit_parts = parts(self.shapes, unit.start, unit.len)
                positions.extend(adaptive(coder, k, unit.len, unit_parts, by_coordinate))

        if self.shapes is None:
            self.waiting.append(read)
        else:
            read()
        return positions

    def value_planes(self, unit, value_format, k):
        width, fraction, parse = [(32, 23, f32_values), (16, 10, f16_values), (16, 7, bf16_values)][value_format]
        shift = self.reader.number(1)
        heads = self.reader.number(1)
        low = self.reader.varint()
        known(["f32 shift", "f16 shift", "bf16 shift"][value_format], shift, "InvalidField(Planes)")
        known("heads", heads, "InvalidField(Planes)")
        heads += 1
        infinity = (1 << width - 1) - (1 << fraction)
        require(low <= LARGEST_U32 and low + heads << shift <= infinity, "InvalidField(Planes)")
        unit.scratch_words = 4096
        symbols = self.rans(k, 2 * heads)
        tails = Bits(self.reader.take((k * shift + 7) // 8))
        sign = 0
        numbers = bytearray()
        for symbol in symbols:
            sign ^= symbol & 1
            number = sign << width - 1 | low + (symbol >> 1) << shift | tails.take(shift)
            numbers += number.to_bytes(width // 8, "little")
        require(tails.is_padding(), "TrailingBytes")
        values = parse(bytes(numbers))
        self.check_values(values)
        return values

    def codebook(self, unit, k):
        book = self.reader.number(1)
        log2, packing = book & 15, book >> 4
        known("codebook log2", log2, "InvalidField(Codebook)")
        magnitudes = bf16_values(self.reader.take(2 << log2))
        known("codebook packing", packing, "InvalidField(Packing)")
        require(packing != 2 or 1 <= log2 <= 3, "InvalidField(Packing)")
        self.check_values(magnitudes)
        ascending = all(a <= b for a, b in zip(magnitudes, magnitudes[1:]))
        require(magnitudes[0] > 0 and ascending, "InvalidField(Codebook)")
        if packing in (1, 3):
            unit.scratch_words = 4096
            symbols = self.rans(k, 2 << log2)
            if packing == 3:
                signs = accumulate((symbol & 1 for symbol in symbols), xor)
                symbols = [symbol & ~1 | sign for symbol, sign in zip(symbols, signs)]
        elif packing == 2:
            symbols = self.prefix(k, 1 << log2)
        else:
            bits = Bits(self.reader.take((k * (log2 + 1) + 7) // 8))
            symbols = [bits.take(log2 + 1) for _ in range(k)]
            require(bits.is_padding(), "TrailingBytes")
        signed = [value for magnitude in magnitudes for value in (magnitude, -magnitude)]
        return [signed[symbol] for symbol in symbols]

    def prefix(self, k, magnitudes):
        bits = Bits(self.reader.take(self.reader.varint()))
        lengths = [bits.take(3) for _ in range(magnitudes)]
        require(sum(128 >> length for length in lengths if length) == 128, "InvalidField(Table)")
        codes = {}
        code = last = 0
        for length, number in sorted((length, number) for number, length in enumerate(lengths) if length):
            code <<= length - last
            codes[length, code] = number
            code, last = code + 1, length
        symbols = []
        for _ in range(k):
            sign = bits.take(1)
            length = code = 0
            while (length, code) not in codes:
                length, code = length + 1, code << 1 | bits.take(1)
            symbols.append(2 * codes[length, code] + sign)
        require(bits.left() >= 0, "Truncated")
        require(bits.is_padding(), "TrailingBytes")
        return symbols

    # Section 7

    def levels(self, unit):
        form = self.reader.number(1)
        width, packing = form & 15, form >> 4
        is_stated = width == 10
        known("level bits", width, "InvalidField(Bits)")
        norm = self.reader.number(1)
        norm_kind, coding = norm & 15, norm >> 4
        known("norm", norm_kind, "InvalidField(Norm)")
        s = self.reader.number(1) if is_stated else (1 << (width - 1)) - 1
        known("levels", s, "InvalidField(Bits)")
        width = s.bit_length() + 1
        bucket = self.reader.varint()
        require(1 <= bucket <= LARGEST_U32, "InvalidField(Bucket)")
        known("norm coding", coding, "InvalidField(Norm)")
        if packing == 4 and coding == 2:
            return self.level_stream(unit, s, norm_kind, bucket)
        require(coding <= 1, "InvalidField(Norm)")
        bucket_count = (unit.len + bucket - 1) // bucket
        norms = self.planes(bucket_count) if coding else f32_values(self.reader.take(4 * bucket_count))
        known("level packing", packing, "InvalidField(Packing)")
        require(packing <= 2 or packing == 3 and width == 2 and not is_stated, "InvalidField(Packing)")
        self.check_values(norms)
        for norm in norms:
            is_usable = math.copysign(1, norm) > 0 and math.isfinite(fl(fl(norm / s) * s))
            require(is_usable, "InvalidField(Scale)")
        starts = range(0, unit.len, bucket)
        buckets = [(start, min(start + bucket, unit.len), norm) for start, norm in zip(starts, norms)]
        if packing in (1, 2):
            buckets = [bucket for bucket in buckets if bucket[2] != 0]
        count = sum(end - start for start, end, _ in buckets)
        self.words, self.most = 0, unit.len
        levels = [self.fixed, self.elias, self.rans_levels, self.ternary][packing](count, width, s)
        unit.scratch_words = max(self.words, 4096) + bucket_count if coding else self.words
        names = ["fixed", "elias", "rans", "ternary"]
        norm_name = ["l2", "max"][norm_kind] + [" as f32", " in planes"][coding]
        stated = f" for levels up to {s}" if is_stated else ""
        unit.about = f"bits {width}{stated}, bucket {bucket}, norm {norm_name}, {names[packing]}"

        def add(acc):
            signed_levels = iter(levels)
            for start, end, norm in buckets:
                scale = fl(norm / s)
                # Level −s … s at its own index, as negative indices count from the end.
                table = [fl(scale * level) for level in range(s + 1)]
                table += [-value for value in table[:0:-1]]
                for i in range(unit.start + start, unit.start + end):
                    acc[i] += table[next(signed_levels)]

        unit.add = add

    def level_stream(self, unit, s, norm_kind, bucket):
        first = self.reader.varint()
        require(1 <= first <= bucket, "InvalidField(Bucket)")
        stream = self.reader.take(self.reader.varint())
        unit.scratch_words = unit.len
        names = ["l2", "max"]
        unit.about = f"levels up to {s}, bucket {bucket} from {first}, norm {names[norm_kind]}, context"
        values = []
        # Nothing is decoded beyond what the limits allow.
        if unit.len <= min(self.limits.elements, self.limits.scratch_words):
            values = self.streamed_values(unit.len, s, bucket, first, stream)

        def add(acc):
            for i, value in enumerate(values, unit.start):
                acc[i] += value

        unit.add = add

    def streamed_values(self, length, s, bucket, first, stream):
        models = LevelModels(RangeDecoder(stream), s)
        values = []
        largest = 0
        size = first
        while len(values) < length:
            size = min(size, length - len(values))
            norm = models.norm()
            self.check_values([norm])
            require(math.isfinite(fl(fl(norm / s) * s)), "InvalidField(Scale)")
            scale = fl(norm / s)
            levels = [models.level() if norm else 0 for _ in range(size)]
            largest = max(largest, *map(abs, levels))
            values += [fl(scale * level) for level in levels]
            size = bucket
        require(largest <= s, "InvalidField(Level)")
        return values

    def fixed(self, count, width, s):
        bits = Bits(self.reader.take((count * width + 7) // 8))
        fields = [bits.take(width) for _ in range(count)]
        require(bits.is_padding(), "TrailingBytes")
        mask = (1 << (width - 1)) - 1
        require(all(field & mask <= s for field in fields), "InvalidField(Level)")
        return [-(field & mask) if field > mask else field for field in fields]

    def elias(self, count, _width, s):
        bits = Bits(self.reader.take(self.reader.varint()))
        levels = []
        for _ in range(count):
            level = take_omega(bits, s + 1) - 1
            levels.append(-level if level > 0 and bits.take(1) else level)
        require(bits.left() >= 0, "Truncated")
        require(bits.is_padding(), "TrailingBytes")
        return levels

    def rans_levels(self, count, _width, s):
        signed = [(symbol + 1) // 2 * (1 if symbol % 2 else -1) for symbol in range(2 * s + 1)]
        return [signed[symbol] for symbol in self.rans(count, 2 * s + 1, may_have_classes=True)]

    def planes(self, count):
        exponents = self.rans(count, 255)
        stated = self.reader.varint()
        require(stated <= count, "InvalidField(Norm)")
        bits = Bits(self.reader.take((23 * stated + 7) // 8))
        require(stated == sum(exponent > 0 for exponent in exponents), "InvalidField(Norm)")
        words = [exponent << 23 | (bits.take(23) if exponent > 0 else 0) for exponent in exponents]
        require(bits.is_padding(), "TrailingBytes")
        return f32_values(struct.pack(f"<{count}I", *words))

    def ternary(self, count, _width, _s):
        section = self.reader.take((count + 4) // 5)
        used = (count - 1) % 5 + 1
        require(all(byte < 243 for byte in section), "TrailingBytes")
        require(not section or section[-1] < 3**used, "TrailingBytes")
        return [(0, 1, -1)[section[i // 5] // 3 ** (i % 5) % 3] for i in range(count)]

    # Section 8

    def seeded(self, unit):
        seed = self.reader.number(8)
        k = unit.entries = self.reader.varint()
        require(k <= unit.len, "InvalidField(Entries)")
        form = self.reader.number(1)
        known("seeded format", form, "InvalidField(Coding)")
        drawing, value_format = form >> 4, form & 15
        columns = width = unit.len
        if drawing == 2:
            columns, width = self.reader.varint(), self.reader.varint()
            require(1 <= columns <= unit.len and unit.len % columns == 0, "InvalidField(Tile)")
            require(1 <= width <= columns and k <= width * (unit.len // columns), "InvalidField(Tile)")
        values = self.fixed_values(value_format, k)
        unit.scratch_words = (unit.len + 31) // 32 if k and drawing == 0 else 0
        stream = Stream(seed, self.step, unit.id, SHARED, SELECTION)
        positions = sorted(drawn_tile(stream, k, unit.len, columns, width) if drawing else drawn_alone(stream, k, unit.len))
        drawn = ["alone", "as a run", f"as a tile, {width} of {columns} columns"][drawing]
        unit.about = f"k {k}, seed {seed}, drawn {drawn}, {['f32', 'f16', 'bf16'][value_format]}"
        unit.add = lambda acc: add_entries(acc, unit.start, positions, values)

    def signs(self, unit):
        bits = self.reader.number(4)
        require(bits >> 31 == 0, "InvalidField(Scale)")
        signs = self.reader.take((unit.len + 7) // 8 if bits else 0)
        scale = f32_values(bits.to_bytes(4, "little"))[0]
        self.check_values([scale])
        number = int.from_bytes(signs, "little")
        require(number >> unit.len == 0, "TrailingBytes")
        unit.about = f"scale {scale}"

        def add(acc):
            for i in range(unit.len):
                acc[unit.start + i] += -scale if number >> i & 1 else scale

        unit.add = add

    # Sections 9.2 to 9.4

    def rans(self, count, alphabet, may_have_classes=False):
        section = Reader(self.reader.take(self.reader.varint()))
        shape = section.number(1)
        known("lanes", shape & 7, "InvalidField(Lanes)")
        if shape < 128:
            self.words = 4096
            return rans_streams(section, shape, count, alphabet, 1, lambda i: 0)
        require(may_have_classes, "InvalidField(Classes)")
        classes = section.number(1)
        tables, segment_log2 = (classes & 15) + 1, 5 + (classes >> 4)
        known("classes", classes & 15, "InvalidField(Classes)")
        segments = (count + (1 << segment_log2) - 1) >> segment_log2
        outer, self.reader = self.reader, section
        differences = self.rans(segments, tables)
        self.reader = outer
        most_segments = (self.most + (1 << segment_log2) - 1) >> segment_log2
        self.words = 4096 * tables + (most_segments + 3) // 4
        owners = []
        for difference in differences:
            owners.append(((owners[-1] if owners else 0) + difference) % tables)
        return rans_streams(section, shape, count, alphabet, tables, lambda i: owners[i >> segment_log2])


def rans_streams(section, shape, count, alphabet, table_count, table_of):
    data = section.take(section.left())
    bits = Bits(data)
    tables = [Table(read_table(bits, alphabet)) for _ in range(table_count)]
    require(bits.left() >= 0, "InvalidField(Table)")
    require(bits.take(-bits.at % 8) == 0, "TrailingBytes")
    streams = Reader(data)
    streams.take((bits.at + 7) // 8)
    block = 1 << (16 + (shape >> 3 & 15))
    output = []
    for first in range(0, count, block):
        length = min(block, count - first)
        is_last = first + length == count
        stream = streams.take(streams.left() if is_last else streams.varint())
        output += decode_stream(stream, length, 1 << (shape & 7), lambda i: tables[table_of(first + i)])
    streams.finish()
    return output


class Table:
    def __init__(self, freqs):
        self.freqs = freqs
        self.owner = [symbol for symbol, freq in enumerate(freqs) for _ in range(freq)]
        self.starts = [sum(freqs[:symbol]) for symbol in range(len(freqs))]


# Sections 9.1, 6.5 and 6.6


class RangeDecoder:
    def __init__(self, stream):
        self.stream = iter(stream)
        self.value = 0
        for _ in range(4):
            self.value = self.value << 8 | next(self.stream, 0)
        self.value = min(self.value, 0xFFFFFFFE)
        self.range = 0xFFFFFFFF

    def narrow(self, first, size):
        self.value -= first
        self.range = size
        while self.range < 1 << 24:
            self.value = self.value << 8 | next(self.stream, 0)
            self.range <<= 8

    def bit(self, p):
        ones = (self.range >> 16) * p
        if self.value < ones:
            self.narrow(0, ones)
            return 1
        self.narrow(ones, self.range - ones)
        return 0

    def symbol(self, shares):
        unit = self.range >> 16
        symbol = max(number for number in range(16) if unit * shares[number] <= self.value)
        first = unit * shares[symbol]
        end = unit * shares[symbol + 1] if symbol < 15 else self.range
        self.narrow(first, end - first)
        return symbol

    def bits(self, width):
        number = 0
        while width > 0:
            digits = min(width, 12)
            width -= digits
            last = (1 << digits) - 1
            share = self.range >> digits
            piece = min(self.value // share, last)
            first = piece * share
            self.narrow(first, self.range - first if piece == last else share)
            number = number << digits | piece
        return number

    def below(self, digits):
        return 1 << (digits - 1) | self.bits(digits - 1) if digits > 0 else 0


def memoryless(coder, k, length):
    ratio = min((length - k << 32) // length, (1 << 32) - 1)
    even = high = 0
    p = []
    while ratio > 1 << 30 and high < 31:
        if ratio > 15 << 28:
            even = high + 1
        p.append(max((ratio << 16) // ((1 << 32) + ratio), 96))
        ratio = ratio * ratio >> 32
        high += 1
    more = max(ratio >> 16, 96)
    positions = []
    following = 0
    for left in range(k, 0, -1):
        room = length - following - left
        gap = 0
        while coder.bit(more):
            gap += 1
            require(gap <= room >> high, "IndexOutOfRange")
        for j in range(high - 1, even - 1, -1):
            gap = gap << 1 | coder.bit(p[j])
        gap = gap << even | coder.bits(even)
        require(gap <= room, "IndexOutOfRange")
        positions.append(following + gap)
        following += gap + 1
    return positions


class Part:
    def __init__(self, first, end, columns, row, offset):
        self.first, self.end, self.columns, self.row, self.offset = first, end, columns, row, offset


def parts(shapes, start, length):
    """Of each, first and last coordinate from the start of the unit, columns, coordinates of a row, and those before the first."""
    offset = 0
    for shape in shapes:
        following = offset + math.prod(shape)
        first, end = max(offset, start), min(following, start + length)
        if first < end:
            is_matrix = len(shape) == 2 and shape[1] <= 65536 and shape[1] <= (end - first) // 2
            columns = shape[1] if is_matrix else 0
            row = math.prod(shape[1:]) if len(shape) > 1 else 0
            is_row = 8 <= row <= 65536 and row <= (end - first) // 2
            yield Part(first - start, end - start, columns, row if is_row else 0, first - offset)
        offset = following


RATE = [327680 // (10 * n + 16) for n in range(15)] + [1365]
CONFIDENCE = [(32 * n + (n + 2) // 2) // (n + 2) for n in range(16)]


class Models:
    def __init__(self):
        self.by_size = [[[32768, 0] for _ in range(16)] for _ in range(32)]
        self.by_share = [[[50000 if i < t % 16 else 20000, 1] for i in range(16)] for t in range(48)]
        self.expected = [Model(expected, 12) for expected in range(14)]
        self.column_expected = [Model(number % 14, 0) for number in range(14 * 14)]
        self.column_recent = [Model(number % 14, 0) for number in range(14 * 14)]
        self.second = [[64 * 27500, 20] for _ in range(16)]

    def count_words(self):
        """Words of memory of what decides numbers of entries: a probability and its count are one."""
        return sum(len(context) for context in self.by_size + self.by_share)

    def gap_words(self):
        """The same of what decides gaps: a word holds two shares, or the count of a model."""
        models = self.expected + self.column_expected + self.column_recent
        return len(self.second) + sum(len(model.shares) // 2 + 1 for model in models)

    @staticmethod
    def decide(coder, contexts, weights, i):
        words = [context[i] for context in contexts]
        confidences = [weight * CONFIDENCE[count] for weight, (_, count) in zip(weights, words)]
        average = sum(confidence * p for confidence, (p, _) in zip(confidences, words)) // sum(confidences)
        b = coder.bit(average)
        target = 65440 if b else 96
        for word in words:
            word[0] += (target - word[0]) * RATE[word[1]] >> 15
            word[1] = min(word[1] + 1, 15)
        return b


class Model:
    """The shares of sixteen symbols, and how often they were updated."""

    def __init__(self, expected, count):
        weights = [10]
        for digits in range(14):
            if digits <= expected:
                weights.append(2 + 32 if digits == expected else 2 + 8 + (32 >> (expected - digits)))
            else:
                weights.append(2 + 4 if digits == expected + 1 else 2)
        weights.append(2)
        self.shares = [sum(weights[:symbol]) * 65152 // sum(weights) for symbol in range(16)]
        self.count = count

    def update(self, symbol):
        rate = 131072 // (2 * self.count + 5)
        step = 65152 * rate >> 16
        for number, share in enumerate(self.shares):
            self.shares[number] = share - (share * rate >> 16) + (step if number > symbol else 0)
        self.count = min(self.count + 1, 63)


def read_symbol(coder, models, weights):
    confidences = [w * ((65 * m.count + 3) // (2 * (m.count + 3))) for m, w in zip(models, weights)]
    scale = 65535 // sum(confidences)
    shares = [24 * symbol for symbol in range(16)]
    for model, confidence in zip(models, confidences):
        for symbol in range(16):
            shares[symbol] += model.shares[symbol] * (confidence * scale) >> 16
    symbol = coder.symbol(shares)
    for model in models:
        model.update(symbol)
    return symbol


class LevelModels:
    def __init__(self, coder, s):
        self.coder = coder
        self.width = s.bit_length() + 1
        self.by_fast = [level_words(number, 4) for number in range(30)]
        self.by_slow = [level_words(number, 6) for number in range(30)]
        self.digits = [[28000, 4] for _ in range(16)]
        self.zeros = [[16000, 1] for _ in range(16)]
        self.steps = [[26000, 2] for _ in range(16)]
        self.signs = [[64 * 32768, 20] for _ in range(4)]
        self.last_signs = 0
        self.fast = self.slow = 64 * s
        self.zero = 0
        self.exponent = None

    def decide(self, contexts, i):
        return Models.decide(self.coder, contexts, [1] * len(contexts), i)

    def norm(self):
        self.zero = self.decide([self.zeros], self.zero)
        if self.zero:
            return 0.0
        if self.exponent is None:
            self.exponent = self.coder.bits(8)
        else:
            steps = 0
            while steps < 254 and self.decide([self.steps], min(steps, 14)):
                steps += 1
            is_down = steps > 0 and self.decide([self.steps], 15)
            self.exponent += -steps if is_down else steps
        require(1 <= self.exponent <= 254, "InvalidField(Norm)")
        return f32_values(struct.pack("<I", self.exponent << 23 | self.coder.bits(23)))[0]

    def level(self):
        contexts = [self.by_fast[average_class(self.fast)], self.by_slow[average_class(self.slow)]]
        d = 0
        while d < self.width - 1 and self.decide(contexts, d):
            d += 1
        level = min(d, 1)
        if d >= 2:
            level = level << 1 | self.decide(contexts, 6 + d)
        if d >= 3:
            level = level << 1 | self.decide([self.digits], 2 * (d - 3) + (level & 1))
        if d > 3:
            level = level << (d - 3) | self.coder.bits(d - 3)
        sign = 0
        if level > 0:
            sign = Mixed.alone(self.coder, self.signs[self.last_signs])
            self.last_signs = 2 * self.last_signs % 4 + sign
        self.fast += (256 * level - self.fast) >> 1
        self.slow += (256 * level - self.slow) >> 4
        return -level if sign else level


def average_class(average):
    octave = average.bit_length() - 1
    return average if average < 2 else 2 * octave + (average >> (octave - 1) & 1)


def level_words(number, count):
    least = number if number < 2 else (2 + number % 2) << number // 2 >> 1
    first = [max(5000, min(63000, (least + 1) * 65536 // (least + 1 + (115 << j)))) for j in range(7)]
    return [[p, count] for p in first + [24000] * 9]


def adaptive(coder, k, length, unit_parts, by_coordinate):
    models = Models()
    mixed = Mixed()
    positions = []
    last_digits = 0
    for part in unit_parts:
        first, end = part.first, part.end
        left = k - len(positions)
        if left == 0:
            break
        size = end - first
        number = left
        if end < length:
            share = left * size // (length - first)
            contexts = [
                models.by_size[min(size.bit_length(), 31)],
                models.by_share[min(last_digits, 2) * 16 + min(share.bit_length(), 15)],
            ]
            most = min(left, size).bit_length()
            last_digits = 0
            while last_digits < most and models.decide(coder, contexts, [1, 1], min(last_digits, 15)):
                last_digits += 1
            number = coder.below(last_digits)
        require(number <= min(left, size), "IndexOutOfRange")
        if number > 0 and by_coordinate:
            positions += Coordinates(coder, mixed, part, number).read()
        elif number > 0:
            positions += part_positions(coder, models, part, number)
    return positions


def part_positions(coder, models, part, number):
    first, end, columns = part.first, part.end, part.columns
    column = part.offset % columns if columns else 0
    positions = []
    running = ((end - first) // number).bit_length() * 16
    seen = set()
    following = first
    for left in range(number, 0, -1):
        span = end - following
        here = (following - first + column) % columns if columns else 0
        distances = ((other - here) % columns for other in seen)
        distance = min((d for d in distances if d < span), default=None)
        expected = min(span.bit_length() + 1 - left.bit_length(), 13)
        by_column = 13 if distance is None else min(distance.bit_length(), 12)
        recent = min((running + 8) >> 4, 13)
        contexts = [
            models.expected[expected],
            models.column_expected[by_column * 14 + expected],
            models.column_recent[by_column * 14 + recent],
        ]
        symbol = read_symbol(coder, contexts, [1, 2, 3])
        if symbol == 0:
            require(distance is not None, "IndexOutOfRange")
            gap = distance
        else:
            digits = symbol - 1
            if symbol == 15:
                while digits < span.bit_length() and coder.bit(32768):
                    digits += 1
            gap = digits
            if digits >= 2:
                gap = (2 | Mixed.alone(coder, models.second[digits % 16])) << digits - 2 | coder.bits(digits - 2)
        require(gap <= span - left, "IndexOutOfRange")
        if columns:
            seen.add((here + gap) % columns)
        running = (running + gap.bit_length() * 16) >> 1
        positions.append(following + gap)
        following += gap + 1
    return positions


def log(v):
    v = max(v, 1)
    d = v.bit_length() - 1
    return 128 * d + (128 * v >> d) % 128


def log_odds(p):
    return log(p) - log((1 << 22) - (p - p % 4096 + 2048))


def probability(x):
    y = min(abs(x), 2047)
    odds = (128 + y % 128) << (y // 128)
    q = 65536 * odds // (odds + 128)
    return 65536 - q if x < 0 else q


def update(word, b):
    rate = 655360 // (10 * word[1] + 16)
    if b:
        word[0] += ((1 << 22) - 64 - word[0]) * rate >> 16
    else:
        word[0] -= (word[0] - 64) * rate >> 16
    word[1] = min(word[1] + 1, 1023)


class Mixed:
    def __init__(self):
        self.d = [[0, 0] for _ in range(256)]
        self.g = [[0, 0] for _ in range(512)]
        self.r = [[0, 0] for _ in range(128)]
        first = [1300, 5500, 10600, 19500, 33200, 49600, 61700, 65300, 65400]
        self.h = [[64 * first[i % 9], 1] for i in range(72)]
        self.weights = [[367002] * 3 for _ in range(6)]
        self.due = self.weights[0], [0, 0, 0]

    def words(self):
        """Words of memory of the probabilities."""
        return sum(len(words) for words in (self.d, self.g, self.r, self.h))

    @staticmethod
    def alone(coder, word):
        b = coder.bit(min(word[0] >> 6, 65440))
        update(word, b)
        return b

    def mix(self, coder, prior, words, weights):
        for word in words:
            if word[1] == 0:
                word[0] = probability(prior) << 6
        x = [(log_odds(p) - prior) * (512 * count // (2 * count + 3)) >> 8 for p, count in words]
        narrow = [max(-32768, min(weight >> 6, 32767)) for weight in weights]
        others, change = self.due
        for j in range(3):
            others[j] = (others[j] + change[j] + (1 << 31)) % (1 << 32) - (1 << 31)
        q = probability(prior + (sum(weight * value for weight, value in zip(narrow, x)) >> 14))
        b = coder.bit(min(q, 65440))
        self.due = weights, [(65536 * b - q >> 1) * value + 512 >> 10 for value in x]
        for word in words:
            update(word, b)
        return b


def bit_words(count):
    """Words that hold so many bits."""
    return (count + 31) // 32


def position_words(length, by_coordinate):
    """Section 11, from what the models hold: they, and the columns of the widest matrix with two rows, within bounds."""
    columns = min(length // 2, 65536)
    if by_coordinate:
        # How many entries a column had, and where the last was. All that is no matrix has 64 columns.
        return Models().count_words() + Mixed().words() + 2 * max(columns, 64)
    seen = bit_words(columns)
    return Models().count_words() + Models().gap_words() + seen + bit_words(seen)


class Coordinates:
    """The rows of a part."""

    def __init__(self, coder, models, part, number):
        self.coder, self.models = coder, models
        self.width = part.row or 64
        self.column = part.offset % part.row if part.row else 0
        self.count = [0] * self.width
        self.last = [0] * self.width
        self.next, self.end, self.left = part.first, part.end, number
        self.recent = number * 65536 // (part.end - part.first)
        self.since = self.begun = self.full = 0
        self.positions = []

    def read(self):
        rows = 0
        while self.left > 0:
            span = self.end - self.next
            row = min(self.width - self.column, span)
            self.begun += 1
            before = self.left
            if self.left <= span - row and not self.has_entries(rows, row, span):
                self.next += row
                self.since += row
                self.recent >>= 2
            else:
                self.row(row)
            has_entries = before > self.left
            rows = rows * 2 + has_entries
            self.full += has_entries
            self.column = 0
        return self.positions

    def has_entries(self, rows, row, span):
        number = min((16 * self.left * row // span).bit_length(), 8)
        return self.models.alone(self.coder, self.models.h[rows % 8 * 9 + number])

    def expected(self):
        denser = log(self.begun) - log(self.full + 1)
        prior = log(self.left) - log(self.end - self.next - self.left) + denser
        return max(-2047, min(prior, 2047))

    def row(self, row):
        like = unlike = 0
        prior = self.expected()
        for c in range(self.column, self.column + row):
            if self.left == 0:
                break
            is_known = self.count[c] > 0
            above = is_known and self.last[c] == self.full
            ago = min(self.full - self.last[c], 16) if is_known else 16
            a = 2 if self.full == 0 else int(above)
            density = min(self.count[c].bit_length(), 7) * 16 + (self.recent >> 7).bit_length()
            words = [
                self.models.d[density * 2 + (self.since == 0)],
                self.models.g[min(self.since.bit_length(), 10) * 32 + ago],
                self.models.r[(a * 4 + min(unlike, 3)) * 8 + min(like.bit_length(), 7)],
            ]
            b = self.models.mix(self.coder, prior, words, self.models.weights[a * 2 + is_known])
            like += b and above
            unlike += b != above
            self.recent -= self.recent >> 5
            self.since += 1
            self.next += 1
            if b:
                self.positions.append(self.next - 1)
                self.count[c] += 1
                self.last[c] = self.full + 1
                self.recent += 2048
                self.since = 0
                self.left -= 1
                prior = self.expected()
            require(self.left <= self.end - self.next, "IndexOutOfRange")


def add_entries(acc, start, positions, values):
    for position, value in zip(positions, values):
        acc[start + position] += value


def take_omega(bits, largest):
    v = 1
    while bits.take(1):
        if v > 31:
            return largest
        group = 1
        for _ in range(v):
            group = group << 1 | bits.take(1)
        v = group
    return min(v, largest)


def gamma(bits):
    zeros = bits.unary()
    require(zeros is not None and zeros <= 8, "InvalidField(Table)")
    return 1 << zeros | bits.take(zeros)


def read_table(bits, alphabet):
    freqs = [0] * alphabet
    left, previous, symbol = 4096, 1, 0
    while left > 0 and symbol < alphabet - 1:
        size = gamma(bits)
        if previous > 0:
            z = size - 1
            size = previous + (z // 2 if z % 2 == 0 else -(z + 1) // 2)
            require(size >= 0, "InvalidField(Table)")
        if size == 0:
            symbol += gamma(bits)
        else:
            require(size <= 13, "InvalidField(Table)")
            freq = 1 << (size - 1) | bits.take(size - 1)
            require(freq <= left, "InvalidField(Table)")
            freqs[symbol] = freq
            left -= freq
            symbol += 1
        previous = size
    if left > 0:
        require(symbol == alphabet - 1, "InvalidField(Table)")
        freqs[symbol] = left
    require(bits.left() >= 0, "InvalidField(Table)")
    return freqs


def decode_stream(stream, count, lanes, table_of):
    require(len(stream) >= 4 * lanes, "Truncated")
    states = list(struct.unpack(f"<{lanes}I", stream[: 4 * lanes]))
    words = stream[4 * lanes :]
    words += bytes(len(words) % 2)
    words = iter(struct.unpack(f"<{len(words) // 2}H", words))
    output = []
    for i in range(count):
        table = table_of(i)
        x = states[i % lanes]
        slot = x & 0xFFF
        symbol = table.owner[slot]
        x = table.freqs[symbol] * (x >> 12) + slot - table.starts[symbol]
        if x < 65536:
            x = x << 16 | next(words, 0)
        states[i % lanes] = x
        output.append(symbol)
    return output


# Section 10: random draws


def philox(counter, key, rounds):
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for turn in range(rounds):
        if turn > 0:
            k0 = (k0 + 0x9E3779B9) & LARGEST_U32
            k1 = (k1 + 0xBB67AE85) & LARGEST_U32
        a = 0xD2511F53 * c0
        b = 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & LARGEST_U32, (a >> 32) ^ c3 ^ k1, a & LARGEST_U32
    return c0, c1, c2, c3


def halves(x):
    return x & LARGEST_U32, x >> 32


class Stream:
    def __init__(self, seed, step, unit, source, purpose):
        tail = (source & 0x3FFFFFFF) | purpose << 30
        derived = philox((*halves(step), unit, tail), halves(seed), 10)
        self.key, self.upper = derived[:2], derived[2:]

    def block(self, i):
        return philox((*halves(i), *self.upper), self.key, 7)

    def u64(self, i):
        words = self.block(i // 2)
        return words[i % 2 * 2] | words[i % 2 * 2 + 1] << 32


# Section 8.1: the positions of seeded units


def drawn_alone(stream, k, length):
    taken = set()
    for draw in range(k):
        j = length - k + draw
        t = stream.u64(draw) * (j + 1) >> 64
        taken.add(j if t in taken else t)
    return taken


def drawn_tile(stream, k, length, columns, width):
    first = stream.u64(0) * length >> 64
    for i in range(k):
        row = (first // columns + i // width) % (length // columns)
        yield row * columns + (first % columns + i % width) % columns


# Section 2.4: files of several messages


def frames(data):
    """The bytes of each message, one after the other. At the end of a file they may be cut."""
    at = 0
    while at < len(data) or at == 0:
        try:
            end = at + Header.BYTES + Header(data[at:]).body_bytes
        except FrameError as fault:
            raise FrameError("TrailingBytes") if at > 0 else fault
        require(end <= len(data), "Truncated")
        yield data[at:end]
        at = end


def read_frames(data, layout):
    """All messages, which belong together. Which units and codecs they should have, and how many they are, only the rules say."""
    decoders = [Decoder(frame, layout, alone=False) for frame in frames(data)]
    require(len({(one.header.fingerprint, one.step, one.header.flags) for one in decoders}) == 1, "Mixed")
    units = sorted((unit for decoder in decoders for unit in decoder.units), key=lambda unit: (unit.start, unit.id))
    for before, unit in zip(units, units[1:]):
        require(before.start + before.len <= unit.start and before.id <= unit.id, "Units")
    if layout is None:
        end = max(decoder.len for decoder in decoders)
        require(end <= MOST_ELEMENTS, "LimitExceeded(Elements)")
        for decoder in decoders:
            decoder.finish(end)
    return decoders


def add_frames(decoders):
    """What the messages decode to together."""
    acc = array("f", bytes(4 * decoders[0].len))
    for decoder in decoders:
        for unit in decoder.units:
            unit.add(acc)
    return acc


# Section 14: saved memory


def decode_memory(data, layout):
    """The residual, and behind it the momentum, the factors and the arrays if there are any."""
    reader = Reader(data)
    require(reader.take(2) == b"GM", "BadMagic")
    version = reader.number(1)
    known("memory version", version, "UnsupportedVersion")
    kind = reader.number(1)
    known_bits("memory kind", kind, "InvalidField(Memory)")
    require(kind & 1 == 1, "InvalidField(Memory)")
    require(reader.number(8) == layout.fingerprint, "LayoutMismatch")
    require(reader.number(8) == layout.len, "InvalidField(Memory)")
    units = reader.number(4) if kind & 4 else 0
    require(units > 0 or kind & 4 == 0, "InvalidField(Memory)")
    count = reader.number(8) if kind & 8 else 0
    require(count > 0 or kind & 8 == 0, "InvalidField(Memory)")
    lengths = memory_arrays(reader) if version == 3 else {}
    residual = f32_values(reader.take(4 * layout.len))
    momentum = f32_values(reader.take(4 * layout.len if kind & 2 else 0))
    reader.take(16 * units)
    factors = f32_values(reader.take(4 * count))
    arrays = f32_values(reader.take(4 * sum(lengths.values())))
    checksum = reader.number(4)
    reader.finish()
    require(crc32c(data[:-4]) == checksum, "ChecksumMismatch")
    values = residual + momentum + factors + arrays
    require(all(map(math.isfinite, values)), "NonFiniteValue")
    return values


def memory_arrays(reader):
    """Lengths of the arrays by name, in order."""
    lengths = {}
    count = reader.number(1)
    require(count > 0, "InvalidField(Memory)")
    for _ in range(count):
        name = bytes(reader.take(reader.number(1)))
        lengths[name], is_new = reader.number(8), name not in lengths
        require(name != b"" and is_new and lengths[name] > 0, "InvalidField(Memory)")
    return lengths


def to_bytes(values):
    if sys.byteorder == "big":
        values = array("f", values)
        values.byteswap()
    return values.tobytes()


def main():
    parser = argparse.ArgumentParser(description="Decodes one gradwire frame, or several of one gradient.")
    parser.add_argument("frame")
    parser.add_argument("--layout", help="shapes, as in '10x64;10'; 'scalar' for an empty shape")
    parser.add_argument("--out", help="file for the decoded gradient, little-endian f32")
    arguments = parser.parse_args()
    layout = None if arguments.layout is None else Layout.parse(arguments.layout)
    try:
        with open(arguments.frame, "rb") as file:
            decoders = read_frames(file.read(), layout)
        gradient = add_frames(decoders)
    except FrameError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{arguments.frame}: {error.strerror}", file=sys.stderr)
        return 2
    for decoder in decoders:
        print(f"{decoder.header}, step {decoder.step}")
        for unit in decoder.units:
            print(f"unit {unit.id}: {unit.start} + {unit.len}, {KINDS[unit.kind]}: {unit.about}")
    if arguments.out:
        with open(arguments.out, "wb") as file:
            file.write(to_bytes(gradient))
    return 0


if __name__ == "__main__":
    sys.exit(main())
