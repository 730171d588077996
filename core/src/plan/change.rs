//! What may change between two steps: codec, densities and ranks. Units stay.

use super::by_unit::ByUnit;
use super::method::Method;
use super::{Group, Plan};
use crate::codecs::powersgd::{PowerSgd, PowerSgdByUnit};
use crate::error::EncodeError;
use crate::gradient::density::Density;
use crate::gradient::layout::LayoutRef;
use crate::keys::MemoryChoice;
use crate::memory::{Keeper, Memory};
use crate::registry::codecs::{Codec, LinearCodec};
use crate::spec::Spec;
use alloc::vec::Vec;
use core::fmt;

/// Why a plan cannot be changed so. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// The codec does not allow it.
    Conflict {
        /// Name of the codec.
        codec: &'static str,
        /// Why.
        why: &'static str,
    },
    /// The codec keeps other parts in the memory than the one before it, so it cannot replace it.
    OtherMemory {
        /// Name of the codec.
        codec: &'static str,
    },
    /// The memory is not one of this plan.
    Memory(EncodeError),
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict { codec, why } => write!(f, "{codec}: {why}"),
            Self::OtherMemory { codec } => {
                write!(f, "{codec} keeps other parts in the memory than the codec before it")
            }
            Self::Memory(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for PlanError {}

impl Plan {
    /// Sets the codec of all units. The spelling's memory and packets stay, and the memory must suit both
    /// codecs: both or neither keep a [state](crate::state::UnitState) of each unit, and both keep the same
    /// number of factors.
    ///
    /// # Errors
    /// `OtherMemory` for a codec that keeps other parts; `Conflict` if the spelling's memory or packets do
    /// not work with it, for a plan of several groups, and for one of a codec of another crate.
    pub fn set_codec(&mut self, codec: Codec, layout: &LayoutRef<'_>) -> Result<(), PlanError> {
        let units = self.units.len();
        let [group] = &mut self.groups[..] else {
            return Err(conflict(codec.name(), "rules give the tensors several codecs"));
        };
        let Some(&now) = group.listed() else {
            return Err(conflict(group.name(), "the exchange was made for a codec of another crate"));
        };
        let parts =
            |codec: &Codec| (codec.capabilities().adapts, codec.state_len(layout, units, Keeper::Worker));
        // No codec of one rank has the factors of several.
        let is_other = matches!(group.method, Method::ByRank(_)) || parts(&codec) != parts(&now);
        if group.spec.memory != MemoryChoice::None && is_other {
            return Err(PlanError::OtherMemory { codec: codec.name() });
        }
        let with = |codec| Spec { codec, ..group.spec };
        // A spec that was built by hand may have had a conflict from the start.
        if let (Some(why), None) = (with(codec).conflict(), with(now).conflict()) {
            return Err(conflict(codec.name(), why));
        }
        group.method = Method::listed(codec);
        Ok(())
    }

    /// Sets the density of all units whose codec has one.
    pub fn set_density(&mut self, density: Density) {
        for group in &mut self.groups {
            group.set_density(density);
        }
    }

    /// Sets the density of each codec that has one to that of its [warm-up](Spec::codec_in) in an epoch,
    /// counted from 0.
    pub fn set_epoch(&mut self, epoch: u64) {
        for group in &mut self.groups {
            if let Some(density) = group.spec.codec_in(epoch).density() {
                group.set_density(density);
            }
        }
    }

    /// Gives each unit a density of its own: `densities` has one for each of the [`units`](Self::units), in
    /// order. Units that are sent dense, and those whose codec has no density, stay as they are.
    ///
    /// # Errors
    /// `Conflict` if no codec has a density, with packets, and with a codec of another crate.
    ///
    /// # Panics
    /// When there are more or fewer densities than units.
    ///
    /// # Examples
    /// Frames stay ordinary frames of the codec, because a unit's body says itself what it holds.
    /// ```
    /// use gradwire::plan::Plan;
    /// use gradwire::{Decoder, Density, Encoder, Grad, Layout, Limits, Source, Spec, StepInput, StepKey};
    ///
    /// let layout = Layout::packed([("a", vec![4]), ("b", vec![4])])?;
    /// let layout = layout.as_ref();
    /// let mut plan = Plan::of(&Spec::parse("topk:unit=tensor,memory=none")?, &layout);
    /// plan.set_densities(&[0.25, 0.5].map(|share| Density::new(share).unwrap()))?;
    /// let grad = Grad::F32(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    /// let key = StepKey { seed: 7, step: 0, source: Source::Rank(0) };
    /// let (mut encoder, mut decoder, mut sum) = (Encoder::new(), Decoder::new(), [0.0; 8]);
    /// let step = StepInput { key, layout: &layout, units: plan.units(), grad };
    /// let frame = encoder.encode_plan(&plan, &step, None)?;
    /// decoder.parse(frame, &layout, &Limits::for_layout(&layout))?.add_scaled_to(1.0, &mut sum);
    /// assert_eq!(sum, [0.0, 0.0, 0.0, 4.0, 0.0, 0.0, 7.0, 8.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_densities(&mut self, densities: &[Density]) -> Result<(), PlanError> {
        assert_eq!(densities.len(), self.units.len(), "one density for each unit");
        let name = self.groups[0].name();
        if !self.counts_units() {
            return Err(conflict(name, OWN_UNITS));
        }
        let is_other = |group: &Group| group.codec().parser().is_some();
        if self.groups.iter().any(is_other) {
            return Err(conflict(name, "a codec of another crate has one density for all units"));
        }
        if self.groups.iter().any(|group| group.spec.packets.is_some()) {
            return Err(conflict(name, "packets of all units have one density"));
        }
        let of = |group: &Group| ByUnit::new(group.listed()?, &group.own(densities));
        let codecs: Vec<Option<ByUnit>> = self.groups.iter().map(of).collect();
        if codecs.iter().all(Option::is_none) {
            return Err(conflict(name, "it has no density"));
        }
        for (group, codecs) in self.groups.iter_mut().zip(codecs) {
            let Some(codecs) = codecs else { continue };
            let linear = self.units.iter().map(|unit| codecs.codec_of(unit).as_linear());
            let linear = linear.collect::<Option<_>>().unwrap_or_default();
            group.method = Method::ByDensity(codecs, linear);
        }
        Ok(())
    }

    /// Gives each unit a rank of its own, of a codec that has one, and turns the factors in `memory` into
    /// those of these ranks: see [`PowerSgd::hand_over`]. The residual stays as it is, bit for bit. What is
    /// sent whole at its rank, and a unit that is sent dense, stays so. Until all ranks are equal again,
    /// [`set_codec`](Self::set_codec) refuses every codec, because none has these factors.
    ///
    /// # Errors
    /// `Conflict` for a codec without a rank, and for a rank that it does not have; `Memory` for a memory of
    /// another rank.
    ///
    /// # Panics
    /// When there are more or fewer ranks than units.
    pub fn set_ranks(
        &mut self,
        ranks: &[u16],
        layout: &LayoutRef<'_>,
        memory: &mut Memory<'_>,
    ) -> Result<(), PlanError> {
        assert_eq!(ranks.len(), self.units.len(), "one rank for each unit");
        let has_own = !self.counts_units();
        let group = &mut self.groups[0];
        if has_own {
            return Err(conflict(group.name(), OWN_UNITS));
        }
        let Some(&Codec::Linear(LinearCodec::PowerSgd(codec))) = group.listed() else {
            return Err(conflict(group.name(), "it has no rank"));
        };
        let of = |ranks: &[u16]| PowerSgdByUnit::new(&codec, ranks, &self.units, layout);
        let next = of(ranks).ok_or(conflict(group.name(), "a rank is from 1 to 256"))?;
        let now = match &group.method {
            Method::ByRank(now) => Some(now.clone()),
            _ => of(&alloc::vec![codec.rank(); ranks.len()]),
        };
        now.expect("the codec's own rank").hand_over(&next, layout, memory).map_err(PlanError::Memory)?;
        group.method = one_rank(&codec, ranks).map_or(Method::ByRank(next), Method::listed);
        Ok(())
    }
}

/// The codec at the only one of these ranks.
fn one_rank(codec: &PowerSgd, ranks: &[u16]) -> Option<Codec> {
    let first = ranks.first().filter(|first| ranks.iter().all(|rank| rank == *first))?;
    Some(Codec::Linear(LinearCodec::PowerSgd(codec.with_rank(*first)?)))
}

const OWN_UNITS: &str = "units with identifiers of the caller's own have one density and rank";

fn conflict(codec: &'static str, why: &'static str) -> PlanError {
    PlanError::Conflict { codec, why }
}

impl Group {
    fn set_density(&mut self, density: Density) {
        if let Some(codec) = self.listed().filter(|codec| codec.density().is_some()) {
            self.method = Method::listed(codec.with_density(density));
        }
    }

    /// These densities, with any of its own in place of those of other groups.
    fn own(&self, densities: &[Density]) -> Vec<Density> {
        let place = |unit: &crate::Unit| densities[unit.id as usize];
        let mut own = alloc::vec![place(&self.units[0]); densities.len()];
        self.units.iter().for_each(|unit| own[unit.id as usize] = place(unit));
        own
    }
}
