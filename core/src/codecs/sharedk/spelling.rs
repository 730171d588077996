//! `sharedk`

use super::{SharedK, SketchSize};
use crate::codec::{Described, NO_MOMENTUM, SUMMED, Spelled};
use crate::gradient::density::Density;
use crate::keys::{Keys, MemoryChoice, Printer, SpecError, Words, with_unit_keys};
use crate::wire::ids::{CodecId, Kind};
use core::fmt;

/// How the coordinates are found.
const BY: Words<()> = Words { words: &["sketch"], values: &[()] };

impl Spelled for SharedK {
    /// It has no frames.
    const NAMES: &'static [(&'static str, Option<CodecId>)] = &[("sharedk", None)];
    const KIND: Kind = Kind::DENSE;
    const KEYS: &'static str = with_unit_keys!("density warmup by rows columns candidates");
    const SUMMARY: &'static str =
        "the coordinates that a summed sketch finds largest, and their summed values";
    const EXAMPLES: &'static [&'static str] =
        &["sharedk:density=0.01,by=sketch", "sharedk:density=0.1,by=sketch,rows=3,columns=2,candidates=3"];

    fn parse<'a>(_name: &str, keys: &Keys<'a>) -> Result<Self, SpecError<'a>> {
        let of = |key, range, default| Ok(keys.number(key, range, |&n: &u8| n > 0)?.unwrap_or(default));
        keys.word("by", &BY)?;
        let default = SketchSize::DEFAULT;
        let is_height = |&rows: &u8| SketchSize::new(rows, 1).is_some();
        let rows = keys.number("rows", "a whole number from 1 to 9", is_height)?.unwrap_or(default.rows());
        let columns = of("columns", "a whole number from 1 to 255", default.columns())?;
        Ok(Self {
            density: keys.density("density")?.unwrap_or(Density::percent()),
            size: SketchSize::new(rows, columns).unwrap_or(default),
            candidates: of("candidates", "a whole number from 1 to 255", Self::CANDIDATES)?,
        })
    }

    fn with_density(self, density: Density) -> Self {
        Self { density, ..self }
    }
}

impl Described for SharedK {
    fn name(&self) -> &'static str {
        "sharedk"
    }

    fn print(&self, out: &mut Printer<'_, '_>) -> fmt::Result {
        let default = SketchSize::DEFAULT;
        out.always("density", self.density)?;
        out.always("by", BY.word(()))?;
        out.unless(self.size.rows() == default.rows(), "rows", self.size.rows())?;
        out.unless(self.size.columns() == default.columns(), "columns", self.size.columns())?;
        out.unless(self.candidates == Self::CANDIDATES, "candidates", self.candidates)
    }

    fn default_memory(&self) -> MemoryChoice {
        MemoryChoice::ErrorFeedback
    }

    fn conflict(&self, memory: MemoryChoice) -> Option<&'static str> {
        (memory == MemoryChoice::Momentum).then_some(NO_MOMENTUM)
    }

    fn packet_conflict(&self) -> Option<&'static str> {
        Some(SUMMED)
    }

    fn density(&self) -> Option<Density> {
        Some(self.density)
    }
}
