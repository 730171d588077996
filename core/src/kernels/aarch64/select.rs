//! Compares elements with a bound and keeps those that reach it. A table look-up moves the kept lanes
//! together.

use crate::kernels::scalar::floats::MAGNITUDE;
use crate::kernels::scalar::select as scalar;
use crate::kernels::scalar::select::{CANDIDATE_SLACK, Candidates, Sums};
use core::arch::aarch64::*;

const LANES: usize = 4;

/// Elements that are compared together: four vectors.
const GROUP: usize = 4 * LANES;
const _: () = assert!(GROUP <= CANDIDATE_SLACK);

/// For each mask of four lanes, the numbers of the bytes of its lanes, packed to the front.
static SIDE_BY_SIDE: [[u8; 16]; 16] = {
    let mut table = [[0; 16]; 16];
    let mut mask = 0;
    while mask < 16 {
        let (mut lane, mut at) = (0, 0);
        while lane < LANES {
            let mut byte = 0;
            while mask >> lane & 1 == 1 && byte < 4 {
                table[mask][at] = (4 * lane + byte) as u8;
                at += 1;
                byte += 1;
            }
            lane += 1;
        }
        mask += 1;
    }
    table
};

/// How many lanes are all ones, and how to move these lanes together.
#[derive(Clone, Copy)]
struct Kept {
    count: usize,
    places: uint8x16_t,
}

impl Kept {
    #[inline]
    #[target_feature(enable = "neon")]
    fn of(lanes: uint32x4_t) -> Self {
        // SAFETY: the array holds a vector.
        let bits = unsafe { vld1q_u32([1, 2, 4, 8].as_ptr()) };
        let mask = vaddvq_u32(vandq_u32(lanes, bits)) as usize;
        // SAFETY: the array holds a vector.
        let places = unsafe { vld1q_u8(SIDE_BY_SIDE[mask % 16].as_ptr()) };
        // Digit i, from the lowest on, is the number of ones in i, for i from 0 to 15.
        Self { count: (0x4332_3221_3221_2110u64 >> (4 * mask) & 7) as usize, places }
    }

