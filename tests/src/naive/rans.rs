//! rANS with `u32` states, 16-bit words and interleaved lanes, one symbol at a time.

use super::bits::{BitSource, Bits};
use super::decode::{Bytes, Checked, ensure};
use super::header::varint;

/// What all frequencies sum to.
const SLOTS: u64 = 4096;

/// How a section is cut into blocks, which have states of their own, and into lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// log2 of the symbols of a block.
    pub block_log2: u32,
    /// log2 of the lanes of a stream.
    pub lanes_log2: u32,
}

impl Shape {
    /// Blocks of 2¹⁸ symbols, or larger ones until there are bits for 32 lanes in each; then as many lanes as
    /// cost, at 24 bits each, no more than 1/256 of the bits.
    #[must_use]
    pub fn for_symbols(n: usize, bits: u64) -> Shape {
        let blocks = |block_log2: u32| n.div_ceil(1 << block_log2) as u64;
        let mut block_log2 = 18;
        while block_log2 < 31 && blocks(block_log2) > 1 && blocks(block_log2) * 32 * 24 * 256 > bits {
            block_log2 += 1;
        }
        let mut lanes_log2 = 5;
        while lanes_log2 > 0 && (blocks(block_log2).max(1) * (24 * 256)) << lanes_log2 > bits {
            lanes_log2 -= 1;
        }
        Shape { block_log2, lanes_log2 }
    }

    /// Its byte.
    #[must_use]
    pub fn byte(self, has_classes: bool) -> u8 {
        self.lanes_log2 as u8 | (self.block_log2 as u8 - 16) << 3 | u8::from(has_classes) << 7
    }

    fn read(byte: u8) -> Checked<Shape> {
        ensure(byte & 7 <= 5, "too many lanes")?;
        Ok(Shape { lanes_log2: u32::from(byte & 7), block_log2: 16 + u32::from(byte >> 3 & 15) })
    }
}

/// log2(f) in units of 2⁻¹⁶, rounded down: the digits are found by squaring, with 31 digits kept behind the
/// point.
fn log2(f: u64) -> u64 {
    let mut log = u64::from(f.ilog2());
    let mut x = f << (31 - log);
    for _ in 0..16 {
        x = (x * x) >> 31;
        log *= 2;
        if x >= 1 << 32 {
            x >>= 1;
            log += 1;
        }
    }
    log
}

/// What an occurrence of a symbol costs, in units of 2⁻¹⁶ bits; `None` for one without slots.
#[must_use]
pub fn cost(f: u64) -> Option<u64> {
    (f > 0).then(|| (12 << 16) - log2(f))
}

/// Whole bits that symbols with these counts cost.
#[must_use]
pub fn cost_bits(freqs: &[u64], counts: &[u64]) -> u64 {
    freqs.iter().zip(counts).filter_map(|(&f, &count)| Some(count * cost(f)?)).sum::<u64>() >> 16
}

/// Whole bits of symbols and their table, but for shape and states of a section.
#[must_use]
pub fn ideal_bits(symbols: &[u8], alphabet: usize) -> u64 {
    let counts = counts(symbols, alphabet);
    let freqs = frequencies(&counts);
    let mut table = Bits::default();
    write_table(&freqs, &mut table);
    cost_bits(&freqs, &counts) + table.len() as u64
}

/// What an occurrence-weighted message saves when a frequency grows from f to f + 1 is count over this:
/// 1024/ln((f + 1)/f) from the series f + 1/2 − 1/(12·f + 6), in integers.
fn inverse_gain(f: u64) -> u64 {
    1024 * f + 512 - 512 / (6 * f + 3)
}

