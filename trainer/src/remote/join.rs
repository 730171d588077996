//! `trainer join`: a worker of a run that another machine serves.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use gradwire_transports::exchange::{ExchangeError, ServerOptions};
use gradwire_transports::zmq::roll::{Leaves, Notice, Report, Worker as Place, residual_weight};
use gradwire_transports::zmq::{
    Bound, Entry, PublicKey, Roster, Security, ZmqError, ZmqTransport, read_public,
};
use gradwire_transports::{Deadline, Rank, Tag, Transport, TransportError};
use tracing::{info, warn};

use super::args::KeyArgs;
use super::job::{downlink, prepare, resolve};
use super::keep::{self, Keep, KeepArgs, Known};
use super::options::{SERVER, options};
use super::trace::{self, Trace, TraceArgs};
use super::waiting::farewell;
use crate::checkpoint::{Found, Replica, ReplicaError};
use crate::command::{Again, CHECKPOINT_EVERY, Failure, RemoteError, done};
use crate::config::Settings;
use crate::job::{Job, JobError};
use crate::network::{LOOK_UP, Saying, is_end_wanted, seconds};
use crate::process::interrupt;
#[cfg(feature = "metrics")]
use crate::record::monitor::monitor;
use crate::run::RunError;
use crate::step::{Recalled, StepError, Worker};
use crate::terminal::program;

/// Twice the steps between two checkpoints. A worker that was killed just before a checkpoint continues from
/// the one before it, and keeps half of the residual that it had recorded there.
const RESIDUAL_AGE: u64 = 2 * CHECKPOINT_EVERY;

/// What a worker is told.
#[derive(Debug, clap::Args)]
pub struct JoinArgs {
    /// Address on which the server listens
    #[arg(long, value_name = "tcp://HOST:PORT", default_value = "tcp://127.0.0.1:5555")]
    server: String,
    /// The server's public key, or a file that holds it
    // One key in 85 begins with a hyphen.
    #[arg(long, value_name = "KEY", required_unless_present = "insecure", allow_hyphen_values = true)]
    server_key: Option<String>,
    /// This worker's rank, from 1, as the server's list gives it to this key [default: with --resume, the
    /// rank that it had]
    #[arg(long, value_name = "N", required_unless_present = "resume")]
    rank: Option<u32>,
    #[command(flatten)]
    keys: KeyArgs,
    #[command(flatten)]
    keep: KeepArgs,
    #[command(flatten)]
    trace: TraceArgs,
    /// Seconds after which packets (max_packet_bytes) that did not arrive are not sent again. Give what the
    /// server has [default: they are always sent again]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    patience: Option<Duration>,
    /// Steps of absence after which this worker's residual counts nothing. After a shorter absence it counts
    /// proportionally less
    #[arg(long, value_name = "STEPS", default_value_t = RESIDUAL_AGE)]
    residual_age: u64,
    /// Seconds to wait for the server, at the start and whenever it is gone
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "3600")]
    wait: Duration,
}

/// How long a worker that ends waits until the server has taken its last message.
const FAREWELL: Duration = Duration::from_secs(5);

/// What ended a stretch of steps.
enum End {
    /// The run is over.
    Over,
    /// This worker is out, or the server is gone.
    Out,
    /// The user wants this worker to leave.
    Interrupted,
}

struct Run<'a> {
    job: &'a Job,
    worker: Worker<'a, ZmqTransport>,
    place: Place,
    /// Where this worker's state is saved, if anywhere.
    keep: Option<Keep>,
    trace: Option<Trace>,
    residual_age: u64,
    /// The step that follows the parameters of this worker.
    next: Option<u64>,
    /// Whether these parameters were ever here: a file of a worker does not hold them.
    has_params: bool,
}

