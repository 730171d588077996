//! The trainer shows on real tasks that compressed training converges, and reports its cost and gain.
//!
//! ```text
//! data::Batches ─► model::Model::forward_backward ─► flat gradient (clipped)
//!    ─► exchange: encode, send, receive, decode, mean ─► optim::Optimizer::step ─► Model::set_params
//! ```
//!
//! | read | for |
//! | --- | --- |
//! | [`config`], [`job`] | what a run is told, and what that stands for once everything is checked |
//! | [`adapt`] | the density of each step: lists, controllers, replays |
//! | [`agreement`] | the mean of all gradients, or gossip |
//! | `step` | one step of one worker, top to bottom |
//! | [`run`](mod@run) | a whole run: its workers as threads of this process, or as processes; alone, or with its folder |
//! | [`process`] | how this process knows that it is one of several, and that the user wants it to end |
//! | [`record`] | what is written down: `config.toml`, `metrics.jsonl`, `summary.json`; and what is shown meanwhile |
//! | [`checkpoint`] | the state of a run on disk, from which it continues |
//! | [`compare`], [`report`] | several codecs on one task, side by side: a table, and a page with plots |
//! | [`data`], [`model`], [`optim`] | what is trained, and how well |
//! | `advise`, `simulate` | which codec makes the shortest step on which link; a recorded run on another cluster |
//! | [`cli`], [`codec_cli`] | the command line |
//! | `log` | events on standard error: lines for people, or JSON |
//! | `remote`, behind the feature `zmq` | a server, and workers on other machines |
//!
//! # Versions
//!
//! The command line, the files and [`main_with`] follow Semantic Versioning. The modules are public for
//! tests, and any release may change them.
//!
//! # Determinism
//!
//! Shuffles, initial weights and codecs draw from one counter-based generator and are the same on every
//! machine. Optimizers and schedules use only arithmetic that IEEE 754 defines exactly. Gradients depend on
//! the matrix kernels of the CPU: the same binary on the same kind of CPU gives the same bits, in any number
//! of threads, and a run repeats exactly.
//!
//! | feature | adds |
//! | --- | --- |
//! | `metrics` | `--metrics-listen`: numbers for Prometheus |
//! | `mpi` | `mpirun -n 4 trainer train …`: every process is a worker |

#![deny(unsafe_code)]

use std::io::stdout;
use std::process::ExitCode;

use gradwire::experiments::OwnCodec;

use crate::cli::Failure;
use crate::process::launch::Launch;

pub mod adapt;
mod advise;
pub mod agreement;
pub mod checkpoint;
pub mod cli;
pub mod codec_cli;
mod command;
pub mod compare;
pub mod config;
pub mod data;
pub mod files;
pub mod fragments;
pub mod job;
mod log;
pub mod model;
mod nearest;
mod network;
pub mod optim;
mod over_tcp;
pub mod process;
pub mod range;
pub mod record;
#[cfg(feature = "zmq")]
pub mod remote;
pub mod report;
pub mod rng;
pub mod run;
mod simulate;
mod step;
mod terminal;
#[cfg(feature = "mpi")]
mod under_mpi;

/// The whole program `trainer`: reads the arguments of this process, and returns its exit code. It also has
/// these `codecs` of other crates: `x:NAME:keys` is then a spelling like every other, in every command, in
/// `config.toml`, in rules and in reports.
///
/// # Examples
/// A program of yours that is the trainer with one codec more; docs/own-codec.md writes the codec.
/// ```no_run
/// use gradwire::codecs::DenseSum;
/// use gradwire::experiments::OwnCodec;
/// use gradwire::registry::Law;
///
/// fn main() -> std::process::ExitCode {
///     let sum = OwnCodec::linear("sum", "sums in f32", Law::NotKept, |_| Ok(DenseSum));
///     gradwire_trainer::main_with([sum.examples(&["x:sum"])])
/// }
/// ```
pub fn main_with(codecs: impl IntoIterator<Item = OwnCodec>) -> ExitCode {
    let registered = codecs.into_iter().try_for_each(OwnCodec::register);
    let done = registered.map_err(|error| Failure::Usage(error.to_string()));
    match done.and_then(|()| cli::main(std::env::args_os(), &mut stdout().lock())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Ok(Some(launch)) = Launch::detect() {
                launch.let_first_speak();
            }
            cli::report_failure(&failure);
            ExitCode::from(failure.exit_code())
        }
    }
}
