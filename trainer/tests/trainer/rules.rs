//! Runs whose tensors are sent by rules.

use std::collections::BTreeSet;

use gradwire::rules::Rules;
use gradwire_trainer::adapt::Decided;
use gradwire_trainer::agreement::Averaging;
use gradwire_trainer::config::{ExchangeKind, OptimizerKind, RunConfig, ScheduleKind, Settings};
use gradwire_trainer::job::Job;
use gradwire_trainer::record::Metrics;
use gradwire_transports::exchange::Route;

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

/// What sets the density of a codec sets it in rules, whatever codecs without one are beside it.
#[test]
fn a_changing_density_is_that_of_each_codec_that_has_one() {
    let rules = "*.bias=none; layers.0*=qsgd:bits=4; topk:density=0.3,warmup=2";
    let adapted = |adapt: &str| {
        rules_job(rules, "auto", |settings| {
            (settings.adapt, settings.steps) = (Some(adapt.to_owned()), Some(9));
        })
    };
    let job = adapted("steps:0=0.5,3=0.01,7=1");
    let (_, metrics) = hash_and_metrics(&job);
    let lens: Vec<usize> =
        job.layout.tensors().iter().map(|tensor| tensor.as_ref().checked_len().unwrap()).collect();
    let (n, set) = (job.layout.len() as f64, lens[2] as f64);
    for (line, density) in metrics.iter().zip([0.5, 0.5, 0.5, 0.01, 0.01, 0.01, 0.01, 1.0, 1.0]) {
        let (target, sent) = (line.target_density.unwrap(), (n - set + density * set) / n);
        assert!((target / sent - 1.0).abs() < 1e-3, "{target} is not {sent}");
        assert!((line.density / sent - 1.0).abs() < 0.05, "{} is not {sent}", line.density);
    }
    // A step at density 1 sends all tensors as `none` does.
    assert_eq!(metrics[8].ratio.map(|ratio| (100.0 * ratio).round()), Some(100.0));
    let plain =
        rules_job(&rules.replace("0.3,warmup=2", "0.05"), "auto", |settings| settings.steps = Some(9));
    assert_eq!(hash_and_metrics(&adapted("steps:0=0.05")).0, hash_and_metrics(&plain).0);
}

/// A bias by a rule with `none` counts as one that the codec sends dense: in gains, in the norms of layers,
/// and in steps that send everything, also where the codec owns the momentum.
#[test]
fn controllers_decide_with_rules_as_they_do_with_a_codec_that_sends_biases_dense() {
    let gravac = "gravac:min=2,max=100,eps=0.8,omega=0.05,window=4,policy=geometric,clock=none";
    let accordion = "accordion:low=0.2,high=0.02,eta=0.4,window=1,by=layer";
    for (codec, adapt) in [
        ("topk:unit=tensor", gravac),
        ("dgc:warmup=0,unit=tensor", gravac),
        ("topk:unit=tensor", accordion),
        ("dgc:warmup=0,unit=tensor", "steps:0=0.1,4=1,8=0.05"),
        ("topk:unit=tensor", "loss:inf=0.5,2.0=0.02"),
    ] {
        let change = |settings: &mut Settings| {
            (settings.adapt, settings.batch) = (Some(adapt.to_owned()), Some(480));
            (settings.hash_every, settings.schedule) = (Some(1), Some(ScheduleKind::Constant));
        };
        let by_codec = digits_job(&format!("{codec},dense_1d=true"), 30, change);
        let by_rules = rules_job(&format!("*.bias=none; {codec},dense_1d=false"), "auto", change);
        let [(hash, metrics), (expected, others)] = [&by_rules, &by_codec].map(hash_and_metrics);
        let decided = |lines: &[Metrics]| lines.iter().map(|line| line.adapt.clone()).collect::<Vec<_>>();
        assert_eq!(decided(&metrics), decided(&others), "{codec} {adapt}");
        assert_eq!(hash, expected, "{codec} {adapt}");
    }
}

/// The gains of several codecs add up to one.
#[test]
fn gravac_decides_once_for_all_codecs_that_have_a_density() {
    let rules = "*.bias=none; layers.0*=randomk:density=0.1; topk:density=0.1";
    let gravac = "gravac:min=2,max=50,eps=0.5,omega=0.05,window=4,policy=geometric,clock=none";
    let job = rules_job(rules, "auto", |settings| {
        (settings.adapt, settings.hash_every) = (Some(gravac.to_owned()), Some(1));
    });
    let (_, metrics) = hash_and_metrics(&job);
    let mut seen = BTreeSet::new();
    for line in &metrics {
        let Some(Decided::Density(decision)) = line.adapt else { panic!("{:?}", line.adapt) };
        let [min, gain] = [decision.gain_min, decision.gain].map(Option::unwrap);
        assert!(0.0 < gain && gain <= min && min <= 1.0, "{gain} {min}");
        assert!((line.density / line.target_density.unwrap() - 1.0).abs() < 0.05, "{line:?}");
        seen.insert(decision.density);
    }
    assert!(seen.len() > 1, "{seen:?}");
    let [first, last] = [&metrics[1], &metrics[29]].map(|line| line.loss);
    assert!(last < 0.8 * first, "{first} to {last}");
}

#[test]
fn rules_whose_tensors_have_no_density_are_refused_beside_one_that_changes() {
    let settings = Settings {
        rules: Some("nosuch.*=topk; none".to_owned()),
        adapt: Some("steps:0=0.1".to_owned()),
        ..Settings::default()
    };
    let error = Job::prepare(RunConfig::resolve(&settings).unwrap()).unwrap_err().to_string();
    assert_eq!(error, "adapt with rules: no tensor of this model has a codec with a density");
}

/// The rate of a link chooses the exchange; the coders are those that the rules spell.
#[test]
fn a_link_rate_with_rules_chooses_the_exchange() {
    let rules = "*.bias=none; layers.0*=topk:density=0.3; topk:density=0.3,index=raw";
    for (gbps, route) in [(1e-4, Route::SparseAllReduce), (100.0, Route::AllGather)] {
        let job = rules_job(rules, "auto", |settings| settings.link_gbps = Some(gbps));
        assert_eq!(job.config.encoding(), Rules::parse(rules).unwrap().to_string());
        assert_eq!(job.way, Averaging::Mean(route));
        assert_eq!(hash_and_metrics(&job).1.len(), 30);
    }
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
    let layers: fn(&mut Settings) = |settings| settings.adapt = Some("layers:*=0.1".to_owned());
    let gravac: fn(&mut Settings) = |settings| settings.adapt = Some("gravac".to_owned());
    let by_layer: fn(&mut Settings) = |settings| {
        settings.adapt = Some("accordion:by=layer".to_owned());
        settings.schedule = Some(ScheduleKind::Constant);
    };
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
        ("a=none; qsgd", adapt, "adapt with rules: no codec of theirs has a density"),
        ("a=none; topk", layers, "spell the density in each rule"),
        ("a=topk:memory=none; topk", gravac, "adapt = gravac with codec = topk"),
        (
            "a=topk; topk:unit=tensor",
            by_layer,
            "by=layer with codec = topk:density=0.01: all tensors are one unit",
        ),
    ] {
        let error = refused(rules, change);
        assert!(error.contains(why) && !error.contains('\n'), "{rules}: {error}");
    }
}
