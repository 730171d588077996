//! Lines for programs.

use std::io::{self, BufWriter, Write};

use super::error::CliError;

/// One object as one line of JSON.
pub(super) fn write_line(out: &mut impl Write, object: &impl serde::Serialize) -> Result<(), CliError> {
    // Not as one text in memory: a frame may have many units.
    let mut out = BufWriter::new(out);
    let written = serde_json::to_writer(&mut out, object).map_err(io::Error::from);
    written.and_then(|()| writeln!(out)).and_then(|()| out.flush()).map_err(CliError::Output)
}
