//! `threshold`

use super::Threshold;
use crate::codec::{Body, Described, Spelled};
use crate::coding::values::ValueChoice;
use crate::keys::{Keys, MemoryChoice, Printer, SpecError};
use crate::sparse::{SparseCoding, SparseFields, Sparsifier, sparse_keys};
use crate::wire::ids::{CodecId, Kind};
use core::fmt;

impl Spelled for Threshold {
    const NAMES: &'static [(&'static str, Option<CodecId>)] = &[("threshold", Some(Self::ID))];
    const KIND: Kind = SparseFields::KIND;
    const KEYS: &'static str = sparse_keys!("value");
    const SUMMARY: &'static str = "all coordinates at or above a fixed magnitude";
    const SUITS: &'static str = "you know the scale of your gradients";
    const COSTS: &'static str = "as `topk`, but the size of frames varies";
    const EXAMPLES: &'static [&'static str] = &["threshold:value=0.001", "threshold:value=0.5,values=bf16"];

    fn parse<'a>(_name: &str, keys: &Keys<'a>) -> Result<Self, SpecError<'a>> {
        let is_valid = |value: &f32| value.is_finite() && *value >= 0.0;
        let value = keys.number("value", "a finite number, not negative", is_valid)?;
        let value = value.ok_or(SpecError::MissingKey("value"))?;
        Ok(Self { value: value.abs(), coding: SparseCoding::parse(keys)? })
    }
}

impl Described for Threshold {
    fn name(&self) -> &'static str {
        "threshold"
    }

    fn print(&self, out: &mut Printer<'_, '_>) -> fmt::Result {
        out.always("value", self.value)?;
        self.coding.print(out)
    }

    fn default_memory(&self) -> MemoryChoice {
        self.coding.default_memory()
    }

    fn conflict(&self, keeps: bool) -> Option<&'static str> {
        self.coding.conflict(keeps)
    }

    fn packet_conflict(&self) -> Option<&'static str> {
        self.coding.packet_conflict()
    }

    fn sparse_values(&self) -> Option<ValueChoice> {
        Some(self.coding.values)
    }
}
