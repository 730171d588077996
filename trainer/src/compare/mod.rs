//! Several codecs on the same task, with the same seeds and the same budget.

mod broken;
mod candidate;
#[cfg(test)]
pub(crate) mod fixture;
pub mod grid;
mod kept;
mod pace;
pub mod quickstart;
mod rates;
mod runner;
mod unchanged;
mod vary;

use std::path::PathBuf;

use serde::Serialize;

use self::broken::judged;
pub use self::broken::{Broken, Why};
pub use self::candidate::Candidate;
use self::grid::Grid;
use self::kept::Kept;
use self::pace::Paced;
use self::runner::InThreads;
#[cfg(feature = "mpi")]
pub(crate) use self::runner::LINES;
pub(crate) use self::runner::{Runner, Turn};

use crate::checkpoint::Checkpoint;
use crate::config::{ConfigError, RunConfig, Settings, adapted};
use crate::data::Dataset;
use crate::job::{Job, JobError};
use crate::record::Metrics;
use crate::record::folder::{Folder, FolderError};
use crate::record::progress::Progress;
use crate::run::{Length, Outcome, extend};

/// The jobs of a comparison: for each candidate one for each seed.
#[derive(Debug)]
pub struct Plan {
    grid: Grid,
    /// The content of `grid.toml`.
    text: String,
    rows: Vec<Row>,
}

/// What is compared is not named in full beyond that.
const LONGEST_NAME: usize = 80;

/// Most file systems hold names of 255 bytes, and `-seed-N` follows.
const LONGEST_FOLDER: usize = 200;

/// The jobs of one candidate.
#[derive(Debug)]
struct Row {
    label: String,
    /// Prefix of the folders of its runs; no two rows have the same.
    folder: String,
    /// Whether its epochs or steps are its own, not those that all share.
    has_own_length: bool,
    /// One for each seed.
    jobs: Vec<Job>,
}

/// The results of a comparison.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// One for each candidate, in the order they were given.
    pub entries: Vec<Entry>,
    /// What was trained: the configuration of the first run.
    pub config: RunConfig,
    /// Number of parameters.
    pub params: usize,
    /// Steps of a run.
    pub steps: u64,
    /// Runs of each candidate.
    pub seeds: usize,
    /// Whether the task is text, which is measured by perplexity.
    pub is_text: bool,
    /// What a prediction is one of: classes, or tokens of the vocabulary.
    pub choices: usize,
}

impl Comparison {
    /// Whether the test part took the place of a validation part that the data does not have.
    pub fn validates_on_test(&self) -> bool {
        let mut runs = self.entries.iter().flat_map(|entry| &entry.outcomes);
        runs.any(|run| run.summary.validated_on == "test")
    }
}

/// One candidate's runs.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The codec, followed by the settings that this candidate has of its own.
    pub label: String,
    /// The configuration of its first seed.
    pub config: RunConfig,
    /// The runs that came to their end, by seed.
    pub outcomes: Vec<Outcome>,
    /// The others.
    pub broken: Vec<Broken>,
}

/// Mean and standard deviation over the seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Standard deviation of the sample; 0 for one seed.
    pub deviation: f64,
}

impl Spread {
    /// Of some values.
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
        Self { mean, deviation: if n > 1.0 { (squares / (n - 1.0)).sqrt() } else { 0.0 } }
    }
}

impl Entry {
    /// Whether whole gradients are sent as they are: the yardstick for the others.
    pub fn is_dense(&self) -> bool {
        self.config.codec.is_dense()
    }

    /// A number of every finished run's summary, over the seeds; NaN if no run has finished.
    pub fn spread(&self, of: impl Fn(&crate::record::Summary) -> f64) -> Spread {
        Spread::of(self.outcomes.iter().map(|outcome| of(&outcome.summary)))
    }

    /// A number of every step, mean over the finished seeds. Steps for which some run lacks the number are
    /// left out.
    pub fn curve(&self, of: impl Fn(&Metrics) -> Option<f64>) -> Vec<(u64, f64)> {
        self.spreads(of).into_iter().map(|(step, spread)| (step, spread.mean)).collect()
    }

    /// As [`curve`](Self::curve): the standard deviation over the finished seeds.
    pub fn deviations(&self, of: impl Fn(&Metrics) -> Option<f64>) -> Vec<(u64, f64)> {
        self.spreads(of).into_iter().map(|(step, spread)| (step, spread.deviation)).collect()
    }

