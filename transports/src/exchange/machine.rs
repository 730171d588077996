//! A step of an exchange as a machine without I/O: it is given a gradient, messages that arrived and the
//! time, and gives messages to send, then the mean.

use std::time::Duration;

use gradwire::arithmetic::gain::Gain;
use gradwire::{Grad, Memory, Selection, StepKey};

use super::driven::HasPort;
use super::error::ExchangeError;
use super::fit::packets_of;
use super::means::Means;
use super::port::{Care, Port};
use super::report::{Progress, Report, Work};
use super::step::Step;
use super::void::cut_text;
use super::{Exchange, Started, State};
use crate::collective::Reduce;
use crate::error::TransportError;
use crate::rank::{Membership, Rank};
use crate::tag::Tag;

/// What a step needs to know of the network.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The name of this rank.
    pub rank: Rank,
    /// The ranks that take part, this rank included.
    pub membership: Membership,
    /// Whether every message arrives unless the run ends for all: see
    /// [`Transport::is_fail_stop`](crate::Transport::is_fail_stop).
    pub is_fail_stop: bool,
}

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Its number, for [`Machine::sent`](super::Machine::sent).
    pub id: u64,
    /// Its receiver.
    pub to: Rank,
    /// Its tag.
    pub tag: Tag,
    /// Its bytes, which stay as they are until it is sent.
    pub bytes: &'a [u8],
    /// Until when it is tried.
    pub care: Care,
}

/// Calls `$call` with the route.
macro_rules! with_route {
    ($state:expr, $route:ident => $call:expr) => {
        match $state {
            State::AllGather($route) => $call,
            State::SparseAllReduce($route) => $call,
            State::AllReduce($route) => $call,
            State::Owners($route) => $call,
            State::Server($route) => $call,
        }
    };
}

impl Exchange {
    /// Begins a step, which must be encoded at `by`. Time is in nanoseconds from any moment that stays the
    /// same; [`u64::MAX`] is never. The memory is the one that the step changes.
    ///
    /// Every member begins the same steps in the same order, and finishes each before it begins the next.
    ///
    /// # Errors
    /// `Busy`.
    pub fn begin(
        &mut self,
        setting: Setting,
        key: StepKey,
        memory: Option<&Memory<'_>>,
        now: u64,
        by: u64,
    ) -> Result<(), ExchangeError> {
        self.begin_step(setting, key, memory, now, by, false)
    }

    pub(super) fn begin_step(
        &mut self,
        setting: Setting,
        key: StepKey,
        memory: Option<&Memory<'_>>,
        now: u64,
        by: u64,
        is_open: bool,
    ) -> Result<(), ExchangeError> {
        self.require_idle()?;
        self.note_before(memory);
        self.note_begin();
        let Setting { rank, membership, is_fail_stop } = setting;
        let tag = Tag::new(membership.epoch, self.number.take().unwrap_or(key.step));
        self.port.begin(rank, membership, is_fail_stop, tag);
        self.port.frame_step = key.step;
        (self.port.now, self.port.deadline, self.port.is_open) = (now, by, is_open);
        self.started = Some(Started { key, tag, is_encoded: is_open, is_finishing: false });
        let (mut step, route) = self.split()?;
        with_route!(route, route => route.begin(&mut step));
        Ok(())
    }

    /// Gives the messages of the next step that begins this number in place of its step, the same at all
    /// ranks, and larger than the numbers before. So several exchanges share a transport, each with numbers
    /// of its own; and ranks whose steps differ hear each other.
    pub fn number(&mut self, number: u64) {
        self.number = Some(number);
    }

    /// Whether the step may be completed: it is encoded, or its caller has failed.
    pub(super) fn is_encoded(&self) -> bool {
        let is_failing = self.port.failing.is_some();
        self.started.is_some_and(|started| started.is_encoded || started.is_finishing || is_failing)
    }

