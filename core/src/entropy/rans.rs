//! Static order-0 rANS over up to 256 symbols, with interleaved states.
//!
//! All states are `u32` in [2^16, 2^32), frequencies sum to M = 2^12, and a state is renormalised by 16-bit
//! little-endian words, of which no symbol ever needs more than one. Symbol i belongs to lane i mod lanes;
//! all lanes share one sequence of words. With f the frequency of a symbol and c the sum of those before it:
//! ```text
//! encode, from the last symbol to the first:      decode, from the first symbol to the last:
//!   if x >= f << 20: emit x & 0xffff; x >>= 16      slot = x & 0xfff; symbol = the one whose slots hold it
//!   x = (x / f << 12) + c + x % f                   x = f * (x >> 12) + slot - c
//!                                                   if x < 1 << 16: x = x << 16 | next word
//! ```
//! A stream is the final state of every encoder lane (`u32`, little-endian, lane 0 first) and then the words
//! in the order in which the decoder takes them, that is, in the reverse of the order of emission. The
//! encoder begins with 2^16 in every lane, so a decoder that has seen an intact stream ends there, with every
//! word taken ([`Decoder::is_intact`]).
//!
//! Everything is integer arithmetic: tables, sizes and bytes are the same on every platform.
//!
//! # Source
//! J. Duda, "Asymmetric numeral systems", arXiv 1311.2540; interleaving after F. Giesen, "Interleaved entropy
//! coders", arXiv 1402.3392. One 16-bit word a symbol at most lets vectors decode 32 lanes from the same bytes.

use core::hint::select_unpredictable;

use crate::bits::{BitReader, BitWriter, load_padded};

/// log2 of the sum of all frequencies.
const SCALE_BITS: u32 = 12;

/// Sum of all frequencies, M: the number of slots that the symbols share.
pub(crate) const SLOTS: usize = 1 << SCALE_BITS;

/// Most symbols that an alphabet can have.
pub(crate) const MAX_ALPHABET: usize = 256;

/// log2 of the largest number of lanes.
pub(crate) const MAX_LANES_LOG2: u32 = 5;

const MAX_LANES: usize = 1 << MAX_LANES_LOG2;

/// Least value of a renormalised state, and the one that encoding begins and decoding ends with.
const LOWER: u32 = 1 << 16;

/// Symbols coded with one test for the end of the words.
const GROUP: usize = 8;

/// Bytes of the words that a group takes at most.
const GROUP_BYTES: usize = 2 * GROUP;

/// log2 of the number of lanes for a stream of `n` symbols: more lanes are faster, and each costs two to four
/// bytes.
pub(crate) const fn lanes_log2_for(n: usize) -> u32 {
    match n {
        0..512 => 0,
        512..16384 => 2,
        _ => MAX_LANES_LOG2,
    }
}

/// Lanes of a stream; a log2 above the largest counts as the largest.
fn lanes(lanes_log2: u32) -> usize {
    1 << lanes_log2.min(MAX_LANES_LOG2)
}

/// A frequency for every symbol. They always sum to [`SLOTS`], so every table can decode anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    freqs: [u16; MAX_ALPHABET],
}

impl Table {
    /// The table that codes a message with these symbol counts in the fewest bits. Symbols that do not occur
    /// get no slots, all others at least one; if nothing occurs, symbol 0 gets them all.
    ///
    /// `counts[s]` is how often symbol s occurs.
    ///
    /// # Panics
    /// If `counts` has more than 256 elements.
    ///
    /// # Determinism
    /// Integers only; of equally good corrections, the one of the lowest symbol is made.
    pub(crate) fn from_counts(counts: &[u32]) -> Table {
        let mut freqs = [0; MAX_ALPHABET];
        let used = &mut freqs[..counts.len()];
        let mut total: u64 = counts.iter().copied().map(u64::from).sum();
        if total == 0 {
            freqs[0] = SLOTS as u16;
            return Table { freqs };
        }
        // Symbols whose share is below one slot get one, which leaves less to the others: until all have one.
        let mut slots = SLOTS as u64;
        let mut before = 0;
        while before != slots {
            before = slots;
            for (f, &count) in used.iter_mut().zip(counts) {
                let count = u64::from(count);
                if count > 0 && *f == 0 && count * slots < total {
                    *f = 1;
                    slots -= 1;
                    total -= count;
                }
            }
        }
        // Each of the others is rounded where one slot more begins to save less than it does on average.
        for (f, &count) in used.iter_mut().zip(counts).filter(|(f, count)| **f == 0 && **count > 0) {
            let share = u64::from(count) * slots;
            *f = (share / total) as u16;
            *f += u16::from(share << GAIN_BITS > total * inverse_gain(*f));
        }
        correct_sum(used, counts);
        Table { freqs }
    }

    /// Bits that coding a message with these symbol counts takes, which is the sum of count·(12 − log2(f)),
    /// rounded down. A stream has 16 to 32 bits a lane more, give or take 0.1 % (see the tests).
    ///
    /// `counts[s]` is how often symbol s occurs; symbols without slots are left out.
    ///
    /// # Determinism
    /// Integers only: at most 2^-16 bit per symbol of the message above the exact sum, never below it before
    /// it is rounded down.
    pub(crate) fn cost_bits(&self, counts: &[u32]) -> u64 {
        let cost =
            |(&f, &count): (&u16, &u32)| u64::from(count) * u64::from((SCALE_BITS << 16) - log2_q16(f));
        let fixed: u64 = self.freqs.iter().zip(counts).filter(|(f, _)| **f > 0).map(cost).sum();
        fixed >> 16
    }

