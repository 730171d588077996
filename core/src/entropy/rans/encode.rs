//! From symbols to a stream.

use super::{GROUP, GROUP_BYTES, LOWER, Lanes, MAX_ALPHABET, MAX_LANES, Table, lanes};
use crate::kernels::{self, Isa};
use core::hint::select_unpredictable;

/// What the encoder needs of a symbol, ready for its hot loop.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Entry {
    /// The low 32 bits of m, see [`Entry::new`].
    pub(crate) reciprocal: u32,
    /// From the top: f − 1 in 12 bits, two zeros, k in 6 bits, c in 12 bits.
    pub(crate) packed: u32,
}

/// The highest bit of k, which is set in every entry of a symbol with slots: 32 <= k <= 44.
const PRESENT: u32 = 1 << 17;

impl Entry {
    /// The quotient x / f is x·m >> k with k = 32 + ceil(log2(f)) and m = ceil(2^k / f), which has 33 bits,
    /// the highest one always set. With e = m·f − 2^k it is exact where x·e < 2^k; as e < f, and x < f·2^20
    /// once renormalised, x·e < f²·2^20 <= 2^k because f <= 2^12. Then also x·m = (x·2^k + x·e) / f <
    /// (x + 1)·2^k / f <= 2^(k + 20) <= 2^64.
    pub(super) fn new(f: u16, start: u32) -> Entry {
        let f = u64::from(f);
        let log = f.next_power_of_two().trailing_zeros();
        let reciprocal = (((1 << log) - f) << 32).div_ceil(f) as u32;
        Entry { reciprocal, packed: (f as u32 - 1) << 20 | (32 + log) << 12 | start }
    }

    /// Whether its symbol has no slots.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn is_absent(&self) -> bool {
        self.packed & PRESENT == 0
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
pub(crate) fn encode(
    isa: Isa,
    symbols: &[u8],
    table: &Table,
    lanes_log2: u32,
    out: &mut [u8],
) -> Option<usize> {
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
        MAX_LANES => encode_rounds(isa, symbols, &entries, &mut states, out)?,
        _ => encode_groups::<8, 4>(symbols, &entries, &mut states, lanes / 8, out)?,
    };
    let header = free.checked_sub(4 * lanes)?;
    for (bytes, state) in out[header..].as_chunks_mut().0.iter_mut().zip(&states[..lanes]) {
        *bytes = state.to_le_bytes();
    }
    out.copy_within(header.., 0);
    Some(room - header)
}

/// Encodes all symbols in as many lanes as there can be, last to first: whole rounds by vectors, as far as there are any
/// and as long as there is room to spare.
fn encode_rounds(
    isa: Isa,
    symbols: &[u8],
    entries: &[Entry; MAX_ALPHABET],
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
    entries: &[Entry; MAX_ALPHABET],
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
