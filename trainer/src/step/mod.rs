//! One training step of one worker.

mod adapt;
mod carried;
mod evaluate;
#[cfg(feature = "zmq")]
mod history;
mod kept;
mod latents;
mod local;
mod own;
mod state;
mod turn;

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use gradwire::arithmetic::{clip_norm, divide};
use gradwire::{Density, Grad, Selection, Source, StepInput, StepKey};
use gradwire_transports::exchange::ExchangeError;
use gradwire_transports::{Counters, Deadline, Rank, Transport, TransportError};

use self::adapt::Steering;
pub(crate) use self::evaluate::Measured;
#[cfg(feature = "zmq")]
pub(crate) use self::history::Recalled;
use self::own::Own;
use self::turn::Turn;
use crate::adapt::Decided;
use crate::agreement::Agreement;
use crate::checkpoint::Best;
use crate::data::Batches;
use crate::job::Job;
use crate::model::hash::params_hash;
use crate::model::{Model, ModelError, Moment};
use crate::optim::Optimizer;
use crate::record::StepRecord;

/// A local peer that dies is noticed at once, and MPI has a watchdog, so no wait needs a deadline of its own.
const NO_DEADLINE: Deadline = Deadline::NEVER;

/// Why a worker cannot continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The model refused its batch.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The gradients did not become a mean.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// The gradient of this worker cannot be sent.
    #[error("{error}: training has diverged; a lower lr, a warmup or clip may help")]
    Diverged {
        /// What the codec said.
        error: ExchangeError,
    },
}

impl StepError {
    /// Whether another worker's end may be the only cause.
    pub(crate) fn is_consequence(&self) -> bool {
        let Self::Exchange(error) = self else { return false };
        matches!(
            error,
            ExchangeError::NoQuorum { .. }
                | ExchangeError::Void { .. }
                | ExchangeError::NotAgreed { .. }
                | ExchangeError::Transport(TransportError::Disconnected { .. })
        )
    }
}

/// One worker: a replica of the model, its share of the data, and its end of the transport.
pub(crate) struct Worker<'a, T = Box<dyn Transport>> {
    job: &'a Job,
    transport: T,
    model: Box<dyn Model>,
    /// One for each part of this worker's share of a batch.
    batches: Vec<Batches<'a>>,
    optimizer: Box<dyn Optimizer>,
    /// One for each part of the model that is exchanged in turn.
    turns: Vec<Turn<'a>>,
    /// What turns the gradients of this worker into what it sends, if that is not a gradient.
    own: Option<Own>,
    params: Vec<f32>,
    /// What this worker sends: its gradient, the update that it made of it, or how far its own steps led.
    grad: Vec<f32>,
    /// The sum over the parts of a batch; empty where there is one part.
    sum: Vec<f32>,
    mean: Vec<f32>,
    /// What sets the densities, in a run with `adapt`.
    steering: Option<Steering<'a>>,
    /// What was selected before a decision, to be sent after it.
    selection: Selection,
    /// What was decided for the step that was sent last.
    decision: Option<Decided>,
    /// The smallest validation loss so far, in a run that may end early.
    best: Option<Best>,
    /// When it becomes true, evaluations end too.
    interrupt: Option<&'a AtomicBool>,
    /// The traffic of the steps, without anything else that went over the transport.
    moved: Counters,
    #[cfg(feature = "zmq")]
    history: Option<history::History>,
}

impl<'a, T: Transport> Worker<'a, T> {
    /// A worker at the first step. The job was prepared, so only a model of other sizes is refused here.
    pub(crate) fn new(
        job: &'a Job,
        transport: T,
        model: Box<dyn Model>,
    ) -> Result<Self, crate::job::JobError> {
        let len = job.layout.len();
        let (rank, world) = (transport.rank().0 as usize, job.config.workers);
        let parts = job.config.micro_batches();
        let share = job.config.batch / world / parts;
        // The parts of a share are what as many more workers would take, one after the other.
        let batches = (0..parts).map(|part| {
            let (seed, rank, world) = (job.config.seed, rank * parts + part, world * parts);
            job.model.batches(&job.dataset, seed, share, rank, world)
        });
        let mut params = vec![0.0; len];
        model.params(&mut params);
        let mut worker = Self {
            job,
            transport,
            model,
            batches: batches.collect::<Result<_, _>>()?,
            optimizer: job.build_optimizer()?,
            turns: Turn::all(job)?,
            own: Own::of(job, &params)?,
            params,
            grad: vec![0.0; len],
            sum: if parts > 1 { vec![0.0; len] } else { Vec::new() },
            mean: vec![0.0; len],
            steering: Steering::of(job),
            selection: Selection::new(),
            decision: None,
            best: None,
            interrupt: None,
            moved: Counters::default(),
            #[cfg(feature = "zmq")]
            history: None,
        };
        worker.reshape_memory(0)?;
        Ok(worker)
    }