    /// Appends the table; `alphabet` is a number of symbols that includes every one in use, at most 256.
    ///
    /// Symbols follow in order. The class of a frequency is its number of binary digits, 0 to 13; `previous`
    /// is the class of the symbol before, and begins as 1. `gamma(v)` is Elias's code of v >= 1: the digits
    /// of v less one in unary, then the digits of v below the leading one.
    /// ```text
    /// while slots are left and symbol < alphabet - 1:
    ///   if previous = 0: gamma(class)
    ///   else: d = class - previous; gamma(1 + (2d if d >= 0 else -2d - 1))
    ///   if class = 0: gamma(1 + number of absent symbols that follow immediately), and pass over them
    ///   else: the class - 1 digits of the frequency below its leading one
    /// ```
    /// Absent symbols after the last one in use cost nothing, and the last symbol of the alphabet takes the
    /// slots that are left.
    ///
    /// # Panics
    /// If `alphabet` is above 256.
    pub(crate) fn write(&self, writer: &mut BitWriter<'_>, alphabet: usize) {
        self.describe(alphabet, |value, width| writer.put(value, width));
    }

    /// Bits that [`write`](Self::write) appends, without writing them.
    pub(crate) fn table_bits(&self, alphabet: usize) -> u64 {
        let mut bits = 0;
        self.describe(alphabet, |_, width| bits += u64::from(width));
        bits
    }

    /// Hands every field of the spelled-out table to `put`, as value and width.
    fn describe(&self, alphabet: usize, mut put: impl FnMut(u64, u32)) {
        debug_assert!((1..=MAX_ALPHABET).contains(&alphabet), "alphabet of {alphabet} symbols");
        debug_assert!(self.freqs[alphabet..].iter().all(|&f| f == 0), "symbol outside the alphabet");
        let freqs = &self.freqs[..alphabet];
        let (mut left, mut previous, mut symbol) = (SLOTS as u16, 1, 0);
        while left > 0 && symbol + 1 < alphabet {
            let f = freqs[symbol];
            let class = u16::BITS - f.leading_zeros();
            let code = if previous == 0 { class } else { 1 + zigzag(class as i32 - previous as i32) };
            put_gamma(&mut put, code);
            symbol += 1;
            if class == 0 {
                let run = freqs[symbol..].iter().take_while(|f| **f == 0).count();
                put_gamma(&mut put, 1 + run as u32);
                symbol += run;
            } else {
                put(u64::from(f) - (1 << (class - 1)), class - 1);
            }
            left -= f;
            previous = class;
        }
    }

    /// Reads what [`write`](Self::write) wrote for the same `alphabet`. `None` if the bits are no table: its
    /// frequencies do not sum to [`SLOTS`], it names a symbol outside the alphabet, the alphabet does not
    /// hold 1 to 256 symbols, or the bytes end before it does. A table has only one spelling.
    pub(crate) fn read(reader: &mut BitReader<'_>, alphabet: usize) -> Option<Table> {
        let mut freqs = [0; MAX_ALPHABET];
        let used = freqs.get_mut(..alphabet)?;
        let last = alphabet.checked_sub(1)?;
        let (mut left, mut previous, mut symbol) = (SLOTS as u16, 1_u32, 0);
        while left > 0 && symbol < last {
            let code = take_gamma(reader)?;
            let class = if previous == 0 { code } else { previous.checked_add_signed(unzigzag(code - 1))? };
            match class {
                0 => symbol += take_gamma(reader)? as usize,
                1..=13 => {
                    let f = 1 << (class - 1) | reader.take(class - 1) as u16;
                    left = left.checked_sub(f)?;
                    used[symbol] = f;
                    symbol += 1;
                }
                _ => return None,
            }
            previous = class;
        }
        if left > 0 {
            // A run of absent symbols may have left the alphabet.
            (symbol == last).then(|| used[last] = left)?;
        }
        (!reader.overran()).then_some(Table { freqs })
    }

    /// Fills what [`Decoder`] looks symbols up in: for every slot, frequency − 1 in the upper 12 bits, the
    /// slot's place among those of its symbol in the next 12, and the symbol in the lowest 8.
    pub(crate) fn fill_lookup(&self, slots: &mut [u32; SLOTS]) {
        let mut rest = slots.as_mut_slice();
        for (symbol, &f) in self.freqs.iter().enumerate() {
            let (own, others) = rest.split_at_mut(usize::from(f));
            for (place, slot) in own.iter_mut().enumerate() {
                *slot = (u32::from(f) - 1) << 20 | (place << 8 | symbol) as u32;
            }
            rest = others;
        }
    }
}

/// Fractional bits of [`inverse_gain`].
const GAIN_BITS: u32 = 10;

/// 2^10 / ln((f + 1) / f), within 0.2 %: when the frequency of a symbol grows from f to f + 1, a message saves
/// count / `inverse_gain(f)`, up to one factor for all symbols.
///
/// From the series 1 / ln(1 + 1/f) = f + 1/2 − 1/(12f + 6) + …
fn inverse_gain(f: u16) -> u64 {
    let f = u64::from(f);
    (f << GAIN_BITS) + (1 << (GAIN_BITS - 1)) - (1 << (GAIN_BITS - 1)) / (6 * f + 3)
}

