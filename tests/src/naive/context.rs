//! Index coders 3 and 4, from FORMAT.md, section 6.5: decisions are gathered or looked up one by one,
//! probabilities are kept by name, and columns in a set.

use super::coordinates::{self, Learnt, Word as Decision};
use super::decode::{Checked, ensure};
use std::collections::{BTreeSet, HashMap};

/// The tensors that a unit lies in.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Shapes of the layout; `None` where they are not known.
    pub shapes: Option<&'a [Vec<usize>]>,
    /// First coordinate of the unit.
    pub start: usize,
    /// Coordinates of the unit.
    pub len: usize,
}

/// A tensor's part of a unit: where it lies, its columns, and how far from the start of the tensor it begins.
pub(super) struct Part {
    pub(super) first: u64,
    pub(super) end: u64,
    columns: Option<u64>,
    /// Coordinates of a row, if it has such.
    pub(super) row: Option<u64>,
    pub(super) offset: u64,
}

/// Whether gaps are coded, or coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adaptive {
    /// Index coder 3.
    Gaps,
    /// Index coder 4.
    Coordinates,
}

impl Place<'_> {
    fn parts(&self) -> Vec<Part> {
        let (mut tensor, mut parts) = (0, Vec::new());
        for shape in self.shapes.unwrap_or_default() {
            let after = tensor + shape.iter().product::<usize>();
            let (first, end) = (tensor.max(self.start), after.min(self.start + self.len));
            if first < end {
                let size = end - first;
                let columns = match shape[..] {
                    [_, columns] if columns <= 65536 && columns <= size / 2 => Some(columns as u64),
                    _ => None,
                };
                let row = match &shape[..] {
                    [] | [_] => None,
                    [_, others @ ..] => Some(others.iter().product::<usize>()),
                };
                let row = row.filter(|&row| (8..=65536).contains(&row) && row <= size / 2);
                let row = row.map(|row| row as u64);
                let unit = |coordinate: usize| (coordinate - self.start) as u64;
                let offset = (first - tensor) as u64;
                parts.push(Part { first: unit(first), end: unit(end), columns, row, offset });
            }
            tensor = after;
        }
        parts
    }
}

/// Both directions of the range coder: `told` is what the encoder writes; the decoder is not told.
pub(super) trait Decisions {
    fn bit(&mut self, p: u64, told: Option<bool>) -> bool;
    fn piece(&mut self, digits: u32, told: Option<u64>) -> u64;

    /// A symbol, likely as the differences of the shares and what they leave of 65536.
    fn symbol(&mut self, shares: &[u64; 16], told: Option<usize>) -> usize;

    fn bits(&mut self, digits: u32, told: Option<u64>) -> u64 {
        if digits > 12 {
            let upper = self.piece(12, told.map(|value| value >> (digits - 12)));
            let lower = self.bits(digits - 12, told.map(|value| value % (1 << (digits - 12))));
            return upper << (digits - 12) | lower;
        }
        if digits == 0 { 0 } else { self.piece(digits, told) }
    }

    fn below(&mut self, digits: u32, told: Option<u64>) -> u64 {
        match digits {
            0 => 0,
            _ => 1 << (digits - 1) | self.bits(digits - 1, told.map(|value| value % (1 << (digits - 1)))),
        }
    }
}

/// The bytes written so far, `low` behind them.
pub(super) struct Writer {
    bytes: Vec<u8>,
    low: u64,
    range: u64,
}

impl Writer {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::new(), low: 0, range: 0xffff_ffff }
    }

    fn carry(&mut self) {
        if self.low >> 32 == 0 {
            return;
        }
        self.low %= 1 << 32;
        let last = self.bytes.iter().rposition(|&byte| byte != 255).expect("the number stays below one");
        self.bytes[last] += 1;
        self.bytes[last + 1..].fill(0);
    }

    fn write(&mut self) {
        self.bytes.push((self.low >> 24) as u8);
        self.low = (self.low << 8) % (1 << 32);
    }

    fn put(&mut self, first: u64, size: u64) {
        self.low += first;
        self.carry();
        self.range = size;
        while self.range < 1 << 24 {
            self.write();
            self.range <<= 8;
        }
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        let rounded = |zeros: u32| self.low.div_ceil(1 << zeros) << zeros;
        let zeros = (0..=32).rev().find(|&zeros| rounded(zeros) < self.low + self.range);
        self.low = rounded(zeros.expect("no zeros is always possible"));
        self.carry();
        while self.low > 0 {
            self.write();
        }
        self.bytes
    }
}

