//! A step in parts in which misuse does not compile.

use gradwire::{Grad, Memory, StepKey};

use super::Exchange;
use super::driven::Machine;
use super::error::ExchangeError;
use super::machine::Setting;
use super::parts::{NewPart, PartState};
use super::typed::{Completing, Drive, Next, Step};

/// Parts are added one by one, and the mean of each comes in that slice: see [`Exchange::step_in_parts`].
pub struct Adding<'a> {
    mean: &'a mut [f32],
}

impl Exchange {
    /// Begins a step whose parts are added one by one, in which misuse does not compile: see
    /// [`begin_in_parts`](Self::begin_in_parts). The means stand in one piece.
    ///
    /// # Errors
    /// Those of [`begin_in_parts`](Self::begin_in_parts).
    ///
    /// # Panics
    /// In [`work`](Drive::work), when `mean` or the memory has another length than the layout.
    ///
    /// # Examples
    /// One rank alone. The gradient of the second tensor is there first.
    /// ```
    /// use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey};
    /// use gradwire_transports::exchange::{Drive, Exchange, NewPart, Next, Route, Setting};
    /// use gradwire_transports::{Membership, Rank, RankSet};
    ///
    /// let layout = Layout::packed([("a", vec![2]), ("b", vec![2])])?;
    /// let spec = Spec::parse("topk:density=0.5,unit=tensor")?;
    /// let mut memory = Memory::for_spec(&spec, &layout.as_ref());
    /// let mut exchange = Exchange::new(spec, layout, Route::AllGather)?;
    /// let membership = Membership { epoch: 0, ranks: RankSet::contiguous(1) };
    /// let setting = Setting { rank: Rank(0), membership, is_fail_stop: true };
    /// let key = StepKey { seed: 1, step: 0, source: Source::Rank(0) };
    /// let (grad, mut mean, now, never) = ([1.0, 8.0, 0.5, -6.0], [0.0; 4], 0, u64::MAX);
    ///
    /// let mut step = exchange.step_in_parts(setting, key, &mut mean, memory.as_mut(), now, never)?;
    /// for unit in [1, 0] {
    ///     step.add(&NewPart { units: &[unit], ..NewPart::default() }, Grad::F32(&grad), now)?;
    ///     step = loop {
    ///         step = match step.work(now)? {
    ///             Next::Worked(step, _) | Next::Waiting(step) | Next::Lent(step) => step,
    ///             Next::Done(step) => break step,
    ///         };
    ///     };
    /// }
    /// assert_eq!(step.mean_of(0).unwrap().collect::<Vec<_>>(), [(1, &[0.0, -6.0][..])]);
    /// let step = step.complete(never); // and on, as every step
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # What does not compile
    /// A part that is added once the mean is asked for:
    /// ```compile_fail,E0599
    /// # use gradwire::Grad;
    /// # use gradwire_transports::exchange::{Adding, NewPart, Step};
    /// fn late(step: Step<'_, '_, Adding<'_>>, part: &NewPart<'_>, grad: Grad<'_>) {
    ///     let mut step = step.complete(u64::MAX);
    ///     step.add(part, grad, 0).unwrap();
    /// }
    /// ```
    /// A mean that is read where it may not be there yet:
    /// ```compile_fail,E0503
    /// # use gradwire::StepKey;
    /// # use gradwire_transports::exchange::{Drive, Exchange, Setting};
    /// fn read(exchange: &mut Exchange, setting: Setting, key: StepKey, mean: &mut [f32]) -> f32 {
    ///     let step = exchange.step_in_parts(setting, key, mean, None, 0, u64::MAX).unwrap();
    ///     let first = mean[0];
    ///     let _ = step.work(0);
    ///     first
    /// }
    /// ```
    pub fn step_in_parts<'s, 'm, 'a>(
        &'s mut self,
        setting: Setting,
        key: StepKey,
        mean: &'a mut [f32],
        memory: Option<&'s mut Memory<'m>>,
        now: u64,
        by: u64,
    ) -> Result<Step<'s, 'm, Adding<'a>>, ExchangeError> {
        self.begin_in_parts(setting, key, memory.as_deref(), now, by)?;
        Ok(self.adding(mean, memory))
    }

    /// Goes on with such a step. Mean and memory are the same for all of it.
    pub(crate) fn adding<'s, 'm, 'a>(
        &'s mut self,
        mean: &'a mut [f32],
        memory: Option<&'s mut Memory<'m>>,
    ) -> Step<'s, 'm, Adding<'a>> {
        Step { exchange: self, memory, state: Adding { mean } }
    }
}

impl<'s, 'm, 'a> Step<'s, 'm, Adding<'a>> {
    /// Adds a part, of whose gradient nothing is read later: see [`Exchange::add`].
    ///
    /// # Errors
    /// Those of [`Exchange::add`]. The step goes on.
    ///
    /// # Panics
    /// As [`Exchange::add`].
    pub fn add(&mut self, part: &NewPart<'_>, grad: Grad<'_>, now: u64) -> Result<usize, ExchangeError> {
        self.exchange.add(part, grad, self.memory.as_deref_mut(), now)
    }

    /// The means of the units of a part, with their identifiers; `None` before they are there.
    pub fn mean_of(&self, at: usize) -> Option<impl Iterator<Item = (u32, &[f32])>> {
        let is_here = matches!(self.exchange.part(at)?, PartState::Complete | PartState::NotFinite);
        let units = self.exchange.units_of(at).filter(|_| is_here)?;
        Some(units.iter().map(|unit| (unit.id, &self.state.mean[unit.range()])))
    }

    /// Asks for the end of the step, which must be there at `by`, once all parts were added.
    pub fn complete(self, by: u64) -> Step<'s, 'm, Completing<'a>> {
        let Self { exchange, memory, state: Adding { mean } } = self;
        Step { exchange, memory, state: Completing { mean, by } }
    }
}

impl Drive for Step<'_, '_, Adding<'_>> {
    /// The step, to which further parts may be added.
    type Done = Self;

    fn machine(&mut self) -> &mut dyn Machine {
        self.exchange
    }

    /// # Errors
    /// None: whatever makes the step fail is the error that its end returns.
    fn work(mut self, now: u64) -> Result<Next<Self, Self>, ExchangeError> {
        let progress = self.exchange.advance(self.state.mean, self.memory.as_deref_mut(), now)?;
        Ok(progress.of(self, |step, ()| step))
    }
}
