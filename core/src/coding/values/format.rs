//! The value coders, as spellings name them and as the wire numbers them.

use crate::built::Full;
use crate::error::{DecodeError, Field, Limit};
use crate::keys::Words;

/// How a magnitude between two levels, or two magnitudes of a codebook, is rounded: the key `rounding=` of a
/// spelling.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Rounding {
    /// Rounds up with the probability that makes the result unbiased. Levels use draws of 16 bits: the bias
    /// of one coordinate is at most 2⁻¹⁷ levels. A codebook uses draws of 32 bits, and then covers all
    /// values, from a magnitude not above the smallest to one not below the largest.
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
    /// A sign, and the mean magnitude of the unit. Values of less than half of it are not sent.
    Sign,
}

impl ValueChoice {
    /// The words of the key `values=`.
    pub(crate) const WORDS: Words<Self> = Words {
        words: &["f32", "f16", "bf16", "q8", "q4", "q2", "sign"],
        values: &[Self::F32, Self::F16, Self::Bf16, Self::Q8, Self::Q4, Self::Q2, Self::Sign],
    };

    /// Magnitudes of the largest codebook as a power of two; `None` where values have a fixed format.
    pub(crate) fn codebook_log2(self) -> Option<u32> {
        match self {
            Self::Q8 => Some(7),
            Self::Q4 => Some(3),
            Self::Q2 => Some(1),
            Self::Sign => Some(0),
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
            // What this build lacks was refused earlier.
            Self::F16 => Full::build().map_or(ValueFormat::F32, ValueFormat::F16),
            Self::Q8 | Self::Q4 | Self::Q2 | Self::Sign => {
                Full::build().map_or(ValueFormat::F32, ValueFormat::Codebook)
            }
        }
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

    /// Name as in a codec spelling, if it has one.
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

    /// Bytes of one value, if it does not depend on the frame.
    pub(crate) fn fixed_bytes(self) -> Option<usize> {
        match self {
            Self::F32 => Some(4),
            Self::F16(_) | Self::Bf16 => Some(2),
            Self::Codebook(_) | Self::F32Planes(_) | Self::F16Planes(_) | Self::Bf16Planes(_) => None,
        }
    }

    /// The same values in planes, if this build has them.
    pub(super) fn in_planes(self) -> Option<Self> {
        let full = Full::build()?;
        match self {
            Self::F32 => Some(Self::F32Planes(full)),
            Self::F16(_) => Some(Self::F16Planes(full)),
            Self::Bf16 => Some(Self::Bf16Planes(full)),
            Self::Codebook(_) | Self::F32Planes(_) | Self::F16Planes(_) | Self::Bf16Planes(_) => None,
        }
    }
}

/// Checks first that values are finite, then that they are within the caller's limit, so that the two errors
/// are told apart.
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
        Err(DecodeError::LimitExceeded(Limit::Magnitude))
    } else {
        Ok(())
    }
}
