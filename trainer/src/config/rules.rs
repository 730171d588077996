//! The setting `rules`: how it is read, and which settings it cannot be combined with.

use std::path::Path;

use gradwire::rules::Rules;

use super::check::refuse;
use super::{ConfigError, RunConfig};
use crate::files::read_text;

fn parse(text: &str) -> Result<Rules, ConfigError> {
    Rules::parse(text).map_err(|error| refused(text, error.to_string()))
}

fn refused(text: &str, what: String) -> ConfigError {
    let line = |text: &str| text.replace(['\n', '\r'], " ");
    ConfigError::Rules { text: line(text), what: line(&what) }
}

/// Reads a text of rules, or the file of that name.
pub(crate) fn read(given: &str) -> Result<Rules, ConfigError> {
    let parsed = parse(given);
    if parsed.is_ok() || !Path::new(given).is_file() {
        return parsed;
    }
    let text = read_text(Path::new(given)).map_err(|what| refused(given, what))?;
    Rules::parse(&text).map_err(|error| refused(given, error.to_string()))
}

/// Refuses settings that rules cannot be combined with. What holds for every codec is checked for each of
/// them elsewhere.
pub(super) fn rules_conflicts(config: &RunConfig) -> Result<(), ConfigError> {
    let (Some(rules), last) = (&config.rules, config.codec.spec) else { return Ok(()) };
    refuse(
        *rules.others() != last,
        format!(
            "codec = {} with rules: the last rule is the codec of all other tensors; leave out codec",
            config.codec
        ),
    )?;
    for rule in rules.rules() {
        let (codec, owner) = (rule.spec().codec, rule.spec());
        refuse(
            codec.momentum().is_some() && codec.momentum() != last.codec.momentum(),
            format!(
                "rules with {owner}: the codec has its own momentum, which the last rule's must have too"
            ),
        )?;
        refuse(
            codec.local_clip(1).is_some() && codec.local_clip(1) != last.codec.local_clip(1),
            format!(
                "rules with {owner}: the codec clips the whole gradient, which the last rule's must do too"
            ),
        )?;
    }
    Ok(())
}
