//! Writing a file whole or not at all.

use std::fs;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::durable::{sync, sync_folder};

/// Writes a file whole or not at all, and flushes it to the disk: the content goes to a temporary file in the
/// same folder, which then takes the name. A link stays one, and the file behind it is replaced. A new file
/// has the permissions that the user's umask leaves; one that is replaced keeps its own. An error names no
/// temporary file.
pub(crate) fn write(path: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    write_whole(path, content).map_err(unwrapped)
}

fn write_whole(path: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let path = behind_links(path)?;
    let folder = folder_of(&path);
    let mut file = BufWriter::new(temporary(folder, &path)?);
    content(&mut file)?;
    let file = file.into_inner().map_err(|error| error.into_error())?;
    sync(file.as_file(), &path)?;
    file.persist(&path).map_err(|error| error.error)?;
    sync_folder(folder)
}

/// The folder of a file.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The file that a link leads to.
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    let is_link = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
    if is_link { fs::canonicalize(path) } else { Ok(path.to_path_buf()) }
}

fn temporary(folder: &Path, path: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".gradwire-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let ordinary = || fs::Permissions::from_mode(0o666);
        builder.permissions(fs::metadata(path).map_or_else(|_| ordinary(), |there| there.permissions()));
    }
    #[cfg(not(unix))]
    let _ = path;
    builder.tempfile_in(folder)
}

/// Tries whether files can be made in a folder.
pub(crate) fn ensure_writable(folder: &Path) -> io::Result<()> {
    tempfile::tempfile_in(folder).map(drop).map_err(unwrapped)
}

/// What the system said, without the name of a temporary file.
fn unwrapped(error: io::Error) -> io::Error {
    let whole = error.to_string();
    let said = whole.split_once(" at path ").map_or(whole.as_str(), |(said, _)| said);
    match error.kind() {
        ErrorKind::PermissionDenied => {
            io::Error::new(error.kind(), format!("this user may not write there: {said}"))
        }
        _ if said.len() < whole.len() => io::Error::new(error.kind(), said),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("frame");
        fs::write(&path, b"old").unwrap();
        let error = write(&path, |file| {
            file.write_all(b"new")?;
            Err(io::Error::other("disk on fire"))
        });
        assert_eq!(error.unwrap_err().to_string(), "disk on fire");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn who_may_not_write_is_told_so() {
        let denied = io::Error::new(
            ErrorKind::PermissionDenied,
            "Permission denied (os error 13) at path \"/a/.tmp1\"",
        );
        let said = unwrapped(denied);
        assert_eq!(said.kind(), ErrorKind::PermissionDenied);
        assert_eq!(said.to_string(), "this user may not write there: Permission denied (os error 13)");
        let full = unwrapped(io::Error::new(ErrorKind::StorageFull, "no space at path \"/a/.tmp1\""));
        assert_eq!((full.kind(), full.to_string()), (ErrorKind::StorageFull, "no space".to_owned()));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_a_link_and_a_file_keeps_its_permissions() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        fs::write(&file, b"old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        symlink("file", &link).unwrap();
        write(&link, |file| file.write_all(b"new")).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_folder_that_is_missing_is_said_to_be_and_no_temporary_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = write(&folder.path().join("none/file"), |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(!error.to_string().contains(".gradwire-"), "{error}");
    }
}
