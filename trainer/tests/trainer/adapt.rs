//! Runs whose densities come from a list, a controller or the log of another run.

use std::collections::BTreeSet;
use std::fs;

use gradwire_trainer::adapt::{Choice, Decided, Decision};
use gradwire_trainer::config::{RunConfig, ScheduleKind, Settings, TransportKind};
use gradwire_trainer::job::Job;
use gradwire_trainer::record::Metrics;
use gradwire_trainer::record::folder::Folder;
use gradwire_trainer::run::in_folder::run_into;
use gradwire_trainer::run::{Outcome, run};

use crate::{Quiet, digits_job, led, word};

/// Gains alone decide, so that runs repeat whatever else the machine does.
const GRAVAC: &str = "gravac:min=2,max=100,eps=0.8,omega=0.05,window=4,policy=geometric,clock=none";

fn adaptive(codec: &str, steps: u64, adapt: &str) -> Job {
    adaptive_with(codec, steps, adapt, |_| ())
}

fn adaptive_with(codec: &str, steps: u64, adapt: &str, change: impl FnOnce(&mut Settings)) -> Job {
    digits_job(codec, steps, |settings| {
        (settings.adapt, settings.hash_every) = (Some(adapt.to_owned()), Some(1));
        change(settings);
    })
}

fn outcome(job: &Job) -> Outcome {
    run(job, &mut Quiet::default()).unwrap()
}

fn decisions(metrics: &[Metrics]) -> Vec<Decided> {
    metrics.iter().map(|line| line.adapt.clone().unwrap()).collect()
}

/// What was decided for the whole gradient.
fn decision(line: &Metrics) -> Decision {
    let Some(Decided::Density(decision)) = line.adapt else { panic!("{:?}", line.adapt) };
    decision
}

fn densities(outcome: &Outcome) -> Vec<f64> {
    outcome.metrics.iter().map(|line| decision(line).density.fraction()).collect()
}

/// The densities of the units in each step.
fn by_unit(outcome: &Outcome) -> Vec<Vec<f64>> {
    let of = |decided: Decided| {
        let Decided::Densities { densities, .. } = decided else { panic!("{decided:?}") };
        densities.iter().map(|density| density.fraction()).collect()
    };
    decisions(&outcome.metrics).into_iter().map(of).collect()
}

fn ranks(outcome: &Outcome) -> Vec<u16> {
    let of = |decided| match decided {
        Decided::Rank { rank, .. } => rank,
        other => panic!("{other:?}"),
    };
    decisions(&outcome.metrics).into_iter().map(of).collect()
}

/// Two steps an epoch, and a rate that halves every nine steps.
fn halving(settings: &mut Settings) {
    (settings.batch, settings.schedule) = (Some(480), Some(ScheduleKind::Step));
    (settings.decay_every, settings.decay_factor) = (Some(9), Some(0.5));
}

#[test]
fn a_list_sets_the_density_from_each_step_on_and_replaces_the_warm_up() {
    for codec in ["topk", "randomk", "dgc:warmup=4,dense_1d=false,unit=model"] {
        let job = adaptive(codec, 9, "steps:0=0.5,3=0.01,7=0.1");
        let outcome = outcome(&job);
        assert_eq!(densities(&outcome), [0.5, 0.5, 0.5, 0.01, 0.01, 0.01, 0.01, 0.1, 0.1], "{codec}");
        for line in &outcome.metrics {
            let (asked, target) = (decision(line).density.fraction(), line.target_density.unwrap());
            assert!((target / asked - 1.0).abs() < 0.01, "{codec}: {target} of {asked}");
            assert!((0.8 * target..=1.3 * target).contains(&line.density), "{codec}: {}", line.density);
        }
        assert!(outcome.summary.notes.iter().any(|note| note.contains("sets the density of every step")));
    }
}

#[test]
fn a_list_by_epochs_changes_where_epochs_begin() {
    let job = adaptive_with("topk", 9, "epochs:0=0.5,1=0.1,3=0.02", |settings| settings.batch = Some(480));
    assert_eq!(job.steps_per_epoch, 2);
    assert_eq!(densities(&outcome(&job)), [0.5, 0.5, 0.1, 0.1, 0.1, 0.1, 0.02, 0.02, 0.02]);
}

