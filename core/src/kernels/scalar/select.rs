//! The elements of a gradient that a selection keeps.

use crate::built::Full;
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

/// Where the values come from that a selection looks at, besides the gradient, and where they go.
#[derive(Debug)]
pub(crate) enum Sums<'s> {
    /// p is the gradient.
    None,
    /// p takes the place of the residual.
    InPlace(&'s mut [f32]),
    /// p goes to memory of its own, and the residual stays as it is. If `non_temporal`, p goes past the
    /// caches: for so many sums that they would be driven out before they are read again. Small builds have
    /// none of these.
    Beside {
        residual: &'s [f32],
        p: &'s mut [f32],
        #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "x86-64 alone has such stores"))]
        non_temporal: bool,
    },
}

impl Sums<'_> {
    /// Whether there are as many sums as this, or none.
    pub(in crate::kernels) fn fit(&self, len: usize) -> bool {
        match self {
            Self::None => true,
            Self::InPlace(residual) => residual.len() == len,
            Self::Beside { residual, p, .. } => {
                Full::build().is_none() || residual.len() == len && p.len() == len
            }
        }
    }

    /// Those from `first` on.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(in crate::kernels) fn from(self, first: usize) -> Self {
        match self {
            Self::None => Self::None,
            Self::InPlace(residual) => Self::InPlace(&mut residual[first..]),
            Self::Beside { residual, p, non_temporal } => {
                Self::Beside { residual: &residual[first..], p: &mut p[first..], non_temporal }
            }
        }
    }
}

/// Elements after the last candidate that [`keep_from`] and [`keep_between`] may overwrite: one vector.
pub(crate) const CANDIDATE_SLACK: usize = 16;

pub(in crate::kernels) fn keep_from(
    grad: &[f32],
    mut sums: Sums<'_>,
    first: u32,
    least: u32,
    candidates: &mut Candidates<'_>,
) -> u32 {
    let mut max = 0;
    for (i, &grad) in grad.iter().enumerate() {
        let p = match &mut sums {
            Sums::None => grad,
            Sums::InPlace(residual) => {
                residual[i] += grad;
                residual[i]
            }
            Sums::Beside { residual, p, .. } if Full::build().is_some() => {
                p[i] = residual[i] + grad;
                p[i]
            }
            Sums::Beside { .. } => grad,
        };
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
