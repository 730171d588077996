//! How the number of stages follows what the threshold really leaves.

use crate::memory::UnitState;

/// Steps from one adaptation to the next.
const WINDOW: u32 = 5;

/// Mean ratios of what was left to what was wanted that call for fewer stages, and for more.
const TOO_MANY: f32 = 1.2;
const TOO_FEW: f32 = 0.8;

/// Set in word 0 where fewer stages are tried when too few were left.
const REVERSED: u32 = 1 << 8;

/// What is remembered of a unit.
///
/// | word | holds |
/// | --- | --- |
/// | 0 | bits 0 … 7: the number of stages less one; bit 8: whether the direction is reversed |
/// | 1 | steps since the number of stages was last set |
/// | 2 | sum of their ratios, an f32 |
/// | 3 | how far the mean ratio was from 1 in the window before, an f32 |
///
/// Any words are taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stages {
    pub(super) stages: u32,
    is_reversed: bool,
    steps: u32,
    ratios: f32,
    error: f32,
}

impl Stages {
    /// As they were left, at most `most` of them; words that are no finite numbers count as 0.
    pub(super) fn read(state: UnitState, most: u32) -> Self {
        let finite = |word| Some(f32::from_bits(word)).filter(|number| number.is_finite()).unwrap_or(0.0);
        let [stages, steps, ratios, error] = state.words();
        Self {
            stages: (stages & 0xff).saturating_add(1).min(most),
            is_reversed: stages & REVERSED != 0,
            steps: steps % WINDOW,
            ratios: finite(ratios),
            error: finite(error),
        }
    }

    pub(super) fn write(self) -> UnitState {
        let stages = (self.stages - 1) | if self.is_reversed { REVERSED } else { 0 };
        UnitState::from_words([stages, self.steps, self.ratios.to_bits(), self.error.to_bits()])
    }

    /// After a step that left `ratio` times what was wanted. Every fifth step: one stage fewer where the mean ratio is above
    /// 1.2, one more where it is below 0.8. That suits light tails; where it makes matters worse, or there is no such number
    /// of stages, the direction is reversed; and reversed back where that in turn makes matters worse.
    ///
    /// # Source
    /// Abdelmoniem et al.: SIDCo (MLSys 2021), algorithm 1; the reversal is one of the modes of the authors' code.
    pub(super) fn after(self, ratio: f32, most: u32) -> Self {
        let next = Self { steps: self.steps + 1, ratios: self.ratios + ratio, ..self };
        if next.steps < WINDOW {
            return next;
        }
        let mean = next.ratios / WINDOW as f32;
        let error = (mean - 1.0).abs();
        let begun = Self { steps: 0, ratios: 0.0, error, ..next };
        if (TOO_FEW..=TOO_MANY).contains(&mean) {
            return begun;
        }
        let is_reversed = self.is_reversed ^ (self.error != 0.0 && error > self.error);
        let wants_more = (mean < TOO_FEW) ^ is_reversed;
        let stages = if wants_more { self.stages + 1 } else { self.stages - 1 }.clamp(1, most);
        Self { stages, is_reversed: is_reversed || stages == self.stages, ..begun }
    }
}
