//! Chooses the k coordinates: exactly, in linear time for any input, ties to the lowest index.

use crate::built::Full;
use crate::corrected::{BLOCK, Pass, RUN, WIDE_BLOCK};
use crate::error::EncodeError;
use crate::kernels::scalar::MAGNITUDE;
use crate::kernels::{self, CANDIDATE_SLACK, Candidates, Isa};

/// Where a selection cuts: it takes every coordinate above `magnitude`, and the first `ties` coordinates of
/// exactly that magnitude.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) magnitude: u32,
    ties: usize,
}

impl Cut {
    /// The positions that it takes of the values whose bits are `p`, ascending.
    pub(crate) fn positions(self, p: &[u32]) -> impl Iterator<Item = usize> {
        // Most stretches have nothing: no difference, and no bit of all of them, is negative.
        let below = self.magnitude.cast_signed() - 1;
        let has_any = move |stretch: &[u32]| {
            stretch.iter().fold(0, |all, &value| all | (below - (value & MAGNITUDE).cast_signed())) < 0
        };
        let stretches = p.chunks(STRETCH).enumerate().filter(move |(_, stretch)| has_any(stretch));
        let values =
            stretches.flat_map(|(number, stretch)| (number * STRETCH..).zip(stretch.iter().copied()));
        let mut ties = self.ties;
        let mut takes = move |value: u32| {
            let magnitude = value & MAGNITUDE;
            let is_tie = magnitude == self.magnitude && ties > 0;
            ties -= usize::from(is_tie);
            magnitude > self.magnitude || is_tie
        };
        values.filter(move |&(_, value)| takes(value)).map(|(at, _)| at)
    }
}

/// Values that are looked at together where few are taken.
const STRETCH: usize = 16;

/// Digits of a magnitude's 31 bits, highest first, as (shift, bits).
const DIGITS: [(u32, u32); 4] = [(23, 8), (15, 8), (7, 8), (0, 7)];

/// The cut that leaves the `k` largest magnitudes, or all that are not zero if there are fewer.
///
/// For many values, a sample brackets the answer, and only the values inside the bracket are examined
/// closely; `spare` has room for them. For few values, and in a build for small machines, radix selection
/// gives the same result.
///
/// # Source
/// Floyd, Rivest: Expected Time Bounds for Selection (Communications of the ACM 18, 1975).
pub(crate) fn cut(isa: Isa, p: &[u32], k: usize, spare: &mut [u32]) -> Cut {
    let bracketed = Full::build().and_then(|_| bracketed_cut(isa, p, k, spare));
    bracketed.unwrap_or_else(|| radix_cut(p, k))
}

/// The positions of the `k` largest magnitudes, ascending, without zeros. `spare` has room for as many
/// values as `p`, and any content afterwards.
pub(crate) fn largest<'p>(
    p: &'p [u32],
    k: usize,
    spare: &mut [f32],
) -> impl Iterator<Item = usize> + use<'p> {
    cut(Isa::best(), p, k, kernels::bits_of_mut(spare)).positions(p)
}

/// Elements of the sample that brackets a cut, and how far the bracket reaches from the expected rank: three
/// standard deviations of the rank of a median.
const BRACKET_SAMPLE: usize = 1024;
const BRACKET_REACH: usize = 48;

/// The cut; `None` if it lies outside the bracket, or if `spare` has no room for the values inside.
fn bracketed_cut(isa: Isa, p: &[u32], k: usize, spare: &mut [u32]) -> Option<Cut> {
    let stride = p.len() / BRACKET_SAMPLE;
    let sample = spare.get_mut(..BRACKET_SAMPLE).filter(|_| stride >= 8)?;
    sample.iter_mut().zip(p.iter().step_by(stride)).for_each(|(slot, &value)| *slot = value);
    let rank = (k as u64 * BRACKET_SAMPLE as u64 / p.len() as u64) as usize;
    let magnitude = |rank: usize| radix_cut(sample, rank).magnitude;
    let high = if rank > BRACKET_REACH { magnitude(rank - BRACKET_REACH) } else { u32::MAX };
    let low = if rank + BRACKET_REACH < BRACKET_SAMPLE { magnitude(rank + BRACKET_REACH) } else { 1 };
    let (mut above, mut inside) = (0, 0);
    for block in p.chunks(BLOCK) {
        let room = spare.get_mut(inside..).filter(|room| room.len() >= block.len() + CANDIDATE_SLACK)?;
        let (more_above, more_inside) = kernels::keep_between(isa, block, (low, high), room);
        above += more_above;
        inside += more_inside;
    }
    let wanted = k.checked_sub(above).filter(|&wanted| wanted > 0 && wanted <= inside)?;
    Some(radix_cut(&spare[..inside], wanted))
}

