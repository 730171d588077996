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
mod early_stop;
mod events;
mod failures;
mod gossip;
mod gradients;
mod loaders;
mod longer;
mod means;
mod naive;
mod normalised;
mod packets;
mod real_data;
mod recurrent;
mod runs;
mod training;

use gradwire_trainer::config::{RunConfig, Settings};
use gradwire_trainer::job::Job;
use gradwire_trainer::record::Metrics;
use gradwire_trainer::run::Observer;

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
