//! CRC-32C by an instruction that takes eight bytes, the same for all machines that have one.

use crate::kernels::fetch::fetch;
use crate::kernels::scalar::checksum::POLYNOMIAL;

/// Bytes of each of three neighbouring runs whose checksums are computed side by side, because the
/// instruction has three cycles of latency and one of throughput. Three runs are no more than a cast's block
/// of 2 KiB, which is summed up while it is in the first cache level; longer runs gain nothing.
const RUN: usize = 680;

/// Words of each of three runs after which the next [`LINES`] of the runs are fetched: a processor hardly
/// reads ahead by itself for three streams through the same kilobytes.
const STEP: usize = 5;
const LINES: usize = 2;
const LINE: usize = 64;

/// A state moved over [`RUN`] zero bytes, as the sum of what its four bytes contribute.
static OVER_RUN: [[u32; 256]; 4] = {
    // The move is linear, so the images of the 32 bits determine it.
    let mut images = [0u32; 32];
    let mut bit = 0;
    while bit < 32 {
        let mut state = 1u32 << bit;
        let mut steps = 0;
        while steps < RUN * 8 {
            state = (state >> 1) ^ (POLYNOMIAL & (state & 1).wrapping_neg());
            steps += 1;
        }
        images[bit] = state;
        bit += 1;
    }
    let mut table = [[0u32; 256]; 4];
    let mut i = 0;
    while i < 4 * 256 * 8 {
        let (byte, value, bit) = (i / 2048, i / 8 % 256, i % 8);
        if value >> bit & 1 == 1 {
            table[byte][value] ^= images[byte * 8 + bit];
        }
        i += 1;
    }
    table
};

fn over_run(state: u64) -> u64 {
    let bytes = (state as u32).to_le_bytes();
    let moved = OVER_RUN.iter().zip(bytes).fold(0, |sum, (table, byte)| sum ^ table[usize::from(byte)]);
    u64::from(moved)
}

/// The state after `bytes`, by the instructions for a word and for a byte.
#[inline(always)]
pub(in crate::kernels) fn over_runs(
    state: u32,
    bytes: &[u8],
    over_word: impl Fn(u64, u64) -> u64,
    over_byte: impl Fn(u32, u8) -> u32,
) -> u32 {
    let over = |state, word: &[u8; 8]| over_word(state, u64::from_le_bytes(*word));
    let mut state = u64::from(state);
    let (triples, tail) = bytes.as_chunks::<{ 3 * RUN }>();
    for (i, triple) in triples.iter().enumerate() {
        let ahead = triples.get(i + 1).unwrap_or(triple);
        let (words, _) = triple.as_chunks::<8>();
        let (a, rest) = words.split_at(RUN / 8);
        let (b, c) = rest.split_at(RUN / 8);
        let (mut second, mut third) = (0, 0);
        let steps = a.chunks_exact(STEP).zip(b.chunks_exact(STEP)).zip(c.chunks_exact(STEP));
        for (step, ((a, b), c)) in steps.enumerate() {
            for line in 0..LINES {
                fetch(ahead, (step * LINES + line) * LINE);
            }
            for ((a, b), c) in a.iter().zip(b).zip(c) {
                state = over(state, a);
                second = over(second, b);
                third = over(third, c);
            }
        }
        state = over_run(over_run(state) ^ second) ^ third;
    }
    let (words, tail) = tail.as_chunks::<8>();
    let state = words.iter().fold(state, over);
    tail.iter().fold(state as u32, |state, &byte| over_byte(state, byte))
}

const _: () = assert!(RUN.is_multiple_of(8 * STEP) && LINES * LINE * RUN / (8 * STEP) >= 3 * RUN);
