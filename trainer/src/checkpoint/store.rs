//! Where checkpoints lie, and how one appears whole or not at all.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use gradwire::Layout;

use super::best::Best;
use super::error::{at, at_part};
use super::manifest::{Entry, FORMAT, Manifest, Single, VERSION, VERSIONS};
use super::replica::Replica;
use super::{Checkpoint, CheckpointError, memory, norms};
use crate::config::{RunConfig, Settings, TransportKind};
use crate::files;

/// The folder in a run's folder.
const FOLDER: &str = "checkpoints";
const MANIFEST: &str = "manifest.json";
/// What a checkpoint is called; the number is that of its next step.
const PREFIX: &str = "step-";
/// What one is called that is being written.
const DRAFT: &str = ".draft-";
/// Complete checkpoints that are kept: the newest, and one to fall back to.
const KEPT: usize = 2;
/// The number that a worker keeps: the server's newest may be older by one than its own.
const KEPT_BY_WORKER: usize = KEPT + 1;
/// Manifests above this many bytes are not ours.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;

/// In a server's checkpoint.
const DOWNLINK: &str = "downlink.safetensors";
const NORMS: &str = "norms.safetensors";
/// In a run with a controller of densities.
const CONTROLLER: &str = "controller.safetensors";
/// Of a run that may end early.
const BEST: &str = "best.safetensors";

fn model_file(rank: usize) -> String {
    if rank == 0 { "model.safetensors".to_owned() } else { format!("model-{rank}.safetensors") }
}

fn rank_file(rank: usize) -> String {
    format!("rank-{rank}.safetensors")
}

/// The names of the memories' files.
fn rank_files(worker: Option<&Single>, memories: usize) -> impl Iterator<Item = String> {
    let first = worker.map_or(0, |worker| worker.rank);
    (first..first.saturating_add(memories)).map(rank_file)
}

/// The checkpoints of one run.
#[derive(Clone, Debug)]
pub struct Store {
    path: PathBuf,
}

impl Store {
    /// The checkpoints in this run's folder; there may be none yet.
    pub fn of_run(run: &Path) -> Self {
        Self { path: run.join(FOLDER) }
    }

    /// Writes a checkpoint, and removes old ones: the two newest stay, or three of a worker's. Checkpoints of
    /// later steps are removed too, because they belong to a course that the run has left. Returns its path.
    ///
    /// # Errors
    ///
    /// `Io`. Every checkpoint that was there still is.
    pub fn write(&self, checkpoint: &Checkpoint, layout: &Layout) -> Result<PathBuf, CheckpointError> {
        // The folder of the run is there, or somebody took it away.
        match fs::create_dir(&self.path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(at(&self.path)(error)),
            _ => {}
        }
        self.remove_drafts()?;
        let draft = self.path.join(format!("{DRAFT}{}", checkpoint.steps));
        let written =
            write_draft(&draft, checkpoint, layout).and_then(|()| self.publish(&draft, checkpoint.steps));
        if written.is_err() {
            // Remains of a failed write may take the room that is missing.
            let _ = fs::remove_dir_all(&draft);
        }
        let path = written.map_err(|error| error.moved(&draft, &self.path.join(named(checkpoint.steps))))?;
        self.remove_others(checkpoint)?;
        Ok(path)
    }

    /// Removes all checkpoints: a run that begins in the folder of another one must not be mistaken for it.
    ///
    /// # Errors
    ///
    /// `Io`.
    pub fn clear(&self) -> Result<(), CheckpointError> {
        if !self.path.is_dir() {
            return Ok(());
        }
        self.remove_drafts()?;
        complete(&self.path)?.iter().try_for_each(|(_, path)| discard(path))
    }

    /// The newest checkpoint of at most so many steps whose files are all whole.
    pub(crate) fn newest_whole(&self, steps: u64) -> Option<PathBuf> {
        newest_whole(&self.path, |at| at <= steps)
    }

