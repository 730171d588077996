//! TOML to values, and values to text.

use std::fmt::Display;

use serde::Serializer;
use serde::de::DeserializeOwned;

use crate::files::toml_hint;
use crate::nearest::field_text;

/// Reads TOML; the error is the line and what is wrong with it.
pub(crate) fn parse_toml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|error| {
        let number = error.span().map(|span| text[..span.start].matches('\n').count());
        let line = number.and_then(|number| text.lines().nth(number));
        let key = line.and_then(|line| line.split_once('=')).map(|(key, _)| key.trim());
        let what =
            line.and_then(toml_hint).unwrap_or_else(|| field_text(&error.message().replace('\n', " "), key));
        number.map_or(what.clone(), |number| format!("line {}: {what}", number + 1))
    })
}

/// Writes a value as it is spelled.
pub(super) fn spelled<T: Display, S: Serializer>(value: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => to.collect_str(value),
        None => to.serialize_none(),
    }
}
