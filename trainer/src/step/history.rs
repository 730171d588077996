//! What a worker kept before earlier steps, for a server that was started again from a checkpoint.

use std::collections::VecDeque;

use crate::job::Job;

/// Number of steps that are remembered: those of the two checkpoints that a server keeps, of one that it
/// holds until it knows that its workers have theirs, and of the next.
const REMEMBERED: usize = 4;

/// What was kept, by the step that follows them, oldest first.
#[derive(Debug, Default)]
pub(super) struct History(VecDeque<Note>);

#[derive(Debug)]
struct Note {
    next_step: u64,
    kept: Vec<u8>,
    /// Hash of the parameters before that step, if it comes from a file.
    params_hash: Option<String>,
}

/// What is known of the residual before a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recalled {
    /// The residual before it, which is the worker's residual again.
    Known,
    /// Nothing.
    Unknown,
    /// The residual of a worker that had other parameters then.
    OfOtherRun,
}

impl History {
    /// Records the residual after a step, if the server makes a checkpoint there.
    pub(super) fn note_if_due(&mut self, job: &Job, step: u64, kept: impl FnOnce() -> Vec<u8>) {
        if job.is_checkpoint_due(step) {
            self.note(step + 1, kept(), None);
        }
    }

    /// Records the residual before a step, in place of any record for it or a later one.
    pub(super) fn note(&mut self, next_step: u64, kept: Vec<u8>, params_hash: Option<String>) {
        self.0.retain(|note| note.next_step < next_step);
        self.0.push_back(Note { next_step, kept, params_hash });
        if self.0.len() > REMEMBERED {
            self.0.pop_front();
        }
    }

    /// The residual before a step of a worker with those parameters, if it is remembered. Later steps are
    /// forgotten, because they will come again. So is everything if the parameters were others.
    pub(super) fn go_back(&mut self, next_step: u64, params_hash: &str) -> Result<Vec<u8>, Recalled> {
        let at = self.0.iter().position(|note| note.next_step == next_step).ok_or(Recalled::Unknown)?;
        self.0.truncate(at + 1);
        match self.0.back() {
            Some(note) if note.params_hash.as_deref().is_none_or(|hash| hash == params_hash) => {
                Ok(note.kept.clone())
            }
            _ => {
                self.0.clear();
                Err(Recalled::OfOtherRun)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_steps_are_remembered_and_going_back_forgets_later_ones() {
        let mut history = History::default();
        let unknown = Err(Recalled::Unknown);
        (0..6).for_each(|step| history.note(10 * step, vec![step as u8], None));
        assert_eq!([0, 10].map(|step| history.go_back(step, "a")), [unknown.clone(), unknown.clone()]);
        assert_eq!(history.go_back(20, "a"), Ok(vec![2]));
        assert_eq!(history.go_back(30, "a"), unknown);
        history.note(30, vec![7], None);
        history.note(30, vec![8], None);
        assert_eq!(history.go_back(30, "a"), Ok(vec![8]));
        assert_eq!(history.go_back(20, "b"), Ok(vec![2]));
    }

    #[test]
    fn what_comes_from_a_file_is_recalled_with_the_same_parameters_alone() {
        let mut history = History::default();
        history.note(10, vec![1], Some("a".to_owned()));
        history.note(20, vec![2], Some("b".to_owned()));
        assert_eq!(history.go_back(20, "b"), Ok(vec![2]));
        assert_eq!(history.go_back(10, "b"), Err(Recalled::OfOtherRun));
        assert_eq!(history.go_back(10, "a"), Err(Recalled::Unknown));
    }
}
