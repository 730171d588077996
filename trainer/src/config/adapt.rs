//! The setting `adapt`: how it is spelled, and which settings it cannot be combined with.

use gradwire::Spec;
use gradwire::registry::CODECS;
use gradwire::state::MemoryChoice;

use super::check::refuse;
use super::{ConfigError, RunConfig};
use crate::adapt::Adapt;

impl RunConfig {
    /// What sets the density of each step, if it is not the codec.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Adapt`] if the spelling is not one.
    pub fn adapt(&self) -> Result<Option<Adapt>, ConfigError> {
        self.adapt.as_deref().map(parse).transpose()
    }
}

fn parse(spelling: &str) -> Result<Adapt, ConfigError> {
    let refused = |what: String| ConfigError::Adapt { spelling: spelling.replace(['\n', '\r'], " "), what };
    spelling.parse().map_err(refused)
}

/// The spelling with every key.
pub(super) fn canonical_adapt(spelling: &str) -> Result<String, ConfigError> {
    Ok(parse(spelling)?.to_string())
}

/// The names of codecs that have a density.
fn with_density() -> Vec<&'static str> {
    let has = |example: &&str| Spec::parse(example).is_ok_and(|spec| spec.codec.density().is_some());
    let entries = CODECS.iter().filter(|entry| entry.examples.iter().any(has));
    entries.flat_map(|entry| entry.names).map(|(name, _)| *name).collect()
}

/// Refuses settings that a changing density cannot be combined with.
pub(super) fn adapt_conflicts(config: &RunConfig) -> Result<(), ConfigError> {
    let (Some(adapt), spec, codec) = (config.adapt()?, config.spec()?, &config.codec) else { return Ok(()) };
    refuse(
        config.transport == "zmq",
        "adapt with transport = zmq: workers that come and go have not seen the steps that decide; use local or mpi",
    )?;
    refuse(
        spec.packets.is_some(),
        format!(
            "adapt with codec = {codec}: packets may be lost, and what decides may not; leave out max_packet_bytes"
        ),
    )?;
    refuse(
        spec.codec.density().is_none(),
        format!(
            "adapt with codec = {codec}: it has no density; those that have one: {}",
            with_density().join(", ")
        ),
    )?;
    match adapt {
        Adapt::Gravac(_) => gravac_conflicts(codec, &spec),
        Adapt::Accordion(_) => refuse(
            config.schedule == "cosine",
            "adapt = accordion with schedule = cosine: the rate falls at every step, so every step would be critical; use constant or step",
        ),
        _ => Ok(()),
    }
}

/// GraVAC measures gains of residual + gradient, so the codec's choice may depend on nothing else.
fn gravac_conflicts(codec: &str, spec: &Spec) -> Result<(), ConfigError> {
    refuse(
        spec.memory == MemoryChoice::None,
        format!(
            "adapt = gravac with codec = {codec}: without a memory, what is not sent is lost; use memory=ef"
        ),
    )?;
    refuse(
        spec.codec.capabilities().adapts,
        format!("adapt = gravac with codec = {codec}: the codec adapts its own thresholds from step to step"),
    )
}

/// A note that the codec's own density and warm-up are not used, if `adapt` sets the density.
pub(super) fn adapt_note(config: &RunConfig, spec: &Spec) -> Option<String> {
    let adapt = config.adapt.as_ref()?;
    let density = spec.codec.density()?;
    let unused = match spec.warmup {
        0 => format!("density {density} is not used"),
        warmup => format!("density {density} and warmup {warmup} are not used"),
    };
    Some(format!("adapt = {adapt}: sets the density of every step; the codec's {unused}"))
}
