//! `trainer serve`: the server of a run, which trains as rank 0.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gradwire_transports::exchange::{ExchangeError, ServerOptions};
use gradwire_transports::zmq::roll::{Change, Rules, Server};
use gradwire_transports::zmq::{Bound, Entry, Roster, Security, ZmqTransport};
use gradwire_transports::{Deadline, Rank, Tag, Transport, TransportError};
use tracing::{info, warn};

use super::args::KeyArgs;
use super::begin::BeginArgs;
use super::delayed::Delayed;
use super::job::{downlink, prepare, resolve};
use super::list::List;
use super::options::{SERVER, options};
use super::trace::{self, Trace, TraceArgs};
use super::waiting::farewell;
use crate::checkpoint::{Checkpoint, Found};
use crate::command::{
    Again, Failure, Output, RemoteError, create_folder, done, explained, reopen, report_run,
};
use crate::config::{ConfigError, RunConfig, Settings};
use crate::data::Part;
use crate::job::{Job, JobError};
use crate::log;
use crate::model::eval::Evaluation;
use crate::network::{LOOK_UP, Saying, is_end_wanted, seconds};
use crate::process::interrupt;
use crate::range::{RangeError, require};
use crate::record::folder::Folder;
#[cfg(feature = "metrics")]
use crate::record::monitor::monitor;
use crate::record::{StepRecord, Sums};
use crate::run::collect::Collected;
use crate::run::in_folder::{go_on_writing, write_down};
use crate::run::{Final, Observer, Outcome, RunError};
use crate::step::{StepError, Worker};

/// How long the notices and states of a step may wait for room in the queues. A worker whose queue stays full
/// is noticed when the next step closes.
const QUEUED_WITHIN: Duration = Duration::from_secs(30);

/// What the server is told.
#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    /// Address to listen on. With a port of * the system chooses one
    #[arg(long, value_name = "tcp://HOST:PORT", default_value = "tcp://127.0.0.1:5555")]
    listen: String,
    /// File that lists the workers, one a line: rank, from 1, and public key. Or the .pub files that keygen
    /// made, one after the other, for ranks 1, 2, …. The server reads the file again when it changes: a
    /// worker that is no longer listed is shut out, and one with a new key, or listed again, may come in
    #[arg(long, value_name = "FILE", required_unless_present = "insecure")]
    peers: Option<PathBuf>,
    #[command(flatten)]
    keys: KeyArgs,
    #[command(flatten)]
    trace: TraceArgs,
    /// Fewest frames that make a step, the server's own included. With fewer the step is void [default: all]
    #[arg(long, value_name = "N")]
    quorum: Option<usize>,
    /// Seconds to wait for the frames of a step, from when the workers can have the mean of the step before,
    /// at most twice as long. The step then closes with the frames that arrived [default: no limit while
    /// their senders live]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    patience: Option<Duration>,
    /// Steps in a row that a worker may miss. After more it must begin again with the server's parameters
    #[arg(long, value_name = "N", default_value_t = 3)]
    may_miss: u32,
    /// Refused frames in a row that a worker may send. With the next one it is shut out of the run
    #[arg(long, value_name = "N", default_value_t = 2)]
    may_spoil: u32,
    #[command(flatten)]
    begin: BeginArgs,
    #[command(flatten)]
    output: Output,
    /// Scale down a frame whose norm exceeds this multiple of the running median of all norms. The rest of
    /// the frame is lost [default: no cap]
    #[arg(long, value_name = "MULTIPLE")]
    norm_cap: Option<f32>,
    /// Seconds to wait for a quorum of workers
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "3600")]
    wait: Duration,
    /// Steps between two lines of progress
    #[arg(long, value_name = "N", default_value_t = 50)]
    report_every: u64,
}

/// The run as the server sees it.
struct Run<'a> {
    job: &'a Job,
    worker: Worker<'a, ZmqTransport>,
    roll: Server,
    trace: Option<Trace>,
    /// The list of peers, if there is one.
    list: Option<List>,
    /// Members with whom a step may begin.
    quorum: usize,
    patience: Option<Duration>,
    wait: Duration,
    /// Where workers find it.
    endpoint: String,
    report_every: u64,
    collected: Collected,
    observer: Delayed<'a>,
}

