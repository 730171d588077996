//! The codec of a run.

use std::fmt;

use gradwire::{Codec, Spec};
use serde::{Serialize, Serializer};

use super::error::ConfigError;
use super::link_rate::{spell_index, with_index};
use crate::nearest::spec_text;

/// The codec of a run; with rules, that of the last one, which is for all tensors that no other fits. It
/// prints as the library spells it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunCodec {
    /// The codec with its memory and units.
    pub spec: Spec,
    /// Beside a link rate, which would choose another one: `index=auto` was asked for.
    is_auto_named: bool,
}

impl RunCodec {
    /// Reads a spelling.
    pub(super) fn parse(spelling: &str, has_link: bool) -> Result<Self, ConfigError> {
        let refused = |what| ConfigError::Codec { spelling: spelling.replace(['\n', '\r'], " "), what };
        let spec = Spec::parse(spelling).map_err(|error| refused(spec_text(&error)))?;
        let is_auto_named = has_link && !is_open(spelling) && is_open(&spec.to_string());
        Ok(Self { spec, is_auto_named })
    }

    /// Whether the spelling leaves the index coder to the link rate.
    pub(super) fn leaves_index_open(&self) -> bool {
        !self.is_auto_named && is_open(&self.spec.to_string())
    }

    /// Whether neighbours exchange models.
    pub(crate) fn is_gossip(&self) -> bool {
        matches!(self.spec.codec, Codec::Gossip(_))
    }

    /// Whether whole gradients are sent as they are.
    pub(crate) fn is_dense(&self) -> bool {
        self.spec == Spec::new(Codec::NONE)
    }
}

fn is_open(spelling: &str) -> bool {
    with_index(spelling, "auto").is_some()
}

impl From<Spec> for RunCodec {
    fn from(spec: Spec) -> Self {
        Self { spec, is_auto_named: false }
    }
}

impl fmt::Display for RunCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_auto_named {
            true => f.write_str(&spell_index(&self.spec.to_string(), "auto")),
            false => self.spec.fmt(f),
        }
    }
}

impl Serialize for RunCodec {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}
