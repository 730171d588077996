//! A configuration as a file, beside another one, and the files that it names.

use std::path::PathBuf;

use super::{ConfigError, RunConfig};
use crate::adapt::Adapt;

impl RunConfig {
    /// The files that a run reads, as far as they are named: those in a folder of data are not.
    pub fn inputs(&self) -> Vec<PathBuf> {
        let log = match &self.adapt {
            Some(Adapt::Replay(path)) if path.is_dir() => Some(path.join("metrics.jsonl")),
            Some(Adapt::Replay(path)) => Some(path.clone()),
            _ => None,
        };
        log.into_iter().chain(self.data_dir.clone()).collect()
    }

    /// The content of `config.toml`.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Conflict`] for a value that TOML does not have, with its key.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        let refused = |what: String| ConfigError::Conflict(what);
        let values = serde_json::to_value(self).map_err(|error| refused(error.to_string()))?;
        let mut keys = values.as_object().into_iter().flatten();
        if let Some((key, value)) = keys.find(|(_, value)| value.as_u64() > Some(i64::MAX as u64)) {
            return Err(refused(format!("{key} = {value}: expected at most {}", i64::MAX)));
        }
        toml::to_string(self)
            .map_err(|error| refused(format!("the settings cannot be written down: {error}")))
    }

    /// The keys in which this configuration differs from another one: `lr = 0.1 instead of 0.3`.
    pub(crate) fn differences(&self, other: &Self) -> Result<String, ConfigError> {
        let table = |config: &Self| {
            let read = config.to_toml()?.parse::<toml::Table>();
            read.map_err(|error| ConfigError::Conflict(error.message().to_owned()))
        };
        let (own, others) = (table(self)?, table(other)?);
        let mut keys: Vec<&String> = own.keys().chain(others.keys()).collect();
        keys.sort_unstable();
        keys.dedup();
        let differ = keys.into_iter().filter_map(|key| match (own.get(key), others.get(key)) {
            (own, other) if own == other => None,
            (Some(own), Some(other)) => Some(format!("{key} = {own} instead of {other}")),
            (Some(own), None) => Some(format!("{key} = {own}, which was not set")),
            (None, other) => other.map(|other| format!("{key} is not set, and was {other}")),
        });
        Ok(differ.collect::<Vec<_>>().join(", "))
    }
}