    /// The steps that are in the newest checkpoint whose files are all whole.
    pub(crate) fn newest_steps(&self) -> Option<u64> {
        steps_of(&newest_whole(&self.path, |_| true)?)
    }

    /// The draft gets its name, durably.
    fn publish(&self, draft: &Path, steps: u64) -> Result<PathBuf, CheckpointError> {
        let path = self.path.join(named(steps));
        if path.exists() {
            discard(&path)?;
        }
        fs::rename(draft, &path).map_err(at(&path))?;
        sync(&self.path)?;
        Ok(path)
    }

    /// Remains of a process that was killed while it wrote.
    fn remove_drafts(&self) -> Result<(), CheckpointError> {
        for entry in fs::read_dir(&self.path).map_err(at(&self.path))? {
            let path = entry.map_err(at(&self.path))?.path();
            if name_of(&path).starts_with(DRAFT) {
                fs::remove_dir_all(&path).map_err(at(&path))?;
            }
        }
        Ok(())
    }

    fn remove_others(&self, newest: &Checkpoint) -> Result<(), CheckpointError> {
        let most = if newest.worker.is_some() { KEPT_BY_WORKER } else { KEPT };
        let all = complete(&self.path)?;
        let behind = all.partition_point(|(steps, _)| *steps <= newest.steps);
        let old = behind.saturating_sub(most);
        all[..old].iter().chain(&all[behind..]).try_for_each(|(_, path)| discard(path))
    }
}

fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// The number in the name of a checkpoint.
fn steps_of(path: &Path) -> Option<u64> {
    name_of(path).strip_prefix(PREFIX)?.parse().ok()
}

/// Checkpoints in this folder, oldest first.
fn complete(folder: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(at(folder))? {
        let path = entry.map_err(at(folder))?.path();
        found.extend(steps_of(&path).map(|steps| (steps, path)));
    }
    found.sort_unstable();
    Ok(found)
}

/// Makes the names in a folder durable.
fn sync(folder: &Path) -> Result<(), CheckpointError> {
    files::sync_folder(folder).map_err(at(folder))
}

/// Removes a checkpoint: it loses its name first, so that half of one is never taken for a whole one.
fn discard(checkpoint: &Path) -> Result<(), CheckpointError> {
    let doomed = checkpoint.with_file_name(format!("{DRAFT}old-{}", name_of(checkpoint)));
    fs::rename(checkpoint, &doomed).map_err(at(checkpoint))?;
    fs::remove_dir_all(&doomed).map_err(at(&doomed))
}

fn write_file(folder: &Path, name: &str, content: &[u8]) -> Result<Entry, CheckpointError> {
    let path = folder.join(name);
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&path)?;
        file.write_all(content)?;
        files::sync(&file, &path)
    };
    write().map_err(at(&path))?;
    Ok(Entry::of(name, content))
}

