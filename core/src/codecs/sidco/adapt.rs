//! Adapts the number of stages to how many entries the threshold selects.

use crate::memory::UnitState;

/// Steps from one adaptation to the next.
const WINDOW: u32 = 5;

/// The band of mean ratios of selected to wanted entries. Outside the band, another number of stages is
/// tried.
const TOO_MANY: f32 = 1.2;
const TOO_FEW: f32 = 0.8;

/// Set in word 0 where the number of stages falls from one try to the next.
const FALLING: u32 = 1 << 8;

/// What the codec remembers of a unit.
///
/// | word | holds |
/// | --- | --- |
/// | 0 | bits 0 … 7: the number of stages less one; bit 8: whether it falls from one try to the next |
/// | 1 | steps since the number of stages was last set |
/// | 2 | sum of their ratios, an f32 |
/// | 3 | 0 |
///
/// Any words are valid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stages {
    pub(super) stages: u32,
    is_falling: bool,
    steps: u32,
    ratios: f32,
}

impl Stages {
    /// Reads the state of a unit. The number of stages is limited to `most`, and a sum that is not finite
    /// counts as 0.
    pub(super) fn read(state: UnitState, most: u32) -> Self {
        let [stages, steps, ratios, _] = state.words();
        Self {
            stages: (stages & 0xff).saturating_add(1).min(most),
            is_falling: stages & FALLING != 0,
            steps: steps % WINDOW,
            ratios: Some(f32::from_bits(ratios)).filter(|ratios| ratios.is_finite()).unwrap_or(0.0),
        }
    }

    pub(super) fn write(self) -> UnitState {
        let stages = (self.stages - 1) | if self.is_falling { FALLING } else { 0 };
        UnitState::from_words([stages, self.steps, self.ratios.to_bits(), 0])
    }

    /// The state after a step that selected `ratio` times as many entries as wanted. At every fifth step it
    /// takes the next number of stages, if the mean ratio is below 0.8 or above 1.2. So it keeps the first
    /// number within these limits.
    ///
    /// # Source
    /// Abdelmoniem et al.: SIDCo (MLSys 2021), algorithm 1, which takes one stage fewer if too many are
    /// selected, and one more if too few. That is right for light tails. Heavy tails need the opposite, and
    /// the number selected may rise and fall again as stages are added. So this rule tries all numbers of
    /// stages in turn.
    pub(super) fn after(self, ratio: f32, most: u32) -> Self {
        let next = Self { steps: self.steps + 1, ratios: self.ratios + ratio, ..self };
        if next.steps < WINDOW {
            return next;
        }
        let begun = Self { steps: 0, ratios: 0.0, ..next };
        if (TOO_FEW..=TOO_MANY).contains(&(next.ratios / WINDOW as f32)) { begun } else { begun.tried(most) }
    }

