//! Where a run comes from, so that its results can be made again.

use std::fs;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::process::shell::quoted;

/// Which program made a run, when, on what, and how it was called. A resumed run has the origin of its last
/// part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    /// Version of the program.
    pub version: String,
    /// Commit that it was built from, and `-dirty` after it if files differed from it; none outside a
    /// checkout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// When the run ended: UTC, as RFC 3339 writes it.
    pub date: String,
    /// Model of the processor of the first worker's machine.
    pub cpu: String,
    /// The command line.
    pub command: String,
}

impl Origin {
    /// Of this process, now.
    pub(crate) fn here() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: option_env!("GRADWIRE_COMMIT").map(str::to_owned),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            cpu: cpu(),
            command: std::env::args_os().map(quoted).collect::<Vec<_>>().join(" "),
        }
    }

    /// In one sentence.
    pub fn text(&self) -> String {
        let commit = self.commit.as_ref().map_or(String::new(), |commit| format!(", commit {commit}"));
        let Self { version, date, cpu, command, .. } = self;
        format!("trainer {version}{commit}, {date}, on {cpu}: {command}")
    }
}

/// The model as the system names it, or else the architecture.
pub(crate) fn cpu() -> String {
    let about = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    model_name(&about).unwrap_or(std::env::consts::ARCH).to_owned()
}

fn model_name(about: &str) -> Option<&str> {
    let names = about.lines().filter_map(|line| line.split_once(':'));
    let mut names = names.filter(|(key, _)| matches!(key.trim(), "model name" | "Model" | "cpu model"));
    names.next().map(|(_, name)| name.trim()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_has_a_name_on_several_systems() {
        let name = |about| model_name(about);
        assert_eq!(
            name("processor\t: 0\nmodel name\t: AMD EPYC 9B45\nflags\t: a b\n"),
            Some("AMD EPYC 9B45")
        );
        assert_eq!(
            name("processor : 0\nBogoMIPS : 48\n\nModel\t\t: Raspberry Pi 4\n"),
            Some("Raspberry Pi 4")
        );
        assert_eq!([name(""), name("model name\t: \n")], [None, None]);
        assert!(!cpu().is_empty());
    }

    #[test]
    fn an_origin_is_read_as_it_was_written_and_says_all_of_it() {
        let here = Origin::here();
        let text = serde_json::to_string(&here).unwrap();
        assert_eq!(serde_json::from_str::<Origin>(&text).unwrap(), here);
        assert!(here.date.len() == 20 && here.date.ends_with('Z'), "{}", here.date);
        for part in [&here.version, &here.date, &here.cpu, &here.command] {
            assert!(!part.is_empty() && here.text().contains(part.as_str()), "{here:?}");
        }
    }
}