/// Every decision is the one that the gains beside it ask for, and it is what was sent.
#[test]
fn gravac_sends_what_the_gains_allow_with_every_sparsifier() {
    let mut seen = BTreeSet::new();
    for (codec, eps) in [
        ("topk", 0.8),
        ("topk", 0.97),
        ("topk:chunk=64", 0.8),
        ("dgc", 0.8),
        ("redsync", 0.5),
        ("redsync", 0.95),
        ("sidco:stages=2", 0.8),
        ("randomk", 0.4),
    ] {
        let adapt = GRAVAC.replace("eps=0.8", &format!("eps={eps}"));
        let outcome = outcome(&adaptive(codec, 24, &adapt));
        let mut least = 0.5;
        for line in &outcome.metrics {
            let Decision { density, choice, gain_min, gain, .. } = decision(line);
            let (gain_min, gain) = (gain_min.unwrap(), gain.unwrap());
            assert!(0.0 < gain && gain <= gain_min && gain_min <= 1.0, "{codec}: {gain} {gain_min}");
            let expected = match () {
                () if gain >= eps => Choice::Candidate,
                () if gain_min >= eps => Choice::Min,
                () => Choice::Dense,
            };
            assert_eq!(choice, expected, "{codec} at step {}", line.step);
            let share = density.fraction();
            match choice {
                Choice::Dense => assert_eq!((share, line.residual_norm), (1.0, 0.0), "{codec}"),
                Choice::Min => {
                    assert!(share <= least, "{codec}: the least compression never falls");
                    least = share;
                }
                _ => assert!((0.01..=0.5).contains(&share), "{codec}: {share}"),
            }
            seen.insert(format!("{choice:?}"));
        }
        let loss = |at: usize| outcome.metrics[at].loss;
        assert!(loss(23) < loss(0), "{codec}: {} to {}", loss(0), loss(23));
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["Candidate", "Dense", "Min"]);
}

#[test]
fn gravac_by_gains_alone_repeats_in_threads_and_processes() {
    // What random-k sends is about as large a share of the norm as of the coordinates.
    let easy = GRAVAC.replace("eps=0.8", "eps=0.2");
    for (codec, exchange, adapt) in [
        ("topk", "all-gather", GRAVAC),
        ("topk", "sparse", GRAVAC),
        ("randomk", "tree", &easy),
        ("randomk:unit=tensor,dense_1d=true", "server", &easy),
        ("topk:chunk=64", "server", GRAVAC),
        ("dgc", "server", GRAVAC),
    ] {
        let job = adaptive_with(codec, 16, adapt, |settings| settings.exchange = Some(word(exchange)));
        let [first, second] = [(); 2].map(|()| outcome(&job));
        let choices: Vec<Choice> = decisions(&first.metrics).iter().map(Decided::choice).collect();
        assert!(choices.windows(2).any(|pair| pair[0] != pair[1]), "{codec}: nothing was decided");
        let led = led(&job);
        for other in [&second, &led] {
            assert_eq!(decisions(&other.metrics), decisions(&first.metrics), "{codec}");
            assert_eq!(other.summary.params_hash, first.summary.params_hash, "{codec}");
        }
    }
}