/// Works until the run is over, with settings that may be from a file.
pub(crate) fn join(
    args: &JoinArgs,
    (settings, told): (Settings, Option<&Path>),
    again: &Again,
    out: &mut impl Write,
) -> Result<(), Failure> {
    args.trace.ensure_apart(&[told, args.keys.file(), args.server_key.as_deref().map(Path::new)])?;
    let security = args.keys.security().map_err(RemoteError::from)?;
    let begin = &args.keep.begin;
    let (found, config) = match begin.find(&settings, || resolve(settings.clone()), "join")? {
        Some(known) => known,
        None => return Ok(writeln!(out, "{}", done(begin.folder()))?),
    };
    let downlink = downlink(&config)?;
    let job =
        prepare(config, ServerOptions { patience: args.patience, downlink, ..ServerOptions::default() })?;
    let workers = job.config.workers;
    let rank = rank(args.rank, found.as_ref(), workers)?;
    let roster = roster(args, rank, &security, workers)?;
    let options = options(&job, (rank, roster), security, (&downlink, 0));
    let bound = Bound::new(options).map_err(RemoteError::from)?;
    let keep = args.keep.open(found.as_ref(), &job)?;
    let known = found.map(|found| keep::read(found, &job)).transpose().map_err(JobError::from)?;
    let transport = bound.join(Deadline::after(args.wait)).map_err(|error| no_server(error, args.wait, 0))?;
    // Until here a signal ends the process at once: nothing has been done that could be lost.
    interrupt::listen()?;
    let mut run = Run::new(&job, transport, (keep, known.unwrap_or_default()), args)?;
    run.until_over(args.wait).map_err(|error| run.explained(error, again))?;
    writeln!(out, "parameters: {:016x}", run.worker.hash())?;
    let counters = run.worker.counters();
    let [up, down] = [counters.up, counters.down].map(|way| way.total_bytes() as f64 / 1e6);
    writeln!(out, "{up:.2} MB to the server, {down:.2} MB from it")?;
    farewell(run.worker.transport());
    Ok(())
}

/// Says what a worker without a server can do.
fn no_server(error: ZmqError, wait: Duration, steps: u64) -> RemoteError {
    let ZmqError::NotAllThere { missing } = error else { return error.into() };
    // A worker waits for its server alone.
    let known: Vec<String> = missing.into_iter().map(|(_, known)| known).collect();
    let why = format!(
        "no server within {} s (--wait): {}; start {} serve there, or check --server, --server-key and the \
         firewall",
        wait.as_secs_f64(),
        known.join(", "),
        program()
    );
    RemoteError::NobodyCame { why, steps }
}

/// The requested rank, or that of the state to continue from.
fn rank(asked: Option<u32>, found: Option<&Found>, workers: usize) -> Result<Rank, Failure> {
    let known = found.and_then(|found| Some((found, u32::try_from(found.worker()?.rank).ok()?)));
    if let (Some(asked), Some((found, known))) = (asked, known)
        && asked != known
    {
        let path = found.path().display();
        return Err(Failure::Usage(format!("{path}: of rank {known}, not of rank {asked}")));
    }
    let rank = asked.or(known.map(|(_, known)| known)).unwrap_or(0);
    let allowed = format!("1 to {}", workers - 1);
    crate::range::require((1..workers as u32).contains(&rank), "rank", rank, allowed)?;
    Ok(Rank(rank))
}

/// The server, this worker, and the ranks of the others, whom this end never meets.
fn roster(args: &JoinArgs, rank: Rank, security: &Security, workers: usize) -> Result<Roster, RemoteError> {
    let server: Option<PublicKey> = match &args.server_key {
        None => None,
        Some(key) => Some(key.parse().or_else(|_| read_public(key.as_ref()))?),
    };
    let own = match security {
        Security::Curve(pair) => Some(pair.public()),
        Security::Plain { .. } => None,
    };
    let all =
        (0..workers as u32).map(Rank).fold(Roster::new(), |roster, rank| roster.with(rank, Entry::default()));
    let endpoint = Some(args.server.clone());
    Ok(all.with(rank, Entry { key: own, endpoint: None }).with(SERVER, Entry { key: server, endpoint }))
}

impl<'a> Run<'a> {
    fn new(
        job: &'a Job,
        transport: ZmqTransport,
        (keep, known): (Option<Keep>, Vec<Known>),
        args: &JoinArgs,
    ) -> Result<Self, Failure> {
        let model = job.build_model().map_err(JobError::from)?;
        let mut worker = Worker::new(job, transport, model)?;
        worker.keep_history();
        let next = keep::take_up(&mut worker, known).map_err(JobError::from)?;
        let (trace, residual_age) = (args.trace.open()?, args.residual_age);
        Ok(Self {
            job,
            worker,
            place: Place::new(SERVER),
            keep,
            trace,
            residual_age,
            next,
            has_params: false,
        })
    }

