//! What levels are worth, and which level a value has.

use crate::codecs::qsgd::LEAST_NORM;
use crate::corrected::BLOCK;
use crate::kernels::scalar::FIELD_SIGN;
use crate::kernels::{self, Bucket, Isa};
use crate::rng::Stream;

/// The scales of one step.
#[derive(Clone, Copy)]
pub(super) struct Scales<'m> {
    range: f32,
    /// Levels per sign that span the range; no level is above them on either scale.
    levels: u32,
    /// As many levels of the fine scale span the range, where the mask has a 1.
    fine: Option<(u32, &'m [u32])>,
}

impl<'m> Scales<'m> {
    pub(super) fn new(range: f32, levels: u32, fine: Option<(u32, &'m [u32])>) -> Self {
        Self { range, levels, fine }
    }

    /// Whether R counts as zero: below this bound levels / R could overflow.
    fn is_zero(&self) -> bool {
        self.range < LEAST_NORM
    }

    fn bucket(&self, first: usize, spanning: u32) -> Bucket {
        let spanning = spanning as f32;
        let (inverse, scale) = (spanning / self.range, self.range / spanning);
        Bucket { first: first as u64, inverse, scale, levels: self.levels }
    }

    fn fine_levels_at(&self, i: usize) -> Option<u32> {
        self.fine.filter(|(_, mask)| mask[i / 32] >> (i % 32) & 1 == 1).map(|(levels, _)| levels)
    }

    /// The value of level 1 at position `i`.
    pub(super) fn scale_at(&self, i: usize) -> f32 {
        let spanning = self.fine_levels_at(i).unwrap_or(self.levels) as f32;
        if self.is_zero() { 0.0 } else { self.range / spanning }
    }

    /// Rounds at most [`BLOCK`] values from position `first` on to fields of level and sign.
    pub(super) fn quantize(&self, first: usize, values: &[u32], stream: Option<&Stream>, fields: &mut [u8]) {
        if self.is_zero() {
            fields.fill(0);
            return;
        }
        kernels::quantize(Isa::best(), values, &self.bucket(first, self.levels), stream, fields);
        let Some((spanning, _)) = self.fine else { return };
        let mut fine = [0; BLOCK];
        let fine = &mut fine[..fields.len()];
        kernels::quantize(Isa::best(), values, &self.bucket(first, spanning), stream, fine);
        for (i, (field, &fine)) in (first..).zip(fields.iter_mut().zip(&*fine)) {
            if self.fine_levels_at(i).is_some() {
                *field = fine;
            }
        }
    }

    /// Marks the values whose level on the fine scale, of which `spanning` levels span the range, is at most
    /// the largest coarse level.
    pub(super) fn mark_fine(&self, spanning: u32, values: &[u32], mask: &mut [u32]) {
        let inverse = spanning as f32 / self.range;
        let fits = |bits: u32| f32::from_bits(bits).abs() * inverse <= self.levels as f32;
        for (mask, values) in mask.iter_mut().zip(values.chunks(32)) {
            *mask = values.iter().rev().fold(0, |mask, &bits| mask << 1 | u32::from(fits(bits)));
        }
    }
}

/// The signed level of a field.
pub(super) fn signed(field: u8) -> i32 {
    let level = i32::from(field & !FIELD_SIGN);
    if field & FIELD_SIGN == 0 { level } else { -level }
}