/// The same by radix selection. The histogram of the highest digit shows which digit the k-th largest value
/// has. The next digit is counted only among the elements with that digit, and so on. This takes at most four
/// reads of `p`, whatever the data.
pub(crate) fn radix_cut(p: &[u32], k: usize) -> Cut {
    let mut prefix = 0u32;
    let mut decided = 0u32;
    let mut wanted = k;
    for (shift, bits) in DIGITS {
        let counts = histogram(p, prefix, decided, shift, bits);
        let (digit, above) = digit_of_rank(&counts, wanted);
        wanted -= above;
        prefix |= (digit as u32) << shift;
        decided |= ((1 << bits) - 1) << shift;
    }
    if prefix == 0 { Cut { magnitude: 1, ties: usize::MAX } } else { Cut { magnitude: prefix, ties: wanted } }
}

/// Counts one digit of the magnitudes that agree with `prefix` in the bits of `decided`.
fn histogram(p: &[u32], prefix: u32, decided: u32, shift: u32, bits: u32) -> [u32; 256] {
    let mut counts = [0; 256];
    let mask = (1 << bits) - 1;
    for &value in p {
        let magnitude = value & MAGNITUDE;
        if magnitude & decided == prefix {
            counts[(magnitude >> shift & mask) as usize] += 1;
        }
    }
    counts
}

/// The digit of the `wanted`-th largest element, and how many elements have a larger digit; digit 0 if there
/// are not that many.
fn digit_of_rank(counts: &[u32; 256], wanted: usize) -> (usize, usize) {
    let mut above = 0;
    for digit in (1..counts.len()).rev() {
        let count = counts[digit] as usize;
        if above + count >= wanted {
            return (digit, above);
        }
        above += count;
    }
    (0, above)
}

/// Moves the `k` candidates that the cut leaves to the front, in order; all that are not zero if there are
/// fewer.
pub(super) fn compact(isa: Isa, candidates: &mut Candidates<'_>, cut: Cut, k: usize) {
    if Full::build().is_some() {
        kernels::compact(isa, candidates, cut.magnitude);
        if candidates.len <= k {
            return;
        }
    }
    let mut ties = cut.ties;
    let mut kept = 0;
    for i in 0..candidates.len {
        let (index, value) = (candidates.indices[i], candidates.values[i]);
        let magnitude = value & MAGNITUDE;
        let is_tie = magnitude == cut.magnitude && ties > 0;
        ties -= usize::from(is_tie);
        // Every candidate is written, kept or not, because a branch here would be mispredicted half of the
        // time.
        candidates.indices[kept] = index;
        candidates.values[kept] = value;
        kept += usize::from(magnitude > cut.magnitude || is_tie);
    }
    candidates.len = kept;
}

/// Elements that each part of the candidates must hold for a selection of `k` out of `len`: twice the number
/// wanted, so that a slightly low bound does no harm, and at least two blocks more. Never more than `len`.
pub(crate) fn capacity(k: usize, len: usize) -> usize {
    // With room for wide blocks a small sample does, whose bound is lower.
    let block = Full::build().map_or(BLOCK, |_| WIDE_BLOCK);
    let wanted = k.saturating_mul(2).max(k.saturating_add(2 * block));
    wanted.min(len).saturating_add(CANDIDATE_SLACK)
}

/// Leaves the `k` largest magnitudes in `candidates`, or all that are not zero if there are fewer. It takes
/// one pass, or two if the sample was misleading. `spare` is working memory; `k` elements are enough.
///
/// ```text
/// least := a magnitude that a sample says about k elements, rather more than fewer, reach
/// for each block of p:
///     if there is no room for all of it: leave the k largest candidates, least := just above the smallest of them
///     append every element that reaches least
/// if fewer than k were found: least := the smallest magnitude that is not zero, once more
/// leave the k largest candidates
/// ```
/// Keeping only k candidates loses nothing: a later element equal to the smallest of them has a higher index,
/// so it loses the tie.
///
/// # Errors
/// The errors of [`Pass::add_and_select`].
pub(super) fn top_k(
    isa: Isa,
    pass: &mut Pass<'_>,
    k: usize,
    candidates: &mut Candidates<'_>,
    spare: &mut [u32],
) -> Result<(), EncodeError> {
    // A small machine finds the bound during the pass, with a few more cuts, and selects the same elements.
    let least = Full::build()
        .map_or(1, |_| sampled_bound(pass.len(), k, candidates.values, |first| pass.sample::<RUN>(first)));
    collect_first(isa, pass, k, least, candidates, spare)?;
    if candidates.len < k && least > 1 {
        collect(isa, pass, k, 1, candidates, spare)?;
    }
    if candidates.len > k {
        let cut = cut(isa, &candidates.values[..candidates.len], k, spare);
        compact(isa, candidates, cut, k);
    }
    Ok(())
}

