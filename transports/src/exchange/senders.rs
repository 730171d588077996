//! How many frames held each coordinate, for the mean over senders.

use std::ops::Range;

use gradwire::Unit;
use gradwire::arithmetic::divide_by_counts;

use super::message::Message;

/// A count for each coordinate of the layout.
#[derive(Debug, Default)]
pub(super) struct Senders {
    counts: Vec<u32>,
}

impl Senders {
    /// No rank has sent anything of these units yet.
    pub(super) fn begin(&mut self, len: usize, units: &[Unit]) {
        self.counts.resize(len, 0);
        units.iter().for_each(|unit| self.counts[unit.range()].fill(0));
    }

    /// Counts the coordinates that a message holds, whatever their values.
    pub(super) fn add(&mut self, message: &Message<'_>) {
        for unit in message.units() {
            let counts = &mut self.counts[unit.range()];
            if unit.held() == counts.len() {
                counts.iter_mut().for_each(|count| *count += 1);
            } else {
                unit.for_each(|at, _| counts[at] += 1);
            }
        }
    }

    /// Makes the mean of a range of a sum; the first coordinate of the range that is not finite, if there is
    /// one.
    pub(super) fn divide(&self, sum: &mut [f32], range: Range<usize>) -> Option<usize> {
        divide_by_counts(&mut sum[range.clone()], &self.counts[range])
    }
}
