//! Lines for programs.

use std::io::{self, Write};

use super::error::CliError;

/// One object as one line of JSON.
pub(super) fn write_line(out: &mut impl Write, object: &impl serde::Serialize) -> Result<(), CliError> {
    let line = serde_json::to_string(object).map_err(|error| CliError::Output(io::Error::from(error)))?;
    writeln!(out, "{line}").map_err(CliError::Output)
}
