//! Learning rates by step.

use crate::range::{RangeError, require};

/// How the rate changes after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decay {
    /// Stays.
    Constant,
    /// Is multiplied by `factor` every `every` steps.
    Step {
        /// Steps from one multiplication to the next.
        every: u64,
        /// Above 0, at most 1.
        factor: f32,
    },
    /// Falls along half a cosine from the base to `floor` at step `end`, and stays there.
    Cosine {
        /// The first step with the lowest rate.
        end: u64,
        /// The lowest rate.
        floor: f32,
    },
}

/// The learning rate as a pure function of the step.
///
/// # Determinism
///
/// Products, and the cosine of `libm`: the same rates on every machine.
///
/// # Examples
///
/// ```
/// use gradwire_trainer::optim::{Decay, Schedule};
///
/// let schedule = Schedule::new(0.4, 4, Decay::Step { every: 10, factor: 0.5 })?;
/// assert_eq!([0, 1, 3, 4, 13, 14].map(|step| schedule.lr(step)), [0.1, 0.2, 0.4, 0.4, 0.4, 0.2]);
/// assert_eq!(schedule.ratio(14), 2.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    base: f32,
    warmup: u64,
    decay: Decay,
}

impl Schedule {
    /// Rises in `warmup` equal steps to `base`, then decays. Steps of the decay count from the end of the
    /// warm-up.
    ///
    /// # Errors
    ///
    /// If a setting is out of range.
    pub fn new(base: f32, warmup: u64, decay: Decay) -> Result<Self, RangeError> {
        require(base.is_finite() && base > 0.0, "lr", base, "above 0")?;
        match decay {
            Decay::Constant => {}
            Decay::Step { every, factor } => {
                require(every > 0, "every", every, "at least 1")?;
                require(factor > 0.0 && factor <= 1.0, "factor", factor, "above 0, at most 1")?;
            }
            Decay::Cosine { end, floor } => {
                require(end > warmup, "end", end, format!("above the {warmup} steps of warm-up"))?;
                require((0.0..=base).contains(&floor), "floor", floor, format!("0 to {base}"))?;
            }
        }
        Ok(Self { base, warmup, decay })
    }

    /// The same rate at every step.
    ///
    /// # Errors
    ///
    /// If `base` is not a positive number.
    pub fn constant(base: f32) -> Result<Self, RangeError> {
        Self::new(base, 0, Decay::Constant)
    }

    /// The rate of a step, counted from 0.
    pub fn lr(&self, step: u64) -> f32 {
        if step < self.warmup {
            return self.base * ((step + 1) as f32 / self.warmup as f32);
        }
        let warm = step - self.warmup;
        match self.decay {
            Decay::Constant => self.base,
            Decay::Step { every, factor } => self.base * power(factor, warm / every),
            Decay::Cosine { end, floor } => {
                let share = warm.min(end - self.warmup) as f64 / (end - self.warmup) as f64;
                let height = 0.5 * (1.0 + libm::cos(core::f64::consts::PI * share));
                floor + (self.base - floor) * height as f32
            }
        }
    }

    /// The rate of the previous step, divided by that of this step. A residual is multiplied by it, so that
    /// it moves the parameters as far as it would have at the step at which it was kept.
    ///
    /// 1 for step 0, and where either rate is zero.
    ///
    /// # Source
    ///
    /// Zheng, Huang, Kwok, "Communication-efficient distributed blockwise momentum SGD with error-feedback",
    /// arXiv:1905.10936, algorithm 1.
    pub fn ratio(&self, step: u64) -> f32 {
        let Some(before) = step.checked_sub(1) else { return 1.0 };
        let (before, now) = (self.lr(before), self.lr(step));
        if before == 0.0 || now == 0.0 { 1.0 } else { before / now }
    }
}

/// `base` to a whole power by squaring, products only.
fn power(mut base: f32, mut exponent: u64) -> f32 {
    let mut product = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            product *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosine_falls_from_base_to_floor() {
        let schedule = Schedule::new(1.0, 2, Decay::Cosine { end: 12, floor: 0.25 }).unwrap();
        assert_eq!([0, 1, 2].map(|step| schedule.lr(step)), [0.5, 1.0, 1.0]);
        assert_eq!([7, 12, 1_000].map(|step| schedule.lr(step)), [0.625, 0.25, 0.25]);
        assert!((2..12).all(|step| schedule.lr(step + 1) < schedule.lr(step)));
    }

    #[test]
    fn powers_are_exact_where_they_can_be() {
        assert_eq!(power(0.5, 10), 1.0 / 1024.0);
        assert_eq!(power(0.1, 0), 1.0);
        assert_eq!(power(0.5, u64::MAX), 0.0);
    }

    #[test]
    fn ratios_undo_the_change_of_the_rate() {
        let schedule = Schedule::new(1.0, 4, Decay::Cosine { end: 8, floor: 0.0 }).unwrap();
        assert_eq!([0, 1, 2, 3, 4].map(|step| schedule.ratio(step)), [1.0, 0.5, 0.5 / 0.75, 0.75, 1.0]);
        assert_eq!(schedule.ratio(8), 1.0);
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let key = |base, warmup, decay| Schedule::new(base, warmup, decay).unwrap_err().key;
        assert_eq!(key(0.0, 0, Decay::Constant), "lr");
        assert_eq!(key(f32::NAN, 0, Decay::Constant), "lr");
        assert_eq!(key(1.0, 0, Decay::Step { every: 0, factor: 0.5 }), "every");
        assert_eq!(key(1.0, 0, Decay::Step { every: 1, factor: 0.0 }), "factor");
        assert_eq!(key(1.0, 5, Decay::Cosine { end: 5, floor: 0.0 }), "end");
        assert_eq!(key(1.0, 5, Decay::Cosine { end: 6, floor: 2.0 }), "floor");
    }
}
