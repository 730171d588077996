//! `metrics.jsonl` of any run: one of this program, or of the hook of the Python package.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Metrics, Origin};
use crate::config::OptimizerKind;
use crate::files::{json_fault, read_text};

/// A run as its file has it.
#[derive(Clone, Debug, PartialEq)]
pub struct LoggedRun {
    /// The name of its folder.
    pub name: String,
    /// The codec, where the folder says it.
    pub codec: Option<String>,
    /// What set the density of each step, where the folder says it.
    pub adapt: Option<String>,
    /// Name of the data set, where the folder says it.
    pub data: Option<String>,
    /// Name of the model, where the folder says it.
    pub model: Option<String>,
    /// Optimizer, where the folder says it.
    pub optimizer: Option<OptimizerKind>,
    /// Seed, where the folder says it.
    pub seed: Option<u64>,
    /// Rate of each worker's link in Gbit/s, if the run was told.
    pub link_gbps: Option<f64>,
    /// Parameters of the model, where the folder says it.
    pub params: Option<usize>,
    /// Accuracy and perplexity at the end, on the test part; none before it.
    tested: Summary,
    /// A line for each step, by step; of steps that were done again after a resume, the last.
    pub metrics: Vec<Metrics>,
}

/// A run cannot be read. The text is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The system refused, or the file is no text.
    #[error("{}: {what}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says, or what the file is.
        what: String,
    },
    /// A folder of runs, such as a comparison, in place of one of them.
    #[error("{}: not a run, but a folder of runs: {}", path.display(), runs.join(", "))]
    FolderOfRuns {
        /// The folder.
        path: PathBuf,
        /// Paths of the runs in it.
        runs: Vec<String>,
    },
    /// A line is not one of metrics.
    #[error("{}: line {line}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counts from 1.
        line: usize,
        /// Why.
        what: String,
    },
    /// There is no line.
    #[error("{}: no step was recorded", .0.display())]
    Empty(PathBuf),
}

/// A line, with the fields that the hook adds to it.
#[derive(Deserialize)]
struct Line {
    codec: Option<String>,
    #[serde(flatten)]
    metrics: Metrics,
}

/// The keys of `config.toml` that a table shows.
#[derive(Default, Deserialize)]
struct Config {
    codec: Option<String>,
    adapt: Option<String>,
    data: Option<String>,
    model: Option<String>,
    optimizer: Option<OptimizerKind>,
    seed: Option<u64>,
    link_gbps: Option<f64>,
}

/// The keys of `summary.json` that a table or a replay needs.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
struct Summary {
    params: Option<usize>,
    accuracy: Option<f64>,
    perplexity: Option<f64>,
    origin: Option<Origin>,
}

impl LoggedRun {
    /// The files that are read of a run, or of all those in a folder of runs.
    pub(crate) fn files(path: &Path) -> Vec<PathBuf> {
        let files = |file: PathBuf| {
            let beside = ["config.toml", "summary.json"].map(|name| file.with_file_name(name));
            std::iter::once(file).chain(beside)
        };
        let below = runs_in(path).into_iter().map(|run| file_of(Path::new(&run)));
        std::iter::once(file_of(path)).chain(below).flat_map(files).collect()
    }

