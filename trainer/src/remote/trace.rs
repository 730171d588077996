//! What a worker made, kept and received in each step, as sums over all coordinates: enough to add up what
//! all workers did together, and to show that nothing was lost silently.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use gradwire_transports::exchange::ExchangeError;
use gradwire_transports::zmq::ZmqTransport;
use serde::Serialize;

use crate::command::{Failure, RemoteError};
use crate::files::ensure_apart;
use crate::record::StepRecord;
use crate::step::{StepError, Worker};

/// Where it goes.
#[derive(Debug, clap::Args)]
pub(super) struct TraceArgs {
    /// File to which every step adds a line of JSON: the sums of the gradient, of the residual before and
    /// after, and of the mean, and the ranks whose frames are in the mean. Over all workers that contributed,
    /// residual before + gradient - residual after adds up to the mean times their number
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

impl TraceArgs {
    /// Refuses a file that the command reads: the trace grows at its end.
    pub(super) fn ensure_apart(&self, read: &[Option<&Path>]) -> Result<(), Failure> {
        let inputs: Vec<&Path> = read.iter().copied().flatten().collect();
        let apart =
            |path: &PathBuf| ensure_apart(path, &inputs).map_err(|error| Failure::of_file(path, error));
        self.trace.iter().try_for_each(apart)
    }

    pub(super) fn open(&self) -> Result<Option<Trace>, RemoteError> {
        self.trace.as_deref().map(Trace::open).transpose()
    }
}

/// An open file of lines.
pub(super) struct Trace {
    path: PathBuf,
    file: File,
}

#[derive(Serialize)]
struct Line {
    step: u64,
    kept_before: f64,
    gradient: f64,
    kept_after: f64,
    /// Norms of the residual. The norm before a step is reported as lost if the worker dies in it.
    norm_before: f64,
    norm_after: f64,
    /// None for a void step.
    mean: Option<f64>,
    contributors: Vec<u32>,
    /// The server was lost before it named the frames in the mean, so everything was given back. If the
    /// server had included this worker's frame and continues from there, the next line begins with the
    /// residual after that step.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    server_lost: bool,
}

impl Trace {
    fn open(path: &Path) -> Result<Self, RemoteError> {
        let opened = File::options().create(true).append(true).open(path);
        let file = opened.map_err(|error| RemoteError::trace(path, &error))?;
        Ok(Self { path: path.to_path_buf(), file })
    }

    fn write(&mut self, line: &Line) -> Result<(), RemoteError> {
        let text = serde_json::to_string(line).map_err(std::io::Error::from);
        // In one piece: a process that is killed leaves a whole line or none, and the next one begins its
        // own.
        let written = text.and_then(|text| self.file.write_all(format!("{text}\n").as_bytes()));
        written.map_err(|error| RemoteError::trace(&self.path, &error))
    }
}

/// One step, with its line.
pub(super) fn step(
    trace: &mut Option<Trace>,
    worker: &mut Worker<'_, ZmqTransport>,
    step: u64,
) -> Result<Result<StepRecord, StepError>, RemoteError> {
    let Some(trace) = trace else { return Ok(worker.step(step)) };
    let (norm_before, before) = (worker.residual_norm(), worker.sums(step));
    let done = worker.step(step);
    let after = worker.sums(step);
    let contributors = done.as_ref().map_or(&[][..], |record| record.contributors.as_slice());
    trace.write(&Line {
        step,
        kept_before: before.kept,
        gradient: if worker.is_delayed() { before.gradient } else { after.gradient },
        kept_after: after.kept,
        norm_before,
        norm_after: worker.residual_norm(),
        mean: (!contributors.is_empty()).then_some(after.mean),
        contributors: contributors.iter().map(|rank| rank.0).collect(),
        server_lost: matches!(done, Err(StepError::Exchange(ExchangeError::Transport(_)))),
    })?;
    Ok(done)
}
