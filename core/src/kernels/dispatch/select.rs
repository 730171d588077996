//! Selection by magnitude.

#[cfg(target_arch = "aarch64")]
use crate::kernels::aarch64::select as aarch64;
use crate::kernels::isa::Isa;
use crate::kernels::scalar::select as scalar;
use crate::kernels::scalar::select::{CANDIDATE_SLACK, Candidates, Sums};
#[cfg(target_arch = "x86_64")]
use crate::kernels::x86_64::select as x86_64;

/// Appends every element of p whose magnitude bits are at least `least`, with its position counted from
/// `first`. Returns the largest magnitude bits of all. p is the gradient or, with a residual, fl(residual +
/// gradient), which is written to where `sums` says.
///
/// # Panics
/// When the lengths differ or the candidates have no room for every element and [`CANDIDATE_SLACK`] more.
pub(crate) fn keep_from(
    isa: Isa,
    grad: &[f32],
    sums: Sums<'_>,
    first: u32,
    least: u32,
    candidates: &mut Candidates<'_>,
) -> u32 {
    let room = candidates.indices.len().min(candidates.values.len()) - candidates.len;
    assert!(room >= grad.len() + CANDIDATE_SLACK, "no room for the candidates");
    assert!(sums.fit(grad.len()), "gradient and residual differ in length");
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => x86_64::keep_from(grad, sums, first, least, candidates),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => x86_64::keep_from_with_avx2(grad, sums, first, least, candidates),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => aarch64::keep_from(grad, sums, first, least, candidates),
        Isa::Baseline => scalar::keep_from(grad, sums, first, least, candidates),
    }
}

/// Drops the candidates whose magnitude bits are below `least`; the others keep their order.
pub(crate) fn compact(isa: Isa, candidates: &mut Candidates<'_>, least: u32) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => x86_64::compact(candidates, least),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => x86_64::compact_with_avx2(candidates, least),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => aarch64::compact(candidates, least),
        Isa::Baseline => {
            let len = candidates.len;
            let parts = (&mut candidates.indices[..len], &mut candidates.values[..len]);
            candidates.len = scalar::compact(parts.0, parts.1, 0, 0, least);
        }
    }
}

/// Writes the magnitude bits from `low` to `high`, both included, to the front of `out`, in order. Returns
/// how many are above `high`, and how many it wrote.
///
/// # Panics
/// When `out` has no room for every element and [`CANDIDATE_SLACK`] more.
pub(crate) fn keep_between(isa: Isa, p: &[u32], range: (u32, u32), out: &mut [u32]) -> (usize, usize) {
    assert!(out.len() >= p.len() + CANDIDATE_SLACK, "no room for what is kept");
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => x86_64::keep_between(p, range, out),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => x86_64::keep_between_with_avx2(p, range, out),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => aarch64::keep_between(p, range, out),
        Isa::Baseline => scalar::keep_between(p, range, out),
    }
}