    /// Whether payloads are summed, and not frames.
    pub(crate) fn is_summed(&self) -> bool {
        self.route.kind().is_summed()
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

    /// Forgets what earlier steps measured.
    fn note_begin(&mut self) {
        self.measure.iter_mut().for_each(|measure| measure.sum = Gain::default());
        self.clock = Default::default();
    }

    /// Copies what a failed step must restore and no route gives back: the memory, if steps are undone, or
    /// else the arrays of linear codecs.
    fn note_before(&mut self, memory: Option<&Memory<'_>>) {
        let arrays = memory.filter(|memory| self.is_summed() && !memory.arrays().is_empty());
        match (&mut self.before, memory, arrays) {
            (Some(before), Some(memory), _) => before.take(memory),
            (None, _, Some(memory)) => self.arrays.get_or_insert_default().take_arrays(memory),
            _ => self.arrays = None,
        }
    }

    /// Does one piece of the work until the gradient is encoded and everything has left that leaves without
    /// an answer. `Done` then. The gradient and the memory are the same in every call of a step.
    ///
    /// # Errors
    /// Those of [`start`](Self::start). The step is over then.
    ///
    /// # Panics
    /// When the gradient or the memory has another length than the layout.
    pub fn encode(
        &mut self,
        grad: Grad<'_>,
        memory: Option<&mut Memory<'_>>,
        now: u64,
    ) -> Result<Progress<()>, ExchangeError> {
        self.encode_selected(grad, None, memory, now)
    }

    /// The same with what was selected from the gradient.
    pub(crate) fn encode_selected(
        &mut self,
        grad: Grad<'_>,
        selected: Option<(&Selection, usize)>,
        mut memory: Option<&mut Memory<'_>>,
        now: u64,
    ) -> Result<Progress<()>, ExchangeError> {
        self.port.now = now;
        let (step, route) = self.split()?;
        let mut step = Step { selected, ..step };
        let memory_of_step = &mut memory;
        let progress = with_route!(route, route => route.encode(&mut step, grad, memory_of_step));
        match &progress {
            Err(_) => self.started = None,
            Ok(Progress::Done(())) => self.started.iter_mut().for_each(|started| started.is_encoded = true),
            Ok(_) => {}
        }
        self.undo_if_failed(progress.map(|progress| self.send_first(progress)), memory)
    }

    /// Does one piece of the work until the mean is in `mean`, whose last elements are written in the last of
    /// the calls. `mean` and the memory are the same in every call of a step.
    ///
    /// The first call sets the deadline for the mean, `by`.
    ///
    /// # Errors
    /// Those of [`finish`](Self::finish). The step is over then.
    ///
    /// # Panics
    /// When `mean` or the memory has another length than the layout.
    pub fn complete(
        &mut self,
        mut mean: &mut [f32],
        memory: Option<&mut Memory<'_>>,
        now: u64,
        by: u64,
    ) -> Result<Progress<Report>, ExchangeError> {
        assert_eq!(mean.len(), self.layout.len(), "mean and layout differ in length");
        self.complete_means(&mut mean, memory, now, by)
    }

    /// The same for a step whose parts were added and [stand apart](Self::advance_apart): call it once the
    /// mean of each is there, or the step has failed.
    ///
    /// # Errors
    /// As [`complete`](Self::complete).
    ///
    /// # Panics
    /// As [`advance_apart`](Self::advance_apart).
    pub fn complete_apart(
        &mut self,
        mean: &mut dyn Means,
        memory: Option<&mut Memory<'_>>,
        now: u64,
        by: u64,
    ) -> Result<Progress<Report>, ExchangeError> {
        if !self.port.is_open {
            return Err(ExchangeError::NotStarted);
        }
        self.complete_means(mean, memory, now, by)
    }

    fn complete_means(
        &mut self,
        mean: &mut dyn Means,
        mut memory: Option<&mut Memory<'_>>,
        now: u64,
        by: u64,
    ) -> Result<Progress<Report>, ExchangeError> {
        self.port.now = now;
        let is_encoded = self.is_encoded();
        let started = self.started.as_mut().filter(|_| is_encoded).ok_or(ExchangeError::NotStarted)?;
        let is_first = !std::mem::replace(&mut started.is_finishing, true);
        let clock = self.clock;
        let (mut step, route) = self.split()?;
        let memory_of_step = &mut memory;
        let progress = with_route!(route, route => {
            if is_first {
                route.finish_by(&mut step, mean, by);
            }
            route.complete(&mut step, mean, memory_of_step, clock)
        });
        if matches!(progress, Err(_) | Ok(Progress::Done(_))) {
            self.started = None;
        }
        if let (Ok(Progress::Done(_)), Some(memory)) = (&progress, &mut memory) {
            self.decay(memory);
        }
        self.undo_if_failed(progress.map(|progress| self.send_first(progress)), memory)
    }

    /// What is kept of the units that the step had decays.
    fn decay(&self, memory: &mut Memory<'_>) {
        if !self.port.is_open {
            return self.plan.decay(self.plan.units(), memory);
        }
        let parts = (0..).map_while(|at| self.units_of(at));
        parts.for_each(|units| self.plan.decay(units, memory));
    }

    /// A call that queued messages is not one that waits: they are to be sent before the driver sleeps.
    pub(super) fn send_first<T>(&self, progress: Progress<T>) -> Progress<T> {
        match progress {
            Progress::Waiting if self.port.outgoing().is_some() => Progress::Worked(Work::Exchange),
            progress => progress,
        }
    }

    /// Restores what was copied before a step that failed.
    fn undo_if_failed<T>(
        &mut self,
        result: Result<T, ExchangeError>,
        mut memory: Option<&mut Memory<'_>>,
    ) -> Result<T, ExchangeError> {
        let is_over = result.is_err() && self.started.is_none();
        if let (true, Some(arrays), Some(memory)) = (is_over, &self.arrays, &mut memory) {
            arrays.restore_arrays(memory);
        }
        let (true, Some(before), Some(memory)) = (is_over, &mut self.before, memory) else { return result };
        before.swap_into(memory);
        result.map_err(|error| match error {
            // Nothing is lost.
            ExchangeError::NotGivenBack { cause, .. } => *cause,
            error => error,
        })
    }

    /// The caller has failed in code of its own. The step fails at all ranks, with this text, of which 512
    /// bytes travel. Call [`complete`](Self::complete) until it returns the error: then the others are told.
    /// Whatever was encoded goes back to the memory.
    ///
    /// Without a step in progress, and once this rank has voted for its mean, the call does nothing. Where
    /// ranks do not vote ([`voting`](Self::voting)), the others are told up to the point where all is
    /// encoded; by a server, a worker can tell the server up to then, and the server all workers until it
    /// answers. A server that has a quorum without that worker continues.
    pub fn fail(&mut self, text: &str) {
        if self.started.is_some() {
            self.port.failing = Some(cut_text(text).to_owned());
        }
    }

    /// The step in progress, and the route that does its work.
    pub(super) fn split(&mut self) -> Result<(Step<'_>, &mut State), ExchangeError> {
        let Started { key, tag, .. } = self.started.ok_or(ExchangeError::NotStarted)?;
        let step = Step {
            port: &mut self.port,
            plan: &self.plan,
            selected: None,
            layout: &self.layout,
            divisor: self.divisor,
            key,
            tag,
            measure: self.measure.as_mut(),
        };
        Ok((step, &mut self.route))
    }
}

impl HasPort for Exchange {
    fn port(&self) -> &Port {
        &self.port
    }

    fn port_mut(&mut self) -> &mut Port {
        &mut self.port
    }

    fn frame(&self, part: usize, place: usize) -> &[u8] {
        with_route!(&self.route, route => route.frame(part, place))
    }

    fn spend(&mut self, work: Work, time: Duration) {
        *match work {
            Work::Encode => &mut self.clock.encode,
            Work::Exchange => &mut self.clock.exchange,
            Work::Decode => &mut self.clock.decode,
        } += time;
    }

    fn sum_lent(&mut self, sum: &mut dyn FnMut(Tag, Reduce<'_>) -> Result<(), TransportError>) {
        let Some(Started { tag, .. }) = self.started else { return };
        let State::AllReduce(reduce) = &mut self.route else { return };
        if let Err(error) = reduce.route.lent(tag, &self.plan, sum) {
            self.port.fail(error);
        }
    }
}
