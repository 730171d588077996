//! Adaptive probabilities of gaps and of counts.

use crate::coding::entropy::adaptive::{COUNT_BITS, Context, DECISIONS, EVEN, decide};
use crate::coding::entropy::mixer::{Word, decide_alone, seen};
use crate::coding::entropy::range::BitCoder;
use crate::coding::entropy::shares::{SYMBOLS, Shares, SymbolModels, model_words, shares_of};

/// Number of cases of each property that a model of gaps sees.
pub(super) const CASES: usize = 14;

/// Models of gaps, one kind after the other.
const EXPECTED: usize = CASES;
const COLUMN_AND_EXPECTED: usize = CASES * CASES;
const COLUMN_AND_RECENT: usize = CASES * CASES;
const GAPS: usize = EXPECTED + COLUMN_AND_EXPECTED + COLUMN_AND_RECENT;

/// Contexts of each model of counts. Decisions of a context are those of a unary number.
const COUNT_BY_SIZE: usize = 32;
const COUNT_BY_SHARE: usize = 3 * 16;

/// Words of the models of gaps, and of those of counts.
pub(super) const GAP_WORDS: usize = SYMBOLS + model_words(GAPS);
pub(super) const COUNT_WORDS: usize = (COUNT_BY_SIZE + COUNT_BY_SHARE) * DECISIONS;

/// The weight of each kind of model of gaps.
const WEIGHTS: [u16; 3] = [1, 2, 3];

/// Updates that new models count as already seen: models of gaps, and models of counts.
const EXPECTED_COUNT: u32 = 12;
const SECOND_COUNT: u32 = 20;
const SHARE_COUNT: u32 = 1;

/// Initial P(1) of a gap's second digit, out of 2¹⁶: among gaps of equally many digits there are more short
/// ones.
const SECOND: u32 = 27_500;

/// Adaptive probabilities of gaps.
pub(super) struct GapModels<'m> {
    symbols: SymbolModels<'m, GAPS>,
    second: &'m mut [Word; SYMBOLS],
}

/// Adaptive probabilities of how many entries a tensor has.
pub(super) struct CountModels<'m> {
    by_size: &'m mut [Context; COUNT_BY_SIZE],
    by_share: &'m mut [Context; COUNT_BY_SHARE],
}

/// What is known before a gap is coded, each below [`CASES`].
#[derive(Clone, Copy)]
pub(super) struct Known {
    /// Digits of the expected gap.
    pub(super) expected: usize,
    /// Digits of the distance to the next column with an entry.
    pub(super) column: usize,
    /// Digits of the last gaps.
    pub(super) recent: usize,
}

impl<'m> GapModels<'m> {
    /// Models that have seen nothing yet, in [`GAP_WORDS`] words of memory; `None` if these are fewer.
    pub(super) fn new(memory: &'m mut [u32]) -> Option<Self> {
        let (second, memory) = memory.split_first_chunk_mut()?;
        let symbols = SymbolModels::new(memory)?;
        *second = [seen(SECOND, SECOND_COUNT); SYMBOLS];
        *symbols.counts = [0; GAPS];
        symbols.counts[..EXPECTED].fill(EXPECTED_COUNT);
        symbols.shares.as_chunks_mut().0.fill(EXPECTED_SHARES);
        Some(Self { symbols, second })
    }

    /// Codes one of sixteen symbols under three models.
    #[inline]
    pub(super) fn symbol(&mut self, coder: &mut impl BitCoder, known: Known, symbol: u32) -> u32 {
        let Known { expected, column, recent } = known;
        let numbers = [
            expected,
            EXPECTED + column * CASES + expected,
            EXPECTED + COLUMN_AND_EXPECTED + column * CASES + recent,
        ];
        self.symbols.code(coder, numbers, WEIGHTS, symbol as usize) as u32
    }

    /// Codes the second digit of a gap of `digits` digits.
    #[inline]
    pub(super) fn second_digit(&mut self, coder: &mut impl BitCoder, digits: u32, digit: bool) -> bool {
        decide_alone(coder, &mut self.second[digits as usize % SYMBOLS], digit)
    }
}

impl<'m> CountModels<'m> {
    /// Models that have seen nothing yet, in [`COUNT_WORDS`] words of memory; `None` if these are fewer.
    pub(super) fn new(memory: &'m mut [u32]) -> Option<Self> {
        let (contexts, _) = memory.as_chunks_mut();
        let (by_size, contexts) = contexts.split_first_chunk_mut()?;
        let (by_share, _) = contexts.split_first_chunk_mut()?;
        by_size.fill([EVEN << COUNT_BITS; DECISIONS]);
        for (number, context) in by_share.iter_mut().enumerate() {
            *context = share_context(number % 16);
        }
        Some(Self { by_size, by_share })
    }

    /// Codes the digits of a tensor's count, at most `max`, one decision a digit, under two models: by the
    /// digits of its `size`, and by `share`, see [`Counts`](super::counts::Counts).
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
            let number = (coded as usize).min(DECISIONS - 1);
            if !decide(coder, &mut contexts, [1, 1], number, digits > coded) {
                break;
            }
            coded += 1;
        }
        coded
    }
}

/// Initial shares for gaps: most have as many digits as expected, some fewer, few more.
const EXPECTED_SHARES: [Shares; CASES] = {
    let mut shares = [[0; SYMBOLS]; CASES];
    let mut expected = 0;
    while expected < CASES {
        let mut weights = [2; SYMBOLS];
        weights[0] += 8;
        let mut digits = 0;
        while digits < CASES {
            weights[digits + 1] += if digits < expected {
                (32 >> (expected - digits)) + 8
            } else if digits == expected {
                32
            } else if digits == expected + 1 {
                4
            } else {
                0
            };
            digits += 1;
        }
        shares[expected] = shares_of(weights);
        expected += 1;
    }
    shares
};

/// A tensor's count has about as many digits as its share of all entries.
fn share_context(share_digits: usize) -> Context {
    core::array::from_fn(|digit| {
        let p = if digit < share_digits { 50_000 } else { 20_000 };
        p << COUNT_BITS | SHARE_COUNT
    })
}
