//! `sharedk`

use super::{SharedBy, SharedFeedback, SharedK, SketchSize};
use crate::codec::{Described, SUMMED, Spelled};
use crate::gradient::density::Density;
use crate::keys::{Keys, MemoryChoice, Printer, SpecError, Words, with_unit_keys};
use crate::wire::ids::{CodecId, Kind};
use core::fmt;

/// How the coordinates are found.
const BY: Words<SharedBy> =
    Words { words: &["sketch", "leader"], values: &[SharedBy::DEFAULT, SharedBy::Leader] };

/// What workers keep.
const FEEDBACK: Words<SharedFeedback> = Words {
    words: &["residual", "ef21"],
    values: &[SharedFeedback::DEFAULT, SharedFeedback::Estimate { momentum: SharedFeedback::MOMENTUM }],
};

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

/// What the keys of the feedback say.
fn feedback<'a>(keys: &Keys<'a>) -> Result<SharedFeedback, SpecError<'a>> {
    let is_share = |share: &f32| *share > 0.0 && *share <= 1.0;
    let lowpass = keys.number("lowpass", "a number above 0, at most 1", is_share)?;
    let is_factor = |factor: &f32| (0.0..1.0).contains(factor);
    let momentum = keys.number("momentum", "a number from 0 to below 1", is_factor)?;
    let word = keys.word("feedback", &FEEDBACK)?.unwrap_or(SharedFeedback::DEFAULT);
    match (word, lowpass, momentum) {
        (SharedFeedback::Estimate { .. }, Some(_), _) => {
            Err(SpecError::Conflict("lowpass: it filters a residual, with feedback=residual"))
        }
        (SharedFeedback::Residual { .. }, _, Some(_)) => {
            Err(SpecError::Conflict("momentum: it belongs to feedback=ef21"))
        }
        (SharedFeedback::Estimate { momentum: usual }, None, momentum) => {
            Ok(SharedFeedback::Estimate { momentum: momentum.unwrap_or(usual) })
        }
        (SharedFeedback::Residual { lowpass: usual }, lowpass, None) => {
            Ok(SharedFeedback::Residual { lowpass: lowpass.unwrap_or(usual) })
        }
    }
}

impl Spelled for SharedK {
    /// It has no frames.
    const NAMES: &'static [(&'static str, Option<CodecId>)] = &[("sharedk", None)];
    const KIND: Kind = Kind::DENSE;
    const KEYS: &'static str =
        with_unit_keys!("density warmup by rows columns candidates feedback lowpass momentum");
    const SUMMARY: &'static str =
        "the coordinates that a summed sketch or one worker finds largest, and their summed values";
    const SUITS: &'static str = "all-reduce with few bytes, many workers";
    const COSTS: &'static str = "16 floats for each value and hashing every coordinate, or 2 floats and three rounds with `by=leader`";
    const EXAMPLES: &'static [&'static str] = &[
        "sharedk:density=0.01,by=sketch",
        "sharedk:density=0.1,by=sketch,rows=3,columns=2,candidates=3",
        "sharedk:density=0.02,by=leader",
        "sharedk:density=0.02,by=leader,lowpass=0.25",
        "sharedk:density=0.01,by=sketch,feedback=ef21,momentum=0.9",
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
        Ok(Self { density, by, feedback: feedback(keys)? })
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
        match self.by {
            SharedBy::Leader => out.always("by", BY.word(SharedBy::Leader))?,
            SharedBy::Sketch { size, candidates } => {
                let default = SketchSize::DEFAULT;
                out.always("by", BY.word(SharedBy::DEFAULT))?;
                out.unless(size.rows() == default.rows(), "rows", size.rows())?;
                out.unless(size.columns() == default.columns(), "columns", size.columns())?;
                out.unless(candidates == SharedBy::CANDIDATES, "candidates", candidates)?;
            }
        }
        match self.feedback {
            SharedFeedback::Residual { lowpass } => out.unless(lowpass == 1.0, "lowpass", lowpass),
            SharedFeedback::Estimate { momentum } => {
                out.always("feedback", "ef21")?;
                out.always("momentum", momentum)
            }
        }
    }

    fn default_memory(&self) -> MemoryChoice {
        match self.feedback {
            SharedFeedback::Residual { .. } => MemoryChoice::ErrorFeedback,
            SharedFeedback::Estimate { .. } => MemoryChoice::State,
        }
    }

    fn conflict(&self, keeps: bool) -> Option<&'static str> {
        let filters = matches!(self.feedback, SharedFeedback::Residual { lowpass } if lowpass < 1.0);
        (filters && !keeps).then_some("lowpass: with memory=none there is no residual to filter")
    }

    fn packet_conflict(&self) -> Option<&'static str> {
        Some(SUMMED)
    }

    fn density(&self) -> Option<Density> {
        Some(self.density)
    }
}
