//! Densities that follow the training loss.

use gradwire::Density;
use serde::{Deserialize, Serialize};

use super::decision::{Choice, Decision};

/// The controller: the density that a list has for the smallest training loss so far.
///
/// A density holds once the loss has fallen below its value, and stays when the loss rises again.
///
/// # Examples
///
/// ```
/// use gradwire::Density;
/// use gradwire_trainer::adapt::ByLoss;
///
/// let [many, few] = [0.1, 0.01].map(|share| Density::new(share).unwrap());
/// let mut by_loss = ByLoss::new(&[(f64::INFINITY, many), (3.0, few)]);
/// let densities = [5.0, 3.0, 2.9, 4.0].map(|loss| {
///     by_loss.observe(loss);
///     by_loss.decide().density.fraction()
/// });
/// assert_eq!(densities, [0.1, 0.1, 0.01, 0.01]);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ByLoss {
    /// By descending values; the first is for every loss.
    list: Vec<(f64, Listed)>,
    lowest: f64,
}

/// A density, as it is saved.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Listed(#[serde(with = "super::decision::as_fraction")] Density);

impl ByLoss {
    /// The controller before the first step. The values descend; the first density is for every loss.
    ///
    /// # Panics
    ///
    /// If the list is empty.
    pub fn new(list: &[(f64, Density)]) -> Self {
        assert!(!list.is_empty(), "a list has a density");
        let list = list.iter().map(|&(below, density)| (below, Listed(density)));
        Self { list: list.collect(), lowest: f64::INFINITY }
    }

    /// Takes the training loss of a step, mean over all workers. A loss that is not a number changes nothing.
    pub fn observe(&mut self, loss: f64) {
        self.lowest = self.lowest.min(loss);
    }

    /// Decides the next step.
    pub fn decide(&self) -> Decision {
        let reached = self.list.iter().rev().find(|(below, _)| self.lowest < *below);
        let (_, Listed(density)) = reached.unwrap_or(&self.list[0]);
        Decision::new(*density, Choice::Listed)
    }

    /// Whether this may take the place of a controller before its first step.
    pub(crate) fn continues(&self, first: &Self) -> bool {
        self.list == first.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_density_holds_once_the_loss_was_below_its_value() {
        let list = [(f64::INFINITY, 0.5), (2.0, 0.25), (1.0, 0.125)];
        let list = list.map(|(below, share)| (below, Density::new(share).unwrap()));
        let mut by_loss = ByLoss::new(&list);
        assert_eq!(by_loss.decide().density.fraction(), 0.5, "no loss is known");
        let losses = [f64::NAN, f64::INFINITY, 2.0, 1.99, 7.0, 0.5, 1.5];
        let mut seen = Vec::new();
        for loss in losses {
            let saved = postcard::to_stdvec(&by_loss).unwrap();
            assert_eq!(postcard::from_bytes::<ByLoss>(&saved).unwrap(), by_loss);
            by_loss.observe(loss);
            seen.push(by_loss.decide().density.fraction());
        }
        assert_eq!(seen, [0.5, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]);
        assert!(by_loss.continues(&ByLoss::new(&list)) && !by_loss.continues(&ByLoss::new(&list[..2])));
    }
}
