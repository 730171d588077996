//! Accordion: little compression while gradients change much, and more of it in between.

use std::fmt;

use gradwire::{Density, Unit};
use serde::{Deserialize, Serialize};

use super::decision::{Choice, Decided, Decision, as_fraction};

/// What Accordion chooses between: two densities, or two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Level {
    /// For a sparsifier.
    Density(#[serde(with = "as_fraction")] Density),
    /// For `powersgd`, from 1 to 256.
    Rank(u16),
}

impl Level {
    /// How much is sent at this level: for comparisons among levels of one kind.
    pub(super) fn amount(self) -> f64 {
        match self {
            Self::Density(density) => density.fraction(),
            Self::Rank(rank) => f64::from(rank),
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Density(density) => density.fmt(f),
            Self::Rank(rank) => rank.fmt(f),
        }
    }
}

/// What has a regime of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum By {
    /// Each unit of the codec: with `unit=tensor` each tensor.
    Layer,
    /// The whole gradient.
    Model,
}

/// The settings of Accordion.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AccordionSettings {
    /// The low compression.
    pub low: Level,
    /// The high compression, at most `low`.
    pub high: Level,
    /// The least share by which the norm changes in a critical regime, above 0.
    pub eta: f64,
    /// Epochs of a window, at least 1.
    pub window: u64,
    /// What has a regime of its own.
    pub by: By,
}

impl AccordionSettings {
    /// The paper's: 10 % and 1 % with top-k, and a look every ten epochs.
    pub fn densities(by: By) -> Self {
        let [low, high] = [0.1, 0.01].map(|share| Density::new(share).unwrap_or_else(|| unreachable!()));
        Self { low: Level::Density(low), high: Level::Density(high), eta: 0.5, window: 10, by }
    }

    /// The paper's: ranks 4 and 1, and a look every ten epochs.
    pub fn ranks(by: By) -> Self {
        Self { low: Level::Rank(4), high: Level::Rank(1), ..Self::densities(by) }
    }
}

/// The controller: compares the sum of the gradients of each window with that of the window before, for each
/// layer or for the whole model.
///
/// ```text
/// the first window: critical
/// at the end of a window: critical if there is none before it, or | ‖before‖ − ‖now‖ | ≥ eta·‖before‖
/// at a step whose learning rate is below that of the step before: all critical, until the window ends
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
/// Learning Regime Identification (arXiv 2010.16248), algorithm 1. Ours are: means of what was sent in place
/// of gradients; and one regime for the whole model, if asked for.
///
/// # Examples
///
/// ```
/// use gradwire::Unit;
/// use gradwire_trainer::adapt::{Accordion, AccordionSettings, By, Choice};
///
/// let settings = AccordionSettings { window: 1, ..AccordionSettings::densities(By::Model) };
/// let mut accordion = Accordion::new(settings, 1, &[Unit::whole(2)]);
/// let mut choices = Vec::new();
/// for (step, mean) in [[3.0, 4.0], [0.0, 4.0], [0.0, 1.0]].iter().enumerate() {
///     choices.push(accordion.decide(step as u64, 0.1).choice());
///     accordion.observe(mean);
/// }
/// choices.push(accordion.decide(3, 0.1).choice());
/// // Norms 5, 4 and 1: the second differs by a fifth from the first, the third by three quarters.
/// assert_eq!(choices, [Choice::Critical, Choice::Critical, Choice::Calm, Choice::Critical]);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accordion {
    settings: AccordionSettings,
    /// Steps of a window.
    steps: u64,
    last_rate: f32,
    regimes: Vec<Regime>,
    sum: Vec<f32>,
}

/// The regime of a range of the gradient.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Regime {
    start: usize,
    len: usize,
    /// Whether the unit is sent whole, whatever its regime.
    is_dense: bool,
    is_critical: bool,
    /// Norm of the window before.
    before: Option<f64>,
}

impl Regime {
    fn of(unit: &Unit) -> Self {
        let &Unit { start, len, dense: is_dense, .. } = unit;
        Self { start, len, is_dense, is_critical: true, before: None }
    }

    fn end_window(&mut self, eta: f64, sum: &[f32]) {
        let sum = &sum[self.start..self.start + self.len];
        let now = sum.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt();
        let changed = |before: f64| (before - now).abs() >= eta * before;
        self.is_critical = self.before.is_none_or(changed);
        self.before = Some(now);
    }
}