    fn spreads(&self, of: impl Fn(&Metrics) -> Option<f64>) -> Vec<(u64, Spread)> {
        let Some(first) = self.outcomes.first() else { return Vec::new() };
        let spread = |index: usize| -> Option<Spread> {
            let values = self.outcomes.iter().map(|outcome| outcome.metrics.get(index).and_then(&of));
            let values: Vec<f64> = values.collect::<Option<_>>()?;
            Some(Spread::of(values.into_iter()))
        };
        let steps = first.metrics.iter().enumerate();
        steps.filter_map(|(index, line)| Some((line.step, spread(index)?))).collect()
    }
}

impl Plan {
    /// Checks everything and reads the data, once.
    ///
    /// # Errors
    ///
    /// [`JobError`] of the first candidate that is refused, and if two of them are the same.
    pub fn new(settings: &Settings, candidates: &[Candidate], seeds: u64) -> Result<Self, JobError> {
        let candidates = candidates.to_vec();
        Self::of(Grid { seeds: Some(seeds), settings: settings.clone(), candidates, ..Grid::default() })
    }

    /// As [`Plan::new`], for a grid: a candidate becomes one for each combination of the values of its
    /// settings. With a codec that owns its momentum, `none` with the same momentum is compared too.
    ///
    /// # Errors
    ///
    /// As [`Plan::new`].
    pub fn of(grid: Grid) -> Result<Self, JobError> {
        let Grid { settings, candidates, vary, .. } = &grid;
        let candidates = &vary::dense_with_momentum(vary::expanded(candidates, vary)?, settings)?;
        let seeds = grid.seeds.unwrap_or(1);
        let configs = candidates.iter().map(|candidate| candidate.config(settings));
        let configs: Vec<RunConfig> = configs.collect::<Result<_, _>>()?;
        candidate::refuse_twice(candidates, &configs.iter().collect::<Vec<_>>())?;
        let dataset = load(configs.first().filter(|_| seeds > 0))?;
        let mut rows: Vec<Row> = Vec::new();
        for (candidate, first) in candidates.iter().zip(configs) {
            let seeded = |number| RunConfig { seed: first.seed.wrapping_add(number), ..first.clone() };
            let jobs = (0..seeds).map(|number| Job::with_data(seeded(number), dataset.clone()));
            let jobs: Vec<Job> = jobs.collect::<Result<_, _>>()?;
            let label = format!("{}{}", jobs[0].config.codec, candidate.own_text());
            let folder = unused(&rows, &shortened(file_name(&label)));
            rows.push(Row { folder, label, has_own_length: candidate.has_own_length(), jobs });
        }
        Ok(Self { text: grid.to_toml()?, grid, rows })
    }

    /// The same comparison with longer runs. Candidates with a length of their own keep it.
    ///
    /// # Errors
    ///
    /// As [`Job::extended`]; and if every candidate has a length of its own.
    pub fn extended(self, length: Length) -> Result<Self, JobError> {
        let Self { mut grid, rows, .. } = self;
        let Some(shared) = rows.iter().find(|row| !row.has_own_length) else {
            let why = "every codec has a number of epochs or steps of its own; begin another comparison";
            return Err(ConfigError::Conflict(why.to_owned()).into());
        };
        grid.longer_than.push(grid::length_text(&shared.jobs[0].config));
        let longer = |row: Row| match row.has_own_length {
            true => Ok(row),
            false => {
                let jobs = row.jobs.into_iter().map(|job| job.extended(length));
                Ok(Row { jobs: jobs.collect::<Result<_, JobError>>()?, ..row })
            }
        };
        let rows = rows.into_iter().map(longer).collect::<Result<_, JobError>>()?;
        (grid.settings.epochs, grid.settings.steps) = length.keys();
        Ok(Self { text: grid.to_toml()?, grid, rows })
    }

    /// A name that says what is compared, for a folder. Comparisons of different settings have different
    /// names.
    pub fn name(&self) -> String {
        let labels: Vec<&str> = self.rows.iter().map(|row| row.label.as_str()).collect();
        let short: String = file_name(&labels.join("-")).chars().take(LONGEST_NAME).collect();
        format!("compare-{short}-{:08x}", crc32fast::hash(self.text.as_bytes()))
    }