/// The best frequencies for these counts. Symbols whose share is below one slot have one; the others share
/// what is left and are rounded where one slot more begins to save less than it does on average; then single
/// slots are added where they save most, or taken where they cost least, the lowest symbol first among
/// equals.
#[must_use]
pub fn frequencies(counts: &[u64]) -> Vec<u64> {
    let mut freqs = vec![0; counts.len()];
    if counts.iter().all(|&count| count == 0) {
        freqs[0] = SLOTS;
        return freqs;
    }
    let rare = rare_symbols(counts);
    let slots = SLOTS - rare.len() as u64;
    let total: u64 = (0..counts.len()).filter(|s| !rare.contains(s)).map(|s| counts[s]).sum();
    for symbol in 0..counts.len() {
        if rare.contains(&symbol) {
            freqs[symbol] = 1;
        } else if counts[symbol] > 0 {
            let share = counts[symbol] * slots;
            let floor = share / total;
            freqs[symbol] = floor + u64::from(1024 * share > total * inverse_gain(floor));
        }
    }
    correct_sum(&mut freqs, counts);
    freqs
}

/// Symbols whose share of the slots is below one: giving them one leaves less to the others, and so on.
fn rare_symbols(counts: &[u64]) -> Vec<usize> {
    let (mut rare, mut slots, mut total) = (Vec::new(), SLOTS, counts.iter().sum::<u64>());
    loop {
        let before = rare.len();
        for (symbol, &count) in counts.iter().enumerate() {
            if count > 0 && !rare.contains(&symbol) && count * slots < total {
                rare.push(symbol);
                slots -= 1;
                total -= count;
            }
        }
        if rare.len() == before {
            return rare;
        }
    }
}

fn correct_sum(freqs: &mut [u64], counts: &[u64]) {
    let less = |a: (u64, u64), b: (u64, u64)| (a.0 * b.1).cmp(&(b.0 * a.1));
    while freqs.iter().sum::<u64>() < SLOTS {
        let gain = |s: &usize| (counts[*s], inverse_gain(freqs[*s]));
        // The last of equals under `max_by`, so lowest first by going backwards.
        let best = (0..freqs.len()).rev().filter(|&s| counts[s] > 0).max_by(|a, b| less(gain(a), gain(b)));
        freqs[best.expect("a symbol occurs")] += 1;
    }
    while freqs.iter().sum::<u64>() > SLOTS {
        let loss = |s: &usize| (counts[*s], inverse_gain(freqs[*s] - 1));
        let best = (0..freqs.len()).filter(|&s| freqs[s] > 1).min_by(|a, b| less(loss(a), loss(b)));
        freqs[best.expect("some symbol has slots to spare")] -= 1;
    }
}

/// Elias's gamma code: one zero for each digit of `v` but the first, a one, and the digits below the first.
fn put_gamma(bits: &mut Bits, v: u64) {
    let digits = v.ilog2();
    bits.unary(u64::from(digits));
    bits.field(v - (1 << digits), digits);
}

fn take_gamma(bits: &mut BitSource<'_>) -> Checked<u64> {
    let digits = bits.unary()?;
    ensure(digits <= 8, "gamma code of a table too long")?;
    Ok(1 << digits | bits.field(digits as u32)?)
}

/// The number of binary digits of a frequency.
fn class(f: u64) -> i64 {
    i64::from(u64::BITS - f.leading_zeros())
}

/// The table as FORMAT.md spells it: classes as differences to the class before, runs of absent symbols, and
/// the digits of a frequency below its first.
pub fn write_table(freqs: &[u64], bits: &mut Bits) {
    let (mut left, mut previous, mut symbol) = (SLOTS, 1, 0);
    while left > 0 && symbol + 1 < freqs.len() {
        let f = freqs[symbol];
        let difference = class(f) - previous;
        match previous {
            0 => put_gamma(bits, class(f) as u64),
            _ if difference >= 0 => put_gamma(bits, 1 + 2 * difference as u64),
            _ => put_gamma(bits, (-2 * difference) as u64),
        }
        symbol += 1;
        if f == 0 {
            let absent = freqs[symbol..].iter().take_while(|&&f| f == 0).count();
            put_gamma(bits, 1 + absent as u64);
            symbol += absent;
        } else {
            bits.field(f - (1 << (class(f) - 1)), class(f) as u32 - 1);
        }
        left -= f;
        previous = class(f);
    }
}