/// Makes the frequencies of the symbols that occur sum to [`SLOTS`], one slot at a time, where it saves most
/// or costs least. Savings fall as a frequency grows, so these greedy steps keep an optimal table optimal.
fn correct_sum(freqs: &mut [u16], counts: &[u32]) {
    let sum: usize = freqs.iter().copied().map(usize::from).sum();
    // Savings are fractions, count / inverse gain.
    let above = |a: (u64, u64), b: (u64, u64)| a.0 * b.1 > b.0 * a.1;
    for _ in sum..SLOTS {
        let (mut best, mut best_gain) = (0, (0, 1));
        for (symbol, (&f, &count)) in freqs.iter().zip(counts).enumerate() {
            let gain = (u64::from(count), inverse_gain(f));
            if above(gain, best_gain) {
                (best, best_gain) = (symbol, gain);
            }
        }
        freqs[best] += 1;
    }
    for _ in SLOTS..sum {
        let (mut best, mut best_loss) = (0, (1, 0));
        for (symbol, (&f, &count)) in freqs.iter().zip(counts).enumerate() {
            let loss = (u64::from(count), inverse_gain(f.max(1) - 1));
            if f > 1 && above(best_loss, loss) {
                (best, best_loss) = (symbol, loss);
            }
        }
        freqs[best] -= 1;
    }
}

/// 2^16·log2(f) rounded down, for f in 1..=2^12, by repeated squaring.
fn log2_q16(f: u16) -> u32 {
    let whole = f.ilog2();
    let mut x = u64::from(f) << (31 - whole);
    let mut log = whole;
    for _ in 0..16 {
        x = (x * x) >> 31;
        let bit = (x >> 32) as u32;
        x >>= bit;
        log = log << 1 | bit;
    }
    log
}

fn zigzag(d: i32) -> u32 {
    (d << 1 ^ d >> 31) as u32
}

fn unzigzag(z: u32) -> i32 {
    (z >> 1) as i32 ^ -((z & 1) as i32)
}

/// Elias's gamma code of `v`, at least 1 and below 2^16.
fn put_gamma(put: &mut impl FnMut(u64, u32), v: u32) {
    let digits = v.ilog2();
    let low = v - (1 << digits);
    put(u64::from(low << 1 | 1) << digits, 2 * digits + 1);
}

/// One gamma code; `None` if it is above every value that a table needs.
fn take_gamma(reader: &mut BitReader<'_>) -> Option<u32> {
    let digits = reader.take_unary().filter(|digits| *digits <= 8)? as u32;
    Some(1 << digits | reader.take(digits) as u32)
}

/// What the encoder needs of a symbol, ready for its hot loop.
#[derive(Clone, Copy, Default)]
struct Entry {
    /// The low 32 bits of m, see [`Entry::new`].
    reciprocal: u32,
    /// From the top: f − 1 in 12 bits, two zeros, k in 6 bits, c in 12 bits.
    packed: u32,
}

/// The highest bit of k, which is set in every entry of a symbol with slots: 32 <= k <= 44.
const PRESENT: u32 = 1 << 17;

impl Entry {
    /// The quotient x / f is x·m >> k with k = 32 + ceil(log2(f)) and m = ceil(2^k / f), which has 33 bits,
    /// the highest one always set. With e = m·f − 2^k it is exact where x·e < 2^k; as e < f, and x < f·2^20
    /// once renormalised, x·e < f²·2^20 <= 2^k because f <= 2^12. Then also x·m = (x·2^k + x·e) / f <
    /// (x + 1)·2^k / f <= 2^(k + 20) <= 2^64.
    fn new(f: u16, start: u32) -> Entry {
        let f = u64::from(f);
        let log = f.next_power_of_two().trailing_zeros();
        let reciprocal = (((1 << log) - f) << 32).div_ceil(f) as u32;
        Entry { reciprocal, packed: (f as u32 - 1) << 20 | (32 + log) << 12 | start }
    }

    /// Fills the entries of all symbols with slots. In place: returned by value, the 2 KiB would exist twice.
    fn fill(entries: &mut [Entry; MAX_ALPHABET], table: &Table) {
        let mut start = 0;
        for (entry, &f) in entries.iter_mut().zip(&table.freqs).filter(|(_, f)| **f > 0) {
            *entry = Entry::new(f, start);
            start += u32::from(f);
        }
    }
}

/// Encodes `symbols` into the front of `out` and returns the number of bytes of the stream.
///
/// The stream has 4 bytes a lane and at most 2 a symbol; [`Table::cost_bits`] tells about how many. What
/// `out` holds after it is unspecified. `lanes_log2` above 5 counts as 5. Uses less than 2.5 KiB of stack.
///
/// # Errors
/// `None` if the stream does not fit `out`, or if the table has no slots for one of the symbols.
pub(crate) fn encode(symbols: &[u8], table: &Table, lanes_log2: u32, out: &mut [u8]) -> Option<usize> {
    let lanes = lanes(lanes_log2);
    let mut entries = [Entry::default(); MAX_ALPHABET];
    Entry::fill(&mut entries, table);
    let mut states = [LOWER; MAX_LANES];
    // The stream is written from the end, then moved: no further away than it can need to be.
    let room = symbols.len().saturating_mul(2).saturating_add(4 * lanes).min(out.len());
    let out = &mut out[..room];
    let free = match lanes {
        1 => encode_groups::<1, 1>(symbols, &entries, &mut states, 1, out)?,
        2 => encode_groups::<2, 1>(symbols, &entries, &mut states, 1, out)?,
        4 => encode_groups::<4, 1>(symbols, &entries, &mut states, 1, out)?,
        _ => encode_groups::<8, 4>(symbols, &entries, &mut states, lanes / 8, out)?,
    };
    let header = free.checked_sub(4 * lanes)?;
    for (bytes, state) in out[header..].as_chunks_mut().0.iter_mut().zip(&states[..lanes]) {
        *bytes = state.to_le_bytes();
    }
    out.copy_within(header.., 0);
    Some(room - header)
}

