//! The folder that a command leaves behind.
//!
//! It is made only when everything was checked. Files appear whole or not at all, but for `metrics.jsonl`,
//! which grows a line a step so that a run can be watched.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use crate::checkpoint::{Store, way_out};
use crate::files::{self, OutputError, ensure_apart, in_the_way};
use crate::record::Metrics;

/// A folder cannot be made, or a file in it cannot be written. The text is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// The folder is not empty.
    #[error("{}: not empty; give another --out, or --force to write over it", .0.display())]
    NotEmpty(PathBuf),
    /// Something that is no folder is there, or above.
    #[error("{}: {what}, not a folder; give another --out", path.display())]
    NotAFolder {
        /// What is in the way.
        path: PathBuf,
        /// What it is.
        what: String,
    },
    /// The path counts from the current folder, which is gone.
    #[error("{}: the current folder was removed; change into another one, or into it again", .0.display())]
    NowhereIn(PathBuf),
    /// Another process writes there.
    #[error("{}: in use by another process; wait until it ends, or end it", .0.display())]
    InUse(PathBuf),
    /// The system refused.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A file that the command reads is one that it would write.
    #[error("{}: {error}", path.display())]
    Input {
        /// The file that would be written.
        path: PathBuf,
        /// The file that is read.
        error: OutputError,
    },
    /// A file lacks what was written into it.
    #[error("{}: damaged: {what}{}", path.display(), way_out(before.as_deref()))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
        /// The newest whole checkpoint that needs no more than the file has, if there is one.
        before: Option<PathBuf>,
    },
}

/// The file whose lock says that a process writes into the folder. The system releases the lock when that
/// process ends, in whatever way. The file stays, because another process may be about to lock it.
const LOCK: &str = ".lock";

/// What a new file system has in its root: a volume of a container is one.
const LOST_AND_FOUND: &str = "lost+found";

/// What commands write into a folder, or into one folder below it for each run.
const WRITTEN: [&str; 9] = [
    "config.toml",
    "grid.toml",
    "metrics.jsonl",
    "summary.json",
    "diverged.json",
    "results.csv",
    "report.html",
    super::events::FILE,
    LOCK,
];

/// A folder that this program may write into, and no other process does meanwhile.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    /// Held as long as the folder, or a copy, is in use.
    _lock: Arc<File>,
}

fn fault(path: &Path) -> impl Fn(io::Error) -> FolderError + '_ {
    |error| FolderError::Io { path: path.to_path_buf(), error }
}

impl Folder {
    /// As [`create`](Self::create), for a command that reads these files.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create); `Input` if one of the files would be overwritten.
    pub fn create_apart(path: &Path, force: bool, inputs: &[&Path]) -> Result<Self, FolderError> {
        let below = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        for folder in std::iter::once(path.to_path_buf()).chain(below.filter(|below| below.is_dir())) {
            for path in WRITTEN.map(|name| folder.join(name)) {
                ensure_apart(&path, inputs).map_err(|error| FolderError::Input { path, error })?;
            }
        }
        Self::create(path, force)
    }

    /// Makes the folder and tries whether it can be written to.
    ///
    /// # Errors
    ///
    /// `NotAFolder`; `NowhereIn`; `NotEmpty`, unless `force` is set; `InUse`; `Io`. Nothing is left behind
    /// then.
    pub fn create(path: &Path, force: bool) -> Result<Self, FolderError> {
        let first_new = path.ancestors().take_while(|folder| !folder.exists()).last().map(Path::to_path_buf);
        let made = Self::try_create(path, force);
        if let (Err(_), Some(first_new)) = (&made, first_new) {
            // Folders that were made on the way hold nothing but each other.
            let _ = fs::remove_dir_all(first_new);
        }
        made
    }

    fn try_create(path: &Path, force: bool) -> Result<Self, FolderError> {
        if let Some((path, what)) = in_the_way(path) {
            return Err(FolderError::NotAFolder { path, what });
        }
        // The system still knows a folder that was removed, but not by a path.
        if path.is_relative() && fs::canonicalize(".").is_err() {
            return Err(FolderError::NowhereIn(path.to_path_buf()));
        }
        fs::create_dir_all(path).map_err(fault(path))?;
        let is_content = |entry: &io::Result<fs::DirEntry>| !matches!(entry, Ok(entry) if entry.file_name() == LOCK || entry.file_name() == LOST_AND_FOUND);
        let is_empty = !fs::read_dir(path).map_err(fault(path))?.any(|entry| is_content(&entry));
        if !is_empty && !force {
            return Err(FolderError::NotEmpty(path.to_path_buf()));
        }
        Self::take(path)
    }

