//! Densities that are known before the run: those of a list, or of a run that is replayed.

use std::fs;
use std::path::{Path, PathBuf};

use gradwire::Density;
use serde::Deserialize;

use super::decision::{Choice, Decision};

/// A log that cannot be replayed. The text is one line.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", path.display())]
pub struct ListError {
    path: PathBuf,
    what: String,
}

/// The decision for each step: an entry holds from its first step until the next entry.
#[derive(Clone, Debug, PartialEq)]
pub struct List {
    /// By ascending steps.
    entries: Vec<(u64, Decision)>,
    /// The log, if a run is replayed; only the steps that it has can be replayed.
    log: Option<PathBuf>,
}

/// The keys of a line of `metrics.jsonl` that count here.
#[derive(Deserialize)]
struct Line {
    step: u64,
    adapt: Option<Decision>,
}

impl List {
    /// Each density holds from the step before it on; that step is multiplied by `unit`.
    pub(super) fn of(list: &[(u64, Density)], unit: u64) -> Self {
        let entry = |&(from, density): &(u64, Density)| {
            (from.saturating_mul(unit), Decision::new(density, Choice::Listed))
        };
        Self { entries: list.iter().map(entry).collect(), log: None }
    }

    /// The decisions of a run, from its `metrics.jsonl` or the folder with that file. Of a step that was done
    /// again after a resume, the last counts.
    pub(super) fn read(path: &Path) -> Result<Self, ListError> {
        let path = if path.is_dir() { path.join("metrics.jsonl") } else { path.to_path_buf() };
        let fault = |what: String| ListError { path: path.clone(), what };
        let text = fs::read_to_string(&path).map_err(|error| fault(error.to_string()))?;
        let mut entries = std::collections::BTreeMap::new();
        // A last line without its end is of a run that is under way.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for (number, line) in whole.lines().enumerate() {
            let line: Line =
                serde_json::from_str(line).map_err(|error| fault(format!("line {}: {error}", number + 1)))?;
            entries.extend(line.adapt.map(|decision| (line.step, decision)));
        }
        if entries.is_empty() {
            return Err(fault("no step has the key adapt: a run with --adapt writes it".to_owned()));
        }
        Ok(Self { entries: entries.into_iter().collect(), log: Some(path) })
    }

    /// The decision for a step.
    pub fn at(&self, step: u64) -> Decision {
        let after = self.entries.partition_point(|(first, _)| *first <= step);
        self.entries[after.saturating_sub(1)].1
    }

    /// Refuses a log that lacks one of the steps; other lists have no end.
    ///
    /// # Errors
    ///
    /// [`ListError`], which names the first step that is missing.
    pub fn require(&self, mut steps: std::ops::Range<u64>) -> Result<(), ListError> {
        let Some(path) = &self.log else { return Ok(()) };
        let has = |step: &u64| self.entries.binary_search_by_key(step, |(first, _)| *first).is_ok();
        match steps.find(|step| !has(step)) {
            None => Ok(()),
            Some(step) => Err(ListError {
                path: path.clone(),
                what: format!(
                    "no decision for step {step}: a replay is no longer than the run that it repeats"
                ),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn density(fraction: f64) -> Density {
        Density::new(fraction).unwrap()
    }

    #[test]
    fn a_density_holds_until_the_next_one() {
        let list = [(0, density(0.1)), (2, density(0.01)), (5, density(0.5))];
        let by_step = List::of(&list, 1);
        let seen: Vec<f64> = (0..7).map(|step| by_step.at(step).density.fraction()).collect();
        assert_eq!(seen, [0.1, 0.1, 0.01, 0.01, 0.01, 0.5, 0.5]);
        let by_epoch = List::of(&list, 10);
        assert_eq!([19, 20, 49, 50].map(|step| by_epoch.at(step).density.fraction()), [0.1, 0.01, 0.01, 0.5]);
        assert!(by_step.require(0..1_000_000).is_ok());
    }

    #[test]
    fn a_log_gives_the_decisions_of_its_steps_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let write = |lines: &[&str]| {
            fs::write(folder.path().join("metrics.jsonl"), lines.join("\n") + "\n").unwrap();
            List::read(folder.path())
        };
        let text = |list: Result<List, ListError>| list.unwrap_err().to_string();
        let steps = [
            r#"{"step":0,"loss":2.0,"adapt":{"density":0.1,"decision":"min","gain_min":0.8,"gain":0.5}}"#,
            r#"{"step":1,"loss":2.0,"adapt":{"density":1.0,"decision":"dense"}}"#,
            r#"{"step":1,"loss":2.0,"adapt":{"density":0.05,"decision":"candidate"}}"#,
        ];
        let list = write(&steps).unwrap();
        let first = list.at(0);
        assert_eq!((first.choice, first.gain_min, first.gain), (Choice::Min, Some(0.8), Some(0.5)));
        assert_eq!(list.at(1), Decision::new(density(0.05), Choice::Candidate));
        assert!(list.require(0..2).is_ok());
        assert!(list.require(0..3).unwrap_err().to_string().contains("no decision for step 2"));
        assert!(text(write(&[r#"{"step":0,"loss":2.0}"#])).contains("no step has the key adapt"));
        let beyond = r#"{"step":0,"adapt":{"density":2.0,"decision":"dense"}}"#;
        assert!(text(write(&[steps[0], beyond])).contains("line 2: density = 2: expected a fraction"));
        assert!(text(List::read(Path::new("nowhere"))).starts_with("nowhere: "));
    }
}
