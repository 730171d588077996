//! A step in which misuse does not compile: each state of it is a type, which has the calls that are allowed
//! then, and holds what is lent to the step.

use std::fmt;

use gradwire::{Grad, Memory, Selection, StepKey};

use super::Exchange;
use super::driven::Machine;
use super::error::ExchangeError;
use super::machine::Setting;
use super::report::{Progress, Report, Work};

/// A step of an exchange. While it lasts, it borrows the exchange, the memory, and what its state needs.
///
/// | state | calls |
/// | --- | --- |
/// | [`Encoding`] | [`work`](Drive::work) until it says that the gradient is encoded and sent |
/// | [`Encoded`] | [`complete`](Step::complete), whenever the mean is needed |
/// | [`Completing`] | [`work`](Drive::work) until the mean is there |
/// | [`Adding`](super::Adding) | [`add`](Step::add), [`work`](Drive::work), [`mean_of`](Step::mean_of), [`complete`](Step::complete): of a [step in parts](Exchange::step_in_parts) |
///
/// In every state, [`machine`](Step::machine) moves the messages and [`fail`](Step::fail) tells the others
/// that this rank's caller has failed. An error of [`work`](Drive::work) ends the step.
///
/// Dropping a step early does not end it. Once it is encoded, [`Exchange::encoded_step`] takes it up again.
///
/// # Examples
/// One rank alone, so that no message travels.
/// ```
/// use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey};
/// use gradwire_transports::exchange::{Drive, Exchange, Next, Route, Setting};
/// use gradwire_transports::{Membership, Rank, RankSet};
///
/// let (spec, layout) = (Spec::parse("topk:density=0.5")?, Layout::packed([("w", vec![4])])?);
/// let mut memory = Memory::for_spec(&spec, &layout.as_ref());
/// let mut exchange = Exchange::new(spec, layout, Route::AllGather)?;
/// let membership = Membership { epoch: 0, ranks: RankSet::contiguous(1) };
/// let setting = Setting { rank: Rank(0), membership, is_fail_stop: true };
/// let key = StepKey { seed: 1, step: 0, source: Source::Rank(0) };
/// let (grad, mut mean, now, never) = ([1.0, 8.0, 0.5, -6.0], [0.0; 4], 0, u64::MAX);
///
/// let mut step = exchange.step(setting, key, Grad::F32(&grad), memory.as_mut(), now, never)?;
/// let encoded = loop {
///     step = match step.work(now)? {
///         Next::Worked(step, _) | Next::Waiting(step) | Next::Lent(step) => step,
///         Next::Done(encoded) => break encoded,
///     };
/// };
/// let mut step = encoded.complete(&mut mean, never);
/// let report = loop {
///     step = match step.work(now)? {
///         Next::Worked(step, _) | Next::Waiting(step) | Next::Lent(step) => step,
///         Next::Done(report) => break report,
///     };
/// };
/// assert_eq!((mean, report.held), ([0.0, 8.0, 0.0, -6.0], 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # What does not compile
/// A mean that is asked for before the gradient is encoded:
/// ```compile_fail,E0599
/// # use gradwire_transports::exchange::{Encoding, Step};
/// fn early(step: Step<'_, '_, Encoding<'_>>, mean: &mut [f32]) {
///     step.complete(mean, u64::MAX);
/// }
/// ```
/// Work on a step that waits for nothing:
/// ```compile_fail,E0599
/// # use gradwire_transports::exchange::{Drive, Encoded, Step};
/// fn idle(step: Step<'_, '_, Encoded>) {
///     step.work(0);
/// }
/// ```
/// A second step before the first one is over:
/// ```compile_fail,E0499
/// # use gradwire::{Grad, StepKey};
/// # use gradwire_transports::exchange::{Drive, Exchange, Setting};
/// fn two(exchange: &mut Exchange, setting: Setting, key: StepKey, grad: Grad<'_>) {
///     let first = exchange.step(setting.clone(), key, grad, None, 0, u64::MAX).unwrap();
///     let second = exchange.step(setting, key, grad, None, 0, u64::MAX).unwrap();
///     let _ = (first.work(0), second.work(0));
/// }
/// ```
/// Another codec in the middle of a step:
/// ```compile_fail,E0499
/// # use gradwire::{Codec, Grad, StepKey};
/// # use gradwire_transports::exchange::{Drive, Exchange, Setting};
/// fn change(exchange: &mut Exchange, setting: Setting, key: StepKey, grad: Grad<'_>) {
///     let step = exchange.step(setting, key, grad, None, 0, u64::MAX).unwrap();
///     exchange.set_codec(Codec::NONE).unwrap();
///     let _ = step.work(0);
/// }
/// ```
/// A gradient that changes before it is encoded:
/// ```compile_fail,E0506
/// # use gradwire::{Grad, StepKey};
/// # use gradwire_transports::exchange::{Drive, Exchange, Setting};
/// fn write(exchange: &mut Exchange, setting: Setting, key: StepKey, grad: &mut [f32]) {
///     let step = exchange.step(setting, key, Grad::F32(grad), None, 0, u64::MAX).unwrap();
///     grad[0] = 1.0;
///     let _ = step.work(0);
/// }
/// ```
/// A mean that is read before it is there:
/// ```compile_fail,E0503
/// # use gradwire_transports::exchange::{Drive, Encoded, Step};
/// fn read(step: Step<'_, '_, Encoded>, mean: &mut [f32]) -> f32 {
///     let step = step.complete(mean, u64::MAX);
///     let first = mean[0];
///     let _ = step.work(0);
///     first
/// }
/// ```
/// A step that goes on after an error:
/// ```compile_fail,E0382
/// # use gradwire_transports::exchange::{Drive, Encoding, Step};
/// fn again(step: Step<'_, '_, Encoding<'_>>) {
///     if step.work(0).is_err() {
///         let _ = step.work(0);
///     }
/// }
/// ```
#[must_use = "a step does nothing unless it is driven to its end"]
pub struct Step<'s, 'm, S> {
    pub(super) exchange: &'s mut Exchange,
    pub(super) memory: Option<&'s mut Memory<'m>>,
    pub(super) state: S,
}

