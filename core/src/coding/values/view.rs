//! The value section of a unit as received.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

use super::planes::PlanesView;
use super::{ValueFormat, check_magnitude, check_magnitudes, codebook};
use crate::built::Full;
use crate::coding::entropy::section::SLOT_WORDS;
use crate::error::{DecodeError, Field};
use crate::kernels::{self, Isa};
use crate::wire::reader::Reader;
use half::{bf16, f16};

/// The value section of a sparse, seeded or dense unit. Before [`check`](Self::check), only its structure is
/// known. After it, decoding cannot fail.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Values<'a> {
    F32(&'a [u8]),
    F16(&'a [u8], Full),
    Bf16(&'a [u8]),
    Codebook(codebook::CodebookView<'a>),
    Planes(PlanesView<'a>),
}

impl<'a> Values<'a> {
    /// Takes the section of `k` values off the reader.
    pub(crate) fn fields(
        format: ValueFormat,
        k: usize,
        reader: &mut Reader<'a>,
    ) -> Result<Self, DecodeError> {
        let entries = DecodeError::InvalidField(Field::Entries);
        let mut fixed = |bytes: usize| reader.take(k.checked_mul(bytes).ok_or(entries)?);
        Ok(match format {
            ValueFormat::F32 => Self::F32(fixed(4)?),
            ValueFormat::F16(full) => Self::F16(fixed(2)?, full),
            ValueFormat::Bf16 => Self::Bf16(fixed(2)?),
            ValueFormat::Codebook(full) => Self::Codebook(codebook::CodebookView::fields(full, k, reader)?),
            ValueFormat::F32Planes(full) | ValueFormat::F16Planes(full) | ValueFormat::Bf16Planes(full) => {
                Self::Planes(PlanesView::fields(full, format, k, reader)?)
            }
        })
    }

    /// Words of scratch memory that decoding needs.
    pub(crate) fn scratch_words(&self) -> usize {
        match self {
            Self::Codebook(view) if view.is_entropy_coded() => SLOT_WORDS,
            Self::Planes(_) => SLOT_WORDS,
            _ => 0,
        }
    }

    /// All checks: every value finite and within `max_magnitude`, tables valid. Fills `slots`, which has
    /// [`scratch_words`](Self::scratch_words) words.
    pub(crate) fn check(&self, max_magnitude: f32, slots: &mut [u32]) -> Result<(), DecodeError> {
        match *self {
            Self::F32(bytes) => check_f32(bytes, max_magnitude),
            Self::F16(bytes, _) => check_narrow(bytes, |bits| f16::from_bits(bits).to_f32(), max_magnitude),
            Self::Bf16(bytes) => check_narrow(bytes, |bits| bf16::from_bits(bits).to_f32(), max_magnitude),
            Self::Codebook(view) => view.check(max_magnitude, slots),
            Self::Planes(view) => view.check(max_magnitude, slots),
        }
    }

    /// Calls `f` with each value in order. `slots` is what [`check`](Self::check) filled.
    #[inline]
    pub(crate) fn for_each(&self, slots: &[u32], f: impl FnMut(f32)) {
        match *self {
            Self::F32(bytes) => f32_values(bytes).for_each(f),
            Self::F16(bytes, _) => f16_values(bytes).for_each(f),
            Self::Bf16(bytes) => bf16_values(bytes).for_each(f),
            Self::Codebook(view) => view.for_each(slots, f),
            Self::Planes(view) => view.for_each(slots, f),
        }
    }

    /// acc[i] += weight · value[i], for as many values as `acc` has elements.
    pub(crate) fn add_scaled_to(&self, slots: &[u32], weight: f32, acc: &mut [f32]) {
        let isa = Isa::best();
        match *self {
            Self::F32(bytes) => kernels::add_f32(isa, bytes.as_chunks().0, weight, acc),
            Self::F16(bytes, _) => kernels::add_f16(isa, bytes.as_chunks().0, weight, acc),
            Self::Bf16(bytes) => kernels::add_bf16(isa, bytes.as_chunks().0, weight, acc),
            Self::Codebook(_) | Self::Planes(_) => {
                let mut acc = acc.iter_mut();
                self.for_each(slots, |value| {
                    if let Some(acc) = acc.next() {
                        *acc += weight * value;
                    }
                });
            }
        }
    }

    /// Bytes of the section.
    pub(crate) fn section_bytes(&self) -> usize {
        match self {
            Self::F32(bytes) | Self::F16(bytes, _) | Self::Bf16(bytes) => bytes.len(),
            Self::Codebook(view) => view.section_bytes(),
            Self::Planes(view) => view.section_bytes(),
        }
    }

    pub(crate) fn format(&self) -> ValueFormat {
        match self {
            Self::F32(_) => ValueFormat::F32,
            Self::F16(_, full) => ValueFormat::F16(*full),
            Self::Bf16(_) => ValueFormat::Bf16,
            Self::Codebook(view) => ValueFormat::Codebook(view.full()),
            Self::Planes(view) => view.format(),
        }
    }

    /// The format's name.
    pub(crate) fn name(&self) -> &'static str {
        self.format().name()
    }
}

pub(crate) fn f32_values(bytes: &[u8]) -> impl ExactSizeIterator<Item = f32> + Clone + '_ {
    bytes.as_chunks::<4>().0.iter().map(|&chunk| f32::from_le_bytes(chunk))
}

fn f16_values(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.as_chunks::<2>().0.iter().map(|&chunk| f16::from_le_bytes(chunk).to_f32())
}

fn bf16_values(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.as_chunks::<2>().0.iter().map(|&chunk| bf16::from_le_bytes(chunk).to_f32())
}

/// One integer maximum shows whether any value fails: magnitude bits order like magnitudes, with infinities
/// and NaN above all.
fn check_f32(bytes: &[u8], max_magnitude: f32) -> Result<(), DecodeError> {
    let max = kernels::max_magnitude_bytes(Isa::best(), bytes.as_chunks().0);
    if f32::from_bits(max) <= max_magnitude && f32::from_bits(max).is_finite() {
        return Ok(());
    }
    check_magnitudes(f32_values(bytes), max_magnitude)
}

/// As [`check_f32`], for two formats with magnitude bits that order in the same way.
fn check_narrow(bytes: &[u8], widen: impl Fn(u16) -> f32, max_magnitude: f32) -> Result<(), DecodeError> {
    let max = kernels::max_magnitude_narrow(Isa::best(), bytes.as_chunks().0);
    check_magnitude(widen(max), max_magnitude)
}
