//! What either end makes of its settings: the configuration of a run over the network, and its job.

use gradwire::{Codec, Spec};
use gradwire_transports::exchange::{Route, ServerOptions};

use crate::agreement::Averaging;
use crate::checkpoint::Found;
use crate::command::{CHECKPOINT_EVERY, Failure};
use crate::config::downlink::read as read_downlink;
use crate::config::{ConfigError, ExchangeKind, RunConfig, Settings, TransportKind};
use crate::job::{Job, JobError};
use crate::process::shell::quoted;
use crate::terminal::program;

/// The configuration of a run over the network: frames go to the server.
pub(super) fn resolve(mut settings: Settings) -> Result<RunConfig, ConfigError> {
    let goes = |kind: &ExchangeKind| matches!(kind, ExchangeKind::Auto | ExchangeKind::Server);
    if let Some(other) = settings.exchange.filter(|kind| !goes(kind)) {
        let what = format!("exchange = {other}: over the network, frames go through the server");
        return Err(ConfigError::Conflict(what));
    }
    settings.checkpoint_every.get_or_insert(CHECKPOINT_EVERY);
    let (exchange, transport) = (Some(ExchangeKind::Server), Some(TransportKind::Zmq));
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
        let wanted = if command == "join" { "the state of a worker" } else { "a run of a server" };
        return Err(Failure::Usage(format!(
            "{path}: not {wanted}; go on with: {} {other} --resume {}, and the options of its process",
            program(),
            quoted(found.run_folder().unwrap_or(found.path()))
        )));
    }
    Ok(found.config().clone())
}

/// The job with the server's options.
pub(super) fn prepare(config: RunConfig, options: ServerOptions) -> Result<Job, JobError> {
    let mut job = Job::prepare(config)?;
    job.way = Averaging::Mean(Route::Server(options));
    job.way.begin(&job.rules, job.layout.clone(), job.config.pipeline)?;
    Ok(job)
}

/// Sends every coordinate of a mean that is not zero, as it is: the bits of a dense mean in fewer bytes,
/// where most coordinates are zero.
const WHAT_IS_NOT_ZERO: &str = "threshold:value=0,memory=none";

/// How means are sent back: as the user says, or as compressed as the frames that came.
pub(super) fn downlink(config: &RunConfig) -> Result<Spec, JobError> {
    let (uplink, all) = (config.codec.spec, config.specs());
    if let Some(downlink) = config.downlink {
        return Ok(downlink);
    }
    if all.iter().any(|spec| !spec.codec.capabilities().has_frames) {
        // The server reduces payloads, and sends back what they become.
        return Ok(ServerOptions::default().downlink);
    }
    if all.iter().any(|spec| spec.codec.density().is_some() || spec.codec.sparse_values().is_some()) {
        return Ok(read_downlink(WHAT_IS_NOT_ZERO)?);
    }
    Ok(match uplink.codec {
        // Values everywhere go back by the codec that they came with. A mean is one frame of one sender.
        Codec::Gather(_) => Spec { packets: None, ..uplink },
        _ => ServerOptions::default().downlink,
    })
}

#[cfg(test)]
mod tests {
    use gradwire::{Decoder, Encoder, Grad, Layout, Limits, Source, StepInput, StepKey};

    use super::*;

    fn default_for(codec: &str) -> Spec {
        let settings = Settings { codec: Some(codec.to_owned()), ..Settings::default() };
        downlink(&resolve(settings).unwrap()).unwrap()
    }

    #[test]
    fn means_of_sparse_frames_go_back_without_loss_in_fewer_bytes() {
        let (spec, layout) = (default_for("topk:density=0.01"), Layout::packed([("a", vec![1000])]).unwrap());
        let mut mean = vec![0.0; 1000];
        for (at, value) in [(3, f32::from_bits(1)), (500, -1e-40), (501, 1.0 / 3.0), (999, -7e37)] {
            mean[at] = value;
        }
        let units: Vec<_> = spec.units.units(&layout.as_ref()).collect();
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        let key = StepKey { seed: 1, step: 2, source: Source::Rank(0) };
        let input = StepInput { key, layout: &layout.as_ref(), units: &units, grad: Grad::F32(&mean) };
        let frame = encoder.encode(&spec.codec, &input, None).unwrap();
        assert!(frame.len() < 100, "{} bytes", frame.len());
        let mut back = vec![0.0; 1000];
        let parsed = decoder.parse(frame, &layout.as_ref(), &Limits::for_layout(&layout.as_ref())).unwrap();
        parsed.add_scaled_to(1.0, &mut back);
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&back), bits(&mean));
    }

    #[test]
    fn means_of_other_frames_go_back_by_their_own_codec_and_none_sends_them_dense() {
        for codec in ["none", "qsgd:bits=4", "bf16", "efsign", "f16:memory=ef"] {
            assert_eq!(default_for(codec), Spec::parse(codec).unwrap());
        }
        assert_eq!(default_for("qsgd:bits=4,max_packet_bytes=512"), Spec::parse("qsgd:bits=4").unwrap());
        assert_eq!(default_for("randomk:density=0.1"), default_for("topk"));
        for codec in ["powersgd:rank=2", "sharedk:density=0.1", "sketch", "maxnorm:bits=4+8"] {
            assert_eq!(default_for(codec), ServerOptions::default().downlink, "{codec}");
        }
        for codec in ["none", "f16", "topk:density=0.5"] {
            let settings = Settings { downlink: Some(codec.to_owned()), ..Settings::default() };
            assert_eq!(downlink(&resolve(settings).unwrap()).unwrap(), Spec::parse(codec).unwrap());
        }
    }
}