    /// Reads `metrics.jsonl` in a folder, or the file that is named itself. A last line without its end, of a
    /// run that is under way, is left out.
    ///
    /// # Errors
    ///
    /// [`LogError`].
    pub fn read(path: &Path) -> Result<Self, LogError> {
        let file = file_of(path);
        let text = read_text(&file).map_err(|what| match runs_in(path) {
            runs if runs.is_empty() => LogError::Unreadable { path: file.clone(), what },
            runs => LogError::FolderOfRuns { path: path.to_path_buf(), runs },
        })?;
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut codec = None;
        let mut steps = BTreeMap::new();
        for (number, line) in whole.lines().enumerate() {
            let line: Line = serde_json::from_str(line).map_err(|error| LogError::Line {
                path: file.clone(),
                line: number + 1,
                what: json_fault(line, &error),
            })?;
            codec = line.codec.or(codec);
            steps.insert(line.metrics.step, line.metrics);
        }
        if steps.is_empty() {
            return Err(LogError::Empty(file));
        }
        let (config, summary) = (config_beside(&file)?, summary_beside(&file)?);
        let metrics = steps.into_values().collect();
        Ok(Self {
            name: name_of(&file),
            codec: codec.or(config.codec),
            adapt: config.adapt,
            data: config.data,
            model: config.model,
            optimizer: config.optimizer,
            seed: config.seed,
            link_gbps: config.link_gbps,
            params: summary.params,
            tested: summary,
            metrics,
        })
    }

    /// The runs that a path names: the one that is there, or all those in a folder of runs such as a
    /// comparison.
    ///
    /// # Errors
    ///
    /// As [`LoggedRun::read`].
    pub fn read_all(path: &Path) -> Result<Vec<Self>, LogError> {
        match Self::read(path) {
            Err(LogError::FolderOfRuns { runs, .. }) => {
                runs.iter().map(|run| Self::read(Path::new(run))).collect()
            }
            one => Ok(vec![one?]),
        }
    }

    /// Which program made the run, if it says so.
    pub fn origin(&self) -> Option<&Origin> {
        self.tested.origin.as_ref()
    }

    /// Share of right predictions on the test part at the end or, before it, at the last evaluation.
    pub fn accuracy(&self) -> Option<f64> {
        self.tested.accuracy.or_else(|| self.metrics.iter().rev().find_map(|line| line.accuracy))
    }

    /// Perplexity of a run on text, measured as the accuracy.
    pub fn perplexity(&self) -> Option<f64> {
        self.tested.perplexity.or_else(|| self.metrics.iter().rev().find_map(|line| line.perplexity))
    }
}

/// The file of a run that is named by its folder, or by the file.
fn file_of(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("metrics.jsonl") } else { path.to_path_buf() }
}

/// Runs in a folder that is none itself.
fn runs_in(folder: &Path) -> Vec<String> {
    let inside = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let runs = inside.filter(|path| path.join("metrics.jsonl").is_file());
    let mut runs: Vec<String> = runs.map(|path| path.display().to_string()).collect();
    runs.sort_unstable();
    runs
}

/// The folder's name, followed by the file's if that is not the usual one.
fn name_of(file: &Path) -> String {
    let usual = file.file_name().is_some_and(|name| name == "metrics.jsonl");
    let named = if usual {
        file.canonicalize().ok().and_then(|file| file.parent().map(Path::to_path_buf))
    } else {
        None
    };
    let named = named.as_deref().unwrap_or(file);
    named.file_name().unwrap_or(named.as_os_str()).to_string_lossy().into_owned()
}