fn read_table(bits: &mut BitSource<'_>, alphabet: usize) -> Checked<Vec<u64>> {
    let mut freqs = vec![0; alphabet];
    let (mut left, mut previous, mut symbol) = (SLOTS, 1, 0);
    while left > 0 && symbol + 1 < alphabet {
        let code = take_gamma(bits)? as i64;
        let class = match previous {
            0 => code,
            _ if code % 2 == 1 => previous + (code - 1) / 2,
            _ => previous - code / 2,
        };
        ensure((0..=13).contains(&class), "class of a frequency out of range")?;
        if class == 0 {
            symbol += take_gamma(bits)? as usize;
        } else {
            let f = 1 << (class - 1) | bits.field(class as u32 - 1)?;
            ensure(f <= left, "frequencies above their total")?;
            left -= f;
            freqs[symbol] = f;
            symbol += 1;
        }
        previous = class;
    }
    ensure(left == 0 || symbol + 1 == alphabet, "absent symbols run out of the alphabet")?;
    if left > 0 {
        freqs[symbol] = left;
    }
    Ok(freqs)
}

/// The stream of a block, whose symbol `i` has the frequencies `freqs(i)`.
fn stream<'f>(symbols: &[u8], lane_count: usize, freqs: impl Fn(usize) -> &'f [u64]) -> Vec<u8> {
    let mut states = vec![1u64 << 16; lane_count];
    let mut words = Vec::new();
    for (i, &symbol) in symbols.iter().enumerate().rev() {
        let state = &mut states[i % lane_count];
        let freqs = freqs(i);
        let f = freqs[usize::from(symbol)];
        let before: u64 = freqs[..usize::from(symbol)].iter().sum();
        if *state >= f << 20 {
            words.push(*state as u16);
            *state >>= 16;
        }
        *state = ((*state / f) << 12) + before + *state % f;
    }
    let states = states.iter().flat_map(|&state| (state as u32).to_le_bytes());
    states.chain(words.iter().rev().flat_map(|word| word.to_le_bytes())).collect()
}

/// For every slot: the symbol that owns it, its frequency, and the sum of those before it.
type Slots = Vec<(u8, u64, u64)>;

fn slots_of(freqs: &[u64]) -> Slots {
    let mut slots = Vec::new();
    for (symbol, &f) in freqs.iter().enumerate() {
        let before = slots.len() as u64;
        slots.extend((0..f).map(|_| (symbol as u8, f, before)));
    }
    slots
}

fn read_stream<'s>(
    bytes: &[u8],
    n: usize,
    lane_count: usize,
    slots: impl Fn(usize) -> &'s Slots,
) -> Checked<Vec<u8>> {
    ensure(bytes.len() >= 4 * lane_count, "stream shorter than its states")?;
    let (heads, words) = bytes.split_at(4 * lane_count);
    let mut states: Vec<u64> = heads
        .chunks(4)
        .map(|head| u64::from(u32::from_le_bytes(head.try_into().expect("four bytes"))))
        .collect();
    let mut words = words.iter().copied().chain(std::iter::repeat(0));
    let mut symbols = Vec::with_capacity(n);
    for i in 0..n {
        let state = &mut states[i % lane_count];
        let (symbol, f, before) = slots(i)[(*state % SLOTS) as usize];
        *state = f * (*state >> 12) + *state % SLOTS - before;
        if *state < 1 << 16 {
            let word = [words.next(), words.next()].map(|byte| byte.unwrap_or(0));
            *state = *state << 16 | u64::from(u16::from_le_bytes(word));
        }
        symbols.push(symbol);
    }
    Ok(symbols)
}

/// How often each symbol occurs.
#[must_use]
pub fn counts(symbols: &[u8], alphabet: usize) -> Vec<u64> {
    let mut counts = vec![0; alphabet];
    symbols.iter().for_each(|&symbol| counts[usize::from(symbol)] += 1);
    counts
}

