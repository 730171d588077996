//! The setting `adapt`: how it is spelled, and which settings it cannot be combined with.

use std::fmt::Display;

use gradwire::registry::codecs;
use gradwire::rules::{Rule, Rules};
use gradwire::state::MemoryChoice;
use gradwire::{Density, Gather, Selection, Spec};

use super::check::refuse;
use super::{ConfigError, RunConfig, ScheduleKind, TransportKind};
use crate::adapt::{AccordionSettings, Adapt, By, Level};

/// A codec with what sets its density, as both are given to a comparison.
pub(crate) fn adapted(codec: impl Display, adapt: Option<impl Display>) -> String {
    codec.to_string() + &adapt.map(|adapt| format!(" adapt={adapt}")).unwrap_or_default()
}

/// Reads the spelling, for a codec.
pub(super) fn read(spelling: &str, spec: &Spec) -> Result<Adapt, ConfigError> {
    let refused = |what: String| ConfigError::Adapt { spelling: spelling.replace(['\n', '\r'], " "), what };
    Adapt::read(spelling, spec).map_err(refused)
}

/// The names of codecs whose density it sets, as they are without more keys than they need.
fn with_density(adapt: &Adapt) -> Vec<&'static str> {
    let is_refused = |spec: &Spec| matches!(adapt, Adapt::Gravac(_)) && gravac_conflicts(spec).is_err();
    let has = |spec: Spec| spec.codec.density().is_some() && !is_refused(&spec);
    let entries = codecs()
        .filter(|entry| entry.examples.first().is_some_and(|plain| Spec::parse(plain).is_ok_and(has)));
    entries.flat_map(|entry| entry.names).map(|(name, _)| *name).collect()
}

/// Refuses settings that a changing density cannot be combined with. With rules, it changes that of every
/// codec that has one.
pub(super) fn adapt_conflicts(config: &RunConfig) -> Result<(), ConfigError> {
    let Some(adapt) = &config.adapt else { return Ok(()) };
    refuse(
        config.transport == TransportKind::Zmq,
        "adapt with transport = zmq: workers that come and go have not seen the steps that decide; use local or mpi",
    )?;
    let specs = config.specs();
    level_conflicts(adapt, &specs)?;
    refuse(
        matches!(adapt, Adapt::Layers(_)) && specs.len() > 1,
        "adapt = layers with rules: both go by the names of tensors; spell the density in each rule",
    )?;
    refuse(
        matches!(adapt, Adapt::Accordion(_)) && config.schedule == ScheduleKind::Cosine,
        "adapt = accordion with schedule = cosine: the rate falls at every step, so every step would be critical; use constant or step",
    )?;
    // A density of each unit is no matter of a codec of another crate, whether it has one or not.
    let by_unit = matches!(adapt, Adapt::Accordion(AccordionSettings { by: By::Layer, .. }));
    let matters = |spec: &&Spec| is_set(spec) || by_unit && spec.codec.parser().is_some();
    specs.iter().filter(matters).try_for_each(|spec| codec_conflicts(adapt, spec))
}

/// Whether the codec has a level that is set.
fn is_set(spec: &Spec) -> bool {
    spec.codec.density().is_some() || spec.codec.rank().is_some()
}

/// The first codec that has a level which is set, or the last of all.
pub(crate) fn set_first(rules: &Rules) -> Spec {
    *rules.rules().iter().map(Rule::spec).find(|spec| is_set(spec)).unwrap_or(rules.others())
}

fn codec_conflicts(adapt: &Adapt, spec: &Spec) -> Result<(), ConfigError> {
    match adapt {
        Adapt::Gravac(_) => gravac_conflicts(spec),
        Adapt::Layers(list) => {
            refuse(
                !spec.units.per_tensor,
                format!("adapt = layers with codec = {spec}: all tensors are one unit; use unit=tensor"),
            )?;
            unit_conflicts(list.iter().map(|(_, density)| *density), spec)
        }
        Adapt::Accordion(settings) => by_layer_conflicts(settings, spec),
        _ => Ok(()),
    }
}