/// Whatever the clock made of it: the densities are in the log, and with them the run.
#[test]
fn a_run_is_replayed_from_its_log_to_the_same_bits() {
    let wall = GRAVAC.replace("clock=none", "clock=wall");
    let accordion = "accordion:low=0.2,high=0.05,eta=0.1,window=1";
    let layers = "layers:*.bias=0.5,*=0.02";
    let ranks = "accordion:low=5,high=1,eta=0.2,window=1";
    let by_loss = "loss:inf=0.3,2.0=0.05,1.0=0.01";
    for (codec, adapt, delayed) in [
        ("topk", wall.as_str(), false),
        ("dgc", &wall, true),
        ("topk", accordion, false),
        ("topk:unit=tensor", accordion, false),
        ("dgc", accordion, true),
        ("topk:unit=tensor", layers, false),
        ("powersgd", ranks, false),
        ("powersgd", ranks, true),
        ("powersgd:unit=tensor", ranks, false),
        ("powersgd:unit=tensor", ranks, true),
        ("topk", by_loss, true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let change = |settings: &mut Settings| {
            (settings.batch, settings.delayed) = (Some(480), Some(delayed));
        };
        let job = adaptive_with(codec, 14, adapt, change);
        let recorded = run_into(&job, &Folder::create(folder.path(), false).unwrap(), "", 0).unwrap();
        for log in [folder.path().to_path_buf(), folder.path().join("metrics.jsonl")] {
            let replay = format!("replay:{}", log.display());
            let replayed = outcome(&adaptive_with(codec, 14, &replay, change));
            assert_eq!(replayed.summary.params_hash, recorded.summary.params_hash, "{codec}");
            for (a, b) in replayed.metrics.iter().zip(&recorded.metrics) {
                assert_eq!((&a.adapt, a.loss, a.density), (&b.adapt, b.loss, b.density), "{codec}");
            }
        }
        let replay = format!("replay:{}", folder.path().display());
        let mut settings = Settings {
            codec: Some(codec.to_owned()),
            adapt: Some(replay),
            steps: Some(15),
            ..Settings::default()
        };
        change(&mut settings);
        let error = Job::prepare(RunConfig::resolve(&settings).unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("adapt: ") && error.contains("no decision for step 14"), "{error}");
    }
}

/// Two steps an epoch. The first two windows have nothing to be compared with; the rate falls at step 9.
#[test]
fn accordion_compresses_less_in_critical_windows() {
    let with_eta = |eta: &str| {
        let adapt = format!("accordion:low=0.2,high=0.05,eta={eta},window=1");
        let job = adaptive_with("topk", 12, &adapt, halving);
        assert_eq!(job.steps_per_epoch, 2);
        densities(&outcome(&job))
    };
    let (low, high) = (0.2, 0.05);
    // No window changes ten thousand times.
    let calm = [low, low, low, low, high, high, high, high, high, low, high, high];
    assert_eq!(with_eta("10000"), calm);
    assert_eq!(with_eta("1e-9"), [low; 12]);
}

/// As above, and the regimes of some layers end before those of others.
#[test]
fn accordion_by_layer_gives_each_tensor_its_own_density() {
    for (codec, dense) in [("topk:unit=tensor", vec![]), ("topk:unit=tensor,dense_1d=true", vec![1, 3])] {
        let adapt = "accordion:low=0.2,high=0.05,eta=0.2,window=1";
        let job = adaptive_with(codec, 16, adapt, |settings| {
            settings.batch = Some(480);
        });
        assert!(
            job.config.adapt.as_ref().unwrap().to_string().ends_with(",by=layer"),
            "{:?}",
            job.config.adapt
        );
        let outcome = outcome(&job);
        let seen = by_unit(&outcome);
        for (line, densities) in outcome.metrics.iter().zip(&seen) {
            assert_eq!(densities.len(), job.units().len(), "{codec}");
            for (at, density) in densities.iter().enumerate() {
                let allowed = if dense.contains(&at) { &[1.0][..] } else { &[0.2, 0.05] };
                assert!(allowed.contains(density), "{codec}: {density} for unit {at}");
            }
            // What was to be sent is what each tensor sends.
            let count = |(unit, &density): (&gradwire::Unit, &f64)| {
                gradwire::Density::new(density).unwrap().count(unit.len)
            };
            let sent: usize = job.units().iter().zip(densities).map(count).sum();
            let share = sent as f64 / job.layout.len() as f64;
            assert_eq!((line.density, line.target_density), (share, Some(share)), "{codec}");
        }
        let choices: BTreeSet<String> =
            decisions(&outcome.metrics).iter().map(|decided| format!("{:?}", decided.choice())).collect();
        assert!(choices.contains("Critical") && choices.len() > 1, "{codec}: {choices:?}");
        // With four layers, some regimes end before others.
        assert_eq!(choices.contains("Mixed"), dense.is_empty(), "{codec}: {choices:?}");
        let led = led(&job);
        assert_eq!(decisions(&led.metrics), decisions(&outcome.metrics), "{codec}");
        assert_eq!(led.summary.params_hash, outcome.summary.params_hash, "{codec}");
    }
}

#[test]
fn with_one_unit_regimes_by_model_are_the_default_and_with_the_sparsifiers_own_they_may_be() {
    let hash = |codec: &str, by: &str| {
        let adapt = format!("accordion:low=0.2,high=0.05,eta=0.2,window=1{by}");
        let job = adaptive_with(codec, 8, &adapt, |settings| settings.batch = Some(480));
        (job.config.adapt.as_ref().unwrap().to_string(), outcome(&job).summary.params_hash)
    };
    assert_eq!(hash("topk", ""), hash("topk", ",by=model"));
    let [layer, model] = ["", ",by=model"].map(|by| hash("topk:unit=tensor", by));
    assert!(layer.0.ends_with("by=layer") && model.0.ends_with("by=model"));
    assert_ne!(layer.1, model.1, "other densities");
}

#[test]
fn a_list_by_layer_sends_each_tensor_at_the_density_of_its_name() {
    for (codec, exchange) in [
        ("topk:unit=tensor", "all-gather"),
        ("topk:unit=tensor", "sparse"),
        ("redsync:unit=tensor", "server"),
        ("randomk:unit=tensor", "all-reduce"),
        ("dgc:dense_1d=false,unit=tensor", "auto"),
    ] {
        let job = adaptive_with(codec, 4, "layers:*.bias=0.5,*=0.02", |settings| {
            settings.exchange = Some(word(exchange));
        });
        let outcome = outcome(&job);
        let names: Vec<&str> = job.layout.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        let expected: Vec<f64> =
            names.iter().map(|name| if name.ends_with(".bias") { 0.5 } else { 0.02 }).collect();
        assert!(expected.contains(&0.5) && expected.contains(&0.02), "{names:?}");
        for (line, densities) in outcome.metrics.iter().zip(by_unit(&outcome)) {
            assert_eq!(densities, expected, "{codec}");
            let target = line.target_density.unwrap();
            assert!((0.5 * target..=2.0 * target).contains(&line.density), "{codec}: {}", line.density);
        }
        assert_eq!(led(&job).summary.params_hash, outcome.summary.params_hash, "{codec}");
    }
    let mut settings = Settings { codec: Some("topk:unit=tensor".into()), ..Settings::default() };
    settings.adapt = Some("layers:*.gamma=1,*=0.1".into());
    let error = Job::prepare(RunConfig::resolve(&settings).unwrap()).unwrap_err().to_string();
    assert!(error.starts_with("adapt: layers: *.gamma: fits no tensor; there are "), "{error}");
}

/// The loss in the log is the mean over the workers, which decides.
#[test]
fn a_list_by_loss_follows_the_mean_loss_of_all_workers() {
    for (exchange, delayed) in [("auto", false), ("sparse", true)] {
        let job = adaptive_with("topk", 40, "loss:inf=0.3,2=0.05,1=0.01", |settings| {
            (settings.delayed, settings.exchange) = (Some(delayed), Some(word(exchange)));
        });
        let outcome = outcome(&job);
        let mut lowest = f64::INFINITY;
        let mut seen = BTreeSet::new();
        for line in &outcome.metrics {
            let below = |lowest: f64| {
                if lowest < 1.0 {
                    0.01
                } else if lowest < 2.0 {
                    0.05
                } else {
                    0.3
                }
            };
            let known = if delayed { lowest } else { lowest.min(line.loss) };
            lowest = lowest.min(line.loss);
            if delayed && line.step == 0 {
                assert_eq!(line.adapt, None, "nothing was sent");
                continue;
            }
            let decision = decision(line);
            assert_eq!((decision.density.fraction(), decision.choice), (below(known), Choice::Listed));
            seen.insert(decision.density);
        }
        assert_eq!(seen.len(), 3, "the loss falls below both values");
        assert_eq!(led(&job).summary.params_hash, outcome.summary.params_hash);
    }
}

/// Ranks change at steps 4, 9 and 10: in the first two windows nothing is known, and the rate falls at
/// step 9.
#[test]
fn accordion_sets_the_rank_of_powersgd() {
    for exchange in ["all-reduce", "tree"] {
        let adapt = "accordion:low=5,high=1,eta=10000,window=1";
        let job = adaptive_with("powersgd", 14, adapt, |settings| {
            halving(settings);
            settings.exchange = Some(word(exchange));
        });
        let outcome = outcome(&job);
        assert_eq!(ranks(&outcome), [5, 5, 5, 5, 1, 1, 1, 1, 1, 5, 1, 1, 1, 1]);
        // The payloads follow, and nothing is a density.
        for line in &outcome.metrics {
            let is_low = decisions(std::slice::from_ref(line))[0].choice() == Choice::Critical;
            let per_step = |rank| outcome.metrics[if rank == 5 { 0 } else { 4 }].bytes_up;
            assert_eq!(line.bytes_up, per_step(if is_low { 5 } else { 1 }));
            assert_eq!(line.target_density, None);
        }
        assert!(outcome.metrics[0].bytes_up > 2 * outcome.metrics[4].bytes_up);
        assert!(outcome.summary.notes.iter().any(|note| note.contains("the codec's rank 1 is not used")));
        let led = led(&job);
        assert_eq!(decisions(&led.metrics), decisions(&outcome.metrics));
        assert_eq!(led.summary.params_hash, outcome.summary.params_hash);
    }
}

/// As for densities: payloads are P and Q of each matrix at its own rank, and all of every vector.
#[test]
fn accordion_by_layer_gives_each_matrix_its_own_rank() {
    for (exchange, pipeline) in [("all-reduce", None), ("all-reduce", Some(2)), ("tree", None)] {
        let adapt = "accordion:low=3,high=1,eta=0.2,window=1";
        let job = adaptive_with("powersgd:unit=tensor", 16, adapt, |settings| {
            (settings.batch, settings.exchange) = (Some(480), Some(word(exchange)));
            settings.pipeline = pipeline;
        });
        assert!(
            job.config.adapt.as_ref().unwrap().to_string().ends_with(",by=layer"),
            "{:?}",
            job.config.adapt
        );
        let outcome = outcome(&job);
        let mut seen = BTreeSet::new();
        for line in &outcome.metrics {
            let shapes = || job.layout.tensors().iter().map(|tensor| tensor.shape.as_slice());
            let ranks = match line.adapt.clone().unwrap() {
                Decided::Rank { rank, choice } => {
                    assert_eq!(rank, if choice == Choice::Critical { 3 } else { 1 });
                    vec![rank; shapes().count()]
                }
                Decided::Ranks { ranks, choice } => {
                    assert_eq!(choice, Choice::Mixed);
                    let of_matrices = ranks.iter().zip(shapes()).filter(|(_, shape)| shape.len() > 1);
                    assert_eq!(of_matrices.map(|(rank, _)| rank).collect::<BTreeSet<_>>().len(), 2);
                    ranks
                }
                other => panic!("{other:?}"),
            };
            let sent = shapes().zip(&ranks).map(|(shape, rank)| match *shape {
                [rows, cols] => usize::from(*rank) * (rows + cols),
                _ => shape.iter().product(),
            });
            let (ratio, sent) = (line.ratio.unwrap(), sent.sum::<usize>() as f64);
            assert!((ratio * sent / job.layout.len() as f64 - 1.0).abs() < 1e-9, "{ranks:?} by {exchange}");
            seen.insert(format!("{:?}", line.adapt.as_ref().unwrap().choice()));
        }
        assert!(seen.contains("Critical") && seen.contains("Mixed"), "{seen:?}");
        let led = led(&job);
        assert_eq!(decisions(&led.metrics), decisions(&outcome.metrics));
        assert_eq!(led.summary.params_hash, outcome.summary.params_hash);
    }
}

#[test]
fn gains_and_decisions_are_in_the_log_under_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let job = adaptive("topk", 3, GRAVAC);
    run_into(&job, &Folder::create(folder.path(), false).unwrap(), "", 0).unwrap();
    let text = fs::read_to_string(folder.path().join("metrics.jsonl")).unwrap();
    for line in text.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let adapt = &line["adapt"];
        assert!(adapt["density"].is_f64() && adapt["gain_min"].is_f64() && adapt["gain"].is_f64(), "{line}");
        assert!(["candidate", "min", "dense"].contains(&adapt["decision"].as_str().unwrap()), "{line}");
    }
    let again = fs::read_to_string(folder.path().join("config.toml")).unwrap();
    assert!(again.contains(&format!("adapt = \"{GRAVAC}\"")), "{again}");
}

