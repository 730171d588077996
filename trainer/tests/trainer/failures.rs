//! A run in which something goes wrong ends, soon, and says what it was.

use gradwire_trainer::data::Batch;
use gradwire_trainer::job::Job;
use gradwire_trainer::model::{Model, ModelError, Parameters, Score};
use gradwire_trainer::record::Metrics;
use gradwire_trainer::run::processes::{follow, lead};
use gradwire_trainer::run::{Control, Observer, Outcome, RunError, run_with_models};
use gradwire_transports::{Rank, local};

use crate::{Quiet, digits_job, word};

/// What the broken model does instead of its work.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Panic,
    Refuse,
    NotANumber,
    /// A gradient so large that a sum of two overflows.
    Huge,
    /// Forgets one parameter.
    Drift,
}

/// A model that fails at its fourth step.
struct Broken {
    inner: Box<dyn Model>,
    fault: Fault,
    steps: u32,
}

const FAILING_STEP: u32 = 3;

impl Model for Broken {
    fn parameters(&self) -> &Parameters {
        self.inner.parameters()
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        self.inner.parameters_mut()
    }

    fn params(&self, out: &mut [f32]) {
        self.inner.params(out);
        if self.fault == Fault::Drift {
            out[0] += 1e-6;
        }
    }

    fn forward_backward(&mut self, batch: &Batch, grad: &mut [f32]) -> Result<f32, ModelError> {
        let step = self.steps;
        self.steps += 1;
        let loss = self.inner.forward_backward(batch, grad)?;
        match self.fault {
            _ if step != FAILING_STEP => {}
            Fault::Panic => panic!("out of order"),
            Fault::Refuse => return Err(ModelError::Batch("not today".to_owned())),
            Fault::NotANumber => grad[5] = f32::NAN,
            Fault::Huge => grad[7] = f32::MAX,
            Fault::Drift => {}
        }
        Ok(loss)
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<Score, ModelError> {
        self.inner.evaluate(batch)
    }
}

fn run_broken(job: &Job, fault: Fault, ranks: &[u32], quiet: &mut Quiet) -> Result<Outcome, RunError> {
    let model = |rank: Rank| -> Result<Box<dyn Model>, ModelError> {
        let inner = job.build_model()?;
        if !ranks.contains(&rank.0) {
            return Ok(inner);
        }
        Ok(Box::new(Broken { inner, fault, steps: 0 }))
    };
    run_with_models(job, &model, Control::default(), quiet)
}

fn message(codec: &str, exchange: &str, fault: Fault) -> String {
    let job = digits_job(codec, 10, |settings| {
        (settings.exchange, settings.hash_every) = (Some(word(exchange)), Some(2));
    });
    run_broken(&job, fault, &[2], &mut Quiet::default()).unwrap_err().to_string()
}

#[test]
fn a_worker_that_panics_or_fails_ends_the_run_on_every_route() {
    for (codec, exchange) in [("topk", "all-gather"), ("none", "all-reduce"), ("topk", "server")] {
        assert_eq!(message(codec, exchange, Fault::Panic), "worker 2 panicked: out of order");
        assert_eq!(
            message(codec, exchange, Fault::Refuse),
            "worker 2 at step 3: batch does not fit the model: not today"
        );
    }
}

#[test]
fn a_gradient_that_is_not_a_number_names_worker_step_and_coordinate() {
    for codec in ["topk", "none", "qsgd", "randomk"] {
        let message = message(codec, "auto", Fault::NotANumber);
        assert!(
            message.starts_with("worker 2 at step 3: gradient not encoded: non-finite value at coordinate 5"),
            "{message}"
        );
    }
}

/// Before they encode, workers agree on gains: one that has none must not leave the others waiting.
#[test]
fn a_gradient_that_is_not_a_number_is_named_where_its_gain_is_measured() {
    for codec in ["topk", "dgc:momentum=0", "redsync", "randomk"] {
        let job =
            digits_job(codec, 10, |settings| settings.adapt = Some("gravac:min=2,clock=none".to_owned()));
        let error = run_broken(&job, Fault::NotANumber, &[2], &mut Quiet::default()).unwrap_err().to_string();
        assert!(error.starts_with("worker 2 at step 3: gradient not encoded: non-finite value"), "{error}");
    }
}

#[test]
fn replicas_that_differ_are_found_and_named() {
    let message = message("topk", "auto", Fault::Drift);
    assert!(message.starts_with("replicas differ after step 1: "), "{message}");
    assert!(message.contains("at rank 0, 1, 3") && message.contains("at rank 2"), "{message}");
}

#[test]
fn a_mean_that_overflows_is_refused_by_all_and_the_run_goes_on() {
    let job = digits_job("topk:density=0.01,memory=none", 8, |settings| settings.hash_every = Some(1));
    let mut quiet = Quiet::default();
    let outcome = run_broken(&job, Fault::Huge, &[1, 2], &mut quiet).unwrap();
    assert_eq!((outcome.summary.steps, outcome.summary.refused_steps), (8, 1));
    let (step, why) = &quiet.refused[0];
    assert_eq!(*step, u64::from(FAILING_STEP));
    assert!(why.contains("coordinate 7") && why.contains("rank 2"), "{why}");
    assert_eq!(outcome.metrics[3].ratio, None);
}

/// Its disk is full at some step.
struct Full(u64);

impl Observer for Full {
    fn step(&mut self, metrics: &Metrics) -> Result<(), String> {
        if metrics.step == self.0 { Err("no room".to_owned()) } else { Ok(()) }
    }

    fn refused(&mut self, _: u64, _: &str) {}
}

/// Whoever follows hears of it before the next step, so that all could do another run together.
#[test]
fn a_failure_of_the_first_process_ends_all_in_step() {
    let job = digits_job("topk:density=0.05", 30, |settings| settings.workers = Some(2));
    for step in [0, 7, 28, 29] {
        std::thread::scope(|scope| {
            let [mut first, mut second] = local::world(2).try_into().unwrap();
            let follower = scope.spawn({
                let job = &job;
                move || follow(job, &mut second, None, None)
            });
            let error = lead(&job, &mut first, Control::default(), &mut Full(step)).unwrap_err();
            assert!(matches!(&error, RunError::Observer(what) if what == "no room"), "{step}: {error}");
            // `first` is still there: nobody ended because the other one was gone.
            follower.join().unwrap().unwrap();
        });
    }
}
