//! Laws of whole runs: the same results every time, the same parameters everywhere, and every byte counted.

use gradwire_trainer::compare::{Candidate, Plan};
use gradwire_trainer::config::{OptimizerKind, RunConfig, ScheduleKind, Settings};
use gradwire_trainer::data::Source;
use gradwire_trainer::job::Job;
use gradwire_trainer::record::Metrics;
use gradwire_trainer::record::folder::Folder;
use gradwire_trainer::run::in_folder::run_into;
use gradwire_trainer::run::processes::{follow, lead};
use gradwire_trainer::run::{Control, Outcome, run};
use gradwire_transports::local;

use crate::{Quiet, digits_job, word};

const CODECS: [&str; 4] = ["none", "topk:density=0.01", "qsgd:bits=4", "randomk:density=0.05"];

fn outcome(job: &Job) -> Outcome {
    run(job, &mut Quiet::default()).unwrap()
}

fn hash(codec: &str) -> String {
    let job = digits_job(codec, 30, |settings| settings.hash_every = Some(7));
    outcome(&job).summary.params_hash
}

#[test]
fn the_same_run_gives_the_same_parameters_alone_and_beside_another() {
    for codec in CODECS {
        let alone = hash(codec);
        assert_eq!(alone, hash(codec), "{codec} twice");
        std::thread::scope(|scope| {
            let runs = [(); 2].map(|()| scope.spawn(|| hash(codec)));
            for run in runs {
                assert_eq!(alone, run.join().unwrap(), "{codec}, two at once");
            }
        });
    }
}

#[test]
fn the_seed_and_the_codec_matter() {
    let hashes = [
        hash("none"),
        hash("topk:density=0.01"),
        outcome(&digits_job("none", 30, |settings| settings.seed = Some(2))).summary.params_hash,
    ];
    assert!(hashes[0] != hashes[1] && hashes[0] != hashes[2], "{hashes:?}");
}

#[test]
fn every_route_trains_and_gathered_and_served_means_are_the_same() {
    let by = |exchange: &str| {
        let job = digits_job("topk:density=0.01", 20, |settings| settings.exchange = Some(word(exchange)));
        outcome(&job).summary.params_hash
    };
    assert_eq!(by("auto"), by("all-gather"));
    assert_eq!(by("auto"), by("server"));
    let dense = |exchange: &str| {
        let job = digits_job("none", 20, |settings| settings.exchange = Some(word(exchange)));
        outcome(&job).summary
    };
    let (auto, ring, gathered) = (dense("auto"), dense("all-reduce"), dense("all-gather"));
    assert_eq!((&auto.params_hash, auto.bytes_up), (&ring.params_hash, ring.bytes_up));
    // Another order of the sums, and twice the bytes for four workers.
    assert!((gathered.final_loss - ring.final_loss).abs() < 1e-3);
    let tree = dense("tree");
    assert!((tree.final_loss - ring.final_loss).abs() < 1e-3);
    assert_ne!(tree.params_hash, ring.params_hash, "another order of the sums");
    // Three payloads up and three down; around the ring, three halves of one from each of four.
    assert!((tree.bytes_up as f64 / ring.bytes_up as f64 - 1.0).abs() < 0.01);
    assert!(gathered.bytes_up > ring.bytes_up);
    let owners = dense("owners");
    assert_eq!(owners.params_hash, gathered.params_hash, "both add in the order of the ranks");
    assert!((owners.bytes_up as f64 / ring.bytes_up as f64 - 1.0).abs() < 0.01);
}