#[test]
fn what_a_changing_density_does_not_go_with_is_refused_in_words() {
    let refused = |codec: &str, adapt: &str, change: fn(&mut Settings)| {
        let mut settings =
            Settings { codec: Some(codec.to_owned()), adapt: Some(adapt.to_owned()), ..Settings::default() };
        change(&mut settings);
        RunConfig::resolve(&settings).unwrap_err().to_string()
    };
    let names = |error: String, words: &[&str]| {
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    names(refused("topk", "gravac:eps=7", |_| ()), &["adapt = gravac:eps=7", "eps=7", "at most 1"]);
    names(
        refused("qsgd", "steps:0=0.1", |_| ()),
        &["codec = qsgd", "no density", "topk", "redsync", "randomk"],
    );
    names(refused("none", "gravac", |_| ()), &["codec = none", "no density"]);
    assert!(!refused("none", "gravac", |_| ()).contains("sidco"), "GraVAC refuses it too");
    assert!(refused("none", "steps:0=0.1", |_| ()).contains("sidco"));
    names(refused("dpsgd", "gravac", |_| ()), &["codec = dpsgd", "no density"]);
    names(refused("topk:memory=none", "gravac", |_| ()), &["without a memory", "memory=ef"]);
    names(refused("sidco", "gravac", |_| ()), &["codec = sidco", "adapts its own"]);
    names(
        refused("maxnorm:density=0.1,memory=ef", "gravac", |_| ()),
        &["codec = maxnorm", "several densities"],
    );
    names(refused("none", "steps:0=0.1", |_| ()), &["codec = none", "no density", "topk"]);
    names(refused("powersgd", "gravac", |_| ()), &["codec = powersgd", "rank and no density", "accordion"]);
    names(refused("powersgd", "accordion:by=layer", |_| ()), &["codec = powersgd", "one unit", "by=model"]);
    names(refused("topk", "accordion:by=layer", |_| ()), &["one unit", "unit=tensor", "by=model"]);
    names(refused("topk", "layers:*=0.1", |_| ()), &["one unit", "unit=tensor"]);
    let whole = refused("redsync:unit=tensor", "layers:*.bias=1,*=0.1", |_| ());
    names(whole, &["codec = redsync", "at density 1", "dense_1d"]);
    names(refused("redsync:unit=tensor", "accordion:low=1", |_| ()), &["at density 1"]);
    let packets = refused("topk:max_packet_bytes=1200", "steps:0=0.1", |_| ());
    names(packets, &["packets may be lost", "max_packet_bytes"]);
    let zmq = |settings: &mut Settings| settings.transport = Some(TransportKind::Zmq);
    names(refused("topk", "gravac", zmq), &["transport = zmq", "come and go"]);
    let cosine = |settings: &mut Settings| settings.schedule = Some(ScheduleKind::Cosine);
    names(refused("topk", "accordion", cosine), &["schedule = cosine", "every step would be critical"]);
    assert!(RunConfig::resolve(&Settings { adapt: Some("gravac".into()), ..Settings::default() }).is_ok());
}

/// The ring, the order of its sums and the bits of `none`. A residual of earlier steps is part of the first
/// such step, and then it is gone.
#[test]
fn a_step_at_density_1_is_one_of_none() {
    let plain = |settings: &mut Settings| settings.momentum = Some(0.0);
    let none = outcome(&digits_job("none", 4, plain));
    let dgc = ["dgc:unit=model,dense_1d=false", "dgc:unit=model,dense_1d=false,momentum=0"];
    for codec in ["topk:unit=model", "redsync:unit=model", "randomk:unit=model", dgc[0], dgc[1]] {
        let all = outcome(&adaptive_with(codec, 4, "steps:0=1", plain));
        assert_eq!(all.summary.params_hash, none.summary.params_hash, "{codec}");
        for (line, of_none) in all.metrics.iter().zip(&none.metrics) {
            assert_eq!((line.density, line.residual_norm), (1.0, 0.0), "{codec}");
            assert_eq!(line.loss, of_none.loss, "{codec}");
        }
        let later = outcome(&adaptive_with(codec, 4, "steps:0=0.1,2=1", plain));
        let norms: Vec<bool> = later.metrics.iter().map(|line| line.residual_norm > 0.0).collect();
        assert_eq!(norms, [true, true, false, false], "{codec}");
    }
}
