//! What a measurement was made under, and whether something disturbed it.

use std::fs;
use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

use crate::record::Origin;

/// The same copy may take so many times as long in one round as in another before that counts as disturbed.
const STEADY: f64 = 1.5;

/// The machine during a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Conditions {
    /// Version, date, processor and command.
    pub(crate) origin: Origin,
    /// Processors that the program may use.
    pub(crate) cores: usize,
    /// Workers that were measured at the same time.
    pub(crate) side_by_side: usize,
    /// Programs that wanted a core in the minute before, where the system says it.
    pub(crate) load: Option<f64>,
    /// A copy of the gradient, which was timed beside every codec: the least and the most.
    pub(crate) copy_least_s: f64,
    pub(crate) copy_most_s: f64,
}

impl Conditions {
    /// Before anything is measured.
    pub(crate) fn now(side_by_side: usize) -> Self {
        Self {
            origin: Origin::here(),
            cores: std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
            side_by_side,
            load: fs::read_to_string("/proc/loadavg").ok().as_deref().and_then(load),
            copy_least_s: 0.0,
            copy_most_s: 0.0,
        }
    }

    /// With the times of one copy.
    pub(crate) fn with_copies(self, copies: Vec<f64>) -> Self {
        let copy_least_s = copies.iter().copied().reduce(f64::min).unwrap_or(0.0);
        let copy_most_s = copies.into_iter().reduce(f64::max).unwrap_or(0.0);
        Self { copy_least_s, copy_most_s, ..self }
    }

    /// What disturbed the measurement, in words.
    pub(crate) fn disturbance(&self) -> Option<String> {
        let Self { cores, side_by_side, copy_least_s: least, copy_most_s: most, .. } = self;
        let times = most / least;
        let busy = self.load.filter(|load| load + *side_by_side as f64 > *cores as f64 + 0.5);
        let mut causes = Vec::new();
        if times > STEADY {
            let (least, most) = (1e3 * least, 1e3 * most);
            causes.push(format!("the same copy of the gradient took {least:.3} to {most:.3} ms"));
        }
        if let Some(load) = busy {
            let (cores, workers) = (plural(*cores, "core"), plural(*side_by_side, "worker"));
            causes.push(format!("{load:.1} other programs wanted the {cores} of {workers}"));
        }
        (!causes.is_empty()).then(|| causes.join(", and "))
    }
}

fn plural(count: usize, what: &str) -> String {
    if count == 1 { format!("one {what}") } else { format!("{count} {what}s") }
}

/// The mean of the last minute.
fn load(text: &str) -> Option<f64> {
    text.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions(cores: usize, side_by_side: usize, load: Option<f64>, copies: [f64; 2]) -> Conditions {
        let now = Conditions { cores, load, ..Conditions::now(side_by_side) };
        now.with_copies(copies.to_vec())
    }

    #[test]
    fn copies_that_differ_and_cores_that_others_want_are_a_disturbance() {
        let said = |cores, workers, load, copies| conditions(cores, workers, load, copies).disturbance();
        assert_eq!(said(2, 1, Some(0.9), [1e-4, 1.4e-4]), None);
        assert_eq!(said(64, 1, Some(32.0), [1e-4, 1e-4]), None, "cores are left");
        assert_eq!(said(2, 1, None, [1e-4, 1e-4]), None, "not every system says it");
        let copies = said(2, 1, Some(0.0), [3.5e-4, 1e-4]).unwrap();
        assert_eq!(copies, "the same copy of the gradient took 0.100 to 0.350 ms");
        let busy = said(2, 1, Some(7.25), [1e-4, 1e-4]).unwrap();
        assert_eq!(busy, "7.2 other programs wanted the 2 cores of one worker");
        assert!(said(4, 4, Some(1.0), [1e-4, 1e-4]).unwrap().ends_with("wanted the 4 cores of 4 workers"));
        assert!(
            said(1, 1, Some(3.0), [1e-4, 9e-4])
                .unwrap()
                .contains("ms, and 3.0 other programs wanted the one core")
        );
    }

    #[test]
    fn the_load_is_the_first_number() {
        assert_eq!(load("0.52 0.58 0.59 1/467 12345\n"), Some(0.52));
        assert_eq!([load(""), load("busy")], [None, None]);
    }
}
