//! What the environment and the command line ask for.

use std::env;
use std::path::PathBuf;

/// Elements of a measured gradient: 100 MB of f32, more than any cache holds.
const MEASURED_LEN: usize = 25_000_000;
/// Elements where benches only have to run: odd, so that every loop has a tail.
const QUICK_LEN: usize = 20_011;

/// How large and how thorough a run is.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Every bench runs once, to see that it works. Set by `--test`, and where cargo does not ask for
    /// measurements.
    pub quick: bool,
    /// Elements of a gradient; `GRADWIRE_BENCH_LEN`.
    pub len: usize,
    /// Also the sizes that take minutes and gigabytes; `GRADWIRE_BENCH_FULL`.
    pub full: bool,
    /// A file of real gradients; `GRADWIRE_BENCH_FILE`.
    pub file: Option<PathBuf>,
    /// Where rows are appended as a Markdown table; `GRADWIRE_BENCH_RESULTS`.
    pub results: Option<PathBuf>,
}

impl Settings {
    /// Reads the environment and the command line.
    ///
    /// # Panics
    /// When `GRADWIRE_BENCH_LEN` is not a number above 1000.
    #[must_use]
    pub fn from_env() -> Self {
        let asked = |option: &str| env::args().any(|argument| argument == option);
        let quick = asked("--test") || !asked("--bench");
        let len = env::var("GRADWIRE_BENCH_LEN").ok().map(|text| {
            let len = text.replace('_', "").parse().expect("GRADWIRE_BENCH_LEN is a number");
            assert!(len > 1000, "GRADWIRE_BENCH_LEN is above 1000");
            len
        });
        Self {
            quick,
            len: len.unwrap_or(if quick { QUICK_LEN } else { MEASURED_LEN }),
            full: env::var_os("GRADWIRE_BENCH_FULL").is_some(),
            file: env::var_os("GRADWIRE_BENCH_FILE").map(PathBuf::from),
            results: env::var_os("GRADWIRE_BENCH_RESULTS").map(PathBuf::from),
        }
    }

    /// Lengths of a bench that shows how cost grows.
    #[must_use]
    pub fn growth(&self) -> Vec<usize> {
        match (self.quick, self.full) {
            (true, _) => vec![1_000, 10_000],
            (false, false) => vec![100_000, 1_000_000, 10_000_000],
            (false, true) => vec![100_000, 1_000_000, 10_000_000, 100_000_000],
        }
    }
}