    /// The same worker, whose evaluations end when `interrupt` becomes true.
    pub(crate) fn heeding(self, interrupt: Option<&'a AtomicBool>) -> Self {
        Self { interrupt, ..self }
    }

    /// One step, from the batch to the new parameters. In a delayed run the gradient of the previous step
    /// travels while that of this step is computed, which waits for the next step in its turn: x(t+1) = x(t)
    /// − lr(t)·mean(t−1).
    pub(crate) fn step(&mut self, step: u64) -> Result<StepRecord, StepError> {
        let (started, lr) = (Instant::now(), self.job.lr(step));
        let before = self.transport.counters();
        let turn = self.job.turn(step);
        let counted = latents::counts(self.turns[turn].memory.as_ref());
        self.rescale_residual(step);
        let is_delayed = self.job.config.is_delayed();
        let exchanges = self.job.exchanges_in(step);
        if is_delayed && exchanges {
            self.send_late(step)?;
        }
        let (loss, compute) = self.local_gradient(step)?;
        self.observe_loss(step, loss)?;
        if !is_delayed {
            self.send(step)?;
        }
        // The server may take this frame in, and be gone before it says so.
        #[cfg(feature = "zmq")]
        self.remember_if_due(step, true);
        let agreed = if exchanges { self.agree(step) } else { Ok(StepRecord::without_exchange()) };
        // Also if nothing was agreed on: what was sent is with the others, or was given back.
        if exchanges {
            self.settle(step);
        }
        self.model.set_params(&self.params);
        let mut record = agreed?;
        self.average_carried(step)?;
        self.note_decision(&mut record, started);
        if self.rank().0 == 0 {
            let Turn { latents, memory, .. } = &mut self.turns[turn];
            latents.note(step, &counted, memory.as_ref());
        }

        record.set_step(self.rank(), step, loss, lr, compute);
        let moved = self.transport.counters() - before;
        self.moved += moved;
        record.set_traffic(moved);
        record.residual_norm = self.residual_norm();
        let is_compared = self.job.is_due(self.job.config.hash_every, step);
        record.hash = is_compared.then(|| params_hash(&self.params));
        Ok(record)
    }

    /// What this worker sends for a step, its loss, and the time that it took.
    fn local_gradient(&mut self, step: u64) -> Result<(f32, Duration), ModelError> {
        let started = Instant::now();
        let loss = match &self.own {
            Some(Own::Local { .. }) => self.take_local_steps(step)?,
            _ => self.clipped_gradient(step)?,
        };
        if let Some(Own::Updates(moments)) = &mut self.own {
            moments.direct(&mut self.grad);
        }
        Ok((loss, started.elapsed()))
    }

    /// The gradient of one batch, decayed and clipped where that is the worker's part, and its loss.
    fn clipped_gradient(&mut self, batch: u64) -> Result<f32, ModelError> {
        let loss = self.forward_backward(batch)?;
        self.decay_weights();
        if let Some(limit) = self.job.local_clip() {
            clip_norm(&mut self.grad, limit);
        }
        Ok(loss)
    }

