//! A step by a server that fails at this rank: who is told, and what goes back to the memory.

use gradwire::Memory;
use gradwire::format::VoidFrame;

use super::{Phase, Server, up_tag, verdict_tag};
use crate::exchange::error::ExchangeError;
use crate::exchange::port::Care;
use crate::exchange::report::Progress;
use crate::exchange::step::Step;
use crate::exchange::verdict;
use crate::exchange::void::{Failure, Void, VoidMessage};

impl Server {
    /// Tells the server, or as the server all workers, that this rank's gradient cannot be encoded.
    pub(super) fn say_void(&mut self, step: &mut Step<'_>, error: ExchangeError) -> Phase {
        if let Some(void) = step.void_frame(&error) {
            let (rank, message) = (step.rank(), VoidMessage::new(&void, &step.layout.as_ref()));
            if self.is_server(step) {
                self.void = Some(Void { rank, index: void.index });
                self.refuse_all(step);
            } else {
                // A server that cannot be told waits until its deadline.
                let until = Care::Until(step.port.deadline);
                step.port.queue_copy(self.options.server, step.tag, message.bytes(), until);
            }
        }
        self.failed = Some(error);
        Phase::Telling
    }

    /// Fails the step if the caller has said that it failed, before the server answers. A worker whose frame
    /// may have left gives it back, as if the answer was lost.
    pub(super) fn heed_caller(
        &mut self,
        step: &mut Step<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        // Once it answers in the last round, it is too late. In a round before, the next one is in time.
        if matches!(self.phase, Phase::Answering(_) | Phase::Applying | Phase::Counting | Phase::Telling) {
            return Ok(());
        }
        let Some(text) = step.port.failing.take() else { return Ok(()) };
        let (is_server, rank) = (self.is_server(step), step.rank());
        let error = ExchangeError::Failed { rank, text: text.clone() };
        if is_server {
            self.told = Some((rank, text));
            self.refuse_all(step);
            (self.failed, self.phase) = (Some(error), Phase::Telling);
        } else if matches!(self.phase, Phase::Encoding) || self.kind().is_summed() {
            self.say_failed(step, error, &text);
        } else {
            return self.give_up(step, error, memory);
        }
        Ok(())
    }

    /// Tells the server that this rank fails, in place of what it would send next.
    pub(super) fn say_failed(&mut self, step: &mut Step<'_>, error: ExchangeError, text: &str) {
        let has_sent = !matches!(self.phase, Phase::Encoding);
        let tag = up_tag(step.tag, self.round() + u32::from(has_sent));
        let mut message = step.port.lend();
        Failure::write(text, &mut message);
        step.port.queue_copy(self.options.server, tag, &message, Care::Until(self.by));
        step.port.give(message);
        (self.failed, self.phase) = (Some(error), Phase::Telling);
    }

    /// Ends a step that failed, once the others are told.
    pub(super) fn tell<T>(
        &mut self,
        step: &mut Step<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Progress<T>, ExchangeError> {
        if !step.port.is_empty() && step.port.now < self.by {
            step.port.deadline = self.by;
            return Ok(Progress::Waiting);
        }
        let error = self.failed.take().unwrap_or(ExchangeError::NotStarted);
        self.give_up(step, error, memory)
    }

    /// Nothing of this rank's gradient is in the mean, as far as it knows.
    pub(super) fn give_up<T>(
        &mut self,
        step: &mut Step<'_>,
        error: ExchangeError,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<T, ExchangeError> {
        if std::mem::take(&mut self.has_encoded_mean) {
            self.downlink.undo();
        }
        step.port.end();
        if !std::mem::take(&mut self.is_encoded) {
            return Err(error);
        }
        let given = self.own.give_back(&mut self.incoming, step, memory, |_| false);
        Err(error.unless_given_back(given))
    }

    /// Queues an answer that the step failed for every worker. One that cannot be told waits until its
    /// deadline.
    pub(super) fn refuse_all(&mut self, step: &mut Step<'_>) {
        verdict::write(&[], None, &[], &mut self.verdict);
        if let Some((rank, text)) = &self.told {
            let mut message = step.port.lend();
            Failure::write(text, &mut message);
            verdict::write_reason(*rank, &message, &mut self.verdict);
            step.port.give(message);
        } else if let Some(Void { rank, index }) = self.void {
            let void = VoidFrame { codec: step.codec().id(), step: step.key.step, index };
            let void = VoidMessage::new(&void, &step.layout.as_ref());
            verdict::write_reason(rank, void.bytes(), &mut self.verdict);
        }
        step.send_to_all(verdict_tag(step.tag, self.round()), &self.verdict, Care::Until(self.by));
    }
}