/// Encodes all symbols, last to first, into words that end with `out`; returns how many bytes before them are
/// free. The lanes are `sets`, a power of two up to `SETS`, times `L`.
fn encode_groups<const L: usize, const SETS: usize>(
    symbols: &[u8],
    entries: &[Entry; MAX_ALPHABET],
    lanes: &mut [u32; MAX_LANES],
    sets: usize,
    out: &mut [u8],
) -> Option<usize> {
    let mut states = [[LOWER; L]; SETS];
    let mut seen = PRESENT;
    let mut free = out.len();
    let (groups, tail) = symbols.as_chunks::<GROUP>();
    let set = &mut states[(groups.len() & (sets - 1)) % SETS];
    free = encode_group(tail, entries, set, &mut seen, out.get_mut(..free)?)?;
    for (index, group) in groups.iter().enumerate().rev() {
        let set = &mut states[(index & (sets - 1)) % SETS];
        free = encode_group(group, entries, set, &mut seen, out.get_mut(..free)?)?;
    }
    lanes[..L * SETS].copy_from_slice(states.as_flattened());
    (seen == PRESENT).then_some(free)
}

/// Encodes at most [`GROUP`] symbols, the first of which belongs to the first of the `states`, into words
/// that end with `out`; returns how many bytes before them are free. `seen` keeps [`PRESENT`] if every symbol
/// has slots.
#[inline(always)]
fn encode_group<const L: usize>(
    symbols: &[u8],
    entries: &[Entry; MAX_ALPHABET],
    states: &mut [u32; L],
    seen: &mut u32,
    out: &mut [u8],
) -> Option<usize> {
    let free = out.len();
    let mut spare = [0; GROUP_BYTES];
    let near = free < GROUP_BYTES;
    let window = if near { &mut spare } else { out.last_chunk_mut()? };
    let mut count = 0;
    for (at, &symbol) in symbols.iter().enumerate().rev() {
        let Entry { reciprocal, packed } = entries[usize::from(symbol)];
        let x = states[at % L];
        // Stored in any case, and overwritten by the next word if not to be emitted: the hot loop has no
        // branches, which could not be predicted.
        let word = 2 * ((GROUP - 1 - count) % GROUP);
        [window[word], window[word + 1]] = (x as u16).to_le_bytes();
        // The same as x >= f << 20, which for f = 2^12 has 33 bits.
        let full = x > packed | 0xf_ffff;
        count += usize::from(full);
        let x = select_unpredictable(full, x >> 16, x);
        let product = (u64::from(x) << 32) + u64::from(x) * u64::from(reciprocal);
        let quotient = product.wrapping_shr(packed >> 12) as u32;
        // The new state is quotient·2^12 + c + x % f, and x % f is x - quotient·f.
        states[at % L] = x + (packed & 0xfff) + quotient * (!packed >> 20);
        *seen &= packed;
    }
    let left = free.checked_sub(2 * count)?;
    if near {
        out[left..].copy_from_slice(&spare[GROUP_BYTES - 2 * count..]);
    }
    Some(left)
}

/// Decodes a stream symbol after symbol, in as many calls as the caller likes.
///
/// Total: any bytes decode to any number of symbols, each of them one that has slots. Bytes past the end, of
/// states and of words, read as zero.
#[derive(Clone, Debug)]
pub(crate) struct Decoder<'a> {
    slots: &'a [u32; SLOTS],
    states: [u32; MAX_LANES],
    lanes: usize,
    /// Lane of the next symbol, modulo the largest number of lanes.
    next: usize,
    words: &'a [u8],
    /// Bytes of `words` taken, which may exceed those there are.
    taken: usize,
}

impl<'a> Decoder<'a> {
    /// A decoder at the first symbol of the stream `bytes`, with the table that filled `slots`. `lanes_log2`
    /// above 5 counts as 5.
    pub(crate) fn new(bytes: &'a [u8], slots: &'a [u32; SLOTS], lanes_log2: u32) -> Self {
        let lanes = lanes(lanes_log2);
        let mut states = [LOWER; MAX_LANES];
        for (lane, state) in states[..lanes].iter_mut().enumerate() {
            *state = load_padded(bytes, 4 * lane) as u32;
        }
        let words = bytes.get(4 * lanes..).unwrap_or_default();
        // States cut short leave bytes missing, which an empty sequence of words would not tell.
        let taken = (4 * lanes).saturating_sub(bytes.len());
        Decoder { slots, states, lanes, next: 0, words, taken }
    }

    /// Decodes the next `out.len()` symbols.
    pub(crate) fn decode_into(&mut self, out: &mut [u8]) {
        let lead = (self.next.wrapping_neg() % GROUP).min(out.len());
        let (lead, rest) = out.split_at_mut(lead);
        lead.iter_mut().for_each(|symbol| *symbol = self.next());
        let (groups, tail) = rest.as_chunks_mut();
        match self.lanes {
            1 => self.groups::<1, 1>(groups),
            2 => self.groups::<2, 1>(groups),
            4 => self.groups::<4, 1>(groups),
            _ => self.groups::<8, 4>(groups),
        }
        tail.iter_mut().for_each(|symbol| *symbol = self.next());
    }

    /// Decodes one symbol.
    pub(crate) fn next(&mut self) -> u8 {
        let state = &mut self.states[self.next & (self.lanes - 1)];
        let mut words = 0;
        let window = &mut [0; GROUP_BYTES];
        let symbol = step(self.slots, state, window_at(self.words, self.taken, window), &mut words);
        self.taken = self.taken.saturating_add(2 * words);
        self.next = (self.next + 1) % MAX_LANES;
        symbol
    }

    /// Whether everything decoded so far is a whole, undamaged stream: every lane has come back to the state
    /// that encoding began with, and every word has been taken. Finds most damage, not all.
    #[cfg(test)]
    pub(crate) fn is_intact(&self) -> bool {
        self.taken == self.words.len() && self.states == [LOWER; MAX_LANES]
    }

