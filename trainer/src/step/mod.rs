//! One training step of one worker.

#[cfg(feature = "zmq")]
mod history;
mod kept;
mod state;

use std::time::{Duration, Instant};

use gradwire::arithmetic::clip_norm;
use gradwire::{Grad, Memory, Source, StepKey};
use gradwire_transports::exchange::ExchangeError;
use gradwire_transports::{Counters, Deadline, Rank, Transport, TransportError};

#[cfg(feature = "zmq")]
pub(crate) use self::history::Recalled;
use crate::agreement::Agreement;
use crate::data::{Batches, Part};
use crate::job::Job;
use crate::model::eval::{Evaluation, evaluate};
use crate::model::hash::params_hash;
use crate::model::{Model, ModelError};
use crate::optim::Optimizer;
use crate::record::StepRecord;

/// Images that are evaluated at once.
const IMAGES_AT_ONCE: usize = 256;
/// Tokens that are evaluated at once; each has a row of logits as long as the vocabulary.
const TOKENS_AT_ONCE: usize = 2048;

/// A local peer that dies is noticed at once, and MPI has a watchdog, so no wait needs an end of its own.
const NO_DEADLINE: Deadline = Deadline::NEVER;

/// Why a worker cannot go on.
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
    /// Whether another worker's end may be all there is to it.
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
    batches: Batches<'a>,
    optimizer: Box<dyn Optimizer>,
    agreement: Agreement,
    /// What the spelling keeps, if anything.
    memory: Option<Memory<'static>>,
    params: Vec<f32>,
    grad: Vec<f32>,
    mean: Vec<f32>,
    /// What the steps have moved, and nothing else that went over the transport.
    moved: Counters,
    #[cfg(feature = "zmq")]
    history: Option<history::History>,
}

impl<'a, T: Transport> Worker<'a, T> {
    /// A worker at the first step. The job was prepared, so nothing of it is refused here but a model of
    /// other sizes.
    pub(crate) fn new(
        job: &'a Job,
        transport: T,
        model: Box<dyn Model>,
    ) -> Result<Self, crate::job::JobError> {
        let len = job.layout.len();
        let (rank, world) = (transport.rank().0 as usize, job.config.workers);
        let share = job.config.batch / world;
        let mut params = vec![0.0; len];
        model.params(&mut params);
        Ok(Self {
            job,
            transport,
            model,
            batches: Batches::new(&job.dataset, job.config.seed, share, rank, world, job.model.context())?,
            optimizer: job.build_optimizer()?,
            agreement: job.way.begin(job.spec, job.layout.clone(), job.config.pipeline)?,
            memory: Memory::for_spec(&job.spec, &job.layout.as_ref()),
            params,
            grad: vec![0.0; len],
            mean: vec![0.0; len],
            moved: Counters::default(),
            #[cfg(feature = "zmq")]
            history: None,
        })
    }

    /// One step, from the batch to the new parameters. In a delayed run the gradient of the step before
    /// travels while that of this one is computed, and waits for the next in its turn: x(t+1) = x(t) −
    /// lr(t)·mean(t−1).
    pub(crate) fn step(&mut self, step: u64) -> Result<StepRecord, StepError> {
        let lr = self.job.schedule.lr(step);
        let before = self.transport.counters();
        self.rescale_residual(step);
        let is_delayed = self.job.config.is_delayed();
        if is_delayed && step > 0 {
            self.send(step)?;
        }
        let (loss, compute) = self.local_gradient(step)?;
        if !is_delayed {
            self.send(step)?;
        }
        let is_first = is_delayed && step == 0;
        let mut record = if is_first { StepRecord::without_exchange() } else { self.agree(step, lr)? };
        self.model.set_params(&self.params);

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
        let loss = self.forward_backward(step)?;
        self.decay_weights();
        if let Some(limit) = self.job.local_clip() {
            clip_norm(&mut self.grad, limit);
        }
        Ok((loss, started.elapsed()))
    }

