//! Files that hold secrets: readable by their owner alone, never overwritten.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

/// Refuses a file that others than its owner may use. Checked on the open file, so that it cannot be replaced
/// between check and read.
#[cfg(unix)]
pub(crate) fn is_private(file: &File) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    let mode = file.metadata().map_err(|error| error.to_string())?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(format!("others than its owner may use it (mode {:o}): chmod 600", mode & 0o777));
    }
    Ok(())
}

#[cfg(not(unix))]
pub(crate) fn is_private(_file: &File) -> Result<(), String> {
    Ok(())
}

/// Writes a new file.
pub(crate) fn create(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    let file = options.open(path)?;
    // Some file systems cannot flush a file: what was written is there all the same.
    let flushed = || match file.sync_all() {
        Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::InvalidInput) => Ok(()),
        flushed => flushed,
    };
    let written = (&file).write_all(text.as_bytes()).and_then(|()| flushed());
    written.inspect_err(|_| drop(fs::remove_file(path)))
}
