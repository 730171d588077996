//! The settings that must be equal at all ends.

use gradwire_transports::Terms;

use crate::job::Job;

/// Settings that say where files are and what is written, not what is trained.
const LOCAL_KEYS: [&str; 3] = ["data_dir", "tensorboard", "transport"];

/// The longest value that is sent as it is, in bytes; a longer one is sent as its beginning and a checksum.
const LONGEST: usize = 400;

/// Adds the settings of the run.
pub(crate) fn with_settings(terms: Terms, job: &Job) -> Terms {
    // A job is only made of settings that can be written down.
    let settings = job.config.to_toml().unwrap_or_else(|error| error.to_string());
    let keys = settings.lines().filter_map(|line| line.split_once(" = "));
    let shared = keys.filter(|(key, _)| !LOCAL_KEYS.contains(key));
    shared.fold(terms, |terms, (key, value)| terms.with(key, shortened(value.trim_matches('"'))))
}

fn shortened(value: &str) -> String {
    if value.len() <= LONGEST {
        return value.to_owned();
    }
    let start: String = value.chars().take(LONGEST / 8).collect();
    format!("{start}… ({} bytes, CRC-32 {:08x})", value.len(), crc32fast::hash(value.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{RunConfig, Settings};

    #[test]
    fn rules_of_any_length_are_a_term_and_differ_where_they_differ() {
        let terms = |last: &str| {
            let rules: String = (0..200).map(|at| format!("layer.{at}.bias=none; ")).collect();
            let rules = Some(format!("{rules}*=topk:density={last}"));
            let settings = Settings { rules, steps: Some(1), ..Settings::default() };
            let job = Job::prepare(RunConfig::resolve(&settings).unwrap()).unwrap();
            with_settings(Terms::new(&job.layout.as_ref(), &job.spec), &job)
        };
        let (one, other) = (terms("0.01"), terms("0.02"));
        assert_eq!(one.differences(&terms("0.01")), []);
        let names: Vec<String> = one.differences(&other).into_iter().map(|term| term.name).collect();
        assert_eq!(names, ["codec", "rules"]);
    }
}