fn write_draft(draft: &Path, checkpoint: &Checkpoint, layout: &Layout) -> Result<(), CheckpointError> {
    fs::create_dir(draft).map_err(at(draft))?;
    let impossible = |what: String| CheckpointError::foreign(draft, what);
    let mut files = Vec::new();
    for (rank, replica) in checkpoint.replicas.iter().enumerate() {
        let content = replica.to_bytes(layout).map_err(|error| impossible(error.to_string()))?;
        files.push(write_file(draft, &model_file(rank), &content)?);
    }
    let names = rank_files(checkpoint.worker.as_ref(), checkpoint.memories.len());
    for (at, (kept, name)) in checkpoint.memories.iter().zip(names).enumerate() {
        let numbers = [&checkpoint.gradients, &checkpoint.carried];
        let numbers = numbers.map(|of| of.get(at).map_or(&[][..], Vec::as_slice));
        let content = memory::to_bytes(kept, numbers).map_err(impossible)?;
        files.push(write_file(draft, &name, &content)?);
    }
    if !checkpoint.downlink.is_empty() {
        let content = memory::to_bytes(&checkpoint.downlink, [&[]; 2]).map_err(impossible)?;
        files.push(write_file(draft, DOWNLINK, &content)?);
    }
    if !checkpoint.controller.is_empty() {
        let content = memory::to_bytes(&checkpoint.controller, [&[]; 2]).map_err(impossible)?;
        files.push(write_file(draft, CONTROLLER, &content)?);
    }
    if !checkpoint.norms.is_empty() {
        files.push(write_file(draft, NORMS, &norms::to_bytes(&checkpoint.norms).map_err(impossible)?)?);
    }
    if let Some(best) = &checkpoint.best {
        let content = best.to_bytes(layout).map_err(|error| impossible(error.to_string()))?;
        files.push(write_file(draft, BEST, &content)?);
    }
    let manifest = Manifest {
        format: FORMAT.to_owned(),
        version: VERSION,
        steps: checkpoint.steps,
        workers: checkpoint.memories.len(),
        worker: checkpoint.worker.clone(),
        fingerprint: format!("{:016x}", layout.fingerprint()),
        totals: checkpoint.totals.clone(),
        files,
        config: checkpoint.config.to_toml().map_err(|error| impossible(error.to_string()))?,
        crc32: 0,
    };
    let text =
        serde_json::to_string_pretty(&manifest.sealed()).map_err(|error| impossible(error.to_string()))?;
    write_file(draft, MANIFEST, (text + "\n").as_bytes())?;
    sync(draft)
}

/// A checkpoint whose files were not read yet: enough to build the model to which they belong.
#[derive(Clone, Debug)]
pub struct Found {
    path: PathBuf,
    manifest: Manifest,
    config: RunConfig,
}

/// The newest checkpoint under `path`: a run's folder, or a checkpoint's own.
///
/// # Errors
///
/// `None`; `Io`, `Corrupt` or `Foreign` for the newest one. An older one must be named itself, so that nobody
/// goes back without knowing; `Corrupt` says which.
pub fn latest(path: &Path) -> Result<Found, CheckpointError> {
    if path.join(MANIFEST).exists() {
        // However it is named, the folder of its run is two above.
        return Found::read(&path.canonicalize().map_err(at(path))?);
    }
    let folder = path.join(FOLDER);
    if !folder.is_dir() {
        // Reports a folder that is missing or cannot be read.
        fs::read_dir(path).map_err(at(path))?;
        return Err(CheckpointError::None(path.to_path_buf()));
    }
    let mut all = complete(&folder)?;
    let (_, newest) = all.pop().ok_or_else(|| CheckpointError::None(path.to_path_buf()))?;
    Found::read(&newest)
}

/// The checkpoint after so many steps, in a run's folder.
///
/// # Errors
///
/// As [`latest`].
#[cfg(feature = "mpi")]
pub(crate) fn after(run: &Path, steps: u64) -> Result<Found, CheckpointError> {
    Found::read(&run.join(FOLDER).join(named(steps)))
}

/// What the checkpoint after so many steps is called.
fn named(steps: u64) -> String {
    format!("{PREFIX}{steps:08}")
}

impl CheckpointError {
    /// Adds the newest whole checkpoint before the damaged one, or that there is none.
    fn beside(self, damaged: &Path) -> Self {
        match self {
            Self::Corrupt { path, what, .. } => match newest_whole_before(damaged) {
                None => Self::corrupt(path, format!("{what}; no checkpoint before it is whole")),
                before => Self::Corrupt { path, what, before },
            },
            other => other,
        }
    }
}

/// The newest checkpoint before that one whose files are all whole.
fn newest_whole_before(checkpoint: &Path) -> Option<PathBuf> {
    let steps = steps_of(checkpoint)?;
    newest_whole(checkpoint.parent()?, |at| at < steps)
}