    /// Decodes groups of eight symbols, the first of which belongs to a lane that is a multiple of eight, or
    /// to the first of less than eight lanes. `L` lanes, or a power of two up to `SETS` of sets of `L`.
    fn groups<const L: usize, const SETS: usize>(&mut self, groups: &mut [[u8; GROUP]]) {
        let Decoder { slots, words, mut taken, .. } = *self;
        let mut sets = [[0; L]; SETS];
        sets.as_flattened_mut().copy_from_slice(&self.states[..L * SETS]);
        let first = self.next / GROUP;
        let mask = self.lanes.div_ceil(L) - 1;
        for (index, group) in groups.iter_mut().enumerate() {
            let states = &mut sets[((first + index) & mask) % SETS];
            let mut spare = [0; GROUP_BYTES];
            let window = window_at(words, taken, &mut spare);
            let mut count = 0;
            for (at, symbol) in group.iter_mut().enumerate() {
                *symbol = step(slots, &mut states[at % L], window, &mut count);
            }
            taken = taken.saturating_add(2 * count);
        }
        self.states[..L * SETS].copy_from_slice(sets.as_flattened());
        self.taken = taken;
        self.next = (self.next + groups.len() * GROUP) % MAX_LANES;
    }
}

/// The bytes of `words` that a group may take, from `taken` on. `spare`, all zeros, serves near their end.
#[inline(always)]
fn window_at<'w>(words: &'w [u8], taken: usize, spare: &'w mut [u8; GROUP_BYTES]) -> &'w [u8; GROUP_BYTES] {
    let rest = words.get(taken..).unwrap_or_default();
    match rest.first_chunk() {
        Some(window) => window,
        None => {
            spare[..rest.len()].copy_from_slice(rest);
            spare
        }
    }
}

/// Decodes a symbol from `state`, which takes the word of the window at `count` if it needs one.
#[inline(always)]
fn step(slots: &[u32; SLOTS], state: &mut u32, window: &[u8; GROUP_BYTES], count: &mut usize) -> u8 {
    let slot = slots[*state as usize % SLOTS];
    // At most 2^12·(2^20 − 1) + 2^12 − 1: no state overflows, renormalised or not.
    let x = ((slot >> 20) + 1) * (*state >> SCALE_BITS) + (slot >> 8 & 0xfff);
    let at = *count % GROUP;
    let word = u16::from_le_bytes([window[2 * at], window[2 * at + 1]]);
    let short = x < LOWER;
    *state = select_unpredictable(short, x << 16 | u32::from(word), x);
    *count += usize::from(short);
    slot as u8
}

#[cfg(test)]
mod tests {
    extern crate std;
    use proptest::prelude::*;
    use std::boxed::Box;
    use std::vec;
    use std::vec::Vec;

    use super::*;

    fn counts(symbols: &[u8]) -> [u32; MAX_ALPHABET] {
        let mut counts = [0; MAX_ALPHABET];
        symbols.iter().for_each(|&s| counts[usize::from(s)] += 1);
        counts
    }

    fn lookup(table: &Table) -> Box<[u32; SLOTS]> {
        let mut slots = Box::new([u32::MAX; SLOTS]);
        table.fill_lookup(&mut slots);
        slots
    }

    fn encoded(symbols: &[u8], table: &Table, lanes_log2: u32) -> Vec<u8> {
        let mut out = vec![0xa5; 2 * symbols.len() + 128];
        let len = encode(symbols, table, lanes_log2, &mut out).unwrap();
        out.truncate(len);
        out
    }

    /// `n` symbols of the stream, and whether it was intact.
    fn decoded(bytes: &[u8], table: &Table, lanes_log2: u32, n: usize) -> (Vec<u8>, bool) {
        let slots = lookup(table);
        let mut decoder = Decoder::new(bytes, &slots, lanes_log2);
        let mut symbols = vec![0xa5; n];
        decoder.decode_into(&mut symbols);
        (symbols, decoder.is_intact())
    }

    fn written(table: &Table, alphabet: usize) -> Vec<u8> {
        let mut out = vec![0xa5; 1000];
        let mut writer = BitWriter::new(&mut out);
        table.write(&mut writer, alphabet);
        assert_eq!(writer.bits(), table.table_bits(alphabet));
        let len = writer.finish().unwrap();
        out.truncate(len);
        out
    }

    /// The pseudo-code of the module, word by word.
    fn naive_encode(symbols: &[u8], table: &Table, lanes: usize) -> Vec<u8> {
        let (mut states, mut words) = (vec![1_u64 << 16; lanes], Vec::new());
        for (i, &symbol) in symbols.iter().enumerate().rev() {
            let f = u64::from(table.freqs[usize::from(symbol)]);
            let c: u64 = table.freqs[..usize::from(symbol)].iter().copied().map(u64::from).sum();
            let x = &mut states[i % lanes];
            if *x >= f << 20 {
                words.push(*x as u16);
                *x >>= 16;
            }
            *x = ((*x / f) << 12) + c + *x % f;
        }
        let words = words.into_iter().rev().flat_map(u16::to_le_bytes);
        states.into_iter().flat_map(|x| (x as u32).to_le_bytes()).chain(words).collect()
    }

