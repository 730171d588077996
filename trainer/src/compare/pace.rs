//! How far a comparison has come.

use std::time::{Duration, Instant};

use super::runner::{Runner, Turn};
use crate::run::{Outcome, RunError};

/// Does runs as another runner does, and says which of how many is under way and how long the rest takes.
pub(super) struct Paced<'a> {
    runner: &'a mut dyn Runner,
    runs: usize,
    /// Of the run whose turn it is, from 1. Runs that are kept have one too.
    place: usize,
    /// Runs that were done here, and when the first of them began.
    done: u32,
    began: Instant,
}

impl<'a> Paced<'a> {
    pub(super) fn new(runner: &'a mut dyn Runner, runs: usize) -> Self {
        Self { runner, runs, place: 0, done: 0, began: Instant::now() }
    }

    /// The next run has its turn.
    pub(super) fn next(&mut self) -> &mut Self {
        self.place += 1;
        self
    }
}

impl Runner for Paced<'_> {
    fn run(&mut self, turn: &Turn<'_>) -> Result<Outcome, RunError> {
        let spent = self.began.elapsed();
        let label = format!("{}{}", turn.label, words(self.place, self.runs, spent.checked_div(self.done)));
        let ended = self.runner.run(&Turn { label: &label, ..*turn });
        self.done += 1;
        ended
    }

    fn is_interrupted(&self) -> bool {
        self.runner.is_interrupted()
    }
}

/// The place of a run, and when the last one will end if each takes as long as those before.
fn words(place: usize, runs: usize, each: Option<Duration>) -> String {
    if runs == 1 {
        return String::new();
    }
    let left = each.map(|each| each.as_secs_f64() * (runs + 1 - place) as f64);
    let left = left.map_or(String::new(), |seconds| format!(", about {} left", rounded(seconds)));
    format!(" (run {place} of {runs}{left})")
}

fn rounded(seconds: f64) -> String {
    match seconds {
        short if short < 90.0 => format!("{:.0} s", short.ceil()),
        middle if middle < 5400.0 => format!("{:.0} min", middle / 60.0),
        long => format!("{:.1} h", long / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_a_place_and_after_the_first_an_end() {
        let of = |place, runs, seconds| words(place, runs, Some(Duration::from_secs(seconds)));
        assert_eq!(words(1, 1, None), "");
        assert_eq!(words(1, 12, None), " (run 1 of 12)");
        assert_eq!(of(3, 12, 30), " (run 3 of 12, about 5 min left)");
        assert_eq!(of(12, 12, 40), " (run 12 of 12, about 40 s left)");
        assert_eq!(of(2, 40, 600), " (run 2 of 40, about 6.5 h left)");
    }
}