/// What a file beside the metrics says. Without keys if there is no such file: the hook writes none, and a
/// run that is under way has no summary.
fn beside<T: Default>(
    file: &Path,
    name: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<T, LogError> {
    let path = file.with_file_name(name);
    if !path.exists() {
        return Ok(T::default());
    }
    let read = read_text(&path).and_then(|text| parse(&text));
    read.map_err(|what| LogError::Unreadable { path, what })
}

/// Keys of a file of another program count as missing.
fn config_beside(file: &Path) -> Result<Config, LogError> {
    let read = |text: &str| text.parse().map_err(|error: toml::de::Error| error.message().to_owned());
    let table: toml::Table = beside(file, "config.toml", read)?;
    Ok(table.try_into().unwrap_or_default())
}

/// As [`config_beside`].
fn summary_beside(file: &Path) -> Result<Summary, LogError> {
    let read = |text: &str| serde_json::from_str(text).map_err(|error| json_fault(text, &error));
    let value: serde_json::Value = beside(file, "summary.json", read)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#""epoch":0,"lr":0.1,"bytes_up":10,"bytes_down":10,"ratio":2.0,"wire_ratio":1.5,"contributors":2,
"encode_ns":1,"exchange_ns":2,"decode_ns":3,"residual_norm":1.0,"density":0.5,"target_density":null}"#;

    fn line(step: u64, loss: &str, more: &str) -> String {
        format!("{{{more}\"step\":{step},\"loss\":{loss},{}", LINE.replace('\n', "")) + "\n"
    }

    fn run_of(text: &str) -> Result<LoggedRun, LogError> {
        run_beside(text, None)
    }

    fn run_beside(text: &str, config: Option<&str>) -> Result<LoggedRun, LogError> {
        let folder = tempfile::tempdir().expect("a folder");
        let inner = folder.path().join("sparse");
        fs::create_dir(&inner).expect("a folder");
        if let Some(config) = config {
            fs::write(inner.join("config.toml"), config).expect("written");
        }
        fs::write(inner.join("metrics.jsonl"), text).expect("written");
        LoggedRun::read(&inner)
    }

    #[test]
    fn the_last_line_of_a_step_counts_and_half_a_line_does_not() {
        let text = [
            line(0, "3.0", "\"codec\":\"topk\","),
            line(1, "2.0", ""),
            line(1, "null", ""),
            line(2, "1.0", "").trim_end().to_owned(),
        ];
        let run = run_of(&text.concat()).expect("a run");
        assert_eq!((run.name.as_str(), run.codec.as_deref()), ("sparse", Some("topk")));
        assert_eq!(run.metrics.iter().map(|line| line.step).collect::<Vec<_>>(), [0, 1]);
        assert!(run.metrics[1].loss.is_nan());
    }

    #[test]
    fn the_configuration_beside_it_names_codec_and_controller() {
        let config = "codec = \"dgc:density=0.01\"\nadapt = \"steps:0=0.1\"\nworkers = 4\n";
        let names = |run: LoggedRun| (run.codec, run.adapt);
        let both = names(run_beside(&line(0, "1.0", ""), Some(config)).expect("a run"));
        assert_eq!(both, (Some("dgc:density=0.01".to_owned()), Some("steps:0=0.1".to_owned())));
        assert_eq!(names(run_of(&line(0, "1.0", "")).expect("a run")), (None, None));
    }

    #[test]
    fn a_damaged_record_beside_it_is_named_and_not_taken_for_none() {
        for config in ["codec = topk\n", "codec = \"none\nlr = 1", "<html>", "\0\0"] {
            let told = run_beside(&line(0, "1.0", ""), Some(config)).expect_err("damaged").to_string();
            assert!(told.contains("config.toml: "), "{config}: {told}");
        }
        // A file of another program counts as missing.
        assert_eq!(run_beside(&line(0, "1.0", ""), Some("codec = 5\n")).expect("a run").codec, None);
    }

    #[test]
    fn what_is_no_run_is_named() {
        let text = |error: Result<LoggedRun, LogError>| error.expect_err("no run").to_string();
        assert!(text(run_of("")).ends_with("metrics.jsonl: no step was recorded"));
        let wrong = line(0, "1.0", "") + "{\"step\":1}\n";
        let told = text(run_of(&wrong));
        assert!(told.contains("metrics.jsonl: line 2: missing field"), "{told}");
        assert!(text(LoggedRun::read(Path::new("nowhere"))).starts_with("nowhere: "));
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["two", "one"] {
            fs::create_dir(folder.path().join(name)).expect("a folder");
            fs::write(folder.path().join(name).join("metrics.jsonl"), "").expect("written");
        }
        let (path, told) = (folder.path().display(), text(LoggedRun::read(folder.path())));
        assert_eq!(told, format!("{path}: not a run, but a folder of runs: {path}/one, {path}/two"));
    }
}
