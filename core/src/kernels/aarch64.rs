//! Loops that compilers do not vectorise, written out for AArch64: NEON, which every such machine has, and the CRC
//! instructions.

pub(super) mod quantize;

use super::scalar::{self, MAGNITUDE};
use super::{CANDIDATE_SLACK, Candidates};
use core::arch::aarch64::*;

/// CRC-32C by its own instruction, for machines that the caller knows to have it.
pub(super) fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    // SAFETY: `Isa::Neon` is named only where the machine has the CRC instructions.
    !unsafe { over_bytes(!crc, bytes) }
}

#[target_feature(enable = "crc")]
fn over_bytes(state: u32, bytes: &[u8]) -> u32 {
    let (words, tail) = bytes.as_chunks::<8>();
    let state = words.iter().fold(state, |state, &word| __crc32cd(state, u64::from_le_bytes(word)));
    tail.iter().fold(state, |state, &byte| __crc32cb(state, byte))
}

/// Elements that are compared together: four vectors.
const GROUP: usize = 16;
const _: () = assert!(GROUP <= CANDIDATE_SLACK);

/// [`super::keep_from`], whose room and lengths the caller has checked.
pub(super) fn keep_from(
    grad: &[f32],
    residual: Option<&mut [f32]>,
    first: u32,
    least: u32,
    candidates: &mut Candidates<'_>,
) -> u32 {
    // SAFETY: `Isa::Neon` is named only where the machine has it.
    unsafe { keep_from_neon(grad, residual, first, least, candidates) }
}

/// Compares sixteen at a time, and looks at them one by one where any is kept.
#[target_feature(enable = "neon")]
fn keep_from_neon(
    grad: &[f32],
    mut residual: Option<&mut [f32]>,
    first: u32,
    least: u32,
    candidates: &mut Candidates<'_>,
) -> u32 {
    let mut max = vdupq_n_u32(0);
    let (groups, tail) = grad.as_chunks::<GROUP>();
    let whole = grad.len() - tail.len();
    for (at, group) in (0..).step_by(GROUP).zip(groups) {
        let mut p = load(group);
        if let Some(residual) = &mut residual
            && let Some(residual) = residual[at..].first_chunk_mut()
        {
            let before = load(residual);
            p = core::array::from_fn(|i| vaddq_f32(before[i], p[i]));
            store(p, residual);
        }
        let [a, b, c, d] = p.map(|p| vandq_u32(vreinterpretq_u32_f32(p), vdupq_n_u32(MAGNITUDE)));
        let largest = vmaxq_u32(vmaxq_u32(a, b), vmaxq_u32(c, d));
        max = vmaxq_u32(max, largest);
        if vmaxvq_u32(largest) >= least {
            let mut values = [0.0; GROUP];
            store(p, &mut values);
            append(&values, first + at as u32, least, candidates);
        }
    }
    let residual = residual.map(|residual| &mut residual[whole..]);
    let tail_max = scalar::keep_from(tail, residual, first + whole as u32, least, candidates);
    vmaxvq_u32(max).max(tail_max)
}

/// Appends those of a group that are kept. Each is written, and overwritten by the next if it is not: a branch would be
/// mispredicted too often.
fn append(values: &[f32; GROUP], first: u32, least: u32, candidates: &mut Candidates<'_>) {
    for (index, value) in (first..).zip(values) {
        let bits = value.to_bits();
        candidates.indices[candidates.len] = index;
        candidates.values[candidates.len] = bits;
        candidates.len += usize::from(bits & MAGNITUDE >= least);
    }
}

#[target_feature(enable = "neon")]
fn load(values: &[f32; GROUP]) -> [float32x4_t; 4] {
    // SAFETY: the array holds four vectors.
    [0, 4, 8, 12].map(|at| unsafe { vld1q_f32(values.as_ptr().add(at)) })
}

#[target_feature(enable = "neon")]
fn store(vectors: [float32x4_t; 4], values: &mut [f32; GROUP]) {
    for (vector, out) in vectors.into_iter().zip(values.as_chunks_mut::<4>().0) {
        // SAFETY: the array holds a vector.
        unsafe { vst1q_f32(out.as_mut_ptr(), vector) }
    }
}
