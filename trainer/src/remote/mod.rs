//! Training over ZeroMQ: a server, which is rank 0 and trains too, and workers that come and go.
//!
//! Both ends are given the same settings of the run, which they compare when they meet: whatever differs is named. The
//! server decides who takes part in which step, see [`gradwire_transports::zmq::roll`].

mod held;
mod join;
mod keep;
mod keys;
mod list;
mod serve;
mod trace;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use gradwire::{Gather, Spec};
use gradwire_transports::exchange::{Route, ServerOptions};
use gradwire_transports::inbox::InboxLimits;
use gradwire_transports::zmq::{Log, Security, Terms, Topology, ZmqError, ZmqLimits, ZmqOptions};
use gradwire_transports::{Rank, TransportError};

pub use self::join::JoinArgs;
pub(crate) use self::join::join;
pub use self::keys::KeygenArgs;
pub(crate) use self::keys::keygen;
pub use self::serve::ServeArgs;
pub(crate) use self::serve::serve;

use crate::agreement::Way;
use crate::checkpoint::{Found, ReplicaError};
use crate::cli::{CHECKPOINT_EVERY, Failure};
use crate::config::{ConfigError, RunConfig, Settings};
use crate::job::{Job, JobError};
use crate::process::interrupt;
use crate::run::RunError;
use crate::step::StepError;

/// Between two looks for a wish to end, while this end waits for others to begin.
const LOOK_UP: Duration = Duration::from_millis(200);
/// The server's rank.
const SERVER: Rank = Rank(0);
/// Settings that say where files are, not what is trained.
const LOCAL_KEYS: [&str; 2] = ["data_dir", "transport"];
/// More than a state says of one tensor besides its name.
const STATE_LINE: usize = 256;
/// More than the bytes of any other header and of the messages around it.
const SLACK: usize = 64 << 10;

