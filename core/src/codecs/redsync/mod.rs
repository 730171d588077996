//! Redsync: a threshold between the mean and the largest magnitude, found by halving.

#[cfg(feature = "alloc")]
mod multi_level;
mod spelling;

#[cfg(feature = "alloc")]
use crate::codec::MultiLevel;
use crate::codec::{EncodeUnit, UnitInput};
use crate::codecs::topk::{Quota, least_above};
use crate::coding::index::IndexChoice;
use crate::coding::values::ValueChoice;
use crate::corrected::{BLOCK, Pass};
use crate::error::EncodeError;
use crate::gradient::density::Density;
use crate::kernels::scalar::{MAGNITUDE, total_of};
use crate::kernels::{self, Candidates, Isa, MomentSums};
use crate::sparse::{SparseCoding, Sparsifier, coding_methods, density_methods};
use crate::wire::ids::CodecId;

/// Redsync's selection: sends every coordinate whose magnitude exceeds mean + r·(largest − mean), where mean
/// and largest are those of the magnitudes. Halving the interval from 0 to 1 finds r. The search ends at the
/// first r at which k to 2·k coordinates exceed the threshold, k = clamp(round(density·n), 1, n), or at the
/// last r tried when the interval is no longer than the [width](Self::width).
///
/// With the width of the paper's authors, 0.2, there are at most three tries. Fewer than k coordinates may
/// then be sent, and far fewer if the gradient has a heavy tail. A smaller width allows more tries, and each
/// takes one pass over the gradient. If more than 2·k exceed the last threshold, the k largest are sent. If
/// all magnitudes are about the same, so that none exceeds a threshold, those equal to the largest count as
/// exceeding it. A zero is never sent.
///
/// # Source
/// Fang, Fu, Yang, Hsieh: RedSync: Reducing synchronization bandwidth for distributed deep learning training
/// system (Journal of Parallel and Distributed Computing 133, 2019), threshold binary search. Three
/// differences: the band includes both of its ends; if too many exceed the last threshold, the k largest are
/// sent; and the rule for equal magnitudes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Redsync {
    density: Density,
    coding: SparseCoding,
    width: f64,
}

/// The width of the paper's authors.
const WIDTH: f64 = 0.2;

/// No interval is halved more often than this.
const LEAST_WIDTH: f64 = 1.0 / 65536.0;

impl Redsync {
    /// Redsync at `density`, with index and value coders, and a width of 0.2.
    #[must_use]
    pub fn new(density: Density, index: IndexChoice, values: ValueChoice) -> Self {
        Self { density, coding: SparseCoding::new(index, values), width: WIDTH }
    }

    /// With another width, from 2^−16 to below 1; else `None`.
    #[must_use]
    pub fn with_width(self, width: f64) -> Option<Self> {
        is_width(width).then_some(Self { width, ..self })
    }

    /// The length at which an interval is not halved any more.
    #[must_use]
    pub fn width(&self) -> f64 {
        self.width
    }

    fn quota(&self, len: usize) -> Quota {
        Quota::up_to_double(self.density.count(len), len)
    }

    /// Leaves the entries to send in `candidates`.
    fn select_from(
        &self,
        pass: &mut Pass<'_>,
        candidates: &mut Candidates<'_>,
        spare: &mut [u32],
    ) -> Result<(), EncodeError> {
        let (isa, quota) = (Isa::best(), self.quota(pass.len()));
        let magnitudes = magnitudes(isa, pass)?;
        self.halve_until_enough(quota, &magnitudes, |least| quota.select(isa, pass, least, candidates, spare))
    }

    /// Tries thresholds until `k` to `most` elements reach one. `reach` finds the elements that reach these
    /// magnitude bits; it returns their number, or `None` if there are more than `most`. The last threshold
    /// tried is the one that counts.
    ///
    /// # Errors
    /// Those of `reach`.
    fn halve_until_enough<E>(
        &self,
        quota: Quota,
        of: &Magnitudes,
        mut reach: impl FnMut(u32) -> Result<Option<usize>, E>,
    ) -> Result<(), E> {
        let range = f64::from(f32::from_bits(of.largest)) - of.mean;
        let (mut low, mut high) = (0.0, 1.0);
        while high - low > self.width {
            let middle = (low + high) / 2.0;
            match reach(least_above(of.mean + middle * range).min(of.largest).max(1))? {
                Some(reached) if reached >= quota.k => return Ok(()),
                Some(_) => high = middle,
                None => low = middle,
            }
        }
        Ok(())
    }
}

/// Whether a width is allowed.
fn is_width(width: f64) -> bool {
    (LEAST_WIDTH..1.0).contains(&width)
}

/// The magnitudes that a threshold lies between.
struct Magnitudes {
    mean: f64,
    /// Bits of the largest magnitude.
    largest: u32,
}

/// The first pass over all values.
fn magnitudes(isa: Isa, pass: &mut Pass<'_>) -> Result<Magnitudes, EncodeError> {
    let (mut sums, mut largest) = (MomentSums::default(), 0);
    let mut room = [0; BLOCK];
    for block in pass.blocks() {
        let p = pass.values(isa, block, &mut room)?;
        kernels::sum_magnitudes(isa, p, &mut sums);
        largest = kernels::max_magnitude(isa, p).max(largest);
    }
    let mean = total_of(sums.sum) / pass.len() as f64;
    Ok(Magnitudes { mean, largest: largest & MAGNITUDE })
}

coding_methods!(Redsync);
density_methods!(Redsync);

impl Sparsifier for Redsync {
    const ID: CodecId = CodecId::new(10);

    fn coding(&self) -> SparseCoding {
        self.coding
    }

    fn most_entries(&self, len: usize) -> usize {
        self.quota(len).most
    }

    fn capacity(&self, len: usize) -> usize {
        self.quota(len).capacity(len)
    }

    #[cfg(feature = "alloc")]
    fn as_multi_level(&self) -> Option<&dyn MultiLevel> {
        Some(self)
    }

    fn select(
        &self,
        input: &mut UnitInput<'_, '_>,
        candidates: &mut Candidates<'_>,
        spare: &mut [u32],
    ) -> Result<(), EncodeError> {
        input.pass(self.overflow_bound(), |pass| self.select_from(pass, candidates, spare))
    }
}
