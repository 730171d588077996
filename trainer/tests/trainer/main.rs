//! Tests of the trainer's parts through their public interface, in one binary: linking the tensor library
//! takes longer than running them.

mod adapt;
mod advice;
mod batches;
mod checkpoints;
mod command_line;
mod comparisons;
mod compression;
mod delay;
mod determinism;
#[cfg(target_os = "linux")]
mod disks;
mod early_stop;
mod events;
mod failures;
mod fragments;
mod gossip;
mod gradients;
mod kept_settings;
mod loaders;
mod local_steps;
mod longer;
mod means;
#[cfg(feature = "metrics")]
mod monitor;
mod muon;
mod naive;
mod normalised;
mod outputs;
mod packets;
mod processes;
mod real_data;
mod recurrent;
mod reports;
mod rules;
mod runs;
mod training;
mod updates;
mod watching;

use gradwire_trainer::config::{RunConfig, Settings};
use gradwire_trainer::job::Job;
use gradwire_trainer::record::Metrics;
use gradwire_trainer::run::processes::{follow, lead};
use gradwire_trainer::run::{Control, Observer, Outcome};
use gradwire_transports::{Transport, local};

/// The value of a setting that is one word of a few.
fn word<T: clap::ValueEnum>(text: &str) -> T {
    T::from_str(text, false).unwrap()
}

/// A job on the shipped digits with plain SGD.
fn digits_job(codec: &str, steps: u64, change: impl FnOnce(&mut Settings)) -> Job {
    let mut settings = Settings {
        codec: Some(codec.to_owned()),
        steps: Some(steps),
        eval_every: Some(0),
        ..Settings::default()
    };
    change(&mut settings);
    Job::prepare(RunConfig::resolve(&settings).unwrap()).unwrap()
}

/// The outcome of four workers that run as processes do, each with its own end of a world.
fn led(job: &Job) -> Outcome {
    std::thread::scope(|scope| {
        let mut ends = local::world(4);
        let mut first = ends.remove(0);
        for mut end in ends {
            scope.spawn(move || follow(job, &mut end as &mut dyn Transport, None, None).unwrap());
        }
        lead(job, &mut first, Control::default(), &mut Quiet::default()).unwrap()
    })
}

/// Hears of steps and keeps what was refused.
#[derive(Default)]
struct Quiet {
    refused: Vec<(u64, String)>,
}

impl Observer for Quiet {
    fn step(&mut self, _: &Metrics) -> Result<(), String> {
        Ok(())
    }

    fn refused(&mut self, step: u64, why: &str) {
        self.refused.push((step, why.to_owned()));
    }
}