/// The gradient is being encoded and sent.
pub struct Encoding<'g> {
    grad: Grad<'g>,
    selected: Option<(&'g Selection, usize)>,
}

/// Everything is sent that leaves without an answer, and the mean was not asked for.
#[derive(Debug)]
pub struct Encoded(());

/// The mean is awaited, which is in that slice once it is there.
pub struct Completing<'a> {
    pub(super) mean: &'a mut [f32],
    pub(super) by: u64,
}

/// What a call that works on a step did, with the step in the state that follows.
#[derive(Debug)]
#[must_use]
pub enum Next<S, T> {
    /// A piece of work. Call again.
    Worked(S, Work),
    /// Nothing: a message is missing, or a queued one has not left. Call again once one came or left, or at
    /// the deadline.
    Waiting(S),
    /// A payload is lent to the library of the network. Call again once it is [summed](Machine::sum_lent).
    Lent(S),
    /// All of it.
    Done(T),
}

impl<T> Progress<T> {
    /// The same with the step that did it.
    pub(crate) fn of<S, D>(self, step: S, done: impl FnOnce(S, T) -> D) -> Next<S, D> {
        match self {
            Self::Worked(work) => Next::Worked(step, work),
            Self::Waiting => Next::Waiting(step),
            Self::Lent => Next::Lent(step),
            Self::Done(result) => Next::Done(done(step, result)),
        }
    }
}

/// Work that a driver does to its end, between the messages that it moves.
pub trait Drive: Sized {
    /// What there is then.
    type Done;

    /// The machine whose messages are moved between two calls of [`work`](Self::work).
    fn machine(&mut self) -> &mut dyn Machine;

    /// Does one piece of the work.
    ///
    /// # Errors
    /// Those of the step, which is over then.
    fn work(self, now: u64) -> Result<Next<Self, Self::Done>, ExchangeError>;
}