#[test]
fn metered_bytes_are_those_of_the_metrics_and_of_the_frames() {
    let job = digits_job("topk:density=0.01,values=q8", 25, |settings| settings.workers = Some(4));
    let outcome = outcome(&job);
    let up: u64 = outcome.metrics.iter().map(|line| line.bytes_up).sum();
    let down: u64 = outcome.metrics.iter().map(|line| line.bytes_down).sum();
    let metered =
        |of: fn(&gradwire_transports::Counters) -> u64| outcome.counters.iter().map(of).sum::<u64>();
    assert_eq!(up, metered(|counters| counters.up.total_bytes()));
    assert_eq!(down, metered(|counters| counters.down.total_bytes()));
    assert_eq!((up, down), (outcome.summary.bytes_up, outcome.summary.bytes_down));
    // Gathered: every frame goes to N-1 peers, with the version of the exchange, and nothing else is sent.
    let dense = 4.0 * 4.0 * job.layout.len() as f64;
    let frames: f64 = outcome.metrics.iter().map(|line| (dense / line.ratio.unwrap()).round()).sum();
    assert_eq!(metered(|counters| counters.up.payload_bytes), 3 * frames as u64 + 25 * 4 * 3);
    assert_eq!(metered(|counters| counters.up.messages), 25 * 4 * 3);
}

#[test]
fn a_dense_ring_has_a_wire_ratio_of_one_but_for_its_envelopes() {
    let outcome = outcome(&digits_job("none", 3, |_| ()));
    let (ratio, wire) = (outcome.summary.ratio.unwrap(), outcome.summary.wire_ratio.unwrap());
    assert_eq!(ratio, 1.0);
    let payload: u64 = outcome.counters.iter().map(|c| c.up.payload_bytes + c.down.payload_bytes).sum();
    // 2 · 2(N−1)/N · 4n for each of four workers and three steps, and a version in each of 6 messages a way.
    assert_eq!(payload, 3 * 4 * 2 * (2 * 3 * 9610 + 6));
    assert!((0.99..1.0).contains(&wire), "{wire}");
}

#[test]
fn one_worker_trains_and_sends_nothing() {
    let outcome = outcome(&digits_job("topk:density=0.01", 5, |settings| settings.workers = Some(1)));
    assert_eq!((outcome.summary.bytes_up, outcome.summary.wire_ratio), (0, None));
    assert!(outcome.summary.ratio.unwrap() > 50.0);
}

#[test]
fn a_changing_rate_rescales_what_was_kept_back() {
    let plain = digits_job("topk:density=0.01", 12, |_| ());
    let falling = digits_job("topk:density=0.01", 12, |settings| {
        settings.schedule = Some(ScheduleKind::Step);
        (settings.decay_every, settings.decay_factor) = (Some(11), Some(0.5));
    });
    let (plain, falling) = (outcome(&plain), outcome(&falling));
    assert_eq!(plain.metrics[10].residual_norm, falling.metrics[10].residual_norm);
    // The rate halves at step 11, so the residual doubles before the gradient is added.
    let (before, after) = (falling.metrics[10].residual_norm, falling.metrics[11].residual_norm);
    assert!(after > 1.5 * before, "{before} {after}");
}

/// Every step states the density that the schedule asks for and the one that it reached, biases sent dense
/// included.
#[test]
fn densities_follow_the_warm_up_and_are_written_down() {
    let job = digits_job("dgc:density=0.01,warmup=2", 60, |_| ());
    let outcome = outcome(&job);
    assert!(outcome.metrics.iter().any(|line| line.epoch > 2), "the run outlasts the warm-up");
    let n = job.layout.len() as f64;
    let units: Vec<_> = job.spec.units.units(&job.layout.as_ref()).collect();
    assert!(units.iter().any(|unit| unit.dense), "biases are sent dense");
    for line in &outcome.metrics {
        let codec = job.spec.codec_in(line.epoch);
        let target = line.target_density.unwrap();
        assert_eq!(target, codec.target_count(&units).unwrap() as f64 / n);
        assert!((0.8 * target..=1.3 * target).contains(&line.density), "{} of {target}", line.density);
    }
    let targets: Vec<f64> = [0, 1, 2, 3]
        .iter()
        .map(|&epoch| {
            outcome.metrics.iter().find(|line| line.epoch == epoch).unwrap().target_density.unwrap()
        })
        .collect();
    assert!(
        targets[0] > 3.0 * targets[1] && targets[1] > 2.0 * targets[2] && targets[2] == targets[3],
        "{targets:?}"
    );
}

