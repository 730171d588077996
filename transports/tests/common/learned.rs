//! A gossip codec that keeps something for each edge and sends several messages a step.

use gradwire::rounds::{Gossip, LinearScratch, LinearScratchLen, Turn};
use gradwire::{EncodeError, LayoutRef, Unit};

/// Learns, for each edge and unit, a direction in which the two models differ, and moves them along it.
///
/// Rounds 0 and 2 send the inner product of the model with the direction, round 1 a quarter of the model. The
/// direction is drawn anew where it is zero, in the call that sends; so what is kept changes there too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Learned;

/// The coordinates that round 1 of a step sends.
fn quarter(turn: &Turn<'_>) -> std::ops::Range<usize> {
    let (len, at) = (turn.unit.len, (turn.key.step % 4) as usize);
    at * len / 4..(at + 1) * len / 4
}

fn inner(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn draw(turn: &Turn<'_>, direction: &mut [f32]) {
    let edge = u64::from(turn.edge.low) << 32 | u64::from(turn.edge.high);
    let stream = turn.key.stream(turn.unit.id);
    let signs = (0..).map(|at| if stream.u64_at(edge ^ at) & 1 == 0 { 1.0 } else { -1.0 });
    direction.iter_mut().zip(signs).for_each(|(value, sign)| *value = sign);
}

impl Gossip for Learned {
    fn round_scratch_len(&self, len: usize) -> LinearScratchLen {
        LinearScratchLen { words: 0, floats: len.max(1), ints: 0 }
    }

    fn rounds(&self) -> u32 {
        3
    }

    fn kept_len(&self, _: &LayoutRef<'_>, unit: &Unit) -> usize {
        unit.len
    }

    fn payload<'s>(
        &self,
        turn: &Turn<'_>,
        model: &[f32],
        kept: &mut [f32],
        scratch: &'s mut LinearScratch<'_>,
    ) -> Result<&'s [f32], EncodeError> {
        if let Some(at) = model.iter().position(|value| !value.is_finite()) {
            return Err(EncodeError::NonFiniteInput { index: turn.unit.start + at });
        }
        if kept.iter().all(|value| *value == 0.0) {
            draw(turn, kept);
        }
        let payload = if turn.round == 1 {
            let part = &model[quarter(turn)];
            scratch.floats[..part.len()].copy_from_slice(part);
            part.len()
        } else {
            scratch.floats[0] = inner(model, kept);
            1
        };
        Ok(&scratch.floats[..payload])
    }

    fn advance(
        &self,
        turn: &Turn<'_>,
        theirs: &[f32],
        weight: f32,
        model: &mut [f32],
        kept: &mut [f32],
        scratch: &mut LinearScratch<'_>,
    ) {
        let mine = &scratch.floats[..theirs.len()];
        let (high, low) = if turn.is_low { (theirs, mine) } else { (mine, theirs) };
        let differences = high.iter().zip(low).map(|(high, low)| high - low);
        if turn.round == 1 {
            let learned = &mut kept[quarter(turn)];
            learned.iter_mut().zip(differences).for_each(|(value, difference)| {
                *value = 0.5 * *value + difference;
            });
            return;
        }
        let length = inner(kept, kept);
        if length > 0.0 {
            // The low end moves up the difference, and the high end down.
            let sign = if turn.is_low { weight } else { -weight };
            let along = differences.sum::<f32>() / length;
            model.iter_mut().zip(kept).for_each(|(value, direction)| *value += sign * (along * *direction));
        }
    }
}
