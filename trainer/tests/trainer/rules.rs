//! Runs whose tensors are sent by rules.

use gradwire_trainer::config::{ExchangeKind, OptimizerKind, RunConfig, Settings};
use gradwire_trainer::job::Job;
use gradwire_trainer::record::Metrics;

use crate::checkpoints::run;
use crate::{digits_job, word};

fn rules_job(rules: &str, exchange: &str, change: impl FnOnce(&mut Settings)) -> Job {
    digits_job("none", 30, |settings| {
        (settings.codec, settings.rules) = (None, Some(rules.to_owned()));
        settings.exchange = Some(word(exchange));
        change(settings);
    })
}

fn hash_and_metrics(job: &Job) -> (String, Vec<Metrics>) {
    let outcome = run(job, None).0.unwrap();
    (outcome.summary.params_hash, outcome.metrics)
}

/// Top-k draws nothing, so a bias that is sent by `none` is one that is sent dense.
#[test]
fn rules_that_send_biases_dense_are_the_codec_that_does() {
    let codec = "topk:density=0.02,unit=tensor,dense_1d=true";
    for exchange in ["all-gather", "server", "sparse"] {
        let by_codec = digits_job(codec, 30, |settings| settings.exchange = Some(word(exchange)));
        let by_rules = rules_job("*.bias=none; topk:density=0.02,unit=tensor", exchange, |_| ());
        assert_eq!(hash_and_metrics(&by_rules).0, hash_and_metrics(&by_codec).0, "{exchange}");
    }
    let alone = rules_job("topk:density=0.02", "auto", |_| ());
    let codec = digits_job("topk:density=0.02", 30, |_| ());
    assert_eq!(hash_and_metrics(&alone).0, hash_and_metrics(&codec).0);
}

/// Every route takes the rules that fit it, in parts and late too, and the runs learn.
#[test]
fn rules_train_by_every_route() {
    let linear = "*.bias=none; layers.0*=randomk:density=0.2; randomk:density=0.5";
    let mixed = "*.bias=none; layers.0*=topk:density=0.05; qsgd:bits=4";
    for (rules, exchange, pipeline, delayed) in [
        (linear, "auto", None, None),
        (linear, "all-reduce", Some(2), None),
        (linear, "tree", None, None),
        (mixed, "auto", None, None),
        (mixed, "all-gather", Some(3), Some(true)),
        (mixed, "server", None, None),
        (mixed, "sparse", None, None),
    ] {
        let job = rules_job(rules, exchange, |settings| {
            (settings.pipeline, settings.delayed) = (pipeline, delayed);
        });
        let (_, metrics) = hash_and_metrics(&job);
        let [first, last] = [&metrics[1], &metrics[29]].map(|line| line.loss);
        assert!(last < 0.8 * first, "{rules} by {exchange}: {first} to {last}");
    }
}

/// The parts of a step do not change its mean, and all-gather and a server have the same.
#[test]
fn rules_end_with_the_same_parameters_in_parts_and_at_a_server() {
    let rules = "*.bias=none; layers.0*=topk:density=0.05,values=q4; qsgd:bits=4";
    let whole = hash_and_metrics(&rules_job(rules, "all-gather", |_| ())).0;
    let parts = rules_job(rules, "all-gather", |settings| settings.pipeline = Some(4));
    assert_eq!(hash_and_metrics(&parts).0, whole);
    assert_eq!(hash_and_metrics(&rules_job(rules, "server", |_| ())).0, whole);
}

