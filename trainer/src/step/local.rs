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
        let Some(Own::Local { params, is_apart, .. }) = &mut self.own else { return from };
        if !*is_apart {
            if is_late {
                from.iter_mut().zip(&self.grad).for_each(|(param, way)| *param -= way);
            }
            params.copy_from_slice(&from);
        }
        if is_late || *is_apart {
            self.model.set_params(params);
        }
        from
    }

    /// With fragments in a delayed run: remembers where it is in the one that is sent now.
    pub(super) fn note_place(&mut self, step: u64) {
        let range = self.turns[self.job.turn(step)].fragment.range.clone();
        if let Some(Own::Local { params, sent, is_apart: true, .. }) = &mut self.own {
            sent.clear();
            sent.extend_from_slice(&params[range]);
        }
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
    fn job(fragments: usize, is_delayed: bool) -> Job {
        let settings = Settings {
            codec: Some("topk:density=0.1".to_owned()),
            workers: Some(1),
            batch: Some(8),
            steps: Some(20),
            optimizer: Some(OptimizerKind::Adamw),
            local_steps: Some(4),
            fragments: Some(fragments),
            checkpoint_every: Some(1),
            delayed: Some(is_delayed),
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

    /// A step without a quorum.
    fn void(worker: &mut Worker<'_, LocalTransport>, step: u64) {
        let done = worker.step(step);
        assert!(matches!(done, Err(StepError::Exchange(ExchangeError::NoQuorum { .. }))));
    }

    /// Where it begins to step alone.
    fn beginning(worker: &mut Worker<'_, LocalTransport>, step: u64) -> Vec<f32> {
        worker.begin_alone(step);
        let mut seen = vec![0.0; worker.params.len()];
        worker.model.params(&mut seen);
        seen
    }

    #[test]
    fn behind_a_void_exchange_a_worker_goes_on_from_where_all_are_and_keeps_its_way() {
        for fragments in [1, 2] {
            let job = job(fragments, false);
            let mut worker = worker(&job);
            worker.set_quorum(2);
            let before = worker.params.clone();
            for step in 0..3 {
                void(&mut worker, step);
                assert_eq!(worker.params, before);
                let turn = &worker.turns[job.turn(step)];
                let range = turn.fragment.range.clone();
                let way = &worker.grad[range.clone()];
                assert!(way.iter().any(|&way| way != 0.0));
                if step < fragments as u64 {
                    assert_eq!(turn.memory.as_ref().unwrap().residual(), way, "given back");
                }
                let begins = beginning(&mut worker, step + 1);
                assert_eq!(begins[range.clone()], before[range.clone()]);
                let is_elsewhere = |at: usize| begins[at] != before[at];
                let others = (0..before.len()).filter(|at| !range.contains(at));
                assert_eq!(others.filter(|&at| is_elsewhere(at)).count() > 0, fragments > 1);
            }
        }
    }

    /// Its way is in the memory, and not taken twice; the steps that it took meanwhile are still its own.
    #[test]
    fn behind_a_void_exchange_of_a_delayed_run_a_worker_is_as_far_as_its_last_steps_led() {
        for fragments in [1, 2] {
            let job = job(fragments, true);
            let mut worker = worker(&job);
            worker.set_quorum(2);
            worker.step(0).unwrap();
            let (before, sent) = (worker.params.clone(), worker.grad.clone());
            void(&mut worker, 1);
            let range = worker.turns[job.turn(1)].fragment.range.clone();
            assert_eq!(worker.turns[job.turn(1)].memory.as_ref().unwrap().residual(), &sent[range.clone()]);
            let begins = beginning(&mut worker, 2);
            // One whose exchange was not void takes the same steps.
            let mut other = self::worker(&job);
            (0..2).for_each(|step| drop(other.step(step).unwrap()));
            let (led, agreed) = (beginning(&mut other, 2), other.params);
            for at in range {
                let far = f64::from(begins[at] - before[at]) - f64::from(led[at] - agreed[at]);
                assert!(far.abs() < 1e-6, "{fragments}, {at}: {far}");
            }
            assert_ne!(begins, before);
        }
    }

    #[test]
    fn a_worker_that_comes_in_again_is_as_far_from_all_as_its_weight_says() {
        let job = job(2, false);
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

    #[test]
    fn what_was_not_sent_yet_counts_by_the_weight_too() {
        let job = job(1, true);
        for weight in [1.0, 0.5, 0.0] {
            let mut worker = worker(&job);
            worker.step(0).unwrap();
            let way = worker.unsent();
            let before = worker.restore(&worker.replica()).unwrap();
            worker.weigh_residual(weight, Some(&before));
            let expected: Vec<f32> = way.iter().map(|way| weight * way).collect();
            assert_eq!(worker.unsent(), expected);
        }
    }

    /// The server may take a frame in, and be gone before it says so.
    #[test]
    fn what_is_recalled_from_before_an_answer_has_the_part_that_was_sent_where_all_are() {
        for is_delayed in [false, true] {
            let job = job(2, is_delayed);
            let mut worker = worker(&job);
            worker.keep_history();
            (0..2).for_each(|step| drop(worker.step(step).unwrap()));
            let sent = worker.turns[job.turn(2)].fragment.range.clone();
            let was = place(&worker)[sent.clone()].to_vec();
            worker.set_quorum(2);
            void(&mut worker, 2);
            let (settled, unsent) = (place(&worker).to_vec(), worker.unsent());
            let moved: Vec<f32> = worker.params.iter().map(|param| param + 0.25).collect();
            worker.restore(&Replica { params: moved.clone(), ..worker.replica() }).unwrap();
            // Whatever came in between.
            worker.grad.fill(7.0);
            if let Some(Own::Local { sent, .. }) = &mut worker.own {
                sent.fill(9.0);
            }
            assert_eq!(worker.recall(3), Recalled::Known);
            for (at, (&now, settled)) in place(&worker).iter().zip(settled).enumerate() {
                let expected = if sent.contains(&at) { settled + 0.25 } else { settled };
                assert!((now - expected).abs() < 1e-6, "{is_delayed}, {at}");
            }
            assert_eq!(worker.unsent(), unsent);
            assert_eq!(place(&worker)[sent.clone()] == moved[sent.clone()], !is_delayed);
            assert_ne!(place(&worker)[sent], was);
        }
    }
}
