//! The steps that a worker takes alone before an exchange.
//!
//! Without fragments, all parameters are exchanged after some steps, and the next steps begin where that led.
//! With fragments only those of one part are: the others go on from where the steps led.

use gradwire_transports::Transport;

use super::Worker;
use super::own::Own;
use crate::model::ModelError;

impl<T: Transport> Worker<'_, T> {
    /// This worker's own steps from where it is. What it then sends is how far they led since the last
    /// exchange of these parameters, with the sign of a gradient. Returns the mean of their losses.
    pub(super) fn take_local_steps(&mut self, step: u64) -> Result<f32, ModelError> {
        let (count, mut loss) = (self.job.batches_per_step(), 0.0);
        let from = self.begin_alone(step);
        for batch in step * count..(step + 1) * count {
            loss += self.clipped_gradient(batch)?;
            if let Some(Own::Local { optimizer, params, .. }) = &mut self.own {
                optimizer.step(params, &self.grad, self.job.schedule.lr(batch));
                self.model.set_params(params);
            }
        }
        if let Some(Own::Local { params, .. }) = &self.own {
            let range = self.job.fragment_of_ways(step).range.clone();
            let led = from[range.clone()].iter().zip(&params[range.clone()]);
            self.grad[..range.start].fill(0.0);
            self.grad[range.end..].fill(0.0);
            self.grad[range].iter_mut().zip(led).for_each(|(way, (from, to))| *way = from - to);
        }
        Ok(loss / count as f32)
    }

    /// Goes to where the steps begin. Returns from where ways are counted.
    ///
    /// Without fragments these are the same: the parameters that all have; in a delayed run, where the last
    /// steps led from there, which is on its way.
    fn begin_alone(&mut self, step: u64) -> Vec<f32> {
        let mut from = self.params.clone();
        let is_late = self.job.config.is_delayed() && step > 0;
        let Some(Own::Local { params, sent, is_apart, .. }) = &mut self.own else { return from };
        if !*is_apart {
            if is_late {
                from.iter_mut().zip(&self.grad).for_each(|(param, way)| *param -= way);
            }
            params.copy_from_slice(&from);
        } else if is_late {
            let under_way = self.turns[self.job.turn(step)].fragment.range.clone();
            sent.clear();
            sent.extend_from_slice(&params[under_way]);
        }
        if is_late || *is_apart {
            self.model.set_params(params);
        }
        from
    }

    /// With fragments: goes to where the exchange of one led, and what its steps did meanwhile is added.
    pub(super) fn settle(&mut self, step: u64) {
        let range = self.turns[self.job.turn(step)].fragment.range.clone();
        let Some(Own::Local { params, sent, is_apart: true, .. }) = &mut self.own else { return };
        let places = params[range.clone()].iter_mut().zip(&self.params[range]);
        if self.job.config.is_delayed() {
            places.zip(sent).for_each(|((place, agreed), sent)| *place = agreed + (*place - *sent));
        } else {
            places.for_each(|(place, agreed)| *place = *agreed);
        }
    }

    /// With fragments, for a worker that missed exchanges: goes to where all are now. How far it was from
    /// `before`, where all were when it last knew, is added times `weight`; without `before`, it is lost.
    #[cfg(feature = "zmq")]
    pub(super) fn follow(&mut self, weight: f32, before: Option<&[f32]>) {
        let Some(Own::Local { params, is_apart: true, .. }) = &mut self.own else { return };
        let Some(before) = before else { return params.copy_from_slice(&self.params) };
        for ((place, before), agreed) in params.iter_mut().zip(before).zip(&self.params) {
            *place = agreed + weight * (*place - before);
        }
    }
}

#[cfg(all(test, feature = "zmq"))]
mod tests {
    use gradwire_transports::exchange::{ExchangeError, Route, ServerOptions};
    use gradwire_transports::local::{self, LocalTransport};

    use super::super::{Recalled, StepError};
    use super::*;
    use crate::agreement::Averaging;
    use crate::checkpoint::Replica;
    use crate::config::{OptimizerKind, RunConfig, Settings};
    use crate::job::Job;