/// The newest checkpoint in the folder, of those with such a number of steps, whose files are all whole.
fn newest_whole(folder: &Path, counts: impl Fn(u64) -> bool) -> Option<PathBuf> {
    let all = complete(folder).ok()?;
    let mut older = all.into_iter().rev().filter(|(steps, _)| counts(*steps)).map(|(_, path)| path);
    older.find(|path| Found::parse(path).is_ok_and(|found| found.is_whole()))
}

impl Found {
    fn read(path: &Path) -> Result<Self, CheckpointError> {
        Self::parse(path).map_err(|error| error.beside(path))
    }

    fn parse(path: &Path) -> Result<Self, CheckpointError> {
        let file = path.join(MANIFEST);
        let bytes = fs::metadata(&file).map_err(at_part(&file))?.len();
        if bytes > MAX_MANIFEST_BYTES {
            return Err(CheckpointError::foreign(
                &file,
                format!("{bytes} bytes are too many for a manifest"),
            ));
        }
        let content = fs::read(&file).map_err(at_part(&file))?;
        let manifest: Manifest = serde_json::from_slice(&content)
            .map_err(|error| CheckpointError::corrupt(&file, error.to_string()))?;
        let is_ours = manifest.format == FORMAT && VERSIONS.contains(&manifest.version);
        let claim = || {
            let Manifest { format, version, .. } = &manifest;
            format!("{format:?} version {version} instead of {FORMAT:?} version {VERSION}")
        };
        if !manifest.is_sealed() {
            let said = if is_ours { String::new() } else { format!(", and it says {}", claim()) };
            return Err(CheckpointError::corrupt(&file, format!("its checksum is wrong{said}")));
        }
        if !is_ours {
            return Err(CheckpointError::foreign(&file, claim()));
        }
        let settings = Settings::parse(&manifest.config);
        let config =
            settings.and_then(|settings| RunConfig::resolve(&settings).map_err(|error| error.to_string()));
        let config = config.map_err(|what| CheckpointError::foreign(&file, what))?;
        Ok(Self { path: path.to_path_buf(), manifest, config })
    }

    /// The configuration of the run.
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// How many steps were done.
    pub fn steps(&self) -> u64 {
        self.manifest.steps
    }

    /// The worker, if it is that of one worker of a server's run.
    pub fn worker(&self) -> Option<&Single> {
        self.manifest.worker.as_ref()
    }