/// The section with one table: its length, its shape, the table, and the streams.
#[must_use]
pub fn section(symbols: &[u8], alphabet: usize) -> Vec<u8> {
    let counts = counts(symbols, alphabet);
    let freqs = frequencies(&counts);
    let shape = Shape::for_symbols(symbols.len(), cost_bits(&freqs, &counts));
    let body = tables_and_streams(symbols, shape, &[freqs], |_| 0);
    let length = varint(body.len() as u64 + 1);
    [length, vec![shape.byte(false)], body].concat()
}

/// The tables as one bit string, and for each block of symbols its stream, with the length in front of all
/// but the last. Symbol `i` has the frequencies of table `table_of(i)`.
#[must_use]
pub fn tables_and_streams(
    symbols: &[u8],
    shape: Shape,
    tables: &[Vec<u64>],
    table_of: impl Fn(usize) -> usize,
) -> Vec<u8> {
    let mut bits = Bits::default();
    tables.iter().for_each(|freqs| write_table(freqs, &mut bits));
    let mut body = bits.bytes();
    let blocks = symbols.chunks(1 << shape.block_log2);
    let last = blocks.len().saturating_sub(1);
    for (i, block) in blocks.enumerate() {
        let first = i << shape.block_log2;
        let stream = stream(block, 1 << shape.lanes_log2, |i| &tables[table_of(first + i)]);
        if i < last {
            body.extend(varint(stream.len() as u64));
        }
        body.extend(stream);
    }
    body
}

/// The `n` symbols of a section with one table.
pub fn read_section(bytes: &mut Bytes<'_>, n: usize, alphabet: usize) -> Checked<Vec<u8>> {
    let length = bytes.varint_usize()?;
    let mut section = Bytes::new(bytes.take(length)?);
    let shape = section.u8()?;
    ensure(shape < 128, "classes where there can be none")?;
    read_streams(section.rest(), n, alphabet, Shape::read(shape)?, 1, |_| 0)
}

/// The `n` symbols of a section that may have classes.
pub fn read_classed_section(bytes: &mut Bytes<'_>, n: usize, alphabet: usize) -> Checked<Vec<u8>> {
    let length = bytes.varint_usize()?;
    let mut section = Bytes::new(bytes.take(length)?);
    let byte = section.u8()?;
    let shape = Shape::read(byte)?;
    if byte < 128 {
        return read_streams(section.rest(), n, alphabet, shape, 1, |_| 0);
    }
    let classes = section.u8()?;
    let (tables, segment) = (usize::from(classes & 15) + 1, 32 << (classes >> 4));
    ensure(tables > 1, "classes of which there is only one")?;
    let differences = read_section(&mut section, n.div_ceil(segment), tables)?;
    let sums = differences.iter().scan(0, |class, &difference| {
        *class = (*class + usize::from(difference)) % tables;
        Some(*class)
    });
    let classes: Vec<usize> = sums.collect();
    read_streams(section.rest(), n, alphabet, shape, tables, |i| classes[i / segment])
}

fn read_streams(
    bytes: &[u8],
    n: usize,
    alphabet: usize,
    shape: Shape,
    tables: usize,
    table_of: impl Fn(usize) -> usize,
) -> Checked<Vec<u8>> {
    let mut bits = BitSource::new(bytes);
    let tables = (0..tables).map(|_| read_table(&mut bits, alphabet)).collect::<Checked<Vec<_>>>()?;
    bits.pad()?;
    let slots: Vec<Slots> = tables.iter().map(|freqs| slots_of(freqs)).collect();
    let mut streams = Bytes::new(&bytes[bits.position() / 8..]);
    let mut symbols = Vec::new();
    while symbols.len() < n {
        let first = symbols.len();
        let block = (1 << shape.block_log2).min(n - first);
        let is_last = first + block == n;
        let length = if is_last { streams.rest().len() } else { streams.varint_usize()? };
        let stream = streams.take(length)?;
        symbols.extend(read_stream(stream, block, 1 << shape.lanes_log2, |i| &slots[table_of(first + i)])?);
    }
    streams.finish()?;
    Ok(symbols)
}