impl Decisions for Writer {
    fn bit(&mut self, p: u64, told: Option<bool>) -> bool {
        let (ones, bit) = ((self.range >> 16) * p, told.expect("the writer is told"));
        let (first, size) = if bit { (0, ones) } else { (ones, self.range - ones) };
        self.put(first, size);
        bit
    }

    fn piece(&mut self, digits: u32, told: Option<u64>) -> u64 {
        let (share, piece) = (self.range >> digits, told.expect("the writer is told"));
        let is_last = piece == (1 << digits) - 1;
        self.put(piece * share, if is_last { self.range - piece * share } else { share });
        piece
    }

    fn symbol(&mut self, shares: &[u64; 16], told: Option<usize>) -> usize {
        let (unit, symbol) = (self.range >> 16, told.expect("the writer is told"));
        let end = if symbol == 15 { self.range } else { unit * shares[symbol + 1] };
        self.put(unit * shares[symbol], end - unit * shares[symbol]);
        symbol
    }
}

/// The bytes not read yet.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    value: u64,
    range: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        let mut reader = Self { bytes, value: 0, range: 0xffff_ffff };
        (0..4).for_each(|_| reader.read());
        reader.value = reader.value.min(0xffff_fffe);
        reader
    }

    fn read(&mut self) {
        let byte = self.bytes.first().copied().unwrap_or(0);
        self.bytes = self.bytes.get(1..).unwrap_or_default();
        self.value = self.value << 8 | u64::from(byte);
    }

    fn narrow(&mut self, first: u64, size: u64) {
        self.value -= first;
        self.range = size;
        while self.range < 1 << 24 {
            self.read();
            self.range <<= 8;
        }
    }
}

impl Decisions for Reader<'_> {
    fn bit(&mut self, p: u64, _: Option<bool>) -> bool {
        let ones = (self.range >> 16) * p;
        let bit = self.value < ones;
        let (first, size) = if bit { (0, ones) } else { (ones, self.range - ones) };
        self.narrow(first, size);
        bit
    }

    fn piece(&mut self, digits: u32, _: Option<u64>) -> u64 {
        let share = self.range >> digits;
        let piece = (self.value / share).min((1 << digits) - 1);
        let is_last = piece == (1 << digits) - 1;
        self.narrow(piece * share, if is_last { self.range - piece * share } else { share });
        piece
    }

    fn symbol(&mut self, shares: &[u64; 16], _: Option<usize>) -> usize {
        let unit = self.range >> 16;
        let mut symbol = 15;
        while self.value < unit * shares[symbol] {
            symbol -= 1;
        }
        let end = if symbol == 15 { self.range } else { unit * shares[symbol + 1] };
        self.narrow(unit * shares[symbol], end - unit * shares[symbol]);
        symbol
    }
}

pub(super) fn bitlen(value: u64) -> u32 {
    u64::BITS - value.leading_zeros()
}

/// A probability, and how often it was updated.
#[derive(Clone, Copy, Debug)]
struct Word {
    p: i64,
    count: i64,
}

