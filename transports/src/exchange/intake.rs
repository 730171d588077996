//! Counts, for each coordinate, the workers whose packets were added.

use std::ops::Range;

/// Ranges of one worker must not overlap; those of different workers may.
#[derive(Debug, Default)]
pub(super) struct Intake {
    /// Positions at which the number of workers changes, and by how much.
    edges: Vec<(usize, isize)>,
    /// Ranges of the current worker, ascending and not touching.
    taken: Vec<Range<usize>>,
}

impl Intake {
    pub(super) fn begin_step(&mut self) {
        self.edges.clear();
        self.taken.clear();
    }

    pub(super) fn begin_worker(&mut self) {
        self.edges.extend(self.taken.drain(..).flat_map(|range| [(range.start, 1), (range.end, -1)]));
    }

    /// Whether the current worker has sent nothing of that range.
    pub(super) fn is_free(&self, range: &Range<usize>) -> bool {
        let at = self.taken.partition_point(|taken| taken.end <= range.start);
        range.is_empty() || self.taken.get(at).is_none_or(|taken| taken.start >= range.end)
    }

    /// Records a range, which must be free, for the current worker. Ranges that touch become one.
    pub(super) fn take(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let at = self.taken.partition_point(|taken| taken.end < range.start);
        let behind = self.taken[at..].iter().take_while(|taken| taken.start <= range.end).count();
        let touched = &self.taken[at..at + behind];
        let start = touched.first().map_or(range.start, |first| first.start.min(range.start));
        let end = touched.last().map_or(range.end, |last| last.end.max(range.end));
        self.taken.drain(at..at + behind);
        self.taken.insert(at, start..end);
    }

    /// Divides each coordinate's sum by the number of workers that it comes from.
    pub(super) fn divide(&mut self, sum: &mut [f32]) {
        self.begin_worker();
        self.edges.sort_unstable();
        let (mut at, mut workers) = (0, 0);
        for &(edge, change) in &self.edges {
            if workers > 1 {
                let divisor = workers as f32;
                sum[at..edge].iter_mut().for_each(|sum| *sum /= divisor);
            }
            (at, workers) = (edge, workers + change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_coordinate_is_divided_by_the_workers_it_comes_from() {
        let mut intake = Intake::default();
        for _ in 0..2 {
            intake.begin_step();
            for ranges in [&[0..4, 4..6][..], &[8..9, 2..5, 7..8], &[3..4, 5..5], &[]] {
                intake.begin_worker();
                for range in ranges {
                    assert!(intake.is_free(range));
                    intake.take(range.clone());
                    assert!(
                        (range.is_empty() || !intake.is_free(range))
                            && intake.is_free(&(range.start..range.start))
                    );
                }
            }
            let mut sum = [6.0; 10];
            intake.divide(&mut sum);
            assert_eq!(sum, [6.0, 6.0, 3.0, 2.0, 3.0, 6.0, 6.0, 6.0, 6.0, 6.0]);
        }
    }

    #[test]
    fn ranges_of_one_worker_that_overlap_are_seen_and_touching_ones_become_one() {
        let mut intake = Intake::default();
        intake.take(4..6);
        intake.take(8..9);
        for range in [3..5, 5..6, 4..6, 0..9, 5..20, 8..9] {
            assert!(!intake.is_free(&range), "{range:?}");
        }
        assert!(intake.is_free(&(6..8)) && intake.is_free(&(0..4)) && intake.is_free(&(9..10)));
        intake.take(6..8);
        assert_eq!((intake.taken.len(), &intake.taken[0]), (1, &(4..9)));
    }
}
