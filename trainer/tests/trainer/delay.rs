//! Means that are applied one step late, and the routes that a run may take.

use gradwire_trainer::agreement::Averaging;
use gradwire_trainer::config::{ExchangeKind, RunConfig, ScheduleKind, Settings};
use gradwire_trainer::data::Batches;
use gradwire_trainer::job::{Job, JobError};
use gradwire_trainer::model::hash::params_hash;
use gradwire_trainer::run::{Outcome, run};
use gradwire_transports::exchange::{ExchangeError, Route};

use crate::{Quiet, digits_job, word};

const WORKERS: usize = 2;

/// Parameters after the run by definition: x(t+1) = x(t) − lr(t)·mean of the gradients at x(t − delay).
fn defined(job: &Job, delay: u64) -> u64 {
    let len = job.layout.len();
    let share = job.config.batch / WORKERS;
    let mut batches: Vec<_> = (0..WORKERS)
        .map(|rank| Batches::new(&job.dataset, job.config.seed, share, rank, WORKERS, 0).unwrap())
        .collect();
    let (mut model, mut optimizer) = (job.build_model().unwrap(), job.build_optimizer().unwrap());
    let mut params = vec![0.0; len];
    model.params(&mut params);
    let mut means: Vec<Vec<f32>> = Vec::new();
    for step in 0..job.steps {
        let (epoch, place) = (step / job.steps_per_epoch, (step % job.steps_per_epoch) as usize);
        let mut grads = vec![vec![0.0f32; len]; WORKERS];
        for (grad, batches) in grads.iter_mut().zip(&mut batches) {
            model.forward_backward(&batches.batch(epoch, place), grad).unwrap();
        }
        means.push(grads[0].iter().zip(&grads[1]).map(|(a, b)| (a + b) / 2.0).collect());
        if step >= delay {
            optimizer.step(&mut params, &means[(step - delay) as usize], job.schedule.lr(step));
            model.set_params(&params);
        }
    }
    params_hash(&params)
}

#[test]
fn a_delayed_mean_moves_the_parameters_one_step_late_and_the_last_one_never() {
    for delayed in [false, true] {
        let job = digits_job("none", 9, |settings| {
            (settings.workers, settings.delayed) = (Some(WORKERS), Some(delayed));
            (settings.momentum, settings.schedule) = (Some(0.9), Some(ScheduleKind::Cosine));
        });
        let outcome = run(&job, &mut Quiet::default()).unwrap();
        let expected = defined(&job, u64::from(delayed));
        assert_eq!(outcome.summary.params_hash, format!("{expected:016x}"), "delayed: {delayed}");
        assert_eq!(outcome.metrics[0].contributors, if delayed { 0 } else { WORKERS });
        assert_eq!(outcome.metrics[0].bytes_up == 0, delayed);
        assert!(outcome.metrics[1..].iter().all(|line| line.contributors == WORKERS));
        assert_eq!(outcome.summary.notes.iter().any(|note| note.contains("one step late")), delayed);
        assert_eq!(job.config.to_toml().unwrap().contains("delayed = true"), delayed);
    }
}

#[test]
fn a_delayed_run_still_learns() {
    let job = digits_job("topk:density=0.01", 150, |settings| {
        (settings.lr, settings.delayed) = (Some(0.1), Some(true));
    });
    let accuracy = 100.0 * run(&job, &mut Quiet::default()).unwrap().summary.accuracy;
    assert!(accuracy > 85.0, "{accuracy}");
}

/// Every codec and exchange that has a pipeline, and what it takes beside.
const PIPELINED: [(&str, &str, bool); 7] = [
    ("topk:density=0.05,unit=tensor", "all-gather", false),
    ("qsgd:bits=4,unit=tensor,dense_1d=true", "auto", false),
    ("topk:density=0.05,unit=tensor", "all-gather", true),
    ("topk:density=0.05,unit=tensor", "sparse", false),
    ("randomk:density=0.1,unit=tensor", "all-reduce", true),
    ("maxnorm:bits=4,unit=tensor", "auto", false),
    ("powersgd:rank=2,unit=tensor", "auto", true),
];

#[test]
fn a_step_in_several_messages_trains_as_in_one_bit_for_bit() {
    for (codec, exchange, delayed) in PIPELINED {
        let job = |pipeline| {
            digits_job(codec, 8, |settings| {
                (settings.exchange, settings.pipeline) = (Some(word(exchange)), pipeline);
                (settings.delayed, settings.hidden) = (Some(delayed), Some(vec![32, 32]));
            })
        };
        let [whole, cut] = [None, Some(3)].map(|pipeline| {
            let job = job(pipeline);
            assert_eq!(job.config.to_toml().unwrap().contains("pipeline = 3"), pipeline.is_some());
            run(&job, &mut Quiet::default()).unwrap()
        });
        let messages =
            |outcome: &Outcome| -> u64 { outcome.counters.iter().map(|counted| counted.up.messages).sum() };
        assert_eq!(cut.summary.params_hash, whole.summary.params_hash, "{codec} by {exchange}");
        // Around the ring every unit travels by itself anyway.
        let more = if job(None).spec.codec.as_linear().is_some() { 1 } else { 3 };
        assert_eq!(messages(&cut), more * messages(&whole), "{codec} by {exchange}");
        assert!(cut.summary.notes.iter().all(|note| !note.contains("pipeline")));
    }
}

#[test]
fn a_pipeline_without_anything_to_cut_is_noted() {
    let job = digits_job("topk:density=0.05", 1, |settings| settings.pipeline = Some(2));
    assert!(job.config.notes().iter().any(|note| note.contains("unit=tensor")));
}