impl Accordion {
    /// The controller before the first step, for a gradient of these units.
    pub fn new(settings: AccordionSettings, steps_per_epoch: u64, units: &[Unit]) -> Self {
        let steps = settings.window.saturating_mul(steps_per_epoch).max(1);
        let len = units.last().map_or(0, |unit| unit.range().end);
        let regimes = match settings.by {
            By::Layer => units.iter().map(Regime::of).collect(),
            By::Model => vec![Regime::of(&Unit::whole(len))],
        };
        Self { settings, steps, last_rate: 0.0, regimes, sum: vec![0.0; len] }
    }

    /// Decides a step, counted from 0, that has this learning rate. Steps are decided in their order.
    pub fn decide(&mut self, step: u64, rate: f32) -> Decided {
        if step > 0 && step.is_multiple_of(self.steps) {
            self.end_window();
        }
        let falls = rate < self.last_rate;
        self.regimes.iter_mut().for_each(|regime| regime.is_critical |= falls);
        self.last_rate = rate;
        self.now()
    }

    /// What the last step that was decided is sent with; before the first, what that will be sent with.
    pub(crate) fn now(&self) -> Decided {
        let AccordionSettings { low, high, by, .. } = self.settings;
        match (low, high, by) {
            (Level::Density(low), Level::Density(high), By::Layer) => {
                let of = |at: usize| if self.regimes[at].is_critical { low } else { high };
                Decided::by_unit(&self.units(), self.choice(), of)
            }
            (Level::Rank(low), Level::Rank(high), By::Layer) => self.by_rank(low, high),
            (low, high, _) => {
                let choice = self.choice();
                let level = if choice == Choice::Critical { low } else { high };
                match level {
                    Level::Density(density) => Decision::new(density, choice).into(),
                    Level::Rank(rank) => Decided::Rank { rank, choice },
                }
            }
        }
    }

    /// One rank, or one for each unit if some are critical and others calm. Nothing uses the rank of a unit
    /// that is sent whole.
    fn by_rank(&self, low: u16, high: u16) -> Decided {
        let of = |regime: &Regime| if regime.is_critical && !regime.is_dense { low } else { high };
        match self.choice() {
            choice @ Choice::Mixed => Decided::Ranks { ranks: self.regimes.iter().map(of).collect(), choice },
            choice @ Choice::Critical => Decided::Rank { rank: low, choice },
            choice => Decided::Rank { rank: high, choice },
        }
    }

    fn units(&self) -> Vec<Unit> {
        let unit = |(id, regime): (u32, &Regime)| {
            let &Regime { start, len, is_dense: dense, .. } = regime;
            Unit { id, start, len, dense }
        };
        (0..).zip(&self.regimes).map(unit).collect()
    }

    /// Of all that are not sent dense.
    fn choice(&self) -> Choice {
        let mut compressed = self.regimes.iter().filter(|regime| !regime.is_dense);
        let first = compressed.next().is_none_or(|regime| regime.is_critical);
        match (compressed.all(|regime| regime.is_critical == first), first) {
            (true, true) => Choice::Critical,
            (true, false) => Choice::Calm,
            (false, _) => Choice::Mixed,
        }
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
        let of = |one: &Self| (one.settings, one.steps, one.sum.len(), one.units());
        of(self) == of(first)
    }