/// Why training over the network ended without a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// Keys, lists of peers, sockets, or ends that do not fit together.
    #[error(transparent)]
    Zmq(#[from] ZmqError),
    /// The other end is gone, or something did not come in time.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// A step failed at this end.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The server's state does not fit.
    #[error("the server's state: {0}")]
    State(#[from] ReplicaError),
    /// The run was ended, or what it says cannot be written down.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The file for what every step adds up to.
    #[error("{}: {what}", path.display())]
    Trace {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        what: String,
    },
}

impl RemoteError {
    fn trace(path: &Path, error: &std::io::Error) -> Self {
        Self::Trace { path: path.to_path_buf(), what: error.to_string() }
    }
}

/// What both ends are told about keys.
#[derive(Debug, clap::Args)]
pub struct KeyArgs {
    /// This end's key file, made by `trainer keygen`
    #[arg(long, value_name = "FILE", required_unless_present = "insecure")]
    key: Option<PathBuf>,
    /// Without keys: no encryption, no authentication; on the loopback interface only
    #[arg(long, conflicts_with = "key")]
    insecure: bool,
    /// With --insecure, also on other interfaces: whoever reaches the port can read and change everything
    #[arg(long, requires = "insecure")]
    beyond_loopback: bool,
}

impl KeyArgs {
    fn security(&self) -> Result<Security, ZmqError> {
        match &self.key {
            Some(path) => Ok(Security::Curve(gradwire_transports::zmq::KeyPair::read(path)?)),
            None => Ok(Security::Plain { beyond_loopback: self.beyond_loopback }),
        }
    }
}

/// The configuration of a run over the network: frames go to the server.
fn resolve(mut settings: Settings) -> Result<RunConfig, ConfigError> {
    if let Some(other) = settings.exchange.as_deref().filter(|kind| !["auto", "server"].contains(kind)) {
        let what = format!("exchange = {other}: over the network, frames go through the server");
        return Err(ConfigError::Conflict(what));
    }
    settings.checkpoint_every.get_or_insert(CHECKPOINT_EVERY);
    let [exchange, transport] = ["server", "zmq"].map(|word| Some(word.to_owned()));
    RunConfig::resolve(&Settings { exchange, transport, ..settings })
}

/// What a run was told that goes on with this command.
fn resumed(found: &Found, settings: &Settings, command: &str) -> Result<RunConfig, Failure> {
    let (path, other) = (found.path().display(), found.command());
    if *settings != Settings::default() {
        return Err(Failure::Usage(format!(
            "--resume: the settings of the run are those of {path}; give none"
        )));
    }
    if other != command {
        let wanted = if command == "trainer join" { "the state of a worker" } else { "a run of a server" };
        return Err(Failure::Usage(format!("{path}: not {wanted}; go on with: {other} --resume …")));
    }
    Ok(found.config().clone())
}

fn is_end_wanted() -> bool {
    interrupt::requested().load(Ordering::Relaxed)
}

/// The job with the server's options.
fn prepare(config: RunConfig, options: ServerOptions) -> Result<Job, JobError> {
    let mut job = Job::prepare(config)?;
    job.way = Way::Mean(Route::Server(options));
    job.way.begin(job.spec, job.layout.clone(), job.config.pipeline)?;
    Ok(job)
}

/// A spelling of the downlink.
fn downlink(spelling: Option<&str>) -> Result<Spec, JobError> {
    let Some(spelling) = spelling else { return Ok(ServerOptions::default().downlink) };
    let refused = |what: String| ConfigError::Codec { spelling: spelling.to_owned(), what };
    Ok(Spec::parse(spelling).map_err(|error| refused(error.to_string()))?)
}

/// Everything that must be equal at both ends.
fn terms(job: &Job, downlink: &Spec) -> Terms {
    let terms = Terms::new(&job.layout.as_ref(), &job.spec).with("downlink", downlink);
    let settings = job.config.to_toml();
    let keys = settings.lines().filter_map(|line| line.split_once(" = "));
    let shared = keys.filter(|(key, _)| !LOCAL_KEYS.contains(key));
    shared.fold(terms, |terms, (key, value)| terms.with(key, value.trim_matches('"')))
}

/// Bounds from what codec, downlink and state can make at the most.
fn limits(job: &Job, downlink: &Spec, may_miss: u32) -> ZmqLimits {
    let units: Vec<_> = job.spec.units.units(&job.layout.as_ref()).collect();
    let frame = |spec: &Spec| spec.codec.max_frame_bytes(&units).unwrap_or(usize::MAX);
    // Parameters and at most two slices of the optimizer, each tensor with a line of its own.
    let lines: usize =
        job.layout.tensors().iter().map(|tensor| tensor.as_ref().name.len() + STATE_LINE).sum();
    let state = job.layout.len().saturating_mul(4).saturating_add(lines).saturating_mul(3);
    let names = job.config.workers * 4;
    let longest = [frame(&job.spec), frame(downlink), state].into_iter().max().unwrap_or(0);
    let max_message_bytes = longest.saturating_add(names + SLACK);
    // The answers of all steps that a worker may miss, and one state, wait for it.
    let answers = may_miss as usize + 3;
    // Packets are full but for the last one of each unit.
    let packets = job.spec.packets.map_or(0, |size| 2 * (longest / size.bytes() + units.len()));
    let messages = (16 * answers).saturating_add(packets);
    let outbox = InboxLimits { messages, bytes: max_message_bytes.saturating_mul(answers) };
    let inbox = InboxLimits { messages: 4096, bytes: max_message_bytes };
    let limits = ZmqLimits { inbox, outbox, max_message_bytes, ..ZmqLimits::default() };
    match job.spec.packets {
        // A packet is a chunk, however short it is: more of them fill a link.
        Some(_) => ZmqLimits { chunk_bytes: 64 << 10, window: 256, ..limits },
        None => limits,
    }
}

fn options(
    job: &Job,
    (rank, roster): (Rank, gradwire_transports::zmq::Roster),
    security: Security,
    (downlink, may_miss): (&Spec, u32),
) -> ZmqOptions {
    let topology = Topology::Star { server: SERVER };
    let mut options = ZmqOptions::new(rank, roster, topology, security, terms(job, downlink));
    options.returns = gradwire_transports::zmq::Returns::AtAnyTime;
    options.limits = limits(job, downlink, may_miss);
    options.log = Log::new(|event| eprintln!("trainer: {event}"));
    options
}

/// A number of seconds from the command line.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("'{text}' is not a number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}
