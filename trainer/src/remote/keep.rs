//! What a worker records so that it can continue after its process has ended: its residual after the steps of
//! the server's checkpoints, and where it leaves the run.

use std::path::PathBuf;

use gradwire_transports::zmq::ZmqTransport;

use super::begin::BeginArgs;
use crate::checkpoint::{Checkpoint, CheckpointError, Found, Single, Store, Totals};
use crate::command::{Again, Failure, Output, explained};
use crate::job::{Job, JobError};
use crate::record::folder::Folder;
use crate::run::RunError;
use crate::step::Worker;

/// Where it goes, or comes from.
#[derive(Debug, clap::Args)]
pub(super) struct KeepArgs {
    /// Folder for this worker's memory. It is written at the steps of the server's checkpoints and when the
    /// worker leaves the run [default: none; the memory is lost with the process]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write into the folder even if it is not empty
    #[arg(long, requires = "out")]
    force: bool,
    #[command(flatten)]
    pub(super) begin: BeginArgs,
}

impl KeepArgs {
    /// The folder, if there is one. A run that is over cannot be continued.
    pub(super) fn open(&self, found: Option<&Found>, job: &Job) -> Result<Option<Keep>, Failure> {
        let run = found.and_then(Found::run_folder);
        let named = Output { out: self.out.clone(), force: self.force };
        let Output { out, force } = self.begin.output(&named);
        let folder = match (&out, found, run) {
            (_, Some(found), Some(run)) if found.steps() >= job.steps => {
                let what = format!("{}: all {} steps are done", run.display(), job.steps);
                return Err(Failure::Usage(what));
            }
            (_, Some(_), Some(run)) => Folder::open(run)?,
            (Some(out), ..) => {
                let folder = Folder::create(out, force)?;
                Store::of_run(folder.path()).clear().map_err(JobError::from)?;
                folder
            }
            _ => return Ok(None),
        };
        Ok(Some(Keep { store: Store::of_run(folder.path()), folder }))
    }
}

/// An open folder of a worker.
pub(super) struct Keep {
    store: Store,
    folder: Folder,
}

impl Keep {
    /// Records the worker's state before that step.
    pub(super) fn write(
        &self,
        job: &Job,
        worker: &Worker<'_, ZmqTransport>,
        next_step: u64,
    ) -> Result<(), RunError> {
        let single =
            Single { rank: worker.rank().0 as usize, params_hash: format!("{:016x}", worker.hash()) };
        let checkpoint = Checkpoint {
            config: job.config.clone(),
            steps: next_step,
            worker: Some(single),
            replicas: Vec::new(),
            memories: vec![worker.kept()],
            gradients: Some(worker.unsent()).filter(|unsent| !unsent.is_empty()).into_iter().collect(),
            carried: Vec::new(),
            downlink: Vec::new(),
            norms: Vec::new(),
            best: None,
            controller: Vec::new(),
            totals: Totals::default(),
        };
        let written = self.store.write(&checkpoint, &job.layout);
        written.map(drop).map_err(|error| RunError::Observer(format!("checkpoint not written: {error}")))
    }

    /// Why the worker ended, with how to continue.
    pub(super) fn explained(&self, error: RunError, again: &Again) -> Failure {
        explained(error, &self.folder, again)
    }

    /// How to continue.
    pub(super) fn command(&self, again: &Again) -> String {
        again.from(self.folder.path())
    }
}

/// A checkpoint with its path, for messages about it.
pub(super) type Known = (PathBuf, Checkpoint);

/// The checkpoint that was found and those before it, to which the server may go back; oldest first. Only the
/// one that was found has to fit; each of the others that does not fit is named.
pub(super) fn read(found: Found, job: &Job) -> Result<Vec<Known>, CheckpointError> {
    let (path, older) = (found.path().to_path_buf(), found.before()?);
    let newest = found.read_all(&job.layout)?;
    let older = older.into_iter().map(|found| older_of(&newest, found?, job));
    let mut all: Vec<Known> = older.filter_map(|known| known.inspect_err(warn).ok()).collect();
    all.push((path, newest));
    Ok(all)
}

/// An older checkpoint of the same worker.
fn older_of(newest: &Checkpoint, found: Found, job: &Job) -> Result<Known, CheckpointError> {
    let path = found.path().to_path_buf();
    let rank = |single: Option<&Single>| single.map(|single| single.rank);
    if rank(found.worker()) != rank(newest.worker.as_ref()) {
        return Err(CheckpointError::Foreign { path, what: "not the state of this worker".to_owned() });
    }
    Ok((path, found.read_all(&job.layout)?))
}

fn warn(error: &CheckpointError) {
    tracing::warn!("{error}; if the server goes back that far, the memory of that step is not known");
}

/// Makes the worker remember its residuals before the steps of these checkpoints. Returns the last one's
/// step, at which the worker continues. Of those before the last, each that does not fit this worker's codec
/// is named, and not remembered.
pub(super) fn take_up(
    worker: &mut Worker<'_, ZmqTransport>,
    mut known: Vec<Known>,
) -> Result<Option<u64>, CheckpointError> {
    let Some(last) = known.pop() else { return Ok(None) };
    for older in known {
        if let Err(error) = remember(worker, older) {
            warn(&error);
        }
    }
    remember(worker, last).map(Some)
}

/// Returns the step that follows the checkpoint.
fn remember(
    worker: &mut Worker<'_, ZmqTransport>,
    (path, checkpoint): Known,
) -> Result<u64, CheckpointError> {
    let Checkpoint { steps, worker: single, memories, gradients, .. } = checkpoint;
    for kept in memories {
        worker.keep(&kept).map_err(|what| CheckpointError::Foreign { path: path.clone(), what })?;
    }
    gradients.iter().for_each(|unsent| worker.restore_unsent(unsent));
    worker.remember(steps, single.map(|single| single.params_hash));
    Ok(steps)
}