    /// Writes the words in `words` whose lane is kept to the front of `out`, and undefined words up to a
    /// whole vector.
    ///
    /// # Safety
    /// A vector can be written to `out`.
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn store(self, words: uint32x4_t, out: *mut u32) {
        let together = vqtbl1q_u8(vreinterpretq_u8_u32(words), self.places);
        // SAFETY: the caller's promise.
        unsafe { vst1q_u32(out, vreinterpretq_u32_u8(together)) };
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn magnitudes(bits: uint32x4_t) -> uint32x4_t {
    vandq_u32(bits, vdupq_n_u32(MAGNITUDE))
}

/// [`keep_from`](crate::kernels::keep_from) for NEON, which the caller has detected and whose room and
/// lengths the caller has checked.
pub(in crate::kernels) fn keep_from(
    grad: &[f32],
    sums: Sums<'_>,
    first: u32,
    least: u32,
    candidates: &mut Candidates<'_>,
) -> u32 {
    // SAFETY: `Isa::Neon` is named only where the machine has it; the caller checked lengths and room.
    unsafe { keep_from_neon(grad, sums, first, least, candidates) }
}

/// Compares a group at a time, and appends nothing if no element of the group reaches the bound.
///
/// # Safety
/// The candidates have room for all of `grad` and one group more.
#[target_feature(enable = "neon")]
unsafe fn keep_from_neon(
    grad: &[f32],
    mut sums: Sums<'_>,
    first: u32,
    least: u32,
    candidates: &mut Candidates<'_>,
) -> u32 {
    // SAFETY: the array holds a vector.
    let lanes = unsafe { vld1q_u32([0, 1, 2, 3].as_ptr()) };
    let bound = vdupq_n_u32(least);
    let mut max = vdupq_n_u32(0);
    let mut len = candidates.len;
    let (groups, tail) = grad.as_chunks::<GROUP>();
    let whole = grad.len() - tail.len();
    for (at, group) in (0..).step_by(GROUP).zip(groups) {
        let mut p = load(group);
        let add = |residual, p: [_; 4]| {
            let residual = load(residual);
            core::array::from_fn(|i| vaddq_f32(residual[i], p[i]))
        };
        match &mut sums {
            Sums::None => (),
            Sums::InPlace(residual) => {
                if let Some(residual) = residual[at..].first_chunk_mut() {
                    p = add(residual, p);
                    store(p, residual);
                }
            }
            Sums::Beside { residual, p: to, .. } => {
                if let (Some(residual), Some(to)) = (residual[at..].first_chunk(), to[at..].first_chunk_mut())
                {
                    p = add(residual, p);
                    store(p, to);
                }
            }
        }
        let p = p.map(|p| vreinterpretq_u32_f32(p));
        let [a, b, c, d] = p.map(|p| magnitudes(p));
        let largest = vmaxq_u32(vmaxq_u32(a, b), vmaxq_u32(c, d));
        max = vmaxq_u32(max, largest);
        if vmaxvq_u32(largest) < least {
            continue;
        }
        for ((p, magnitudes), offset) in p.into_iter().zip([a, b, c, d]).zip((0..).step_by(LANES)) {
            let kept = Kept::of(vcgeq_u32(magnitudes, bound));
            let positions = vaddq_u32(lanes, vdupq_n_u32(first + at as u32 + offset));
            // SAFETY: fewer than `grad.len()` candidates were added, so a whole vector fits behind them.
            unsafe {
                kept.store(positions, candidates.indices.as_mut_ptr().add(len));
                kept.store(p, candidates.values.as_mut_ptr().add(len));
            }
            len += kept.count;
        }
    }
    candidates.len = len;
    let tail_max = scalar::keep_from(tail, sums.from(whole), first + whole as u32, least, candidates);
    vmaxvq_u32(max).max(tail_max)
}

#[target_feature(enable = "neon")]
fn load(values: &[f32; GROUP]) -> [float32x4_t; 4] {
    // SAFETY: the array holds four vectors.
    [0, 4, 8, 12].map(|at| unsafe { vld1q_f32(values.as_ptr().add(at)) })
}

#[target_feature(enable = "neon")]
fn store(vectors: [float32x4_t; 4], values: &mut [f32; GROUP]) {
    for (vector, out) in vectors.into_iter().zip(values.as_chunks_mut::<LANES>().0) {
        // SAFETY: the array holds a vector.
        unsafe { vst1q_f32(out.as_mut_ptr(), vector) }
    }
}

/// [`compact`](crate::kernels::compact) for NEON, which the caller has detected.
pub(in crate::kernels) fn compact(candidates: &mut Candidates<'_>, least: u32) {
    let len = candidates.len;
    let parts = (&mut candidates.indices[..len], &mut candidates.values[..len]);
    // SAFETY: `Isa::Neon` is named only where the machine has it; both parts have the same length.
    candidates.len = unsafe { compact_neon(parts.0, parts.1, least) };
}

/// # Safety
/// Both parts have the same length.
#[target_feature(enable = "neon")]
unsafe fn compact_neon(indices: &mut [u32], values: &mut [u32], least: u32) -> usize {
    let bound = vdupq_n_u32(least);
    let mut len = 0;
    let whole = values.len() / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        // SAFETY: at + 4 ≤ whole ≤ length of both, and len ≤ at: what is overwritten was read.
        unsafe {
            let positions = vld1q_u32(indices.as_ptr().add(at));
            let bits = vld1q_u32(values.as_ptr().add(at));
            let kept = Kept::of(vcgeq_u32(magnitudes(bits), bound));
            kept.store(positions, indices.as_mut_ptr().add(len));
            kept.store(bits, values.as_mut_ptr().add(len));
            len += kept.count;
        }
    }
    scalar::compact(indices, values, whole, len, least)
}

/// [`keep_between`](crate::kernels::keep_between) for NEON, which the caller has detected and whose room the
/// caller has checked.
pub(in crate::kernels) fn keep_between(p: &[u32], range: (u32, u32), out: &mut [u32]) -> (usize, usize) {
    // SAFETY: `Isa::Neon` is named only where the machine has it; the caller checked the room.
    unsafe { keep_between_neon(p, range, out) }
}

/// # Safety
/// `out` has room for all of `p` and one vector more.
#[target_feature(enable = "neon")]
unsafe fn keep_between_neon(p: &[u32], (low, high): (u32, u32), out: &mut [u32]) -> (usize, usize) {
    let (least, most) = (vdupq_n_u32(low), vdupq_n_u32(high));
    let (mut not_above, mut inside) = (vdupq_n_u32(0), 0);
    let (whole, tail) = p.as_chunks::<LANES>();
    for p in whole {
        // SAFETY: the array holds a vector.
        let magnitudes = magnitudes(unsafe { vld1q_u32(p.as_ptr()) });
        let fits = vcleq_u32(magnitudes, most);
        // A lane of all ones is −1, so subtracting it adds one.
        not_above = vsubq_u32(not_above, fits);
        let kept = Kept::of(vandq_u32(fits, vcgeq_u32(magnitudes, least)));
        // SAFETY: fewer than `p.len()` words were kept, so a whole vector fits behind them.
        unsafe { kept.store(magnitudes, out.as_mut_ptr().add(inside)) };
        inside += kept.count;
    }
    let above = LANES * whole.len() - vaddlvq_u32(not_above) as usize;
    let (tail_above, tail_inside) = scalar::keep_between(tail, (low, high), &mut out[inside..]);
    (above + tail_above, inside + tail_inside)
}
