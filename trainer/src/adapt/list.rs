//! Densities that are known before the run: those of a list, or of a run that is replayed.

use std::path::{Path, PathBuf};

use gradwire::rules::Rules;
use gradwire::{Density, Layout, Spec, Unit};
use serde::Deserialize;

use super::decision::{Choice, Decided, Decision};
use crate::files::{json_fault, read_text};

/// A log that cannot be replayed, or a list that does not fit the model. The text is one line.
#[derive(Debug, thiserror::Error)]
#[error("{of}: {what}")]
pub struct ListError {
    /// The log, or the list.
    of: String,
    what: String,
}

/// The decision for each step: an entry holds from its first step until the next entry.
#[derive(Clone, Debug, PartialEq)]
pub struct List {
    /// By ascending steps.
    entries: Vec<(u64, Decided)>,
    /// The log, if a run is replayed; only the steps that it has can be replayed.
    log: Option<PathBuf>,
}

/// The keys of a line of `metrics.jsonl` that count here.
#[derive(Deserialize)]
struct Line {
    step: u64,
    adapt: Option<Decided>,
}

impl List {
    /// Each density holds from the step before it on; that step is multiplied by `unit`.
    pub(super) fn of(list: &[(u64, Density)], unit: u64) -> Self {
        let entry = |&(from, density): &(u64, Density)| {
            (from.saturating_mul(unit), Decision::new(density, Choice::Listed).into())
        };
        Self { entries: list.iter().map(entry).collect(), log: None }
    }

    /// Each tensor has the density of the first pattern that fits its name; the last pattern fits all. Every
    /// tensor is a unit.
    pub(super) fn by_layer(
        list: &[(String, Density)],
        layout: &Layout,
        units: &[Unit],
    ) -> Result<Self, ListError> {
        let fault = |what: String| ListError { of: "layers".to_owned(), what };
        let rules = rules(list).map_err(fault)?;
        let layout = layout.as_ref();
        let names: Vec<&str> = layout.tensors().map(|tensor| tensor.name).collect();
        let fits_none = |pattern: &str| {
            let rule = rules.rules().iter().find(|rule| rule.pattern() == pattern);
            rule.is_none_or(|rule| !names.iter().any(|name| rule.fits(name)))
        };
        if let Some((pattern, _)) = list.iter().find(|(pattern, _)| fits_none(pattern)) {
            return Err(fault(format!("{pattern}: fits no tensor; there are {}", names.join(", "))));
        }
        let density = |at: usize| rules.spec_of(names[at]).codec.density();
        let decided = Decided::by_unit(units, Choice::Listed, |at| {
            density(at).unwrap_or_else(|| unreachable!("every rule has a density"))
        });
        Ok(Self { entries: vec![(0, decided)], log: None })
    }

    /// The decisions of a run, from its `metrics.jsonl` or the folder with that file. Of a step that was done
    /// again after a resume, the last counts.
    pub(super) fn read(path: &Path) -> Result<Self, ListError> {
        let path = if path.is_dir() { path.join("metrics.jsonl") } else { path.to_path_buf() };
        let fault = |what: String| ListError { of: path.display().to_string(), what };
        let text = read_text(&path).map_err(fault)?;
        let mut entries = std::collections::BTreeMap::new();
        // A last line without its end is of a run that is under way.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for (number, line) in whole.lines().enumerate() {
            let line: Line = serde_json::from_str(line)
                .map_err(|error| fault(format!("line {}: {}", number + 1, json_fault(line, &error))))?;
            entries.extend(line.adapt.map(|decision| (line.step, decision)));
        }
        if entries.is_empty() {
            return Err(fault("no step has the key adapt: a run with --adapt writes it".to_owned()));
        }
        Ok(Self { entries: entries.into_iter().collect(), log: Some(path) })
    }

    /// The decision for a step.
    pub fn at(&self, step: u64) -> &Decided {
        let after = self.entries.partition_point(|(first, _)| *first <= step);
        &self.entries[after.saturating_sub(1)].1
    }

    /// Refuses a log of another kind of codec, or of other units.
    ///
    /// # Errors
    ///
    /// [`ListError`], which names the first step that does not fit.
    pub fn require_fit(&self, spec: &Spec, units: usize) -> Result<(), ListError> {
        let Some(path) = &self.log else { return Ok(()) };
        let why = |decided: &Decided| match decided {
            Decided::Rank { .. } | Decided::Ranks { .. } if spec.codec.rank().is_none() => {
                Some(format!("a rank, and {spec} has none"))
            }
            Decided::Rank { .. } => None,
            Decided::Ranks { ranks, .. } => (ranks.len() != units)
                .then(|| format!("ranks of {} units, and here are {units}", ranks.len())),
            _ if spec.codec.density().is_none() => Some(format!("a density, and {spec} has none")),
            Decided::Densities { densities, .. } if densities.len() != units => {
                Some(format!("densities of {} units, and here are {units}", densities.len()))
            }
            _ => None,
        };
        let found = self.entries.iter().find_map(|(step, decided)| Some((step, why(decided)?)));
        match found {
            None => Ok(()),
            Some((step, why)) => {
                Err(ListError { of: path.display().to_string(), what: format!("step {step} has {why}") })
            }
        }
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
                of: path.display().to_string(),
                what: format!(
                    "no decision for step {step}: a replay is no longer than the run that it repeats"
                ),
            }),
        }
    }
}