/// The contexts by letter and number; a word is made when it is first asked for.
#[derive(Default)]
pub(super) struct Contexts(HashMap<(Context, u32), Word>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Context {
    S(u32),
    T(u32),
    Fast(u32),
    Slow(u32),
    Digits,
    Zero,
    Exponent,
}

/// P(1) of decision `i` of a level where averages are of this class.
fn of_level(class: u32, i: u32) -> i64 {
    let least = match class {
        0 | 1 => i64::from(class),
        _ if class.is_multiple_of(2) => 1 << (class / 2),
        _ => 3 << (class / 2) >> 1,
    };
    match i {
        0..=6 => ((least + 1) * 65536 / (least + 1 + (115 << i))).clamp(5000, 63000),
        _ => 24000,
    }
}

impl Contexts {
    fn word(&mut self, context: Context, i: u32) -> &mut Word {
        self.0.entry((context, i)).or_insert_with(|| match context {
            Context::S(_) => Word { p: 32768, count: 0 },
            Context::T(number) => Word { p: if i < number % 16 { 50000 } else { 20000 }, count: 1 },
            Context::Fast(class) => Word { p: of_level(class, i), count: 4 },
            Context::Slow(class) => Word { p: of_level(class, i), count: 6 },
            Context::Digits => Word { p: 28000, count: 4 },
            Context::Zero => Word { p: 16000, count: 1 },
            Context::Exponent => Word { p: 26000, count: 2 },
        })
    }

    pub(super) fn decide(
        &mut self,
        coder: &mut impl Decisions,
        weighted: &[(Context, i64)],
        i: u32,
        told: Option<bool>,
    ) -> bool {
        let (mut sum, mut total) = (0, 0);
        for &(context, weight) in weighted {
            let Word { p, count } = *self.word(context, i);
            let confidence = weight * ((32 * count + (count + 2) / 2) / (count + 2));
            sum += confidence * p;
            total += confidence;
        }
        let bit = coder.bit((sum / total) as u64, told);
        for &(context, _) in weighted {
            let word = self.word(context, i);
            let rate = if word.count < 15 { 327_680 / (10 * word.count + 16) } else { 1365 };
            let target = if bit { 65440 } else { 96 };
            word.p += ((target - word.p) * rate).div_euclid(32768);
            word.count = (word.count + 1).min(15);
        }
        bit
    }
}

/// How likely smaller symbols are, and how often that was updated.
#[derive(Clone, Copy, Debug)]
struct Model {
    shares: [i64; 16],
    count: i64,
}

impl Model {
    fn new(expected: u32, count: i64) -> Self {
        let weight = |symbol: u32| match symbol {
            0 => 10,
            15 => 2,
            _ if symbol - 1 == expected => 34,
            _ if symbol - 1 == expected + 1 => 6,
            _ if symbol - 1 > expected => 2,
            _ => 10 + (32 >> (expected + 1 - symbol)),
        };
        let sum = |to: u32| (0..to).map(weight).sum::<i64>();
        Self { shares: std::array::from_fn(|symbol| sum(symbol as u32) * 65152 / sum(16)), count }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum OfGap {
    E(u32),
    Ce(u32, u32),
    Cr(u32, u32),
}

/// The models of gaps by letter and number, and the words of second digits.
#[derive(Default)]
struct GapModels {
    models: HashMap<OfGap, Model>,
    second: HashMap<u32, Decision>,
}

impl GapModels {
    fn model(&mut self, name: OfGap) -> &mut Model {
        self.models.entry(name).or_insert_with(|| match name {
            OfGap::E(expected) => Model::new(expected, 12),
            OfGap::Ce(_, expected) => Model::new(expected, 0),
            OfGap::Cr(_, recent) => Model::new(recent, 0),
        })
    }

    fn symbol(
        &mut self,
        coder: &mut impl Decisions,
        weighted: &[(OfGap, i64)],
        told: Option<usize>,
    ) -> usize {
        let all: Vec<(Model, i64)> = weighted
            .iter()
            .map(|&(name, weight)| {
                let model = *self.model(name);
                (model, weight * ((64 * model.count + model.count + 3) / (2 * (model.count + 3))))
            })
            .collect();
        let scale = 65535 / all.iter().map(|(_, weight)| weight).sum::<i64>();
        let shares = std::array::from_fn(|symbol| {
            let parts = all.iter().map(|(model, weight)| model.shares[symbol] * weight * scale / 65536);
            (24 * symbol as i64 + parts.sum::<i64>()) as u64
        });
        let symbol = coder.symbol(&shares, told);
        for &(name, _) in weighted {
            let model = self.model(name);
            let rate = 131_072 / (2 * model.count + 5);
            for (number, share) in model.shares.iter_mut().enumerate() {
                *share -= *share * rate / 65536;
                *share += if number > symbol { 65152 * rate / 65536 } else { 0 };
            }
            model.count = (model.count + 1).min(63);
        }
        symbol
    }

    /// What is below the first of a gap's digits.
    fn lower(&mut self, coder: &mut impl Decisions, digits: u32, told: Option<u64>) -> u64 {
        if digits < 2 {
            return u64::from(digits);
        }
        let others = digits - 2;
        let word = self.second.entry(digits % 16).or_insert(Decision { p: 27_500 * 64, count: 20 });
        let second = word.alone(coder, told.map(|gap| gap >> others & 1 == 1));
        (2 + u64::from(second)) << others | coder.bits(others, told.map(|gap| gap % (1 << others)))
    }
}

/// Positions of `k` entries, told to a writer and asked of a reader.
fn adaptive(
    form: Adaptive,
    coder: &mut impl Decisions,
    told: Option<&[u64]>,
    k: usize,
    place: &Place<'_>,
) -> Checked<Vec<u64>> {
    let mut contexts = Contexts::default();
    let (mut models, mut learnt) = (GapModels::default(), Learnt::default());
    let mut positions: Vec<u64> = Vec::new();
    let mut last_digits = 0;
    for part in place.parts() {
        let left = (k - positions.len()) as u64;
        if left == 0 {
            break;
        }
        let inside = |position: &&u64| (part.first..part.end).contains(position);
        let told_number = told.map(|told| told.iter().filter(inside).count() as u64);
        let number = if part.end == place.len as u64 {
            left
        } else {
            number_of_part(coder, &mut contexts, &part, left, place.len as u64, &mut last_digits, told_number)
        };
        ensure(number <= left.min(part.end - part.first), "more entries than fit the part")?;
        match form {
            Adaptive::Gaps => gaps(coder, &mut models, &part, number, told, &mut positions)?,
            Adaptive::Coordinates if number == 0 => {}
            Adaptive::Coordinates => {
                positions.extend(coordinates::positions(coder, &mut learnt, &part, number, told)?);
            }
        }
    }
    Ok(positions)
}

fn number_of_part(
    coder: &mut impl Decisions,
    contexts: &mut Contexts,
    part: &Part,
    left: u64,
    len: u64,
    last_digits: &mut u32,
    told: Option<u64>,
) -> u64 {
    let size = part.end - part.first;
    let share = left * size / (len - part.first);
    let by_size = Context::S(bitlen(size).min(31));
    let by_share = Context::T((*last_digits).min(2) * 16 + bitlen(share).min(15));
    let mut digits = 0;
    while digits < bitlen(left.min(size)) {
        let more = told.map(|number| bitlen(number) > digits);
        if !contexts.decide(coder, &[(by_size, 1), (by_share, 1)], digits.min(15), more) {
            break;
        }
        digits += 1;
    }
    *last_digits = digits;
    coder.below(digits, told)
}

fn gaps(
    coder: &mut impl Decisions,
    models: &mut GapModels,
    part: &Part,
    number: u64,
    told: Option<&[u64]>,
    positions: &mut Vec<u64>,
) -> Checked<()> {
    let column_of =
        |position: u64| part.columns.map(|columns| (position - part.first + part.offset) % columns);
    let mut seen = BTreeSet::new();
    let mut next = part.first;
    let mut running = bitlen((part.end - part.first).checked_div(number).unwrap_or(0)) * 16;
    for left in (1..=number).rev() {
        let span = part.end - next;
        let distance = part.columns.zip(column_of(next)).and_then(|(columns, here)| {
            let ahead = seen.range(here..).next().map(|column| column - here);
            let in_next_row = seen.first().map(|column| columns - here + column);
            ahead.or(in_next_row).filter(|&distance| distance < span)
        });
        let expected = (bitlen(span) + 1 - bitlen(left)).min(13);
        let column = distance.map_or(13, |distance| bitlen(distance).min(12));
        let recent = ((running + 8) >> 4).min(13);
        let told_gap = told.map(|told| told[positions.len()] - next);
        let told_symbol =
            told_gap.map(|gap| if Some(gap) == distance { 0 } else { (bitlen(gap) + 1).min(15) });
        let weighted =
            [(OfGap::E(expected), 1), (OfGap::Ce(column, expected), 2), (OfGap::Cr(column, recent), 3)];
        let symbol = models.symbol(coder, &weighted, told_symbol.map(|symbol| symbol as usize));
        let gap = if symbol == 0 {
            distance.ok_or("no column ahead")?
        } else {
            let mut digits = symbol as u32 - 1;
            while symbol == 15
                && digits < bitlen(span)
                && coder.bit(32768, told_gap.map(|gap| bitlen(gap) > digits))
            {
                digits += 1;
            }
            models.lower(coder, digits, told_gap)
        };
        ensure(gap <= span - left, "no room for the entries behind")?;
        seen.extend(column_of(next + gap));
        running = (running + bitlen(gap) * 16) / 2;
        positions.push(next + gap);
        next += gap + 1;
    }
    Ok(())
}

fn memoryless(coder: &mut impl Decisions, told: Option<&[u64]>, k: usize, len: usize) -> Checked<Vec<u64>> {
    let (k, len) = (k as u64, len as u64);
    let mut ratio = (((len - k) << 32) / len).min((1 << 32) - 1);
    let (mut p, mut even) = (Vec::new(), 0);
    while ratio > 1 << 30 && p.len() < 31 {
        if ratio > 15 << 28 {
            even = p.len() + 1;
        }
        p.push((ratio * 65536 / ((1 << 32) + ratio)).max(96));
        ratio = ((u128::from(ratio) * u128::from(ratio)) >> 32) as u64;
    }
    let more = (ratio >> 16).max(96);
    let mut positions = Vec::new();
    let mut next = 0;
    for left in (1..=k).rev() {
        let room = len - next - left;
        let told = told.map(|told| told[positions.len()] - next);
        let mut gap = 0;
        while coder.bit(more, told.map(|told| told >> p.len() > gap)) {
            gap += 1;
            ensure(gap <= room >> p.len(), "gap beyond the unit")?;
        }
        for digit in (even..p.len()).rev() {
            gap = 2 * gap + u64::from(coder.bit(p[digit], told.map(|told| told >> digit & 1 == 1)));
        }
        gap = gap << even | coder.bits(even as u32, told.map(|told| told % (1 << even)));
        ensure(gap <= room, "no room for the entries behind")?;
        positions.push(next + gap);
        next += gap + 1;
    }
    Ok(positions)
}

/// log₂(a / b) in 2⁻³²ths, rounded down at every step.
fn log2(a: u64, b: u64) -> u128 {
    let mut x = (u128::from(a) << 63) / u128::from(b);
    let mut log = u128::from(x.ilog2()) - 63;
    x >>= log;
    for _ in 0..32 {
        x = (x * x) >> 63;
        let digit = x >> 64;
        log = 2 * log + digit;
        x >>= digit;
    }
    log
}

/// Bits that the positions are worth when all coordinates are alike.
fn memoryless_bits(positions: &[u64], len: usize) -> u64 {
    let (k, len) = (positions.len() as u64, len as u64);
    let passed = positions.last().map_or(0, |last| last + 1 - k);
    let entries = u128::from(k) * log2(len, k);
    let others = if passed == 0 { 0 } else { u128::from(passed) * log2(len, len - k) };
    ((entries + others) >> 32) as u64
}

/// The stream of ascending positions, of one at the least.
///
/// # Panics
/// When the shapes are not known.
#[must_use]
pub fn write(form: Adaptive, indices: &[usize], place: &Place<'_>) -> Vec<u8> {
    assert!(place.shapes.is_some(), "positions are written by tensors");
    let positions: Vec<u64> = indices.iter().map(|&index| index as u64).collect();
    let written = |is_memoryless: bool| {
        let mut writer = Writer::new();
        writer.bit(4096, Some(is_memoryless));
        let told = Some(&positions[..]);
        let coded = if is_memoryless {
            memoryless(&mut writer, told, positions.len(), place.len)
        } else {
            adaptive(form, &mut writer, told, positions.len(), place)
        };
        assert_eq!(coded.as_ref(), Ok(&positions));
        writer.finish()
    };
    let (adaptive, bits) = (written(false), memoryless_bits(&positions, place.len));
    if 8 * adaptive.len() as u64 > bits + bits / 64 { written(true) } else { adaptive }
}

/// Whether gaps take fewer bytes than the number of entries alone implies.
#[must_use]
pub fn finds_order(indices: &[usize], place: &Place<'_>) -> bool {
    let positions: Vec<u64> = indices.iter().map(|&index| index as u64).collect();
    8 * (write(Adaptive::Gaps, indices, place).len() as u64) < memoryless_bits(&positions, place.len)
}

/// The positions of a stream.
pub fn read(form: Adaptive, stream: &[u8], k: usize, place: &Place<'_>) -> Checked<Vec<u64>> {
    ensure(k <= 4096 * (stream.len() + 1), "more entries than the bytes can hold")?;
    ensure(place.shapes.is_some(), "the shapes are not known")?;
    let mut reader = Reader::new(stream);
    if reader.bit(4096, None) {
        memoryless(&mut reader, None, k, place.len)
    } else {
        adaptive(form, &mut reader, None, k, place)
    }
}
