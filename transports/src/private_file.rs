//! Files that hold secrets: readable by their owner alone, or by a group that root chose; never overwritten.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

/// Refuses a file that others than its owner may use. The group may read one of root's: so a service manager
/// or Kubernetes hands a secret to a process without privileges. Checked on the open file, so that it cannot
/// be replaced between check and read.
#[cfg(unix)]
pub(crate) fn is_private(file: &File) -> Result<(), String> {
    use std::os::unix::fs::MetadataExt;
    let found = file.metadata().map_err(|error| error.to_string())?;
    match is_private_to(found.mode(), found.uid()) {
        true => Ok(()),
        false => {
            Err(format!("others than its owner may use it (mode {:o}): chmod 600", found.mode() & 0o777))
        }
    }
}

#[cfg(unix)]
fn is_private_to(mode: u32, owner: u32) -> bool {
    const ROOT: u32 = 0;
    let forbidden = if owner == ROOT { 0o037 } else { 0o077 };
    mode & forbidden == 0
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

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_its_owners_and_a_group_may_read_what_root_hands_to_it() {
        let private = |mode: u32| [0, 1000].map(|owner| is_private_to(0o100_000 | mode, owner));
        for mode in [0o600, 0o400, 0o700] {
            assert_eq!(private(mode), [true; 2], "{mode:o}");
        }
        for mode in [0o640, 0o440] {
            assert_eq!(private(mode), [true, false], "{mode:o}");
        }
        for mode in [0o644, 0o444, 0o604, 0o602, 0o660, 0o620, 0o650, 0o601] {
            assert_eq!(private(mode), [false; 2], "{mode:o}");
        }
    }
}
