//! What happens between the exchange and the optimizer.

use std::sync::Mutex;

use gradwire::arithmetic::{clip_norm, divide};
use gradwire_trainer::config::{ExchangeKind, RunConfig, Settings};
use gradwire_trainer::data::Batch;
use gradwire_trainer::job::Job;
use gradwire_trainer::model::{Model, ModelError, Parameters, Score};
use gradwire_trainer::run::{Control, Observer, run, run_with_models};
use gradwire_transports::Rank;

use crate::{Quiet, digits_job, word};

/// What one worker computed and was given, step by step.
#[derive(Clone, Default)]
pub(crate) struct Heard {
    pub(crate) grads: Vec<Vec<f32>>,
    /// The parameters before the first step, and after every step.
    pub(crate) params: Vec<Vec<f32>>,
}

/// A model that writes down its gradients and parameters.
struct Recorder<'a> {
    inner: Box<dyn Model>,
    heard: &'a Mutex<Vec<Heard>>,
    rank: usize,
}

impl Recorder<'_> {
    fn note(&self, note: impl FnOnce(&mut Heard)) {
        note(&mut self.heard.lock().unwrap()[self.rank]);
    }
}

impl Model for Recorder<'_> {
    fn parameters(&self) -> &Parameters {
        self.inner.parameters()
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        self.inner.parameters_mut()
    }

    fn params(&self, out: &mut [f32]) {
        self.inner.params(out);
        self.note(|heard| heard.params.push(out.to_vec()));
    }

    fn set_params(&mut self, params: &[f32]) {
        self.inner.set_params(params);
        self.note(|heard| heard.params.push(params.to_vec()));
    }

    fn forward_backward(&mut self, batch: &Batch, grad: &mut [f32]) -> Result<f32, ModelError> {
        let loss = self.inner.forward_backward(batch, grad)?;
        self.note(|heard| heard.grads.push(grad.to_vec()));
        Ok(loss)
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<Score, ModelError> {
        self.inner.evaluate(batch)
    }
}

/// What every worker computed and was given, by rank.
fn heard(job: &Job) -> Vec<Heard> {
    heard_by(job, &mut Quiet::default())
}

/// The same, of a run that this observer follows.
pub(crate) fn heard_by(job: &Job, observer: &mut impl Observer) -> Vec<Heard> {
    let heard = Mutex::new(vec![Heard::default(); job.config.workers]);
    let heard: &'static Mutex<Vec<Heard>> = Box::leak(Box::new(heard));
    let model = |rank: Rank| -> Result<Box<dyn Model>, ModelError> {
        Ok(Box::new(Recorder { inner: job.build_model()?, heard, rank: rank.0 as usize }))
    };
    run_with_models(job, &model, Control::default(), observer).unwrap();
    std::mem::take(&mut heard.lock().unwrap())
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn the_mean_is_clipped_to_the_same_bits_at_every_rank() {
    for limit in [0.25, 1e6] {
        let job = digits_job("none", 4, |settings| {
            settings.exchange = Some(ExchangeKind::AllGather);
            (settings.lr, settings.clip_mean) = (Some(0.5), Some(limit));
        });
        let heard = heard(&job);
        let mut params = heard[0].params[0].clone();
        let mut clipped = 0;
        for step in 0..4 {
            let mut mean = vec![0.0; params.len()];
            for worker in &heard {
                mean.iter_mut().zip(&worker.grads[step]).for_each(|(sum, g)| *sum += g);
            }
            assert_eq!(divide(&mut mean, 4), None);
            clipped += u32::from(clip_norm(&mut mean, limit) > limit);
            params.iter_mut().zip(&mean).for_each(|(param, g)| *param -= 0.5 * g);
            for worker in &heard {
                assert_eq!(bits(&worker.params[step + 1]), bits(&params), "limit {limit}, step {step}");
            }
        }
        assert_eq!(clipped, if limit == 0.25 { 4 } else { 0 }, "limit {limit}");
    }
}

/// By other exchanges than the one whose sums the test above repeats.
#[test]
fn a_clipped_mean_moves_the_parameters_by_the_limit_under_every_exchange() {
    for (codec, exchange) in [("none", "all-reduce"), ("topk", "sparse"), ("topk", "server"), ("dgc", "auto")]
    {
        let job = digits_job(codec, 3, |settings| {
            settings.exchange = Some(word(exchange));
            (settings.lr, settings.clip_mean) = (Some(0.5), Some(0.01));
        });
        let heard = heard(&job);
        for step in 0..3 {
            let [before, after] = [0, 1].map(|more| &heard[0].params[step + more]);
            let moved: f64 =
                before.iter().zip(after).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt();
            // Where dgc leaves momentum of biases to the optimizer, a step is longer than its gradient.
            let most = if codec == "dgc" { 0.5 * 0.01 * 10.0 } else { 0.5 * 0.01 * 1.001 };
            assert!(moved > 0.0 && moved <= most, "{codec} by {exchange}: {moved}");
            let others = heard.iter().map(|worker| bits(&worker.params[step + 1]));
            assert!(others.clone().all(|other| other == bits(after)), "{codec} by {exchange}");
        }
    }
}

/// Dense gradients are summed in the order of ranks, or of the parts of a batch, and divided once.
#[test]
fn parts_of_a_batch_make_the_bits_of_as_many_workers() {
    let params = |workers: usize, parts: usize| {
        let job = digits_job("none", 4, |settings| {
            settings.exchange = Some(ExchangeKind::AllGather);
            (settings.workers, settings.accumulate) = (Some(workers), Some(parts));
        });
        let heard = heard(&job);
        assert_eq!(heard[0].grads.len(), 4 * parts, "gradients of one worker");
        bits(heard[0].params.last().unwrap())
    };
    assert_eq!(params(1, 4), params(4, 1));
    assert_eq!(params(1, 8), params(8, 1));
    assert_ne!(params(1, 4), params(1, 1), "another order of the sums");
    assert_eq!(params(2, 2), params(2, 2));
}

#[test]
fn parts_train_like_whole_batches_under_compression_too() {
    let loss = |parts: usize| {
        let job = digits_job("topk:density=0.05", 60, |settings| settings.accumulate = Some(parts));
        run(&job, &mut Quiet::default()).unwrap().summary.final_loss
    };
    let (whole, parts) = (loss(1), loss(4));
    assert!((whole - parts).abs() < 0.1, "{whole} {parts}");
}

#[test]
fn parts_that_are_not_even_are_refused_by_name() {
    let refused = |parts| {
        let settings = Settings { accumulate: Some(parts), ..Settings::default() };
        RunConfig::resolve(&settings).unwrap_err().to_string()
    };
    assert_eq!(refused(0), "accumulate = 0: expected at least 1");
    assert_eq!(refused(5), "accumulate = 5: expected a divisor of 32, a worker's share of the batch");
}

#[test]
fn limits_of_the_mean_that_cannot_be_are_refused_by_name() {
    let refused = |settings: Settings| RunConfig::resolve(&settings).unwrap_err().to_string();
    let clip_mean = Some(-1.0);
    assert_eq!(refused(Settings { clip_mean, ..Settings::default() }), "clip_mean = -1: expected above 0");
    let (clip_mean, codec) = (Some(0.25), Some("dpsgd".to_owned()));
    assert_eq!(
        refused(Settings { clip_mean, codec, ..Settings::default() }),
        "clip_mean with codec = dpsgd: gossip makes no mean of gradients; use clip"
    );
}
