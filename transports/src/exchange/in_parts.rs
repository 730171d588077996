//! A step whose parts are added one by one, while earlier ones travel.
//!
//! [`begin_in_parts`](Exchange::begin_in_parts), [`add`](Exchange::add) for each part, and
//! [`advance`](Exchange::advance) whenever something may have arrived: the mean of a part is there as soon as
//! [`part`](Exchange::part) says so. [`complete`](Exchange::complete) ends the step.

use gradwire::{Grad, Memory, StepKey, Unit};

use super::error::ExchangeError;
use super::head;
use super::machine::Setting;
use super::means::Means;
use super::part_route::InParts;
use super::parts::{NewPart, PartState};
use super::report::Progress;
use super::{Exchange, State};
use crate::rank::Rank;
use crate::tag::Tag;

/// Calls `$call` with the pipeline of a route that takes parts; other routes are an error.
macro_rules! with_pipeline {
    ($state:expr, $route:ident => $call:expr) => {
        match $state {
            State::AllGather($route) => $call,
            State::Owners($route) => $call,
            State::SparseAllReduce($route) => $call,
            State::AllReduce(_) => Err(ExchangeError::NoParts { route: "a ring, a tree or a library" }),
            State::Server(_) => Err(ExchangeError::NoParts { route: "a server" }),
        }
    };
}

impl Exchange {
    /// Begins a step without parts, as [`begin`](Self::begin). All ranks [`add`](Self::add) the same units in
    /// the same order, whenever they have their gradients. All ranks vote at the end of such a step.
    ///
    /// # Errors
    /// `Busy`; `NoParts` for routes other than [`Route::AllGather`](super::Route::AllGather),
    /// [`Route::SparseAllReduce`](super::Route::SparseAllReduce) and
    /// [`Route::Owners`](super::Route::Owners); `RoundsFirst` for a codec with rounds before its frame, which
    /// needs all of the gradient.
    pub fn begin_in_parts(
        &mut self,
        setting: Setting,
        key: StepKey,
        memory: Option<&Memory<'_>>,
        now: u64,
        by: u64,
    ) -> Result<(), ExchangeError> {
        self.require_idle()?;
        with_pipeline!(&self.route, _route => Ok(()))?;
        let group = &self.plan.groups()[0];
        if group.codec().rounds_first().is_some() {
            return Err(ExchangeError::RoundsFirst { codec: group.name() });
        }
        self.begin_step(setting, key, memory, now, by, true)
    }

    /// Adds a part: encodes it, and queues its first messages. Returns its number, from 0. Of the gradient,
    /// only the units of the part are read, less those that this rank lacks. Of these, a frame holds nothing
    /// and the residual stays; a sum takes them as zeros.
    ///
    /// If the gradient cannot be encoded, or the step has failed before, [`complete`](Self::complete) returns
    /// that error.
    ///
    /// # Errors
    /// `BadPart`, and the step goes on as if there had been no call. The same holds for `Encode` of an
    /// exchange that [takes any mean](Self::taking_any_mean). `NotStarted` in any other step.
    ///
    /// # Panics
    /// When the gradient or the memory has another length than the layout.
    pub fn add(
        &mut self,
        part: &NewPart<'_>,
        grad: Grad<'_>,
        mut memory: Option<&mut Memory<'_>>,
        now: u64,
    ) -> Result<usize, ExchangeError> {
        assert_eq!(grad.len(), self.layout.len(), "gradient and layout differ in length");
        self.require_parts()?;
        self.port.now = now;
        let (mut step, route) = self.split()?;
        with_pipeline!(route, route => {
            route.add(&mut step, part, &mut memory, |route, step, part, memory| {
                route.encode(step, part, grad, memory)
            })
        })
    }

