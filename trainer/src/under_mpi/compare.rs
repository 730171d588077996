//! `mpirun -n 4 trainer compare …`: every process does the same runs, one after the other.
//!
//! The first process has the folder. It tells the others which run comes next and where that continues, and
//! all do it as they would `trainer train`. After each run they begin a new epoch, so that no message of a
//! run that failed reaches the next one.

use std::path::Path;
use std::time::Duration;

use gradwire_transports::mpi::{self, MpiOptions, MpiTransport};
use gradwire_transports::{Rank, Transport};
use serde::{Deserialize, Serialize};

use super::{ensure_workers, lead_job, with_options};
use crate::checkpoint::after;
use crate::command::Failure;
use crate::compare::{Comparison, LINES, Plan, Runner, Turn};
use crate::config::ExchangeKind;
use crate::job::{Job, JobError};
use crate::process::interrupt;
use crate::process::launch::Launch;
use crate::record::folder::Folder;
use crate::run::in_folder::{go_on_writing, write_down};
use crate::run::processes::{follow, hear_first, tell_each};
use crate::run::{Control, Observer, Outcome, RunError};
use crate::terminal;

/// Where the comparison is written.
pub(crate) struct Place<'a> {
    /// The path of its folder.
    pub(crate) path: &'a Path,
    /// Makes the folder, or opens it; only the first process does.
    pub(crate) open: &'a dyn Fn() -> Result<Folder, Failure>,
    /// Whether runs that are there are kept.
    pub(crate) is_resumed: bool,
}

/// What the first process tells the others.
#[derive(Debug, Serialize, Deserialize)]
enum Word {
    /// The run of this folder comes next, from its first step or from the checkpoint after so many.
    Run { folder: String, steps: Option<u64> },
    /// No further run comes.
    End,
}

/// Compares as one of the job's processes. The first one writes, and presents the comparison.
///
/// # Errors
///
/// A number of workers that is not that of the processes. `Broken` and `ComparisonInterrupted`, when all have
/// left. Other failures do not return: they end the whole job.
pub(crate) fn compare(
    launch: Launch,
    plan: &Plan,
    place: &Place<'_>,
    present: impl FnOnce(&Comparison, &Folder) -> Result<(), Failure>,
) -> Result<(), Failure> {
    plan.runs().try_for_each(|(job, _)| ensure_workers(launch, job.config.workers))?;
    with_options(launch, &options(plan), |transport| {
        if transport.rank() != Rank(0) {
            return follow_all(plan, place.path, transport);
        }
        let folder = (place.open)()?;
        let mut leader = Leader { launch, transport, is_interrupted: false };
        let comparison = match place.is_resumed {
            true => plan.resume_by(&mut leader, &folder),
            false => plan.run_by(&mut leader, &folder)?,
        };
        tell_each(leader.transport, |_| Word::End)?;
        present(&comparison, &folder)
    })
}

/// The options that hold for all runs.
fn options(plan: &Plan) -> MpiOptions {
    let prefer_ring = plan.runs().any(|(job, _)| job.config.exchange == ExchangeKind::Native);
    let mut options = MpiOptions { prefer_ring, ..MpiOptions::default() };
    let patience = plan.runs().find_map(|(job, _)| job.config.patience);
    options.patience = patience.map_or(options.patience, Duration::from_secs);
    options
}

/// Does every run that the first process names.
fn follow_all(plan: &Plan, path: &Path, transport: &mut MpiTransport) -> Result<(), Failure> {
    while let Word::Run { folder, steps } = hear_first(transport)? {
        let Some((job, _)) = plan.runs().find(|(_, name)| *name == folder) else {
            return Err(Failure::of_file(&path.join(folder), "no run of this comparison"));
        };
        // Nothing there changes until this process has done a step.
        let read = |steps| after(&path.join(&folder), steps).and_then(|found| found.read_all(&job.layout));
        let start = steps.map(read).transpose().map_err(JobError::from)?;
        match follow(job, transport, start.as_ref(), Some(interrupt::requested())) {
            Err(error) if !error.is_of_all(job) => return Err(error.into()),
            _ => transport.begin_epoch(),
        }
    }
    Ok(())
}

/// The first process.
struct Leader<'t> {
    launch: Launch,
    transport: &'t mut MpiTransport,
    /// Whether a run was ended by a signal, which another process may have got.
    is_interrupted: bool,
}

impl Runner for Leader<'_> {
    fn run(&mut self, turn: &Turn<'_>) -> Result<Outcome, RunError> {
        let Turn { job, folder, label, start } = turn;
        let name = folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        match start {
            None => write_down(job, folder, label, LINES, |observer| {
                self.lead(job, Word::Run { folder: name, steps: None }, Control::default(), observer)
            }),
            Some(checkpoint) => {
                let word = Word::Run { folder: name, steps: Some(checkpoint.steps) };
                go_on_writing(job, folder, checkpoint, label, LINES, |(checkpoint, before), observer| {
                    let control = Control { start: Some((checkpoint, &before)), interrupt: None };
                    self.lead(job, word, control, observer)
                })
            }
        }
    }

    fn is_interrupted(&self) -> bool {
        self.is_interrupted || interrupt::requested().load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl Leader<'_> {
    /// Tells all to do a run, and leads it. A failure that the others do not hear of ends the job.
    fn lead(
        &mut self,
        job: &Job,
        word: Word,
        control: Control<'_>,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, RunError> {
        let told = tell_each(self.transport, |_| &word);
        let outcome = told.and_then(|()| lead_job(job, self.transport, control, observer));
        if let Err(error) = &outcome
            && !error.is_of_all(job)
        {
            self.launch.let_first_speak();
            mpi::abort(1, &format!("{}: {}: {error}", terminal::program(), job.config.codec));
        }
        self.is_interrupted |= matches!(outcome, Err(RunError::Interrupted { .. }));
        self.transport.begin_epoch();
        outcome
    }
}
