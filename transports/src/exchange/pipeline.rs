//! A step in parts. While one part travels, the next one is encoded, and the parts before it are polled: each
//! takes the messages that it waits for and sends what comes next.
//!
//! Nothing here waits. A call does one piece of work, in the written order, or says that it lacks a message.

use std::collections::VecDeque;
use std::ops::Range;

use gradwire::{DecodeError, Grad, Memory, Unit};

use super::ending::{self, Ending};
use super::error::ExchangeError;
use super::port::Care;
use super::report::{Clock, Progress, Report, Work};
use super::step::Step;
use super::void::{VoidMessage, note_tag};
use crate::tag::Tag;

/// Neighbouring units that travel together.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    /// Its number in the step, from 0.
    pub(super) at: usize,
    /// Position of its first unit among the units of the step.
    pub(super) first: usize,
    pub(super) units: &'a [Unit],
}

/// What one call of a poll did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polled {
    /// The message that is needed next is not here. The poll goes on when it is.
    Waiting,
    /// A payload is lent to the library of the network. The poll goes on when it is summed.
    Lent,
    /// A piece of the poll.
    Busy(Work),
    /// The rest of the poll. The part has more to do, after those in flight behind it.
    More,
    /// The rest of the part: `mean` holds its share.
    Complete,
}

/// What a route does with each part. Every rank makes the same calls with the same parts in the same order.
pub(super) trait InParts {
    /// Whether a rank whose gradient cannot be encoded sends notes. Routes without frames need them, because
    /// no void frame can take the place of a frame there.
    const HAS_NOTES: bool = false;

    /// Sets the number of parts of a step.
    fn set_parts(&mut self, count: usize);

    fn begin_step(&mut self);

    /// Runs the rounds before the frame, in which all ranks agree on a few numbers, as far as it can. Returns
    /// whether they are over. The memory is only read. If this rank's gradient is refused, its void frame
    /// takes the place of its next message; the caller sends it as for the first part.
    fn agree(
        &mut self,
        step: &mut Step<'_>,
        grad: Grad<'_>,
        memory: Option<&Memory<'_>>,
    ) -> Result<bool, ExchangeError> {
        let _ = (step, grad, memory);
        Ok(true)
    }