/// Serves one run to its end, with settings that may be from a file.
pub(crate) fn serve(
    args: &ServeArgs,
    (settings, told): (Settings, Option<&Path>),
    again: &Again,
    out: &mut impl Write,
) -> Result<(), Failure> {
    args.trace.ensure_apart(&[told, args.keys.file(), args.peers.as_deref()])?;
    let security = args.keys.security().map_err(RemoteError::from)?;
    // First, so that no change of the file is missed.
    let list = args.peers.as_deref().filter(|_| !args.keys.insecure).map(List::new);
    let listed = args.peers.as_deref().map(Roster::read).transpose().map_err(RemoteError::from)?;
    let given = || begun(settings.clone(), listed.as_ref());
    let (found, config) = match args.begin.find(&settings, given, "serve")? {
        Some(known) => known,
        None => return Ok(writeln!(out, "{}", done(args.begin.folder()))?),
    };
    let workers = config.workers;
    let rules = rules(args, workers)?;
    let downlink = downlink(&config)?;
    let ServeArgs { patience, norm_cap, .. } = *args;
    let quorum = rules.quorum;
    let server = ServerOptions { patience, downlink, quorum, norm_cap, ..ServerOptions::default() };
    let job = prepare(config, server)?;
    let run = found.as_ref().and_then(Found::run_folder).map(Path::to_path_buf);
    let checkpoint = found.map(|found| found.read_all(&job.layout)).transpose().map_err(JobError::from)?;

    let roster = roster(listed.unwrap_or_default(), &args.listen, &security, workers)?;
    let options = options(&job, (SERVER, roster), security, (&downlink, args.may_miss));
    let per_peer = options.limits.bytes_per_peer();
    let bound = Bound::new(options).map_err(RemoteError::from)?;
    let folder = match (&checkpoint, run) {
        (Some(checkpoint), Some(run)) => reopen(&run, &job, checkpoint)?,
        _ => {
            let read = [told, args.keys.file(), args.peers.as_deref()];
            create_folder(&job, &args.begin.output(&args.output), &read)?
        }
    };
    let again = listening_again(again, &bound, &args.listen);
    let endpoint = bound.endpoint().unwrap_or_default().to_owned();
    announce(&endpoint, per_peer, out)?;
    interrupt::listen()?;
    let transport = bound.join(Deadline::now()).map_err(RemoteError::from)?;
    let mut tested = None;
    let serve = |start: Option<(&Checkpoint, Sums)>, observer: &mut dyn Observer| {
        let first = start.as_ref().map_or(0, |(checkpoint, _)| checkpoint.steps);
        let mut run = Run::new(&job, (transport, endpoint), (rules, list, args), start, observer)?;
        run.steps(first, out)?;
        let (outcome, evaluation) = run.end()?;
        tested = Some(evaluation);
        Ok(outcome)
    };
    let outcome = in_folder(&job, &folder, checkpoint.as_ref(), &again, serve)?;
    present(&job, outcome, tested, &folder, out)
}

/// Which workers must be there, and what a worker may do before it is out.
fn rules(args: &ServeArgs, workers: usize) -> Result<Rules, RangeError> {
    let quorum = args.quorum.unwrap_or(workers);
    require((1..=workers).contains(&quorum), "quorum", quorum, format!("1 to {workers}"))?;
    Ok(Rules { quorum, may_miss: args.may_miss, may_spoil: args.may_spoil })
}

/// The command that continues, at the address at which workers have found this server.
fn listening_again(again: &Again, bound: &Bound, listen: &str) -> Again {
    match bound.endpoint() {
        Some(chosen) if listen.ends_with(":*") => again.clone().with("listen", chosen),
        _ => again.clone(),
    }
}

