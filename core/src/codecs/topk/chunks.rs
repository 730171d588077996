//! Selects the same number of coordinates from every chunk.

use super::select::{compact, cut};
#[cfg(feature = "alloc")]
use crate::codec::{Beside, Whole, read_beside};
#[cfg(feature = "alloc")]
use crate::corrected::Corrected;
use crate::corrected::Pass;
use crate::error::EncodeError;
use crate::gradient::density::Density;
#[cfg(feature = "alloc")]
use crate::kernels::{self, Sums};
use crate::kernels::{CANDIDATE_SLACK, Candidates, Isa};

/// A unit cut into chunks of equal length, each with its own number of entries. The last chunk may be
/// shorter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunks {
    pub(super) density: Density,
    /// Coordinates of a chunk.
    pub(super) len: usize,
}

impl Chunks {
    /// The most entries of a unit of `len` elements.
    pub(super) fn most_entries(self, len: usize) -> usize {
        len / self.len * self.density.count(self.len) + self.density.count(len % self.len)
    }

    /// Elements that each part of the candidates must hold for a unit of `len`: all entries, and one chunk.
    pub(super) fn capacity(self, len: usize) -> usize {
        let room = self.most_entries(len).saturating_add(self.len.min(len));
        room.saturating_add(CANDIDATE_SLACK)
    }

    /// Leaves the largest magnitudes of each chunk: as many as the density gives for its length, or all that
    /// are not zero if there are fewer. `spare` is working memory.
    ///
    /// # Errors
    /// The errors of [`Pass::add_and_select`].
    pub(super) fn select(
        self,
        isa: Isa,
        pass: &mut Pass<'_>,
        candidates: &mut Candidates<'_>,
        spare: &mut [u32],
    ) -> Result<(), EncodeError> {
        candidates.len = 0;
        let mut expected = 1;
        for first in (0..pass.len()).step_by(self.len) {
            let (len, begin) = (self.len.min(pass.len() - first), candidates.len);
            let k = self.density.count(len);
            for least in attempts(expected) {
                candidates.len = begin;
                pass.add_and_select(isa, (first, len), least, candidates)?;
                if candidates.len - begin >= k {
                    break;
                }
            }
            expected = leave(isa, candidates, begin, k, spare).unwrap_or(expected);
        }
        Ok(())
    }

    /// The same, beside the memory. Reads the source once.
    ///
    /// # Errors
    /// The errors of [`Corrected::fold`].
    #[cfg(feature = "alloc")]
    pub(super) fn hold(
        self,
        isa: Isa,
        source: &Corrected<'_>,
        beside: &mut Beside<'_>,
        candidates: &mut Candidates<'_>,
        spare: &mut [u32],
    ) -> Result<Whole, EncodeError> {
        candidates.len = 0;
        let mut begin = 0;
        read_beside(source, beside, |first, p| {
            // A run holds several chunks, or a chunk several runs: the lengths of both are powers of two.
            for (at, p) in (first..).step_by(self.len).zip(p.chunks(self.len)) {
                kernels::keep_from(isa, p, Sums::None, at as u32, 1, candidates);
                let end = at + p.len();
                if end.is_multiple_of(self.len) || end == source.len() {
                    let len = end - (end - 1) / self.len * self.len;
                    leave(isa, candidates, begin, self.density.count(len), spare);
                    begin = candidates.len;
                }
            }
        })
    }

    /// Leaves what [`select`](Self::select) leaves of a unit of `len` elements, out of what it leaves at this
    /// density or a higher one: what is largest in a chunk is among more of its largest.
    #[cfg(feature = "alloc")]
    pub(super) fn choose(self, isa: Isa, len: usize, candidates: &mut Candidates<'_>, spare: &mut [u32]) {
        let (mut begin, mut at, held) = (0, 0, candidates.len);
        while at < held {
            let first = candidates.indices[at] as usize / self.len * self.len;
            let chunk = first..len.min(first + self.len);
            let rest = &candidates.indices[at..held];
            let end = at + rest.iter().take_while(|&&index| chunk.contains(&(index as usize))).count();
            candidates.indices.copy_within(at..end, begin);
            candidates.values.copy_within(at..end, begin);
            candidates.len = begin + (end - at);
            leave(isa, candidates, begin, self.density.count(chunk.len()), spare);
            (begin, at) = (candidates.len, end);
        }
    }
}

