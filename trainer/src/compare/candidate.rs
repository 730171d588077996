//! What is compared: a codec, and the settings that it does not share with the others.

use gradwire::{Codec, Spec};
use toml::{Table, Value};

use crate::config::{ConfigError, RunConfig, Settings};
use crate::nearest::field_text;
use crate::range::RangeError;

/// Settings that are the same for all: candidates train on the same task, with the same seeds.
const SHARED: [&str; 7] = ["data", "data_dir", "data_crc32", "seed", "transport", "patience", "codec"];

/// The setting whose commas separate its own keys.
pub(super) const ADAPT: &str = "adapt";

/// A codec as the user spelled it, and its own settings.
///
/// # Examples
///
/// ```
/// use gradwire_trainer::compare::Candidate;
///
/// let words = ["none", "dgc:density=0.01", "lr=0.1"].map(str::to_owned);
/// let candidates = Candidate::read(&words)?;
/// assert_eq!(candidates.len(), 2);
/// assert_eq!(candidates[1].own_text(), " lr=0.1");
/// # Ok::<(), gradwire_trainer::config::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The spelling of the codec.
    pub codec: String,
    /// Its own settings, with the keys of a configuration file.
    pub own: Table,
}

impl From<&str> for Candidate {
    fn from(codec: &str) -> Self {
        Self { codec: codec.to_owned(), own: Table::new() }
    }
}

impl Candidate {
    /// Reads the words of the command line: each codec is followed by its own settings, `key=value`.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if a setting has no codec before it, or candidates may not differ in it.
    pub fn read(words: &[String]) -> Result<Vec<Self>, ConfigError> {
        let mut all: Vec<Self> = Vec::new();
        for word in words {
            let Some((key, value)) = as_setting(word) else {
                all.push(word.as_str().into());
                continue;
            };
            let last = all.last_mut().ok_or_else(|| {
                RangeError::new("codec", word, "a codec first, then its own settings, such as lr=0.1")
            })?;
            last.set(key, if key == ADAPT { Value::String(value.to_owned()) } else { parsed(value) })?;
        }
        Ok(all)
    }

    /// Adds a setting of its own.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if candidates may not differ in it, or it was given before.
    pub fn set(&mut self, key: &str, value: Value) -> Result<(), ConfigError> {
        let refused = |why: &str| ConfigError::Conflict(format!("codec = {}, {key}: {why}", self.codec));
        if SHARED.contains(&key) {
            return Err(refused("one value for the whole comparison; give it as an option"));
        }
        if self.own.contains_key(key) {
            return Err(refused("given twice"));
        }
        self.own.insert(key.to_owned(), value);
        Ok(())
    }

    /// Its settings over those that all share. What sets the densities of all others does not apply to
    /// `none`, the dense yardstick.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if a key is unknown, or its value of the wrong type.
    pub fn settings(&self, shared: &Settings) -> Result<Settings, ConfigError> {
        let own: Settings = self.own.clone().try_into().map_err(|error: toml::de::Error| {
            // After the message stands the key, if there is one.
            let text = error.to_string();
            let key = text.rsplit_once("in `").and_then(|(_, key)| key.trim().strip_suffix('`'));
            let what = field_text(&error.message().replace('\n', " "), key);
            ConfigError::Conflict(format!("codec = {}: {what}", self.codec))
        })?;
        let adapt = shared.adapt.clone().filter(|_| !self.is_dense());
        Ok(Settings { codec: Some(self.codec.clone()), ..own.over(Settings { adapt, ..shared.clone() }) })
    }

    /// The complete configuration of its runs.
    ///
    /// # Errors
    ///
    /// As [`Candidate::settings`] and [`RunConfig::resolve`]. If only the shared `adapt` is in the way, the
    /// text says how to give it to other codecs alone.
    pub(super) fn config(&self, shared: &Settings) -> Result<RunConfig, ConfigError> {
        let settings = self.settings(shared)?;
        let is_shared = settings.adapt.is_some() && !self.own.contains_key(ADAPT);
        RunConfig::resolve(&settings).map_err(|error| {
            let without = || RunConfig::resolve(&Settings { adapt: None, ..settings.clone() });
            if !is_shared || without().is_err() {
                return error;
            }
            let advice = "to set the density of some codecs alone, give adapt=… after each of them";
            ConfigError::Conflict(format!("{error}; {advice}"))
        })
    }

    /// Whether it sends whole gradients as they are.
    pub(super) fn is_dense(&self) -> bool {
        Spec::parse(&self.codec).is_ok_and(|spec| spec.codec == Codec::NONE)
    }

    /// Whether it trains for epochs or steps of its own.
    pub(super) fn has_own_length(&self) -> bool {
        ["epochs", "steps"].iter().any(|key| self.own.contains_key(*key))
    }

    /// Its own settings as they follow the codec: ` lr=0.1 momentum=0`.
    pub fn own_text(&self) -> String {
        self.own.iter().map(|(key, value)| format!(" {key}={}", plain(value))).collect()
    }
}