/// Refuses codecs of which none has what `adapt` sets, and packets.
fn level_conflicts(adapt: &Adapt, specs: &[Spec]) -> Result<(), ConfigError> {
    let known = with_density(adapt).join(", ");
    let [spec] = specs else {
        return refuse(
            !specs.iter().any(is_set),
            format!("adapt with rules: no codec of theirs has a density; those that have one: {known}"),
        );
    };
    refuse(
        spec.packets.is_some(),
        format!(
            "adapt with codec = {spec}: packets may be lost, and what decides may not; leave out max_packet_bytes"
        ),
    )?;
    if spec.codec.rank().is_some() {
        return refuse(
            !matches!(adapt, Adapt::Accordion(_) | Adapt::Replay(_)),
            format!(
                "adapt with codec = {spec}: it has a rank and no density; use accordion, which sets the rank, or one of {known}"
            ),
        );
    }
    refuse(
        !is_set(spec),
        format!("adapt with codec = {spec}: it has no density; those that have one: {known}"),
    )
}

/// Refuses regimes by layer where layers cannot be told apart.
fn by_layer_conflicts(settings: &AccordionSettings, spec: &Spec) -> Result<(), ConfigError> {
    if settings.by == By::Model {
        return Ok(());
    }
    refuse(
        !spec.units.per_tensor,
        format!(
            "adapt = accordion, by=layer with codec = {spec}: all tensors are one unit; use unit=tensor, or by=model"
        ),
    )?;
    let densities = [settings.low, settings.high].into_iter().filter_map(|level| match level {
        Level::Density(density) => Some(density),
        Level::Rank(_) => None,
    });
    unit_conflicts(densities, spec)
}

/// A codec of another crate is told one density. `redsync` never sends a whole unit, and inside of its frames
/// no other codec can take its place.
fn unit_conflicts(mut densities: impl Iterator<Item = Density>, spec: &Spec) -> Result<(), ConfigError> {
    refuse(
        spec.codec.parser().is_some(),
        format!("adapt with codec = {spec}: a codec of another crate has one density for all tensors"),
    )?;
    refuse(
        spec.codec.name() == "redsync" && densities.any(|density| density.fraction() == 1.0),
        format!(
            "adapt with codec = {spec}: its threshold lies above the mean of a tensor, so none is sent at density 1; use topk, dense_1d or dense_below"
        ),
    )
}

/// GraVAC measures gains of residual + gradient at two densities, so the codec's choice may depend on nothing
/// else.
fn gravac_conflicts(spec: &Spec) -> Result<(), ConfigError> {
    refuse(
        spec.memory == MemoryChoice::None,
        format!(
            "adapt = gravac with codec = {spec}: without a memory, what is not sent is lost; use memory=ef"
        ),
    )?;
    refuse(
        spec.codec.parser().is_some(),
        format!(
            "adapt = gravac with codec = {spec}: it needs gains, which codecs of other crates do not have"
        ),
    )?;
    let why = match spec.codec.capabilities().adapts {
        true => "the codec adapts its own thresholds from step to step",
        false => "its entries cannot be chosen at several densities at once",
    };
    refuse(!Selection::fits(&spec.codec), format!("adapt = gravac with codec = {spec}: {why}"))
}

/// A note that the codec's own density and warm-up are not used, if `adapt` sets the density.
pub(super) fn adapt_note(config: &RunConfig) -> Option<String> {
    let (adapt, spec) = (config.adapt.as_ref()?, &config.codec.spec);
    if config.specs().len() > 1 {
        return Some(format!(
            "adapt = {adapt}: sets the density of every step for every codec that has one; those of the rules, and warm-ups, are not used"
        ));
    }
    if let Some(rank) = spec.codec.rank() {
        return Some(format!(
            "adapt = {adapt}: sets the rank of every step; the codec's rank {rank} is not used"
        ));
    }
    let density = spec.codec.density()?;
    let unused = match spec.warmup {
        0 => format!("density {density} is not used"),
        warmup => format!("density {density} and warmup {warmup} are not used"),
    };
    Some(format!("adapt = {adapt}: sets the density of every step; the codec's {unused}"))
}
