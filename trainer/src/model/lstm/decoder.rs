//! Cross-entropy of the next token, with the embedding as the weight of the last layer.
//!
//! Scores are never kept for a whole window: `[tokens, vocabulary]` of a batch of 256 streams would take 360
//! MB. The decoder takes some rows at a time. It turns their scores into probabilities and then into the
//! gradient, in place, and uses that up before the next rows.

use gradwire::arithmetic::vectorised;

use super::super::Score;
use super::super::matrix::{Matrix, Product, add_product, matrix, product};
use super::super::softmax::{gradient, probabilities};

/// Scores in memory at once: 8 MB.
const SCORES_AT_ONCE: usize = 1 << 21;

/// The transposed embedding as a layer.
pub(super) struct Decoder<'a> {
    embedding: &'a Matrix,
    vocabulary: usize,
    width: usize,
}

impl<'a> Decoder<'a> {
    /// The decoder of an embedding `[vocabulary, width]`.
    pub(super) fn new(embedding: &'a Matrix) -> Self {
        let [vocabulary, width] = embedding.dims();
        Self { embedding, vocabulary, width }
    }

    fn rows_at_once(&self) -> usize {
        (SCORES_AT_ONCE / self.vocabulary).max(1)
    }

    /// Scores of some rows.
    fn scores(&self, rows: &[f32]) -> (Matrix, Product) {
        let rows = matrix(rows.to_vec(), self.width);
        let scores = product(&rows, &self.embedding.clone().transpose());
        (rows, scores)
    }

    /// Sum of the cross-entropy, and how often the right token was the most likely one.
    pub(super) fn score(&self, rows: &[f32], targets: &[u32]) -> Score {
        let mut sum = Score { count: targets.len() as u64, ..Score::default() };
        let at_once = self.rows_at_once();
        for (rows, targets) in rows.chunks(at_once * self.width).zip(targets.chunks(at_once)) {
            let (_, mut scores) = self.scores(rows);
            for (scores, &target) in scores.chunks_exact_mut(self.vocabulary).zip(targets) {
                let right = scores[target as usize];
                let is_best = scores.iter().position(|&score| score >= right) == Some(target as usize)
                    && scores[target as usize + 1..].iter().all(|&score| score <= right);
                sum.correct += u64::from(is_best);
                sum.loss_sum += vectorised(
                    #[inline(always)]
                    || probabilities(scores, target),
                );
            }
        }
        sum
    }

    /// Mean cross-entropy. Writes its gradient with respect to the rows, and adds the one with respect to the
    /// embedding.
    pub(super) fn backward(&self, rows: &[f32], targets: &[u32], d_embedding: &mut [f32]) -> (f64, Vec<f32>) {
        let (at_once, share) = (self.rows_at_once(), 1.0 / targets.len() as f32);
        let (mut loss, mut d_rows) = (0.0, Vec::with_capacity(rows.len()));
        for (rows, targets) in rows.chunks(at_once * self.width).zip(targets.chunks(at_once)) {
            let (rows, mut scores) = self.scores(rows);
            for (scores, &target) in scores.chunks_exact_mut(self.vocabulary).zip(targets) {
                loss += vectorised(
                    #[inline(always)]
                    || gradient(scores, target, share),
                );
            }
            let d_scores = scores.into_matrix();
            d_rows.extend_from_slice(&product(&d_scores, self.embedding));
            add_product(d_embedding, &d_scores.transpose(), &rows);
        }
        (loss * f64::from(share), d_rows)
    }
}
