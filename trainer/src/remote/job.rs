//! What either end makes of its settings: the configuration of a run over the network, and its job.

use gradwire::Spec;
use gradwire_transports::exchange::{Route, ServerOptions};

use crate::agreement::Averaging;
use crate::checkpoint::Found;
use crate::command::{CHECKPOINT_EVERY, Failure};
use crate::config::{ConfigError, RunConfig, Settings};
use crate::job::{Job, JobError};

/// The configuration of a run over the network: frames go to the server.
pub(super) fn resolve(mut settings: Settings) -> Result<RunConfig, ConfigError> {
    if let Some(other) = settings.exchange.as_deref().filter(|kind| !["auto", "server"].contains(kind)) {
        let what = format!("exchange = {other}: over the network, frames go through the server");
        return Err(ConfigError::Conflict(what));
    }
    settings.checkpoint_every.get_or_insert(CHECKPOINT_EVERY);
    let [exchange, transport] = ["server", "zmq"].map(|word| Some(word.to_owned()));
    RunConfig::resolve(&Settings { exchange, transport, ..settings })
}

/// The configuration of a run that continues with this command.
pub(super) fn resumed(found: &Found, settings: &Settings, command: &str) -> Result<RunConfig, Failure> {
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

/// The job with the server's options.
pub(super) fn prepare(config: RunConfig, options: ServerOptions) -> Result<Job, JobError> {
    let mut job = Job::prepare(config)?;
    job.way = Averaging::Mean(Route::Server(options));
    job.way.begin(job.spec, job.layout.clone(), job.config.pipeline)?;
    Ok(job)
}

/// A spelling of the downlink.
pub(super) fn downlink(spelling: Option<&str>) -> Result<Spec, JobError> {
    let Some(spelling) = spelling else { return Ok(ServerOptions::default().downlink) };
    let refused = |what: String| ConfigError::Codec { spelling: spelling.to_owned(), what };
    Ok(Spec::parse(spelling).map_err(|error| refused(error.to_string()))?)
}
