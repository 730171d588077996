//! A few scalars, folded over all ranks to their smallest, largest or sum. All ranks get the same bits, so
//! that they can make the same decision.

use super::gather::{Gathered, all_gather};
use super::group::Endpoint;
use super::reduce::max_f32;
use crate::error::TransportError;
use crate::rank::RankSet;
use crate::tag::{Deadline, Tag};

/// How the values of all ranks for one [`Scalar`] are folded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// The smallest. A NaN wins and becomes the quiet NaN; −0 is smaller than +0.
    Min,
    /// The largest. A NaN wins and becomes the quiet NaN; +0 is larger than −0.
    Max,
    /// The sum over ranks ascending: `((x[0] + x[1]) + x[2]) + …`, each addition rounded once; integers wrap.
    /// A NaN becomes the quiet NaN.
    Sum,
}

/// One number, of a type that is the same at all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// An f32.
    F32(f32),
    /// An f64.
    F64(f64),
    /// An i64.
    I64(i64),
}

/// Type and fold, and eight bytes of value.
const BYTES: usize = 9;

impl Scalar {
    fn write(self, fold: Fold, out: &mut Vec<u8>) {
        let (kind, bits) = match self {
            Self::F32(value) => (0, u64::from(value.to_bits())),
            Self::F64(value) => (1, value.to_bits()),
            Self::I64(value) => (2, value.cast_unsigned()),
        };
        out.push(kind << 2 | fold as u8);
        out.extend_from_slice(&bits.to_le_bytes());
    }

    /// The scalar of another rank, if it has the type of this one.
    fn like(self, bits: u64) -> Option<Self> {
        Some(match self {
            Self::F32(_) => Self::F32(f32::from_bits(u32::try_from(bits).ok()?)),
            Self::F64(_) => Self::F64(f64::from_bits(bits)),
            Self::I64(_) => Self::I64(bits.cast_signed()),
        })
    }

    fn fold(self, fold: Fold, next: Self) -> Self {
        match (self, next) {
            (Self::F32(a), Self::F32(b)) => Self::F32(match fold {
                Fold::Min => -max_f32(-a, -b),
                Fold::Max => max_f32(a, b),
                Fold::Sum => a + b,
            }),
            (Self::F64(a), Self::F64(b)) => Self::F64(match fold {
                _ if a.is_nan() || b.is_nan() => f64::NAN,
                Fold::Min => {
                    if a.total_cmp(&b).is_lt() {
                        a
                    } else {
                        b
                    }
                }
                Fold::Max => {
                    if a.total_cmp(&b).is_lt() {
                        b
                    } else {
                        a
                    }
                }
                Fold::Sum => a + b,
            }),
            (Self::I64(a), Self::I64(b)) => Self::I64(match fold {
                Fold::Min => a.min(b),
                Fold::Max => a.max(b),
                Fold::Sum => a.wrapping_add(b),
            }),
            // Types were compared when the message was read.
            (own, _) => own,
        }
        .settled()
    }

    /// One NaN for all, because machines differ in the bits of a NaN that an addition returns.
    fn settled(self) -> Self {
        match self {
            Self::F32(value) if value.is_nan() => Self::F32(f32::from_bits(0x7fc0_0000)),
            Self::F64(value) if value.is_nan() => Self::F64(f64::from_bits(0x7ff8_0000_0000_0000)),
            other => other,
        }
    }
}

/// Folds the scalars of all ranks, each by its own fold; every member ends with the same bits. Returns the
/// members, who all contributed.
///
/// Uses an [`all_gather`] of 9 bytes a scalar, and its tags: N−1 messages each way, one round trip.
///
/// # Errors
/// The errors of [`all_gather`]; `OtherScalars` if a member has other types or folds, or another number of
/// them. The scalars are then as they were.
///
/// # Determinism
/// Every rank folds in ascending rank order, so a sum depends only on the values and the membership.
pub fn agree<T: Endpoint + ?Sized>(
    transport: &mut T,
    tag: Tag,
    scalars: &mut [(Fold, Scalar)],
    deadline: Deadline,
) -> Result<RankSet, TransportError> {
    let (mut own, mut all) = (Vec::with_capacity(BYTES * scalars.len()), Gathered::new());
    scalars.iter().for_each(|(fold, scalar)| scalar.write(*fold, &mut own));
    let members = all_gather(transport, tag, &own, &mut all, deadline)?;
    let mut folded: Vec<Option<Scalar>> = vec![None; scalars.len()];
    for (from, theirs) in all.iter() {
        let other = || TransportError::OtherScalars { from, tag };
        if theirs.len() != own.len() {
            return Err(other());
        }
        let (own, theirs) = (own.as_chunks::<BYTES>().0, theirs.as_chunks::<BYTES>().0);
        for ((sum, (fold, scalar)), (own, [kind, bits @ ..])) in
            folded.iter_mut().zip(scalars.iter()).zip(own.iter().zip(theirs))
        {
            let next = Some(u64::from_le_bytes(*bits)).filter(|_| own[0] == *kind);
            let next = next.and_then(|bits| scalar.like(bits)).ok_or_else(other)?;
            *sum = Some(sum.map_or(next.settled(), |sum| sum.fold(*fold, next)));
        }
    }
    for ((_, scalar), folded) in scalars.iter_mut().zip(folded) {
        *scalar = folded.unwrap_or(*scalar);
    }
    Ok(members)
}