    /// The next number of stages: one further in the same direction, which turns round at 1 and at `most`.
    fn tried(self, most: u32) -> Self {
        let is_last = self.stages == if self.is_falling { 1 } else { most };
        let is_falling = self.is_falling ^ is_last;
        let stages = if is_falling { self.stages - 1 } else { self.stages + 1 }.clamp(1, most);
        Self { stages, is_falling, ..self }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::{println, vec::Vec};

    const CURVES: usize = 10_000;
    const STEPS: usize = 500;

    /// The ratio of selected to wanted entries for each number of stages: entry M − 1 is that of M stages.
    type Curve = Vec<f32>;

    /// A stream of uniform numbers in 0 … 1, Weyl's sequence mixed as in SplitMix64.
    struct Uniform(u64);

    impl Uniform {
        fn draw(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
        }

        /// About Gaussian, of variance 1: twelve uniform numbers.
        fn gaussian(&mut self) -> f64 {
            (0..12).map(|_| self.draw()).sum::<f64>() - 6.0
        }

        /// A random walk of the logarithm of the ratio. It begins as a Gaussian and moves by half as much
        /// from M to M + 1.
        fn curve(&mut self, most: u32) -> Curve {
            let mut logarithm = 0.0;
            (0..most)
                .map(|i| {
                    logarithm += self.gaussian() * if i == 0 { 1.0 } else { 0.5 };
                    libm::exp(logarithm).min(2.0) as f32
                })
                .collect()
        }
    }

    /// The rule of the paper: fewer stages if too many entries are selected, more if too few are.
    fn paper(stages: u32, mean: f32, most: u32) -> u32 {
        if mean > TOO_MANY {
            (stages - 1).max(1)
        } else if mean < TOO_FEW {
            (stages + 1).min(most)
        } else {
            stages
        }
    }

    /// The number of stages that the paper's rule reaches after this many steps.
    fn settled_as_in_the_paper(curve: &Curve, most: u32) -> u32 {
        (0..STEPS as u32 / WINDOW).fold(1, |stages, _| paper(stages, curve[stages as usize - 1], most))
    }

    /// The number of stages that our rule reaches, if each step's ratio is off by a factor with this standard
    /// deviation.
    fn settled(curve: &Curve, most: u32, noise: f64, uniform: &mut Uniform) -> u32 {
        let mut state = UnitState::default();
        for _ in 0..STEPS {
            let at = Stages::read(state, most);
            let factor = if noise == 0.0 { 1.0 } else { libm::exp(noise * uniform.gaussian()) as f32 };
            state = at.after((curve[at.stages as usize - 1] * factor).min(2.0), most).write();
        }
        Stages::read(state, most).stages
    }

    /// Counts the curves on which some number of stages is in the band. Then counts those of them on which
    /// the chosen number ends outside the band: by the paper's rule, by ours, and by ours with single steps
    /// off by 5 %.
    fn simulated(most: u32) -> [usize; 4] {
        let mut uniform = Uniform(u64::from(most));
        let is_in_band = |ratio: &f32| (TOO_FEW..=TOO_MANY).contains(ratio);
        let mut counts = [0; 4];
        for _ in 0..CURVES {
            let curve = uniform.curve(most);
            if curve.iter().any(is_in_band) {
                let ours = [0.0, 0.05].map(|noise| settled(&curve, most, noise, &mut uniform));
                let ends = [settled_as_in_the_paper(&curve, most), ours[0], ours[1]];
                counts[0] += 1;
                for (count, stages) in counts[1..].iter_mut().zip(ends) {
                    *count += usize::from(!is_in_band(&curve[stages as usize - 1]));
                }
            }
        }
        counts
    }

    #[test]
    fn the_number_of_stages_settles_where_the_ratio_is_in_the_band() {
        for (density, most) in [("0.1", 4), ("0.01", 7), ("0.001", 10)] {
            let [curves, paper, ours, noisy] = simulated(most);
            println!(
                "density {density}: of {curves} curves, out of the band: {paper} by the paper, {ours}, noisy {noisy}"
            );
            assert!(curves > 3_000, "{curves}");
            assert_eq!(ours, 0, "density {density}");
            assert!(noisy * 10 < curves, "density {density}: {noisy} of {curves}");
        }
    }

    #[test]
    fn every_number_of_stages_is_tried_and_tried_again() {
        let tried = |from: Stages, most: u32| -> Vec<u32> {
            let next = |at: &Stages| Some(at.tried(most));
            std::iter::successors(Some(from), next).take(9).map(|at| at.stages).collect()
        };
        let rising = Stages { stages: 2, is_falling: false, steps: 0, ratios: 0.0 };
        assert_eq!(tried(rising, 4), [2, 3, 4, 3, 2, 1, 2, 3, 4]);
        assert_eq!(tried(Stages { is_falling: true, ..rising }, 4), [2, 1, 2, 3, 4, 3, 2, 1, 2]);
        assert_eq!(tried(Stages { stages: 1, ..rising }, 1), [1; 9]);
    }
}
