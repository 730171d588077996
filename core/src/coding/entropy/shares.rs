//! Adaptive probabilities of sixteen symbols, and how several models of the same symbol become one.
//!
//! A model holds, for each symbol, the share of the symbols before it. Shares of several models are averaged,
//! and an update moves all shares of a model at once. So neither has a branch, and one step of the range
//! coder codes a symbol.
//!
//! # Source
//! Giesen: Models for adaptive arithmetic coding (2015), for the update; averages weighted by how much a
//! model has seen, as of [decisions](super::adaptive).

use super::range::BitCoder;
use crate::kernels::halves_of;
pub(crate) use crate::kernels::scalar::shares::{SYMBOLS, Shares};
use crate::kernels::shares::{learn, mix};

/// Each symbol has at least this share of 2¹⁶, whatever the models say, and the symbols share the rest.
const LEAST: u16 = 24;
const REST: u32 = (1 << 16) - LEAST as u32 * SYMBOLS as u32;

/// The shares that every symbol has for certain.
const LEAST_SHARES: Shares = {
    let mut shares = [0; SYMBOLS];
    let mut symbol = 0;
    while symbol < SYMBOLS {
        shares[symbol] = LEAST * symbol as u16;
        symbol += 1;
    }
    shares
};

/// Updates are counted up to here.
const MOST_UPDATES: u32 = 63;
const COUNTS: usize = MOST_UPDATES as usize + 1;

/// The part of the way to the result, out of 2¹⁶, by which an update moves a model: 1 / (count + 2.5).
const RATE: [u16; COUNTS] = {
    let mut rate = [0; COUNTS];
    let mut count = 0;
    while count < COUNTS {
        rate[count] = ((2 << 16) / (2 * count + 5)) as u16;
        count += 1;
    }
    rate
};

/// How much a model counts after this many updates: 32 · count / (count + 3).
const CONFIDENCE: [u16; COUNTS] = {
    let mut confidence = [0; COUNTS];
    let mut count = 0;
    while count < COUNTS {
        confidence[count] = ((64 * count + count + 3) / (2 * (count + 3))) as u16;
        count += 1;
    }
    confidence
};

/// The largest sum of weights times confidence.
const MOST_WEIGHT: usize = 255;

/// 2¹⁶ − 1 divided by each such sum.
const SCALE: [u16; MOST_WEIGHT + 1] = {
    let mut scale = [u16::MAX; MOST_WEIGHT + 1];
    let mut total = 1;
    while total <= MOST_WEIGHT {
        scale[total] = u16::MAX / total as u16;
        total += 1;
    }
    scale
};

/// Shares in the ratio of these weights.
pub(crate) const fn shares_of(weights: [u32; SYMBOLS]) -> Shares {
    let (mut shares, mut symbol, mut sum) = ([0; SYMBOLS], 0, 0);
    while symbol < SYMBOLS {
        sum += weights[symbol];
        symbol += 1;
    }
    let mut before = 0;
    symbol = 0;
    while symbol < SYMBOLS {
        shares[symbol] = (before * REST / sum) as u16;
        before += weights[symbol];
        symbol += 1;
    }
    shares
}

/// `N` models of sixteen symbols.
pub(crate) struct SymbolModels<'m, const N: usize> {
    /// How often each was updated.
    pub(crate) counts: &'m mut [u32; N],
    pub(crate) shares: &'m mut [Shares; N],
}

/// Words of memory of this many models.
pub(crate) const fn model_words(models: usize) -> usize {
    models * (1 + SYMBOLS / 2)
}

impl<'m, const N: usize> SymbolModels<'m, N> {
    /// The models that the first [`model_words`] of `memory` hold; `None` if `memory` has fewer words.
    pub(crate) fn new(memory: &'m mut [u32]) -> Option<Self> {
        let (counts, memory) = memory.split_first_chunk_mut()?;
        let shares = halves_of(memory.as_chunks_mut().0.first_chunk_mut()?);
        Some(Self { counts, shares })
    }

