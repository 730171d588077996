//! `grid.toml`: everything that a comparison was told, so that it can be repeated or resumed.

use std::path::Path;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::candidate::{Candidate, as_setting, parsed};
use super::vary::DENSITY;
use crate::config::{ConfigError, RunConfig, Settings, parse_toml};
use crate::files::read_text;
use crate::range::RangeError;

/// The file in the folder of a comparison.
pub const FILE: &str = "grid.toml";

/// The name of the key that holds a candidate's codec.
const SPEC: &str = "spec";

/// A comparison, before anything of it is checked.
///
/// ```toml
/// seeds = 3
/// [settings]            # what all share: the keys of `train --config`
/// steps = 600
/// [vary]                # tried with every codec, in all combinations
/// lr = [0.1, 0.3]
/// [[codec]]
/// spec = "none"
/// momentum = 0.9        # its own settings, with the same keys
/// [[codec]]
/// spec = "dgc:density=0.01"
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grid {
    /// Runs of each candidate, with seeds that count up; `None` if not given, which means one.
    pub seeds: Option<u64>,
    /// The lengths that the comparison had before it was told to train longer, as `length_text` has them:
    /// runs of such a length may be trained on.
    pub longer_than: Vec<String>,
    /// What all share.
    pub settings: Settings,
    /// Lists of values to try with every candidate, by their keys: those of settings, and `density`.
    pub vary: Table,
    /// What is compared.
    pub candidates: Vec<Candidate>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    seeds: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    longer_than: Vec<String>,
    #[serde(default)]
    settings: Settings,
    #[serde(default)]
    vary: Table,
    #[serde(default)]
    codec: Vec<Table>,
}

impl Grid {
    /// Adds values to try with every candidate, as the command line has them: `lr=0.1,0.3`.
    ///
    /// # Errors
    ///
    /// [`RangeError`] if it is something else, or there is no such setting.
    pub fn vary(&mut self, words: &[String]) -> Result<(), RangeError> {
        for word in words {
            let expected = |what| RangeError::new("vary", word, what);
            let (key, value) =
                as_setting(word).ok_or_else(|| expected("a key and its values, such as lr=0.1,0.3"))?;
            if key != DENSITY && !Settings::has(key) {
                return Err(expected("density, or a setting as in `train --help`, such as lr"));
            }
            self.vary.insert(key.to_owned(), parsed(value));
        }
        Ok(())
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// [`ConfigError::File`], with the line and what is wrong with it; or the candidate that is refused.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let fault = |what: String| ConfigError::File { file: path.to_path_buf(), what };
        let text = read_text(path).map_err(fault)?;
        let File { seeds, longer_than, settings, vary, codec } = parse_toml(&text).map_err(fault)?;
        let candidates = codec.into_iter().map(candidate).collect::<Result<_, _>>();
        let candidates = candidates.map_err(|error| fault(error.to_string()))?;
        Ok(Self { seeds, longer_than, settings, vary, candidates })
    }

    /// The content of the file.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Conflict`] for a value that TOML does not have.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        let tables = self.candidates.iter().map(|candidate| {
            let mut table = Table::from_iter([(SPEC.to_owned(), Value::String(candidate.codec.clone()))]);
            table.extend(candidate.own.clone());
            table
        });
        let (settings, vary) = (self.settings.clone(), self.vary.clone());
        let longer_than = self.longer_than.clone();
        let file = File { seeds: self.seeds, longer_than, settings, vary, codec: tables.collect() };
        let refused = |error| ConfigError::Conflict(format!("the grid cannot be written down: {error}"));
        toml::to_string(&file).map_err(refused)
    }
}

/// How long a run is: `steps = 60` or `epochs = 3`.
pub(super) fn length_text(config: &RunConfig) -> String {
    match (config.steps, config.epochs) {
        (Some(steps), _) => format!("steps = {steps}"),
        (None, epochs) => format!("epochs = {}", epochs.unwrap_or(1)),
    }
}

fn candidate(mut table: Table) -> Result<Candidate, ConfigError> {
    let spec = table.remove(SPEC).and_then(|spec| spec.as_str().map(str::to_owned));
    let spec = spec.ok_or_else(|| ConfigError::Conflict(format!("[[codec]]: {SPEC} = \"…\" is missing")))?;
    let mut candidate = Candidate::from(spec.as_str());
    table.into_iter().try_for_each(|(key, value)| candidate.set(&key, value))?;
    Ok(candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_is_read_as_it_was_written() {
        let words = ["none", "momentum=0.9", "topk:density=0.01", "hidden=8,4", "optimizer=sgd"];
        let candidates = Candidate::read(&words.map(str::to_owned)).unwrap();
        let settings = Settings { steps: Some(3), lr: Some(0.5), ..Settings::default() };
        let vary = "lr = [0.1, 0.5]".parse().unwrap();
        let longer_than = vec!["steps = 2".to_owned()];
        let grid = Grid { seeds: Some(2), longer_than, settings, vary, candidates };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        std::fs::write(&path, grid.to_toml().unwrap()).unwrap();
        assert_eq!(Grid::read(&path).unwrap(), grid);
        for (content, fault) in [
            ("speed = 1\n", "line 1: unknown field `speed`"),
            ("[[codec]]\nlr = 1\n", "spec = \"…\" is missing"),
            ("[[codec]]\nspec = \"none\"\nseed = 4\n", "seed: one value for the whole comparison"),
        ] {
            std::fs::write(&path, content).unwrap();
            let said = Grid::read(&path).unwrap_err().to_string();
            assert!(said.contains("grid.toml") && said.contains(fault), "{said}");
        }
    }

    #[test]
    fn what_varies_is_a_setting() {
        let mut grid = Grid::default();
        let mut vary = |word: &str| grid.vary(&[word.to_owned()]).map_err(|error| error.to_string());
        for word in ["lr=0.1,0.3", "density=0.01", "adapt=steps:0=0.1", "weight_decay=0"] {
            assert_eq!(vary(word), Ok(()));
        }
        let said = vary("speed=3").unwrap_err();
        assert!(said.starts_with("vary = speed=3: expected density, or a setting"), "{said}");
        assert!(vary("lr").unwrap_err().contains("such as lr=0.1,0.3"));
    }
}
