//! The folder of a command's results.

use std::path::{Path, PathBuf};

use super::defaults::CHECKPOINT_EVERY;
use super::failure::Failure;
use crate::checkpoint::Checkpoint;
use crate::compare::file_name;
use crate::config::{ConfigError, RunConfig, Settings};
use crate::job::{Job, JobError};
use crate::record::folder::Folder;
use crate::run::{Length, extend};

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Output {
    /// Folder for the results [default: runs/quickstart, or a folder under runs/ that is named after what is
    /// trained or compared]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Write into the folder even if it is not empty
    #[arg(long)]
    pub(crate) force: bool,
}

/// The folder that was named, or one for this job. The command was told of the job in these files.
pub(crate) fn create_folder(job: &Job, output: &Output, told: &[Option<&Path>]) -> Result<Folder, Failure> {
    let named = || Ok::<_, JobError>(Path::new("runs").join(default_name(&job.config)?));
    let folder = output.out.clone().map_or_else(named, Ok)?;
    let read = job.config.inputs();
    let inputs: Vec<&Path> =
        read.iter().map(PathBuf::as_path).chain(told.iter().copied().flatten()).collect();
    Ok(Folder::create_apart(&folder, output.force, &inputs)?)
}

/// Longer names are shortened.
const LONGEST_NAME: usize = 120;

/// A name that says what is trained: data, codec, seed, and every setting that differs from its default. Runs
/// of different settings have different names.
fn default_name(config: &RunConfig) -> Result<String, ConfigError> {
    let RunConfig { data, codec, seed, .. } = config;
    let plain = Settings {
        data: Some(*data),
        codec: Some(codec.to_string()),
        seed: Some(*seed),
        checkpoint_every: Some(CHECKPOINT_EVERY),
        ..Settings::default()
    };
    let plain = RunConfig::resolve(&plain)?.to_toml()?;
    let text = config.to_toml()?;
    let own =
        text.lines().filter(|line| !line.starts_with("data_") && !plain.lines().any(|known| known == *line));
    let own: String = own.map(|line| format!("-{line}")).collect();
    let name = format!("{data}-{}-seed-{seed}", file_name(&codec.to_string()));
    let whole = format!("{name}{}", words(&own));
    if whole.len() <= LONGEST_NAME {
        return Ok(whole);
    }
    let short: String = name.chars().take(LONGEST_NAME).collect();
    Ok(format!("{short}-{:08x}", crc32fast::hash(whole.as_bytes())))
}

/// Settings as part of a file's name: what stands between words and numbers becomes one hyphen.
fn words(settings: &str) -> String {
    let mut words = String::new();
    for c in file_name(settings).chars() {
        if c != '-' || !words.ends_with('-') {
            words.push(c);
        }
    }
    words.trim_end_matches('-').to_owned()
}

/// The run of a checkpoint, to its own end or to a later one.
pub(crate) fn to_end(config: &RunConfig, length: Option<Length>) -> Result<Job, JobError> {
    let job = Job::prepare(config.clone())?;
    match length {
        Some(length) => job.extended(length),
        None => Ok(job),
    }
}

/// As [`reopen`], and the checkpoint from which the run continues: if it gets a later end, one that says so.
pub(crate) fn reopen_to_end(
    run: &Path,
    job: &Job,
    checkpoint: Checkpoint,
) -> Result<(Folder, Checkpoint), Failure> {
    if checkpoint.config == job.config {
        return Ok((reopen(run, job, &checkpoint)?, checkpoint));
    }
    job.ensure_extensible(&checkpoint).map_err(JobError::from)?;
    let folder = Folder::open(run)?;
    ensure_unchanged(&folder, job, &checkpoint)?;
    let checkpoint = extend(job, &folder, &checkpoint)?;
    Ok((folder, checkpoint))
}

/// The folder of a run that has steps to do.
pub(crate) fn reopen(run: &Path, job: &Job, checkpoint: &Checkpoint) -> Result<Folder, Failure> {
    let folder = Folder::open(run)?;
    ensure_unchanged(&folder, job, checkpoint)?;
    // A process may have been killed between its last step and its summary.
    if checkpoint.steps >= job.steps && folder.file("summary.json").exists() {
        let more = if job.config.comes_and_goes() { "" } else { "; for more, give --epochs or --steps too" };
        return Err(Failure::Usage(format!("{}: all {} steps are done{more}", run.display(), job.steps)));
    }
    Ok(folder)
}

/// Refuses to continue beside a `config.toml` that says something else than the checkpoint and the job: who
/// changed it wants the change to count, and it would be lost. One that is missing is written again.
fn ensure_unchanged(folder: &Folder, job: &Job, checkpoint: &Checkpoint) -> Result<(), Failure> {
    let path = folder.file("config.toml");
    if !path.exists() {
        folder.write("config.toml", &checkpoint.config.to_toml().map_err(JobError::from)?)?;
        return Ok(());
    }
    let config = Settings::read(&path).and_then(|settings| RunConfig::resolve(&settings));
    let config = config.map_err(JobError::from)?;
    if config == checkpoint.config || config == job.config {
        return Ok(());
    }
    let differ = config.differences(&checkpoint.config).map_err(JobError::from)?;
    let longer = if config.is_alike_but_for_length(&checkpoint.config) {
        "to train longer, undo it and give --steps or --epochs"
    } else {
        "undo it, or begin another run with it: --config FILE --out DIR"
    };
    let what = format!("changed since the run began: {differ}; a run keeps its settings: {longer}");
    Err(Failure::of_file(&path, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(change: impl FnOnce(&mut Settings)) -> String {
        let checkpoint_every = Some(CHECKPOINT_EVERY);
        let mut settings = Settings { checkpoint_every, ..Settings::default() };
        change(&mut settings);
        default_name(&RunConfig::resolve(&settings).unwrap()).unwrap()
    }

    #[test]
    fn runs_of_different_settings_have_different_folders() {
        assert_eq!(name(|_| ()), "optdigits-topk-density-0.01-seed-1");
        let given = name(|settings| {
            (settings.lr, settings.hidden) = (Some(0.1), Some(vec![512, 256]));
            (settings.seed, settings.codec) = (Some(7), Some("none".to_owned()));
        });
        assert_eq!(given, "optdigits-none-seed-7-hidden-512-256-lr-0.1");
        assert_eq!(name(|settings| settings.lr = Some(0.3)), name(|_| ()), "as without being named");
        let long = |width| name(|settings| settings.hidden = Some(vec![width; 40]));
        assert!(long(8).len() < LONGEST_NAME && long(8) != long(9), "{} {}", long(8), long(9));
    }
}
