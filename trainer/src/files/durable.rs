//! Flushing to the disk. File systems of networks and of other systems lack some calls: a run continues
//! without them, and says once what it lacks.

use std::fs::File;
use std::io::{self, ErrorKind, Write, stderr};
use std::path::Path;
use std::sync::Once;

use crate::terminal;

/// Codes of the system that the standard library does not name: a descriptor of the wrong kind, no locks
/// (Linux, macOS), and Linux's own "not supported" of network file systems.
const UNNAMED: [i32; 4] = [9, 37, 77, 524];

/// What a file system without such a call may answer. `InvalidInput` is how `fsync` refuses a folder, and
/// `PermissionDenied` how a folder that may not be read is opened.
fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::InvalidInput | ErrorKind::PermissionDenied)
        || error.raw_os_error().is_some_and(|code| UNNAMED.contains(&code))
}

/// What the call said, unless the file system does not know it. That is noted, once for each `once`.
pub(crate) fn unless_unsupported(
    result: io::Result<()>,
    once: &Once,
    place: &Path,
    lacks: &str,
) -> io::Result<()> {
    match result {
        Err(error) if is_unsupported(&error) => {
            // If standard error is closed, there is no one to tell.
            once.call_once(|| {
                let program = terminal::program();
                drop(writeln!(stderr(), "{program}: note: {}: {lacks} ({error})", place.display()));
            });
            Ok(())
        }
        other => other,
    }
}

/// Flushes a file to the disk.
pub(crate) fn sync(file: &File, path: &Path) -> io::Result<()> {
    static ONCE: Once = Once::new();
    let lacks = "this file system does not flush files; after a power failure, the newest may be lost";
    unless_unsupported(file.sync_all(), &ONCE, path, lacks)
}

/// Makes the names in a folder durable.
#[cfg(unix)]
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    static ONCE: Once = Once::new();
    let lacks =
        "this file system does not flush folders; after a power failure, the newest files may be lost";
    let flushed = File::open(folder).and_then(|file| file.sync_all());
    unless_unsupported(flushed, &ONCE, folder, lacks)
}

/// Windows opens no folder as a file; its file systems keep a journal of names themselves.
#[cfg(not(unix))]
pub(crate) fn sync_folder(_folder: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_is_not_there_is_no_failure_and_a_disk_that_fails_is() {
        let ends = |code: i32| {
            let error = Err(io::Error::from_raw_os_error(code));
            unless_unsupported(error, &Once::new(), Path::new("here"), "does not").is_err()
        };
        // EPERM, EBADF, EACCES, EINVAL, ENOLCK, ENOSYS, EOPNOTSUPP, ENOTSUPP.
        for code in [1, 9, 13, 22, 37, 38, 95, 524] {
            assert!(!ends(code) || !cfg!(target_os = "linux"), "{code}");
        }
        // EIO, ENOSPC, EROFS, EDQUOT.
        for code in [5, 28, 30, 122] {
            assert!(ends(code), "{code}");
        }
    }
}