    /// Loss and gradient on this worker's share of a batch, counted from the beginning of the run.
    fn forward_backward(&mut self, batch: u64) -> Result<f32, ModelError> {
        if self.batches.len() == 1 {
            return self.part_of_batch(batch, 0);
        }
        let (mut loss, parts) = (0.0, self.batches.len());
        self.sum.fill(0.0);
        for part in 0..parts {
            loss += self.part_of_batch(batch, part)?;
            self.sum.iter_mut().zip(&self.grad).for_each(|(sum, g)| *sum += g);
        }
        // A sum that is not finite makes the mean so, too, and is refused with it.
        let _ = divide(&mut self.sum, parts);
        std::mem::swap(&mut self.sum, &mut self.grad);
        Ok(loss / parts as f32)
    }

    /// Loss and gradient on one part of this worker's share.
    fn part_of_batch(&mut self, number: u64, part: usize) -> Result<f32, ModelError> {
        let per_epoch = self.job.steps_per_epoch * self.job.batches_per_step();
        let (epoch, place) = (number / per_epoch, number % per_epoch);
        let batch = self.batches[part].batch(epoch, place as usize);
        // The rank that one of as many more workers would have, so that the draws are the same.
        let rank = self.rank().0 * self.batches.len() as u32 + part as u32;
        let seed = self.job.config.seed;
        self.model.begin(Moment { seed, rank, step: number, starts_epoch: place == 0 });
        self.model.forward_backward(&batch, &mut self.grad)
    }

    /// A codec that owns the momentum is handed the gradient of the decayed loss.
    fn decay_weights(&mut self) {
        let decay = self.job.local_weight_decay();
        if decay != 0.0 {
            self.grad.iter_mut().zip(&self.params).for_each(|(g, param)| *g += decay * param);
        }
    }

    /// A residual kept at another rate moves the parameters as far as it would have then. What is kept of
    /// local steps is a distance, which needs no rate.
    fn rescale_residual(&mut self, step: u64) {
        if let None | Some(Own::Updates(_)) = &self.own {
            let ratio = self.job.schedule.ratio(step);
            self.turns
                .iter_mut()
                .filter_map(|turn| turn.memory.as_mut())
                .for_each(|memory| memory.rescale(ratio));
        }
    }

    fn key(&self, step: u64) -> StepKey {
        StepKey { seed: self.job.config.seed, step, source: Source::Rank(self.rank().0) }
    }

    /// Sends the gradient on its way to a mean.
    fn send(&mut self, step: u64) -> Result<(), StepError> {
        let key = self.key(step);
        self.decision = self.decide(step)?;
        match self.decision.clone() {
            Some(decided) => self.send_as(key, decided),
            None => self.send_in(key, self.job.epoch(step)),
        }
        .map_err(diverged_or_failed)
    }

    /// Sends what the step before made. If that fails it is not sent again: the memory has it.
    fn send_late(&mut self, step: u64) -> Result<(), StepError> {
        self.note_place(step);
        self.send(step).inspect_err(|_| {
            self.grad.fill(0.0);
            self.settle(step);
        })
    }

    /// Sends the gradient as it was decided.
    fn send_as(&mut self, key: StepKey, decided: Decided) -> Result<(), ExchangeError> {
        match &decided {
            Decided::Density(decision) if decision.density.fraction() == 1.0 => return self.send_all(key),
            Decided::Density(decision) => return self.send_at(key, Some(decision.density)),
            Decided::Densities { densities, .. } => {
                if let Agreement::Mean(means) = &mut self.turns[self.job.turn(key.step)].agreement {
                    means.set_densities(densities)?;
                }
            }
            Decided::Rank { .. } | Decided::Ranks { .. } => self.set_ranks(&decided)?,
        }
        self.send_at(key, None)
    }

    /// Sends the gradient at the densities of an epoch, from which the warm-up follows.
    fn send_in(&mut self, key: StepKey, epoch: u64) -> Result<(), ExchangeError> {
        if let Agreement::Mean(means) = &mut self.turns[self.job.turn(key.step)].agreement {
            means.set_epoch(epoch)?;
        }
        self.send_at(key, None)
    }

