//! `trainer serve`: the server of a run, which trains as rank 0.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use gradwire_transports::exchange::{ExchangeError, ServerOptions};
use gradwire_transports::zmq::roll::{Change, Rules, Server};
use gradwire_transports::zmq::{Bound, Entry, Roster, Security, ZmqTransport};
use gradwire_transports::{Deadline, Rank, Tag, Transport};

use super::{KeyArgs, RemoteError, SERVER, downlink, options, prepare, seconds};
use crate::cli::Failure;
use crate::collect::MAX_REFUSED_IN_A_ROW;
use crate::config::{ConfigError, Settings};
use crate::data::Part;
use crate::job::{Job, JobError};
use crate::record::StepRecord;
use crate::step::{StepError, Worker};

/// How long the end of the run waits for workers to take their last message.
const FAREWELL: Duration = Duration::from_secs(30);

/// What the server is told.
#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    /// Where to listen; a port of * is chosen by the system
    #[arg(long, value_name = "tcp://HOST:PORT", default_value = "tcp://127.0.0.1:5555")]
    listen: String,
    /// List of the workers: a line for each, with its rank, from 1, and its public key
    #[arg(long, value_name = "FILE", required_unless_present = "insecure")]
    peers: Option<PathBuf>,
    #[command(flatten)]
    keys: KeyArgs,
    /// Frames, the server's own included, without which a step is void [default: all]
    #[arg(long, value_name = "N")]
    quorum: Option<usize>,
    /// How long to wait for the frames of a step; then it closes with those that are there [default: as long as their senders live]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    patience: Option<Duration>,
    /// Steps in a row that a worker may be late for before it has to begin again with the server's parameters
    #[arg(long, value_name = "N", default_value_t = 3)]
    may_miss: u32,
    /// How the mean is sent back; error feedback, if the codec has it, is kept by the server [default: none, which is dense f32]
    #[arg(long, value_name = "SPEC")]
    downlink: Option<String>,
    /// How long to wait for a quorum of workers
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
    quorum: usize,
    wait: Duration,
    void_in_a_row: u64,
}

/// Serves one run to its end.
pub(crate) fn serve(args: &ServeArgs, mut settings: Settings, out: &mut impl Write) -> Result<(), Failure> {
    let security = args.keys.security().map_err(RemoteError::from)?;
    let listed = args.peers.as_deref().map(Roster::read).transpose().map_err(RemoteError::from)?;
    if let Some(listed) = &listed {
        settings.workers.get_or_insert(1 + listed.ranks().iter().filter(|&rank| rank != SERVER).count());
    }
    let downlink = downlink(args.downlink.as_deref())?;
    let mut server = ServerOptions { patience: args.patience, downlink, ..ServerOptions::default() };
    let mut job = prepare(settings, server.clone())?;
    let workers = job.config.workers;
    server.quorum = args.quorum.unwrap_or(workers);
    crate::range::require(
        (1..=workers).contains(&server.quorum),
        "quorum",
        server.quorum,
        format!("1 to {workers}"),
    )?;
    let quorum = server.quorum;
    job.route = gradwire_transports::exchange::Route::Server(server);

    let roster = roster(listed.unwrap_or_default(), &args.listen, &security, workers)?;
    let options = options(&job, (SERVER, roster), security, (&downlink, args.may_miss));
    let per_peer = options.limits.bytes_per_peer();
    let bound = Bound::new(options).map_err(RemoteError::from)?;
    writeln!(
        out,
        "listening at {}, at most {:.1} MB for each worker",
        bound.endpoint().unwrap_or(""),
        per_peer as f64 / 1e6
    )?;
    out.flush()?;
    let transport = bound.join(Deadline::now()).map_err(RemoteError::from)?;
    let rules = Rules { quorum, may_miss: args.may_miss };
    let mut run = Run::new(&job, transport, rules, args.wait)?;
    run.steps(args.report_every, out)?;
    run.end(out)
}

