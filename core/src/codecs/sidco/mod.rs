//! SIDCo: a threshold from a distribution that is fitted to the magnitudes, without sampling or sorting.

mod adapt;
mod estimate;
mod fit;
mod moments;
#[cfg(feature = "alloc")]
mod multi_level;
mod spelling;

#[cfg(feature = "alloc")]
use crate::codec::MultiLevel;
use crate::codec::{EncodeUnit, UnitInput};
use crate::codecs::topk::{Quota, least_above};
use crate::coding::index::IndexChoice;
use crate::coding::values::ValueChoice;
use crate::corrected::Pass;
use crate::error::EncodeError;
use crate::gradient::density::Density;
use crate::kernels::{Candidates, Isa};
use crate::sparse::{SparseCoding, Sparsifier, coding_methods, density_methods};
use crate::wire::ids::CodecId;
use adapt::Stages;
use core::num::NonZeroU32;
use estimate::Kept;

pub use fit::Fit;

/// SIDCo: sends the elements that exceed a threshold. The threshold comes from a distribution fitted to the
/// magnitudes in one or more stages, so that about k = clamp(round(density·n), 1, n) elements exceed it.
/// Zeros are never sent, and the fit leaves them out.
///
/// If more than 2·k exceed the threshold, the k largest are sent. A threshold that fewer than k/2 exceed is
/// lowered to 0.7 of itself, up to four times. [Capped](Self::with_cap), the codec never sends more than k.
///
/// The number of stages is fixed or adapts to each unit. If it adapts, a memory keeps its state. After every
/// five steps, a unit tries the next number of stages if they selected, on average, less than 0.8·k or more
/// than 1.2·k. It tries all numbers in turn, and keeps the first within that band.
///
/// # Source
/// Abdelmoniem, Elzanaty, Alouini, Canini: An Efficient Statistical-based Gradient Compression Technique for
/// Distributed Training Systems (MLSys 2021). Five differences: zeros are left out; the number sent has
/// bounds of k/2 and 2·k; there is a cap; each unit has its own state; and the numbers of stages are tried in
/// turn. The paper's rule, fewer stages if too much is selected and more if too little, never settles on
/// heavy tails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sidco {
    density: Density,
    coding: SparseCoding,
    fit: Fit,
    stages: Option<NonZeroU32>,
    is_capped: bool,
}

/// A threshold is lowered at most this many times.
const ROUNDS: usize = 4;

/// The factor that lowers the threshold.
const LOWER: f64 = 0.7;

impl Sidco {
    /// SIDCo at `density`, with index and value coders: generalised Pareto, stages that adapt, no cap.
    #[must_use]
    pub fn new(density: Density, index: IndexChoice, values: ValueChoice) -> Self {
        let coding = SparseCoding::new(index, values);
        Self { density, coding, fit: Fit::default(), stages: None, is_capped: false }
    }

    /// With another distribution.
    #[must_use]
    pub fn with_fit(self, fit: Fit) -> Self {
        Self { fit, ..self }
    }

    /// With a fixed number of stages; `None` lets it adapt.
    #[must_use]
    pub fn with_stages(self, stages: Option<NonZeroU32>) -> Self {
        Self { stages, ..self }
    }

    /// Sets whether only the k largest are sent if more than k exceed the threshold.
    #[must_use]
    pub fn with_cap(self, is_capped: bool) -> Self {
        Self { is_capped, ..self }
    }

    /// The distribution.
    #[must_use]
    pub fn fit(&self) -> Fit {
        self.fit
    }

    /// The number of stages, if it is fixed.
    #[must_use]
    pub fn stages(&self) -> Option<NonZeroU32> {
        self.stages
    }

    /// Whether the codec never sends more than k.
    #[must_use]
    pub fn is_capped(&self) -> bool {
        self.is_capped
    }

    /// The number to select. The cap applies after it, so that stages adapt in the same way with and without
    /// the cap.
    fn quota(&self, len: usize) -> Quota {
        Quota::up_to_double(self.density.count(len), len)
    }

    /// The largest number of stages that adaptation tries: ⌈log2(1/density)⌉, because each stage selects at
    /// least a half.
    fn most_stages(&self) -> u32 {
        self.density.population(1).next_power_of_two().trailing_zeros().max(1)
    }

    /// Leaves the entries to send in `candidates`. Returns the number that exceeded the threshold over the
    /// number wanted, 2 at most.
    fn select_from(
        &self,
        pass: &mut Pass<'_>,
        stages: u32,
        candidates: &mut Candidates<'_>,
        spare: &mut [u32],
    ) -> Result<f32, EncodeError> {
        let (isa, quota) = (Isa::best(), self.quota(pass.len()));
        let mut kept = Kept::new(candidates);
        let mut threshold = estimate::threshold(isa, pass, self.fit, quota.k, stages, &mut kept)?;
        let mut least = least_above(threshold);
        let found = match kept.narrowed(isa, least) {
            Some(candidates) => quota.settle(isa, false, candidates, spare),
            None => quota.select(isa, pass, least, candidates, spare)?,
        };
        let ratio = found.map_or(2.0, |found| found as f32 / quota.k as f32);
        for _ in 0..ROUNDS {
            if 2 * candidates.len >= quota.k || least == 1 {
                break;
            }
            threshold *= LOWER;
            least = least_above(threshold);
            quota.select(isa, pass, least, candidates, spare)?;
        }
        if self.is_capped && candidates.len > quota.k {
            quota.reduce(isa, candidates, spare);
        }
        Ok(ratio)
    }
}

coding_methods!(Sidco);
density_methods!(Sidco);

impl Sparsifier for Sidco {
    const ID: CodecId = CodecId::new(8);

    fn coding(&self) -> SparseCoding {
        self.coding
    }

    fn most_entries(&self, len: usize) -> usize {
        let Quota { k, most } = self.quota(len);
        if self.is_capped { k } else { most }
    }

    /// With several stages, includes room for the elements that the first stage selects.
    fn capacity(&self, len: usize) -> usize {
        let capacity = self.quota(len).capacity(len);
        if self.stages.is_some_and(|stages| stages.get() == 1) {
            capacity
        } else {
            capacity.max(Kept::capacity(len))
        }
    }

    fn adapts(&self) -> bool {
        self.stages.is_none()
    }

    /// With stages that adapt, the entries also depend on the state of the unit.
    #[cfg(feature = "alloc")]
    fn as_multi_level(&self) -> Option<&dyn MultiLevel> {
        self.stages.is_some().then_some(self)
    }

    fn select(
        &self,
        input: &mut UnitInput<'_, '_>,
        candidates: &mut Candidates<'_>,
        spare: &mut [u32],
    ) -> Result<(), EncodeError> {
        let (unit, most) = (input.unit, self.most_stages());
        let state = input.state_mut().copied();
        let adapting = Stages::read(state.unwrap_or_default(), most);
        let stages = self.stages.map_or(adapting.stages, NonZeroU32::get);
        let ratio =
            input.pass(self.overflow_bound(), |pass| self.select_from(pass, stages, candidates, spare))?;
        if self.stages.is_none() && unit.len > 0 {
            let state = input.state_mut();
            state.into_iter().for_each(|state| *state = adapting.after(ratio, most).write());
        }
        Ok(())
    }
}
