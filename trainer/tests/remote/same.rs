//! A run over the network is the run in one process, bit for bit.

use gradwire_trainer::config::{ExchangeKind, RunConfig, Settings};
use gradwire_trainer::job::Job;
use gradwire_trainer::record::Metrics;
use gradwire_trainer::run::{Observer, run};

use crate::support::{Keys, join, serve};

struct Nobody;

impl Observer for Nobody {
    fn step(&mut self, _: &Metrics) -> Result<(), String> {
        Ok(())
    }

    fn refused(&mut self, _: u64, _: &str) {}
}

/// The hash at the end of the same run with threads for workers: codec and that of the mean, how many
/// workers, and the batch of all.
pub(crate) fn in_one_process(
    (codec, downlink): (&str, &str),
    optimizer: &str,
    steps: u64,
    (workers, batch): (usize, usize),
) -> String {
    run_in_process(&in_process((codec, downlink), optimizer, steps, (workers, batch)))
}

/// The settings of that run.
fn in_process(
    (codec, downlink): (&str, &str),
    optimizer: &str,
    steps: u64,
    (workers, batch): (usize, usize),
) -> Settings {
    Settings {
        codec: Some(codec.to_owned()),
        downlink: Some(downlink.to_owned()),
        optimizer: Some(word(optimizer)),
        exchange: Some(ExchangeKind::Server),
        workers: Some(workers),
        batch: Some(batch),
        steps: Some(steps),
        ..Settings::default()
    }
}

/// The value of a setting that is one word of a few.
fn word<T: clap::ValueEnum>(text: &str) -> T {
    T::from_str(text, false).unwrap()
}

fn run_in_process(settings: &Settings) -> String {
    let job = Job::prepare(RunConfig::resolve(settings).unwrap()).unwrap();
    run(&job, &mut Nobody).unwrap().summary.params_hash
}

#[test]
fn a_server_and_three_workers_end_with_the_parameters_of_the_run_in_one_process() {
    let keys = Keys::new(4);
    let cases = [
        ("topk:density=0.01,values=q8", "sgd", "none"),
        ("qsgd:bits=4", "adamw", "none"),
        ("topk:density=0.02,values=q4", "adamw-updates", "none"),
        ("topk:density=0.05", "sgd", "topk:density=0.05"),
        // No frames: the server reduces payloads, in one round or in several.
        ("sketch", "sgd", "none"),
        ("sketch:moments=amsgrad", "sgd", "none"),
        ("powersgd:rank=2", "sgd", "none"),
        ("sharedk:density=0.05", "sgd", "none"),
        ("sharedk:density=0.05,by=leader", "sgd", "none"),
        ("sharedk:density=0.05,feedback=ef21", "sgd", "none"),
        ("maxnorm:bits=4+8", "sgd", "none"),
        ("maxnorm:bits=4,density=0.1", "sgd", "none"),
    ];
    for (codec, optimizer, downlink) in cases {
        let run = ["--codec", codec, "--optimizer", optimizer, "--steps", "40", "--downlink", downlink];
        let (server, endpoint) = serve(&keys, None, &run);
        let workers: Vec<_> = (1..4).map(|rank| join(&keys, &endpoint, rank, &run)).collect();
        let expected = in_one_process((codec, downlink), optimizer, 40, (4, 128));
        for worker in workers {
            assert_eq!(worker.hash(), expected, "{codec}");
        }
        assert_eq!(server.hash(), expected, "{codec}");
    }
}

#[test]
fn parts_in_turn_over_the_network_end_with_the_parameters_of_the_run_in_one_process() {
    let keys = Keys::new(3);
    for (codec, downlink, is_late) in [
        ("topk:density=0.05,values=q4", "none", false),
        ("topk:density=0.05,values=q4", "none", true),
        ("efsign", "efsign", false),
        ("efsign", "efsign", true),
    ] {
        let run = ["--codec", codec, "--downlink", downlink, "--workers", "3", "--batch", "48"];
        let parts = ["--local-steps", "6", "--fragments", "3", "--optimizer", "adamw", "--steps", "20"];
        let late = is_late.then_some("--delayed");
        let run: Vec<&str> = run.into_iter().chain(parts).chain(late).collect();
        // Nobody misses the first step of a delayed run, which exchanges nothing.
        let (server, endpoint) = serve(&keys, None, &[&run[..], &["--may-miss", "0"]].concat());
        let workers: Vec<_> = (1..3).map(|rank| join(&keys, &endpoint, rank, &run)).collect();
        let settings = Settings {
            local_steps: Some(6),
            fragments: Some(3),
            delayed: Some(is_late),
            ..in_process((codec, downlink), "adamw", 20, (3, 48))
        };
        let expected = run_in_process(&settings);
        for worker in workers {
            assert_eq!(worker.hash(), expected, "{codec}");
        }
        assert_eq!(server.hash(), expected, "{codec}");
    }
}