    /// Asks, works, and begins again when this worker has lost its place.
    fn until_over(&mut self, wait: Duration) -> Result<(), RemoteError> {
        loop {
            match self.stretch() {
                Ok(End::Over) => return Ok(()),
                Ok(End::Out) => {}
                Ok(End::Interrupted) => {
                    // Nothing is left to deliver.
                    let _ = self.worker.transport().close(Deadline::after(FAREWELL));
                    return Err(self.interrupted());
                }
                Err(RemoteError::Transport(TransportError::Disconnected { .. })) => self.reconnect(wait)?,
                Err(other) => return Err(other),
            }
        }
    }

    fn reconnect(&mut self, wait: Duration) -> Result<(), RemoteError> {
        // An invalid answer ends a stretch while the session still exists; asking again repairs that.
        if self.worker.transport().session(SERVER).is_some() {
            return Ok(());
        }
        warn!("the server is gone; waiting for it");
        let end = Deadline::after(wait);
        let mut met = self.worker.transport().rejoin(Deadline::now());
        while let Err(ZmqError::NotAllThere { .. }) = met
            && !end.has_passed()
        {
            if is_end_wanted() {
                return Err(self.interrupted());
            }
            met = self.worker.transport().wait_for_peers(Deadline::after(LOOK_UP).earlier(end));
        }
        if matches!(met, Err(ZmqError::NotAllThere { .. })) {
            self.keep_state()?;
        }
        met.map_err(|error| no_server(error, wait, self.steps()))
    }

    /// Steps that this worker's parameters have seen.
    fn steps(&self) -> u64 {
        self.next.unwrap_or(0)
    }

    /// Writes down this worker's state before its next step, if there is a folder for it.
    fn keep_state(&self) -> Result<(), RunError> {
        self.keep.as_ref().map_or(Ok(()), |keep| keep.write(self.job, &self.worker, self.steps()))
    }

    /// The user ended this worker. Its state is that before its next step.
    fn interrupted(&self) -> RemoteError {
        self.keep_state().err().unwrap_or(RunError::Interrupted { steps: self.steps() }).into()
    }

    /// Adds how to continue after an interrupt, without a server or without room, and what is lost without a
    /// file of it.
    fn explained(&self, error: RemoteError, again: &Again) -> Failure {
        match (error, &self.keep) {
            (RemoteError::Run(error), Some(keep)) => keep.explained(error, again),
            (RemoteError::Run(RunError::Interrupted { steps }), None) => {
                Failure::Left { steps, lost_norm: self.worker.residual_norm() }
            }
            (RemoteError::NobodyCame { why, steps }, Some(keep)) => {
                Failure::Stopped { why, steps, command: keep.command(again) }
            }
            (error, _) => error.into(),
        }
    }

    /// The time from being let in to being out.
    fn stretch(&mut self) -> Result<End, RemoteError> {
        let Some(mut notice) = self.come_in()? else { return Ok(End::Interrupted) };
        let me = self.worker.rank();
        while !notice.is_over {
            let tag = Tag::new(notice.epoch, notice.step);
            let leaves = match (is_end_wanted(), &self.keep) {
                (false, _) => Leaves::No,
                (true, Some(_)) => Leaves::Keeping,
                (true, None) => Leaves::Losing,
            };
            let (residual_norm, params_hash) = (self.worker.residual_norm(), self.worker.hash());
            let report = Report { residual_norm, params_hash, leaves };
            self.place.report(self.worker.transport(), tag, report, Deadline::NEVER)?;
            self.step(notice.step)?;
            self.next = Some(notice.step + 1);
            notice = self.place.next(self.worker.transport(), tag, Deadline::NEVER)?;
            if !notice.is_over && !notice.ranks.contains(&me) {
                // The server may be about to end, with a checkpoint after this step.
                self.write_down(tag.step)?;
                if leaves != Leaves::No {
                    return Ok(End::Interrupted);
                }
                warn!(step = notice.step, "out of the run at step {}; asking to begin again", notice.step);
                return Ok(End::Out);
            }
        }
        Ok(End::Over)
    }

