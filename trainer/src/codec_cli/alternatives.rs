//! The size of a sparse unit's sections and of a levels unit's body under every coder, found by encoding
//! their content.

use gradwire::format::{FrameUnit, Outline, UnitInfo};
use gradwire::{Encoder, Grad, LayoutRef, Limits, Source, Spec, StepInput, StepKey, Unit};
use serde::Serialize;

use super::table::grouped;

/// Spellings of index coders, and of value coders.
const INDEX: [&str; 5] = ["raw", "bitmap", "rice", "context", "context-max"];
const VALUES: [&str; 6] = ["f32", "f16", "bf16", "q8", "q4", "q2"];

/// A coder, and the bytes that it takes.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Cost {
    coder: &'static str,
    bytes: usize,
}

/// The size of a unit under each coder that accepts it.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Alternatives {
    /// The positions of a sparse unit, and its values.
    Sparse { index: Vec<Cost>, values: Vec<Cost> },
    /// The body of a levels unit: norms and levels.
    Levels { levels: Vec<Cost> },
}

impl Alternatives {
    /// Of a sparse or levels unit that is not empty. Units of more than `most` coordinates are not encoded
    /// again: a small frame can claim to be of many coordinates.
    pub(super) fn of(unit: &FrameUnit<'_>, most: usize) -> Option<Self> {
        let info = unit.info();
        match info.kind {
            _ if info.held == 0 || info.unit.len > most => None,
            "sparse" => Some(Self::of_sparse(unit, info.unit.len)),
            "levels" => Some(Self::of_levels(unit)),
            _ => None,
        }
    }

    /// Without the shapes of the layout context models see one row, and cost more than they would with them.
    /// Values that decode to 0 are left out.
    fn of_sparse(unit: &FrameUnit<'_>, len: usize) -> Self {
        // One buffer, filled twice: first with marks, for the positions.
        let mut values = vec![0.0; len];
        unit.for_each(|i, _| values[i] = 1.0);
        let by_index = |index: &&str| {
            let info = encoded(&format!("threshold:value=1,index={index},values=bf16,memory=none"), &values)?;
            info.index.map(|(coder, bytes)| Cost { coder, bytes })
        };
        let index = INDEX.iter().filter_map(by_index).collect();
        unit.for_each(|i, value| values[i] = value);
        let by_values = |coder: &&'static str| {
            let info =
                encoded(&format!("threshold:value=1e-45,index=small,values={coder},memory=none"), &values)?;
            info.values.map(|(_, bytes)| Cost { coder, bytes })
        };
        Self::Sparse { index, values: VALUES.iter().filter_map(by_values).collect() }
    }

    /// The same norms and levels, encoded once more.
    fn of_levels(unit: &FrameUnit<'_>) -> Self {
        let infos = unit.level_alternatives().into_iter();
        let cost = |info: UnitInfo| Some(Cost { coder: info.values?.0, bytes: info.body_bytes });
        Self::Levels { levels: infos.filter_map(cost).collect() }
    }

    /// Coders with their bytes, on one line.
    pub(super) fn line(&self) -> String {
        let list = |costs: &[Cost]| {
            let costs = costs.iter().map(|cost| format!("{} {}", cost.coder, grouped(cost.bytes)));
            costs.collect::<Vec<_>>().join(", ")
        };
        match self {
            Self::Sparse { index, values } => format!("index {}; values {}", list(index), list(values)),
            Self::Levels { levels } => format!("levels {}", list(levels)),
        }
    }
}

/// The parts of the only unit of the frame that a spelling makes of `values`; `None` if it cannot.
fn encoded(spelling: &str, values: &[f32]) -> Option<UnitInfo> {
    let codec = Spec::parse(spelling).ok()?.codec;
    let layout = LayoutRef::flat(values.len());
    let key = StepKey { seed: 0, step: 0, source: Source::Rank(0) };
    let units = [Unit::whole(values.len())];
    let mut encoder = Encoder::new();
    let frame = encoder
        .encode(&codec, &StepInput { key, layout: &layout, units: &units, grad: Grad::F32(values) }, None)
        .ok()?;
    Outline::read(frame, &Limits::for_layout(&layout)).ok()?.units().next()
}