    fn naive_decode(bytes: &[u8], table: &Table, lanes: usize, n: usize) -> Vec<u8> {
        let byte = |at: usize| bytes.get(at).copied().map_or(0, u32::from);
        let word = |at: usize| byte(at) | byte(at + 1) << 8;
        let mut states: Vec<u32> = (0..lanes).map(|l| word(4 * l) | word(4 * l + 2) << 16).collect();
        let mut at = 4 * lanes;
        let mut symbol_at = |i: usize| {
            let x = &mut states[i % lanes];
            let (mut c, mut symbol) = (0, 0);
            while *x & 0xfff >= c + u32::from(table.freqs[symbol]) {
                c += u32::from(table.freqs[symbol]);
                symbol += 1;
            }
            *x = u32::from(table.freqs[symbol]) * (*x >> 12) + (*x & 0xfff) - c;
            if *x < 1 << 16 {
                *x = *x << 16 | word(at);
                at += 2;
            }
            symbol as u8
        };
        (0..n).map(&mut symbol_at).collect()
    }

    /// A generator of skewed symbols: the product of two uniform numbers.
    fn skewed(n: usize, alphabet: u64, seed: u64) -> Vec<u8> {
        let mut x = seed | 1;
        let mut uniform = move || {
            x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            x >> 33
        };
        (0..n).map(|_| (uniform() % (uniform() % alphabet + 1)) as u8).collect()
    }

    fn entropy_bits(counts: &[u32]) -> f64 {
        let total: f64 = counts.iter().copied().map(f64::from).sum();
        counts.iter().filter(|c| **c > 0).map(|&c| f64::from(c) * (total / f64::from(c)).log2()).sum()
    }

    fn exact_cost(freqs: &[u16], counts: &[u32]) -> f64 {
        let cost =
            |(&f, &c): (&u16, &u32)| if c == 0 { 0.0 } else { f64::from(c) * (12.0 - f64::from(f).log2()) };
        freqs.iter().zip(counts).map(cost).sum()
    }

    fn histogram() -> impl Strategy<Value = Vec<u32>> {
        let count = prop_oneof![3 => Just(0_u32), 3 => 1_u32..4, 3 => 0_u32..1000, 1 => any::<u32>()];
        prop::collection::vec(count, 1..=MAX_ALPHABET)
    }

    const LENGTHS: [usize; 22] =
        [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257, 3001];

    #[test]
    fn bytes_are_those_of_the_definition() {
        for n in LENGTHS {
            for alphabet in [1, 2, 3, 15, 255, 256] {
                let symbols = skewed(n, alphabet, n as u64);
                let table = Table::from_counts(&counts(&symbols));
                for lanes_log2 in 0..=MAX_LANES_LOG2 {
                    let bytes = encoded(&symbols, &table, lanes_log2);
                    assert_eq!(bytes, naive_encode(&symbols, &table, 1 << lanes_log2));
                    assert_eq!(decoded(&bytes, &table, lanes_log2, n), (symbols.clone(), true));
                }
            }
        }
    }

    #[test]
    fn a_small_stream_has_exactly_these_bytes() {
        let table = Table::from_counts(&[6, 2]);
        assert_eq!(table.freqs[..2], [3072, 1024]);
        // By hand: x = 2^16; symbol 1 (f = 1024, c = 3072): 64·4096 + 3072 = 265216; symbol 0 (f = 3072, c =
        // 0): 86·4096 + 1024 = 353280.
        let bytes = encoded(&[0, 1], &table, 0);
        assert_eq!(bytes, 353_280_u32.to_le_bytes());
        assert_eq!(decoded(&bytes, &table, 0, 2), (vec![0, 1], true));
    }

    #[test]
    fn the_smallest_buffer_is_enough_and_one_byte_less_is_not() {
        for n in [0, 1, 2, 5, 33, 600] {
            let symbols = skewed(n, 100, 3);
            let table = Table::from_counts(&counts(&symbols));
            for lanes_log2 in 0..=MAX_LANES_LOG2 {
                let bytes = encoded(&symbols, &table, lanes_log2);
                let mut out = vec![0; bytes.len()];
                assert_eq!(encode(&symbols, &table, lanes_log2, &mut out), Some(bytes.len()));
                assert_eq!(out, bytes);
                for room in 0..bytes.len() {
                    assert_eq!(encode(&symbols, &table, lanes_log2, &mut out[..room]), None);
                }
            }
        }
    }

    #[test]
    fn a_message_of_one_symbol_is_states_only() {
        for lanes_log2 in 0..=MAX_LANES_LOG2 {
            let symbols = [7; 1000];
            let table = Table::from_counts(&counts(&symbols));
            assert_eq!((table.freqs[7], table.cost_bits(&counts(&symbols))), (4096, 0));
            let bytes = encoded(&symbols, &table, lanes_log2);
            assert_eq!(bytes, LOWER.to_le_bytes().repeat(1 << lanes_log2));
            assert_eq!(decoded(&bytes, &table, lanes_log2, 1000), (symbols.to_vec(), true));
        }
    }

    #[test]
    fn an_empty_message_is_initial_states() {
        for counts in [&[][..], &[0; 5], &[0; 256]] {
            let table = Table::from_counts(counts);
            assert_eq!(table.freqs[0], 4096);
            let bytes = encoded(&[], &table, 2);
            assert_eq!(bytes, LOWER.to_le_bytes().repeat(4));
            assert_eq!(decoded(&bytes, &table, 2, 0), (vec![], true));
        }
    }

    #[test]
    fn a_symbol_without_slots_is_an_error() {
        let table = Table::from_counts(&[3, 0, 2]);
        for symbols in [&[1][..], &[0, 2, 1, 0], &[200; 100]] {
            assert_eq!(encode(symbols, &table, 2, &mut [0; 500]), None);
        }
    }

    #[test]
    fn quotients_are_exact_for_every_frequency() {
        for f in 1..=SLOTS as u16 {
            let Entry { reciprocal, packed } = Entry::new(f, 0);
            let f = u64::from(f);
            let check = |x: u64| {
                let product = (x << 32) + x * u64::from(reciprocal);
                assert_eq!(product.wrapping_shr(packed >> 12), x / f, "{x} / {f}");
            };
            let top = f << 20;
            (0..200).for_each(|i| check(top - 1 - i % f));
            // Just below and at multiples of f, where a reciprocal that is off shows first.
            (1..200).map(|i| i * (top / f / 200) * f).for_each(|x| [x, x - 1].into_iter().for_each(check));
        }
    }

