//! Where the mean of a step is written.

use std::ops::Range;

/// Places for the mean of each unit. A flat slice, `&mut [f32]`, has them one after the other, as the layout
/// says; other callers have a place for each unit: see
/// [`advance_apart`](super::Exchange::advance_apart).
pub trait Means {
    /// The place of a unit, of its length. `range` is its range in the flat gradient.
    fn of(&mut self, unit: u32, range: Range<usize>) -> &mut [f32];

    /// All places one after the other, if they stand so.
    fn flat(&mut self) -> Option<&mut [f32]> {
        None
    }
}

impl Means for &mut [f32] {
    fn of(&mut self, _: u32, range: Range<usize>) -> &mut [f32] {
        &mut self[range]
    }

    fn flat(&mut self) -> Option<&mut [f32]> {
        Some(self)
    }
}

/// The flat mean of a route that adds no parts.
///
/// # Panics
/// For places that stand apart: callers can give those only for parts that are added.
pub(super) fn flat(means: &mut dyn Means) -> &mut [f32] {
    means.flat().expect("routes without added parts have a flat mean")
}
