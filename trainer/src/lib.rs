//! The trainer proves on real tasks that compressed training converges, and says what it costs and gains.
//!
//! ```text
//! data::Batches ─► model::Model::forward_backward ─► flat gradient (clipped)
//!    ─► exchange: encode, send, receive, decode, mean ─► optim::Optimizer::step ─► Model::set_params
//! ```
//!
//! | read | for |
//! | --- | --- |
//! | [`config`], [`job`] | what a run is told, and what that stands for once everything is checked |
//! | `step`, [`run`](mod@run) | one step of one worker, top to bottom; N workers as threads of this process |
//! | [`processes`], [`launch`] | N workers as processes, and how this one knows that it is one of them |
//! | [`record`], [`folder`], [`single`] | what is written down: `config.toml`, `metrics.jsonl`, `summary.json` |
//! | [`agreement`] | the mean of all gradients, or gossip |
//! | [`checkpoint`] | the state of a run on disk, from which it goes on |
//! | [`compare`], [`quickstart`], [`table`], [`report`] | several codecs on one task, side by side |
//! | [`data`], [`model`], [`optim`], [`eval`] | what is trained, and how well |
//! | [`cli`], [`codec_cli`] | the command line |
//! | `remote`, behind the feature `zmq` | a server, and workers on other machines |
//!
//! # Determinism
//!
//! Shuffles, initial weights and codecs draw from one counter-based generator and are the same on every machine. Optimizers
//! and schedules use only arithmetic that IEEE 754 defines exactly. Gradients depend on the matrix kernels of the CPU: the
//! same binary on the same kind of CPU gives the same bits, in any number of threads, and a run repeats exactly.

//!
//! | feature | adds |
//! | --- | --- |
//! | `mpi` | `mpirun -n 4 trainer train …`: every process is a worker |

#![forbid(unsafe_code)]

pub mod agreement;
pub mod checkpoint;
pub mod cli;
pub mod codec_cli;
mod collect;
pub mod compare;
pub mod config;
pub mod data;
pub mod eval;
pub mod folder;
pub mod hash;
mod interrupt;
pub mod job;
pub mod launch;
mod link_rate;
pub mod model;
pub mod optim;
pub mod processes;
pub mod progress;
pub mod quickstart;
pub mod range;
pub mod record;
#[cfg(feature = "zmq")]
pub mod remote;
pub mod report;
pub mod rng;
pub mod run;
pub mod single;
mod step;
pub mod table;
#[cfg(feature = "mpi")]
mod under_mpi;

/// Source, licence and attribution of the shipped data sets, as `trainer --licenses` prints them.
pub const DATA_LICENSES: &str = include_str!("../data/LICENSES.md");
