//! Differences of neighbours' models, each as a product of two thin factors that both ends keep.

mod spelling;

use crate::built::Full;
use crate::codec::{Gossip, Turn, begin_unit};
use crate::codecs::powersgd::basis::complete;
use crate::codecs::powersgd::centred;
use crate::error::EncodeError;
use crate::gradient::grad::Grad;
use crate::gradient::layout::LayoutRef;
use crate::gradient::unit::Unit;
use crate::kernels::{self, Isa};
use crate::scratch::{LinearScratch, LinearScratchLen};
use core::ops::Range;

/// 2⁸⁸: sums of products with unit vectors of up to 2³² elements, and their differences, stay finite.
const BOUND: f32 = f32::from_bits((127 + 88) << 23);

/// PowerGossip: the difference D = X' − X of two neighbours' matrices of n × m, as a product P·Qᵀ of rank r
/// that is projected anew in each round, by one step of the power iteration.
///
/// Each edge keeps P and Q of every matrix, the same at both ends. In an even round, counted from the first
/// step on, the columns of Q are made orthonormal, both ends send X·Q, and P becomes the difference of the
/// two; in an odd round P is made orthonormal, they send Xᵀ·P, and Q becomes the difference. Then X moves by
/// diffusion · weight · P·Qᵀ, and the higher rank by as much the other way. Factors are columns of r·n or r·m
/// elements, so neither end ever has the other's matrices. Columns that are zero, as all are before the
/// first step and where models are equal, are drawn anew, the same at both ends.
///
/// A tensor of two or more dimensions is a matrix of `shape[0]` rows. If it has no more than r rows or r
/// columns, factors would not be smaller. Such a tensor, one that the unit cuts, and all vectors are sent
/// whole in round 0, and move by plain gossip, without the diffusion rate.
///
/// # Determinism
/// Sums have one order, that of [`PowerSgd`](super::PowerSgd). Both ends subtract the lower rank's payload
/// from the higher rank's, so what they keep, and how far they move, has the same bits.
///
/// # Source
/// Vogels, Karimireddy, Jaggi: Practical Low-Rank Communication Compression in Decentralized Deep Learning
/// (PowerGossip, arXiv 2008.01425), algorithm 1. As in the authors' runs, vectors go whole. Three
/// differences: the first step takes part, because columns of equal models are drawn anew; columns that
/// others span are too, where the authors add a small constant to the norm; and the draws of two edges are
/// unrelated, where the authors' seeds of edges may be equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PowerGossip {
    rank: u16,
    iterations: u16,
    diffusion: f32,
}

/// A matrix of a unit, and where its factors are among what an edge keeps of the unit: column after column.
#[derive(Clone, Debug)]
struct Matrix {
    rows: usize,
    cols: usize,
    p: Range<usize>,
    q: Range<usize>,
}

/// A matrix, or a tensor or a part of one that is sent whole.
#[derive(Clone, Debug)]
struct Block {
    /// Its coordinates in the unit.
    range: Range<usize>,
    matrix: Option<Matrix>,
}

impl PowerGossip {
    /// The largest rank.
    pub const MAX_RANK: u16 = 256;
    /// The most rounds of a step.
    pub const MAX_ITERATIONS: u16 = 256;

    /// PowerGossip of `rank` from 1 to [`MAX_RANK`](Self::MAX_RANK), else `None`; one round a step, with a
    /// diffusion rate of 1.
    #[must_use]
    pub fn new(rank: u16) -> Option<Self> {
        (1..=Self::MAX_RANK).contains(&rank).then_some(Self { rank, iterations: 1, diffusion: 1.0 })
    }

    /// The same with so many rounds a step, from 1 to [`MAX_ITERATIONS`](Self::MAX_ITERATIONS), else `None`.
    #[must_use]
    pub fn with_iterations(self, iterations: u16) -> Option<Self> {
        (1..=Self::MAX_ITERATIONS).contains(&iterations).then_some(Self { iterations, ..self })
    }