#[test]
fn each_rule_warms_up_by_itself_and_records_say_what_is_sent() {
    let rules = "*.bias=none; layers.0*=topk:density=0.01,warmup=2; topk:density=0.1";
    let job = rules_job(rules, "auto", |settings| (settings.batch, settings.steps) = (Some(480), Some(8)));
    let (_, metrics) = hash_and_metrics(&job);
    let n = job.layout.len() as f64;
    let lens: Vec<usize> =
        job.layout.tensors().iter().map(|tensor| tensor.as_ref().checked_len().unwrap()).collect();
    let shares = |epoch: u64| match epoch {
        0 => 0.2154,
        1 => 0.0464,
        _ => 0.01,
    };
    for line in &metrics {
        let biases: usize = lens.iter().skip(1).step_by(2).sum();
        let sent = shares(line.epoch) * lens[0] as f64 + 0.1 * lens[2] as f64 + biases as f64;
        let target = line.target_density.unwrap();
        assert!((target - sent / n).abs() < 0.01 * target, "epoch {}: {target}, {}", line.epoch, sent / n);
        assert!((line.density - target).abs() < 0.05 * target, "{} of {target}", line.density);
    }
    assert!(metrics.last().unwrap().epoch > 2, "the run outlasts the warm-up");
}

#[test]
fn a_file_of_rules_is_read_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.txt");
    std::fs::write(&file, "*.bias=none;\n layers.0*=topk:density=0.05;\nqsgd:bits=4\n").unwrap();
    let of = |rules: &str| {
        let settings = Settings { rules: Some(rules.to_owned()), ..Settings::default() };
        RunConfig::resolve(&settings)
    };
    let config = of(file.to_str().unwrap()).unwrap();
    let text = "*.bias=none;layers.0*=topk:density=0.05;qsgd:bits=4";
    assert_eq!((config.encoding().as_str(), config.codec.to_string().as_str()), (text, "qsgd:bits=4"));
    let again = RunConfig::resolve(&Settings::parse(&config.to_toml().unwrap()).unwrap()).unwrap();
    assert_eq!(again, config, "the file is not needed any more");
    std::fs::write(&file, "*.bias=none; topk:density=2").unwrap();
    let error = of(file.to_str().unwrap()).unwrap_err().to_string();
    assert!(error.contains("rules.txt: rule 'topk:density=2': density=2: expected"), "{error}");
}

#[test]
fn rules_that_cannot_be_are_one_line_that_says_why() {
    let refused = |rules: &str, change: fn(&mut Settings)| {
        let mut settings = Settings { rules: Some(rules.to_owned()), ..Settings::default() };
        change(&mut settings);
        RunConfig::resolve(&settings).unwrap_err().to_string()
    };
    let plain: fn(&mut Settings) = |_| ();
    let adamw: fn(&mut Settings) = |settings| settings.optimizer = Some(OptimizerKind::Adamw);
    let ring: fn(&mut Settings) = |settings| settings.exchange = Some(ExchangeKind::AllReduce);
    let sparse: fn(&mut Settings) = |settings| settings.exchange = Some(ExchangeKind::Sparse);
    let other: fn(&mut Settings) = |settings| settings.codec = Some("topk".to_owned());
    let adapt: fn(&mut Settings) = |settings| settings.adapt = Some("steps:0=0.1".to_owned());
    let clip: fn(&mut Settings) = |settings| settings.clip = Some(1.0);
    for (rules, change, why) in [
        ("*.bias=none", plain, "the last rule must be for all"),
        ("a=tokp; topk", plain, "unknown codec 'tokp'"),
        ("a=powersgd; topk", plain, "rounds between all workers and no frames"),
        ("a=dgc; topk", plain, "momentum, which the last rule's must have too"),
        ("a=dgc; dgc", adamw, "accumulates the steps of sgd"),
        ("a=none; dgc:clip=1", clip, "clips gradients itself"),
        ("a=none; topk", ring, "exchange = all-reduce with codec = topk"),
        ("a=none; f16", sparse, "its frames are not sparse"),
        ("a=none; f16", other, "the last rule is the codec of all other tensors"),
        ("a=none; topk", adapt, "adapt with rules"),
    ] {
        let error = refused(rules, change);
        assert!(error.contains(why) && !error.contains('\n'), "{rules}: {error}");
    }
}
