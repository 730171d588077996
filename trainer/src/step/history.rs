//! What a worker kept back before earlier steps, for a server that was started again from a checkpoint.

use std::collections::VecDeque;

use gradwire::Memory;

use super::state::saved;
use crate::job::Job;

/// Steps that are remembered: those of the two checkpoints that a server keeps, and of one that it may be writing.
const REMEMBERED: usize = 3;

/// Saved memories by the step that follows them, oldest first.
#[derive(Debug, Default)]
pub(super) struct History(VecDeque<(u64, Vec<u8>)>);

impl History {
    /// Notes what is kept back behind a step, if the server makes a checkpoint there.
    pub(super) fn note_if_due(&mut self, job: &Job, step: u64, memory: Option<&Memory<'_>>) {
        if job.is_checkpoint_due(step) {
            self.note(step + 1, saved(memory, &job.layout));
        }
    }

    /// Notes what is kept back before a step, in place of what was noted for it or a later one.
    pub(super) fn note(&mut self, next_step: u64, kept: Vec<u8>) {
        self.0.retain(|(step, _)| *step < next_step);
        self.0.push_back((next_step, kept));
        if self.0.len() > REMEMBERED {
            self.0.pop_front();
        }
    }

    /// What was kept back before a step, if that is remembered. Later steps are forgotten: they will come again.
    pub(super) fn go_back(&mut self, next_step: u64) -> Option<Vec<u8>> {
        let at = self.0.iter().position(|(step, _)| *step == next_step)?;
        self.0.truncate(at + 1);
        self.0.back().map(|(_, kept)| kept.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_steps_are_remembered_and_going_back_forgets_later_ones() {
        let mut history = History::default();
        (0..5).for_each(|step| history.note(10 * step, vec![step as u8]));
        assert_eq!([0, 10, 20].map(|step| history.go_back(step)), [None, None, Some(vec![2])]);
        assert_eq!(history.go_back(30), None);
        history.note(30, vec![7]);
        history.note(30, vec![8]);
        assert_eq!(history.go_back(30), Some(vec![8]));
        assert_eq!(history.go_back(20), Some(vec![2]));
    }
}
