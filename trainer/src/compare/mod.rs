//! Several codecs on the same task, with the same seeds and the same budget.

mod candidate;
pub mod quickstart;

use serde::Serialize;

pub use self::candidate::Candidate;

use crate::config::{RunConfig, Settings};
use crate::data::{Dataset, Source};
use crate::job::{Job, JobError};
use crate::record::Metrics;
use crate::record::folder::Folder;
use crate::run::in_folder::run_into;
use crate::run::{Outcome, RunError};

/// The jobs of a comparison: for each candidate one for each seed.
#[derive(Debug)]
pub struct Plan {
    rows: Vec<Row>,
}

/// The jobs of one candidate.
#[derive(Debug)]
struct Row {
    label: String,
    /// One for each seed.
    jobs: Vec<Job>,
}

/// What came of a comparison.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// One for each candidate, in the order they were given.
    pub entries: Vec<Entry>,
    /// What was trained: the configuration of the first run.
    pub config: RunConfig,
    /// Number of parameters.
    pub params: usize,
}

/// One candidate's runs.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The codec, and behind it the settings that this candidate has of its own.
    pub label: String,
    /// The configuration of its first seed.
    pub config: RunConfig,
    /// One for each seed.
    pub outcomes: Vec<Outcome>,
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
        self.config.codec == "none"
    }

    /// A number of every run's summary, over the seeds.
    pub fn spread(&self, of: impl Fn(&crate::record::Summary) -> f64) -> Spread {
        Spread::of(self.outcomes.iter().map(|outcome| of(&outcome.summary)))
    }

    /// A number of every step, mean over the seeds. Steps that some run has nothing for are left out.
    pub fn curve(&self, of: impl Fn(&Metrics) -> Option<f64>) -> Vec<(u64, f64)> {
        let Some(first) = self.outcomes.first() else { return Vec::new() };
        let mean = |index: usize| -> Option<f64> {
            let values = self.outcomes.iter().map(|outcome| outcome.metrics.get(index).and_then(&of));
            values.sum::<Option<f64>>().map(|sum| sum / self.outcomes.len() as f64)
        };
        let steps = first.metrics.iter().enumerate();
        steps.filter_map(|(index, line)| Some((line.step, mean(index)?))).collect()
    }
}

impl Plan {
    /// Checks everything and reads the data, once.
    ///
    /// # Errors
    ///
    /// [`JobError`] of the first candidate that is refused, and if two of them are the same.
    pub fn new(settings: &Settings, candidates: &[Candidate], seeds: u64) -> Result<Self, JobError> {
        let resolved = |candidate: &Candidate| RunConfig::resolve(&candidate.settings(settings)?);
        let configs: Vec<RunConfig> = candidates.iter().map(resolved).collect::<Result<_, _>>()?;
        candidate::refuse_twice(candidates, &configs.iter().collect::<Vec<_>>())?;
        let dataset = load(configs.first().filter(|_| seeds > 0))?;
        let rows = candidates.iter().zip(configs).map(|(candidate, first)| {
            let seeded = |number| RunConfig { seed: first.seed.wrapping_add(number), ..first.clone() };
            let jobs = (0..seeds).map(|number| Job::with_data(seeded(number), dataset.clone()));
            let jobs: Vec<Job> = jobs.collect::<Result<_, _>>()?;
            Ok(Row { label: format!("{}{}", jobs[0].config.codec, candidate.own_text()), jobs })
        });
        Ok(Self { rows: rows.collect::<Result<_, JobError>>()? })
    }

    /// Does the runs, one after the other, each in a folder of its own.
    ///
    /// # Errors
    ///
    /// That of the first run that fails.
    pub fn run(&self, folder: &Folder) -> Result<Comparison, RunError> {
        let entries = self.rows.iter().map(|Row { label, jobs }| {
            let outcomes = jobs.iter().map(|job| {
                let name = format!("{}-seed-{}", file_name(label), job.config.seed);
                let folder = folder.inner(&name).map_err(|error| RunError::Observer(error.to_string()))?;
                let name = match jobs.len() {
                    1 => label.clone(),
                    _ => format!("{label}, seed {}", job.config.seed),
                };
                run_into(job, &folder, &name, LINES)
            });
            let outcomes = outcomes.collect::<Result<_, RunError>>()?;
            Ok(Entry { label: label.clone(), config: jobs[0].config.clone(), outcomes })
        });
        let entries = entries.collect::<Result<Vec<Entry>, RunError>>()?;
        let first = &self.rows[0].jobs[0];
        Ok(Comparison { entries, config: first.config.clone(), params: first.layout.len() })
    }
}

impl Comparison {
    /// A comparison of a single run.
    pub fn of_one(job: &Job, outcome: Outcome) -> Self {
        let (label, config) = (job.config.codec.clone(), job.config.clone());
        let entries = vec![Entry { label, config: config.clone(), outcomes: vec![outcome] }];
        Self { entries, config, params: job.layout.len() }
    }

    /// Whether the task is text, which is measured by perplexity.
    pub fn is_text(&self) -> bool {
        self.entries.iter().flat_map(|entry| &entry.outcomes).any(|run| run.summary.perplexity.is_some())
    }

    /// Number of seeds.
    pub fn seeds(&self) -> usize {
        self.entries.first().map_or(0, |entry| entry.outcomes.len())
    }

    /// Steps of every run.
    pub fn steps(&self) -> u64 {
        self.entries.first().and_then(|entry| entry.outcomes.first()).map_or(0, |run| run.summary.steps)
    }

    /// Every run's summary, as `summary.json` of the comparison.
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
    let source: Source = config.data.parse()?;
    Ok(source.load(config.data_dir.as_deref())?)
}

/// Lines of progress for each run, in a pipe.
const LINES: u64 = 2;

/// A spelling as part of a file's name.
pub fn file_name(spelling: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    spelling.chars().map(plain).collect()
}
