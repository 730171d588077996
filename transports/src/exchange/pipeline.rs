//! A step in parts, one behind the other: while one travels the next is encoded, and those before it are
//! worked on as their messages arrive.

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
    pub(super) at: usize,
    /// Where its first unit stands among those of the step.
    pub(super) first: usize,
    pub(super) units: &'a [Unit],
}

/// A route, as far as it works on a part by itself. Every rank does the same with the same parts in the same
/// order.
pub(super) trait InParts {
    /// Whether a rank without a gradient sends notes, as no frames travel that a void frame could stand for.
    const HAS_NOTES: bool = false;

    /// Makes room for that many parts.
    fn set_parts(&mut self, count: usize);

    fn begin_step(&mut self);

    /// What all ranks agree on before any of them encodes. The memory is only read. Where the gradient is
    /// refused, a void frame stands for what would have been sent next, as for a first part.
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

    /// Of the first messages of a part, for which a void frame stands; or of notes.
    fn void_tag(&self, step: &Step<'_>, part: Part<'_>) -> Tag;

    /// Takes the messages that the part waits for, and sends those that follow from them; whether its share
    /// of `mean` is there.
    fn turn(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        mean: &mut [f32],
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<bool, ExchangeError>;

    /// Makes the mean of what the turns have left, and sees that it is finite.
    fn conclude(&mut self, step: &mut Step<'_>, parts: &Parts, mean: &mut [f32])
    -> Result<(), ExchangeError>;

    /// Returns to the memory what `encode` took from it.
    fn give_back(
        &mut self,
        step: &Step<'_>,
        part: Part<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), DecodeError>;

    /// Bytes that this rank made of its gradient.
    fn frame_bytes(&self) -> usize;

    /// Coordinates that this rank sent.
    fn held(&self) -> usize;
}

/// Where the units of a step are cut.
#[derive(Debug)]
pub(super) struct Parts(Vec<Range<usize>>);

impl Parts {
    /// At most `count` parts of neighbouring units, with about as many elements each: the middle of a unit
    /// says where it goes.
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

/// A route and its parts. A part has one turn for each part that begins behind it, and the turns that are
/// left when the mean is asked for.
#[derive(Debug)]
pub(super) struct Pipeline<R> {
    pub(super) route: R,
    parts: Parts,
    /// Parts under way, in the order in which they sent last.
    under_way: VecDeque<usize>,
    /// What there is of the mean before it is asked for; empty with a single part.
    mean: Vec<f32>,
    /// A mean that was refused before it was asked for.
    refused: Option<ExchangeError>,
}

impl<R: InParts> Pipeline<R> {
    /// In one part.
    pub(super) fn new(route: R, units: &[Unit]) -> Self {
        let (under_way, mean, refused) = Default::default();
        let mut pipeline = Self { route, parts: Parts(Vec::new()), under_way, mean, refused };
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
        self.under_way.clear();
        // Who fails in the middle of a step in parts sends no more of them.
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
        // Parts that were sent on their way, of which the last may have failed.
        let (mut failed, mut sent) = (None, 0);
        for at in 0..self.parts.count() {
            let part = self.parts.part(step.units, at);
            if let Err(error) = self.route.encode(step, part, grad, memory) {
                let given = self.give_back(step, at, memory);
                self.say_void(step, sent, &error);
                return Err(refuse(step, error, step.deadline).unless_given_back(given));
            }
            // What is not encoded is not in the memory either, so encoding goes on when nothing travels any
            // more.
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

    /// Tells every peer, in place of the first part that was not sent, that the gradient cannot be encoded.
    /// Every rank sends a part before it waits for messages of that part, so nobody waits for a rank that has
    /// heard of it and stopped.
    fn say_void(&mut self, step: &mut Step<'_>, sent: usize, error: &ExchangeError) {
        let Some(void) = void_frame(step, error) else { return };
        let tag = self.route.void_tag(step, self.parts.part(step.units, sent));
        // Who cannot be told waits until its deadline; the error is the gradient's all the same.
        let _ = VoidMessage::new(&void, &step.layout.as_ref()).tell(step, tag);
    }

    /// Sends a part on its way, and gives a turn to each that was there before.
    fn set_out(
        &mut self,
        step: &mut Step<'_>,
        at: usize,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        self.route.post(step, self.parts.part(step.units, at))?;
        let before = self.under_way.len();
        self.under_way.push_back(at);
        let mut mean = std::mem::take(&mut self.mean);
        let turned = (0..before).try_for_each(|_| self.turn(step, &mut mean, memory));
        self.mean = mean;
        turned
    }

    /// A turn for the part that sent before all others.
    fn turn(
        &mut self,
        step: &mut Step<'_>,
        mean: &mut [f32],
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        let Some(at) = self.under_way.pop_front() else { return Ok(()) };
        if !self.route.turn(step, self.parts.part(step.units, at), mean, memory)? {
            self.under_way.push_back(at);
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
        while !self.under_way.is_empty() {
            self.turn(step, mean, memory)?;
        }
        self.route.conclude(step, &self.parts, mean)
    }

    /// Returns the first parts to the memory.
    fn give_back(
        &mut self,
        step: &Step<'_>,
        encoded: usize,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), DecodeError> {
        let mut given = Ok(());
        for at in 0..encoded {
            given = given.and(self.route.give_back(step, self.parts.part(step.units, at), memory));
        }
        given
    }
}

/// Keeps back a gradient that was not encoded because of another rank.
fn keep(error: ExchangeError, grad: Grad<'_>, memory: &mut Option<&mut Memory<'_>>) -> ExchangeError {
    match (&error, memory) {
        (ExchangeError::Encode(_), _) | (_, None) => error,
        (_, Some(memory)) => memory.keep(grad).map_or_else(ExchangeError::from, |()| error),
    }
}

/// Tells the others of a step that failed here, where they have to be told.
fn refuse(step: &mut Step<'_>, error: ExchangeError, by: Deadline) -> ExchangeError {
    if ending::is_needed(step) { ending::refuse(step, error, by) } else { error }
}

/// Why a step failed: who waited in vain may have a note of a rank that had nothing to send, or of one that
/// failed.
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
