//! A step in parts. While one part travels, the next one is encoded, and the parts before it are polled: each
//! takes the messages that it waits for and sends what comes next. The parts of a step are cut when it
//! begins, or added one by one.
//!
//! Nothing here waits. A call does one piece of work, in the written order, or says that it lacks a message.

use std::collections::VecDeque;

use gradwire::{DecodeError, Grad, Memory, Unit};

use super::ending::{self, Ending};
use super::error::ExchangeError;
use super::means::{Means, flat};
use super::parts::{InParts, NewPart, Part, PartState, Parts, Polled};
use super::port::Care;
use super::report::{Clock, Progress, Report, Work};
use super::step::Step;
use super::void::{Failure, VoidMessage, note_tag};
use crate::tag::Wanted;

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

    /// What other ranks send of parts that they add before this one does is taken at once, so that it stands
    /// in the way of nothing: a part holds at least one unit.
    fn ask_for_parts(&mut self, step: &mut Step<'_>) {
        let (members, chunks) = (step.members(), step.units().len() as u32);
        let Some(tag) = self.route.head_tag(step, 0) else { return };
        step.others_in(&members).for_each(|(_, from)| step.port.ask(Wanted { from, tag, chunks }));
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

    /// Tells every peer that the gradient cannot be encoded: a void frame, or a failure if no coordinate is
    /// to blame, takes the place of the first part that was not sent. Every rank sends a part before it waits
    /// for messages of that part. So no rank waits for one that has received the void frame and stopped.
    fn say_void(&mut self, step: &mut Step<'_>, sent: usize, error: &ExchangeError) {
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
    fn heed_caller(&mut self, step: &mut Step<'_>, memory: &mut Option<&mut Memory<'_>>) {
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

    /// Adds a part, encodes it and queues its first messages. If the step has failed, all of its gradient
    /// stays in the memory.
    pub(super) fn add(
        &mut self,
        step: &mut Step<'_>,
        new: &NewPart<'_>,
        memory: &mut Option<&mut Memory<'_>>,
        mut encode: impl FnMut(
            &mut R,
            &mut Step<'_>,
            Part<'_>,
            &mut Option<&mut Memory<'_>>,
        ) -> Result<(), ExchangeError>,
    ) -> Result<usize, ExchangeError> {
        self.heed_caller(step, memory);
        if !matches!(self.phase, Phase::Adding | Phase::Telling { .. }) {
            return Err(ExchangeError::BadPart { why: "the mean was asked for" });
        }
        let at = self.parts[ADDED].add(step.units(), new)?;
        let part = self.parts[ADDED].part(at);
        self.route.set_parts(at + 1);
        if let Phase::Telling { error, given, .. } = &mut self.phase {
            let is_own = matches!(**error, ExchangeError::Encode(_))
                || matches!(**error, ExchangeError::Failed { rank, .. } if rank == step.rank());
            if !is_own && encode(&mut self.route, step, part, memory).is_ok() {
                *given = given.and(self.route.give_back(step, part, memory));
            }
            return Ok(at);
        }
        let posted = encode(&mut self.route, step, part, memory);
        if let Err(error) = posted {
            if step.port.takes_any && matches!(error, ExchangeError::Encode(_)) {
                self.parts[ADDED].take_back();
                return Err(error);
            }
            self.say_void(step, at, &error);
            self.fail_now(step, error, memory);
            return Ok(at);
        }
        (self.encoded, self.posted) = (at + 1, at + 1);
        match self.route.post(step, part) {
            Ok(()) => self.in_flight.push_back(at),
            Err(error) => self.fail_now(step, error, memory),
        }
        Ok(at)
    }

    /// One piece of the work on the parts that were added, up to the point where the mean of each is there.
    /// Also done if the step has failed, and all others are told.
    pub(super) fn advance(
        &mut self,
        step: &mut Step<'_>,
        mean: &mut dyn Means,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Progress<()>, ExchangeError> {
        self.heed_caller(step, memory);
        match self.phase {
            Phase::Adding => {}
            Phase::Telling { .. } => {
                self.parts[ADDED].spoil(mean);
                return self.tell_others(step);
            }
            _ => return Err(ExchangeError::NotStarted),
        }
        let polled = if self.in_flight.is_empty() { step.port.heed(step.layout) } else { Ok(()) };
        match polled.and_then(|()| self.poll(step, mean, memory)) {
            Ok(Polled::Complete) if self.in_flight.is_empty() => Ok(Progress::Done(())),
            Ok(Polled::Waiting) => Ok(Progress::Waiting),
            Ok(Polled::Busy(work)) => Ok(Progress::Worked(work)),
            Ok(_) => Ok(Progress::Worked(Work::Decode)),
            Err(error) => Ok(self.fail(step, error, memory)),
        }
    }

    /// How far a part is that was added; `None` if there is no such part.
    pub(super) fn part_state(&self, at: usize) -> Option<PartState> {
        self.parts[ADDED].state(at)
    }

    /// The message of a member about a part that was added.
    pub(super) fn headed(&self, at: usize, position: Option<usize>) -> Option<&[u8]> {
        let is_here = matches!(self.part_state(at)?, PartState::Complete | PartState::NotFinite);
        is_here.then(|| self.route.headed(at, position))
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

    /// The step failed here. What was encoded goes back to the memory. The other ranks are told if the network
    /// may lose messages. Then nobody needs the messages of the step any more.
    fn fail<T>(
        &mut self,
        step: &mut Step<'_>,
        error: ExchangeError,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Progress<T> {
        self.fail_now(step, error, memory);
        Progress::Worked(Work::Exchange)
    }

    fn fail_now(
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
    fn tell_others(&mut self, step: &mut Step<'_>) -> Result<Progress<()>, ExchangeError> {
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
    fn tell<T>(&mut self, step: &mut Step<'_>) -> Result<Progress<T>, ExchangeError> {
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
    fn give_back(
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
fn keep(error: ExchangeError, grad: Grad<'_>, memory: &mut Option<&mut Memory<'_>>) -> ExchangeError {
    match (&error, memory) {
        (ExchangeError::Encode(_), _) | (_, None) => error,
        (_, Some(memory)) => memory.keep(grad).map_or_else(ExchangeError::from, |()| error),
    }
}
