//! The table of frequencies: the best table for given counts, its cost, and its spelling on the wire.

use crate::bits::{BitReader, BitWriter};
use crate::kernels::scalar::rans::{SCALE_BITS, SLOTS};
use crate::kernels::scalar::symbols::MAX_ALPHABET;

/// A frequency for every symbol. They always sum to [`SLOTS`], so every table can decode anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(super) freqs: [u16; MAX_ALPHABET],
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
        // Symbols whose share is below one slot get one slot, which leaves fewer slots to the others. This
        // repeats until all have a slot.
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
        // Each of the others gets its share rounded down, and one slot more if that saves more than a slot
        // does on average.
        for (f, &count) in used.iter_mut().zip(counts).filter(|(f, count)| **f == 0 && **count > 0) {
            let share = u64::from(count) * slots;
            *f = (share / total) as u16;
            *f += u16::from(share << GAIN_BITS > total * inverse_gain(*f));
        }
        correct_sum(used, counts);
        Table { freqs }
    }

    /// Bits that coding a message with these symbol counts takes: the sum of count·(12 − log2(f)), rounded
    /// down. A stream has 16 to 32 bits a lane more, give or take 0.1 % (see the tests).
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

    /// Bits that one occurrence of a symbol costs, in units of 2^-16, rounded up: 12 − log2(f); `None`
    /// without slots.
    pub(crate) fn cost_q16(&self, symbol: u8) -> Option<u32> {
        let f = self.freqs[usize::from(symbol)];
        (f > 0).then(|| (SCALE_BITS << 16) - log2_q16(f))
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
    /// remaining slots.
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

    /// Reads what [`write`](Self::write) wrote for the same `alphabet`. Returns `None` if the bits are not a
    /// table: its frequencies do not sum to [`SLOTS`], it names a symbol outside the alphabet, the alphabet
    /// does not hold 1 to 256 symbols, or the bytes end too early. A table has only one spelling.
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

    /// Fills the lookup table of [`Decoder`]: for every slot, frequency − 1 in the upper 12 bits, the slot's
    /// place among those of its symbol in the next 12, and the symbol in the lowest 8.
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

/// 2^10 / ln((f + 1) / f), within 0.2 %: when the frequency of a symbol grows from f to f + 1, a message
/// saves count / `inverse_gain(f)`, up to one factor for all symbols.
///
/// From the series 1 / ln(1 + 1/f) = f + 1/2 − 1/(12f + 6) + …
fn inverse_gain(f: u16) -> u64 {
    let f = u64::from(f);
    (f << GAIN_BITS) + (1 << (GAIN_BITS - 1)) - (1 << (GAIN_BITS - 1)) / (6 * f + 3)
}

/// Makes the frequencies of the symbols that occur sum to [`SLOTS`], one slot at a time, at the symbol that
/// saves most or costs least. Savings fall as a frequency grows, so these greedy steps keep an optimal table
/// optimal.
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
pub(super) fn log2_q16(f: u16) -> u32 {
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

pub(super) fn zigzag(d: i32) -> u32 {
    (d << 1 ^ d >> 31) as u32
}

fn unzigzag(z: u32) -> i32 {
    (z >> 1) as i32 ^ -((z & 1) as i32)
}

/// Elias's gamma code of `v`, at least 1 and below 2^16.
pub(super) fn put_gamma(put: &mut impl FnMut(u64, u32), v: u32) {
    let digits = v.ilog2();
    let low = v - (1 << digits);
    put(u64::from(low << 1 | 1) << digits, 2 * digits + 1);
}

/// One gamma code; `None` if it is above every value that a table needs.
fn take_gamma(reader: &mut BitReader<'_>) -> Option<u32> {
    let digits = reader.take_unary().filter(|digits| *digits <= 8)? as u32;
    Some(1 << digits | reader.take(digits) as u32)
}
