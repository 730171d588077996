//! Accordion: little compression while gradients change much, and more of it in between.

use gradwire::Density;
use serde::{Deserialize, Serialize};

use super::decision::{Choice, Decision, as_fraction};

/// The settings of Accordion.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AccordionSettings {
    /// Density of the low compression.
    #[serde(with = "as_fraction")]
    pub low: Density,
    /// Density of the high compression, at most `low`.
    #[serde(with = "as_fraction")]
    pub high: Density,
    /// The least share by which the norm changes in a critical regime, above 0.
    pub eta: f64,
    /// Epochs of a window, at least 1.
    pub window: u64,
}

/// The paper compresses to 10 % and 1 % with top-k, and looks every ten epochs.
impl Default for AccordionSettings {
    fn default() -> Self {
        let [low, high] = [0.1, 0.01].map(|share| Density::new(share).unwrap_or_else(|| unreachable!()));
        Self { low, high, eta: 0.5, window: 10 }
    }
}

/// The controller: compares the sum of the gradients of each window with that of the window before.
///
/// ```text
/// the first window: critical
/// at the end of a window: critical if there is none before it, or | ‖before‖ − ‖now‖ | ≥ eta·‖before‖
/// at a step whose learning rate is below that of the step before: critical, until the window ends
/// ```
/// It sums the mean that all workers apply, so all decide alike without a message.
///
/// # Determinism
///
/// Sums in f32, coordinate by coordinate in the order of the steps; the norm in f64, coordinates ascending.
///
/// # Source
///
/// Agarwal, Wang, Lee, Venkataraman, Papailiopoulos: Accordion: Adaptive Gradient Communication via Critical
/// Learning Regime Identification (arXiv 2010.16248), algorithm 1. Ours are: one regime for the whole model,
/// where the paper has one for each layer; and means of what was sent in place of gradients.
///
/// # Examples
///
/// ```
/// use gradwire_trainer::adapt::{Accordion, AccordionSettings, Choice};
///
/// let settings = AccordionSettings { window: 1, ..AccordionSettings::default() };
/// let mut accordion = Accordion::new(settings, 1, 2);
/// let mut choices = Vec::new();
/// for (step, mean) in [[3.0, 4.0], [0.0, 4.0], [0.0, 1.0]].iter().enumerate() {
///     choices.push(accordion.decide(step as u64, 0.1).choice);
///     accordion.observe(mean);
/// }
/// choices.push(accordion.decide(3, 0.1).choice);
/// // Norms 5, 4 and 1: the second differs by a fifth from the first, the third by three quarters.
/// assert_eq!(choices, [Choice::Critical, Choice::Critical, Choice::Calm, Choice::Critical]);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accordion {
    settings: AccordionSettings,
    /// Steps of a window.
    steps: u64,
    is_critical: bool,
    last_rate: f32,
    /// Norm of the window before.
    before: Option<f64>,
    sum: Vec<f32>,
}

impl Accordion {
    /// The controller before the first step, for a gradient of `len` elements.
    pub fn new(settings: AccordionSettings, steps_per_epoch: u64, len: usize) -> Self {
        let steps = settings.window.saturating_mul(steps_per_epoch).max(1);
        Self { settings, steps, is_critical: true, last_rate: 0.0, before: None, sum: vec![0.0; len] }
    }

    /// Decides a step, counted from 0, that has this learning rate. Steps are decided in their order.
    pub fn decide(&mut self, step: u64, rate: f32) -> Decision {
        if step > 0 && step.is_multiple_of(self.steps) {
            self.end_window();
        }
        self.is_critical |= rate < self.last_rate;
        self.last_rate = rate;
        let Self { settings: AccordionSettings { low, high, .. }, is_critical, .. } = *self;
        let (density, choice) = if is_critical { (low, Choice::Critical) } else { (high, Choice::Calm) };
        Decision::new(density, choice)
    }

    /// Takes the mean that all workers apply.
    ///
    /// # Panics
    ///
    /// If it has another length than the gradient.
    pub fn observe(&mut self, mean: &[f32]) {
        assert_eq!(mean.len(), self.sum.len(), "mean and gradient differ in length");
        self.sum.iter_mut().zip(mean).for_each(|(sum, value)| *sum += value);
    }

    /// Whether this may take the place of a controller before its first step.
    pub(crate) fn continues(&self, first: &Self) -> bool {
        let of = |one: &Self| (one.settings, one.steps, one.sum.len());
        of(self) == of(first)
    }

    fn end_window(&mut self) {
        let now = self.sum.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt();
        let changed = |before: f64| (before - now).abs() >= self.settings.eta * before;
        self.is_critical = self.before.is_none_or(changed);
        self.before = Some(now);
        self.sum.fill(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accordion(window: u64, steps_per_epoch: u64) -> Accordion {
        let settings = AccordionSettings { window, ..AccordionSettings::default() };
        Accordion::new(settings, steps_per_epoch, 2)
    }

    /// Windows of two epochs of two steps. The four means of a window add up, so opposite ones cancel.
    #[test]
    fn windows_are_compared_by_the_norm_of_their_sum() {
        let mut accordion = accordion(2, 2);
        let windows = [
            [[1.0, 0.0]; 4],                                    // norm 4
            [[0.0, 0.75]; 4],                                   // 3: a quarter less
            [[0.0, 0.375]; 4],                                  // 1.5: half of it, which is enough
            [[1.0, 0.0], [-1.0, 0.0], [2.0, 0.0], [-2.0, 1.4]], // 1.4
            [[0.0, 0.0]; 4],
        ];
        let mut seen = Vec::new();
        for (step, mean) in windows.iter().flatten().enumerate() {
            seen.push(accordion.decide(step as u64, 0.1));
            accordion.observe(mean);
        }
        let by_window: Vec<Choice> = seen.iter().step_by(4).map(|decision| decision.choice).collect();
        let expected = [Choice::Critical, Choice::Critical, Choice::Calm, Choice::Critical, Choice::Calm];
        assert_eq!(by_window, expected);
        for decision in &seen {
            let density = if decision.choice == Choice::Calm { 0.01 } else { 0.1 };
            assert_eq!(decision.density.fraction(), density);
        }
        for window in seen.chunks(4) {
            assert!(window.iter().all(|decision| decision == &window[0]), "a window has one regime");
        }
        // 1.4 to 0, and 0 to 0: from nothing, anything is a change.
        assert_eq!(accordion.decide(20, 0.1).choice, Choice::Critical);
        assert_eq!(accordion.decide(24, 0.1).choice, Choice::Critical);
    }

    #[test]
    fn a_rate_that_falls_is_critical_until_the_window_ends_and_one_that_rises_is_not() {
        let mut accordion = accordion(1, 3);
        let rates = [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.2];
        let mut critical = Vec::new();
        for (step, rate) in rates.into_iter().enumerate() {
            critical.push(accordion.decide(step as u64, rate).choice == Choice::Critical);
            accordion.observe(&[1.0, 1.0]);
        }
        let expected = [true, true, true, true, true, true, false, true, true, false, false, false];
        assert_eq!(critical, expected);
    }

    #[test]
    fn a_saved_controller_goes_on_as_the_other_one() {
        let mut accordion = accordion(1, 3);
        for step in 0..20 {
            let saved = postcard::to_stdvec(&accordion).unwrap();
            let mut read: Accordion = postcard::from_bytes(&saved).unwrap();
            assert_eq!(read, accordion);
            assert_eq!(read.decide(step, 0.1), accordion.decide(step, 0.1));
            accordion.observe(&[(step as f32).sin(), 0.3]);
        }
    }
}
