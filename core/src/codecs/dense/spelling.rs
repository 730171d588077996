//! `none`, `f16` and `bf16`.

use super::{Dense, DenseFields};
use crate::codec::{Body, Described, Spelled};
use crate::keys::{Keys, MemoryChoice, Printer, SpecError};
use crate::wire::ids::{CodecId, Kind};
use core::fmt;

impl Spelled for Dense {
    const NAMES: &'static [(&'static str, Option<CodecId>)] = {
        let [none, f16, bf16] = Self::IDS;
        &[("none", Some(none)), ("f16", Some(f16)), ("bf16", Some(bf16))]
    };
    const KIND: Kind = DenseFields::KIND;
    const KEYS: &'static str = "memory decay max_packet_bytes";
    const SUMMARY: &'static str =
        "every coordinate: as f32 (none), or cast to half precision (f16) or bfloat16 (bf16)";
    const SUITS: &'static str = "fast links; half the bytes for 16 bits";
    const COSTS: &'static str = "about a copy of the gradient";
    const EXAMPLES: &'static [&'static str] = &["none", "f16", "bf16", "bf16:memory=ef"];

    fn parse<'a>(name: &str, _keys: &Keys<'a>) -> Result<Self, SpecError<'a>> {
        let all = [Self::F32, Self::F16, Self::Bf16];
        Ok(all.into_iter().find(|dense| dense.name() == name).unwrap_or(Self::F32))
    }
}

impl Described for Dense {
    fn name(&self) -> &'static str {
        match self {
            Self::F32 => "none",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    fn print(&self, _out: &mut Printer<'_, '_>) -> fmt::Result {
        Ok(())
    }

    fn default_memory(&self) -> MemoryChoice {
        MemoryChoice::None
    }

    fn conflict(&self, keeps: bool) -> Option<&'static str> {
        (keeps && *self == Self::F32).then_some("memory=ef: none sends everything and keeps nothing back")
    }

    fn packet_conflict(&self) -> Option<&'static str> {
        None
    }

    fn is_plain_sum(&self) -> bool {
        *self == Self::F32
    }
}
