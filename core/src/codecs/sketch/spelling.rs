//! `sketch`

use super::{AmsGrad, Sketch, SketchError};
use crate::codec::{Described, SUMMED, Spelled};
use crate::gradient::density::Density;
use crate::keys::{Keys, MemoryChoice, Printer, SpecError, Words, with_unit_keys};
use crate::wire::ids::{CodecId, Kind};
use core::fmt;

/// Whether what was not sent is kept in the sketch.
const ERROR: Words<bool> = Words { words: &["sketch", "workers"], values: &[true, false] };
/// Whether the mean is divided.
const MOMENTS: Words<bool> = Words { words: &["none", "amsgrad"], values: &[false, true] };

impl Spelled for Sketch {
    /// It has no frames.
    const NAMES: &'static [(&'static str, Option<CodecId>)] = &[("sketch", None)];
    const KIND: Kind = Kind::DENSE;
    const KEYS: &'static str =
        with_unit_keys!("density warmup cells rows error moments momentum squares floor");
    const SUMMARY: &'static str =
        "a count-sketch, summed; the values of the coordinates of which the sum says most";
    const SUITS: &'static str = "what waits is kept alike at all workers; many workers";
    const COSTS: &'static str = "errors of the sketch in the values; hashing every coordinate";
    const EXAMPLES: &'static [&'static str] = &[
        "sketch:density=0.01,cells=0.2,momentum=0.9",
        "sketch:density=0.05,cells=0.3,rows=4,momentum=0",
        "sketch:density=0.01,cells=0.25,rows=5,error=workers",
        "sketch:cells=0.4,rows=3,moments=amsgrad,squares=0.99,floor=0.01",
    ];

    fn parse<'a>(_name: &str, keys: &Keys<'a>) -> Result<Self, SpecError<'a>> {
        let density = keys.density("density")?.unwrap_or(Density::percent());
        let cells = keys.density("cells")?.unwrap_or(Self::CELLS);
        let is_height = |rows: &u8| (1..=Self::MAX_ROWS).contains(rows);
        let rows = keys.number("rows", "a whole number from 1 to 9", is_height)?.unwrap_or(Self::ROWS);
        let error = SketchError::parse(keys)?;
        Ok(Self { density, cells, rows, error })
    }

    fn with_density(self, density: Density) -> Self {
        Self { density, ..self }
    }
}

/// A factor of a mean.
fn factor<'a>(keys: &Keys<'a>, key: &str) -> Result<Option<f32>, SpecError<'a>> {
    keys.number(key, "a number from 0 to below 1", |factor| (0.0..1.0).contains(factor))
}

impl SketchError {
    fn parse<'a>(keys: &Keys<'a>) -> Result<Self, SpecError<'a>> {
        let (in_sketch, momentum) = (keys.word("error", &ERROR)?, factor(keys, "momentum")?);
        if keys.word("moments", &MOMENTS)? == Some(true) {
            let why = "moments=amsgrad: workers keep what was not sent, as with error=workers";
            let refused = (in_sketch == Some(true)).then_some(SpecError::Conflict(why));
            return refused.map_or_else(|| AmsGrad::parse(keys, momentum).map(Self::Divided), Err);
        }
        if keys.text("squares").or(keys.text("floor")).is_some() {
            return Err(SpecError::Conflict("squares, floor: they belong to moments=amsgrad"));
        }
        match (in_sketch, momentum) {
            (Some(false), Some(_)) => {
                Err(SpecError::Conflict("momentum: it is kept in the sketch, with error=sketch"))
            }
            (Some(false), None) => Ok(Self::Workers),
            (_, momentum) => Ok(Self::Sketched { momentum: momentum.unwrap_or(Sketch::MOMENTUM) }),
        }
    }
}

impl AmsGrad {
    fn parse<'a>(keys: &Keys<'a>, momentum: Option<f32>) -> Result<Self, SpecError<'a>> {
        let is_floor = |floor: &f32| *floor > 0.0 && floor.is_finite();
        let floor = keys.number("floor", "a finite number above 0", is_floor)?.unwrap_or(Self::FLOOR);
        let squares = factor(keys, "squares")?.unwrap_or(Self::SQUARES);
        if sends_dense(keys)? {
            return Err(SpecError::Conflict(
                "dense_1d, dense_below: what is sent dense is no step of moments=amsgrad",
            ));
        }
        let momentum = momentum.unwrap_or(Sketch::MOMENTUM);
        Ok(Self { momentum, squares, floor })
    }
}

/// Whether some tensors may be sent dense.
fn sends_dense<'a>(keys: &Keys<'a>) -> Result<bool, SpecError<'a>> {
    let below: Option<usize> = keys.number("dense_below", "a whole number", |_| true)?;
    Ok(keys.flag("dense_1d")? == Some(true) || below.is_some_and(|below| below > 0))
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
            SketchError::Divided(amsgrad) => {
                out.always("moments", MOMENTS.word(true))?;
                out.always("momentum", amsgrad.momentum())?;
                out.unless(amsgrad.squares() == AmsGrad::SQUARES, "squares", amsgrad.squares())?;
                out.unless(amsgrad.floor() == AmsGrad::FLOOR, "floor", amsgrad.floor())
            }
        }
    }

    fn default_memory(&self) -> MemoryChoice {
        match self.error {
            SketchError::Sketched { .. } => MemoryChoice::State,
            SketchError::Workers | SketchError::Divided(_) => MemoryChoice::ErrorFeedback,
        }
    }

    fn conflict(&self, keeps: bool) -> Option<&'static str> {
        let needs = matches!(self.error, SketchError::Divided(_)) && !keeps;
        needs.then_some("memory=none: AMSGrad keeps its moments there")
    }

    fn packet_conflict(&self) -> Option<&'static str> {
        Some(SUMMED)
    }

    fn density(&self) -> Option<Density> {
        Some(self.density)
    }

    /// A momentum in the sketch is that of SGD, and a quotient is a step of AMSGrad.
    fn accumulates_steps(&self) -> bool {
        match self.error {
            SketchError::Sketched { momentum } => momentum > 0.0,
            SketchError::Workers => false,
            SketchError::Divided(_) => true,
        }
    }
}
