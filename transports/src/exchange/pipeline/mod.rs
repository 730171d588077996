//! A step in parts. While one part travels, the next one is encoded, and the parts before it are polled: each
//! takes the messages that it waits for and sends what comes next. The parts of a step are cut when it
//! begins, or added one by one.
//!
//! Nothing here waits. A call does one piece of work, in the written order, or says that it lacks a message.

mod adding;
mod failing;

use std::collections::VecDeque;

use gradwire::{DecodeError, Grad, Memory, Unit};

use self::failing::keep;
use super::ending::{self, Ending};
use super::error::ExchangeError;
use super::means::{Means, flat};
use super::part_route::{InParts, Polled};
use super::parts::{PartState, Parts};
use super::report::{Clock, Progress, Report, Work};
use super::step::Step;
use super::void::note_tag;

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
    /// Parts are added one by one.
    Adding,
    /// All parts are polled until they are complete.
    Completing,
    /// The mean is there; messages for other ranks may not have left yet.
    Sending,
    /// The ranks tell each other whether they have the mean.
    Voting,
    /// The mean may be used. The last messages leave.
    Leaving,
    /// The step failed, and the other ranks are told until that time; first this rank looks whether another
    /// one has told it why.
    Telling { error: Box<ExchangeError>, given: Result<(), DecodeError>, by: u64, has_looked: bool },
}

/// A route and its parts. At the start, a part is polled once after each later part was encoded. At the end
/// all parts are polled until they are complete.
#[derive(Debug)]
pub(super) struct Pipeline<R> {
    pub(super) route: R,
    /// The parts that a step is cut into, and those that are added; and which of them this step has.
    parts: [Parts; 2],
    kind: usize,
    phase: Phase,
    /// Parts in flight, the one that sent longest ago first.
    in_flight: VecDeque<usize>,
    /// The first error while parts were encoded, and the number of parts that were posted. Encoding continues
    /// after an error, because only what is encoded enters the memory.
    failed: Option<ExchangeError>,
    posted: usize,
    encoded: usize,
    /// The shares of the mean that are complete before all parts are encoded; empty with a single part.
    mean: Vec<f32>,
    /// When the step must be over, the last word included.
    by: u64,
    ending: Ending,
}

/// The positions of [`Pipeline::parts`].
const CUT: usize = 0;
const ADDED: usize = 1;

impl<R: InParts> Pipeline<R> {
    /// In one part.
    pub(super) fn new(route: R, units: &[Unit]) -> Self {
        let (parts, kind, phase, in_flight) = (Default::default(), CUT, Phase::Agreeing, VecDeque::new());
        let (failed, posted, encoded, mean, by) = (None, 0, 0, Vec::new(), u64::MAX);
        let ending = Ending::default();
        let mut pipeline =
            Self { route, parts, kind, phase, in_flight, failed, posted, encoded, mean, by, ending };
        pipeline.cut(units, 1);
        pipeline
    }

    /// Frees the buffers of earlier steps.
    pub(super) fn free(&mut self) {
        self.route.free();
        self.mean = Vec::new();
    }

    /// In at most `count` parts.
    pub(super) fn cut(&mut self, units: &[Unit], count: usize) {
        self.parts[CUT] = Parts::new(units, count);
    }

