//! Value coders: the values of the entries of a sparse unit, exact or in few bits.
//!
//! Every coder is total and conserving: for each entry it either gives a decoded value `d`, not zero, whose error
//! `p − d` is exactly a float, or it leaves the entry out. What is left out stays in the residual whole; so what is
//! sent and what is kept add up to what was there, bit for bit, for every coder and input.

pub(crate) mod codebook;
pub(crate) mod narrow;
mod planes;
mod view;

use crate::built::Full;
use crate::error::{DecodeError, Field};
use crate::kernels::Isa;
use crate::keys::Words;
use crate::rng::Stream;
use crate::wire::writer::Writer;
use codebook::Codebook;

pub(crate) use view::{Values, f32_values};

/// How a magnitude between two levels, or two magnitudes of a codebook, is rounded: the key `rounding=` of a spelling.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Rounding {
    /// Up with the probability that makes it unbiased. Draws of 16 bits: the bias of one coordinate is at most 2⁻¹⁷
    /// levels; draws of 32 bits for a codebook, which then covers all values, from a magnitude not above the smallest to one not
    /// below the largest.
    #[default]
    Stochastic,
    /// To the nearest level, halves up. Biased, and fit for error feedback.
    Nearest,
}

impl Rounding {
    /// The words of the key `rounding=`.
    pub(crate) const WORDS: Words<Self> =
        Words { words: &["stochastic", "nearest"], values: &[Self::Stochastic, Self::Nearest] };
}

/// How the values of a sparse unit are sent: the key `values=` of a spelling.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ValueChoice {
    /// As they are.
    #[default]
    F32,
    /// IEEE half precision, nearest even. Magnitudes that round above 65504 are an error.
    F16,
    /// bfloat16, nearest even.
    Bf16,
    /// A sign and one of up to 128 magnitudes fitted to the unit.
    Q8,
    /// A sign and one of up to 8 magnitudes fitted to the unit.
    Q4,
    /// A sign and one of up to 2 magnitudes fitted to the unit.
    Q2,
}

impl ValueChoice {
    /// The words of the key `values=`.
    pub(crate) const WORDS: Words<Self> = Words {
        words: &["f32", "f16", "bf16", "q8", "q4", "q2"],
        values: &[Self::F32, Self::F16, Self::Bf16, Self::Q8, Self::Q4, Self::Q2],
    };

    /// Magnitudes of the largest codebook as a power of two; `None` where values have a fixed format.
    pub(crate) fn codebook_log2(self) -> Option<u32> {
        match self {
            Self::Q8 => Some(7),
            Self::Q4 => Some(3),
            Self::Q2 => Some(1),
            Self::F32 | Self::F16 | Self::Bf16 => None,
        }
    }

    /// Whether only a [`Full`] build has it.
    pub(crate) fn needs_full(self) -> bool {
        self == Self::F16 || self.codebook_log2().is_some()
    }

    /// The format of the values, if they are not in planes.
    pub(crate) fn format(self) -> ValueFormat {
        match self {
            Self::F32 => ValueFormat::F32,
            Self::Bf16 => ValueFormat::Bf16,
            // What this build lacks was refused.
            Self::F16 => Full::build().map_or(ValueFormat::F32, ValueFormat::F16),
            Self::Q8 | Self::Q4 | Self::Q2 => Full::build().map_or(ValueFormat::F32, ValueFormat::Codebook),
        }
    }

    /// Largest number of bytes that the values of `k` entries can take; in planes if they may be.
    pub(crate) fn max_section_bytes(self, k: usize, may_be_planes: bool) -> Option<usize> {
        match self.codebook_log2() {
            None => {
                let trial = if may_be_planes { planes::TRIAL_BYTES } else { 0 };
                k.checked_mul(self.format().fixed_bytes().unwrap_or(4))?.checked_add(trial)
            }
            Some(log2) => codebook::max_section_bytes(log2, k),
        }
    }

    /// Largest number of bytes of a section with a single entry.
    pub(crate) fn max_entry_bytes(self) -> usize {
        self.format().fixed_bytes().unwrap_or(codebook::ENTRY_BYTES)
    }

    /// Words of scratch memory, beside those of the entries, that [`prepare`](Self::prepare) needs.
    pub(crate) fn fit_words(self) -> usize {
        if self.codebook_log2().is_some() { codebook::FIT_WORDS } else { 0 }
    }

    /// Values must stay below this magnitude.
    pub(crate) fn overflow_bound(self) -> f32 {
        narrow::overflow_bound(self.format())
    }

    /// Fits the coder to the entries, decides what each decodes to, and drops those that cannot be sent without loss
    /// of conservation: the first [`Prepared::kept`] elements of every slice are then the entries that are sent. Where there
    /// are draws, a codebook is rounded to by them, and every entry is sent. `is_small` says whether few bytes are worth the
    /// time.
    pub(crate) fn prepare(
        self,
        entries: &mut Entries<'_>,
        draws: Option<&Stream>,
        is_small: bool,
    ) -> Prepared {
        match self.codebook_log2().zip(Full::build()) {
            None => {
                let kept = narrow::prepare(self.format(), entries);
                Prepared { kept, format: self.format(), book: None, is_small }
            }
            Some((log2, full)) => {
                let (kept, book) = match draws {
                    None => codebook::prepare(full, log2, entries),
                    Some(draws) => codebook::prepare_unbiased(full, log2, entries, draws),
                };
                Prepared { kept, format: self.format(), book: Some(book), is_small }
            }
        }
    }
}