    /// Encodes a part of the gradient. After an error the memory is as it was.
    fn encode(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        grad: Grad<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError>;

    /// Queues the first messages of a part.
    fn post(&mut self, step: &mut Step<'_>, part: Part<'_>) -> Result<(), ExchangeError>;

    /// The bytes of a [frame](super::port::Body::Frame) that was queued.
    fn frame(&self, part: usize, place: usize) -> &[u8];

    /// The tag of a void frame: that of the part's first messages, whose place it takes, or that of notes.
    fn void_tag(&self, step: &Step<'_>, part: Part<'_>) -> Tag;

    /// One piece of a poll of a part: takes a message that the part waits for, and queues what comes next.
    fn poll(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        mean: &mut [f32],
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Polled, ExchangeError>;

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

    /// Asks for whatever the others may still send of a step that failed here, so that their notes find room
    /// behind it.
    fn drain(&mut self, step: &mut Step<'_>) {
        let _ = step;
    }

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

/// Where a step stands.
#[derive(Debug)]
enum Phase {
    /// The rounds before the frame.
    Agreeing,
    /// The part with this number is encoded next.
    Encoding(usize),
    /// So many polls are due before the part with the number `next` is encoded.
    Polling { next: usize, due: usize },
    /// All parts are encoded.
    Encoded,
    /// All parts are polled until they are complete.
    Completing,
    /// The mean is there; messages for other ranks may not have left yet.
    Sending,
    /// The ranks tell each other whether they have the mean.
    Voting,
    /// The mean may be used. The last messages leave.
    Leaving,
    /// The step failed, and the other ranks are told until that time.
    Telling { error: Box<ExchangeError>, given: Result<(), DecodeError>, by: u64 },
}

/// A route and its parts. At the start, a part is polled once after each later part was encoded. At the end
/// all parts are polled until they are complete.
#[derive(Debug)]
pub(super) struct Pipeline<R> {
    pub(super) route: R,
    parts: Parts,
    phase: Phase,
    /// Parts in flight, the one that sent longest ago first.
    in_flight: VecDeque<usize>,
    /// The first error while parts were encoded, and the number of parts that were posted. Encoding continues
    /// after an error, because only what is encoded enters the memory.
    failed: Option<ExchangeError>,
    posted: usize,
    /// The shares of the mean that are complete before all parts are encoded; empty with a single part.
    mean: Vec<f32>,
    /// When the step must be over, the last word included.
    by: u64,
    ending: Ending,
}

impl<R: InParts> Pipeline<R> {
    /// In one part.
    pub(super) fn new(route: R, units: &[Unit]) -> Self {
        let (parts, phase, in_flight) = (Parts(Vec::new()), Phase::Agreeing, VecDeque::new());
        let (failed, posted, mean, by, ending) = (None, 0, Vec::new(), u64::MAX, Ending::default());
        let mut pipeline = Self { route, parts, phase, in_flight, failed, posted, mean, by, ending };
        pipeline.cut(units, 1);
        pipeline
    }

    /// In at most `count` parts.
    pub(super) fn cut(&mut self, units: &[Unit], count: usize) {
        self.parts = Parts::new(units, count);
        self.route.set_parts(self.parts.count());
    }

    /// Begins a step. The port has begun it.
    pub(super) fn begin(&mut self, step: &mut Step<'_>) {
        self.in_flight.clear();
        (self.phase, self.failed, self.posted) = (Phase::Agreeing, None, 0);
        self.by = step.port.deadline;
        // A rank that fails in the middle of a step in parts sends no further parts, so it may have to send a
        // note.
        let has_votes = step.port.has_votes();
        step.port.has_notes = R::HAS_NOTES || has_votes;
        if has_votes {
            ending::ask_for_votes(step);
        } else if R::HAS_NOTES {
            step.port.ask_all(note_tag(step.tag));
        }
        self.route.begin_step();
        if self.parts.count() > 1 {
            self.mean.resize(step.layout.len(), 0.0);
        }
    }

    /// The bytes of a frame that was queued.
    pub(super) fn frame(&self, part: usize, place: usize) -> &[u8] {
        self.route.frame(part, place)
    }

    /// One piece of the work up to the point where all parts are encoded.
    pub(super) fn encode(
        &mut self,
        step: &mut Step<'_>,
        grad: Grad<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Progress<()>, ExchangeError> {
        match self.phase {
            Phase::Agreeing => match self.route.agree(step, grad, memory.as_deref()) {
                Ok(false) => Ok(Progress::Waiting),
                Ok(true) => self.go_on(Phase::Encoding(0), Work::Encode),
                Err(error) => {
                    self.say_void(step, 0, &error);
                    let error = keep(error, grad, memory);
                    self.fail(step, error, Ok(()))
                }
            },
            Phase::Encoding(at) if at < self.parts.count() => self.encode_part(step, at, grad, memory),
            Phase::Encoding(_) => match self.failed.take() {
                None => self.go_on(Phase::Encoded, Work::Exchange),
                // The others may have the mean, so they are told when it is asked for.
                refused @ Some(ExchangeError::NonFiniteMean { .. }) => {
                    self.failed = refused;
                    self.go_on(Phase::Encoded, Work::Exchange)
                }
                Some(error) => {
                    let given = self.give_back(step, self.parts.count(), memory);
                    self.fail(step, error, given)
                }
            },
            Phase::Polling { next, due: 0 } => self.go_on(Phase::Encoding(next), Work::Exchange),
            Phase::Polling { next, due } => {
                let mut mean = std::mem::take(&mut self.mean);
                let polled = self.poll(step, &mut mean, memory);
                self.mean = mean;
                match polled {
                    Ok(Polled::Waiting) => Ok(Progress::Waiting),
                    Ok(Polled::Lent) => Ok(Progress::Lent),
                    Ok(Polled::Busy(work)) => Ok(Progress::Worked(work)),
                    Ok(Polled::More | Polled::Complete) => {
                        self.go_on(Phase::Polling { next, due: due - 1 }, Work::Decode)
                    }
                    Err(error) => {
                        self.failed = Some(error);
                        self.go_on(Phase::Encoding(next), Work::Exchange)
                    }
                }
            }
            Phase::Encoded => match step.port.has_sent() {
                Ok(false) => Ok(Progress::Waiting),
                Ok(true) => Ok(Progress::Done(())),
                Err(error) => {
                    let given = self.give_back(step, self.parts.count(), memory);
                    self.fail(step, error.into(), given)
                }
            },
            _ => self.tell(step),
        }
    }

    fn go_on<T>(&mut self, phase: Phase, work: Work) -> Result<Progress<T>, ExchangeError> {
        self.phase = phase;
        Ok(Progress::Worked(work))
    }

    /// Encodes a part and queues its first messages.
    fn encode_part(
        &mut self,
        step: &mut Step<'_>,
        at: usize,
        grad: Grad<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Progress<()>, ExchangeError> {
        let part = self.parts.part(step.units(), at);
        if let Err(error) = self.route.encode(step, part, grad, memory) {
            let given = self.give_back(step, at, memory);
            self.say_void(step, self.posted, &error);
            return self.fail(step, error, given);
        }
        let mut due = 0;
        if self.failed.is_none() {
            self.posted = at + 1;
            due = self.in_flight.len();
            match self.route.post(step, part) {
                Ok(()) => self.in_flight.push_back(at),
                Err(error) => (self.failed, due) = (Some(error), 0),
            }
        }
        self.go_on(Phase::Polling { next: at + 1, due }, Work::Encode)
    }

    /// Tells every peer that the gradient cannot be encoded: a void frame takes the place of the first part
    /// that was not sent. Every rank sends a part before it waits for messages of that part. So no rank waits
    /// for one that has received the void frame and stopped.
    fn say_void(&mut self, step: &mut Step<'_>, sent: usize, error: &ExchangeError) {
        let Some(void) = step.void_frame(error) else { return };
        let tag = self.route.void_tag(step, self.parts.part(step.units(), sent));
        // A peer that cannot be told waits until its deadline.
        let until = Care::Until(step.port.deadline);
        step.send_to_all(tag, VoidMessage::new(&void, &step.layout.as_ref()).bytes(), until);
    }

    /// One piece of a poll of the part that sent longest ago.
    fn poll(
        &mut self,
        step: &mut Step<'_>,
        mean: &mut [f32],
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Polled, ExchangeError> {
        let Some(&at) = self.in_flight.front() else { return Ok(Polled::Complete) };
        let polled = self.route.poll(step, self.parts.part(step.units(), at), mean, memory)?;
        match polled {
            Polled::More => self.in_flight.rotate_left(1),
            Polled::Complete => drop(self.in_flight.pop_front()),
            _ => {}
        }
        Ok(polled)
    }

    /// All parts are encoded, and the mean is to be there at `by`.
    pub(super) fn finish_by(&mut self, step: &mut Step<'_>, mean: &mut [f32], by: u64) {
        self.by = by;
        step.port.deadline = if step.port.has_votes() { ending::votes_by(step.port.now, by) } else { by };
        if self.parts.count() > 1 {
            mean.copy_from_slice(&self.mean);
        }
        self.phase = Phase::Completing;
    }

    /// One piece of the work from then to the mean.
    pub(super) fn complete(
        &mut self,
        step: &mut Step<'_>,
        mean: &mut [f32],
        memory: &mut Option<&mut Memory<'_>>,
        clock: Clock,
    ) -> Result<Progress<Report>, ExchangeError> {
        let done = match self.phase {
            Phase::Completing => self.complete_parts(step, mean, memory),
            Phase::Sending => match step.port.has_sent() {
                Ok(false) => Ok(Progress::Waiting),
                Ok(true) if step.port.has_votes() => {
                    self.ending.begin(step);
                    self.go_on(Phase::Voting, Work::Exchange)
                }
                Ok(true) => self.go_on(Phase::Leaving, Work::Exchange),
                Err(error) => Err(error.into()),
            },
            Phase::Voting => match self.ending.poll(step, self.by) {
                // Those that voted otherwise know it, and all others were told just now.
                Err(error) => {
                    let given = self.give_back(step, self.parts.count(), memory);
                    self.phase = Phase::Telling { error: Box::new(error), given, by: self.by };
                    Ok(Progress::Worked(Work::Exchange))
                }
                Ok(false) => Ok(Progress::Waiting),
                Ok(true) => self.go_on(Phase::Leaving, Work::Exchange),
            },
            Phase::Leaving if step.port.is_empty() || step.port.now >= self.by => {
                let (contributors, frame_bytes) = (step.members(), self.route.frame_bytes());
                let report = step.report(contributors, frame_bytes, self.route.held(), clock);
                step.port.end();
                return Ok(Progress::Done(report));
            }
            Phase::Leaving => {
                step.port.deadline = self.by;
                Ok(Progress::Waiting)
            }
            _ => return self.tell(step),
        };
        done.or_else(|error| {
            let given = self.give_back(step, self.parts.count(), memory);
            self.fail(step, error, given)
        })
    }

    fn complete_parts(
        &mut self,
        step: &mut Step<'_>,
        mean: &mut [f32],
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Progress<Report>, ExchangeError> {
        if let Some(refused) = self.failed.take() {
            return Err(refused);
        }
        if self.in_flight.is_empty() {
            self.route.conclude(step, &self.parts, mean)?;
            return self.go_on(Phase::Sending, Work::Decode);
        }
        Ok(match self.poll(step, mean, memory)? {
            Polled::Waiting => Progress::Waiting,
            Polled::Lent => Progress::Lent,
            Polled::Busy(work) => Progress::Worked(work),
            Polled::More | Polled::Complete => Progress::Worked(Work::Decode),
        })
    }

    /// The step failed here. The other ranks are told if the network may lose messages. Then nobody needs the
    /// messages of the step any more.
    fn fail<T>(
        &mut self,
        step: &mut Step<'_>,
        error: ExchangeError,
        given: Result<(), DecodeError>,
    ) -> Result<Progress<T>, ExchangeError> {
        if step.port.has_notes {
            step.port.drop_musts();
        }
        if step.port.has_votes() {
            ending::refuse(step, &error, self.by);
        } else {
            self.route.drain(step);
        }
        self.go_on(Phase::Telling { error: Box::new(error), given, by: self.by }, Work::Exchange)
    }

    /// Ends a step that failed, once the others are told.
    fn tell<T>(&mut self, step: &mut Step<'_>) -> Result<Progress<T>, ExchangeError> {
        let Phase::Telling { error, given, by } = &self.phase else { return Err(ExchangeError::NotStarted) };
        if !step.port.is_empty() && step.port.now < *by {
            step.port.deadline = *by;
            return Ok(Progress::Waiting);
        }
        let (mut error, given) = ((**error).clone(), *given);
        if let (ExchangeError::Transport(_), Some(void)) = (&error, ending::void_voted(step)) {
            error = void.into();
        }
        step.port.end();
        Err(error.unless_given_back(given))
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