    /// The command of this program that continues from it.
    pub fn command(&self) -> &'static str {
        match (self.config.transport, self.worker()) {
            (_, Some(_)) => "join",
            (TransportKind::Zmq, None) => "serve",
            (TransportKind::Local | TransportKind::Mpi | TransportKind::Tcp, None) => "train",
        }
    }

    /// Those before this one in the same folder, oldest first; each may have an error of its own.
    ///
    /// # Errors
    ///
    /// `Io` when the folder cannot be read; of a checkpoint also `Corrupt` and `Foreign`.
    pub fn before(&self) -> Result<Vec<Result<Self, CheckpointError>>, CheckpointError> {
        let Some(folder) = self.path.parent() else { return Ok(Vec::new()) };
        let older = complete(folder)?.into_iter().filter(|(steps, _)| *steps < self.steps());
        Ok(older.map(|(_, path)| Self::read(&path)).collect())
    }

    /// Where the checkpoint lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of the run that it belongs to.
    pub fn run_folder(&self) -> Option<&Path> {
        self.path.parent()?.parent()
    }

    /// Reads and checks every file.
    ///
    /// # Errors
    ///
    /// `Io`; `Corrupt` for a file that is not as the manifest says; `Foreign` for one of another model.
    pub fn read_all(self, layout: &Layout) -> Result<Checkpoint, CheckpointError> {
        let path = self.path.clone();
        self.read_files(layout).map_err(|error| error.beside(&path))
    }

    fn read_files(self, layout: &Layout) -> Result<Checkpoint, CheckpointError> {
        let file = self.path.join(MANIFEST);
        let fingerprint = format!("{:016x}", layout.fingerprint());
        if self.manifest.fingerprint != fingerprint {
            let what = format!("a model of layout {}, not {fingerprint}", self.manifest.fingerprint);
            return Err(CheckpointError::foreign(file, what));
        }
        if self.manifest.workers != self.config.reporting_workers() {
            return Err(CheckpointError::foreign(file, "memories of another number of workers"));
        }
        let replica =
            |content: &[u8]| Replica::from_bytes(content, layout).map_err(|error| error.to_string());
        let replica_count = if self.worker().is_some() { 0 } else { self.config.replicas() };
        let replicas = (0..replica_count).map(|rank| self.content(&model_file(rank), replica));
        let replicas = replicas.collect::<Result<_, _>>()?;
        let kept = rank_files(self.worker(), self.manifest.workers)
            .map(|name| self.content(&name, memory::from_bytes));
        let (memories, numbers): (_, Vec<[Vec<f32>; 2]>) =
            kept.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        let (mut gradients, carried): (Vec<_>, _) = numbers.into_iter().map(<(_, _)>::from).unzip();
        let is_delayed = self.config.is_delayed();
        if gradients.iter().any(|gradient| gradient.len() != if is_delayed { layout.len() } else { 0 }) {
            return Err(CheckpointError::foreign(
                file,
                "gradients of another model, or of a run that is not delayed",
            ));
        }
        gradients.truncate(if is_delayed { gradients.len() } else { 0 });
        let downlink = self.has(DOWNLINK).then(|| self.content(DOWNLINK, memory::from_bytes)).transpose()?;
        let controller =
            self.has(CONTROLLER).then(|| self.content(CONTROLLER, memory::from_bytes)).transpose()?;
        let norms = self.has(NORMS).then(|| self.content(NORMS, norms::from_bytes)).transpose()?;
        let best = |content: &[u8]| Best::from_bytes(content, layout).map_err(|error| error.to_string());
        let best = self.has(BEST).then(|| self.content(BEST, best)).transpose()?;
        let Manifest { steps, worker, totals, .. } = self.manifest;
        let ((downlink, _), norms) = (downlink.unwrap_or_default(), norms.unwrap_or_default());
        let (controller, _) = controller.unwrap_or_default();
        let config = self.config;
        Ok(Checkpoint {
            config,
            steps,
            worker,
            replicas,
            memories,
            gradients,
            carried,
            downlink,
            norms,
            best,
            controller,
            totals,
        })
    }

    fn has(&self, name: &str) -> bool {
        self.manifest.files.iter().any(|entry| entry.name == name)
    }

    /// Whether every file that the manifest names is as it says.
    fn is_whole(&self) -> bool {
        self.manifest.files.iter().all(|entry| self.bytes_of(entry).is_ok())
    }

    fn content<T>(
        &self,
        name: &str,
        parse: impl Fn(&[u8]) -> Result<T, String>,
    ) -> Result<T, CheckpointError> {
        let path = self.path.join(name);
        let entry = self.manifest.files.iter().find(|entry| entry.name == name);
        let entry = entry.ok_or_else(|| CheckpointError::corrupt(&path, "the manifest does not name it"))?;
        parse(&self.bytes_of(entry)?).map_err(|what| CheckpointError::foreign(path, what))
    }

    /// The content of a file, which is as the manifest says.
    fn bytes_of(&self, entry: &Entry) -> Result<Vec<u8>, CheckpointError> {
        let path = self.path.join(&entry.name);
        let bytes = fs::metadata(&path).map_err(at_part(&path))?.len();
        if bytes != entry.bytes {
            return Err(CheckpointError::corrupt(path, format!("{bytes} bytes instead of {}", entry.bytes)));
        }
        let content = fs::read(&path).map_err(at_part(&path))?;
        entry.fault(&content).map_or(Ok(content), |what| Err(CheckpointError::corrupt(path, what)))
    }
}