    /// The content of `grid.toml`.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The files that its runs read.
    pub fn inputs(&self) -> Vec<PathBuf> {
        self.rows.iter().flat_map(|row| &row.jobs).flat_map(|job| job.config.inputs()).collect()
    }

    /// Writes down what is compared, so that [`Plan::resume`] finds it.
    ///
    /// # Errors
    ///
    /// If the folder cannot be written to.
    pub fn write_down(&self, folder: &Folder) -> Result<(), FolderError> {
        folder.write(grid::FILE, &self.text).map(|_| ())
    }

    /// Does the runs, one after the other, each in a folder of its own. A run that fails is [`Broken`], and
    /// the others continue; once the user interrupts, no further run begins.
    ///
    /// # Errors
    ///
    /// If the folder cannot be written to.
    pub fn run(&self, folder: &Folder) -> Result<Comparison, FolderError> {
        self.run_by(&mut InThreads, folder)
    }

    /// As [`Plan::run`], with the caller's way to do a run.
    pub(crate) fn run_by(&self, runner: &mut dyn Runner, folder: &Folder) -> Result<Comparison, FolderError> {
        for (row, job) in self.rows.iter().flat_map(|row| row.jobs.iter().map(move |job| (row, job))) {
            if folder.file(&row.folder_of(job)).is_dir() {
                kept::forget(&folder.inner(&row.folder_of(job))?)?;
            }
        }
        self.write_down(folder)?;
        let mut paced = Paced::new(runner, self.len());
        Ok(self.comparison(|row, job| row.run(job, folder, paced.next())))
    }

    /// As [`Plan::run`], in the folder of a comparison that was ended: runs that finished or diverged are
    /// kept, runs with a checkpoint continue from it, and the others begin.
    pub fn resume(&self, folder: &Folder) -> Comparison {
        self.resume_by(&mut InThreads, folder)
    }

    /// As [`Plan::resume`], with the caller's way to do a run.
    pub(crate) fn resume_by(&self, runner: &mut dyn Runner, folder: &Folder) -> Comparison {
        let mut paced = Paced::new(runner, self.len());
        self.comparison(|row, job| row.resume(job, folder, paced.next()))
    }

    /// Runs of all rows.
    fn len(&self) -> usize {
        self.rows.iter().map(|row| row.jobs.len()).sum()
    }

    /// Every run, and what its folder in that of the comparison is called.
    #[cfg(feature = "mpi")]
    pub(crate) fn runs(&self) -> impl Iterator<Item = (&Job, String)> {
        self.rows.iter().flat_map(|row| row.jobs.iter().map(|job| (job, row.folder_of(job))))
    }

    fn comparison(&self, mut end: impl FnMut(&Row, &Job) -> Result<Outcome, Broken>) -> Comparison {
        let entries = self.rows.iter().map(|row| {
            let (mut outcomes, mut broken) = (Vec::new(), Vec::new());
            for job in &row.jobs {
                match end(row, job) {
                    Ok(outcome) => outcomes.push(outcome),
                    Err(end) => broken.push(end),
                }
            }
            Entry { label: row.label.clone(), config: row.jobs[0].config.clone(), outcomes, broken }
        });
        let entries = entries.collect();
        Comparison { entries, ..Comparison::empty(&self.rows[0].jobs[0], self.rows[0].jobs.len()) }
    }
}

impl Row {
    fn folder_of(&self, job: &Job) -> String {
        format!("{}-seed-{}", self.folder, job.config.seed)
    }

    fn name_of(&self, job: &Job) -> String {
        match self.jobs.len() {
            1 => self.label.clone(),
            _ => format!("{}, seed {}", self.label, job.config.seed),
        }
    }

    /// Does a run from its first step.
    fn run(&self, job: &Job, folder: &Folder, runner: &mut dyn Runner) -> Result<Outcome, Broken> {
        let folder = self.begin(job, folder, runner)?;
        kept::forget(&folder).map_err(|error| Broken::failed(job, error))?;
        self.steps(job, &folder, None, runner)
    }

