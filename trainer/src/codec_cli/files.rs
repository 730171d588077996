//! Files in, files out: lengths checked before anything is read, outputs written whole or not at all.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use super::error::{CliError, FileFault};
use crate::files::{self, DECISIVE_BYTES, Kind};

/// Opens a regular file; returns it with its length.
pub(super) fn open(path: &Path) -> Result<(File, u64), FileFault> {
    // Looked at before it is opened: opening a pipe would wait for a writer.
    let is_file = path.metadata()?.is_file();
    let file = if is_file { File::open(path)? } else { return Err(FileFault::NotAFile) };
    let bytes = file.metadata()?.len();
    Ok((file, bytes))
}

/// What a file is by its first bytes, if that is known.
pub(super) fn kind(path: &Path) -> Option<Kind> {
    let (file, _) = open(path).ok()?;
    let mut first = Vec::new();
    file.take(DECISIVE_BYTES as u64).read_to_end(&mut first).ok()?;
    Kind::of(&first)
}

/// Refuses files that are shorter or longer than their header says.
pub(super) fn check_length(needed: u64, actual: u64) -> Result<(), FileFault> {
    match actual {
        _ if actual < needed => Err(FileFault::Truncated { needed, actual }),
        _ if actual > needed => Err(FileFault::TrailingBytes { count: actual - needed }),
        _ => Ok(()),
    }
}

/// Writes a file whole or not at all.
pub(super) fn write(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<(), CliError> {
    files::write(path, content).map_err(|error| FileFault::from(error).of(path))
}

/// Refuses a place for a result, before any work is done for it.
pub(super) fn ensure_output(path: &Path, force: bool, inputs: &[&Path]) -> Result<(), CliError> {
    files::ensure_output(path, force, inputs).map_err(|error| FileFault::from(error).of(path))
}