    /// The folder of a run that was begun.
    ///
    /// # Errors
    ///
    /// `InUse`; `Io` when it is not there or cannot be written to.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        fs::read_dir(path).map_err(fault(path))?;
        Self::take(path)
    }

    /// Locks the folder and tries whether it can be written to.
    fn take(path: &Path) -> Result<Self, FolderError> {
        files::ensure_writable(path).map_err(fault(path))?;
        let name = path.join(LOCK);
        let file = File::options().create(true).append(true).open(&name).map_err(fault(&name))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FolderError::InUse(path.to_path_buf())),
            Err(TryLockError::Error(error)) => without_lock(error, path).map_err(fault(&name))?,
        }
        Ok(Self { path: path.to_path_buf(), _lock: Arc::new(file) })
    }

    /// A folder in this one. Its content is overwritten, as that of this folder may be.
    ///
    /// # Errors
    ///
    /// `Io`.
    pub fn inner(&self, name: &str) -> Result<Self, FolderError> {
        ensure_there(&self.path).map_err(fault(&self.path))?;
        Self::create(&self.path.join(name), true)
    }

    /// The path of a file in this folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file, whole or not at all, and flushes it to the disk.
    ///
    /// # Errors
    ///
    /// `Io`; a file of that name is then as it was.
    pub fn write(&self, name: &str, content: &str) -> Result<PathBuf, FolderError> {
        let path = self.file(name);
        files::write(&path, |file| file.write_all(content.as_bytes())).map_err(fault(&path))?;
        Ok(path)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes a file, if it is there.
    ///
    /// # Errors
    ///
    /// `Io`.
    pub fn remove(&self, name: &str) -> Result<(), FolderError> {
        let path = self.file(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(fault(&path)(error)),
            _ => Ok(()),
        }
    }

    /// Continues `metrics.jsonl` after its first `steps` lines, which are returned. Lines that a killed
    /// process wrote after them are dropped.
    ///
    /// # Errors
    ///
    /// As [`read_metrics`](Self::read_metrics), and `Io` when the file cannot be written.
    pub fn metrics_behind(&self, steps: u64) -> Result<(Vec<Metrics>, MetricsFile), FolderError> {
        let path = self.file("metrics.jsonl");
        let text = read_written(&path)?;
        let (metrics, len) = parse(&text, steps).map_err(self.short_of(&path))?;
        let mut kept = text[..len].to_owned();
        if !kept.is_empty() && !kept.ends_with('\n') {
            kept.push('\n');
        }
        self.write("metrics.jsonl", &kept)?;
        Ok((metrics, MetricsFile::open(path)?))
    }

    /// The first `steps` lines of `metrics.jsonl`.
    ///
    /// # Errors
    ///
    /// `Damaged` when the file or a line is missing, or a line is not one of metrics; `Io`.
    pub fn read_metrics(&self, steps: u64) -> Result<Vec<Metrics>, FolderError> {
        let path = self.file("metrics.jsonl");
        let (metrics, _) = parse(&read_written(&path)?, steps).map_err(self.short_of(&path))?;
        Ok(metrics)
    }

    /// As [`damaged`], with the checkpoint that needs no more than the lines which are there.
    fn short_of<'a>(&'a self, path: &'a Path) -> impl Fn(Short) -> FolderError + 'a {
        move |Short { lines, what }| {
            let before = Store::of_run(&self.path).newest_whole(lines);
            FolderError::Damaged { path: path.to_path_buf(), what, before }
        }
    }

    /// Begins `metrics.jsonl`.
    ///
    /// # Errors
    ///
    /// `Io`.
    pub fn metrics(&self) -> Result<MetricsFile, FolderError> {
        let path = self.file("metrics.jsonl");
        File::create(&path).map_err(fault(&path))?;
        MetricsFile::open(path)
    }
}

fn damaged(path: &Path) -> impl Fn(String) -> FolderError + '_ {
    |what| FolderError::Damaged { path: path.to_path_buf(), what, before: None }
}

/// The text of a file that this program wrote.
fn read_written(path: &Path) -> Result<String, FolderError> {
    fs::read_to_string(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => damaged(path)("it is missing".to_owned()),
        io::ErrorKind::InvalidData => damaged(path)(error.to_string()),
        _ => fault(path)(error),
    })
}

/// A record that lacks steps: how many lines are good, and what is wrong after them.
struct Short {
    lines: u64,
    what: String,
}

/// The first `steps` lines, and how many bytes they take.
fn parse(text: &str, steps: u64) -> Result<(Vec<Metrics>, usize), Short> {
    let (mut metrics, mut len) = (Vec::new(), 0);
    for (step, line) in (0..steps).zip(text.split_inclusive('\n')) {
        let short = |what: String| Short { lines: step, what: format!("line {}: {what}", step + 1) };
        let read: Metrics = serde_json::from_str(line).map_err(|error| short(error.to_string()))?;
        if read.step != step {
            return Err(short(format!("step {} instead of {step}", read.step)));
        }
        metrics.push(read);
        len += line.len();
    }
    match metrics.len() as u64 {
        lines if lines < steps => {
            Err(Short { lines, what: format!("{lines} lines, but {steps} steps are done") })
        }
        _ => Ok((metrics, len)),
    }
}

