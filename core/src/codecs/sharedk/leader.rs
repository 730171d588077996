//! Coordinates that one worker chooses for all.

use super::feedback::End;
use crate::codec::{Reduction, Round};
use crate::codecs::topk::largest;
use crate::gradient::unit::Unit;
use crate::rng::key::StepKey;
use crate::scratch::{LinearScratch, LinearScratchLen};

/// A unit that is sent by [`SharedBy::Leader`](super::SharedBy::Leader).
pub(super) struct Led {
    k: usize,
}

/// The bids are 24 bits, which an f32 holds.
const BIDS: u32 = 1 << 24;
/// An odd number, so that no two bids become one.
const MIX: u32 = 10_368_889;

/// What a rank bids for the lead: all bids differ.
fn bid(key: StepKey, unit: u32) -> f32 {
    let draw = key.shared_selection(unit).u64_at(0);
    let (odd, add) = (draw as u32 | 1, (draw >> 32) as u32);
    let x = key.source.word().wrapping_mul(odd).wrapping_add(add) % BIDS;
    ((x ^ x >> 12).wrapping_mul(MIX) % BIDS) as f32
}

impl Led {
    /// For a unit of this length, unless all its values would be as short.
    pub(super) fn shorter(len: usize, k: usize) -> Option<Self> {
        (k.saturating_mul(2).saturating_add(1) < len).then_some(Self { k })
    }

    /// Behind p, words for the positions; the first one keeps the bid until then.
    pub(super) fn scratch_len(&self, len: usize) -> LinearScratchLen {
        LinearScratchLen { words: len.saturating_add(self.k), floats: self.k, ints: self.k }
    }

    /// The first round: who leads.
    pub(super) fn begin(
        &self,
        key: StepKey,
        unit: &Unit,
        scratch: &mut LinearScratch<'_>,
    ) -> (Reduction, usize) {
        let bid = bid(key, unit.id);
        scratch.floats[0] = bid;
        scratch.words[unit.len] = bid.to_bits();
        (Reduction::MaxF32, 1)
    }

    pub(super) fn advance(
        &self,
        round: Round,
        scratch: &mut LinearScratch<'_>,
        end: End<'_, '_>,
    ) -> Option<Round> {
        let (p, indices) = scratch.words.split_at_mut(round.unit.len);
        match round.index {
            0 => {
                let is_leader = scratch.floats[0].to_bits() == indices[0];
                let positions = &mut scratch.ints[..self.k];
                positions.fill(0);
                if is_leader {
                    // The mean is of use only in the end.
                    positions
                        .iter_mut()
                        .zip(largest(p, self.k, end.mean))
                        .for_each(|(to, at)| *to = (at as u32).wrapping_add(1).cast_signed());
                }
                Some(Round { index: 1, reduction: Reduction::SumI32, payload_len: self.k, ..round })
            }
            1 => {
                let (mut payload_len, mut next) = (0, 0);
                for at in scratch.ints[..self.k].iter().map(|&sent| sent.cast_unsigned()) {
                    let Some(at) = at.checked_sub(1).filter(|&at| at >= next && (at as usize) < p.len())
                    else {
                        continue;
                    };
                    (indices[payload_len], scratch.floats[payload_len]) =
                        (at, f32::from_bits(p[at as usize]));
                    (payload_len, next) = (payload_len + 1, at + 1);
                }
                Some(Round { index: 2, reduction: Reduction::SumF32, payload_len, ..round })
            }
            _ => {
                let sums = scratch.floats[..round.payload_len].iter().copied();
                let sent = indices.iter().map(|&at| at as usize).zip(sums);
                end.conclude(p, sent);
                None
            }
        }
    }
}