/// Key and value of a setting; `None` for a codec, which has a colon before its own first key.
pub(super) fn as_setting(word: &str) -> Option<(&str, &str)> {
    let (key, value) = word.split_once('=')?;
    (!key.contains(':')).then_some((key, value))
}

/// A value as a configuration file would have it; a word needs no quotes, and values with commas are a list.
pub(super) fn parsed(text: &str) -> Value {
    let one = |text: &str| text.parse::<Value>().unwrap_or_else(|_| Value::String(text.to_owned()));
    if text.contains(',') { Value::Array(text.split(',').map(one).collect()) } else { one(text) }
}

/// As it is given on the command line.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        // TOML writes 1e30 with all its zeros.
        Value::Float(value) if !(1e-4..1e6).contains(&value.abs()) && *value != 0.0 => format!("{value:e}"),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// Refuses a configuration that is there already: the codec is compared as it is spelled canonically, so two
/// spellings of one codec are one.
pub(super) fn refuse_twice(candidates: &[Candidate], configs: &[&RunConfig]) -> Result<(), ConfigError> {
    for (number, config) in configs.iter().enumerate() {
        if configs[..number].contains(config) {
            let codec = &candidates[number].codec;
            let why = format!("codec = {codec}: {} with these settings is compared already", config.codec);
            return Err(ConfigError::Conflict(why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Vec<Candidate>, String> {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        Candidate::read(&words).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_follow_their_codec() {
        let all =
            read(&["none", "dgc:density=0.01", "lr=0.1", "hidden=8,4", "optimizer=sgd", "qsgd", "lr=1e30"])
                .unwrap();
        let texts: Vec<String> = all.iter().map(|one| format!("{}{}", one.codec, one.own_text())).collect();
        assert_eq!(texts, ["none", "dgc:density=0.01 hidden=8,4 lr=0.1 optimizer=sgd", "qsgd lr=1e30"]);
        let shared = Settings { lr: Some(0.5), epochs: Some(3), ..Settings::default() };
        let settings = all[1].settings(&shared).unwrap();
        assert_eq!((settings.lr, settings.hidden, settings.epochs), (Some(0.1), Some(vec![8, 4]), Some(3)));
        assert_eq!(settings.codec.as_deref(), Some("dgc:density=0.01"));
        assert_eq!(all[0].settings(&shared).unwrap().lr, Some(0.5));
    }

    #[test]
    fn a_spelling_with_commas_is_one_value() {
        let all = read(&["topk", "adapt=steps:0=0.1,5=0.01", "lr=0.1,0.2"]).unwrap();
        let adapt = all[0].own["adapt"].as_str();
        assert_eq!((adapt, all[0].own["lr"].is_array()), (Some("steps:0=0.1,5=0.01"), true));
    }

    #[test]
    fn what_sets_the_densities_of_all_leaves_none_dense_and_names_the_others_without_a_density() {
        let shared = Settings { adapt: Some("gravac".to_owned()), ..Settings::default() };
        let config = |words: &[&str]| {
            read(words).unwrap()[0]
                .config(&shared)
                .map(|config| config.adapt.map(|adapt| adapt.to_string()))
                .map_err(|error| error.to_string())
        };
        assert!(config(&["topk"]).unwrap().is_some_and(|adapt| adapt.starts_with("gravac:")));
        assert_eq!(config(&["none"]), Ok(None));
        assert_eq!(config(&["topk", "adapt=steps:0=0.1"]), Ok(Some("steps:0=0.1".to_owned())));
        let error = config(&["qsgd:bits=4"]).unwrap_err();
        assert!(error.starts_with("adapt with codec = qsgd:bits=4: it has no density; those"), "{error}");
        assert!(error.contains("topk") && error.ends_with("give adapt=… after each of them"), "{error}");
        let own = config(&["none", "adapt=steps:0=0.1"]).unwrap_err();
        assert!(
            own.starts_with("adapt with codec = none: it has no density") && !own.contains("after"),
            "{own}"
        );
        let other = config(&["topk", "batch=7"]).unwrap_err();
        assert!(!other.contains("adapt"), "{other}");
    }

    #[test]
    fn what_cannot_be_a_setting_of_its_own_is_refused_by_name() {
        assert!(read(&["lr=0.1"]).unwrap_err().contains("a codec first"));
        assert!(read(&["none", "seed=3"]).unwrap_err().starts_with("codec = none, seed: one value"));
        assert!(read(&["none", "lr=1", "lr=2"]).unwrap_err().contains("lr: given twice"));
        let wrong =
            |word| read(&["none", word]).unwrap()[0].settings(&Settings::default()).unwrap_err().to_string();
        assert!(wrong("speed=3").contains("unknown field `speed`"), "{}", wrong("speed=3"));
        assert!(wrong("lr=fast").starts_with("codec = none: invalid type"), "{}", wrong("lr=fast"));
    }
}
