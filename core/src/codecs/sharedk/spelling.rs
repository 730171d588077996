//! `sharedk`

use super::{SharedBy, SharedK, SketchSize};
use crate::codec::{Described, SUMMED, Spelled};
use crate::gradient::density::Density;
use crate::keys::{Keys, MemoryChoice, Printer, SpecError, Words, with_unit_keys};
use crate::wire::ids::{CodecId, Kind};
use core::fmt;

/// How the coordinates are found.
const BY: Words<SharedBy> =
    Words { words: &["sketch", "leader"], values: &[SharedBy::DEFAULT, SharedBy::Leader] };

const OF_A_SKETCH: [&str; 3] = ["rows", "columns", "candidates"];

/// What the keys of a sketch say.
fn sketch<'a>(keys: &Keys<'a>) -> Result<SharedBy, SpecError<'a>> {
    let of = |key, range, default| Ok(keys.number(key, range, |&n: &u8| n > 0)?.unwrap_or(default));
    let default = SketchSize::DEFAULT;
    let is_height = |&rows: &u8| SketchSize::new(rows, 1).is_some();
    let rows = keys.number("rows", "a whole number from 1 to 9", is_height)?.unwrap_or(default.rows());
    let columns = of("columns", "a whole number from 1 to 255", default.columns())?;
    let size = SketchSize::new(rows, columns).unwrap_or(default);
    let candidates = of("candidates", "a whole number from 1 to 255", SharedBy::CANDIDATES)?;
    Ok(SharedBy::Sketch { size, candidates })
}

impl Spelled for SharedK {
    /// It has no frames.
    const NAMES: &'static [(&'static str, Option<CodecId>)] = &[("sharedk", None)];
    const KIND: Kind = Kind::DENSE;
    const KEYS: &'static str = with_unit_keys!("density warmup by rows columns candidates");
    const SUMMARY: &'static str =
        "the coordinates that a summed sketch or one worker finds largest, and their summed values";
    const SUITS: &'static str = "all-reduce with few bytes, many workers";
    const COSTS: &'static str = "16 floats for each value, or 2 with `by=leader`; hashing every coordinate";
    const EXAMPLES: &'static [&'static str] = &[
        "sharedk:density=0.01,by=sketch",
        "sharedk:density=0.1,by=sketch,rows=3,columns=2,candidates=3",
        "sharedk:density=0.02,by=leader",
    ];

    fn parse<'a>(_name: &str, keys: &Keys<'a>) -> Result<Self, SpecError<'a>> {
        let density = keys.density("density")?.unwrap_or(Density::percent());
        let has_sketch = OF_A_SKETCH.iter().any(|key| keys.text(key).is_some());
        let by = match keys.word("by", &BY)? {
            Some(SharedBy::Leader) if has_sketch => {
                return Err(SpecError::Conflict("rows, columns, candidates: they belong to by=sketch"));
            }
            Some(SharedBy::Leader) => SharedBy::Leader,
            _ => sketch(keys)?,
        };
        Ok(Self { density, by })
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
        out.always("density", self.density)?;
        let SharedBy::Sketch { size, candidates } = self.by else {
            return out.always("by", BY.word(SharedBy::Leader));
        };
        let default = SketchSize::DEFAULT;
        out.always("by", BY.word(SharedBy::DEFAULT))?;
        out.unless(size.rows() == default.rows(), "rows", size.rows())?;
        out.unless(size.columns() == default.columns(), "columns", size.columns())?;
        out.unless(candidates == SharedBy::CANDIDATES, "candidates", candidates)
    }

    fn default_memory(&self) -> MemoryChoice {
        MemoryChoice::ErrorFeedback
    }

    fn conflict(&self, _keeps: bool) -> Option<&'static str> {
        None
    }

    fn packet_conflict(&self) -> Option<&'static str> {
        Some(SUMMED)
    }

    fn density(&self) -> Option<Density> {
        Some(self.density)
    }
}