    /// Loss and gradient on this worker's share of the step's batch.
    fn forward_backward(&mut self, step: u64) -> Result<f32, ModelError> {
        let (epoch, place) = (step / self.job.steps_per_epoch, step % self.job.steps_per_epoch);
        let batch = self.batches.batch(epoch, place as usize);
        self.model.forward_backward(&batch, &mut self.grad)
    }

    /// A codec that owns the momentum is handed the gradient of the decayed loss.
    fn decay_weights(&mut self) {
        let decay = self.job.local_weight_decay();
        if decay != 0.0 {
            self.grad.iter_mut().zip(&self.params).for_each(|(g, param)| *g += decay * param);
        }
    }

    /// What was kept back at another rate moves the parameters as far as it would have then.
    fn rescale_residual(&mut self, step: u64) {
        if let Some(memory) = &mut self.memory {
            memory.rescale(self.job.schedule.ratio(step));
        }
    }

    fn key(&self, step: u64) -> StepKey {
        StepKey { seed: self.job.config.seed, step, source: Source::Rank(self.rank().0) }
    }

    /// Sends the gradient on its way to a mean.
    fn send(&mut self, step: u64) -> Result<(), StepError> {
        let key = self.key(step);
        let Agreement::Mean(exchange) = &mut self.agreement else { return Ok(()) };
        if let Some(density) = self.job.density(step) {
            exchange.set_density(density)?;
        }
        exchange
            .start(&mut self.transport, key, Grad::F32(&self.grad), self.memory.as_mut(), NO_DEADLINE)
            .map_err(diverged_or_failed)?;
        // The server may take this frame in, and be gone before it says so.
        #[cfg(feature = "zmq")]
        if let Some(history) = &mut self.history {
            history.note_if_due(self.job, step, self.memory.as_ref());
        }
        Ok(())
    }

    /// Comes to the parameters behind this step. A mean that is not finite is refused by every worker alike,
    /// and the step is skipped: the record says why, and the memory has everything back.
    fn agree(&mut self, step: u64, lr: f32) -> Result<StepRecord, StepError> {
        let (rank, key, transport) = (self.rank(), self.key(step), &mut self.transport);
        match &mut self.agreement {
            Agreement::Mean(exchange) => {
                match exchange.finish(transport, &mut self.mean, self.memory.as_mut(), NO_DEADLINE) {
                    Ok(report) => {
                        self.optimizer.step(&mut self.params, &self.mean, lr);
                        Ok(StepRecord::delivered(&report))
                    }
                    Err(error @ ExchangeError::NonFiniteMean { .. }) => {
                        Ok(StepRecord::refused(error.to_string()))
                    }
                    Err(error) => Err(error.into()),
                }
            }
            Agreement::Gossip(mixer) => {
                self.optimizer.step(&mut self.params, &self.grad, lr);
                let mixed =
                    mixer.mix(transport, key, &mut self.params, NO_DEADLINE).map_err(diverged_or_failed)?;
                Ok(StepRecord::mixed(rank, &mixed, self.params.len()))
            }
        }
    }

    /// Whether this worker evaluates after a step: one is enough, for replicas are the same, or near each
    /// other.
    pub(crate) fn evaluates(&self, step: u64) -> bool {
        self.rank() == Rank(0) && self.job.is_due(self.job.config.eval_every, step)
    }

    /// How good the model is on a part of the data.
    pub(crate) fn evaluate(&mut self, part: Part) -> Result<Evaluation, StepError> {
        let context = self.job.model.context();
        let items = TOKENS_AT_ONCE.checked_div(context).map_or(IMAGES_AT_ONCE, |windows| windows.max(1));
        Ok(evaluate(self.model.as_mut(), &self.job.dataset, part, items, context)?)
    }

    /// Everything sent and received in steps so far.
    pub(crate) fn counters(&self) -> Counters {
        self.moved
    }

    /// The way to the other workers.
    pub(crate) fn transport(&mut self) -> &mut T {
        &mut self.transport
    }

    /// Who this worker is.
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