#[test]
fn sparse_all_reduce_trains_as_all_gather_does_bit_for_bit() {
    let [gathered, reduced] = ["all-gather", "sparse"].map(|exchange| {
        let job = digits_job("topk:density=0.05", 12, |settings| settings.exchange = Some(word(exchange)));
        run(&job, &mut Quiet::default()).unwrap()
    });
    assert_eq!(gathered.summary.params_hash, reduced.summary.params_hash);
    assert_ne!(gathered.summary.bytes_up, reduced.summary.bytes_up);
}

#[test]
fn auto_chooses_by_the_link_where_one_is_given() {
    let route = |codec: &str, workers, gbps: Option<f64>, latency_us| {
        let job = digits_job(codec, 1, |settings| {
            (settings.workers, settings.batch) = (Some(workers), Some(workers));
            (settings.link_gbps, settings.link_latency_us) = (gbps, latency_us);
        });
        job.way
    };
    let (gathered, reduced) = (Averaging::Mean(Route::AllGather), Averaging::Mean(Route::SparseAllReduce));
    assert_eq!(route("topk:density=0.1", 16, None, None), gathered);
    assert_eq!(route("topk:density=0.1", 16, Some(0.1), None), reduced);
    assert_eq!(route("topk:density=0.1", 16, Some(0.1), Some(1e6)), gathered);
    assert_eq!(route("topk:density=0.01", 2, Some(0.1), None), gathered);
    assert!(matches!(route("none", 4, Some(0.1), None), Averaging::Mean(Route::AllReduce { .. })));
}

#[test]
fn a_slow_link_has_the_index_coder_chosen_where_it_is_left_open() {
    let at = |codec: &str, exchange: &str, gbps: Option<f64>| {
        digits_job(codec, 1, |settings| {
            (settings.link_gbps, settings.exchange) = (gbps, Some(word(exchange)));
        })
    };
    let chosen = |codec: &str, exchange: &str, gbps| at(codec, exchange, gbps).config.codec.to_string();
    let (codec, auto) = ("topk:density=0.01", "topk:density=0.01,index=auto");
    assert_eq!(chosen(codec, "auto", None), codec);
    for (gbps, index) in [(1.0, ""), (0.001, ",index=small"), (0.00001, ",index=smallest")] {
        let expected = format!("{codec}{index}");
        for exchange in ["all-gather", "server"] {
            assert_eq!(chosen(codec, exchange, Some(gbps)), expected);
            assert_eq!(chosen(auto, exchange, Some(gbps)), auto, "it was asked for");
        }
        let job = at(codec, "all-gather", Some(gbps));
        assert_eq!(job.spec.to_string(), expected);
        // What a run leaves behind stands for the same run.
        let read = Settings::parse(&job.config.to_toml().unwrap()).unwrap();
        assert_eq!(Job::prepare(RunConfig::resolve(&read).unwrap()).unwrap().config, job.config);
    }
    let named = at(auto, "all-gather", Some(0.00001));
    let read = Settings::parse(&named.config.to_toml().unwrap()).unwrap();
    assert_eq!(Job::prepare(RunConfig::resolve(&read).unwrap()).unwrap().spec, named.spec);
    // The ring of a sparse all-reduce has frames of its own.
    let ring = digits_job("topk:density=0.1", 1, |settings| {
        (settings.workers, settings.batch, settings.link_gbps) = (Some(16), Some(16), Some(1e-4));
    });
    assert_eq!(ring.way, Averaging::Mean(Route::SparseAllReduce));
    assert_eq!(ring.config.codec.to_string(), "topk:density=0.1");
}

#[test]
fn what_does_not_go_together_is_refused_before_the_run() {
    let refused = |settings: Settings| RunConfig::resolve(&settings).unwrap_err().to_string();
    let base = || Settings { exchange: Some(ExchangeKind::Sparse), ..Settings::default() };
    let message = refused(Settings { link_gbps: Some(1.0), ..base() });
    assert!(message.contains("link_gbps with exchange = sparse"), "{message}");
    let message = refused(Settings { link_latency_us: Some(1.0), ..Settings::default() });
    assert!(message.contains("link_latency_us"), "{message}");
    for gbps in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let message = refused(Settings { link_gbps: Some(gbps), ..Settings::default() });
        assert!(message.contains("link_gbps"), "{message}");
    }
    let message =
        refused(Settings { codec: Some("dpsgd".to_owned()), delayed: Some(true), ..Settings::default() });
    assert!(message.contains("delayed with gossip"), "{message}");
    let pipeline = || Settings { pipeline: Some(2), ..Settings::default() };
    assert_eq!(refused(Settings { pipeline: Some(0), ..base() }), "pipeline = 0: expected at least 1");
    for exchange in ["tree", "server"] {
        let message = refused(Settings {
            codec: Some("none".to_owned()),
            exchange: Some(word(exchange)),
            ..pipeline()
        });
        assert!(message.starts_with(&format!("pipeline with exchange = {exchange}")), "{message}");
    }
    let message = refused(Settings { codec: Some("dpsgd".to_owned()), ..pipeline() });
    assert!(message.starts_with("pipeline with codec = dpsgd"), "{message}");
    let packets =
        RunConfig::resolve(&Settings { codec: Some("topk:max_packet_bytes=1200".to_owned()), ..pipeline() });
    let error = Job::prepare(packets.unwrap()).unwrap_err();
    assert!(matches!(error, JobError::Exchange(ExchangeError::OneMessage)), "{error}");
    let message = refused(Settings { codec: Some("qsgd".to_owned()), ..base() });
    assert!(message.starts_with("exchange = sparse with codec = qsgd"), "{message}");
    assert!(message.ends_with("topk, threshold, dgc, sidco, redsync"), "{message}");
}