    /// The same with another diffusion rate, above 0 and at most 2, else `None`. Above 1, what a round moves
    /// stands also for what its factors miss.
    #[must_use]
    pub fn with_diffusion(self, diffusion: f32) -> Option<Self> {
        (diffusion > 0.0 && diffusion <= 2.0).then_some(Self { diffusion, ..self })
    }

    /// The rank of the factors.
    #[must_use]
    pub fn rank(&self) -> u16 {
        self.rank
    }

    /// Rounds of a step.
    #[must_use]
    pub fn iterations(&self) -> u16 {
        self.iterations
    }

    /// The diffusion rate.
    #[must_use]
    pub fn diffusion(&self) -> f32 {
        self.diffusion
    }

    /// The matrix of a tensor of this shape, if factors are smaller, with its factors from `kept` on.
    fn matrix(&self, shape: &[usize], kept: usize) -> Option<Matrix> {
        let &[rows, _, ..] = shape else { return None };
        let len = shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim))?;
        let (cols, rank) = (len.checked_div(rows)?, usize::from(self.rank));
        let q = kept + rank * rows;
        (rank < rows.min(cols)).then_some(Matrix { rows, cols, p: kept..q, q: q..q + rank * cols })
    }

    /// The tensors of a unit, in order.
    fn blocks<'l>(self, layout: &'l LayoutRef<'_>, unit: &Unit) -> impl Iterator<Item = Block> + 'l {
        let (unit, mut kept) = (*unit, 0);
        layout.tensors().filter_map(move |tensor| {
            let whole = tensor.offset..tensor.offset + tensor.checked_len()?;
            let (start, end) = (whole.start.max(unit.start), whole.end.min(unit.range().end));
            let is_whole = !unit.dense && (start..end) == whole;
            let matrix = if is_whole { self.matrix(tensor.shape, kept) } else { None };
            kept = matrix.as_ref().map_or(kept, |matrix| matrix.q.end);
            (start < end).then(|| Block { range: start - unit.start..end - unit.start, matrix })
        })
    }

    /// Whether this round is one of those that fix Q and learn P.
    fn fixes_q(&self, turn: &Turn<'_>) -> bool {
        let before = turn.key.step.wrapping_mul(u64::from(self.iterations));
        before.wrapping_add(u64::from(turn.round)) % 2 == 0
    }
}

impl Matrix {
    /// The factor that a round fixes, with the length of its columns, and the one that it learns.
    fn roles(&self, fixes_q: bool) -> (Range<usize>, usize, Range<usize>) {
        match fixes_q {
            true => (self.q.clone(), self.cols, self.p.clone()),
            false => (self.p.clone(), self.rows, self.q.clone()),
        }
    }
}

impl Gossip for PowerGossip {
    /// Words: the model's bits. Floats: this end's payload, then a product of two factors.
    fn round_scratch_len(&self, len: usize) -> LinearScratchLen {
        LinearScratchLen { words: len, floats: 2 * len, ints: 0 }
    }

    fn rounds(&self) -> u32 {
        self.iterations.into()
    }

    fn kept_len(&self, layout: &LayoutRef<'_>, unit: &Unit) -> usize {
        let ends = self.blocks(layout, unit).filter_map(|block| Some(block.matrix?.q.end));
        ends.last().unwrap_or(0)
    }

