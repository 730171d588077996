//! rANS with `u32` states, 16-bit words and interleaved lanes, one symbol at a time.

use super::bits::{BitSource, Bits};
use super::decode::{Bytes, Checked, ensure};
use super::header::varint;

/// What all frequencies sum to.
const SLOTS: u64 = 4096;

/// Symbols that share one set of states.
const BLOCK: usize = 1 << 18;

/// Lanes of a stream of `n` symbols.
#[must_use]
pub fn lanes(n: usize) -> usize {
    match n {
        0..512 => 1,
        512..16384 => 4,
        _ => 32,
    }
}

/// What an occurrence-weighted message saves when a frequency grows from f to f + 1 is count over this:
/// 1024/ln((f + 1)/f) from the series f + 1/2 − 1/(12·f + 6), in integers.
fn inverse_gain(f: u64) -> u64 {
    1024 * f + 512 - 512 / (6 * f + 3)
}

/// The best frequencies for these counts. Symbols whose share is below one slot have one; the others share what is left
/// and are rounded where one slot more begins to save less than it does on average; then single slots are added where
/// they save most, or taken where they cost least, the lowest symbol first among equals.
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

/// The table as FORMAT.md spells it: classes as differences to the class before, runs of absent symbols, and the digits
/// of a frequency below its first.
fn write_table(freqs: &[u64], bits: &mut Bits) {
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

fn stream(symbols: &[u8], freqs: &[u64]) -> Vec<u8> {
    let mut states = vec![1u64 << 16; lanes(symbols.len())];
    let lane_count = states.len();
    let mut words = Vec::new();
    for (i, &symbol) in symbols.iter().enumerate().rev() {
        let state = &mut states[i % lane_count];
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

fn read_stream(bytes: &[u8], n: usize, slots: &[(u8, u64, u64)]) -> Checked<Vec<u8>> {
    let lane_count = lanes(n);
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
        let (symbol, f, before) = slots[(*state % SLOTS) as usize];
        *state = f * (*state >> 12) + *state % SLOTS - before;
        if *state < 1 << 16 {
            let word = [words.next(), words.next()].map(|byte| byte.unwrap_or(0));
            *state = *state << 16 | u64::from(u16::from_le_bytes(word));
        }
        symbols.push(symbol);
    }
    Ok(symbols)
}

/// The section: its length, the table, and for each block of symbols its stream, with the length in front of all but the
/// last.
#[must_use]
pub fn section(symbols: &[u8], alphabet: usize) -> Vec<u8> {
    let mut counts = vec![0; alphabet];
    symbols.iter().for_each(|&symbol| counts[usize::from(symbol)] += 1);
    let freqs = frequencies(&counts);
    let mut table = Bits::default();
    write_table(&freqs, &mut table);
    let mut body = table.bytes();
    let blocks = symbols.chunks(BLOCK);
    let last = blocks.len().saturating_sub(1);
    for (i, block) in blocks.enumerate() {
        let stream = stream(block, &freqs);
        if i < last {
            body.extend(varint(stream.len() as u64));
        }
        body.extend(stream);
    }
    let mut section = varint(body.len() as u64);
    section.extend(body);
    section
}

/// The `n` symbols of a section.
pub fn read_section(bytes: &mut Bytes<'_>, n: usize, alphabet: usize) -> Checked<Vec<u8>> {
    let length = bytes.varint_usize()?;
    let section = bytes.take(length)?;
    let mut bits = BitSource::new(section);
    let freqs = read_table(&mut bits, alphabet)?;
    bits.pad()?;
    let mut slots = Vec::new();
    for (symbol, &f) in freqs.iter().enumerate() {
        let before = slots.len() as u64;
        slots.extend((0..f).map(|_| (symbol as u8, f, before)));
    }
    let mut streams = Bytes::new(&section[bits.position() / 8..]);
    let mut symbols = Vec::new();
    while symbols.len() < n {
        let block = BLOCK.min(n - symbols.len());
        let is_last = symbols.len() + block == n;
        let length = if is_last { streams.rest().len() } else { streams.varint_usize()? };
        symbols.extend(read_stream(streams.take(length)?, block, &slots)?);
    }
    streams.finish()?;
    Ok(symbols)
}
