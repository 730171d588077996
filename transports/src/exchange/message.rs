//! What a message of a worker holds, once it has passed every check.

use gradwire::Frame;
use gradwire::format::FrameUnit;
use gradwire::plan::{GroupFrames, Plan};

use super::means::Means;

/// A message that passed every check: a frame, or the frames of several groups.
pub(super) enum Message<'a> {
    Frame(Frame<'a>),
    Groups(GroupFrames<'a>),
}

impl<'a> Message<'a> {
    /// The frames, each with whether a memory keeps what it does not hold.
    pub(super) fn frames(&self) -> impl Iterator<Item = (&Frame<'a>, bool)> {
        let (frame, groups) = match self {
            Self::Frame(frame) => (Some((frame, true)), None),
            Self::Groups(groups) => (None, Some(groups)),
        };
        let groups = groups.into_iter().flat_map(GroupFrames::frames);
        frame.into_iter().chain(groups.map(|(group, frame)| (frame, group.keeps())))
    }

    pub(super) fn add_scaled_to(&self, weight: f32, sum: &mut [f32]) {
        self.frames().for_each(|(frame, _)| frame.add_scaled_to(weight, sum));
    }

    /// Adds it to means that may stand apart, on threads if the plan says so.
    pub(super) fn add_to(&self, plan: &Plan, means: &mut dyn Means) {
        if plan.is_on_threads() {
            return self.frames().for_each(|(frame, _)| add_side_by_side(frame, plan, means));
        }
        match means.flat() {
            Some(sum) => self.add_scaled_to(1.0, sum),
            None => self.units().for_each(|unit| unit.add_scaled_to(1.0, means.of(unit.id(), unit.range()))),
        }
    }

    pub(super) fn units(&self) -> impl Iterator<Item = FrameUnit<'_>> {
        self.frames().flat_map(|(frame, _)| frame.units())
    }

    /// Coordinates that it sends.
    pub(super) fn held(&self) -> usize {
        self.units().map(|unit| unit.held()).sum()
    }
}

fn add_side_by_side(frame: &Frame<'_>, plan: &Plan, means: &mut dyn Means) {
    let sums = means.all(&mut frame.units().map(|unit| (unit.id(), unit.range())));
    plan.add_units(1.0, frame.units().zip(sums).collect());
}
