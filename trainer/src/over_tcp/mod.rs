//! `trainer train --transport tcp`: this process is one rank of a run on several machines.
//!
//! Rank 0 has the folder of the run. The others have their settings, which the greeting compares, and learn
//! from rank 0 in which state the run continues, so they need no folder.

mod args;
mod meet;

use std::io::Write;

use gradwire_transports::exchange::ExchangeError;
use gradwire_transports::tcp::{TcpError, TcpTransport};
use gradwire_transports::{Deadline, Rank, Transport, TransportError};
use tracing::info;

pub(crate) use self::args::TcpArgs;
use self::meet::{bind, meet, tell_over};
use crate::checkpoint::{self, Found, Part};
use crate::command::{Again, Failure, LINES, explained, present_run, reopen_to_end, to_end};
use crate::config::RunConfig;
use crate::job::{Job, JobError};
use crate::process::interrupt;
use crate::record::folder::Folder;
use crate::run::in_folder::{go_on_writing, write_down};
use crate::run::processes::{follow, hear_first, lead, tell_each};
use crate::run::{Control, Length, Observer, Outcome, RunError};
use crate::step::StepError;

/// What a rank says that has no folder, at the end.
const DONE: &str = "all steps are done; rank 0 has the results";

/// Trains as one rank. The first one writes and prints; the others say where they are, and how it ended.
///
/// # Errors
///
/// The faults of settings and arguments; [`Failure::Tcp`] if not all ranks come together; those of the run.
pub(crate) fn train(
    args: &TcpArgs,
    config: RunConfig,
    folder: &dyn Fn(&Job) -> Result<Folder, Failure>,
    again: &Again,
    out: &mut impl Write,
) -> Result<(), Failure> {
    if args.follows() {
        return work(args, &config);
    }
    let place = args.place(config.workers)?;
    let job = Job::prepare(config)?;
    let bound = bind(&place, &job)?;
    let folder = folder(&job)?;
    let mut transport = meet(bound, &place)?;
    let outcome = begin(&mut transport, None).and_then(|()| {
        write_down(&job, &folder, &job.config.encoding(), LINES, |observer| {
            lead_job(&job, &mut transport, Control::default(), observer)
        })
    });
    end(&job, (transport, outcome), &folder, again, out)
}

/// Continues from a checkpoint, which rank 0 has read, and tells the others.
///
/// # Errors
///
/// As [`train`].
pub(crate) fn resume(
    args: &TcpArgs,
    found: Found,
    length: Option<Length>,
    again: &Again,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let job = to_end(found.config(), length)?;
    if args.follows() {
        return work(args, &job.config);
    }
    let place = args.place(job.config.workers)?;
    let run = found.run_folder().unwrap_or(found.path()).to_path_buf();
    let checkpoint = found.read_all(&job.layout).map_err(JobError::from)?;
    let bound = bind(&place, &job)?;
    let (folder, checkpoint) = reopen_to_end(&run, &job, checkpoint)?;
    writeln!(out, "Resuming at step {} of {}", checkpoint.steps, job.steps)?;
    let mut transport = meet(bound, &place)?;
    let part = |rank: Rank| checkpoint.part(rank.0 as usize);
    let outcome = begin(&mut transport, Some(&part)).and_then(|()| {
        let label = job.config.encoding();
        go_on_writing(&job, &folder, &checkpoint, &label, LINES, |(checkpoint, before), observer| {
            let control = Control { start: Some((checkpoint, &before)), interrupt: None };
            lead_job(&job, &mut transport, control, observer)
        })
    });
    end(&job, (transport, outcome), &folder, again, out)
}

/// Tells the other ranks that all steps are done, as far as they come within a minute.
///
/// # Errors
///
/// The faults of settings and arguments; [`Failure::Tcp`] if this process cannot listen.
pub(crate) fn dismiss(args: &TcpArgs, config: RunConfig) -> Result<(), Failure> {
    let place = args.place(config.workers)?;
    let job = Job::prepare(config)?;
    tell_over(bind(&place, &job)?, &place)
}

/// Works as any rank but the first.
fn work(args: &TcpArgs, config: &RunConfig) -> Result<(), Failure> {
    let place = args.place(config.workers)?;
    let job = Job::prepare(config.clone())?;
    let mut transport = match meet(bind(&place, &job)?, &place) {
        Err(Failure::Tcp(TcpError::Over { .. })) => {
            info!("{DONE}");
            return Ok(());
        }
        met => met?,
    };
    let done = hear_first::<Option<Part>>(&mut transport).and_then(|part| {
        let rank = transport.rank().0 as usize;
        let start = part.map(|part| part.into_checkpoint(rank, &job.config, &job.layout)).transpose();
        let start = start.map_err(JobError::from)?;
        follow(&job, &mut transport, start.as_ref(), Some(interrupt::requested()))
    });
    match done {
        Ok(ended_after) => {
            farewell(transport)?;
            match ended_after {
                None => info!("{DONE}"),
                Some(steps) => return Err(Failure::Ended { steps }),
            }
            Ok(())
        }
        Err(error) if is_lost(&error) => Err(Failure::Lost {
            error,
            then: "start all ranks again, this one with the same command".to_owned(),
        }),
        Err(error) => Err(error.into()),
    }
}

/// Tells every other rank in which state it begins.
fn begin(transport: &mut TcpTransport, part: Option<&dyn Fn(Rank) -> Part>) -> Result<(), RunError> {
    tell_each(transport, |rank| part.map(|part| part(rank)))
}

/// Leads until the end, or until a signal ends the run.
fn lead_job(
    job: &Job,
    transport: &mut TcpTransport,
    control: Control<'_>,
    observer: &mut dyn Observer,
) -> Result<Outcome, RunError> {
    lead(job, transport, Control { interrupt: Some(interrupt::requested()), ..control }, observer)
}

/// Lets the other ranks go, then shows the result, or how to go on.
fn end(
    job: &Job,
    (transport, outcome): (TcpTransport, Result<Outcome, RunError>),
    folder: &Folder,
    again: &Again,
    out: &mut impl Write,
) -> Result<(), Failure> {
    match outcome {
        Ok(_) | Err(RunError::Interrupted { .. }) => farewell(transport)?,
        // All others hear that this rank is gone.
        Err(_) => drop(transport),
    }
    let outcome = match outcome {
        Err(error) if is_lost(&error) => {
            return Err(Failure::Lost { error, then: what_to_do(folder, again) });
        }
        outcome => outcome.map_err(|error| explained(error, folder, again))?,
    };
    present_run(job, outcome, folder, out)
}

fn what_to_do(folder: &Folder, again: &Again) -> String {
    match checkpoint::latest(folder.path()) {
        Ok(_) => format!("start all ranks again, this one with: {}", again.from(folder.path())),
        Err(_) => "there is no checkpoint yet: start all ranks again".to_owned(),
    }
}

/// Whether another rank is gone.
fn is_lost(error: &RunError) -> bool {
    matches!(
        error,
        RunError::Worker {
            error: StepError::Exchange(ExchangeError::Transport(TransportError::Disconnected { .. })),
            ..
        }
    )
}

/// Leaves once every peer has confirmed what it was sent, or is gone.
fn farewell(mut transport: TcpTransport) -> Result<(), Failure> {
    let closed = transport.close(Deadline::NEVER);
    closed.map_err(|error| Failure::Run(RunError::Observer(format!("at the end: {error}"))))
}
