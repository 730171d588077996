//! What a worker had before earlier steps, for a server that was started again from a checkpoint.

use std::collections::VecDeque;

/// Number of steps that are remembered: those of the two checkpoints that a server keeps, of one that it
/// holds until it knows that its workers have theirs, and of the next.
const REMEMBERED: usize = 4;

/// What the worker had, by the step that follows, oldest first.
#[derive(Debug, Default)]
pub(super) struct History(VecDeque<Note>);

/// All that a worker alone had.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Had {
    /// Its memory, and the state of its own optimizer.
    pub(super) kept: Vec<u8>,
    /// In a delayed run, what it had not sent yet.
    pub(super) unsent: Vec<f32>,
    /// If the answer to what it had sent was not there: where it was in those parameters when it sent that,
    /// if it had gone on since.
    pub(super) under_way: Option<Vec<f32>>,
}

#[derive(Debug)]
struct Note {
    next_step: u64,
    had: Had,
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
    /// Records what the worker has before a step, in place of any record for it or a later one.
    pub(super) fn note(&mut self, next_step: u64, had: Had, params_hash: Option<String>) {
        self.0.retain(|note| note.next_step < next_step);
        self.0.push_back(Note { next_step, had, params_hash });
        if self.0.len() > REMEMBERED {
            self.0.pop_front();
        }
    }

    /// What a worker with those parameters had before a step, if it is remembered. Later steps are forgotten,
    /// because they will come again. So is everything if the parameters were others.
    pub(super) fn go_back(&mut self, next_step: u64, params_hash: &str) -> Result<Had, Recalled> {
        let at = self.0.iter().position(|note| note.next_step == next_step).ok_or(Recalled::Unknown)?;
        self.0.truncate(at + 1);
        match self.0.back() {
            Some(note) if note.params_hash.as_deref().is_none_or(|hash| hash == params_hash) => {
                Ok(note.had.clone())
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

    fn had(kept: u8) -> Had {
        Had { kept: vec![kept], unsent: Vec::new(), under_way: None }
    }

    #[test]
    fn the_last_steps_are_remembered_and_going_back_forgets_later_ones() {
        let mut history = History::default();
        let unknown = Err(Recalled::Unknown);
        (0..6).for_each(|step| history.note(10 * step, had(step as u8), None));
        assert_eq!([0, 10].map(|step| history.go_back(step, "a")), [unknown.clone(), unknown.clone()]);
        assert_eq!(history.go_back(20, "a"), Ok(had(2)));
        assert_eq!(history.go_back(30, "a"), unknown);
        history.note(30, had(7), None);
        history.note(30, had(8), None);
        assert_eq!(history.go_back(30, "a"), Ok(had(8)));
        assert_eq!(history.go_back(20, "b"), Ok(had(2)));
    }

    #[test]
    fn what_comes_from_a_file_is_recalled_with_the_same_parameters_alone() {
        let mut history = History::default();
        history.note(10, had(1), Some("a".to_owned()));
        history.note(20, had(2), Some("b".to_owned()));
        assert_eq!(history.go_back(20, "b"), Ok(had(2)));
        assert_eq!(history.go_back(10, "b"), Err(Recalled::OfOtherRun));
        assert_eq!(history.go_back(10, "a"), Err(Recalled::Unknown));
    }
}
