//! CRC-32C by instruction.

use crate::wire::checksum::POLYNOMIAL;
use core::arch::x86_64::*;

/// CRC-32C by its own instruction, for machines that the caller knows to have SSE 4.2.
pub(in crate::kernels) fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    // SAFETY: every `Isa` above the baseline has SSE 4.2.
    !unsafe { over_bytes(!crc, bytes) }
}

/// CRC-32C by products of polynomials where there are many bytes, for machines that the caller knows to have VPCLMULQDQ,
/// AVX-512 and SSE 4.2.
pub(in crate::kernels) fn crc32c_by_products(crc: u32, bytes: &[u8]) -> u32 {
    if bytes.len() < LEAST_BYTES {
        return crc32c(crc, bytes);
    }
    // SAFETY: the caller has detected what is asked for.
    !unsafe { over_products(!crc, bytes) }
}

/// Where products begin to be faster.
const LEAST_BYTES: usize = 1024;

/// Bytes that are folded onto as many that follow: four vectors.
const FOLD: usize = 256;

/// x^n modulo the polynomial, bits reversed, in the position in which a carry-less product of reversed factors wants it.
const fn power(n: usize) -> i64 {
    let mut state = 1u32 << 31;
    let mut i = 0;
    while i < n {
        state = (state >> 1) ^ (POLYNOMIAL & (state & 1).wrapping_neg());
        i += 1;
    }
    (state as i64) << 1
}

/// Sixteen bytes weigh as much as these products of their halves do where the next fold begins.
///
/// # Source
/// Gopal et al.: Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction (Intel, 2009).
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.2")]
fn over_products(state: u32, bytes: &[u8]) -> u32 {
    let (folds, tail) = bytes.as_chunks::<FOLD>();
    let Some((first, folds)) = folds.split_first() else { return over_bytes(state, bytes) };
    let (low, high) = const { (power(8 * FOLD + 32), power(8 * FOLD - 32)) };
    let weights = _mm512_setr_epi64(low, high, low, high, low, high, low, high);
    let load = |fold: &[u8; FOLD]| {
        // SAFETY: the array holds four vectors.
        [0, 64, 128, 192].map(|at| unsafe { _mm512_loadu_si512(fold.as_ptr().add(at).cast()) })
    };
    let mut sums = load(first);
    sums[0] = _mm512_xor_si512(sums[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(state as i32)));
    for fold in folds {
        for (sum, next) in sums.iter_mut().zip(load(fold)) {
            let low = _mm512_clmulepi64_epi128::<0x00>(*sum, weights);
            let high = _mm512_clmulepi64_epi128::<0x11>(*sum, weights);
            *sum = _mm512_xor_si512(_mm512_xor_si512(low, high), next);
        }
    }
    let mut rest = [0u8; FOLD];
    for (rest, sum) in rest.as_chunks_mut::<64>().0.iter_mut().zip(sums) {
        // SAFETY: the array holds a vector.
        unsafe { _mm512_storeu_si512(rest.as_mut_ptr().cast(), sum) };
    }
    over_bytes(over_bytes(0, &rest), tail)
}

/// Bytes of one of three neighbouring runs whose checksums are computed side by side: the instruction has three cycles
/// of latency and one of throughput.
const RUN: usize = 2048;

/// A state moved over [`RUN`] zero bytes, as the sum of what its four bytes contribute.
const OVER_RUN: [[u32; 256]; 4] = {
    // The move is linear, so the images of the 32 bits say all.
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

/// The state after `bytes`.
#[target_feature(enable = "sse4.2")]
fn over_bytes(state: u32, bytes: &[u8]) -> u32 {
    let mut state = u64::from(state);
    let (triples, tail) = bytes.as_chunks::<{ 3 * RUN }>();
    for triple in triples {
        let (words, _) = triple.as_chunks::<8>();
        let (a, rest) = words.split_at(RUN / 8);
        let (b, c) = rest.split_at(RUN / 8);
        let (mut second, mut third) = (0, 0);
        for ((a, b), c) in a.iter().zip(b).zip(c) {
            state = _mm_crc32_u64(state, u64::from_le_bytes(*a));
            second = _mm_crc32_u64(second, u64::from_le_bytes(*b));
            third = _mm_crc32_u64(third, u64::from_le_bytes(*c));
        }
        state = over_run(over_run(state) ^ second) ^ third;
    }
    let (words, tail) = tail.as_chunks::<8>();
    let state = words.iter().fold(state, |state, &word| _mm_crc32_u64(state, u64::from_le_bytes(word)));
    tail.iter().fold(state as u32, |state, &byte| _mm_crc32_u8(state, byte))
}