/// The server and workers of consecutive ranks.
fn roster(listed: Roster, listen: &str, security: &Security, workers: usize) -> Result<Roster, JobError> {
    let own = match security {
        Security::Curve(pair) => Some(pair.public()),
        Security::Plain { .. } => None,
    };
    let is_plain = own.is_none();
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
    fn new(job: &'a Job, mut transport: ZmqTransport, rules: Rules, wait: Duration) -> Result<Self, Failure> {
        let roll = Server::new(&mut transport, rules).map_err(RemoteError::from)?;
        let model = job.build_model().map_err(JobError::from)?;
        let worker = Worker::new(job, transport, model)?;
        Ok(Self { job, worker, roll, quorum: rules.quorum, wait, void_in_a_row: 0 })
    }

    fn steps(&mut self, report_every: u64, out: &mut impl Write) -> Result<(), Failure> {
        let mut step = 0;
        while step < self.job.steps {
            let deadline = Deadline::after(self.wait);
            self.roll.wait_for_quorum(self.worker.transport(), deadline).map_err(RemoteError::from)?;
            let tag = Tag::new(self.worker.transport().membership().epoch, step);
            if self.roll.members() == 1 && self.quorum > 1 {
                // Nobody to train with: whoever asks is let in before the step.
                self.close((tag, &[]), (step, false))?;
                continue;
            }
            let hash = self.worker.hash();
            let record = self.step(step)?;
            self.roll.reports(self.worker.transport(), tag, hash).map_err(RemoteError::from)?;
            let contributors = record.as_ref().map_or(&[][..], |record| record.contributors.as_slice());
            self.close((tag, contributors), (step + 1, step + 1 == self.job.steps))?;
            if let Some(record) = record.filter(|_| self.job.is_due(report_every, step)) {
                self.tell(&record, out)?;
            }
            step += 1;
        }
        Ok(())
    }

    /// One step; none when it was void.
    fn step(&mut self, step: u64) -> Result<Option<StepRecord>, RemoteError> {
        let why = match self.worker.step(step) {
            Ok(StepRecord { refusal: Some(why), .. }) => why,
            Ok(record) => {
                for (rank, error) in &record.frames_refused {
                    eprintln!("trainer: step {step}: frame of {rank} refused: {error}");
                }
                self.void_in_a_row = 0;
                return Ok(Some(record));
            }
            Err(StepError::Exchange(error @ ExchangeError::NoQuorum { .. })) => error.to_string(),
            Err(StepError::Exchange(
                error @ (ExchangeError::WrongStep { rank, .. } | ExchangeError::WrongUnits { rank }),
            )) => {
                self.roll.blame(rank, error.to_string());
                error.to_string()
            }
            Err(other) => return Err(other.into()),
        };
        eprintln!("trainer: step {step} is void: {why}");
        self.void_in_a_row += 1;
        if self.void_in_a_row >= MAX_REFUSED_IN_A_ROW {
            return Err(RemoteError::Ended(format!(
                "step {step}: the {MAX_REFUSED_IN_A_ROW}th in a row was void: {why}"
            )));
        }
        Ok(None)
    }

    fn close(&mut self, closed: (Tag, &[Rank]), next: (u64, bool)) -> Result<(), RemoteError> {
        let state = self.worker.replica().to_bytes(&self.job.layout)?;
        let deadline = Deadline::after(FAREWELL);
        let changes: Vec<Change> =
            self.roll.close(self.worker.transport(), closed, next, || state, deadline)?;
        for change in changes {
            eprintln!("trainer: before step {}: {change}", next.0);
        }
        Ok(())
    }

    fn tell(&mut self, record: &StepRecord, out: &mut impl Write) -> Result<(), Failure> {
        let (step, loss, there) = (record.step + 1, record.loss, record.contributors.len());
        let counters = self.worker.counters();
        let [up, down] = [counters.up, counters.down].map(|way| way.total_bytes() as f64 / 1e6);
        writeln!(
            out,
            "step {step}: loss {loss:.4}, {there} contributors, {down:.2} MB from workers, {up:.2} MB to them"
        )?;
        Ok(out.flush()?)
    }

    fn end(mut self, out: &mut impl Write) -> Result<(), Failure> {
        let tested = self.worker.evaluate(Part::Test).map_err(RemoteError::from)?;
        writeln!(out, "test accuracy {:.4}, loss {:.4}", tested.accuracy(), tested.loss())?;
        writeln!(out, "parameters: {:016x}", self.worker.hash())?;
        out.flush()?;
        // Whoever does not take the last message in time has the parameters of an earlier step.
        if let Err(error) = self.worker.transport().close(Deadline::after(FAREWELL)) {
            eprintln!("trainer: at the end: {error}");
        }
        Ok(())
    }
}
