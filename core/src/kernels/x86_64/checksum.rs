//! CRC-32C by instruction.

use crate::kernels::scalar::checksum::POLYNOMIAL;
use crate::kernels::scalar::runs::over_runs;
use core::arch::x86_64::*;

/// CRC-32C by its own instruction, for machines that the caller knows to have SSE 4.2.
pub(in crate::kernels) fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    // SAFETY: every `Isa` above the baseline has SSE 4.2.
    !unsafe { over_bytes(!crc, bytes) }
}

/// CRC-32C by products of polynomials if there are many bytes, for machines that the caller knows to have
/// VPCLMULQDQ, AVX-512 and SSE 4.2.
pub(in crate::kernels) fn crc32c_by_products(crc: u32, bytes: &[u8]) -> u32 {
    if bytes.len() < LEAST_BYTES {
        return crc32c(crc, bytes);
    }
    // SAFETY: the caller has detected the required instructions.
    !unsafe { over_products(!crc, bytes) }
}

/// From this length on, products are faster.
const LEAST_BYTES: usize = 1024;

/// Bytes that are folded onto as many that follow: four vectors.
const FOLD: usize = 256;

/// x^n modulo the polynomial, bits reversed, in the position that a carry-less product of reversed factors
/// requires.
const fn power(n: usize) -> i64 {
    let mut state = 1u32 << 31;
    let mut i = 0;
    while i < n {
        state = (state >> 1) ^ (POLYNOMIAL & (state & 1).wrapping_neg());
        i += 1;
    }
    (state as i64) << 1
}

/// The state after `bytes`. Each step replaces sixteen bytes by products of their halves. Modulo the
/// polynomial, these count as much at the place where the next fold begins as the bytes did at their own.
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

/// The state after `bytes`.
#[target_feature(enable = "sse4.2")]
fn over_bytes(state: u32, bytes: &[u8]) -> u32 {
    over_runs(state, bytes, |state, word| _mm_crc32_u64(state, word), |state, byte| _mm_crc32_u8(state, byte))
}
