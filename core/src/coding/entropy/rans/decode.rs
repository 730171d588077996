//! From a stream to symbols.

use super::{GROUP, GROUP_BYTES, lanes};
use crate::bits::load_padded;
use crate::kernels::scalar::rans::{LOWER, Lanes, MAX_LANES, ROUND, SCALE_BITS, SLOTS};
use crate::kernels::{self, Isa};
use core::hint::select_unpredictable;

/// Decodes a stream symbol after symbol, in as many calls as the caller likes.
///
/// Total: any bytes decode to any number of symbols, each of which has slots. Bytes past the end, of states
/// and of words, read as zero.
#[derive(Clone, Debug)]
pub(crate) struct Decoder<'a> {
    isa: Isa,
    states: Lanes,
    lanes: usize,
    /// Lane of the next symbol, modulo the largest number of lanes.
    next: usize,
    words: &'a [u8],
    /// Bytes of `words` taken, which may exceed the length of `words`.
    taken: usize,
}

impl<'a> Decoder<'a> {
    /// A decoder at the first symbol of the stream `bytes`. `lanes_log2` above 5 counts as 5.
    pub(crate) fn new(isa: Isa, bytes: &'a [u8], lanes_log2: u32) -> Self {
        let lanes = lanes(lanes_log2);
        let mut states = [LOWER; MAX_LANES];
        for (lane, state) in states[..lanes].iter_mut().enumerate() {
            *state = load_padded(bytes, 4 * lane) as u32;
        }
        let words = bytes.get(4 * lanes..).unwrap_or_default();
        // If the states are cut short, their missing bytes count as taken: the empty sequence of words alone
        // would not show that they are missing.
        let taken = (4 * lanes).saturating_sub(bytes.len());
        Decoder { isa, states, lanes, next: 0, words, taken }
    }

    /// Decodes the next `out.len()` symbols with the table that filled `slots`.
    pub(crate) fn decode_into(&mut self, slots: &[u32; SLOTS], out: &mut [u8]) {
        let whole = if self.lanes == MAX_LANES { ROUND } else { GROUP };
        let lead = (self.next.wrapping_neg() % whole).min(out.len());
        let (lead, rest) = out.split_at_mut(lead);
        lead.iter_mut().for_each(|symbol| *symbol = self.next(slots));
        let rest = self.rounds(slots, rest);
        let (groups, tail) = rest.as_chunks_mut();
        match self.lanes {
            1 => self.groups::<1, 1>(slots, groups),
            2 => self.groups::<2, 1>(slots, groups),
            4 => self.groups::<4, 1>(slots, groups),
            _ => self.groups::<8, 4>(slots, groups),
        }
        tail.iter_mut().for_each(|symbol| *symbol = self.next(slots));
    }

    /// Decodes rounds by vectors, as long as there are rounds and the words cannot run out. Returns the part
    /// of `out` that is not decoded yet. The next symbol belongs to the first lane.
    fn rounds<'o>(&mut self, slots: &[u32; SLOTS], out: &'o mut [u8]) -> &'o mut [u8] {
        if self.lanes < MAX_LANES {
            return out;
        }
        let Decoder { isa, words, .. } = *self;
        let rounds = out.as_chunks_mut().0;
        let done = kernels::decode_rounds(isa, slots, &mut self.states, words, &mut self.taken, rounds);
        &mut out[done * ROUND..]
    }

    /// Decodes one symbol.
    fn next(&mut self, slots: &[u32; SLOTS]) -> u8 {
        let state = &mut self.states[self.next & (self.lanes - 1)];
        let mut words = 0;
        let window = &mut [0; GROUP_BYTES];
        let symbol = step(slots, state, window_at(self.words, self.taken, window), &mut words);
        self.taken = self.taken.saturating_add(2 * words);
        self.next = (self.next + 1) % MAX_LANES;
        symbol
    }

    /// Whether everything decoded so far is a whole, undamaged stream: every lane is back at the state in
    /// which encoding began, and every word has been taken. Finds most damage, not all.
    #[cfg(test)]
    pub(crate) fn is_intact(&self) -> bool {
        self.taken == self.words.len() && self.states == [LOWER; MAX_LANES]
    }

    /// Decodes groups of eight symbols. The first belongs to a lane that is a multiple of eight, or to the
    /// first lane if there are fewer than eight lanes. The number of lanes is `L` times a power of two, which
    /// is at most `SETS`.
    fn groups<const L: usize, const SETS: usize>(
        &mut self,
        slots: &[u32; SLOTS],
        groups: &mut [[u8; GROUP]],
    ) {
        let Decoder { words, mut taken, .. } = *self;
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

/// The bytes of `words` that a group may take, from `taken` on. Near their end it copies the remaining bytes
/// to `spare`, which is all zeros.
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
