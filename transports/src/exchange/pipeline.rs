//! A step in parts. While one part travels, the next one is encoded, and the parts before it are polled: each
//! receives the messages that have arrived and sends what comes next.

use std::collections::VecDeque;
use std::ops::Range;

use gradwire::{DecodeError, Grad, Memory, Unit};

use super::ending;
use super::error::ExchangeError;
use super::report::Report;
use super::step::Step;
use super::void::{Reader, VoidMessage, void_frame};
use crate::tag::{Deadline, Tag};

/// Neighbouring units that travel together.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    /// Its number in the step, from 0.
    pub(super) at: usize,
    /// Position of its first unit among the units of the step.
    pub(super) first: usize,
    pub(super) units: &'a [Unit],
}

/// What a route does with each part. Every rank makes the same calls with the same parts in the same order.
pub(super) trait InParts {
    /// Whether a rank whose gradient cannot be encoded sends notes. Routes without frames need them, because
    /// no void frame can take the place of a frame there.
    const HAS_NOTES: bool = false;

    /// Sets the number of parts of a step.
    fn set_parts(&mut self, count: usize);

    fn begin_step(&mut self);

    /// Runs the rounds before the frame, in which all ranks agree on a few numbers. The memory is only read.
    /// If this rank's gradient is refused, its void frame takes the place of its next message; the caller
    /// sends it as for the first part.
    fn agree(
        &mut self,
        step: &mut Step<'_>,
        grad: Grad<'_>,
        memory: Option<&Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        let _ = (step, grad, memory);
        Ok(())
    }