    /// Sends the gradient at that density, if the codec has one: what was selected for this step, or else the
    /// codec chooses. Without a density, as the plan says.
    fn send_at(&mut self, key: StepKey, density: Option<Density>) -> Result<(), ExchangeError> {
        let Turn { fragment, agreement, memory, .. } = &mut self.turns[self.job.turn(key.step)];
        let Agreement::Mean(means) = agreement else { return Ok(()) };
        let (transport, memory, selection) = (&mut self.transport, memory.as_mut(), &mut self.selection);
        // Of several codecs, each was selected by itself.
        let is_whole = self.job.plan.only().is_some() && selection.key() == Some(key);
        let selected = density.filter(|_| is_whole);
        if let Some(at) = selected.and_then(|density| selection.position(density)) {
            return means.start_selected(transport, (selection, at), memory, NO_DEADLINE);
        }
        density.map_or(Ok(()), |density| means.set_density(density))?;
        let grad = Grad::F32(&self.grad[fragment.range.clone()]);
        means.start(transport, (key, grad), memory, NO_DEADLINE)
    }

    /// Sends residual + gradient whole, as `none` would. A codec with momentum sends the step that it makes
    /// of the gradient, and clears the momentum as for every entry that it sends.
    fn send_all(&mut self, key: StepKey) -> Result<(), ExchangeError> {
        let Turn { agreement, memory, .. } = &mut self.turns[self.job.turn(key.step)];
        let Agreement::Mean(means) = agreement else { return Ok(()) };
        let (transport, job, selection) = (&mut self.transport, self.job, &mut self.selection);
        let codec = &job.spec.codec;
        let mut grad = Grad::F32(&self.grad);
        if let (Some(_), Some(memory)) = (codec.momentum(), &mut *memory) {
            let units = job.units_with(|codec| codec.momentum().is_some());
            let step = StepInput { key, layout: &job.layout.as_ref(), units: &units, grad };
            let is_known = job.plan.only().is_some() && selection.key() == Some(key);
            let is_selected = is_known || selection.select(codec, &step, Some(&*memory), &[]).is_ok();
            if is_selected {
                selection.take_all(memory);
            }
            // If it was refused, these hold the value that is refused once more.
            grad = Grad::F32(selection.values());
        }
        means.start_all(transport, (key, grad), memory.as_mut(), NO_DEADLINE)
    }

    /// Applies the mean to the parameters and returns the record of the step. Every worker refuses a mean
    /// that is not finite, and skips the step: the record says why, and everything is given back to the
    /// memory.
    fn agree(&mut self, step: u64) -> Result<StepRecord, StepError> {
        let (rank, key, transport) = (self.rank(), self.key(step), &mut self.transport);
        let Turn { fragment, agreement, memory, .. } = &mut self.turns[self.job.turn(step)];
        match agreement {
            Agreement::Mean(means) => {
                let range = fragment.range.clone();
                let mean = &mut self.mean[range.clone()];
                match means.finish(transport, mean, memory.as_mut(), NO_DEADLINE) {
                    Ok(report) => {
                        if let Some(steering) = &mut self.steering {
                            steering.observe(&self.mean);
                        }
                        if let Some(limit) = self.job.config.clip_mean {
                            clip_norm(&mut self.mean, limit);
                        }
                        let lr = self.job.outer_lr(step);
                        self.optimizer.step_in(range, &mut self.params, &self.mean, lr);
                        Ok(StepRecord::delivered(&report))
                    }
                    Err(error @ ExchangeError::NonFiniteMean { .. }) => {
                        Ok(StepRecord::refused(error.to_string()))
                    }
                    Err(error) => Err(error.into()),
                }
            }
            Agreement::Gossip(mixer) => {
                self.optimizer.step(&mut self.params, &self.grad, self.job.lr(step));
                let mixed =
                    mixer.mix(transport, key, &mut self.params, NO_DEADLINE).map_err(diverged_or_failed)?;
                Ok(StepRecord::mixed(rank, &mixed, self.params.len()))
            }
        }
    }

    /// Everything sent and received in steps so far.
    pub(crate) fn counters(&self) -> Counters {
        self.moved
    }

    /// The way to the other workers.
    pub(crate) fn transport(&mut self) -> &mut T {
        &mut self.transport
    }

    /// This worker's rank.
    pub(crate) fn rank(&self) -> Rank {
        self.transport.rank()
    }
}

fn diverged_or_failed(error: ExchangeError) -> StepError {
    match error {
        ExchangeError::Encode(_) => StepError::Diverged { error },
        other => other.into(),
    }
}
