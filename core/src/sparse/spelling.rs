//! The keys that all sparsifiers share.

use super::encode::SparseCoding;
use crate::coding::index::IndexChoice;
use crate::coding::values::{Rounding, ValueChoice};
use crate::keys::{Keys, MemoryChoice, Printer, SpecError};
use core::fmt;

/// The keys of a sparsifier, after those of its own.
macro_rules! sparse_keys {
    ($own:expr) => {
        crate::keys::with_unit_keys!(concat!($own, " index values rounding"))
    };
}
pub(crate) use sparse_keys;

/// What every sparsifier states about its coding.
macro_rules! coding_methods {
    ($codec:ty) => {
        impl $codec {
            /// Sets how values are rounded to the codebook of `q8`, `q4` or `q2`: to the
            /// [nearest](crate::coding::values::Rounding::Nearest), which is the default, or stochastically,
            /// which is unbiased and takes no memory. Other values are always rounded to the nearest.
            #[must_use]
            pub fn with_rounding(self, rounding: crate::coding::values::Rounding) -> Self {
                Self { coding: crate::sparse::SparseCoding { rounding, ..self.coding }, ..self }
            }

            /// The index coder.
            #[must_use]
            pub fn index(&self) -> crate::coding::index::IndexChoice {
                self.coding.index
            }

            /// The value coder.
            #[must_use]
            pub fn values(&self) -> crate::coding::values::ValueChoice {
                self.coding.values
            }

            /// How values are rounded to a codebook.
            #[must_use]
            pub fn rounding(&self) -> crate::coding::values::Rounding {
                self.coding.rounding
            }
        }
    };
}
pub(crate) use coding_methods;

/// The same for the density, for sparsifiers that have one.
macro_rules! density_methods {
    ($codec:ty) => {
        impl $codec {
            /// At another density.
            #[must_use]
            pub fn with_density(self, density: crate::gradient::density::Density) -> Self {
                Self { density, ..self }
            }

            /// The density.
            #[must_use]
            pub fn density(&self) -> crate::gradient::density::Density {
                self.density
            }
        }
    };
}
pub(crate) use density_methods;

impl SparseCoding {
    pub(crate) fn parse<'a>(keys: &Keys<'a>) -> Result<Self, SpecError<'a>> {
        Ok(Self {
            index: keys.word("index", &IndexChoice::WORDS)?.unwrap_or_default(),
            values: keys.word("values", &ValueChoice::WORDS)?.unwrap_or_default(),
            rounding: keys.word("rounding", &Rounding::WORDS)?.unwrap_or(Rounding::Nearest),
        })
    }

    pub(crate) fn print(self, out: &mut Printer<'_, '_>) -> fmt::Result {
        out.unless(self.index == IndexChoice::default(), "index", IndexChoice::WORDS.word(self.index))?;
        out.unless(self.values == ValueChoice::default(), "values", ValueChoice::WORDS.word(self.values))?;
        out.unless(self.rounding == Rounding::Nearest, "rounding", Rounding::WORDS.word(self.rounding))
    }

    /// Error feedback, unless values are unbiased.
    pub(crate) fn default_memory(self) -> MemoryChoice {
        if self.is_stochastic() { MemoryChoice::None } else { MemoryChoice::ErrorFeedback }
    }

    /// Why this coding does not work with a memory, or at all. The codec's own conflicts with the memory come
    /// first.
    pub(crate) fn conflict(self, keeps: bool) -> Option<&'static str> {
        if keeps && self.is_stochastic() {
            return Some(
                "memory: values rounded with rounding=stochastic are unbiased, but no proven contraction; use memory=none",
            );
        }
        (self.rounding == Rounding::Stochastic && !self.is_stochastic())
            .then_some("rounding=stochastic: only values=q8, q4 and q2 are rounded to a codebook")
    }

    pub(crate) fn packet_conflict(self) -> Option<&'static str> {
        match self.index {
            IndexChoice::Chunks => {
                Some("max_packet_bytes: index=chunks counts the entries of every chunk; use index=auto")
            }
            index => (!index.is_cut()).then_some(
                "max_packet_bytes: a bitmap of a range may be longer than a packet; use index=auto",
            ),
        }
    }
}