/// The pass that selects and adds the gradient to the residual.
fn collect_first(
    isa: Isa,
    pass: &mut Pass<'_>,
    k: usize,
    least: u32,
    candidates: &mut Candidates<'_>,
    spare: &mut [u32],
) -> Result<(), EncodeError> {
    #[cfg(feature = "parallel")]
    if pass.keep_in_parts(isa, least, candidates)? {
        return Ok(());
    }
    collect(isa, pass, k, least, candidates, spare)
}

fn collect(
    isa: Isa,
    pass: &mut Pass<'_>,
    k: usize,
    mut least: u32,
    candidates: &mut Candidates<'_>,
    spare: &mut [u32],
) -> Result<(), EncodeError> {
    candidates.len = 0;
    for block in pass.aligned_blocks(candidates.indices.len().saturating_sub(k)) {
        if candidates.indices.len() - candidates.len < block.1 + CANDIDATE_SLACK {
            let cut = cut(isa, &candidates.values[..candidates.len], k, spare);
            compact(isa, candidates, cut, k);
            least = cut.magnitude.saturating_add(1);
        }
        pass.add_and_select(isa, block, least, candidates)?;
    }
    Ok(())
}

/// Elements of the smallest and of the largest sample, which are taken in runs of neighbours.
const SMALLEST_SAMPLE: usize = 1 << 11;
const LARGEST_SAMPLE: usize = 1 << 15;

/// A sample out of `len` elements: its runs, the distance between two of them, and which of its elements,
/// counted from the largest, is the bound.
///
/// Of s sampled elements, about m = k·s/n are among the k largest, with a standard deviation of √m or, if
/// large values are neighbours, up to √(8·m). So the bound is the sample's (m + 3·√(8·m) + 8)-th largest.
#[derive(Clone, Copy)]
struct Sample {
    runs: usize,
    stride: usize,
    rank: usize,
}

impl Sample {
    /// Of so many elements, or a few fewer, to find `k` of `len`.
    fn new(elements: usize, k: usize, len: usize) -> Self {
        let runs = elements / RUN;
        let stride = len / runs.max(1);
        let expected = k / stride.max(1) * RUN + k % stride.max(1) * RUN / stride.max(1);
        Self { runs, stride, rank: expected + 3 * (8 * expected).isqrt() + 8 }
    }

    /// How many elements probably reach its bound.
    fn candidates(self) -> usize {
        self.rank.saturating_mul(self.stride) / RUN
    }

    /// The smallest sample whose candidates fill at most three quarters of the room: what it saves is more
    /// than what a few more candidates cost. The largest if there is none.
    fn best(k: usize, len: usize, room: usize) -> Self {
        let largest = LARGEST_SAMPLE.min(room).min(len / 8);
        let sizes = core::iter::successors(Some(SMALLEST_SAMPLE), |&size| Some(2 * size));
        let mut samples = sizes.take_while(|&size| size < largest).map(|size| Self::new(size, k, len));
        samples
            .find(|sample| sample.candidates() <= room / 4 * 3)
            .unwrap_or_else(|| Self::new(largest, k, len))
    }
}