impl Exchange {
    /// Begins a step that encodes `grad`: see [`begin`](Self::begin).
    ///
    /// # Errors
    /// `Busy`, if a step that was begun otherwise is not over.
    ///
    /// # Panics
    /// In [`work`](Drive::work), when the gradient or the memory has another length than the layout.
    pub fn step<'s, 'm, 'g>(
        &'s mut self,
        setting: Setting,
        key: StepKey,
        grad: Grad<'g>,
        memory: Option<&'s mut Memory<'m>>,
        now: u64,
        by: u64,
    ) -> Result<Step<'s, 'm, Encoding<'g>>, ExchangeError> {
        self.begin(setting, key, memory.as_deref(), now, by)?;
        Ok(Step { exchange: self, memory, state: Encoding { grad, selected: None } })
    }

    /// Begins a step that encodes what was selected from a gradient, at the density with position `at`: see
    /// [`start_selected`](Self::start_selected).
    ///
    /// # Errors
    /// Those of [`set_codec`](Self::set_codec). The memory is then as it was.
    ///
    /// # Panics
    /// As [`start_selected`](Self::start_selected).
    pub fn selected_step<'s, 'm, 'g>(
        &'s mut self,
        setting: Setting,
        selection: &'g mut Selection,
        at: usize,
        mut memory: Option<&'s mut Memory<'m>>,
        now: u64,
        by: u64,
    ) -> Result<Step<'s, 'm, Encoding<'g>>, ExchangeError> {
        let key = self.set_selected(selection, at)?;
        self.begin(setting, key, memory.as_deref(), now, by)?;
        // Rounds change the memory when the mean is complete.
        let is_summed = self.is_summed();
        if let Some(memory) = memory.as_deref_mut().filter(|_| !is_summed) {
            selection.keep(memory);
        }
        // What is measured without a memory is measured against these values.
        let values = if is_summed || memory.is_none() { selection.values() } else { &[] };
        let state = Encoding { grad: Grad::F32(values), selected: Some((&*selection, at)) };
        Ok(Step { exchange: self, memory, state })
    }

    /// Goes on with a step that is encoded. The memory is the one with which it was encoded.
    ///
    /// # Errors
    /// `NotStarted`, if no step is encoded.
    pub fn encoded_step<'s, 'm>(
        &'s mut self,
        memory: Option<&'s mut Memory<'m>>,
    ) -> Result<Step<'s, 'm, Encoded>, ExchangeError> {
        if !self.is_encoded() {
            return Err(ExchangeError::NotStarted);
        }
        Ok(Step { exchange: self, memory, state: Encoded(()) })
    }
}

impl<'s, 'm, S> Step<'s, 'm, S> {
    /// The calls that move the messages.
    pub fn machine(&mut self) -> &mut dyn Machine {
        self.exchange
    }

    /// The caller has failed in code of its own: see [`Exchange::fail`]. Then drive the step to its error.
    pub fn fail(&mut self, text: &str) {
        self.exchange.fail(text);
    }

    fn with<T>(self, state: T) -> Step<'s, 'm, T> {
        Step { exchange: self.exchange, memory: self.memory, state }
    }
}

impl<'s, 'm> Step<'s, 'm, Encoded> {
    /// Asks for the mean, which must be there at `by`. Its last elements are written when it is there.
    ///
    /// # Panics
    /// In [`work`](Drive::work), when `mean` or the memory has another length than the layout.
    pub fn complete<'a>(self, mean: &'a mut [f32], by: u64) -> Step<'s, 'm, Completing<'a>> {
        self.with(Completing { mean, by })
    }
}

impl<'s, 'm, 'g> Drive for Step<'s, 'm, Encoding<'g>> {
    type Done = Step<'s, 'm, Encoded>;

    fn machine(&mut self) -> &mut dyn Machine {
        self.exchange
    }

    /// # Errors
    /// Those of [`Exchange::start`].
    fn work(mut self, now: u64) -> Result<Next<Self, Self::Done>, ExchangeError> {
        let Encoding { grad, selected } = self.state;
        let memory = self.memory.as_deref_mut();
        let progress = self.exchange.encode_selected(grad, selected, memory, now)?;
        Ok(progress.of(self, |step, ()| step.with(Encoded(()))))
    }
}

impl Drive for Step<'_, '_, Completing<'_>> {
    type Done = Report;

    fn machine(&mut self) -> &mut dyn Machine {
        self.exchange
    }

    /// # Errors
    /// Those of [`Exchange::finish`].
    fn work(mut self, now: u64) -> Result<Next<Self, Report>, ExchangeError> {
        let Completing { mean, by } = &mut self.state;
        let progress = self.exchange.complete(mean, self.memory.as_deref_mut(), now, *by)?;
        Ok(progress.of(self, |_, report| report))
    }
}

impl<S> fmt::Debug for Step<'_, '_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").field("exchange", &self.exchange).finish_non_exhaustive()
    }
}
