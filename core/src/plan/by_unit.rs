//! One codec at a density of its own for each unit.

use crate::codec::{Capabilities, EncodeUnit, UnitInput};
use crate::error::EncodeError;
use crate::gradient::density::Density;
use crate::gradient::layout::LayoutRef;
use crate::gradient::unit::Unit;
use crate::memory::{Keeper, StateLen};
use crate::momentum::Momentum;
use crate::registry::codecs::{AsUnitCodec, Codec};
use crate::scratch::{Scratch, ScratchLen};
use crate::wire::writer::Writer;
use alloc::vec::Vec;

/// A codec whose units have densities of their own. Its frames are ordinary frames of the codec, because a
/// unit's body says itself what it holds. Every reader knows them.
///
/// Units that are sent dense stay dense.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ByUnit {
    /// The codec at each density that occurs.
    codecs: Vec<Codec>,
    /// By the identifier of a unit, the position of its codec.
    of_unit: Vec<usize>,
}

impl ByUnit {
    /// The codec with these densities, one for each unit, by identifier. `None` for a codec without a
    /// density, and without any unit.
    pub(super) fn new(codec: &Codec, densities: &[Density]) -> Option<Self> {
        codec.density().filter(|_| !densities.is_empty())?;
        let mut distinct: Vec<Density> = Vec::new();
        let mut position = |density: &Density| {
            distinct.iter().position(|known| known == density).unwrap_or_else(|| {
                distinct.push(*density);
                distinct.len() - 1
            })
        };
        let of_unit = densities.iter().map(&mut position).collect();
        let codecs = distinct.iter().map(|density| codec.with_density(*density)).collect();
        Some(Self { codecs, of_unit })
    }

    /// The codec of a unit.
    ///
    /// # Panics
    /// If there is no density for its identifier.
    pub(super) fn codec_of(&self, unit: &Unit) -> &Codec {
        &self.codecs[self.of_unit[unit.id as usize]]
    }

    /// The first of the codecs, which differ in nothing but their densities.
    pub(super) fn first(&self) -> &Codec {
        &self.codecs[0]
    }

    fn any(&self) -> &dyn EncodeUnit {
        self.first().as_unit_codec()
    }
}

impl EncodeUnit for ByUnit {
    fn capabilities(&self) -> Capabilities {
        self.any().capabilities()
    }

    /// Of the density that makes the largest.
    fn max_body_bytes(&self, len: usize) -> Option<usize> {
        let bounds = self.codecs.iter().map(|codec| codec.as_unit_codec().max_body_bytes(len));
        bounds.reduce(|one, other| Some(one?.max(other?))).flatten()
    }

    /// Of the density that needs most.
    fn unit_scratch_len(&self, len: usize) -> ScratchLen {
        let needs = self.codecs.iter().map(|codec| codec.as_unit_codec().unit_scratch_len(len));
        needs.fold(ScratchLen::default(), ScratchLen::max)
    }

    fn overflow_bound(&self) -> f32 {
        self.any().overflow_bound()
    }

    fn state_len(&self, layout: &LayoutRef<'_>, units: usize, keeper: Keeper) -> StateLen {
        self.any().state_len(layout, units, keeper)
    }

    fn momentum(&self) -> Option<Momentum> {
        self.any().momentum()
    }

    fn encode_body(
        &self,
        input: UnitInput<'_, '_>,
        scratch: &mut Scratch<'_>,
        writer: &mut Writer<'_>,
    ) -> Result<(), EncodeError> {
        self.codec_of(input.unit).as_unit_codec().encode_body(input, scratch, writer)
    }
}