    /// Codes a symbol under the average of the models with these numbers, weighted by `weights` and by how
    /// much each has seen, and updates them. At least one has seen something.
    ///
    /// # Panics
    /// When a number is not below `N`.
    #[inline]
    pub(crate) fn code<const M: usize>(
        &mut self,
        coder: &mut impl BitCoder,
        numbers: [usize; M],
        weights: [u16; M],
        symbol: usize,
    ) -> usize {
        let counts = numbers.map(|number| self.counts[number] as usize % COUNTS);
        let mut weights = weights;
        weights.iter_mut().zip(counts).for_each(|(weight, count)| *weight *= CONFIDENCE[count]);
        let scale = SCALE[usize::from(weights.iter().sum::<u16>()).min(MOST_WEIGHT)];
        let shares = numbers.map(|number| &self.shares[number]);
        let mixed = mix(&LEAST_SHARES, shares, weights.map(|weight| weight * scale));
        let symbol = coder.symbol(&mixed, symbol);
        for (number, count) in numbers.into_iter().zip(counts) {
            let rate = RATE[count];
            let step = ((u32::from(rate) * REST) >> 16) as u16;
            learn(&mut self.shares[number], rate, step, symbol);
            self.counts[number] = (count as u32 + 1).min(MOST_UPDATES);
        }
        symbol
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::coding::entropy::range::{RangeDecoder, RangeEncoder};
    use proptest::prelude::*;
    use std::{vec, vec::Vec};

    const MODELS: usize = 3;

    /// Codes the symbols, each under the three models of its own order.
    fn run(coder: &mut impl BitCoder, symbols: &[(usize, usize)]) -> Vec<usize> {
        let mut memory = vec![0xffff_ffff; model_words(MODELS)];
        let mut models = SymbolModels::<MODELS>::new(&mut memory).expect("enough memory");
        *models.counts = [12, 0, 0];
        *models.shares = [shares_of([1; SYMBOLS]); MODELS];
        let mut code = |&(symbol, first): &(usize, usize)| {
            let numbers = core::array::from_fn(|i| (first + i) % MODELS);
            let symbol = models.code(coder, numbers, [1, 2, 3], symbol);
            for shares in models.shares.iter() {
                assert!(shares.is_sorted() && shares[0] == 0 && u32::from(shares[SYMBOLS - 1]) <= REST);
            }
            symbol
        };
        symbols.iter().map(&mut code).collect()
    }

    fn encode(symbols: &[(usize, usize)]) -> Vec<u8> {
        let mut out = vec![0; 2 * symbols.len() + 8];
        let mut encoder = RangeEncoder::new(&mut out);
        run(&mut encoder, symbols);
        let len = encoder.finish();
        out.truncate(len);
        out
    }

    proptest! {
        #[test]
        fn what_was_coded_decodes(symbols in proptest::collection::vec((0..SYMBOLS, 0..MODELS), 0..300)) {
            let expected: Vec<usize> = symbols.iter().map(|&(symbol, _)| symbol).collect();
            prop_assert_eq!(run(&mut RangeDecoder::new(&encode(&symbols)), &symbols), expected);
        }

        #[test]
        fn any_bytes_decode(stream in proptest::collection::vec(any::<u8>(), 0..60)) {
            let symbols = run(&mut RangeDecoder::new(&stream), &[(0, 0); 100]);
            prop_assert!(symbols.iter().all(|&symbol| symbol < SYMBOLS));
        }
    }

    /// Models learn the symbol that comes, whichever it is, until it costs no more than the least shares of
    /// the others.
    #[test]
    fn a_symbol_that_always_comes_costs_next_to_nothing() {
        for symbol in 0..SYMBOLS {
            let [few, many] = [400, 4000].map(|n| encode(&vec![(symbol, 0); n]).len());
            let least = 3600.0 * -(1.0 - 15.0 * f64::from(LEAST) / 65_536.0).log2() / 8.0;
            let more = (many - few) as f64;
            assert!(
                (least - 1.0..3.0 * least).contains(&more),
                "{more} bytes of symbol {symbol}, at least {least}"
            );
        }
    }

    #[test]
    fn shares_keep_the_ratio_of_their_weights() {
        let shares = shares_of([1, 3, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8]);
        assert_eq!(shares[..5], [0, 4072, 16_288, 16_288, 32_576]);
        assert_eq!(shares[15], 32_576);
    }
}