/// Bounds on the magnitudes of a chunk's entries, to be tried until enough values reach one: a little and far
/// below the last cut of a chunk, and then the least that is not zero. They decide how many values are
/// compared, and never which of them are chosen.
fn attempts(cut: u32) -> impl Iterator<Item = u32> {
    // Magnitude bits are a logarithm: a quarter, and two octaves.
    let below = [1 << 21, 2 << 23].map(|bits| cut.saturating_sub(bits).max(1));
    below.into_iter().filter(|&least| least > 1).chain([1])
}

/// Leaves the `k` largest of the candidates from number `begin` on, and all before them. Returns the
/// magnitude bits of the smallest that it leaves; none if it leaves all.
fn leave(
    isa: Isa,
    candidates: &mut Candidates<'_>,
    begin: usize,
    k: usize,
    spare: &mut [u32],
) -> Option<u32> {
    let len = candidates.len.checked_sub(begin).filter(|&len| len > k)?;
    let (indices, values) = (&mut candidates.indices[begin..], &mut candidates.values[begin..]);
    let mut own = Candidates { indices, values, len };
    let cut = cut(isa, &own.values[..len], k, spare);
    compact(isa, &mut own, cut, k);
    candidates.len = begin + own.len;
    Some(cut.magnitude)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::Grad;
    use crate::kernels::scalar::MAGNITUDE;
    use std::{vec, vec::Vec};

    /// What a sort of every chunk leaves, ties to the lowest index and no zeros.
    fn naive(p: &[f32], chunks: Chunks) -> Vec<u32> {
        let magnitude = |i: &usize| p[*i].to_bits() & MAGNITUDE;
        let largest = |first: usize| {
            let chunk = first..p.len().min(first + chunks.len);
            let k = chunks.density.count(chunk.len());
            let mut order: Vec<usize> = chunk.filter(|i| magnitude(i) != 0).collect();
            order.sort_by_key(|i| (std::cmp::Reverse(magnitude(i)), *i));
            order.truncate(k);
            order.sort_unstable();
            order.into_iter().map(|i| i as u32)
        };
        (0..p.len()).step_by(chunks.len).flat_map(largest).collect()
    }

    /// Each chunk has magnitudes that the one before does not let expect: equal ones, far smaller and far
    /// larger ones, few and none that are not zero.
    #[test]
    fn what_a_chunk_leaves_does_not_depend_on_the_chunk_before() {
        let (density, len) = (Density::new(0.02).unwrap(), 256);
        let scales = [1.0, 0.9, 0.3, 1e-3, 1e-3, 0.0, 1e-3, 1e6, 1e-30, 2e-30, 1.0, 0.0, 0.0, 1.0f32];
        let value = |i: usize| {
            let scale = scales[i / len % scales.len()];
            let noise = (i as u32).wrapping_mul(2_654_435_761) as i32 as f32 / 2.0f32.powi(31);
            let is_left_out = i / len % 5 == 4 && i % 97 != 3;
            let is_tie = i / len % 7 == 1;
            scale
                * if is_left_out {
                    0.0
                } else if is_tie {
                    0.5f32.copysign(noise)
                } else {
                    noise
                }
        };
        let p: Vec<f32> = (0..60 * len + 77).map(value).collect();
        for chunks in [64, 256, 1024].map(|len| Chunks { density, len }) {
            for isa in Isa::available() {
                for has_residual in [false, true] {
                    let mut residual = vec![0.0; p.len()];
                    let room = chunks.capacity(p.len());
                    let (mut indices, mut values, mut spare) = (vec![0; room], vec![0; room], vec![0; room]);
                    let mut candidates = Candidates { indices: &mut indices, values: &mut values, len: 0 };
                    let kept = has_residual.then_some(&mut residual[..]);
                    let mut pass = Pass::new(Grad::F32(&p), kept, 0, f32::INFINITY);
                    chunks.select(isa, &mut pass, &mut candidates, &mut spare).unwrap();
                    let left = candidates.len;
                    assert_eq!(indices[..left], naive(&p, chunks), "{isa:?}, {chunks:?}");
                    assert!((0..left).all(|i| values[i] == p[indices[i] as usize].to_bits()));
                    assert!(!has_residual || residual == p);
                }
            }
        }
    }
}
