//! The elements of a gradient that a selection keeps.

use crate::kernels::scalar::floats::MAGNITUDE;

/// Positions and bits of the values that a selection has kept so far, ascending; the first `len` of each.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "alloc"),
    allow(unreachable_pub, reason = "codecs name it in a trait of builds with a heap")
)]
pub struct Candidates<'a> {
    pub(crate) indices: &'a mut [u32],
    pub(crate) values: &'a mut [u32],
    pub(crate) len: usize,
}

/// Elements after the last candidate that [`keep_from`] and [`keep_between`] may overwrite: one vector.
pub(crate) const CANDIDATE_SLACK: usize = 16;

pub(in crate::kernels) fn keep_from(
    grad: &[f32],
    mut residual: Option<&mut [f32]>,
    first: u32,
    least: u32,
    candidates: &mut Candidates<'_>,
) -> u32 {
    let mut max = 0;
    for (i, &grad) in grad.iter().enumerate() {
        let mut p = grad;
        if let Some(residual) = &mut residual {
            residual[i] += grad;
            p = residual[i];
        }
        let bits = p.to_bits();
        max = max.max(bits & MAGNITUDE);
        if bits & MAGNITUDE >= least {
            candidates.indices[candidates.len] = first + i as u32;
            candidates.values[candidates.len] = bits;
            candidates.len += 1;
        }
    }
    max
}

/// Moves the entries from `at` on that reach `least` down to `len` and above. Returns how many entries there
/// are then.
pub(in crate::kernels) fn compact(
    indices: &mut [u32],
    values: &mut [u32],
    at: usize,
    mut len: usize,
    least: u32,
) -> usize {
    for i in at..values.len() {
        // Written whether kept or not: a branch here would be mispredicted half of the time.
        (indices[len], values[len]) = (indices[i], values[i]);
        len += usize::from(values[i] & MAGNITUDE >= least);
    }
    len
}

pub(in crate::kernels) fn keep_between(
    p: &[u32],
    (low, high): (u32, u32),
    out: &mut [u32],
) -> (usize, usize) {
    let (mut above, mut inside) = (0, 0);
    for magnitude in p.iter().map(|bits| bits & MAGNITUDE) {
        above += usize::from(magnitude > high);
        out[inside] = magnitude;
        inside += usize::from((low..=high).contains(&magnitude));
    }
    (above, inside)
}