    /// Encodes a part of the gradient. After an error the memory is as it was.
    fn encode(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        grad: Grad<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError>;

    /// Sends the first messages of a part.
    fn post(&mut self, step: &mut Step<'_>, part: Part<'_>) -> Result<(), ExchangeError>;

    /// The tag of a void frame: that of the part's first messages, whose place it takes, or that of notes.
    fn void_tag(&self, step: &Step<'_>, part: Part<'_>) -> Tag;

    /// Polls a part: receives the messages that it waits for, and sends what comes next. Returns whether the
    /// part is complete, so that `mean` holds its share.
    fn poll(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        mean: &mut [f32],
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<bool, ExchangeError>;

    /// Makes the mean from the results of all polls, and checks that it is finite.
    fn conclude(&mut self, step: &mut Step<'_>, parts: &Parts, mean: &mut [f32])
    -> Result<(), ExchangeError>;

    /// Returns to the memory what `encode` took from it.
    fn give_back(
        &mut self,
        step: &Step<'_>,
        part: Part<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), DecodeError>;

    /// Bytes of this rank's own frames or payloads.
    fn frame_bytes(&self) -> usize;

    /// Coordinates that this rank sent.
    fn held(&self) -> usize;
}

/// Where the units of a step are cut.
#[derive(Debug)]
pub(super) struct Parts(Vec<Range<usize>>);

impl Parts {
    /// At most `count` parts of neighbouring units, with about the same number of elements each. The middle
    /// element of a unit decides its part.
    fn new(units: &[Unit], count: usize) -> Self {
        let total = units.iter().map(|unit| unit.len as u128).sum::<u128>().max(1);
        let mut passed = 0;
        let mut share = |unit: &Unit| {
            let middle = 2 * passed + unit.len as u128;
            passed += unit.len as u128;
            middle * count as u128 / (2 * total)
        };
        let shares: Vec<u128> = units.iter().map(&mut share).collect();
        let mut end = 0;
        let chunks = shares.chunk_by(|a, b| a == b);
        let next = |chunk: &[u128]| {
            let start = end;
            end += chunk.len();
            start..end
        };
        Self(chunks.map(next).collect())
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn part<'a>(&self, units: &'a [Unit], at: usize) -> Part<'a> {
        Part { at, first: self.0[at].start, units: &units[self.0[at].clone()] }
    }
}

/// A route and its parts. In `start`, a part is polled once after each later part was encoded. `finish` polls
/// all parts until they are complete.
#[derive(Debug)]
pub(super) struct Pipeline<R> {
    pub(super) route: R,
    parts: Parts,
    /// Parts in flight, the one that sent longest ago first.
    in_flight: VecDeque<usize>,
    /// The shares of the mean that are complete before `finish` is called; empty with a single part.
    mean: Vec<f32>,
    /// The error of a mean that was refused before `finish` was called.
    refused: Option<ExchangeError>,
}

impl<R: InParts> Pipeline<R> {
    /// In one part.
    pub(super) fn new(route: R, units: &[Unit]) -> Self {
        let (in_flight, mean, refused) = Default::default();
        let mut pipeline = Self { route, parts: Parts(Vec::new()), in_flight, mean, refused };
        pipeline.cut(units, 1);
        pipeline
    }

    /// In at most `count` parts.
    pub(super) fn cut(&mut self, units: &[Unit], count: usize) {
        self.parts = Parts::new(units, count);
        self.route.set_parts(self.parts.count());
    }

    pub(super) fn start(
        &mut self,
        step: &mut Step<'_>,
        grad: Grad<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        self.in_flight.clear();
        // A rank that fails in the middle of a step in parts sends no further parts, so it may have to send a
        // note.
        step.underway.has_notes = R::HAS_NOTES || ending::is_needed(step);
        self.route.begin_step();
        if self.parts.count() > 1 {
            self.mean.resize(step.layout.len(), 0.0);
        }
        if let Err(error) = self.route.agree(step, grad, memory.as_deref()) {
            self.say_void(step, 0, &error);
            let error = why(step, error);
            let error = refuse(step, error, step.deadline);
            return Err(keep(error, grad, memory));
        }
        // The first error, and the number of parts that were sent. Sending the last of them may have failed.
        let (mut failed, mut sent) = (None, 0);
        for at in 0..self.parts.count() {
            let part = self.parts.part(step.units(), at);
            if let Err(error) = self.route.encode(step, part, grad, memory) {
                let given = self.give_back(step, at, memory);
                self.say_void(step, sent, &error);
                return Err(refuse(step, error, step.deadline).unless_given_back(given));
            }
            // Encoding continues after sending has failed, because only what is encoded enters the memory.
            if failed.is_none() {
                sent = at + 1;
                failed = self.set_out(step, at, memory).err();
            }
        }
        match failed {
            None => self.refused = None,
            Some(refused @ ExchangeError::NonFiniteMean { .. }) => self.refused = Some(refused),
            Some(error) => {
                let given = self.give_back(step, self.parts.count(), memory);
                let error = why(step, error);
                return Err(refuse(step, error, step.deadline).unless_given_back(given));
            }
        }
        Ok(())
    }

    /// Tells every peer that the gradient cannot be encoded: a void frame takes the place of the first part
    /// that was not sent. Every rank sends a part before it waits for messages of that part. So no rank waits
    /// for one that has received the void frame and stopped.
    fn say_void(&mut self, step: &mut Step<'_>, sent: usize, error: &ExchangeError) {
        let Some(void) = void_frame(step, error) else { return };
        let tag = self.route.void_tag(step, self.parts.part(step.units(), sent));
        // A peer that cannot be told waits until its deadline. The error to report is still that of the
        // gradient.
        let _ = VoidMessage::new(&void, &step.layout.as_ref()).tell(step, tag);
    }

    /// Sends the first messages of a part, and polls each part that was in flight before.
    fn set_out(
        &mut self,
        step: &mut Step<'_>,
        at: usize,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        self.route.post(step, self.parts.part(step.units(), at))?;
        let before = self.in_flight.len();
        self.in_flight.push_back(at);
        let mut mean = std::mem::take(&mut self.mean);
        let polled = (0..before).try_for_each(|_| self.poll(step, &mut mean, memory));
        self.mean = mean;
        polled
    }

    /// Polls the part that sent longest ago.
    fn poll(
        &mut self,
        step: &mut Step<'_>,
        mean: &mut [f32],
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        let Some(at) = self.in_flight.pop_front() else { return Ok(()) };
        if !self.route.poll(step, self.parts.part(step.units(), at), mean, memory)? {
            self.in_flight.push_back(at);
        }
        Ok(())
    }

    pub(super) fn finish(
        &mut self,
        step: &mut Step<'_>,
        mean: &mut [f32],
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Report, ExchangeError> {
        let (by, agrees) = (step.deadline, ending::is_needed(step));
        if agrees {
            step.deadline = ending::votes_by(by);
        }
        let ended = match self.complete(step, mean, memory).map_err(|error| why(step, error)) {
            Ok(()) if agrees => ending::agree(step, by),
            Ok(()) => Ok(()),
            Err(error) => Err(refuse(step, error, by)),
        };
        if let Err(error) = ended {
            let given = self.give_back(step, self.parts.count(), memory);
            return Err(error.unless_given_back(given));
        }
        let (contributors, frame_bytes) = (step.transport.membership().ranks, self.route.frame_bytes());
        Ok(step.report(contributors, frame_bytes, self.route.held(), step.clock))
    }

    fn complete(
        &mut self,
        step: &mut Step<'_>,
        mean: &mut [f32],
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        if let Some(refused) = self.refused.take() {
            return Err(refused);
        }
        if self.parts.count() > 1 {
            mean.copy_from_slice(&self.mean);
        }
        while !self.in_flight.is_empty() {
            self.poll(step, mean, memory)?;
        }
        self.route.conclude(step, &self.parts, mean)
    }

    /// Returns the first `encoded` parts to the memory.
    fn give_back(
        &mut self,
        step: &Step<'_>,
        encoded: usize,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), DecodeError> {
        let mut given = Ok(());
        for at in 0..encoded {
            given = given.and(self.route.give_back(step, self.parts.part(step.units(), at), memory));
        }
        given
    }
}

/// Adds to the memory a gradient that was not encoded because another rank failed.
fn keep(error: ExchangeError, grad: Grad<'_>, memory: &mut Option<&mut Memory<'_>>) -> ExchangeError {
    match (&error, memory) {
        (ExchangeError::Encode(_), _) | (_, None) => error,
        (_, Some(memory)) => memory.keep(grad).map_or_else(ExchangeError::from, |()| error),
    }
}

/// Tells the other ranks that the step failed here, if the transport may lose messages.
fn refuse(step: &mut Step<'_>, error: ExchangeError, by: Deadline) -> ExchangeError {
    if ending::is_needed(step) { ending::refuse(step, error, by) } else { error }
}

/// Why a step failed. A rank that waited in vain may have a note of another rank: one whose gradient could
/// not be encoded, or one that failed.
fn why(step: &Step<'_>, error: ExchangeError) -> ExchangeError {
    let ExchangeError::Transport(_) = error else { return error };
    let Some((rank, note)) = &step.underway.note else { return error };
    let reader = Reader { layout: step.layout, step: step.key.step };
    reader
        .void_of(*rank, note)
        .or_else(|| ending::read_void(step, note))
        .map_or(ExchangeError::NotAgreed { rank: *rank }, Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_cut_into_parts_of_about_the_same_length() {
        let units = |lens: &[usize]| -> Vec<Unit> {
            let start = |i: usize| lens[..i].iter().sum();
            let unit = |i: usize| Unit { id: i as u32, start: start(i), len: lens[i], dense: false };
            (0..lens.len()).map(unit).collect()
        };
        let ends = |lens: &[usize], count| -> Vec<usize> {
            let Parts(cuts) = Parts::new(&units(lens), count);
            assert!(cuts[0].start == 0 && cuts.windows(2).all(|pair| pair[0].end == pair[1].start));
            cuts.into_iter().map(|cut| cut.end).collect()
        };
        assert_eq!(ends(&[5, 5, 5, 5], 1), [4]);
        assert_eq!(ends(&[5, 5, 5, 5], 2), [2, 4]);
        assert_eq!(ends(&[5, 5, 5, 5], 9), [1, 2, 3, 4]);
        assert_eq!(ends(&[100, 1, 1, 1], 4), [1, 4]);
        assert_eq!(ends(&[1, 1, 100], 3), [2, 3]);
        assert_eq!(ends(&[0], 3), [1]);
        assert_eq!(ends(&[0, 0], 2), [2]);
    }
}