/// The codec decays the gradient before its momentum; the optimizer does neither to what is compressed.
#[test]
fn dgc_that_sends_everything_is_decayed_descent_with_momentum_for_biases_alone() {
    let job =
        digits_job("dgc:density=1,momentum=0.5,clip=1000", 3, |settings| settings.weight_decay = Some(0.1));
    assert_eq!(job.local_weight_decay(), 0.1);
    assert_eq!(job.local_clip(), Some(500.0));
    let mut optimizer = job.build_optimizer().unwrap();
    let (mut params, grad) = (vec![1.0; job.layout.len()], vec![1.0; job.layout.len()]);
    optimizer.step(&mut params, &grad, 0.25);
    optimizer.step(&mut params, &grad, 0.25);
    let units: Vec<_> = job.spec.units.units(&job.layout.as_ref()).collect();
    for unit in units {
        // Two steps of 0.25; with momentum the second is half as long again.
        let expected = if unit.dense { 0.375 } else { 0.5 };
        assert!(params[unit.range()].iter().all(|&param| param == expected), "{unit:?}");
    }
    let plain = digits_job("topk", 3, |settings| settings.weight_decay = Some(0.1));
    assert_eq!((plain.local_weight_decay(), plain.local_clip()), (0.0, None));
}

#[test]
fn what_dgc_does_not_go_with_is_refused_in_words() {
    let refused = |codec: &str, change: fn(&mut Settings)| {
        let mut settings = Settings { codec: Some(codec.to_owned()), ..Settings::default() };
        change(&mut settings);
        RunConfig::resolve(&settings).unwrap_err().to_string()
    };
    for optimizer in ["adamw", "adamw-updates"] {
        let change: fn(&mut Settings) = match optimizer {
            "adamw" => |settings| settings.optimizer = Some(OptimizerKind::Adamw),
            _ => |settings| settings.optimizer = Some(OptimizerKind::AdamwUpdates),
        };
        let message = refused("dgc", change);
        assert!(
            message.contains(optimizer) && message.contains("dgc") && message.contains("use sgd"),
            "{message}"
        );
    }
    let momentum = refused("dgc", |settings| settings.momentum = Some(0.9));
    assert!(momentum.contains("the codec has its own momentum"), "{momentum}");
    let clip = refused("dgc:clip=1", |settings| settings.clip = Some(1.0));
    assert!(clip.contains("the codec clips gradients itself"), "{clip}");
}

#[test]
fn metrics_have_exactly_their_keys() {
    let folder = tempfile::tempdir().unwrap();
    let job = digits_job("topk:density=0.01", 6, |settings| settings.eval_every = Some(3));
    run_into(&job, &Folder::create(folder.path(), false).unwrap(), "", 1).unwrap();
    let text = std::fs::read_to_string(folder.path().join("metrics.jsonl")).unwrap();
    let keys = [
        "step",
        "epoch",
        "loss",
        "lr",
        "bytes_up",
        "bytes_down",
        "ratio",
        "wire_ratio",
        "contributors",
        "compute_ns",
        "encode_ns",
        "exchange_ns",
        "decode_ns",
        "residual_norm",
        "density",
        "target_density",
    ];
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 6);
    for (step, line) in lines.iter().enumerate() {
        let mut expected = keys.to_vec();
        if step % 3 == 2 {
            expected.extend(["eval_loss", "accuracy"]);
        }
        expected.sort_unstable();
        let mut actual: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
        actual.sort_unstable();
        assert_eq!(actual, expected);
        assert_eq!(line["step"], step);
        assert_eq!(line["contributors"], 4);
    }
    let summary: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.path().join("summary.json")).unwrap()).unwrap();
    for key in
        ["final_loss", "accuracy", "bytes_up", "bytes_down", "ratio", "wire_ratio", "seconds", "params_hash"]
    {
        assert!(!summary[key].is_null(), "{key}");
    }
}

