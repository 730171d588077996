//! How far an evaluation has come, for whoever shows it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::data::Part;

/// An evaluation that takes less time than this is not shown.
const A_MOMENT: Duration = Duration::from_secs(1);

/// The evaluation under way, if there is one. The worker that evaluates counts; another thread looks.
#[derive(Debug, Default)]
pub struct Evaluating(Mutex<Option<UnderWay>>);

#[derive(Debug)]
struct UnderWay {
    part: Part,
    done: usize,
    batches: usize,
    since: Instant,
}

impl Evaluating {
    fn now(&self) -> MutexGuard<'_, Option<UnderWay>> {
        // Numbers for a display are never half written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An evaluation of so many batches begins.
    pub(crate) fn begin(&self, part: Part, batches: usize) {
        *self.now() = Some(UnderWay { part, done: 0, batches, since: Instant::now() });
    }

    /// One more batch is being evaluated.
    pub(crate) fn advance(&self) {
        if let Some(under_way) = self.now().as_mut() {
            under_way.done += 1;
        }
    }

    /// The evaluation is over.
    pub(crate) fn end(&self) {
        *self.now() = None;
    }

    /// The part, and how much of it is done; empty unless the evaluation takes longer than a moment.
    pub(crate) fn text(&self) -> String {
        self.now().as_ref().map_or(String::new(), |under_way| under_way.text(under_way.since.elapsed()))
    }
}

impl UnderWay {
    fn text(&self, elapsed: Duration) -> String {
        if elapsed < A_MOMENT {
            return String::new();
        }
        let percent = 100 * self.done.saturating_sub(1) / self.batches.max(1);
        let what = if self.part == Part::Test { "testing" } else { "validating" };
        format!(", {what} {percent} %")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_evaluation_is_shown_with_its_part_once_it_takes_longer_than_a_moment() {
        let at = |part, done, millis| {
            let under_way = UnderWay { part, done, batches: 8, since: Instant::now() };
            under_way.text(Duration::from_millis(millis))
        };
        assert_eq!(at(Part::Valid, 3, 999), "");
        // The third batch is in work, so two are done.
        assert_eq!(at(Part::Valid, 3, 1000), ", validating 25 %");
        assert_eq!(at(Part::Test, 8, 5000), ", testing 87 %");
        assert_eq!(at(Part::Test, 0, 5000), ", testing 0 %");
    }

    #[test]
    fn batches_are_counted_from_the_beginning_to_the_end_of_an_evaluation() {
        let evaluating = Evaluating::default();
        evaluating.advance();
        assert!(evaluating.now().is_none(), "nothing was begun");
        evaluating.begin(Part::Valid, 4);
        evaluating.advance();
        evaluating.advance();
        let counted = evaluating.now().as_ref().map(|under_way| (under_way.done, under_way.batches));
        assert_eq!(counted, Some((2, 4)));
        evaluating.end();
        assert!(evaluating.now().is_none());
    }
}