/// A magnitude that more than k elements probably reach, by a sample; otherwise 1. The bound decides how many
/// candidates there are, for which `sample` is as long as the room, and never which of them are chosen.
pub(super) fn sampled_bound(
    len: usize,
    k: usize,
    sample: &mut [u32],
    values_at: impl Fn(usize) -> [u32; RUN],
) -> u32 {
    let Sample { runs, stride, rank } = Sample::best(k, len, sample.len());
    let taken = runs * RUN;
    if rank >= taken {
        return 1;
    }
    for (run, values) in sample[..taken].chunks_mut(RUN).enumerate() {
        values.copy_from_slice(&values_at(run * stride));
    }
    radix_cut(&sample[..taken], rank).magnitude
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::Grad;
    use proptest::prelude::*;
    use std::{vec, vec::Vec};

    /// Sorts by magnitude, ties by index; never takes zeros.
    fn naive(p: &[f32], k: usize) -> Vec<u32> {
        let magnitude = |i: u32| p[i as usize].to_bits() & MAGNITUDE;
        let mut order: Vec<u32> = (0..p.len() as u32).filter(|&i| magnitude(i) != 0).collect();
        order.sort_by_key(|&i| (std::cmp::Reverse(magnitude(i)), i));
        order.truncate(k);
        order.sort_unstable();
        order
    }

    /// The selection from p as a gradient, and as the sum of a residual and a gradient of one half each.
    fn selected(isa: Isa, p: &[f32], k: usize) -> Vec<u32> {
        let alone = selected_by(isa, Pass::new(Grad::F32(p), None, 0, f32::INFINITY), p, k);
        let bits: Vec<u32> = p.iter().map(|value| value.to_bits()).collect();
        let cut = cut(isa, &bits, k, &mut vec![0; p.len()]);
        assert_eq!(cut.positions(&bits).map(|at| at as u32).collect::<Vec<_>>(), alone);
        let half: Vec<f32> = p.iter().map(|value| value / 2.0).collect();
        if half.iter().zip(p).all(|(half, p)| half + half == *p) {
            let mut residual = half.clone();
            let pass = Pass::new(Grad::F32(&half), Some(&mut residual), 0, f32::INFINITY);
            assert_eq!(selected_by(isa, pass, p, k), alone);
            assert_eq!(residual, p);
        }
        alone
    }

    fn selected_by(isa: Isa, mut pass: Pass<'_>, p: &[f32], k: usize) -> Vec<u32> {
        let mut indices = vec![0; capacity(k, p.len())];
        let mut values = indices.clone();
        let mut candidates = Candidates { indices: &mut indices, values: &mut values, len: 0 };
        let mut spare = vec![0; k];
        top_k(isa, &mut pass, k, &mut candidates, &mut spare).unwrap();
        let len = candidates.len;
        assert!((0..len).all(|i| values[i] == p[indices[i] as usize].to_bits()));
        indices.truncate(len);
        indices
    }

    fn finite() -> impl Strategy<Value = f32> {
        let bits = any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |value| value.is_finite());
        prop_oneof![bits, Just(0.0), Just(-0.0), Just(1.0), Just(-1.0), -2.0f32..2.0]
    }

    proptest! {
        #[test]
        fn selection_is_the_naive_one(p in proptest::collection::vec(finite(), 1..300), k in 1usize..300) {
            let k = k.min(p.len());
            for isa in Isa::available() {
                prop_assert_eq!(selected(isa, &p, k), naive(&p, k));
            }
        }
    }

    #[test]
    fn inputs_that_mislead_the_sample_are_selected_exactly() {
        let n = 70_000;
        let ascending: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let descending: Vec<f32> = ascending.iter().rev().copied().collect();
        let equal = vec![0.5f32; n];
        let steps: Vec<f32> = (0..n).map(|i| (i / 100 % 3) as f32).collect();
        let mut all = vec![ascending, descending, equal, steps];
        // Large only where a sample looks; and large only where it does not.
        for sample in [SMALLEST_SAMPLE, 2 * SMALLEST_SAMPLE, n / 8] {
            let stride = n / (sample / RUN);
            let seen: Vec<f32> =
                (0..n).map(|i| if i % stride < RUN { 9.0 } else { (i % 7) as f32 }).collect();
            all.push(seen.iter().map(|value| if *value == 9.0 { 0.0 } else { value + 1.0 }).collect());
            all.push(seen);
        }
        for p in all {
            for k in [1, 70, 700, 7_000, 20_000, 40_000, n] {
                for isa in Isa::available() {
                    assert_eq!(selected(isa, &p, k), naive(&p, k), "k = {k}");
                }
            }
        }
    }

    #[cfg(feature = "full")]
    #[test]
    fn a_sample_is_as_small_as_the_room_for_candidates_allows() {
        let elements = |k, len| Sample::best(k, len, capacity(k, len)).runs * RUN;
        let found = [(0, 15), (1, 1_000), (147, 147_456), (2_000, 2_000_000), (250_000, 25_000_000)]
            .map(|(k, len)| elements(k, len));
        assert_eq!(found, [0, 120, SMALLEST_SAMPLE, 2 * SMALLEST_SAMPLE, LARGEST_SAMPLE], "{found:?}");
    }

    #[test]
    fn where_the_values_lie_decides_nothing() {
        let values: Vec<f32> = (0..6_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as f32).collect();
        for first in 0..17 {
            for isa in Isa::available() {
                let p = &values[first..first + 5_000];
                for k in [1, 50, 2_500] {
                    assert_eq!(selected(isa, p, k), naive(p, k), "from {first}, k = {k}");
                }
            }
        }
    }

    #[test]
    fn ties_go_to_the_lowest_index_and_zeros_stay() {
        let p = [2.0f32, -2.0, 0.0, 2.0, -0.0, 1.0];
        let selected = |p: &[f32], k| selected(Isa::Baseline, p, k);
        assert_eq!(selected(&p, 2), [0, 1]);
        assert_eq!(selected(&p, 3), [0, 1, 3]);
        assert_eq!(selected(&p, 6), [0, 1, 3, 5]);
        assert_eq!(selected(&[0.0; 4], 2), Vec::<u32>::new());
    }
}
