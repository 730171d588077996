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
///
/// # Examples
/// ```
/// use gradwire::rules::ByUnit;
/// use gradwire::{Decoder, Density, Encoder, Grad, LayoutRef, Limits, Source, Spec, StepKey, Unit};
///
/// let spec = Spec::parse("topk")?;
/// let [quarter, half] = [0.25, 0.5].map(|share| Density::new(share).unwrap());
/// let codec = ByUnit::new(&spec.codec, &[quarter, half]).expect("topk has a density");
/// let unit = |id, start| Unit { id, start, len: 4, dense: false };
/// let (layout, units) = (LayoutRef::flat(8), [unit(0, 0), unit(1, 4)]);
/// let grad = Grad::F32(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
/// let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
/// let key = StepKey { seed: 7, step: 0, source: Source::Rank(0) };
/// let bytes = encoder.encode(&codec, key, &layout, &units, grad, None)?;
/// let mut sum = [0.0; 8];
/// decoder.parse(bytes, &layout, &Limits::for_layout(&layout))?.add_scaled_to(1.0, &mut sum);
/// assert_eq!(sum, [0.0, 0.0, 0.0, 4.0, 0.0, 0.0, 7.0, 8.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ByUnit {
    /// The codec at each density that occurs.
    codecs: Vec<Codec>,
    /// By the identifier of a unit, the position of its codec.
    of_unit: Vec<usize>,
}

impl ByUnit {
    /// The codec with these densities, one for each unit, by identifier. `None` for a codec without a
    /// density, and without any unit.
    #[must_use]
    pub fn new(codec: &Codec, densities: &[Density]) -> Option<Self> {
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
    #[must_use]
    pub fn codec_of(&self, unit: &Unit) -> &Codec {
        &self.codecs[self.of_unit[unit.id as usize]]
    }

    /// Any of the codecs, which differ in nothing but their densities.
    fn any(&self) -> &dyn EncodeUnit {
        self.codecs[0].as_unit_codec()
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
