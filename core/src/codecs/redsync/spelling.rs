//! `redsync`

use super::{Redsync, WIDTH, is_width};
use crate::codec::{Body, Described, Spelled};
use crate::coding::values::ValueChoice;
use crate::gradient::density::Density;
use crate::keys::{Keys, MemoryChoice, Printer, SpecError};
use crate::sparse::{SparseCoding, SparseFields, Sparsifier, sparse_keys};
use crate::wire::ids::{CodecId, Kind};
use core::fmt;

impl Spelled for Redsync {
    const NAMES: &'static [(&'static str, Option<CodecId>)] = &[("redsync", Some(Self::ID))];
    const KIND: Kind = SparseFields::KIND;
    const KEYS: &'static str = sparse_keys!("density warmup width");
    const SUMMARY: &'static str =
        "what exceeds a threshold between mean and largest magnitude, found by halving";
    const SUITS: &'static str = "as `topk`, to compare with the paper";
    const COSTS: &'static str = "up to four passes; fewer than k entries where tails are heavy";
    const EXAMPLES: &'static [&'static str] =
        &["redsync:density=0.01", "redsync:density=0.01,width=0.001,values=q8"];

    fn parse<'a>(_name: &str, keys: &Keys<'a>) -> Result<Self, SpecError<'a>> {
        Ok(Self {
            density: keys.density("density")?.unwrap_or(Density::percent()),
            width: keys
                .number("width", "a number from 2^-16 to below 1", |&width| is_width(width))?
                .unwrap_or(WIDTH),
            coding: SparseCoding::parse(keys)?,
        })
    }

    fn with_density(self, density: Density) -> Self {
        self.with_density(density)
    }
}

impl Described for Redsync {
    fn name(&self) -> &'static str {
        "redsync"
    }

    fn print(&self, out: &mut Printer<'_, '_>) -> fmt::Result {
        out.always("density", self.density)?;
        out.unless(self.width == WIDTH, "width", self.width)?;
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

    fn density(&self) -> Option<Density> {
        Some(self.density)
    }

    fn sparse_values(&self) -> Option<ValueChoice> {
        Some(self.coding.values)
    }
}
