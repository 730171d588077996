//! Plain gossip: two neighbours exchange their models and move towards each other.

mod spelling;

use crate::codec::{Edge, Gossip, Payload, Reduction, Round, begin_unit};
use crate::error::EncodeError;
use crate::gradient::grad::Grad;
use crate::gradient::layout::LayoutRef;
use crate::gradient::unit::Unit;
use crate::rng::key::StepKey;
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

    fn begin(
        &self,
        _key: StepKey,
        _edge: Edge,
        _layout: &LayoutRef<'_>,
        unit: &Unit,
        model: &[f32],
        scratch: &mut LinearScratch<'_>,
    ) -> Result<Round, EncodeError> {
        assert_eq!(model.len(), unit.len, "model and unit differ in length");
        begin_unit(self.round_scratch_len(unit.len), unit, Grad::F32(model), None, BOUND, scratch)?;
        scratch.floats[..unit.len].copy_from_slice(model);
        Ok(Round { index: 0, reduction: Reduction::Neighbour, unit: *unit, payload_len: unit.len })
    }

    fn payload<'s>(&self, round: &Round, scratch: &'s mut LinearScratch<'_>) -> Payload<'s> {
        Payload::F32(&mut scratch.floats[..round.payload_len])
    }

    fn advance(
        &self,
        round: Round,
        scratch: &mut LinearScratch<'_>,
        theirs: &[f32],
        weight: f32,
        model: &mut [f32],
    ) -> Option<Round> {
        assert_eq!(theirs.len(), round.payload_len, "payloads of the two ends differ in length");
        assert_eq!(model.len(), round.unit.len, "model and unit differ in length");
        // The difference at one end is exactly the negative of that at the other.
        for ((value, theirs), mine) in model.iter_mut().zip(theirs).zip(&*scratch.floats) {
            *value += weight * (theirs - mine);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::key::Source as Who;

    #[test]
    fn two_neighbours_meet_at_their_mean() {
        let layout = LayoutRef::flat(3);
        let unit = Unit::whole(3);
        let key = StepKey { seed: 1, step: 0, source: Who::Shared };
        let edge = Edge { low: 2, high: 5 };
        let mut models = [[1.0f32, -2.0, 0.5], [3.0, 2.0, 0.25]];
        let (mut words, mut floats) = ([[0; 3]; 2], [[0.0; 3]; 2]);
        let [a, b] = &mut floats;
        let [c, d] = &mut words;
        let mut scratch =
            [(a, c), (b, d)].map(|(floats, words)| LinearScratch { words, floats, ints: &mut [] });
        let rounds: [Round; 2] = core::array::from_fn(|i| {
            Dpsgd.begin(key, edge, &layout, &unit, &models[i], &mut scratch[i]).unwrap()
        });
        let sent = models;
        for i in 0..2 {
            assert_eq!(Dpsgd.advance(rounds[i], &mut scratch[i], &sent[1 - i], 0.5, &mut models[i]), None);
        }
        assert_eq!(models, [[2.0, 0.0, 0.375]; 2]);
    }

    #[test]
    fn a_model_that_is_not_finite_is_not_sent() {
        let (mut words, mut floats) = ([0; 2], [0.0; 2]);
        let mut scratch = LinearScratch { words: &mut words, floats: &mut floats, ints: &mut [] };
        let key = StepKey { seed: 1, step: 0, source: Who::Shared };
        let (edge, unit) = (Edge { low: 0, high: 1 }, Unit { start: 7, ..Unit::whole(2) });
        let model = [1.0, f32::NAN];
        let error = Dpsgd.begin(key, edge, &LayoutRef::flat(9), &unit, &model, &mut scratch);
        assert_eq!(error, Err(EncodeError::NonFiniteInput { index: 8 }));
    }
}
