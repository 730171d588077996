//! The body of a unit of signs as received.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

use crate::bits::check_padding;
use crate::built::Full;
use crate::codec::{Body, BodyInfo};
use crate::coding::values::check_magnitude;
use crate::error::{DecodeError, Field};
use crate::gradient::layout::Span;
use crate::gradient::unit::Unit;
use crate::kernels::{self, Isa};
use crate::wire::ids::{CodecId, Kind};
use crate::wire::reader::Reader;

/// A scale, and unless it is zero a bit a coordinate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SignsFields<'a> {
    len: usize,
    scale: f32,
    signs: &'a [u8],
    _full: Full,
}

impl<'a> Body<'a> for SignsFields<'a> {
    const KIND: Kind = Kind::new(5);

    fn read(_codec: CodecId, unit: &Unit, _step: u64, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let full = Full::required()?;
        let scale = f32::from_bits(reader.u32()?);
        if scale.is_sign_negative() {
            return Err(DecodeError::InvalidField(Field::Scale));
        }
        let bytes = if scale == 0.0 { 0 } else { unit.len.div_ceil(8) };
        Ok(Self { len: unit.len, scale, signs: reader.take(bytes)?, _full: full })
    }

    fn scratch_words(&self) -> usize {
        0
    }

    fn check(&self, _span: Span<'_>, max_magnitude: f32, _scratch: &mut [u32]) -> Result<(), DecodeError> {
        check_magnitude(self.scale, max_magnitude)?;
        if self.signs.is_empty() { Ok(()) } else { check_padding(self.signs, self.len as u64) }
    }

    #[inline]
    fn for_each(&self, _scratch: &[u32], mut f: impl FnMut(usize, f32)) {
        let signs = self.signs.iter().copied().chain(core::iter::repeat(0));
        for (eight, signs) in (0..self.len).step_by(8).zip(signs) {
            for i in eight..self.len.min(eight.saturating_add(8)) {
                f(i, if signs >> (i % 8) & 1 == 1 { -self.scale } else { self.scale });
            }
        }
    }

    const ADDS: bool = true;

    fn add_scaled_to(&self, _scratch: &[u32], weight: f32, acc: &mut [f32]) {
        if self.signs.is_empty() {
            acc.iter_mut().for_each(|sum| *sum += weight * self.scale);
        } else {
            kernels::add_signs(Isa::best(), self.signs, self.scale, weight, acc);
        }
    }

    fn info(&self) -> BodyInfo {
        BodyInfo { kind: "signs", index: None, values: Some(("signs", 4 + self.signs.len())) }
    }
}