    /// Of one worker, which is its own server.
    fn job(fragments: usize) -> Job {
        let settings = Settings {
            codec: Some("topk:density=0.1".to_owned()),
            workers: Some(1),
            batch: Some(8),
            steps: Some(20),
            optimizer: Some(OptimizerKind::Adamw),
            local_steps: Some(4),
            fragments: Some(fragments),
            checkpoint_every: Some(1),
            ..Settings::default()
        };
        let mut job = Job::prepare(RunConfig::resolve(&settings).unwrap()).unwrap();
        job.way = Averaging::Mean(Route::Server(ServerOptions::default()));
        job
    }

    fn worker(job: &Job) -> Worker<'_, LocalTransport> {
        Worker::new(job, local::world(1).remove(0), job.build_model().unwrap()).unwrap()
    }

    fn place<'a>(worker: &'a Worker<'_, LocalTransport>) -> &'a [f32] {
        let Some(Own::Local { params, .. }) = &worker.own else { panic!("a worker that steps alone") };
        params
    }

    #[test]
    fn behind_a_void_exchange_a_worker_goes_on_from_where_all_are_and_keeps_its_way() {
        for fragments in [1, 2] {
            let job = job(fragments);
            let mut worker = worker(&job);
            worker.set_quorum(2);
            let before = worker.params.clone();
            for step in 0..3 {
                let done = worker.step(step);
                assert!(matches!(done, Err(StepError::Exchange(ExchangeError::NoQuorum { .. }))));
                assert_eq!(worker.params, before);
                let mut seen = vec![0.0; before.len()];
                worker.model.params(&mut seen);
                assert_eq!(seen, before, "the model of step {}", step + 1);
                let turn = &worker.turns[job.turn(step)];
                let range = turn.fragment.range.clone();
                let way = &worker.grad[range.clone()];
                let kept = turn.memory.as_ref().unwrap().residual();
                assert!(way.iter().any(|&way| way != 0.0));
                if step < fragments as u64 {
                    assert_eq!(kept, way, "given back");
                }
                if fragments > 1 {
                    assert_eq!(place(&worker)[range.clone()], before[range.clone()]);
                    let (own, all) = (place(&worker).iter().enumerate(), &before);
                    assert!(own.filter(|(at, _)| !range.contains(at)).any(|(at, &own)| own != all[at]));
                }
            }
        }
    }

    #[test]
    fn a_worker_that_comes_in_again_is_as_far_from_all_as_its_weight_says() {
        let job = job(2);
        for (weight, knows) in [(1.0, true), (0.5, true), (0.0, true), (1.0, false)] {
            let mut worker = worker(&job);
            worker.step(0).unwrap();
            let (old, own) = (worker.params.clone(), place(&worker).to_vec());
            assert_ne!(old, own);
            let moved: Vec<f32> = old.iter().map(|param| param + 0.25).collect();
            let replica = Replica { params: moved.clone(), ..worker.replica() };
            let before = worker.restore(&replica).unwrap();
            assert_eq!(before, old);
            worker.weigh_residual(weight, knows.then_some(&before));
            for (at, &place) in place(&worker).iter().enumerate() {
                let far = if knows { weight * (own[at] - old[at]) } else { 0.0 };
                assert!((place - moved[at] - far).abs() < 1e-6, "{weight} {knows}: {at}");
            }
        }
    }

    /// The server may take a frame in, and be gone before it says so.
    #[test]
    fn what_is_recalled_from_before_an_answer_has_the_part_that_was_sent_where_all_are() {
        let job = job(2);
        let mut worker = worker(&job);
        worker.keep_history();
        worker.step(0).unwrap();
        worker.set_quorum(2);
        worker.step(1).unwrap_err();
        let moved: Vec<f32> = worker.params.iter().map(|param| param + 0.25).collect();
        worker.restore(&Replica { params: moved.clone(), ..worker.replica() }).unwrap();
        let before = place(&worker).to_vec();
        assert_eq!(worker.recall(2), Recalled::Known);
        let [other, sent] = [0, 1].map(|turn: usize| job.fragments[turn].range.clone());
        assert_eq!(place(&worker)[sent.clone()], moved[sent]);
        assert_eq!(place(&worker)[other.clone()], before[other]);
    }
}
