//! Settings with several values: a candidate becomes as many as there are combinations.

use gradwire::Spec;
use toml::{Table, Value};

use super::candidate::{ADAPT, Candidate};
use crate::config::{ConfigError, RunConfig, Settings};

/// A setting whose value is a list itself.
const LIST: &str = "hidden";

/// A key of the codec's spelling, and no setting.
pub(super) const DENSITY: &str = "density";

/// Every combination of the values that a candidate lists itself, and of those in `vary`, which are for all:
/// settings, `density` for codecs that have one, and `adapt` for all but `none`. A candidate's own values
/// override those in `vary`.
///
/// # Errors
///
/// [`ConfigError`] if candidates may not differ in a key, or a list is empty.
pub(super) fn expanded(candidates: &[Candidate], vary: &Table) -> Result<Vec<Candidate>, ConfigError> {
    let mut all = Vec::new();
    for candidate in candidates {
        let mut lists = vary.clone();
        let has_density = Spec::parse(&candidate.codec).is_ok_and(|spec| spec.codec.density().is_some());
        if !has_density || candidate.codec.contains("density=") {
            lists.remove(DENSITY);
        }
        if candidate.is_dense() {
            lists.remove(ADAPT);
        }
        lists.extend(candidate.own.clone());
        let mut made = vec![Candidate::from(candidate.codec.as_str())];
        for (key, value) in &lists {
            made = combined(&made, key, &values(key, value)?)?;
        }
        all.extend(made);
    }
    Ok(all)
}

/// Each of the candidates with each of the values.
fn combined(candidates: &[Candidate], key: &str, values: &[Value]) -> Result<Vec<Candidate>, ConfigError> {
    let with = |candidate: &Candidate, value: &Value| {
        let mut candidate = candidate.clone();
        if key == DENSITY {
            let separator = if candidate.codec.contains(':') { ',' } else { ':' };
            candidate.codec = format!("{}{separator}{DENSITY}={value}", candidate.codec);
            return Ok(candidate);
        }
        candidate.set(key, value.clone()).map(|()| candidate)
    };
    let pairs = candidates.iter().flat_map(|candidate| values.iter().map(move |value| (candidate, value)));
    pairs.map(|(candidate, value)| with(candidate, value)).collect()
}

/// The values that a key is to have, one after the other.
fn values(key: &str, value: &Value) -> Result<Vec<Value>, ConfigError> {
    match value.as_array() {
        Some(list) if key == LIST && !list.iter().all(Value::is_array) => Ok(vec![value.clone()]),
        Some(list) if list.is_empty() => Err(ConfigError::Conflict(format!("{key} = []: no value to try"))),
        Some(list) => Ok(list.clone()),
        None => Ok(vec![value.clone()]),
    }
}

/// For every codec that owns its momentum, if `none` is compared too: `none` with that momentum and at that
/// rate, unless it is there. Without it the momentum would explain the difference between them.
///
/// # Errors
///
/// [`ConfigError`] of the first candidate that is refused.
pub(super) fn dense_with_momentum(
    mut candidates: Vec<Candidate>,
    shared: &Settings,
) -> Result<Vec<Candidate>, ConfigError> {
    let resolved = |candidate: &Candidate| candidate.config(shared);
    let mut configs: Vec<RunConfig> = candidates.iter().map(resolved).collect::<Result<_, _>>()?;
    if !configs.iter().any(|config| config.codec.is_dense()) {
        return Ok(candidates);
    }
    for number in 0..candidates.len() {
        let Some(momentum) = configs[number].codec.spec.codec.momentum() else { continue };
        let mut dense = Candidate { codec: "none".to_owned(), ..candidates[number].clone() };
        dense.own.remove(ADAPT);
        // As it was spelled, not the f64 that is next to the f32.
        let factor = momentum.factor().to_string().parse().unwrap_or_default();
        dense.own.insert("momentum".to_owned(), Value::Float(factor));
        if momentum.is_nesterov() {
            dense.own.insert("nesterov".to_owned(), Value::Boolean(true));
        }
        let config = resolved(&dense)?;
        if factor > 0.0 && !configs.contains(&config) {
            candidates.push(dense);
            configs.push(config);
        }
    }
    Ok(candidates)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(candidates: &[Candidate]) -> Vec<String> {
        candidates.iter().map(|one| format!("{}{}", one.codec, one.own_text())).collect()
    }

    fn expand(words: &[&str], vary: &str) -> Result<Vec<String>, String> {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        let candidates = Candidate::read(&words).unwrap();
        let all = expanded(&candidates, &vary.parse().unwrap()).map_err(|error| error.to_string())?;
        Ok(texts(&all))
    }

    #[test]
    fn every_combination_is_a_candidate() {
        let all = expand(&["none", "topk", "lr=0.1,0.2", "hidden=8,4"], "").unwrap();
        assert_eq!(all, ["none", "topk hidden=8,4 lr=0.1", "topk hidden=8,4 lr=0.2"]);
        let vary = "lr = [0.1, 0.3]\ndensity = [0.01, 0.1]";
        let all = expand(&["none", "topk", "qsgd", "lr=1.0", "topk:density=0.5"], vary).unwrap();
        let expected = [
            "none lr=0.1",
            "none lr=0.3",
            "topk:density=0.01 lr=0.1",
            "topk:density=0.01 lr=0.3",
            "topk:density=0.1 lr=0.1",
            "topk:density=0.1 lr=0.3",
            "qsgd lr=1.0",
            "topk:density=0.5 lr=0.1",
            "topk:density=0.5 lr=0.3",
        ];
        assert_eq!(all, expected);
        assert!(expand(&["none"], "seed = [1, 2]").unwrap_err().contains("one value for the whole"));
        assert!(expand(&["none"], "lr = []").unwrap_err().contains("no value"));
    }

    #[test]
    fn dense_training_with_momentum_stands_beside_a_codec_that_owns_it() {
        let dense = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            let candidates = Candidate::read(&words).unwrap();
            texts(&dense_with_momentum(candidates, &Settings::default()).unwrap())
        };
        let all = dense(&["none", "dgc:momentum=0.7", "lr=0.1", "topk"]);
        assert_eq!(all, ["none", "dgc:momentum=0.7 lr=0.1", "topk", "none lr=0.1 momentum=0.7"]);
        assert_eq!(dense(&["none", "momentum=0.7", "dgc:momentum=0.7"]).len(), 2, "it is there");
        assert_eq!(dense(&["topk", "dgc"]).len(), 2, "dense training was not asked for");
        let adaptive = dense(&["none", "dgc:momentum=0.7", "adapt=gravac"]);
        assert_eq!(adaptive[2], "none momentum=0.7", "{adaptive:?}");
    }

    #[test]
    fn ways_to_set_the_density_are_tried_with_all_but_none() {
        let all = expand(&["none", "topk"], "adapt = [\"gravac\", \"accordion\"]").unwrap();
        assert_eq!(all, ["none", "topk adapt=gravac", "topk adapt=accordion"]);
    }
}