    #[test]
    fn logarithms_are_within_their_bound() {
        for f in 1..=SLOTS as u16 {
            let error = f64::from(f).log2() - f64::from(log2_q16(f)) / 65536.0;
            assert!((-1e-9..1.0 / 65536.0 + 1e-9).contains(&error), "{f}: {error}");
        }
    }

    #[test]
    fn streams_are_as_long_as_their_cost_says() {
        for (n, alphabet) in [(100, 3), (5000, 15), (20_000, 255), (200_000, 31)] {
            let symbols = skewed(n, alphabet, 11);
            let counts = counts(&symbols);
            let table = Table::from_counts(&counts);
            let cost = table.cost_bits(&counts) as f64;
            for lanes_log2 in 0..=MAX_LANES_LOG2 {
                let lanes = f64::from(1 << lanes_log2);
                let bits = encoded(&symbols, &table, lanes_log2).len() as f64 * 8.0;
                assert!(bits >= 0.999 * cost + 16.0 * lanes - 1.0, "{n} {alphabet} {lanes} {cost} {bits}");
                assert!(bits <= 1.001 * cost + 32.0 * lanes + 1.0, "{n} {alphabet} {lanes} {cost} {bits}");
            }
        }
    }

    #[test]
    fn tables_reach_the_entropy_of_skewed_symbols() {
        // Two-sided geometric levels, the shape of quantised gradients.
        for (alphabet, ratio, limit) in
            [(3, 0.1, 1.0001), (15, 0.5, 1.0002), (31, 0.8, 1.0003), (255, 0.95, 1.002)]
        {
            let weight = |s: i32| 1e9 * f64::powi(ratio, (s - alphabet / 2).abs());
            let counts: Vec<u32> = (0..alphabet).map(|s| (weight(s) / 20.0) as u32 + 1).collect();
            let table = Table::from_counts(&counts);
            let excess = table.cost_bits(&counts) as f64 / entropy_bits(&counts);
            assert!((0.999_999..limit).contains(&excess), "{alphabet} symbols: {excess}");
        }
    }

    #[test]
    fn no_single_exchange_of_slots_makes_a_table_much_above() {
        for seed in 0..6 {
            let counts = counts(&skewed(3000, 40 + 10 * seed, seed));
            let table = Table::from_counts(&counts);
            let before = exact_cost(&table.freqs, &counts);
            for to in 0..256 {
                for from in (0..256).filter(|&from| from != to && table.freqs[from] > 1 && counts[to] > 0) {
                    let mut freqs = table.freqs;
                    freqs[to] += 1;
                    freqs[from] -= 1;
                    assert!(exact_cost(&freqs, &counts) > before * (1.0 - 1e-6));
                }
            }
        }
    }

    #[test]
    fn most_damage_is_noticed() {
        let symbols = skewed(700, 15, 5);
        let table = Table::from_counts(&counts(&symbols));
        for lanes_log2 in [0, 2, 5] {
            let bytes = encoded(&symbols, &table, lanes_log2);
            for len in 0..bytes.len() {
                assert!(!decoded(&bytes[..len], &table, lanes_log2, 700).1, "cut to {len} bytes");
            }
            let flips = (0..8 * bytes.len()).filter(|bit| {
                let mut bytes = bytes.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                decoded(&bytes, &table, lanes_log2, 700).1
            });
            assert!(flips.count() * 1000 < 8 * bytes.len());
            let longer = [&bytes[..], &[0]].concat();
            assert!(!decoded(&longer, &table, lanes_log2, 700).1);
            assert!(!decoded(&[&longer[..], &[0]].concat(), &table, lanes_log2, 700).1);
        }
    }

    #[test]
    fn states_cut_off_an_empty_message_are_noticed() {
        let table = Table::from_counts(&[1, 1]);
        let bytes = encoded(&[], &table, 5);
        for len in 0..bytes.len() {
            assert!(!decoded(&bytes[..len], &table, 5, 0).1);
        }
    }

    #[test]
    fn tables_have_these_sizes() {
        let bits = |counts: &[u32]| Table::from_counts(counts).table_bits(counts.len());
        assert_eq!(bits(&[1]), 0);
        assert_eq!(bits(&[0, 1]), 3 + 1);
        // A class of 12 after 1: gamma(23), and 11 digits; the other symbol takes what is left.
        assert_eq!(bits(&[1, 1]), 9 + 11);
        assert_eq!(bits(&[1; 256]), 7 + 4 + 254 * (1 + 4));
        let mut sparse = [0; 256];
        (sparse[3], sparse[200]) = (1, 1);
        // Two runs of absent symbols, two jumps of the class up to 12 and one down, two times 11 digits.
        assert_eq!(bits(&sparse), (3 + 3) + (7 + 11) + (9 + 15) + (7 + 11));
    }

    #[test]
    fn a_small_table_has_exactly_these_bytes() {
        // Class 12 after 1: gamma(1 + 2·11) is 0000 1 1110, first bit first; then 3072 - 2048 in 11 bits.
        assert_eq!(written(&Table::from_counts(&[6, 2]), 2), [0b1111_0000, 0, 0b1000]);
    }

