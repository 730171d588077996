//! A step in parts that fails: what was encoded goes back to the memory, and the others are told.

use gradwire::{DecodeError, Grad, Memory};

use super::{CUT, Phase, Pipeline};
use crate::exchange::ending;
use crate::exchange::error::ExchangeError;
use crate::exchange::part_route::InParts;
use crate::exchange::port::Care;
use crate::exchange::report::{Progress, Work};
use crate::exchange::step::Step;
use crate::exchange::void::{Failure, VoidMessage, note_tag};

impl<R: InParts> Pipeline<R> {
    /// Tells every peer that the gradient cannot be encoded: a void frame, or a failure if no coordinate is
    /// to blame, takes the place of the first part that was not sent. Every rank sends a part before it waits
    /// for messages of that part. So no rank waits for one that has received the void frame and stopped.
    pub(super) fn say_void(&mut self, step: &mut Step<'_>, sent: usize, error: &ExchangeError) {
        if !matches!(error, ExchangeError::Encode(_)) || step.port.has_votes() && step.port.is_fail_stop {
            // The votes tell them. What is not sent any more must not be waited for before the void frame.
            return;
        }
        let mut message = step.port.lend();
        match step.void_frame(error) {
            Some(void) => {
                message.extend_from_slice(VoidMessage::new(&void, &step.layout.as_ref()).bytes());
            }
            None => Failure::write(&error.to_string(), &mut message),
        }
        // A peer that cannot be told waits until its deadline.
        let (tag, until) = (self.route.void_tag(step, sent), Care::Until(step.port.deadline));
        step.send_to_all(tag, &message, until);
        step.port.give(message);
    }

    /// Fails the step if the caller has said that it failed: see [`Exchange::fail`](super::Exchange::fail).
    pub(super) fn heed_caller(&mut self, step: &mut Step<'_>, memory: &mut Option<&mut Memory<'_>>) {
        if self.route.is_promised() {
            return;
        }
        let Some(text) = step.port.failing.take() else { return };
        if matches!(self.phase, Phase::Voting | Phase::Leaving | Phase::Telling { .. }) {
            return;
        }
        // With votes, these tell the others. If all parts were posted, nobody waits for another one.
        let is_awaited = R::HAS_NOTES || self.posted < self.parts[CUT].count();
        if is_awaited && !step.port.has_votes() {
            let mut message = step.port.lend();
            Failure::write(&text, &mut message);
            let (tag, until) = (self.route.void_tag(step, self.posted), Care::Until(step.port.deadline));
            step.send_to_all(tag, &message, until);
            step.port.give(message);
        }
        let error = ExchangeError::Failed { rank: step.rank(), text };
        self.fail_now(step, error, memory);
    }

    /// The step failed here. What was encoded goes back to the memory. The other ranks are told if the
    /// network may lose messages. Then nobody needs the messages of the step any more.
    pub(super) fn fail<T>(
        &mut self,
        step: &mut Step<'_>,
        error: ExchangeError,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Progress<T> {
        self.fail_now(step, error, memory);
        Progress::Worked(Work::Exchange)
    }

    pub(super) fn fail_now(
        &mut self,
        step: &mut Step<'_>,
        error: ExchangeError,
        memory: &mut Option<&mut Memory<'_>>,
    ) {
        let given = self.give_back(step, memory);
        let has_looked = !(step.port.has_notes && matches!(error, ExchangeError::Transport(_)));
        if has_looked {
            self.refuse(step, &error);
        }
        self.phase = Phase::Telling { error: Box::new(error), given, by: self.by, has_looked };
    }

    /// Tells the other ranks.
    fn refuse(&mut self, step: &mut Step<'_>, error: &ExchangeError) {
        if step.port.has_notes {
            step.port.drop_musts();
        }
        self.route.drain(step);
        if step.port.has_votes() {
            ending::refuse(step, error, self.by);
        } else if R::HAS_NOTES && matches!(error, ExchangeError::OtherVersion { .. }) {
            // It concerns all, and those far away would not hear of it.
            let mut message = step.port.lend();
            Failure::write(&error.to_string(), &mut message);
            step.send_to_all(note_tag(step.tag), &message, Care::Until(self.by));
            step.port.give(message);
        }
    }

    /// One piece of the work of a step that failed. `Done` once the others are told.
    pub(super) fn tell_others(&mut self, step: &mut Step<'_>) -> Result<Progress<()>, ExchangeError> {
        let Phase::Telling { error, by, has_looked, .. } = &mut self.phase else {
            return Err(ExchangeError::NotStarted);
        };
        if !*has_looked {
            // A rank that fails may be gone once it has said why.
            if !step.port.is_over(step.port.now) {
                return Ok(Progress::Waiting);
            }
            *has_looked = true;
            **error = ending::reason_told(step).unwrap_or((**error).clone());
            let error = (**error).clone();
            self.refuse(step, &error);
            return Ok(Progress::Worked(Work::Exchange));
        }
        if !step.port.is_empty() && step.port.now < *by {
            step.port.deadline = *by;
            return Ok(Progress::Waiting);
        }
        Ok(Progress::Done(()))
    }

    /// Ends a step that failed, once the others are told.
    pub(super) fn tell<T>(&mut self, step: &mut Step<'_>) -> Result<Progress<T>, ExchangeError> {
        match self.tell_others(step)? {
            Progress::Done(()) => {}
            Progress::Worked(work) => return Ok(Progress::Worked(work)),
            _ => return Ok(Progress::Waiting),
        }
        let Phase::Telling { error, given, .. } = &self.phase else { return Err(ExchangeError::NotStarted) };
        let (mut error, given) = ((**error).clone(), *given);
        if matches!(error, ExchangeError::Transport(_)) {
            error = ending::reason_told(step).unwrap_or(error);
        }
        step.port.end();
        Err(error.unless_given_back(given))
    }

    /// Returns the parts that were encoded to the memory.
    pub(super) fn give_back(
        &mut self,
        step: &Step<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), DecodeError> {
        let mut given = Ok(());
        for at in 0..self.encoded {
            given = given.and(self.route.give_back(step, self.parts[self.kind].part(at), memory));
        }
        given
    }
}

/// Adds to the memory a gradient that was not encoded because another rank failed.
pub(super) fn keep(
    error: ExchangeError,
    grad: Grad<'_>,
    memory: &mut Option<&mut Memory<'_>>,
) -> ExchangeError {
    match (&error, memory) {
        (ExchangeError::Encode(_), _) | (_, None) => error,
        (_, Some(memory)) => memory.keep(grad).map_or_else(ExchangeError::from, |()| error),
    }
}
