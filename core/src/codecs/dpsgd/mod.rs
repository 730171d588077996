//! Plain gossip: two neighbours exchange their models and move towards each other.

mod spelling;

use crate::codec::{Gossip, Turn, begin_unit};
use crate::error::EncodeError;
use crate::gradient::grad::Grad;
use crate::scratch::{LinearScratch, LinearScratchLen};

/// 2¹²⁶: the difference of two values below it is finite.
const BOUND: f32 = f32::from_bits((127 + 126) << 23);

/// The whole model as f32, in one round: x ← x + w·(x' − x), where x' is the neighbour's model. The sum of
/// the two models changes only by rounding, and with w = 1/2 both end at their mean.
///
/// # Source
/// Lian et al.: Can Decentralized Algorithms Outperform Centralized Algorithms? (D-PSGD, arXiv 1705.09056),
/// algorithm 1, line 5, one edge at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dpsgd;

impl Gossip for Dpsgd {
    fn round_scratch_len(&self, len: usize) -> LinearScratchLen {
        LinearScratchLen { words: len, floats: len, ints: 0 }
    }

    fn payload<'s>(
        &self,
        turn: &Turn<'_>,
        model: &[f32],
        _kept: &mut [f32],
        scratch: &'s mut LinearScratch<'_>,
    ) -> Result<&'s [f32], EncodeError> {
        let unit = turn.unit;
        assert_eq!(model.len(), unit.len, "model and unit differ in length");
        begin_unit(self.round_scratch_len(unit.len), unit, Grad::F32(model), None, BOUND, scratch)?;
        let mine = &mut scratch.floats[..unit.len];
        mine.copy_from_slice(model);
        Ok(mine)
    }

    fn advance(
        &self,
        turn: &Turn<'_>,
        theirs: &[f32],
        weight: f32,
        model: &mut [f32],
        _kept: &mut [f32],
        scratch: &mut LinearScratch<'_>,
    ) {
        assert_eq!(theirs.len(), turn.unit.len, "payloads of the two ends differ in length");
        assert_eq!(model.len(), turn.unit.len, "model and unit differ in length");
        // The difference at one end is exactly the negative of that at the other.
        for ((value, theirs), mine) in model.iter_mut().zip(theirs).zip(&*scratch.floats) {
            *value += weight * (theirs - mine);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Edge;
    use crate::gradient::layout::LayoutRef;
    use crate::gradient::unit::Unit;
    use crate::rng::key::{Source, StepKey};

    fn turn<'a>(layout: &'a LayoutRef<'a>, unit: &'a Unit, is_low: bool) -> Turn<'a> {
        let key = StepKey { seed: 1, step: 0, source: Source::Shared };
        Turn { key, edge: Edge { low: 2, high: 5 }, is_low, layout, unit, round: 0 }
    }

    #[test]
    fn two_neighbours_meet_at_their_mean() {
        let (layout, unit) = (LayoutRef::flat(3), Unit::whole(3));
        let mut models = [[1.0f32, -2.0, 0.5], [3.0, 2.0, 0.25]];
        let (mut words, mut floats) = ([[0; 3]; 2], [[0.0; 3]; 2]);
        let [a, b] = &mut floats;
        let [c, d] = &mut words;
        let mut scratch =
            [(a, c), (b, d)].map(|(floats, words)| LinearScratch { words, floats, ints: &mut [] });
        let sent = models;
        for end in 0..2 {
            let turn = turn(&layout, &unit, end == 0);
            let payload = Dpsgd.payload(&turn, &models[end], &mut [], &mut scratch[end]);
            assert_eq!(payload, Ok(&sent[end][..]));
        }
        for end in 0..2 {
            let turn = turn(&layout, &unit, end == 0);
            Dpsgd.advance(&turn, &sent[1 - end], 0.5, &mut models[end], &mut [], &mut scratch[end]);
        }
        assert_eq!(models, [[2.0, 0.0, 0.375]; 2]);
    }

    #[test]
    fn a_model_that_is_not_finite_is_not_sent() {
        let (mut words, mut floats) = ([0; 2], [0.0; 2]);
        let mut scratch = LinearScratch { words: &mut words, floats: &mut floats, ints: &mut [] };
        let (layout, unit) = (LayoutRef::flat(9), Unit { start: 7, ..Unit::whole(2) });
        let error = Dpsgd.payload(&turn(&layout, &unit, true), &[1.0, f32::NAN], &mut [], &mut scratch);
        assert_eq!(error, Err(EncodeError::NonFiniteInput { index: 8 }));
    }
}
