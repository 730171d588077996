//! `maxnorm`

use super::MaxNorm;
use crate::codec::{Body, Described, NO_MOMENTUM, SUMMED, Spelled};
use crate::codecs::qsgd::{LevelBits, LevelsFields};
use crate::keys::{Keys, MemoryChoice, Printer, SpecError, with_unit_keys};
use crate::wire::ids::{CodecId, Kind};
use core::fmt;

impl Spelled for MaxNorm {
    /// Its frames are those of `qsgd`.
    const NAMES: &'static [(&'static str, Option<CodecId>)] = &[("maxnorm", None)];
    const KIND: Kind = LevelsFields::KIND;
    const KEYS: &'static str = with_unit_keys!("bits levels");
    const SUMMARY: &'static str = "levels of a norm that all workers share, summed as whole numbers";
    const EXAMPLES: &'static [&'static str] =
        &["maxnorm:bits=4", "maxnorm:bits=8,unit=tensor", "maxnorm:levels=5"];

    fn parse<'a>(_name: &str, keys: &Keys<'a>) -> Result<Self, SpecError<'a>> {
        match LevelBits::parse(keys)? {
            bits @ (LevelBits::Bits(_) | LevelBits::Levels(_)) => Ok(Self { bits }),
            LevelBits::Ternary => Err(SpecError::Conflict(
                "bits=ternary: maxnorm sums levels in fields, which are as narrow with bits=2",
            )),
        }
    }
}

impl Described for MaxNorm {
    fn name(&self) -> &'static str {
        "maxnorm"
    }

    fn print(&self, out: &mut Printer<'_, '_>) -> fmt::Result {
        self.bits.print(out)
    }

    fn default_memory(&self) -> MemoryChoice {
        MemoryChoice::None
    }

    fn conflict(&self, memory: MemoryChoice) -> Option<&'static str> {
        match memory {
            MemoryChoice::None => None,
            MemoryChoice::Momentum => Some(NO_MOMENTUM),
            MemoryChoice::ErrorFeedback => {
                Some("memory=ef: maxnorm rounds stochastically, which is unbiased and no contraction")
            }
        }
    }

    fn packet_conflict(&self) -> Option<&'static str> {
        Some(SUMMED)
    }
}