/// On a file system without locks, an unprotected run is better than none.
fn without_lock(error: io::Error, folder: &Path) -> io::Result<()> {
    static ONCE: Once = Once::new();
    let lacks = "this file system has no locks; let no other process write here";
    files::unless_unsupported(Err(error), &ONCE, folder, lacks)
}

/// `metrics.jsonl`: one object a line, one line a step.
#[derive(Debug)]
pub struct MetricsFile {
    path: PathBuf,
    file: File,
    /// Bytes of all lines.
    len: u64,
    /// When it was last looked whether it is as it was left.
    looked: Instant,
}

/// Between two such looks.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Refuses to go on without what was there.
fn ensure_there(path: &Path) -> io::Result<fs::Metadata> {
    fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(
            error.kind(),
            "it was here and is gone: was the folder removed, moved or unmounted?",
        ),
        _ => error,
    })
}

impl MetricsFile {
    /// Appends to a file that is there.
    fn open(path: PathBuf) -> Result<Self, FolderError> {
        let open = || {
            let file = File::options().append(true).open(&path)?;
            let len = file.metadata()?.len();
            Ok((file, len))
        };
        let (file, len) = open().map_err(fault(&path))?;
        Ok(Self { path, file, len, looked: Instant::now() })
    }

    /// Refuses to go on if somebody took the file away, put another one in its place, or changed it: the open
    /// file may still take lines, but no one could read them, or not all.
    fn ensure_as_left(&self) -> io::Result<()> {
        let found = ensure_there(&self.path)?;
        let is_same = same_file::Handle::from_path(&self.path)?
            == same_file::Handle::from_file(self.file.try_clone()?)?;
        if is_same && found.len() == self.len {
            return Ok(());
        }
        let what = if is_same { "was cut or written to" } else { "is not the file that was here" };
        Err(io::Error::other(format!(
            "it {what}, {} bytes instead of {}: let no other program write or rotate it",
            found.len(),
            self.len
        )))
    }

    /// Flushes all lines to the disk: a checkpoint that is there after a power failure has its lines.
    ///
    /// # Errors
    ///
    /// `Io`, also if the file is not as it was left.
    pub fn sync(&mut self) -> Result<(), FolderError> {
        // Looked at last: flushing takes long, and the next checkpoint must not be written elsewhere.
        files::sync(&self.file, &self.path).and_then(|()| self.ensure_as_left()).map_err(fault(&self.path))
    }

    /// Appends a line, which the system has when this returns.
    ///
    /// # Errors
    ///
    /// `Io`; no part of the line is left then. Within a second also if the file is not as it was left.
    pub fn push(&mut self, metrics: &Metrics) -> Result<(), FolderError> {
        self.append(metrics).map_err(fault(&self.path))
    }

    fn append(&mut self, metrics: &Metrics) -> io::Result<()> {
        if self.looked.elapsed() >= LOOK_AGAIN {
            self.ensure_as_left()?;
            self.looked = Instant::now();
        }
        let mut line = serde_json::to_vec(metrics)?;
        line.push(b'\n');
        self.file.write_all(&line).inspect_err(|_| {
            // A full disk takes the beginning of a line.
            let _ = self.file.set_len(self.len);
        })?;
        self.len += line.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_something_in_it_is_refused_unless_forced() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b");
        Folder::create(&path, false).unwrap().write("x", "1").unwrap();
        assert!(matches!(Folder::create(&path, false), Err(FolderError::NotEmpty(_))));
        Folder::create(&path, true).unwrap().write("x", "2").unwrap();
        assert_eq!(fs::read_to_string(path.join("x")).unwrap(), "2");
        let mut names: Vec<_> =
            fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, [LOCK, "x"]);
    }

    #[test]
    fn a_new_file_system_is_an_empty_folder() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join(LOST_AND_FOUND)).unwrap();
        Folder::create(root.path(), false).unwrap();
    }

    #[test]
    fn a_folder_in_use_is_refused_until_it_is_let_go() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("run");
        let first = Folder::create(&path, false).unwrap();
        let copy = first.clone();
        assert!(matches!(Folder::open(&path), Err(FolderError::InUse(_))));
        assert!(matches!(Folder::create(&path, true), Err(FolderError::InUse(_))));
        drop(first);
        assert!(matches!(Folder::open(&path), Err(FolderError::InUse(_))), "the copy is in use");
        drop(copy);
        Folder::open(&path).unwrap();
        Folder::create(&path, false).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_made_leaves_nothing_behind() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("file"), "").unwrap();
        assert!(Folder::create(&root.path().join("file/inside"), true).is_err());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }
}
