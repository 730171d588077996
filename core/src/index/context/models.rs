//! Adaptive probabilities of gaps and of counts.

use crate::entropy::adaptive::{COUNT_BITS, COUNT_MASK, Context, DECISIONS, EVEN, decide};
use crate::entropy::range::BitCoder;
use core::ops::Range;

/// Cases of each thing that a model of gaps sees.
pub(super) const CASES: usize = 14;

/// Symbols of a gap. Decisions of a context are those of a binary tree over the symbols, from 1 on, or those of a unary
/// number, from 0 on.
const SYMBOLS: usize = DECISIONS;

/// Contexts of each model, one model behind the other.
const EXPECTED: usize = CASES;
const COLUMN_AND_EXPECTED: usize = CASES * CASES;
const COLUMN_AND_RECENT: usize = CASES * CASES;
const COUNT_BY_SIZE: usize = 32;
const COUNT_BY_SHARE: usize = 3 * 16;

/// Words of the models of gaps, and of those of counts.
pub(super) const GAP_WORDS: usize = (EXPECTED + COLUMN_AND_EXPECTED + COLUMN_AND_RECENT) * SYMBOLS;
pub(super) const COUNT_WORDS: usize = (COUNT_BY_SIZE + COUNT_BY_SHARE) * SYMBOLS;

/// Updates that a word seems to have behind it before the first: what is known of gaps, and of counts.
const EXPECTED_COUNT: u32 = 6;
const SHARE_COUNT: u32 = 1;

/// Adaptive probabilities of gaps.
pub(super) struct GapModels<'m> {
    expected: &'m mut [Context; EXPECTED],
    column_and_expected: &'m mut [Context; COLUMN_AND_EXPECTED],
    column_and_recent: &'m mut [Context; COLUMN_AND_RECENT],
}

/// Adaptive probabilities of how many entries a tensor has.
pub(super) struct CountModels<'m> {
    by_size: &'m mut [Context; COUNT_BY_SIZE],
    by_share: &'m mut [Context; COUNT_BY_SHARE],
}

/// What is known when a gap is coded, each below [`CASES`].
#[derive(Clone, Copy)]
pub(super) struct Known {
    /// Digits of the gap that is to be expected.
    pub(super) expected: usize,
    /// Digits of the distance to the next column with an entry.
    pub(super) column: usize,
    /// Digits of the last gaps.
    pub(super) recent: usize,
}

impl<'m> GapModels<'m> {
    /// Models that have seen nothing yet, in [`GAP_WORDS`] words of memory; `None` if these are fewer.
    pub(super) fn new(memory: &'m mut [u32]) -> Option<Self> {
        let (contexts, _) = memory.as_chunks_mut();
        let (expected, contexts) = contexts.split_first_chunk_mut()?;
        let (column_and_expected, contexts) = contexts.split_first_chunk_mut()?;
        let (column_and_recent, _) = contexts.split_first_chunk_mut()?;
        *expected = core::array::from_fn(expected_context);
        let unseen = expected.map(|context| context.map(|word| word & !COUNT_MASK));
        for contexts in [&mut column_and_expected[..], &mut column_and_recent[..]] {
            contexts.chunks_exact_mut(CASES).for_each(|contexts| contexts.copy_from_slice(&unseen));
        }
        Some(Self { expected, column_and_expected, column_and_recent })
    }

    /// Codes one of sixteen symbols as four decisions, the highest digit first, under three models.
    #[inline]
    pub(super) fn symbol(&mut self, coder: &mut impl BitCoder, known: Known, symbol: u32) -> u32 {
        let [expected, column, recent] = [known.expected, known.column, known.recent];
        let mut contexts = [
            &mut self.expected[expected],
            &mut self.column_and_expected[column * CASES + expected],
            &mut self.column_and_recent[column * CASES + recent],
        ];
        let mut digit = |node, digit: u32| {
            let bit = decide(coder, &mut contexts, [1, 1, 2], node, symbol >> digit & 1 == 1);
            node << 1 | usize::from(bit)
        };
        let node = digit(1, 3);
        let node = digit(node, 2);
        let node = digit(node, 1);
        let node = digit(node, 0);
        (node - SYMBOLS) as u32
    }
}

impl<'m> CountModels<'m> {
    /// Models that have seen nothing yet, in [`COUNT_WORDS`] words of memory; `None` if these are fewer.
    pub(super) fn new(memory: &'m mut [u32]) -> Option<Self> {
        let (contexts, _) = memory.as_chunks_mut();
        let (by_size, contexts) = contexts.split_first_chunk_mut()?;
        let (by_share, _) = contexts.split_first_chunk_mut()?;
        by_size.fill([EVEN << COUNT_BITS; SYMBOLS]);
        for (number, context) in by_share.iter_mut().enumerate() {
            *context = share_context(number % 16);
        }
        Some(Self { by_size, by_share })
    }

    /// Codes the digits of a tensor's count, at most `max`, one decision a digit, under two models: by the digits of its
    /// `size`, and by `share`, see [`Counts`](super::counts::Counts).
    pub(super) fn digits(
        &mut self,
        coder: &mut impl BitCoder,
        size: usize,
        share: usize,
        max: u32,
        digits: u32,
    ) -> u32 {
        let mut contexts = [&mut self.by_size[size], &mut self.by_share[share]];
        let mut coded = 0;
        while coded < max {
            let number = (coded as usize).min(SYMBOLS - 1);
            if !decide(coder, &mut contexts, [1, 1], number, digits > coded) {
                break;
            }
            coded += 1;
        }
        coded
    }
}

/// What is known of gaps before the first: most have as many digits as expected, some fewer, few more.
fn expected_context(expected: usize) -> Context {
    let mut weights = [2u32; SYMBOLS];
    weights[0] += 8;
    for digits in 0..CASES {
        weights[digits + 1] += match digits.checked_sub(expected) {
            Some(0) => 32,
            Some(1) => 4,
            Some(_) => 0,
            None => (32 >> (expected - digits)) + 8,
        };
    }
    let sum = |range: Range<usize>| weights[range].iter().sum::<u32>();
    let mut context = [0; SYMBOLS];
    for (node, word) in context.iter_mut().enumerate().skip(1) {
        let size = SYMBOLS >> node.ilog2();
        let first = node * size - SYMBOLS;
        let p = sum(first + size / 2..first + size) * 65_536 / sum(first..first + size);
        *word = p << COUNT_BITS | EXPECTED_COUNT;
    }
    context
}

/// A tensor's count has as many digits as its share of all entries, more or less.
fn share_context(share_digits: usize) -> Context {
    core::array::from_fn(|digit| {
        let p = if digit < share_digits { 50_000 } else { 20_000 };
        p << COUNT_BITS | SHARE_COUNT
    })
}