    /// Does the rest of a run.
    fn resume(&self, job: &Job, folder: &Folder, runner: &mut dyn Runner) -> Result<Outcome, Broken> {
        let is_there = folder.file(&self.folder_of(job)).is_dir();
        let inner = is_there.then(|| folder.inner(&self.folder_of(job)).ok()).flatten();
        match inner.map_or(Kept::Nothing, |inner| kept::find(job, &inner)) {
            Kept::Ended(end) => *end,
            Kept::Open(checkpoint) => self.go_on(job, folder, &checkpoint, runner),
            Kept::Damaged(why, before) => {
                let way = before.as_ref().map_or_else(
                    || "starting this run again".to_owned(),
                    |checkpoint| format!("continuing from step {}", checkpoint.steps),
                );
                Progress::new("", 0, 0).line(&format!("{}: {why}; {way}", self.name_of(job)));
                match before {
                    Some(checkpoint) => self.go_on(job, folder, &checkpoint, runner),
                    None => self.run(job, folder, runner),
                }
            }
            Kept::Nothing => self.run(job, folder, runner),
        }
    }

    /// Does the steps after a checkpoint.
    fn go_on(
        &self,
        job: &Job,
        folder: &Folder,
        checkpoint: &Checkpoint,
        runner: &mut dyn Runner,
    ) -> Result<Outcome, Broken> {
        let folder = self.begin(job, folder, runner)?;
        if checkpoint.config != job.config {
            let longer = extend(job, &folder, checkpoint).map_err(|error| Broken::failed(job, error))?;
            return self.steps(job, &folder, Some(&longer), runner);
        }
        self.steps(job, &folder, Some(checkpoint), runner)
    }

    /// Does the steps of a run, from the first or from a checkpoint, in its own folder.
    fn steps(
        &self,
        job: &Job,
        folder: &Folder,
        start: Option<&Checkpoint>,
        runner: &mut dyn Runner,
    ) -> Result<Outcome, Broken> {
        let label = &self.name_of(job);
        judged(job, runner.run(&Turn { job, folder, label, start }), folder)
    }

    /// The folder of a run, unless the user wants no more of them.
    fn begin(&self, job: &Job, folder: &Folder, runner: &dyn Runner) -> Result<Folder, Broken> {
        if runner.is_interrupted() {
            return Err(Broken::not_begun(job));
        }
        folder.inner(&self.folder_of(job)).map_err(|error| Broken::failed(job, error))
    }
}

impl Comparison {
    /// A comparison of a single run.
    pub fn of_one(job: &Job, outcome: Outcome) -> Self {
        let config = job.config.clone();
        let label = adapted(config.codec, config.adapt.as_ref());
        let entries = vec![Entry { label, config, outcomes: vec![outcome], broken: Vec::new() }];
        Self { entries, ..Self::empty(job, 1) }
    }

    /// Nothing yet of runs like this one.
    fn empty(job: &Job, seeds: usize) -> Self {
        let (config, params) = (job.config.clone(), job.layout.len());
        let is_text = job.model.context() > 0;
        let choices = job.dataset.task().choices();
        Self { entries: Vec::new(), config, params, steps: job.steps, seeds, is_text, choices }
    }

    /// Every run without a result, with the label of its row.
    pub fn broken(&self) -> impl Iterator<Item = (&str, &Broken)> {
        self.entries.iter().flat_map(|entry| entry.broken.iter().map(|run| (entry.label.as_str(), run)))
    }

    /// Every finished run's summary, as `summary.json` of the comparison.
    ///
    /// # Errors
    ///
    /// If a number cannot be written.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        let summaries: Vec<_> =
            self.entries.iter().flat_map(|entry| &entry.outcomes).map(|run| &run.summary).collect();
        serde_json::to_string_pretty(&summaries)
    }
}

fn load(first: Option<&RunConfig>) -> Result<Dataset, JobError> {
    let Some(config) = first else {
        return Err(
            crate::range::RangeError::new("codec", "nothing", "at least one codec and one seed").into()
        );
    };
    Ok(config.data.load(config.data_dir.as_deref())?)
}

/// The name, with a number after it if a row already has the name: file names distinguish fewer labels.
fn unused(rows: &[Row], name: &str) -> String {
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let mut names = std::iter::once(name.to_owned()).chain(numbered);
    names.find(|name| rows.iter().all(|row| row.folder != *name)).unwrap_or_default()
}

/// A name that file systems can hold, with a number after it. A long one ends with its checksum.
fn shortened(name: String) -> String {
    if name.len() <= LONGEST_FOLDER {
        return name;
    }
    let short: String = name.chars().take(LONGEST_FOLDER - 9).collect();
    format!("{short}-{:08x}", crc32fast::hash(name.as_bytes()))
}

/// A spelling as part of a file's name.
pub fn file_name(spelling: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    spelling.chars().map(plain).collect()
}
