//! Where the mean of a step is written.

use std::ops::Range;

/// Places for the mean of each unit. A flat slice, `&mut [f32]`, has them one after the other, as the layout
/// says; other callers have a place for each unit: see
/// [`advance_apart`](super::Exchange::advance_apart).
pub trait Means {
    /// The place of a unit, of its length. `range` is its range in the flat gradient.
    fn of(&mut self, unit: u32, range: Range<usize>) -> &mut [f32];

    /// The places of several units, whose ranges ascend and are disjoint.
    fn all(&mut self, units: &mut dyn Iterator<Item = (u32, Range<usize>)>) -> Vec<&mut [f32]>;

    /// All places one after the other, if they stand so.
    fn flat(&mut self) -> Option<&mut [f32]> {
        None
    }
}

impl Means for &mut [f32] {
    fn of(&mut self, _: u32, range: Range<usize>) -> &mut [f32] {
        &mut self[range]
    }

    fn all(&mut self, units: &mut dyn Iterator<Item = (u32, Range<usize>)>) -> Vec<&mut [f32]> {
        let (mut rest, mut from) = (&mut self[..], 0);
        let mut place = |range: Range<usize>| {
            let here = std::mem::take(&mut rest).split_at_mut(range.start - from).1;
            let (place, behind) = here.split_at_mut(range.len());
            (rest, from) = (behind, range.end);
            place
        };
        units.map(|(_, range)| place(range)).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_several_units_are_those_of_each() {
        let mut values: Vec<f32> = (0..20).map(|at| at as f32).collect();
        let units = [(0, 2..5), (1, 5..5), (4, 9..20)];
        let mut means = &mut values[..];
        let all: Vec<Vec<f32>> =
            means.all(&mut units.iter().cloned()).into_iter().map(|one| one.to_vec()).collect();
        let each: Vec<Vec<f32>> =
            units.iter().map(|(id, range)| means.of(*id, range.clone()).to_vec()).collect();
        assert_eq!(all, each);
    }
}
