//! `efsign`

use super::{EfSign, SignsFields};
use crate::codec::{Body, Described, Spelled};
use crate::keys::{Keys, MemoryChoice, Printer, SpecError};
use crate::wire::ids::{CodecId, Kind};
use core::fmt;

impl Spelled for EfSign {
    const NAMES: &'static [(&'static str, Option<CodecId>)] = &[("efsign", Some(Self::ID))];
    const KIND: Kind = SignsFields::KIND;
    const KEYS: &'static str = "memory decay unit dense_below dense_1d max_packet_bytes";
    const SUMMARY: &'static str =
        "the sign of every coordinate times the mean magnitude, with error feedback";
    const SUITS: &'static str = "one bit a coordinate is few enough";
    const COSTS: &'static str = "one more pass, for the mean magnitude";
    const EXAMPLES: &'static [&'static str] = &["efsign", "efsign:unit=model,dense_1d"];

    fn parse<'a>(_name: &str, _keys: &Keys<'a>) -> Result<Self, SpecError<'a>> {
        Ok(Self)
    }
}

impl Described for EfSign {
    fn name(&self) -> &'static str {
        "efsign"
    }

    fn print(&self, _out: &mut Printer<'_, '_>) -> fmt::Result {
        Ok(())
    }

    fn default_memory(&self) -> MemoryChoice {
        MemoryChoice::ErrorFeedback
    }

    fn conflict(&self, _keeps: bool) -> Option<&'static str> {
        None
    }

    fn packet_conflict(&self) -> Option<&'static str> {
        None
    }

    /// The paper has a scale for each layer.
    fn default_per_tensor(&self) -> bool {
        true
    }
}