/// Says where workers find this server, and what each of them may cost it.
fn announce(endpoint: &str, bytes_per_peer: usize, out: &mut impl Write) -> Result<(), Failure> {
    let megabytes = bytes_per_peer as f64 / 1e6;
    let line = format!("listening at {endpoint}, at most {megabytes:.1} MB for each worker");
    if !log::is_plain() {
        info!(endpoint, "{line}");
        return Ok(());
    }
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Serves, with every step written down, from the beginning or from a checkpoint of a run into the same
/// folder.
fn in_folder(
    job: &Job,
    folder: &Folder,
    checkpoint: Option<&Checkpoint>,
    again: &Again,
    serve: impl FnOnce(Option<(&Checkpoint, Sums)>, &mut dyn Observer) -> Result<Outcome, RemoteError>,
) -> Result<Outcome, Failure> {
    let outcome = match checkpoint {
        Some(checkpoint) => {
            go_on_writing(job, folder, checkpoint, "", 0, |(checkpoint, before), observer| {
                info!(step = checkpoint.steps, "continuing at step {} of {}", checkpoint.steps, job.steps);
                let sums = before.iter().collect();
                // From here on the run needs no memory for the steps that it has done.
                drop(before);
                serve(Some((checkpoint, sums)), observer)
            })
        }
        None => write_down(job, folder, "", 0, |observer| serve(None, observer)),
    };
    match outcome {
        Ok(outcome) => Ok(outcome),
        Err(RemoteError::Run(error)) => Err(explained(error, folder, again)),
        Err(RemoteError::NobodyCame { why, steps }) => {
            Err(Failure::Stopped { why, steps, command: again.from(folder.path()) })
        }
        Err(other) => Err(other.into()),
    }
}

/// Table and report of the run, and how good its model is.
fn present(
    job: &Job,
    outcome: Outcome,
    tested: Option<Evaluation>,
    folder: &Folder,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let hash = outcome.summary.params_hash.clone();
    report_run(job, outcome, folder, out)?;
    if let Some(tested) = tested {
        writeln!(out, "test accuracy {:.4}, loss {:.4}", tested.accuracy(), tested.loss())?;
    }
    writeln!(out, "parameters: {hash}")?;
    Ok(writeln!(out, "Results and report: {}", folder.file("report.html").display())?)
}

/// The configuration of a new run.
fn begun(mut settings: Settings, listed: Option<&Roster>) -> Result<RunConfig, ConfigError> {
    if let Some(listed) = listed {
        settings.workers.get_or_insert(1 + listed.ranks().iter().filter(|&rank| rank != SERVER).count());
    }
    resolve(settings)
}

/// The server and workers of consecutive ranks.
fn roster(listed: Roster, listen: &str, security: &Security, workers: usize) -> Result<Roster, JobError> {
    let own = match security {
        Security::Curve(pair) => Some(pair.public()),
        Security::Plain { .. } => None,
    };
    let is_plain = own.is_none();
    let of_server = own.and_then(|own| listed.rank_of(&own)).filter(|&rank| rank != SERVER);
    if let Some(rank) = of_server {
        let what = format!("list of peers: {rank} has the server's own key; list those of the workers");
        return Err(ConfigError::Conflict(what).into());
    }
    let roster = listed.with(SERVER, Entry { key: own, endpoint: Some(listen.to_owned()) });
    let ranks = (1..workers as u32).map(Rank);
    let roster = if is_plain {
        ranks.fold(roster, |roster, rank| roster.with(rank, Entry::default()))
    } else {
        roster
    };
    let is_whole = roster.ranks().iter().eq((0..workers as u32).map(Rank));
    if !is_whole {
        let what = format!(
            "workers = {workers}: the list of peers must have ranks 1 to {}, and no others",
            workers - 1
        );
        return Err(ConfigError::Conflict(what).into());
    }
    Ok(roster)
}

impl<'a> Run<'a> {
    fn new(
        job: &'a Job,
        (mut transport, endpoint): (ZmqTransport, String),
        (rules, list, args): (Rules, Option<List>, &ServeArgs),
        start: Option<(&Checkpoint, Sums)>,
        observer: &'a mut dyn Observer,
    ) -> Result<Self, RemoteError> {
        let (checkpoint, sums) = start.unzip();
        let collected = Collected::summing(Instant::now(), checkpoint, sums.unwrap_or_default());
        let roll = Server::new(&mut transport, rules)?;
        let model = job.build_model().map_err(|error| RunError::Job(error.into()))?;
        let worker = Worker::new(job, transport, model).map_err(RunError::Job)?;
        let mut worker = worker.heeding(Some(interrupt::requested()));
        if let Some(checkpoint) = checkpoint {
            worker.go_on_from(checkpoint).map_err(|error| RunError::Job(error.into()))?;
        }
        let (trace, wait, report_every) = (args.trace.open()?, args.wait, args.report_every);
        let patience = args.patience;
        let (observer, quorum) = (Delayed::new(observer), rules.quorum);
        Ok(Self {
            job,
            worker,
            roll,
            trace,
            list,
            quorum,
            patience,
            wait,
            endpoint,
            report_every,
            collected,
            observer,
        })
    }

    fn steps(&mut self, first: u64, out: &mut impl Write) -> Result<(), RemoteError> {
        let mut step = first;
        while step < self.job.steps {
            #[cfg(feature = "metrics")]
            let waiting = Instant::now();
            self.wait_for_quorum(step)?;
            #[cfg(feature = "metrics")]
            if let Some(monitor) = monitor() {
                monitor.waited(waiting.elapsed());
            }
            self.set_quorum();
            let tag = Tag::new(self.worker.transport().membership().epoch, step);
            if self.roll.members() < self.quorum {
                // Too few to train with: a worker that asks is let in before the step.
                self.close((tag, &[]), (step, false))?;
                continue;
            }
            let is_end = is_end_wanted();
            let hash = self.worker.hash();
            self.set_patience();
            let mut record = self.step(step)?;
            self.hear(tag, hash)?;
            if is_end {
                // When workers ask again, their residual is the one after this step.
                self.roll.dismiss("the server ends, and may continue later");
            }
            let is_last = step + 1 == self.job.steps;
            self.close((tag, record.contributors.as_slice()), (step + 1, is_last))?;
            if self.worker.evaluates(step) {
                record.evaluation = self.worker.evaluate(Part::Valid, true)?.complete();
            }
            if is_end || self.job.is_checkpoint_due(step) {
                record.snapshot = Some(self.worker.snapshot());
            }
            if self.job.is_due(self.report_every, step) {
                self.tell(&record, out)?;
            }
            self.collected.take(self.job, vec![record], &mut self.observer)?;
            if is_end || is_last {
                self.observer.write().map_err(RunError::Observer)?;
            }
            step += 1;
            if is_end && !is_last {
                return Err(RunError::Interrupted { steps: step }.into());
            }
        }
        Ok(())
    }

    /// Waits until a step can begin. If the user ends the run meanwhile, or too few workers come, it
    /// continues from here.
    fn wait_for_quorum(&mut self, step: u64) -> Result<(), RemoteError> {
        let (end, mut saying) = (Deadline::after(self.wait), Saying::new());
        loop {
            self.list.iter_mut().for_each(|list| list.look(self.worker.transport()));
            let look_up = Deadline::after(LOOK_UP).earlier(end);
            match self.roll.wait_for_quorum(self.worker.transport(), look_up) {
                Err(TransportError::Timeout { .. }) if is_end_wanted() => {
                    self.write_down(step)?;
                    return Err(RunError::Interrupted { steps: step }.into());
                }
                Err(TransportError::Timeout { .. }) if end.has_passed() => {
                    self.write_down(step)?;
                    return Err(RemoteError::NobodyCame { why: self.nobody_came(step), steps: step });
                }
                Err(TransportError::Timeout { .. }) => {
                    saying.waits(|| self.roll.awaited(self.worker.transport(), step));
                }
                waited => return Ok(waited?),
            }
        }
    }

    /// Writes the run down as it is before a step.
    fn write_down(&mut self, step: u64) -> Result<(), RunError> {
        let checkpoint = self.collected.checkpoint(self.job, step, vec![self.worker.snapshot()]);
        let written = self.observer.checkpoint(&checkpoint).and_then(|()| self.observer.write());
        written.map_err(RunError::Observer)
    }

    fn nobody_came(&mut self, step: u64) -> String {
        format!(
            "gave up {} for {} s (--wait); this server listens at {}: start the missing workers (trainer join), or \
             let fewer begin (--quorum)",
            self.roll.awaited(self.worker.transport(), step),
            self.wait.as_secs_f64(),
            self.endpoint
        )
    }

    /// Does not wait for workers that cannot come in any more.
    fn set_quorum(&mut self) {
        let quorum = self.roll.quorum();
        if quorum != self.quorum {
            warn!(
                quorum,
                "the quorum is now {quorum}: {} ranks can take part",
                1 + self.worker.transport().admitted()
            );
        }
        self.quorum = quorum;
        self.worker.set_quorum(quorum);
    }

    /// Begins to count the patience when the slowest worker can have what is on its way to it, which it needs
    /// before it can answer; at most as long again.
    fn set_patience(&mut self) {
        if let Some(patience) = self.patience {
            let on_the_way = self.worker.transport().delivery_time().min(patience);
            self.worker.set_patience(patience.saturating_add(on_the_way));
        }
    }

    /// Takes the reports of the members in a step. For a worker that was gone and is back, corrects how much
    /// is lost.
    fn hear(&mut self, tag: Tag, hash: u64) -> Result<(), RemoteError> {
        for (rank, norm) in self.roll.reports(self.worker.transport(), tag, hash)? {
            #[cfg(feature = "metrics")]
            if let Some(monitor) = monitor() {
                monitor.residual(rank, norm);
            }
            if let Some(lost) = self.collected.hear_of(rank, norm) {
                warn!(
                    step = tag.step,
                    rank = rank.0,
                    lost_norm = lost,
                    "step {}: {rank} is back with a residual of norm {norm:.6}; of the residual that it had, norm {lost:.6} is lost",
                    tag.step
                );
            }
        }
        Ok(())
    }

    /// Names the frames that were refused.
    fn refuse(&mut self, step: u64, refused: &[(Rank, gradwire::DecodeError)], contributors: &[Rank]) {
        for (rank, error) in refused {
            warn!(step, rank = rank.0, "step {step}: frame of {rank} refused: {error}");
            #[cfg(feature = "metrics")]
            if let Some(monitor) = monitor() {
                monitor.frame_refused(*rank);
            }
            // Of a worker that sends packets, others may be in the mean.
            if !contributors.contains(rank) {
                self.roll.spoiled(*rank, error.to_string());
            }
        }
    }

    /// One step. A void one leaves everything as it was, and says why.
    fn step(&mut self, step: u64) -> Result<StepRecord, RemoteError> {
        let void = match trace::step(&mut self.trace, &mut self.worker, step)? {
            Ok(mut record) => {
                self.refuse(step, &record.frames_refused, record.contributors.as_slice());
                for capped in &record.frames_capped {
                    warn!(step, "step {step}: {capped}");
                }
                // The server receives what workers sent, and the other way round.
                let bytes = record.bytes_up + record.bytes_down;
                (record.bytes_up, record.bytes_down) = (bytes, bytes);
                return Ok(record);
            }
            Err(StepError::Exchange(error @ ExchangeError::NoQuorum { .. })) => {
                if let ExchangeError::NoQuorum { refused, .. } = &error {
                    self.refuse(step, refused, &[]);
                }
                error
            }
            Err(StepError::Exchange(
                error @ (ExchangeError::WrongStep { rank, .. } | ExchangeError::WrongUnits { rank }),
            )) => {
                self.roll.spoiled(rank, error.to_string());
                self.roll.blame(rank, error.to_string());
                error
            }
            Err(other) => return Err(other.into()),
        };
        let mut record = StepRecord::refused(void.to_string());
        record.set_step(SERVER, step, f32::NAN, self.job.lr(step), Duration::ZERO);
        record.hash = Some(self.worker.hash());
        Ok(record)
    }

    fn close(&mut self, closed: (Tag, &[Rank]), next: (u64, bool)) -> Result<(), RemoteError> {
        let state = self.worker.replica().to_bytes(&self.job.layout)?;
        let deadline = Deadline::after(QUEUED_WITHIN);
        let changes: Vec<Change> =
            self.roll.close(self.worker.transport(), closed, next, || state, deadline)?;
        for change in changes {
            match change {
                Change::Joined { .. } => info!(step = next.0, "before step {}: {change}", next.0),
                _ => warn!(step = next.0, "before step {}: {change}", next.0),
            }
            if let Change::Left { rank, lost_norm } = change {
                self.collected.lose(rank, lost_norm);
            }
        }
        Ok(())
    }

    fn tell(&mut self, record: &StepRecord, out: &mut impl Write) -> Result<(), RemoteError> {
        let (step, loss, there) = (record.step + 1, record.loss, record.contributors.len());
        let counters = self.worker.counters();
        let [up, down] = [counters.up, counters.down].map(|way| way.total_bytes() as f64 / 1e6);
        let line = format!(
            "step {step}: loss {loss:.4}, {there} contributors, {down:.2} MB from workers, {up:.2} MB to them"
        );
        if !log::is_plain() {
            info!(step, loss, contributors = there, down_mb = down, up_mb = up, "{line}");
            return Ok(());
        }
        // A reader that went away is no reason to stop a run.
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        Ok(())
    }

    /// What became of the run, and how good its model is.
    fn end(mut self) -> Result<(Outcome, Evaluation), RemoteError> {
        let steps = self.job.steps;
        let measured = self.worker.evaluate(Part::Test, self.job.config.checkpoint_every > 0)?;
        farewell(self.worker.transport());
        let Some(tested) = measured.complete() else { return Err(RunError::Interrupted { steps }.into()) };
        let end = Final { counters: self.worker.counters(), evaluation: Some(tested), best_steps: None };
        Ok((self.collected.outcome(self.job, &[end]), tested))
    }
}
