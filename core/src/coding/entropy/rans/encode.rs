//! From symbols to a stream.

use super::{GROUP, GROUP_BYTES, Table, lanes};
use crate::kernels::scalar::rans::{Entries, Entry, LOWER, Lanes, MAX_LANES, PRESENT};
use crate::kernels::{self, Isa};
use core::hint::select_unpredictable;

/// The quotient x / f is x·m >> k with k = 32 + ceil(log2(f)) and m = ceil(2^k / f), which has 33 bits, the
/// highest one always set. With e = m·f − 2^k it is exact if x·e < 2^k. As e < f, and x < f·2^20 once
/// renormalised, x·e < f²·2^20 <= 2^k because f <= 2^12. Then also x·m = (x·2^k + x·e) / f < (x + 1)·2^k / f
/// <= 2^(k + 20) <= 2^64.
pub(super) fn entry(f: u16, start: u32) -> Entry {
    let f = u64::from(f);
    let log = f.next_power_of_two().trailing_zeros();
    let reciprocal = (((1 << log) - f) << 32).div_ceil(f) as u32;
    [reciprocal, (f as u32 - 1) << 20 | (32 + log) << 12 | start]
}

/// Fills the entries of all symbols. It fills them in place because 2 KiB returned by value would exist
/// twice.
pub(crate) fn fill_entries(entries: &mut Entries, table: &Table) {
    let mut start = 0;
    for (slot, &f) in entries.iter_mut().zip(&table.freqs) {
        *slot = if f > 0 { entry(f, start) } else { [0, 0] };
        start += u32::from(f);
    }
}

/// Encodes a stream from its last symbols to its first.
pub(crate) struct Encoder<'o> {
    isa: Isa,
    lanes: usize,
    pub(super) states: Lanes,
    out: &'o mut [u8],
    /// Bytes of `out` before the words so far. The stream is written from the end, then moved.
    free: usize,
}

impl<'o> Encoder<'o> {
    /// An encoder of a stream of at most `n` symbols, which takes 4 bytes a lane and at most 2 a symbol. A
    /// `lanes_log2` above 5 counts as 5. The content of `out` after the stream is unspecified.
    pub(crate) fn new(isa: Isa, n: usize, lanes_log2: u32, out: &'o mut [u8]) -> Self {
        let lanes = lanes(lanes_log2);
        // This keeps the distance of the later move as short as the bound allows.
        let free = n.saturating_mul(2).saturating_add(4 * lanes).min(out.len());
        Encoder { isa, lanes, states: [LOWER; MAX_LANES], out: &mut out[..free], free }
    }

    /// Puts symbols before those put so far; the first of them belongs to the first lane.
    ///
    /// # Errors
    /// `None` if the stream does not fit, or if a symbol has no entry.
    pub(crate) fn prepend(&mut self, symbols: &[u8], entries: &Entries) -> Option<()> {
        let out = &mut self.out[..self.free];
        let states = &mut self.states;
        self.free = match self.lanes {
            1 => encode_groups::<1, 1>(symbols, entries, states, 1, out)?,
            2 => encode_groups::<2, 1>(symbols, entries, states, 1, out)?,
            4 => encode_groups::<4, 1>(symbols, entries, states, 1, out)?,
            MAX_LANES => encode_rounds(self.isa, symbols, entries, states, out)?,
            lanes => encode_groups::<8, 4>(symbols, entries, states, lanes / 8, out)?,
        };
        Some(())
    }

    /// Puts the states before the words and moves the stream to the front; returns its bytes, or `None` if it
    /// does not fit.
    pub(crate) fn finish(self) -> Option<usize> {
        let header = self.free.checked_sub(4 * self.lanes)?;
        let states = self.out[header..].as_chunks_mut().0.iter_mut().zip(&self.states[..self.lanes]);
        states.for_each(|(bytes, state)| *bytes = state.to_le_bytes());
        self.out.copy_within(header.., 0);
        Some(self.out.len() - header)
    }
}

/// Encodes all symbols in the largest number of lanes, last to first. Encodes whole rounds by vectors, as
/// long as there are any and there is room to spare.
fn encode_rounds(
    isa: Isa,
    symbols: &[u8],
    entries: &Entries,
    states: &mut Lanes,
    out: &mut [u8],
) -> Option<usize> {
    let (rounds, tail) = symbols.as_chunks();
    let mut free = encode_groups::<8, 4>(tail, entries, states, MAX_LANES / 8, out)?;
    let mut seen = PRESENT;
    let left = kernels::encode_rounds(isa, rounds, entries, states, &mut seen, out, &mut free);
    (seen & PRESENT != 0).then_some(())?;
    let rest = rounds[..left].as_flattened();
    encode_groups::<8, 4>(rest, entries, states, MAX_LANES / 8, &mut out[..free])
}

/// Encodes all symbols, last to first, into words that end with `out`; returns how many bytes before them are
/// free. The lanes are `sets`, a power of two up to `SETS`, times `L`.
fn encode_groups<const L: usize, const SETS: usize>(
    symbols: &[u8],
    entries: &Entries,
    lanes: &mut Lanes,
    sets: usize,
    out: &mut [u8],
) -> Option<usize> {
    let mut states = [[0; L]; SETS];
    states.as_flattened_mut().copy_from_slice(&lanes[..L * SETS]);
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

/// Encodes at most [`GROUP`] symbols, of which the first belongs to the first of the `states`, into words
/// that end with `out`; returns how many bytes before them are free. `seen` keeps [`PRESENT`] if every symbol
/// has slots.
#[inline(always)]
fn encode_group<const L: usize>(
    symbols: &[u8],
    entries: &Entries,
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
        let [reciprocal, packed] = entries[usize::from(symbol)];
        let x = states[at % L];
        // Stored in any case. If the word is not to be emitted, the next one overwrites it. So the hot loop
        // needs no branch. A branch could not be predicted.
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