    fn payload<'s>(
        &self,
        turn: &Turn<'_>,
        model: &[f32],
        kept: &mut [f32],
        scratch: &'s mut LinearScratch<'_>,
    ) -> Result<&'s [f32], EncodeError> {
        Full::build().ok_or(EncodeError::NotBuilt)?;
        let unit = turn.unit;
        assert_eq!(model.len(), unit.len, "model and unit differ in length");
        begin_unit(self.round_scratch_len(unit.len), unit, Grad::F32(model), None, BOUND, scratch)?;
        let (draws, fixes_q) = (turn.key.edge(turn.edge.low, turn.edge.high, unit.id), self.fixes_q(turn));
        let (isa, mut at) = (Isa::best(), 0);
        for Block { range, matrix } in self.blocks(turn.layout, unit) {
            let Some(matrix) = matrix else {
                if turn.round == 0 {
                    scratch.floats[at..at + range.len()].copy_from_slice(&model[range.clone()]);
                    at += range.len();
                }
                continue;
            };
            let (fixed, rows, learned) = matrix.roles(fixes_q);
            let first = fixed.start;
            let factor = &mut kept[fixed];
            complete(factor, rows, |i| centred(draws.u64_at((first + i) as u64)));
            let (bits, sent) = (&scratch.words[range], &mut scratch.floats[at..at + learned.len()]);
            match fixes_q {
                true => kernels::multiply(isa, bits, matrix.cols, factor, sent),
                false => kernels::multiply_transposed(isa, bits, matrix.cols, factor, sent),
            }
            at += learned.len();
        }
        Ok(&scratch.floats[..at])
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
        assert_eq!(model.len(), turn.unit.len, "model and unit differ in length");
        let (mine, product) = scratch.floats.split_at_mut(turn.unit.len);
        let (fixes_q, mut at) = (self.fixes_q(turn), 0);
        let far = weight * self.diffusion;
        let far = if turn.is_low { far } else { -far };
        for Block { range, matrix } in self.blocks(turn.layout, turn.unit) {
            let Some(matrix) = matrix else {
                if turn.round == 0 {
                    let pairs = theirs[at..].iter().zip(&mine[at..]);
                    at += range.len();
                    let moved = model[range].iter_mut().zip(pairs);
                    moved.for_each(|(value, (theirs, mine))| *value += weight * (theirs - mine));
                }
                continue;
            };
            let (_, _, learned) = matrix.roles(fixes_q);
            let sent = at..at + learned.len();
            at = sent.end;
            learn(turn.is_low, &mine[sent.clone()], &theirs[sent], &mut kept[learned]);
            let product = &mut product[..range.len()];
            kernels::multiply_out(Isa::best(), &kept[matrix.p], &kept[matrix.q], matrix.cols, product);
            model[range].iter_mut().zip(product).for_each(|(value, product)| *value += far * *product);
        }
    }
}

/// factor = high − low, the same bits at both ends. What is no number, because a payload was far beyond those
/// of models that can be sent, counts as no difference.
fn learn(is_low: bool, mine: &[f32], theirs: &[f32], factor: &mut [f32]) {
    let (high, low) = if is_low { (theirs, mine) } else { (mine, theirs) };
    for ((factor, high), low) in factor.iter_mut().zip(high).zip(low) {
        let difference = high - low;
        *factor = if difference.is_finite() { difference } else { 0.0 };
    }
}

#[cfg(all(test, feature = "full"))]
mod tests {
    use super::*;
    use crate::codec::Edge;
    use crate::gradient::layout::TensorRef;
    use crate::rng::key::{Source, StepKey};

    const ROWS: usize = 5;
    const COLS: usize = 4;
    const LEN: usize = ROWS * COLS + 3;

    /// Two neighbours, with all that they need.
    struct Pair {
        codec: PowerGossip,
        models: [[f32; LEN]; 2],
        kept: [[f32; 32]; 2],
    }

    impl Pair {
        fn new(codec: PowerGossip, models: [[f32; LEN]; 2]) -> Self {
            Self { codec, models, kept: [[0.0; 32]; 2] }
        }