#[test]
fn rules_over_the_network_end_with_the_parameters_of_the_run_in_one_process() {
    let keys = Keys::new(3);
    let rules = "*.bias=none; layers.0*=topk:density=0.01; qsgd:bits=4";
    let run = ["--rules", rules, "--workers", "3", "--batch", "96", "--steps", "20", "--downlink", "none"];
    let (server, endpoint) = serve(&keys, None, &run);
    let workers: Vec<_> = (1..3).map(|rank| join(&keys, &endpoint, rank, &run)).collect();
    let settings = Settings {
        rules: Some(rules.to_owned()),
        exchange: Some(ExchangeKind::Server),
        workers: Some(3),
        batch: Some(96),
        steps: Some(20),
        ..Settings::default()
    };
    let expected = run_in_process(&settings);
    for worker in workers {
        assert_eq!(worker.hash(), expected);
    }
    assert_eq!(server.hash(), expected);
}

/// The hash of a run of a server and one worker, and the megabytes that came down, as both ends say them.
fn down(keys: &Keys, codec: &str, downlink: &[&str]) -> (f64, String) {
    let run = ["--workers", "2", "--steps", "20", "--eval-every", "0", "--codec", codec];
    let run = [&run[..], downlink].concat();
    let (server, endpoint) = serve(keys, None, &run);
    let mut worker = join(keys, &endpoint, 1, &run);
    let line = worker.says("MB to the server, ");
    let down = line.split(", ").nth(1).unwrap().split(' ').next().unwrap().parse::<f64>().unwrap();
    let hash = worker.hash();
    assert_eq!(server.hash(), hash);
    (down, hash)
}

#[test]
fn the_mean_of_sparse_frames_comes_back_in_fewer_bytes_with_the_same_bits() {
    let keys = Keys::new(2);
    let [(sparse, by_default), (dense, asked_for)] =
        [&[][..], &["--downlink", "none"]].map(|downlink| down(&keys, "topk:density=0.01", downlink));
    assert_eq!(by_default, asked_for);
    assert!(sparse < 0.5 * dense, "{sparse} MB instead of {dense}");
}

#[test]
fn the_mean_of_other_frames_comes_back_as_compressed_as_they_are() {
    let keys = Keys::new(2);
    for (codec, share) in [("bf16", 0.55), ("qsgd:bits=4", 0.2), ("efsign", 0.1)] {
        let [(compressed, by_default), (dense, asked_for)] =
            [&[][..], &["--downlink", "none"]].map(|downlink| down(&keys, codec, downlink));
        assert!(compressed < share * dense, "{codec}: {compressed} MB instead of {dense}");
        assert_ne!(by_default, asked_for, "{codec}");
        assert_eq!(by_default, down(&keys, codec, &["--downlink", codec]).1);
    }
}

#[test]
fn packets_that_all_arrive_in_time_are_the_run_in_one_process() {
    const CODEC: &str = "topk:density=0.05,max_packet_bytes=256";
    let keys = Keys::new(3);
    let run = ["--codec", CODEC, "--workers", "3", "--batch", "96", "--steps", "20"];
    let (server, endpoint) = serve(&keys, None, &run);
    let patient = [&run[..], &["--patience", "60"]].concat();
    let workers: Vec<_> = (1..3).map(|rank| join(&keys, &endpoint, rank, &patient)).collect();
    let expected = in_one_process((CODEC, "none"), "sgd", 20, (3, 96));
    for worker in workers {
        assert_eq!(worker.hash(), expected);
    }
    assert_eq!(server.hash(), expected);
}
