//! The error for a setting outside its allowed range.

/// A setting has a value that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: expected {allowed}")]
pub struct RangeError {
    /// Name of the setting, as the user writes it.
    pub key: &'static str,
    /// The value that was given.
    pub value: String,
    /// What would have been accepted.
    pub allowed: String,
}

impl RangeError {
    /// States that `key` must not be `value`, and what it may be.
    pub fn new(key: &'static str, value: impl ToString, allowed: impl ToString) -> Self {
        Self { key, value: value.to_string(), allowed: allowed.to_string() }
    }
}

/// Gives the error unless `holds`.
pub(crate) fn require(
    holds: bool,
    key: &'static str,
    value: impl ToString,
    allowed: impl ToString,
) -> Result<(), RangeError> {
    if holds { Ok(()) } else { Err(RangeError::new(key, value, allowed)) }
}

/// A finite number for which `holds`, as the command line has it.
pub(crate) fn number_where(text: &str, holds: fn(f64) -> bool, expected: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && holds(*number));
    number.ok_or_else(|| format!("expected a number {expected}"))
}

/// A number above 0, as the command line has it.
pub(crate) fn positive(text: &str) -> Result<f64, String> {
    number_where(text, |number| number > 0.0, "above 0")
}
