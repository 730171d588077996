//! Coordinates that a summed sketch finds.

use super::feedback::End;
use super::sketch::SketchSize;
use crate::codec::{Reduction, Round};
use crate::codecs::sketch::{KEY_WORDS, Table};
use crate::codecs::topk::{largest, radix_cut};
use crate::kernels;
use crate::rng::Stream;
use crate::scratch::{LinearScratch, LinearScratchLen};

/// A unit that is sent by [`SharedBy::Sketch`](super::SharedBy::Sketch).
pub(super) struct Sketched {
    /// Coordinates that are sent.
    k: usize,
    /// Coordinates whose values are summed.
    candidates: usize,
    table: Table,
}

/// The words of the scratch memory.
struct Parts<'s> {
    /// p of the unit, where [`Linear::abandon`](crate::codec::Linear::abandon) expects it.
    p: &'s mut [u32],
    keys: &'s mut [u32],
    /// What the sketch says of each coordinate.
    estimates: &'s mut [u32],
    /// The candidates, ascending.
    indices: &'s mut [u32],
}

impl<'s> Parts<'s> {
    fn of(words: &'s mut [u32], len: usize) -> Self {
        let (p, words) = words.split_at_mut(len);
        let (keys, words) = words.split_at_mut(KEY_WORDS);
        let (estimates, indices) = words.split_at_mut(len);
        Self { p, keys, estimates, indices }
    }
}

impl Sketched {
    /// For a unit of this length, unless all its values would be as short.
    pub(super) fn shorter(len: usize, k: usize, size: SketchSize, candidates: u8) -> Option<Self> {
        let candidates = k.saturating_mul(usize::from(candidates.max(1))).min(len);
        let table = size.table(candidates);
        (table.cells().saturating_add(candidates) < len).then_some(Self { k, candidates, table })
    }

    pub(super) fn scratch_len(&self, len: usize) -> LinearScratchLen {
        let words = len.saturating_mul(2).saturating_add(KEY_WORDS).saturating_add(self.candidates);
        LinearScratchLen { words, floats: self.table.cells().max(self.candidates), ints: 0 }
    }

    /// The first round.
    pub(super) fn begin(
        &self,
        stream: &Stream,
        len: usize,
        scratch: &mut LinearScratch<'_>,
    ) -> (Reduction, usize) {
        let parts = Parts::of(scratch.words, len);
        let cells = self.table.cells();
        self.table.draw_keys(stream, parts.keys);
        self.table.fill(parts.p, parts.keys, &mut scratch.floats[..cells]);
        (Reduction::SumF32, cells)
    }

    pub(super) fn advance(
        &self,
        round: Round,
        scratch: &mut LinearScratch<'_>,
        end: End<'_, '_>,
    ) -> Option<Round> {
        let parts = Parts::of(scratch.words, round.unit.len);
        let sums = &scratch.floats[..round.payload_len];
        if round.index == 0 {
            self.table.estimate(sums, parts.keys, parts.estimates);
            // The mean is of use only in the end.
            let found = largest(parts.estimates, self.candidates, end.mean);
            let mut payload_len = 0;
            for ((index, value), at) in parts.indices.iter_mut().zip(&mut *scratch.floats).zip(found) {
                (*index, *value) = (at as u32, f32::from_bits(parts.p[at]));
                payload_len += 1;
            }
            return Some(Round { index: 1, payload_len, ..round });
        }
        let sums = kernels::bits_of(sums);
        let largest = radix_cut(sums, self.k).positions(sums);
        let sent = largest.map(|at| (parts.indices[at] as usize, f32::from_bits(sums[at])));
        end.conclude(parts.p, sent);
        None
    }
}