    /// Begins a step. The port has begun it, and knows whether parts are added.
    pub(super) fn begin(&mut self, step: &mut Step<'_>) {
        self.in_flight.clear();
        (self.failed, self.posted, self.encoded) = (None, 0, 0);
        self.by = step.port.deadline;
        (self.kind, self.phase) =
            if step.port.is_open { (ADDED, Phase::Adding) } else { (CUT, Phase::Agreeing) };
        self.parts[ADDED].clear();
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
        self.route.set_parts(self.parts[self.kind].count());
        if self.kind == CUT && self.parts[CUT].count() > 1 {
            self.mean.resize(step.layout.len(), 0.0);
        }
        if self.kind == ADDED {
            self.ask_for_parts(step);
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
        self.heed_caller(step, memory);
        match self.phase {
            Phase::Agreeing => match self.route.agree(step, grad, memory.as_deref()) {
                Ok(false) => Ok(Progress::Waiting),
                Ok(true) => self.go_on(Phase::Encoding(0), Work::Encode),
                Err(error) => {
                    self.say_void(step, 0, &error);
                    let error = keep(error, grad, memory);
                    Ok(self.fail(step, error, memory))
                }
            },
            Phase::Encoding(at) if at < self.parts[self.kind].count() => {
                self.encode_part(step, at, grad, memory)
            }
            Phase::Encoding(_) => match self.failed.take() {
                None => self.go_on(Phase::Encoded, Work::Exchange),
                // The others may have the mean, so they are told when it is asked for.
                refused @ Some(ExchangeError::NonFiniteMean { .. }) => {
                    self.failed = refused;
                    self.go_on(Phase::Encoded, Work::Exchange)
                }
                Some(error) => Ok(self.fail(step, error, memory)),
            },
            Phase::Polling { next, due: 0 } => self.go_on(Phase::Encoding(next), Work::Exchange),
            Phase::Polling { next, due } => {
                let mut mean = std::mem::take(&mut self.mean);
                let polled = self.poll(step, &mut &mut mean[..], memory);
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
                Err(error) => Ok(self.fail(step, error.into(), memory)),
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
        let part = self.parts[self.kind].part(at);
        if let Err(error) = self.route.encode(step, part, grad, memory) {
            self.say_void(step, self.posted, &error);
            return Ok(self.fail(step, error, memory));
        }
        self.encoded = at + 1;
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

    /// One piece of a poll of the part that sent longest ago.
    fn poll(
        &mut self,
        step: &mut Step<'_>,
        mean: &mut dyn Means,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Polled, ExchangeError> {
        let Some(&at) = self.in_flight.front() else { return Ok(Polled::Complete) };
        let part = self.parts[self.kind].part(at);
        let polled = self.route.poll(step, part, mean, memory)?;
        match polled {
            Polled::More => self.in_flight.rotate_left(1),
            Polled::Complete => {
                // Those of a step that was cut become means when all are there, because nobody uses one of
                // them before.
                if self.kind == ADDED {
                    let state = match self.route.conclude(step, part, mean) {
                        Err(ExchangeError::NonFiniteMean { .. }) if step.port.takes_any => {
                            PartState::NotFinite
                        }
                        concluded => concluded.map(|()| PartState::Complete)?,
                    };
                    self.parts[ADDED].set_state(at, state);
                }
                self.in_flight.pop_front();
            }
            _ => {}
        }
        Ok(polled)
    }

    /// All parts are encoded, and the mean is to be there at `by`.
    pub(super) fn finish_by(&mut self, step: &mut Step<'_>, mean: &mut dyn Means, by: u64) {
        self.by = by;
        step.port.deadline = if step.port.has_votes() { ending::votes_by(step.port.now, by) } else { by };
        if self.kind == CUT && self.parts[CUT].count() > 1 {
            flat(mean).copy_from_slice(&self.mean);
        }
        if !matches!(self.phase, Phase::Telling { .. }) {
            self.phase = Phase::Completing;
        }
    }

    /// One piece of the work from then to the mean.
    pub(super) fn complete(
        &mut self,
        step: &mut Step<'_>,
        mean: &mut dyn Means,
        memory: &mut Option<&mut Memory<'_>>,
        clock: Clock,
    ) -> Result<Progress<Report>, ExchangeError> {
        self.heed_caller(step, memory);
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
                    let given = self.give_back(step, memory);
                    let (error, by, has_looked) = (Box::new(error), self.by, true);
                    self.phase = Phase::Telling { error, given, by, has_looked };
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
            _ => {
                if self.kind == ADDED {
                    self.parts[ADDED].spoil(mean);
                }
                return self.tell(step);
            }
        };
        done.or_else(|error| Ok(self.fail(step, error, memory)))
    }

    fn complete_parts(
        &mut self,
        step: &mut Step<'_>,
        mean: &mut dyn Means,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Progress<Report>, ExchangeError> {
        if let Some(refused) = self.failed.take() {
            return Err(refused);
        }
        if self.in_flight.is_empty() {
            let cut = if self.kind == CUT { self.parts[CUT].count() } else { 0 };
            for at in 0..cut {
                self.route.conclude(step, self.parts[CUT].part(at), mean)?;
            }
            return self.go_on(Phase::Sending, Work::Decode);
        }
        Ok(match self.poll(step, mean, memory)? {
            Polled::Waiting => Progress::Waiting,
            Polled::Lent => Progress::Lent,
            Polled::Busy(work) => Progress::Worked(work),
            Polled::More | Polled::Complete => Progress::Worked(Work::Decode),
        })
    }
}