        /// One step; returns the elements that each end sent in each round.
        fn step(&mut self, step: u64, weight: f32) -> [usize; 4] {
            let tensors = [
                TensorRef { name: "w", shape: &[ROWS, COLS], offset: 0 },
                TensorRef { name: "b", shape: &[3], offset: ROWS * COLS },
            ];
            let (layout, unit) = (LayoutRef::new(&tensors).unwrap(), Unit::whole(LEN));
            let key = StepKey { seed: 9, step, source: Source::Shared };
            let kept_len = self.codec.kept_len(&layout, &unit);
            let (mut words, mut floats) = ([[0; LEN]; 2], [[0.0; 2 * LEN]; 2]);
            let mut lens = [0; 4];
            for round in 0..self.codec.rounds() {
                let turn = |end| Turn {
                    key,
                    edge: Edge { low: 3, high: 4 },
                    is_low: end == 0,
                    layout: &layout,
                    unit: &unit,
                    round,
                };
                let mut sent = [[0.0; LEN]; 2];
                for end in 0..2 {
                    let mut scratch =
                        LinearScratch { words: &mut words[end], floats: &mut floats[end], ints: &mut [] };
                    let kept = &mut self.kept[end][..kept_len];
                    let payload =
                        self.codec.payload(&turn(end), &self.models[end], kept, &mut scratch).unwrap();
                    sent[end][..payload.len()].copy_from_slice(payload);
                    lens[round as usize % 4] = payload.len();
                }
                for end in 0..2 {
                    let mut scratch =
                        LinearScratch { words: &mut words[end], floats: &mut floats[end], ints: &mut [] };
                    let theirs = &sent[1 - end][..lens[round as usize % 4]];
                    let (model, kept) = (&mut self.models[end], &mut self.kept[end][..kept_len]);
                    self.codec.advance(&turn(end), theirs, weight, model, kept, &mut scratch);
                }
            }
            lens
        }

        fn distance(&self) -> f32 {
            self.models[0].iter().zip(&self.models[1]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
        }
    }

    /// Two models whose difference has rank 1 in the matrix.
    fn models() -> [[f32; LEN]; 2] {
        let base: [f32; LEN] = core::array::from_fn(|i| ((i * 7) % 11) as f32 / 8.0);
        let other = core::array::from_fn(|i| {
            let (row, col) = (i / COLS, i % COLS);
            let far = if i < ROWS * COLS { (row as f32 - 1.5) * (col as f32 + 0.5) } else { i as f32 };
            base[i] + far
        });
        [base, other]
    }

    /// ALGORITHMS: with two workers, a weight of 1/2 and a difference of rank 1 in the warm direction, models
    /// are equal after one exchange.
    #[test]
    fn a_difference_of_rank_one_goes_in_one_exchange_once_the_direction_is_warm() {
        let mut pair = Pair::new(PowerGossip::new(1).unwrap(), models());
        pair.step(0, 0.0);
        assert!(pair.distance() > 1.0, "with a weight of 0 the edge only learns");
        pair.step(1, 0.5);
        assert!(pair.distance() < 1e-5, "{}", pair.distance());
    }

    #[test]
    fn both_ends_keep_the_same_and_the_sum_stays() {
        let codec = PowerGossip::new(2).unwrap().with_iterations(2).unwrap().with_diffusion(1.3).unwrap();
        let mut pair = Pair::new(codec, models());
        let before: [f32; LEN] = core::array::from_fn(|i| pair.models[0][i] + pair.models[1][i]);
        for step in 0..20 {
            let lens = pair.step(step, 0.3);
            assert_eq!(lens[..2], [2 * ROWS + 3, 2 * COLS], "vectors go in the first round");
            assert_eq!(pair.kept[0].map(f32::to_bits), pair.kept[1].map(f32::to_bits));
        }
        assert!(pair.distance() < 1e-3, "{}", pair.distance());
        for i in 0..LEN {
            assert!((pair.models[0][i] + pair.models[1][i] - before[i]).abs() < 1e-4, "{i}");
        }
    }

    #[test]
    fn equal_models_stay_equal_and_draw_their_directions_anew() {
        let mut pair = Pair::new(PowerGossip::new(2).unwrap(), [models()[0]; 2]);
        for step in 0..4 {
            pair.step(step, 0.5);
        }
        assert_eq!(pair.models, [models()[0]; 2]);
    }

    #[test]
    fn settings_out_of_range_are_none() {
        assert_eq!((PowerGossip::new(0), PowerGossip::new(257)), (None, None));
        let codec = PowerGossip::new(1).unwrap();
        assert_eq!((codec.with_iterations(0), codec.with_iterations(257)), (None, None));
        assert!([0.0, -1.0, 2.5, f32::NAN].iter().all(|rate| codec.with_diffusion(*rate).is_none()));
    }
}