/// The entries of a unit on their way to the wire. All slices have one element an entry.
#[derive(Debug)]
pub(crate) struct Entries<'a> {
    /// Positions in the unit, ascending.
    pub(crate) indices: &'a mut [u32],
    /// Bits of the values.
    pub(crate) values: &'a mut [u32],
    /// Bits of what each value decodes to.
    pub(crate) decoded: &'a mut [u32],
    /// One symbol an entry; empty for values in a fixed format that may not be in planes.
    pub(crate) symbols: &'a mut [u8],
    /// At least [`ValueChoice::fit_words`] elements; free once the values are [prepared](ValueChoice::prepare).
    pub(crate) fit: &'a mut [u32],
}

/// What [`ValueChoice::prepare`] decided.
#[derive(Debug)]
pub(crate) struct Prepared {
    kept: usize,
    format: ValueFormat,
    book: Option<Codebook>,
    is_small: bool,
}

impl Prepared {
    /// Entries that are sent.
    pub(crate) fn kept(&self) -> usize {
        self.kept
    }

    /// Writes the values of the kept entries; returns the format that they are in.
    pub(crate) fn write(&self, entries: &mut Entries<'_>, writer: &mut Writer<'_>) -> ValueFormat {
        let (decoded, symbols) = (&entries.decoded[..self.kept], &mut *entries.symbols);
        let kept = self.kept.min(symbols.len());
        let format = self.write_part(decoded, &mut symbols[..kept], usize::MAX, writer);
        debug_assert!(format.is_some(), "there is room for every section");
        format.unwrap_or(self.format)
    }

    /// Writes the values of some of the kept entries, if they take no more than `room` bytes; returns the format that they
    /// are in: by exact bytes, in planes only where that takes fewer.
    pub(crate) fn write_part(
        &self,
        decoded: &[u32],
        symbols: &mut [u8],
        room: usize,
        writer: &mut Writer<'_>,
    ) -> Option<ValueFormat> {
        if let Some(book) = &self.book {
            return book.write(symbols, self.is_small, room, writer).then_some(self.format);
        }
        let bytes = decoded.len().saturating_mul(self.format.fixed_bytes().unwrap_or(4));
        let planes = self.format.in_planes().filter(|_| self.is_small);
        let limit = bytes.min(room.saturating_add(1));
        let shorter = planes.filter(|planes| planes::write(*planes, decoded, symbols, limit, writer));
        if shorter.is_none() && bytes <= room {
            narrow::put_all(Isa::best(), self.format, decoded, writer);
            return Some(self.format);
        }
        shorter
    }
}

/// The value coders as the wire numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueFormat {
    F32,
    F16(Full),
    Bf16,
    Codebook(Full),
    F32Planes(Full),
    F16Planes(Full),
    Bf16Planes(Full),
}

impl ValueFormat {
    pub(crate) fn from_wire(format: u8) -> Result<Self, DecodeError> {
        Ok(match format {
            0 => Self::F32,
            1 => Self::F16(Full::required()?),
            2 => Self::Bf16,
            3 => Self::Codebook(Full::required()?),
            4 => Self::F32Planes(Full::required()?),
            5 => Self::F16Planes(Full::required()?),
            6 => Self::Bf16Planes(Full::required()?),
            _ => return Err(DecodeError::InvalidField(Field::Coding)),
        })
    }

    /// The number on the wire.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::F32 => 0,
            Self::F16(_) => 1,
            Self::Bf16 => 2,
            Self::Codebook(_) => 3,
            Self::F32Planes(_) => 4,
            Self::F16Planes(_) => 5,
            Self::Bf16Planes(_) => 6,
        }
    }

    /// Name as in a codec spelling, where it has one.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16(_) => "f16",
            Self::Bf16 => "bf16",
            Self::Codebook(_) => "codebook",
            Self::F32Planes(_) => "f32-planes",
            Self::F16Planes(_) => "f16-planes",
            Self::Bf16Planes(_) => "bf16-planes",
        }
    }

    /// Bytes of one value, where that does not depend on the frame.
    pub(crate) fn fixed_bytes(self) -> Option<usize> {
        match self {
            Self::F32 => Some(4),
            Self::F16(_) | Self::Bf16 => Some(2),
            Self::Codebook(_) | Self::F32Planes(_) | Self::F16Planes(_) | Self::Bf16Planes(_) => None,
        }
    }

    /// The same values in planes, where this build has any.
    fn in_planes(self) -> Option<Self> {
        let full = Full::build()?;
        match self {
            Self::F32 => Some(Self::F32Planes(full)),
            Self::F16(_) => Some(Self::F16Planes(full)),
            Self::Bf16 => Some(Self::Bf16Planes(full)),
            Self::Codebook(_) | Self::F32Planes(_) | Self::F16Planes(_) | Self::Bf16Planes(_) => None,
        }
    }
}

/// Finite first, then within the caller's limit, so that the two errors are told apart.
pub(crate) fn check_magnitudes(
    mut values: impl Iterator<Item = f32>,
    max_magnitude: f32,
) -> Result<(), DecodeError> {
    values.try_for_each(|value| check_magnitude(value, max_magnitude))
}

pub(crate) fn check_magnitude(value: f32, max_magnitude: f32) -> Result<(), DecodeError> {
    if !value.is_finite() {
        Err(DecodeError::NonFiniteValue)
    } else if value.abs() > max_magnitude {
        Err(DecodeError::LimitExceeded(crate::error::Limit::Magnitude))
    } else {
        Ok(())
    }
}

/// Whether `p − d` is exactly a float, so that adding `d` back to it restores `p` bit for bit.
///
/// # Source
/// The error term of Knuth's TwoSum (The Art of Computer Programming, volume 2, section 4.2.2, theorem B).
pub(crate) fn difference_is_exact(p: f32, d: f32) -> bool {
    let difference = p - d;
    let d_seen = p - difference;
    let p_seen = difference + d_seen;
    (p - p_seen) + (d_seen - d) == 0.0
}
