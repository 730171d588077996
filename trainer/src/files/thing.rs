//! What is at a path: said where a file or a folder is wanted and something else is there.

use std::fs::{self, FileType};
use std::io;
use std::path::{Path, PathBuf};

/// The first thing on the way to `folder` that cannot be a folder, and what it is.
pub(crate) fn in_the_way(folder: &Path) -> Option<(PathBuf, String)> {
    let there = folder.ancestors().find(|path| fs::symlink_metadata(path).is_ok())?;
    let is_folder = fs::metadata(there).is_ok_and(|found| found.is_dir());
    (!is_folder).then(|| (there.to_path_buf(), thing(there).unwrap_or_default()))
}

/// What is there, with its article; `None` if nothing is.
pub(crate) fn thing(path: &Path) -> Option<String> {
    let link = fs::symlink_metadata(path).ok()?;
    Some(match fs::metadata(path) {
        Ok(found) if found.is_dir() => "a folder".to_owned(),
        Ok(found) if found.is_file() => "a file".to_owned(),
        Ok(found) => special(found.file_type()).to_owned(),
        Err(error) if link.is_symlink() => broken(path, &error),
        Err(error) => error.to_string(),
    })
}

fn broken(link: &Path, error: &io::Error) -> String {
    let to = fs::read_link(link).unwrap_or_default();
    match error.kind() {
        io::ErrorKind::NotFound => format!("a link to {}, which does not exist", to.display()),
        _ => format!("a link to {}, which leads nowhere: {error}", to.display()),
    }
}

#[cfg(unix)]
fn special(found: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match found {
        _ if found.is_fifo() => "a pipe",
        _ if found.is_socket() => "a socket",
        _ => "a device",
    }
}

#[cfg(not(unix))]
fn special(_: FileType) -> &'static str {
    "a device"
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn what_is_no_folder_is_named_and_so_is_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("folder")).unwrap();
        fs::write(at("file"), "").unwrap();
        symlink("folder", at("good")).unwrap();
        symlink("nothing", at("dangling")).unwrap();
        symlink("loop", at("loop")).unwrap();
        symlink("file/x", at("below")).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        for free in ["folder", "good", "new", "folder/a/b", "good/a"] {
            assert_eq!(in_the_way(&at(free)), None, "{free}");
        }
        for (path, there, what) in [
            ("file", "file", "a file"),
            ("file/a/b", "file", "a file"),
            ("dangling", "dangling", "a link to nothing, which does not exist"),
            ("dangling/a", "dangling", "a link to nothing, which does not exist"),
            ("loop", "loop", "a link to loop, which leads nowhere: "),
            ("below/a", "below", "a link to file/x, which leads nowhere: "),
            ("socket", "socket", "a socket"),
            ("pipe/a", "pipe", "a pipe"),
        ] {
            let (found, said) = in_the_way(&at(path)).unwrap();
            assert_eq!(found, at(there));
            assert!(said.starts_with(what), "{path}: {said}");
        }
        assert_eq!(in_the_way(Path::new("/dev/null/a")), Some(("/dev/null".into(), "a device".to_owned())));
        assert_eq!(in_the_way(Path::new("new")), None, "a relative path");
        assert_eq!(thing(&at("new")), None);
        assert_eq!(thing(folder.path()), Some("a folder".to_owned()));
    }
}