    #[test]
    fn a_table_that_is_none_is_rejected() {
        let read = |bytes: &[u8], alphabet| Table::read(&mut BitReader::new(bytes), alphabet);
        assert_eq!(read(&[], 0), None);
        assert_eq!(read(&[0xff; 100], 257), None);
        assert_eq!(read(&[], 1), Some(Table::from_counts(&[1])));
        assert_eq!(read(&[], 2), None);
        assert_eq!(read(&[0; 100], 2), None);
        // Class 0, then a run of three absent symbols, in an alphabet of four.
        let (mut bytes, run) = ([0; 8], 4);
        let mut writer = BitWriter::new(&mut bytes);
        put_gamma(&mut |value, width| writer.put(value, width), 1 + zigzag(-1));
        put_gamma(&mut |value, width| writer.put(value, width), run);
        writer.finish().unwrap();
        assert_eq!(read(&bytes, 4), None);
        assert_eq!(read(&bytes, 5), Some(Table::from_counts(&[0, 0, 0, 0, 1])));
    }

    #[test]
    fn every_table_of_two_bytes_has_one_spelling() {
        for word in 0..=u16::MAX {
            for alphabet in 1..6 {
                let mut bytes = [0; 8];
                bytes[..2].copy_from_slice(&word.to_le_bytes());
                let mut reader = BitReader::new(&bytes);
                let Some(table) = Table::read(&mut reader, alphabet) else { continue };
                assert_eq!(table.freqs.iter().copied().map(usize::from).sum::<usize>(), SLOTS);
                assert_eq!(reader.position(), table.table_bits(alphabet));
                let again = written(&table, alphabet);
                let bits = |bytes: &[u8]| load_padded(bytes, 0) & ((1 << reader.position()) - 1);
                assert_eq!(bits(&bytes), bits(&again));
            }
        }
    }

    #[test]
    fn the_number_of_lanes_follows_the_length() {
        let expected = [(0, 0), (511, 0), (512, 2), (16383, 2), (16384, 5), (usize::MAX, 5)];
        expected.iter().for_each(|&(n, log2)| assert_eq!(lanes_log2_for(n), log2));
    }

    proptest! {
        #[test]
        fn tables_know_exactly_the_symbols_that_occur(counts in histogram()) {
            let table = Table::from_counts(&counts);
            prop_assert_eq!(table.freqs.iter().copied().map(usize::from).sum::<usize>(), SLOTS);
            if counts.iter().any(|count| *count > 0) {
                for (symbol, &f) in table.freqs.iter().enumerate() {
                    prop_assert_eq!(f > 0, counts.get(symbol).is_some_and(|count| *count > 0));
                }
            }
        }

        #[test]
        fn costs_are_within_their_bound(counts in histogram()) {
            let table = Table::from_counts(&counts);
            let total: f64 = counts.iter().copied().map(f64::from).sum();
            let (cost, exact) = (table.cost_bits(&counts) as f64, exact_cost(&table.freqs, &counts));
            prop_assert!(cost > exact * (1.0 - 1e-12) - 1.0 && cost <= exact * (1.0 + 1e-12) + total / 65536.0);
        }

        #[test]
        fn tables_survive_the_round_trip(counts in histogram(), more in 0_usize..20) {
            let table = Table::from_counts(&counts);
            let alphabet = (counts.len() + more).min(MAX_ALPHABET);
            let bytes = written(&table, alphabet);
            let mut reader = BitReader::new(&bytes);
            prop_assert_eq!(Table::read(&mut reader, alphabet), Some(table.clone()));
            prop_assert_eq!(reader.position(), table.table_bits(alphabet));
            for len in 0..bytes.len() {
                prop_assert_eq!(Table::read(&mut BitReader::new(&bytes[..len]), alphabet), None);
            }
        }

        #[test]
        fn any_bytes_are_a_sound_table_or_none(
            bytes in prop::collection::vec(any::<u8>(), 0..60),
            alphabet in 0_usize..300,
        ) {
            if let Some(table) = Table::read(&mut BitReader::new(&bytes), alphabet) {
                prop_assert_eq!(table.freqs.iter().copied().map(usize::from).sum::<usize>(), SLOTS);
                prop_assert!(table.freqs[alphabet..].iter().all(|&f| f == 0));
                prop_assert!(lookup(&table).iter().all(|&slot| table.freqs[(slot & 0xff) as usize] > 0));
            }
        }

        #[test]
        fn messages_survive_the_round_trip_in_blocks_of_any_size(
            n in prop::sample::select(&LENGTHS[..]),
            alphabet in 1_u64..=256,
            seed in any::<u64>(),
            lanes_log2 in 0..=MAX_LANES_LOG2,
            block in 1_usize..70,
        ) {
            let symbols = skewed(n, alphabet, seed);
            let table = Table::from_counts(&counts(&symbols));
            let bytes = encoded(&symbols, &table, lanes_log2);
            let mut clean = vec![0; 2 * n + 128];
            prop_assert_eq!(encode(&symbols, &table, lanes_log2, &mut clean), Some(bytes.len()));
            prop_assert_eq!(&clean[..bytes.len()], &bytes[..]);
            let slots = lookup(&table);
            let mut decoder = Decoder::new(&bytes, &slots, lanes_log2);
            let mut out = vec![0xa5; n];
            out.chunks_mut(block).for_each(|block| decoder.decode_into(block));
            prop_assert_eq!(out, symbols);
            prop_assert!(decoder.is_intact());
        }

        #[test]
        fn any_bytes_decode_as_the_definition_says(
            bytes in prop::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..300),
            counts in histogram(),
            lanes_log2 in 0..=MAX_LANES_LOG2,
            n in 0_usize..300,
        ) {
            let table = Table::from_counts(&counts);
            let (symbols, _) = decoded(&bytes, &table, lanes_log2, n);
            prop_assert_eq!(symbols, naive_decode(&bytes, &table, 1 << lanes_log2, n));
        }
    }
}
