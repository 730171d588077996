//! Candidates that were tried at several rates: the best of each, and all of them at one.

use super::{Comparison, Entry};
use crate::config::RunConfig;

impl Comparison {
    /// Whether some candidate was tried at several rates.
    pub fn has_rates(&self) -> bool {
        let is_again = |(number, entry): (usize, &Entry)| {
            self.entries[..number].iter().any(|other| differs_in_rate_alone(other, entry))
        };
        self.entries.iter().enumerate().any(is_again)
    }

    /// The same, with each candidate only at its best rate: that of the smallest loss on the validation part
    /// at the end, mean over the seeds. The test part does not influence the choice, unless the data set has
    /// no validation part.
    pub fn at_best_rates(&self) -> Self {
        let mut best: Vec<&Entry> = Vec::new();
        for entry in &self.entries {
            match best.iter_mut().find(|other| differs_in_rate_alone(other, entry)) {
                Some(other) if validation_loss(entry) < validation_loss(other) => *other = entry,
                Some(_) => {}
                None => best.push(entry),
            }
        }
        self.with(best)
    }

    /// The same, with all candidates that trained at one rate, which is returned too: the best rate of dense
    /// training, or else that of the first row.
    pub fn at_one_rate(&self) -> (f64, Self) {
        let best = self.at_best_rates();
        let chosen = best.entries.iter().find(|entry| entry.is_dense()).or(best.entries.first());
        let rate = chosen.map_or(self.config.lr, |entry| entry.config.lr);
        (rate, self.with(self.entries.iter().filter(|entry| entry.config.lr == rate).collect()))
    }

    fn with(&self, entries: Vec<&Entry>) -> Self {
        Self { entries: entries.into_iter().cloned().collect(), config: self.config.clone(), ..*self }
    }
}

fn differs_in_rate_alone(a: &Entry, b: &Entry) -> bool {
    a.config == RunConfig { lr: a.config.lr, ..b.config.clone() }
}

/// Infinite if there is none.
fn validation_loss(entry: &Entry) -> f64 {
    let last = entry.curve(|line| line.eval_loss).last().map_or(f64::INFINITY, |&(_, loss)| loss);
    if last.is_nan() { f64::INFINITY } else { last }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::fixture::{comparison, entry};

    #[test]
    fn the_best_rate_is_that_of_the_smallest_validation_loss() {
        let entries = vec![
            entry("none", 0.1, &[0.5, 0.3], 9),
            entry("none", 0.2, &[0.3, 0.2], 9),
            entry("qsgd", 0.1, &[], 1),
            entry("qsgd", 0.2, &[0.9], 1),
            entry("topk", 0.1, &[0.1], 1),
        ];
        let all = comparison(entries);
        let rates = |comparison: &Comparison| -> Vec<(String, f64)> {
            let of = |entry: &Entry| (entry.label.clone(), entry.config.lr);
            comparison.entries.iter().map(of).collect()
        };
        let at = |codec: &str, rate| (codec.to_owned(), rate);
        assert!(all.has_rates() && !all.at_best_rates().has_rates());
        assert_eq!(rates(&all.at_best_rates()), [at("none", 0.2), at("qsgd", 0.2), at("topk", 0.1)]);
        let (rate, one) = all.at_one_rate();
        assert_eq!(rate, 0.2);
        assert_eq!(rates(&one), [at("none", 0.2), at("qsgd", 0.2)]);
    }
}