    /// Adds a part whose gradient stands in a place of its own for each unit that this rank does not lack, in
    /// their order, by [`Route::Owners`](super::Route::Owners). Otherwise as [`add`](Self::add).
    ///
    /// # Errors
    /// Those of [`add`](Self::add). By other routes the step fails with `NoParts`.
    ///
    /// # Panics
    /// When the memory has another length than the layout, or there is not one gradient for each of these
    /// units, of its length.
    pub fn add_apart(
        &mut self,
        part: &NewPart<'_>,
        grads: &[Grad<'_>],
        mut memory: Option<&mut Memory<'_>>,
        now: u64,
    ) -> Result<usize, ExchangeError> {
        self.require_parts()?;
        self.port.now = now;
        let (mut step, route) = self.split()?;
        with_pipeline!(route, route => {
            route.add(&mut step, part, &mut memory, |route, step, part, memory| {
                route.encode_apart(step, part, grads, memory)
            })
        })
    }

    /// Adds a part whose gradient stands in a place of its own for each unit that this rank does not lack, in
    /// their order, and whose residuals are in `before`. What is kept goes to `memory`, and `before` stays:
    /// see [`Gather::encode_beside`](gradwire::Gather::encode_beside). If the step fails, go on with
    /// `before`, for nothing is given back to `memory`. Otherwise as [`add`](Self::add).
    ///
    /// # Errors
    /// Those of [`add`](Self::add). By [`Route::Owners`](super::Route::Owners), and for a plan of several
    /// groups, the step fails with `NoParts`.
    ///
    /// # Panics
    /// When a memory has another length than the layout, or there is not one gradient for each of these
    /// units, of its length.
    pub fn add_beside(
        &mut self,
        part: &NewPart<'_>,
        grads: &[Grad<'_>],
        before: &Memory<'_>,
        memory: &mut Memory<'_>,
        now: u64,
    ) -> Result<usize, ExchangeError> {
        self.require_parts()?;
        self.port.now = now;
        let (mut step, route) = self.split()?;
        with_pipeline!(route, route => {
            route.add(&mut step, part, &mut None, |route, step, part, _| {
                route.encode_beside(step, part, grads, before, memory)
            })
        })
    }

    /// Does one piece of the work on the parts that were added. `Done` once the mean of each is in `mean`,
    /// which is the same in every call of a step: call again after the next [`add`](Self::add).
    ///
    /// If the step fails, whatever has no mean yet becomes NaN, and so do the parts that are added later;
    /// this is then done as soon as the others are told.
    ///
    /// # Errors
    /// `NotStarted` without such a step, or once `complete` was called.
    ///
    /// # Panics
    /// When `mean` or the memory has another length than the layout.
    pub fn advance(
        &mut self,
        mut mean: &mut [f32],
        memory: Option<&mut Memory<'_>>,
        now: u64,
    ) -> Result<Progress<()>, ExchangeError> {
        assert_eq!(mean.len(), self.layout.len(), "mean and layout differ in length");
        self.advance_apart(&mut mean, memory, now)
    }

    /// The same with means that stand wherever the caller wants them. Only those of units of parts that are
    /// not complete are asked for.
    ///
    /// # Errors
    /// As [`advance`](Self::advance).
    ///
    /// # Panics
    /// When a place or the memory has another length than it should.
    pub fn advance_apart(
        &mut self,
        mean: &mut dyn Means,
        mut memory: Option<&mut Memory<'_>>,
        now: u64,
    ) -> Result<Progress<()>, ExchangeError> {
        self.require_parts()?;
        self.port.now = now;
        let (mut step, route) = self.split()?;
        let progress = with_pipeline!(route, route => route.advance(&mut step, mean, &mut memory))?;
        Ok(self.send_first(progress))
    }

    /// How far a part of the last step is; `None` if there is no such part. The mean of a part has the same
    /// bits at all ranks, in whatever order messages arrive, but only [`complete`](Self::complete) says
    /// whether the step holds.
    pub fn part(&self, at: usize) -> Option<PartState> {
        with_pipeline!(&self.route, route => Ok(route.part_state(at))).ok()?
    }

    /// The units of a part of the last step.
    pub(super) fn units_of(&self, at: usize) -> Option<&[Unit]> {
        with_pipeline!(&self.route, route => Ok(route.units_of(at))).ok()?
    }

    /// Frees the buffers of earlier steps, for an exchange that takes none for a while; the next step makes
    /// them anew. What it holds of messages that came early stays.
    ///
    /// # Errors
    /// `Busy`; `NoParts` for routes that take no added parts.
    pub fn free(&mut self) -> Result<(), ExchangeError> {
        self.require_idle()?;
        with_pipeline!(&mut self.route, route => { route.free(); Ok(()) })?;
        self.port.free();
        Ok(())
    }

    /// Sets until when the messages of the parts that were added must come; at first, the time that the step
    /// was begun with.
    pub fn wait_until(&mut self, by: u64) {
        self.port.deadline = by;
    }

    /// The members of whom a message is missing without which the step does not go on.
    pub fn missing(&self) -> Vec<Rank> {
        self.port.missing()
    }

    /// Which part of the step in progress a message with that tag is about, if it is one that begins with
    /// what its sender [says](Self::said_in).
    pub fn part_of(&mut self, tag: Tag) -> Option<usize> {
        let (step, route) = self.split().ok()?;
        let first = with_pipeline!(route, route => Ok(route.route.head_tag(&step, 0))).ok()??;
        let at = tag.chunk.checked_sub(first.chunk)?;
        (tag == first.chunk(tag.chunk) && at < step.units().len() as u32).then_some(at as usize)
    }

    /// What the sender of a message [about a part](Self::part_of) says in it, before the message is handed
    /// in.
    pub fn said_in(message: &[u8]) -> Option<&[u8]> {
        head::said(message)
    }

    /// Coordinates that the frames of all members hold, in the last step; `None` where every member sends as
    /// many as this one.
    pub fn held_by_all(&self) -> Option<usize> {
        with_pipeline!(&self.route, route => Ok(route.route.held_by_all())).ok()?
    }

    /// Forgets the step in progress, and tells nobody: for a caller that begins it again as all others do, or
    /// that goes no further. Its memory is whatever the calls so far made of it. Messages of the step that
    /// arrive later are dropped once another one has begun.
    pub fn abandon(&mut self) {
        self.port.end();
        self.started = None;
    }

    /// What a member said with a part of the last step that is complete.
    pub fn said(&self, part: usize, rank: Rank) -> Option<&[u8]> {
        let members = self.port.members();
        let position = if rank == self.port.rank() { None } else { Some(members.ranks.position(rank)?) };
        let message = with_pipeline!(&self.route, route => Ok(route.headed(part, position))).ok()??;
        head::said(message)
    }

    fn require_parts(&self) -> Result<(), ExchangeError> {
        if self.started.is_some() && self.port.is_open { Ok(()) } else { Err(ExchangeError::NotStarted) }
    }
}
