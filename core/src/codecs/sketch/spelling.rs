//! `sketch`

use super::{Sketch, SketchError};
use crate::codec::{Described, SUMMED, Spelled};
use crate::gradient::density::Density;
use crate::keys::{Keys, MemoryChoice, Printer, SpecError, Words, with_unit_keys};
use crate::wire::ids::{CodecId, Kind};
use core::fmt;

/// Where what was not sent is kept.
const ERROR: Words<bool> = Words { words: &["sketch", "workers"], values: &[true, false] };

impl Spelled for Sketch {
    /// It has no frames.
    const NAMES: &'static [(&'static str, Option<CodecId>)] = &[("sketch", None)];
    const KIND: Kind = Kind::DENSE;
    const KEYS: &'static str = with_unit_keys!("density warmup cells rows error momentum");
    const SUMMARY: &'static str =
        "a count-sketch, summed; the values of the coordinates of which the sum says most";
    const SUITS: &'static str = "workers that keep nothing of their own, many workers";
    const COSTS: &'static str = "errors of the sketch in the values; hashing every coordinate";
    const EXAMPLES: &'static [&'static str] = &[
        "sketch:density=0.01,cells=0.2,momentum=0.9",
        "sketch:density=0.05,cells=0.3,rows=4,momentum=0",
        "sketch:density=0.01,cells=0.25,rows=5,error=workers",
    ];

    fn parse<'a>(_name: &str, keys: &Keys<'a>) -> Result<Self, SpecError<'a>> {
        let density = keys.density("density")?.unwrap_or(Density::percent());
        let cells = keys.density("cells")?.unwrap_or(Self::CELLS);
        let is_height = |rows: &u8| (1..=Self::MAX_ROWS).contains(rows);
        let rows = keys.number("rows", "a whole number from 1 to 9", is_height)?.unwrap_or(Self::ROWS);
        let is_factor = |factor: &f32| (0.0..1.0).contains(factor);
        let momentum = keys.number("momentum", "a number from 0 to below 1", is_factor)?;
        let error = match (keys.word("error", &ERROR)?, momentum) {
            (Some(false), Some(_)) => {
                return Err(SpecError::Conflict("momentum: it is kept in the sketch, with error=sketch"));
            }
            (Some(false), None) => SketchError::Workers,
            (_, momentum) => SketchError::Sketched { momentum: momentum.unwrap_or(Self::MOMENTUM) },
        };
        Ok(Self { density, cells, rows, error })
    }

    fn with_density(self, density: Density) -> Self {
        Self { density, ..self }
    }
}

impl Described for Sketch {
    fn name(&self) -> &'static str {
        "sketch"
    }

    fn print(&self, out: &mut Printer<'_, '_>) -> fmt::Result {
        out.always("density", self.density)?;
        out.always("cells", self.cells)?;
        out.unless(self.rows == Self::ROWS, "rows", self.rows)?;
        match self.error {
            SketchError::Sketched { momentum } => out.always("momentum", momentum),
            SketchError::Workers => out.always("error", ERROR.word(false)),
        }
    }

    fn default_memory(&self) -> MemoryChoice {
        match self.error {
            SketchError::Sketched { .. } => MemoryChoice::State,
            SketchError::Workers => MemoryChoice::ErrorFeedback,
        }
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

    /// A momentum in the sketch is that of SGD.
    fn accumulates_steps(&self) -> bool {
        matches!(self.error, SketchError::Sketched { momentum } if momentum > 0.0)
    }
}