#[test]
fn the_echoed_configuration_repeats_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let job = digits_job("qsgd:bits=4", 10, |settings| {
        (settings.lr, settings.momentum, settings.clip) = (Some(0.07), Some(0.5), Some(1.0));
        settings.hidden = Some(vec![20, 30]);
    });
    let first = run_into(&job, &Folder::create(folder.path(), false).unwrap(), "", 1).unwrap();
    let settings = Settings::read(&folder.path().join("config.toml")).unwrap();
    let config = RunConfig::resolve(&settings).unwrap();
    assert_eq!(config, job.config);
    let again = outcome(&Job::prepare(config).unwrap());
    assert_eq!(again.summary.params_hash, first.summary.params_hash);
}

#[test]
fn a_comparison_leaves_one_report_that_loads_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { steps: Some(4), eval_every: Some(2), ..Settings::default() };
    let codecs = ["none", "topk:density=0.01"].map(Candidate::from);
    let comparison = Plan::new(&settings, &codecs, 2)
        .unwrap()
        .run(&Folder::create(folder.path(), false).unwrap())
        .unwrap();
    let html = gradwire_trainer::report::html(&comparison, "Comparison");
    assert_eq!(html.matches("<svg").count(), 5);
    for foreign in ["src=", "href=", "@import", "url("] {
        assert!(!html.contains(foreign), "{foreign}");
    }
    for run in ["none-seed-1", "none-seed-2", "topk-density-0.01-seed-1"] {
        assert!(folder.path().join(run).join("summary.json").is_file(), "{run}");
    }
}

/// Processes differ from threads in how their records come together, which any transport shows.
#[test]
fn who_leads_and_who_follows_train_as_threads_do() {
    let job = digits_job("topk:density=0.05", 7, |settings| settings.hash_every = Some(2));
    let expected = outcome(&job);
    let mut transports = local::world(4).into_iter();
    let mut first = transports.next().unwrap();
    let led = std::thread::scope(|scope| {
        let followers: Vec<_> = transports
            .map(|mut transport| {
                let job = &job;
                scope.spawn(move || follow(job, &mut transport, None, None))
            })
            .collect();
        let led = lead(&job, &mut first, Control::default(), &mut Quiet::default()).unwrap();
        assert!(followers.into_iter().all(|follower| follower.join().unwrap().unwrap().is_none()));
        led
    });
    assert_eq!(led.summary.params_hash, expected.summary.params_hash);
    assert_eq!(led.counters, expected.counters);
    let steps = |outcome: &Outcome| -> Vec<_> {
        let times = |line: &Metrics| Metrics {
            compute_ns: None,
            encode_ns: 0,
            exchange_ns: 0,
            decode_ns: 0,
            ..line.clone()
        };
        outcome.metrics.iter().map(times).collect()
    };
    assert_eq!(steps(&led), steps(&expected));
}

#[test]
fn a_transformer_has_the_blocks_that_are_asked_for() {
    let job = |hidden: &[usize]| {
        let (data, hidden) = (Some(Source::TinyShakespeare), Some(hidden.to_vec()));
        let settings = Settings { data, hidden, steps: Some(1), ..Settings::default() };
        Job::prepare(RunConfig::resolve(&settings).unwrap())
    };
    let default = Settings { data: Some(Source::TinyShakespeare), ..Settings::default() };
    let default = Job::prepare(RunConfig::resolve(&default).unwrap()).unwrap();
    assert_eq!(job(&[64, 64]).unwrap().model, default.model);
    // Two embeddings and a head, blocks of 12 w² + 13 w, and the last norm.
    for (width, blocks) in [(32, 1), (256, 4)] {
        let expected = (65 + 32 + 65 + 2) * width + blocks * (12 * width * width + 13 * width);
        assert_eq!(job(&vec![width; blocks]).unwrap().layout.len(), expected, "{blocks} of {width}");
    }
    let refused = job(&[30]).unwrap_err().to_string();
    assert_eq!(refused, "heads = 4: expected a divisor of the width 30");
}
