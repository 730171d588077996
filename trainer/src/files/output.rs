//! The one rule for results of every command: never over a file that the command reads, and over another one
//! only with `--force`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::thing::thing;
use super::write::{ensure_writable, folder_of};

/// A result cannot go where the user wants it. The text is one line, without the path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// The command reads this file.
    #[error("the same file as {}, which this command reads or writes; give another name", .0.display())]
    Input(PathBuf),
    /// There is a file.
    #[error("exists already; give another name, or --force to overwrite it")]
    Exists,
    /// A folder, a device, a pipe, or a link to nothing.
    #[error("{0}, not a file; give another name")]
    NotAFile(String),
    /// The system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Checks a place for a result, before any work is done for it. `inputs` are what the command reads, and its
/// other results.
pub(crate) fn ensure_output(path: &Path, force: bool, inputs: &[&Path]) -> Result<(), OutputError> {
    ensure_apart(path, inputs)?;
    match (fs::symlink_metadata(path), fs::metadata(path)) {
        (_, Ok(found)) if found.is_file() && !force => return Err(OutputError::Exists),
        (_, Ok(found)) if found.is_file() => {}
        (Ok(_), _) => return Err(OutputError::NotAFile(thing(path).unwrap_or_default())),
        _ => {}
    }
    let folder = folder_of(path);
    fs::metadata(folder)?;
    Ok(ensure_writable(folder)?)
}

/// Refuses a place in which one of the inputs lies.
pub(crate) fn ensure_apart(path: &Path, inputs: &[&Path]) -> Result<(), OutputError> {
    match inputs.iter().find(|input| is_same(path, input)) {
        Some(input) => Err(OutputError::Input(input.to_path_buf())),
        None => Ok(()),
    }
}

/// Whether two paths lead to one file, by links of any kind or by another spelling; for files that are not
/// there yet, whether they would.
pub(crate) fn is_same(a: &Path, b: &Path) -> bool {
    // Only files are opened: opening a pipe would wait for its other end.
    let is_file = |path: &Path| fs::metadata(path).is_ok_and(|found| found.is_file());
    if is_file(a) && is_file(b) {
        return same_file::is_same_file(a, b).unwrap_or(false);
    }
    let place = |path: &Path| Some((fs::canonicalize(folder_of(path)).ok()?, path.file_name()?.to_owned()));
    place(a).is_some_and(|a| place(b) == Some(a))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(path: &Path, force: bool, inputs: &[&Path]) -> String {
        ensure_output(path, force, inputs).map_or_else(|error| error.to_string(), |()| "free".to_owned())
    }

    #[test]
    fn an_input_is_recognised_by_any_path() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("input"), "1").unwrap();
        fs::create_dir(at("below")).unwrap();
        fs::hard_link(at("input"), at("hard")).unwrap();
        let mut paths = vec!["input", "./input", "below/../input", "hard"];
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("input", at("soft")).unwrap();
            std::os::unix::fs::symlink("soft", at("softer")).unwrap();
            std::os::unix::fs::symlink(".", at("loop")).unwrap();
            paths.extend(["soft", "softer", "loop/loop/hard"]);
        }
        for path in paths {
            for force in [false, true] {
                let said = said(&at(path), force, &[&at("other"), &at("input")]);
                assert!(
                    said.starts_with("the same file as ") && said.contains("input, which this command reads"),
                    "{path}: {said}"
                );
            }
        }
        assert!(is_same(&at("new"), &at("below/../new")) && !is_same(&at("new"), &at("below/new")));
    }

    #[test]
    fn another_file_needs_force_and_what_is_no_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("there"), "1").unwrap();
        assert_eq!([false, true].map(|force| said(&at("new"), force, &[])), ["free", "free"]);
        assert!(said(&at("there"), false, &[]).starts_with("exists already"));
        assert_eq!(said(&at("there"), true, &[]), "free");
        assert_eq!(said(folder.path(), true, &[]), "a folder, not a file; give another name");
        assert!(said(&at("none/new"), true, &[]).contains("No such file") || !cfg!(unix));
        #[cfg(unix)]
        {
            assert_eq!(said(Path::new("/dev/null"), true, &[]), "a device, not a file; give another name");
            std::os::unix::fs::symlink("nothing", at("dangling")).unwrap();
            assert!(said(&at("dangling"), true, &[]).starts_with("a link to nothing, which does not exist"));
        }
        assert_eq!(fs::read_to_string(at("there")).unwrap(), "1");
        assert!(!at("new").exists());
    }
}
