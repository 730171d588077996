//! What the server's route needs of the network: it still waits in its own calls.

use std::time::{Duration, Instant};

use gradwire::{Grad, Memory, Selection, StepKey};

use super::error::ExchangeError;
use super::fit::packets_of;
use super::report::{Clock, Report};
use super::step::Step;
use super::{Exchange, Started, State};
use crate::tag::{Deadline, Tag};
use crate::transport::Transport;

/// The transport of a step, how long it may take, and the time that it took.
pub(super) struct Net<'a> {
    pub(super) transport: &'a mut dyn Transport,
    pub(super) deadline: Deadline,
    pub(super) clock: Clock,
}

/// Runs `work` and adds its time to `sum`.
pub(super) fn timed<T>(sum: &mut Duration, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    *sum += start.elapsed();
    result
}

impl Exchange {
    /// Whether one rank makes the mean.
    pub(crate) fn has_server(&self) -> bool {
        matches!(self.route, State::Server(_))
    }

    /// Whether payloads are summed, and not frames.
    pub(crate) fn is_summed(&self) -> bool {
        matches!(self.route, State::AllReduce(_))
    }

    /// Sets the codec of what was selected, at the density with that position. Returns the key of the step.
    pub(crate) fn set_selected(
        &mut self,
        selection: &Selection,
        at: usize,
    ) -> Result<StepKey, ExchangeError> {
        assert!(packets_of(&self.plan).is_none(), "packets are cut from the gradient");
        let (key, codec) = (selection.key(), selection.codec(at));
        let (key, codec) = key.zip(codec).expect("a selection, and one of its densities");
        self.set_codec(codec)?;
        Ok(key)
    }

    pub(crate) fn start_served(
        &mut self,
        transport: &mut dyn Transport,
        key: StepKey,
        grad: Grad<'_>,
        selected: Option<(&Selection, usize)>,
        mut memory: Option<&mut Memory<'_>>,
        deadline: Deadline,
    ) -> Result<(), ExchangeError> {
        if self.started.is_some() {
            return Err(ExchangeError::Busy);
        }
        if selected.is_none() {
            self.note_before(memory.as_deref());
        }
        self.note_begin();
        let membership = transport.membership();
        let tag = Tag::new(membership.epoch, key.step);
        transport.retire(tag);
        self.port.begin(transport.rank(), membership, true, tag);
        self.started = Some(Started { key, tag, is_encoded: true, is_finishing: false });
        let (step, route) = self.step()?;
        let mut step = Step { selected, ..step };
        let mut net = Net { transport, deadline, clock: Clock::default() };
        let State::Server(server) = route else { return Ok(()) };
        let started = server.start(&mut step, &mut net, grad, &mut memory);
        self.clock = net.clock;
        if started.is_err() {
            self.started = None;
        }
        self.undo_if_void(started, memory)
    }

    pub(crate) fn finish_served(
        &mut self,
        transport: &mut dyn Transport,
        mean: &mut [f32],
        mut memory: Option<&mut Memory<'_>>,
        deadline: Deadline,
    ) -> Result<Report, ExchangeError> {
        assert_eq!(mean.len(), self.layout.len(), "mean and layout differ in length");
        let mut net = Net { transport, deadline, clock: self.clock };
        let (mut step, route) = self.step()?;
        let State::Server(server) = route else { return Err(ExchangeError::NotStarted) };
        let finished = server.finish(&mut step, &mut net, mean, &mut memory);
        self.started = None;
        self.undo_if_void(finished, memory)
    }
}