/// The patterns as rules, which know how patterns fit; the codec in them only carries the density.
///
/// # Errors
///
/// The pattern, and what is wrong with it.
pub(super) fn rules(list: &[(String, Density)]) -> Result<Rules, String> {
    let topk = Spec::parse("topk").map_err(|error| error.to_string())?;
    let with = |density: Density| Spec { codec: topk.codec.with_density(density), ..topk };
    let Some(((_, others), before)) = list.split_last().filter(|((last, _), _)| last == "*") else {
        return Err("the last pattern is *, for all other tensors, as in *.bias=1,*=0.01".to_owned());
    };
    let before: Vec<(&str, Spec)> =
        before.iter().map(|(pattern, density)| (pattern.as_str(), with(*density))).collect();
    Rules::new(&before, with(*others)).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn density(fraction: f64) -> Density {
        Density::new(fraction).unwrap()
    }

    fn fraction(decided: &Decided) -> f64 {
        decided.density().unwrap().fraction()
    }

    #[test]
    fn a_density_holds_until_the_next_one() {
        let list = [(0, density(0.1)), (2, density(0.01)), (5, density(0.5))];
        let by_step = List::of(&list, 1);
        let seen: Vec<f64> = (0..7).map(|step| fraction(by_step.at(step))).collect();
        assert_eq!(seen, [0.1, 0.1, 0.01, 0.01, 0.01, 0.5, 0.5]);
        let by_epoch = List::of(&list, 10);
        assert_eq!([19, 20, 49, 50].map(|step| fraction(by_epoch.at(step))), [0.1, 0.01, 0.01, 0.5]);
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
        let Decided::Density(first) = list.at(0) else { panic!("one density") };
        assert_eq!((first.choice, first.gain_min, first.gain), (Choice::Min, Some(0.8), Some(0.5)));
        assert_eq!(*list.at(1), Decision::new(density(0.05), Choice::Candidate).into());
        assert!(list.require(0..2).is_ok());
        assert!(list.require(0..3).unwrap_err().to_string().contains("no decision for step 2"));
        assert!(text(write(&[r#"{"step":0,"loss":2.0}"#])).contains("no step has the key adapt"));
        let beyond = r#"{"step":0,"adapt":{"density":2.0,"decision":"dense"}}"#;
        assert!(text(write(&[steps[0], beyond])).contains("line 2: density = 2: expected a fraction"));
        assert!(text(List::read(Path::new("nowhere"))).starts_with("nowhere: "));
    }

    #[test]
    fn a_tensor_has_the_density_of_the_first_pattern_that_fits() {
        let tensors = [("fc.weight", vec![4, 4]), ("fc.bias", vec![4]), ("embed.weight", vec![8, 4])];
        let layout = Layout::packed(tensors).unwrap();
        let spec = Spec::parse("topk:unit=tensor").unwrap();
        let units: Vec<Unit> = spec.units.units(&layout.as_ref()).collect();
        let by_layer = |list: &[(&str, f64)]| {
            let list = list.iter().map(|&(pattern, share)| (pattern.to_owned(), density(share)));
            List::by_layer(&list.collect::<Vec<_>>(), &layout, &units)
        };
        let list = by_layer(&[("*.bias", 1.0), ("embed.*", 0.25), ("*", 0.5)]).unwrap();
        for step in [0, 1000] {
            let Decided::Densities { whole, densities } = list.at(step) else { panic!("by layer") };
            assert_eq!(densities.iter().map(|d| d.fraction()).collect::<Vec<_>>(), [0.5, 1.0, 0.25]);
            assert_eq!((whole.choice, whole.density), (Choice::Listed, density(20.0 / 52.0)));
        }
        let error = |list: &[(&str, f64)]| by_layer(list).unwrap_err().to_string();
        let typo = error(&[("*.biass", 1.0), ("*", 0.5)]);
        assert_eq!(typo, "layers: *.biass: fits no tensor; there are fc.weight, fc.bias, embed.weight");
        assert!(error(&[("*.bias", 1.0)]).contains("the last pattern is *"));
        assert!(
            error(&[("*", 1.0), ("*", 0.5)]).contains("rule '*'"),
            "{}",
            error(&[("*", 1.0), ("*", 0.5)])
        );
    }

    #[test]
    fn a_log_of_another_kind_of_codec_or_of_other_units_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let fit = |adapt: &str, codec: &str| {
            let line = format!("{{\"step\":3,\"adapt\":{{\"decision\":\"calm\",{adapt}}}}}\n");
            fs::write(folder.path().join("metrics.jsonl"), line).unwrap();
            let list = List::read(folder.path()).unwrap();
            list.require_fit(&Spec::parse(codec).unwrap(), 2).map_err(|error| error.to_string())
        };
        assert_eq!(fit("\"rank\":2", "powersgd"), Ok(()));
        assert_eq!(fit("\"ranks\":[2,1]", "powersgd"), Ok(()));
        assert_eq!(fit("\"density\":0.1,\"densities\":[0.1,0.1]", "topk"), Ok(()));
        for (adapt, codec, why) in [
            ("\"rank\":2", "topk", "step 3 has a rank, and topk:density=0.01 has none"),
            ("\"ranks\":[2,1]", "topk", "step 3 has a rank, and topk:density=0.01 has none"),
            ("\"ranks\":[2,1,1]", "powersgd", "ranks of 3 units, and here are 2"),
            ("\"density\":0.1", "powersgd", "step 3 has a density, and powersgd:rank=1 has none"),
            ("\"density\":0.1,\"densities\":[0.1]", "topk", "densities of 1 units, and here are 2"),
        ] {
            let error = fit(adapt, codec).unwrap_err();
            assert!(error.contains("metrics.jsonl: ") && error.contains(why), "{error}");
        }
    }
}
