//! Parts that are added one by one, while earlier ones travel.

use gradwire::{Memory, Unit};

use super::{ADDED, Phase, Pipeline};
use crate::exchange::error::ExchangeError;
use crate::exchange::means::Means;
use crate::exchange::part_route::{InParts, Polled};
use crate::exchange::parts::{NewPart, Part, PartState};
use crate::exchange::report::{Progress, Work};
use crate::exchange::step::Step;
use crate::tag::Wanted;

impl<R: InParts> Pipeline<R> {
    /// Adds a part, encodes it and queues its first messages. If the step has failed, all of its gradient
    /// stays in the memory.
    pub(in crate::exchange) fn add(
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
    pub(in crate::exchange) fn advance(
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
    pub(in crate::exchange) fn part_state(&self, at: usize) -> Option<PartState> {
        self.parts[ADDED].state(at)
    }

    /// The units of a part that was added.
    pub(in crate::exchange) fn units_of(&self, at: usize) -> Option<&[Unit]> {
        self.part_state(at).map(|_| self.parts[ADDED].part(at).units)
    }

    /// The message of a member about a part that was added.
    pub(in crate::exchange) fn headed(&self, at: usize, position: Option<usize>) -> Option<&[u8]> {
        let is_here = matches!(self.part_state(at)?, PartState::Complete | PartState::NotFinite);
        is_here.then(|| self.route.headed(at, position))
    }

    /// What other ranks send of parts that they add before this one does is taken at once, so that it stands
    /// in the way of nothing: a part holds at least one unit.
    pub(super) fn ask_for_parts(&mut self, step: &mut Step<'_>) {
        let (members, chunks) = (step.members(), step.units().len() as u32);
        let Some(tag) = self.route.head_tag(step, 0) else { return };
        step.others_in(&members).for_each(|(_, from)| step.port.ask(Wanted::chunks(from, tag, chunks)));
    }
}
