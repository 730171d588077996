//! What the commands share: how they fail, where they write, and how they present a run.

mod again;
mod begin;
mod defaults;
mod failure;
mod log_args;
mod output;
mod present;
#[cfg(feature = "zmq")]
mod remote_error;

pub(crate) use again::Again;
pub(crate) use begin::{Begin, done, ensure_same_text, output_in};
pub(crate) use defaults::{CHECKPOINT_EVERY, LINES};
pub use failure::{Failure, report};
pub(crate) use failure::{explained, unless_nobody_reads};
pub(crate) use log_args::LogArgs;
#[cfg(feature = "zmq")]
pub(crate) use output::reopen;
pub(crate) use output::{Output, create_folder, reopen_to_end, to_end};
#[cfg(feature = "zmq")]
pub(crate) use present::report_run;
pub(crate) use present::{present, present_run, verdict};
#[cfg(feature = "zmq")]
pub use remote_error::RemoteError;
