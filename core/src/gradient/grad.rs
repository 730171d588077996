//! A gradient as the caller holds it.

use half::{bf16, f16};

/// A borrowed flat gradient in one of the formats that trainers keep. Memories and accumulators are always
/// f32.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub enum Grad<'a> {
    /// IEEE single precision.
    F32(&'a [f32]),
    /// IEEE half precision.
    F16(&'a [f16]),
    /// bfloat16.
    Bf16(&'a [bf16]),
}

impl<'a> Grad<'a> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether every element is zero, of either sign. Reads up to the first that is not.
    ///
    /// # Examples
    /// ```
    /// use gradwire::Grad;
    /// assert!(Grad::F32(&[0.0, -0.0]).is_zero() && !Grad::F32(&[0.0, f32::NAN]).is_zero());
    /// ```
    #[must_use]
    pub fn is_zero(&self) -> bool {
        match self {
            Self::F32(values) => {
                // In blocks, so that the compiler uses vectors.
                let are_zero = |block: &[f32]| block.iter().fold(true, |all, value| all & (*value == 0.0));
                values.chunks(64).all(are_zero)
            }
            Self::F16(values) => values.iter().all(|value| *value == f16::ZERO),
            Self::Bf16(values) => values.iter().all(|value| *value == bf16::ZERO),
        }
    }

    /// The elements `start … start + len`.
    ///
    /// # Panics
    /// When the range reaches beyond the gradient.
    #[must_use]
    pub fn slice(&self, start: usize, len: usize) -> Grad<'a> {
        match *self {
            Self::F32(values) => Self::F32(&values[start..start + len]),
            Self::F16(values) => Self::F16(&values[start..start + len]),
            Self::Bf16(values) => Self::Bf16(&values[start..start + len]),
        }
    }
}

impl<'a> From<&'a [f32]> for Grad<'a> {
    fn from(values: &'a [f32]) -> Self {
        Self::F32(values)
    }
}

impl<'a> From<&'a [f16]> for Grad<'a> {
    fn from(values: &'a [f16]) -> Self {
        Self::F16(values)
    }
}

impl<'a> From<&'a [bf16]> for Grad<'a> {
    fn from(values: &'a [bf16]) -> Self {
        Self::Bf16(values)
    }
}