    /// Asks to be let in, and applies the server's answer; `None` if the user wants an end before it comes.
    fn come_in(&mut self) -> Result<Option<Notice>, RemoteError> {
        self.place.ask(self.worker.transport(), Deadline::NEVER)?;
        let mut saying = Saying::new();
        let (notice, state) = loop {
            match self.place.answer(self.worker.transport(), Deadline::after(LOOK_UP)) {
                Err(TransportError::Timeout { .. }) if is_end_wanted() => return Ok(None),
                Err(TransportError::Timeout { .. }) => {
                    let transport = self.worker.transport();
                    saying.waits(|| match transport.arriving(SERVER) {
                        Some((here, all)) => format!("{here} of {all} bytes of the parameters are here"),
                        None => "connected; waiting until the server lets this worker in, between two steps"
                            .to_owned(),
                    });
                }
                answer => break answer?,
            }
        };
        let replica = Replica::from_bytes(state, &self.job.layout)?;
        let before = self.worker.restore(&replica).map_err(ReplicaError::from)?;
        let before = self.has_params.then_some(before);
        self.has_params = true;
        info!(step = notice.step, "let in for step {}", notice.step);
        match self.worker.recall(notice.step) {
            Recalled::Known => {
                info!(step = notice.step, "the memory is as it was before step {}", notice.step);
                return Ok(Some(notice));
            }
            Recalled::Unknown => self.age(&notice, before.as_deref()),
            Recalled::OfOtherRun => self.forget(&notice),
        }
        self.worker.remember(notice.step, None);
        Ok(Some(notice))
    }

    /// One step. A void step leaves everything as it was; the server says how to continue.
    fn step(&mut self, step: u64) -> Result<(), RemoteError> {
        let done = trace::step(&mut self.trace, &mut self.worker, step)?;
        if !matches!(done, Err(StepError::Exchange(ExchangeError::Transport(_)))) {
            self.worker.remember_if_due(step, false);
            if self.job.is_checkpoint_due(step) {
                self.write_down(step)?;
            }
        }
        match done {
            Ok(record) => {
                #[cfg(feature = "metrics")]
                if let Some(monitor) = monitor() {
                    monitor.step(std::slice::from_ref(&record), self.job.config.workers);
                }
                if !record.contributors.contains(record.rank) {
                    warn!(step, "step {step}: too late; the frame was given back");
                }
                Ok(())
            }
            Err(StepError::Exchange(ExchangeError::NoQuorum { .. })) => {
                #[cfg(feature = "metrics")]
                if let Some(monitor) = monitor() {
                    monitor.void(step);
                }
                warn!(step, "step {step} was void; the frame was given back");
                Ok(())
            }
            Err(StepError::Exchange(ExchangeError::Transport(error))) => Err(error.into()),
            Err(other) => Err(other.into()),
        }
    }

    /// Records the residual after a step.
    fn write_down(&self, step: u64) -> Result<(), RunError> {
        self.keep.as_ref().map_or(Ok(()), |keep| keep.write(self.job, &self.worker, step + 1))
    }

    /// Forgets the residual, which belongs to other parameters than the server's.
    fn forget(&mut self, notice: &Notice) {
        let lost = self.worker.weigh_residual(0.0, None);
        warn!(
            lost_norm = lost,
            "the run had other parameters before step {} when this state was written; \
             the residual, norm {lost:.6}, is lost",
            notice.step
        );
    }

    /// Weighs the residual by how long this worker was away, from when it had the parameters `before`.
    fn age(&mut self, notice: &Notice, before: Option<&[f32]>) {
        let missed = self.next.map_or(0, |next| next.abs_diff(notice.step));
        let lost = self.worker.weigh_residual(residual_weight(missed, self.residual_age), before);
        if missed > 0 {
            warn!(missed, lost_norm = lost, "{missed} steps away; of the residual, norm {lost:.6} is lost");
        }
    }
}