    fn end_window(&mut self) {
        let Self { settings, regimes, sum, .. } = self;
        regimes.iter_mut().for_each(|regime| regime.end_window(settings.eta, sum));
        sum.fill(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accordion(window: u64, steps_per_epoch: u64) -> Accordion {
        let settings = AccordionSettings { window, ..AccordionSettings::densities(By::Model) };
        Accordion::new(settings, steps_per_epoch, &[Unit::whole(2)])
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
        let by_window: Vec<Choice> = seen.iter().step_by(4).map(Decided::choice).collect();
        let expected = [Choice::Critical, Choice::Critical, Choice::Calm, Choice::Critical, Choice::Calm];
        assert_eq!(by_window, expected);
        for decision in &seen {
            let density = if decision.choice() == Choice::Calm { 0.01 } else { 0.1 };
            assert_eq!(decision.density().map(Density::fraction), Some(density));
        }
        for window in seen.chunks(4) {
            assert!(window.iter().all(|decision| decision == &window[0]), "a window has one regime");
        }
        // 1.4 to 0, and 0 to 0: from nothing, anything is a change.
        assert_eq!(accordion.decide(20, 0.1).choice(), Choice::Critical);
        assert_eq!(accordion.decide(24, 0.1).choice(), Choice::Critical);
    }

    #[test]
    fn a_rate_that_falls_is_critical_until_the_window_ends_and_one_that_rises_is_not() {
        let mut accordion = accordion(1, 3);
        let rates = [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.2];
        let mut critical = Vec::new();
        for (step, rate) in rates.into_iter().enumerate() {
            critical.push(accordion.decide(step as u64, rate).choice() == Choice::Critical);
            accordion.observe(&[1.0, 1.0]);
        }
        let expected = [true, true, true, true, true, true, false, true, true, false, false, false];
        assert_eq!(critical, expected);
    }

    /// Three layers, one of them sent dense.
    fn layers() -> [Unit; 3] {
        let unit = |id, start, len, dense| Unit { id, start, len, dense };
        [unit(0, 0, 2, false), unit(1, 2, 1, true), unit(2, 3, 3, false)]
    }

    /// Their means, in windows of one step.
    const MEANS: [[f32; 6]; 5] = [
        [3.0, 4.0, 1.0, 1.0, 2.0, 2.0], // norms 5 and 3
        [0.0, 4.0, 9.0, 1.0, 0.0, 0.0], // 4 and 1: the second differs by two thirds
        [0.0, 1.0, 0.0, 0.0, 1.0, 0.0], // 1 and 1: the first by three quarters
        [0.0, 1.0, 5.0, 0.0, 0.0, 1.0], // 1 and 1
        [0.0, 0.0, 5.0, 0.0, 0.0, 0.0],
    ];

    #[test]
    fn each_layer_has_a_norm_a_regime_and_a_density_of_its_own() {
        let units = layers();
        let settings = AccordionSettings { window: 1, ..AccordionSettings::densities(By::Layer) };
        let mut accordion = Accordion::new(settings, 1, &units);
        let mut seen = Vec::new();
        for (step, mean) in MEANS.iter().enumerate() {
            let decided = accordion.decide(step as u64, if step == 4 { 0.01 } else { 0.1 });
            assert_eq!(decided, accordion.now());
            let Decided::Densities { whole, densities } = decided else { panic!("{decided:?}") };
            let share =
                [0, 1, 2].map(|at| units[at].len as f64 * densities[at].fraction()).iter().sum::<f64>();
            assert!((whole.density.fraction() - share / 6.0).abs() < 1e-9);
            seen.push((whole.choice, [0, 1, 2].map(|at| densities[at].fraction())));
            accordion.observe(mean);
        }
        let expected = [
            (Choice::Critical, [0.1, 1.0, 0.1]),
            (Choice::Critical, [0.1, 1.0, 0.1]),
            (Choice::Mixed, [0.01, 1.0, 0.1]),
            (Choice::Mixed, [0.1, 1.0, 0.01]),
            // Neither has changed, but the rate has fallen.
            (Choice::Critical, [0.1, 1.0, 0.1]),
        ];
        assert_eq!(seen, expected);
    }

    /// As above: the ranks differ where the densities do, and the vector has no part in it.
    #[test]
    fn each_matrix_has_a_norm_a_regime_and_a_rank_of_its_own() {
        let units = layers();
        let settings = AccordionSettings { window: 1, ..AccordionSettings::ranks(By::Layer) };
        let mut accordion = Accordion::new(settings, 1, &units);
        let mut seen = Vec::new();
        for (step, mean) in MEANS.iter().enumerate() {
            seen.push(accordion.decide(step as u64, 0.1));
            assert_eq!(seen.last(), Some(&accordion.now()));
            accordion.observe(mean);
        }
        let of = |rank, choice| Decided::Rank { rank, choice };
        let mixed = |ranks: [u16; 3]| Decided::Ranks { ranks: ranks.to_vec(), choice: Choice::Mixed };
        let expected = [
            of(4, Choice::Critical),
            of(4, Choice::Critical),
            mixed([1, 1, 4]),
            mixed([4, 1, 1]),
            // Neither has changed.
            of(1, Choice::Calm),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn ranks_take_the_place_of_densities() {
        let settings = AccordionSettings { window: 1, ..AccordionSettings::ranks(By::Model) };
        let mut accordion = Accordion::new(settings, 1, &[Unit::whole(1)]);
        assert_eq!(accordion.now(), Decided::Rank { rank: 4, choice: Choice::Critical });
        let mut ranks = Vec::new();
        for step in 0..4 {
            let Decided::Rank { rank, .. } = accordion.decide(step, 0.1) else { panic!("a rank") };
            ranks.push(rank);
            accordion.observe(&[1.0]);
        }
        assert_eq!(ranks, [4, 4, 1, 1]);
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
