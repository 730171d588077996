//! Files in, files out: lengths checked before anything is read, outputs written whole or not at all.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use super::error::{CliError, FileFault};

/// Opens a regular file; returns it with its length.
pub(super) fn open(path: &Path) -> Result<(File, u64), FileFault> {
    // Looked at before it is opened: opening a pipe would wait for a writer.
    let is_file = path.metadata()?.is_file();
    let file = if is_file { File::open(path)? } else { return Err(FileFault::NotAFile) };
    let bytes = file.metadata()?.len();
    Ok((file, bytes))
}

/// Refuses files that are shorter or longer than their header says.
pub(super) fn check_length(needed: u64, actual: u64) -> Result<(), FileFault> {
    match actual {
        _ if actual < needed => Err(FileFault::Truncated { needed, actual }),
        _ if actual > needed => Err(FileFault::TrailingBytes { count: actual - needed }),
        _ => Ok(()),
    }
}

/// Writes a file whole or not at all: the output of `content` goes to a temporary file in the same folder,
/// which then takes the name. It replaces an existing regular file, and leaves anything else of that name (a
/// folder, a device) alone.
pub(super) fn write_atomically(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<(), CliError> {
    let write = || -> Result<(), FileFault> {
        if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
            return Err(FileFault::NotAFile);
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        // A missing folder is reported as such, and not by the name of a temporary file in it.
        folder.metadata()?;
        let mut file = BufWriter::new(temporary_file(folder)?);
        content(&mut file)?;
        let file = file.into_inner().map_err(|error| error.into_error())?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    write().map_err(|fault| fault.of(path))
}

/// A temporary file with the permissions of an ordinary new file, not those of a secret.
fn temporary_file(folder: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".gradwire-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("frame");
        std::fs::write(&path, b"old").unwrap();
        let error = write_atomically(&path, |file| {
            file.write_all(b"new")?;
            Err(std::io::Error::other("disk on fire"))
        });
        assert!(error.unwrap_err().to_string().ends_with("frame: disk on fire"));
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn a_folder_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let error = write_atomically(folder.path(), |_| Ok(())).unwrap_err();
        assert!(error.to_string().ends_with(": not a regular file"));
    }
}
