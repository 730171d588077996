//! A range coder: each decision and each symbol takes as many bits as its probability implies.
//!
//! Encoder and decoder are two [`BitCoder`]s, so that a model is written once and serves both. Bytes past the
//! end of a stream read as 0, and any bytes decode.
//!
//! # Source
//! Martin: Range encoding (Video & Data Recording Conference, 1979), with binary decisions as in the JBIG2
//! and LZMA coders.

use crate::kernels::scalar::shares::{SYMBOLS, Shares};
use crate::kernels::shares::count_up_to;
use core::hint::select_unpredictable;

/// Probabilities have this many bits.
pub(crate) const PROBABILITY_BITS: u32 = 16;

/// The range is refilled by a byte when it falls below this.
const BOTTOM: u32 = 1 << 24;

/// The most bits that one step of [`BitCoder::bits`] takes: the range keeps at least twelve.
const STEP_BITS: u32 = 12;

/// The part of a range that belongs to a symbol: its start, and its size. The last symbol takes the rest of
/// the range.
#[inline(always)]
fn part(range: u32, shares: &Shares, symbol: usize) -> (u32, u32) {
    let unit = range >> PROBABILITY_BITS;
    let start = unit * u32::from(shares[symbol % SYMBOLS]);
    let end = shares.get(symbol + 1).map_or(range, |&share| unit * u32::from(share));
    (start, end - start)
}

/// Codes decisions: the encoder writes its argument; the decoder ignores the argument and returns what it
/// reads.
pub(crate) trait BitCoder {
    /// One decision that is 1 with probability `p` / 2¹⁶, 0 < `p` < 2¹⁶.
    fn bit(&mut self, p: u32, bit: bool) -> bool;

    /// The same for a decision that is about as likely as not, so that no branch predictor can foresee it.
    /// The decoder reads it without a branch.
    #[inline(always)]
    fn even_bit(&mut self, p: u32, bit: bool) -> bool {
        self.bit(p, bit)
    }

    /// As [`bit`](Self::bit), and then the work that depends on the decision, after a branch. If the branch
    /// is predicted, that work does not wait for the decision.
    #[inline(always)]
    fn bit_then<R>(&mut self, p: u32, bit: bool, then: impl FnOnce(bool) -> R) -> R {
        if self.bit(p, bit) { then(true) } else { then(false) }
    }

    /// A field of up to twelve bits; all values are equally likely.
    fn field(&mut self, bits: u32, value: u32) -> u32;

    /// A symbol with the probabilities that `shares` give; they ascend strictly, and the first is 0.
    fn symbol(&mut self, shares: &Shares, symbol: usize) -> usize;

    /// A number of `bits` ≤ 32 digits; all values are equally likely. It is coded in fields of twelve digits,
    /// the upper ones first.
    #[inline]
    fn bits(&mut self, bits: u32, value: u32) -> u32 {
        let (mut left, mut coded) = (bits, 0u64);
        while left > 0 {
            let step = left.min(STEP_BITS);
            left -= step;
            coded = coded << step | u64::from(self.field(step, value >> left & ((1 << step) - 1)));
        }
        coded as u32
    }
}

/// Writes a stream to the front of a buffer. Bytes that do not fit are counted and dropped.
#[derive(Debug)]
pub(crate) struct RangeEncoder<'o> {
    out: &'o mut [u8],
    len: usize,
    low: u32,
    range: u32,
}

impl<'o> RangeEncoder<'o> {
    pub(crate) fn new(out: &'o mut [u8]) -> Self {
        Self { out, len: 0, low: 0, range: u32::MAX }
    }

    /// Narrows the interval to `range` values from `start` on.
    #[inline]
    fn narrow(&mut self, start: u32, range: u32) {
        self.add(start);
        self.range = range;
        while self.range < BOTTOM {
            self.push();
            self.range <<= 8;
        }
    }

    /// The same for a part of any size, without a branch on how many bytes that moves.
    #[inline]
    fn narrow_far(&mut self, start: u32, range: u32) {
        self.add(start);
        let shift = range.leading_zeros() & !7;
        self.range = range << shift;
        if let Some(bytes) = self.out.get_mut(self.len..).and_then(|out| out.first_chunk_mut()) {
            *bytes = self.low.to_be_bytes();
            self.low <<= shift;
            self.len += shift as usize / 8;
        } else {
            (0..shift / 8).for_each(|_| self.push());
        }
    }

    #[inline]
    fn add(&mut self, start: u32) {
        let (low, carry) = self.low.overflowing_add(start);
        self.low = low;
        if carry {
            self.carry();
        }
    }

    /// Adds one to the bytes written so far, as to one long number.
    #[cold]
    fn carry(&mut self) {
        let written = self.len.min(self.out.len());
        for byte in self.out[..written].iter_mut().rev() {
            *byte = byte.wrapping_add(1);
            if *byte != 0 {
                break;
            }
        }
    }

    #[inline]
    fn push(&mut self) {
        if let Some(byte) = self.out.get_mut(self.len) {
            *byte = (self.low >> 24) as u8;
        }
        self.len += 1;
        self.low <<= 8;
    }

    /// The value of the interval with the most zeros at its end, because those zeros are not written.
    fn last_value(&self) -> u64 {
        let kept = |zeros: u32| (u64::from(self.low) + (1u64 << zeros) - 1) >> zeros << zeros;
        let zeros = (0..=32).rev().find(|&zeros| kept(zeros) - u64::from(self.low) < u64::from(self.range));
        kept(zeros.unwrap_or(0))
    }

    /// Bytes of the stream if it ended here. More decisions never make it shorter.
    pub(crate) fn bytes(&self) -> usize {
        let last = self.last_value() as u32;
        self.len + 4 - (last.trailing_zeros() / 8) as usize
    }

    /// An upper bound of [`bytes`](Self::bytes), at most four above it.
    #[inline]
    pub(crate) fn most_bytes(&self) -> usize {
        self.len + 4
    }

    /// Ends the stream with the fewest bytes that identify the interval. Returns its length, which exceeds
    /// the buffer's if it did not fit.
    pub(crate) fn finish(mut self) -> usize {
        let value = self.last_value();
        self.add((value - u64::from(self.low)) as u32);
        while self.low != 0 {
            self.push();
        }
        self.len
    }
}

impl BitCoder for RangeEncoder<'_> {
    #[inline]
    fn symbol(&mut self, shares: &Shares, symbol: usize) -> usize {
        let (start, range) = part(self.range, shares, symbol);
        self.narrow_far(start, range);
        symbol
    }

    #[inline]
    fn bit(&mut self, p: u32, bit: bool) -> bool {
        let ones = (self.range >> PROBABILITY_BITS) * p;
        let (start, range) = if bit { (0, ones) } else { (ones, self.range - ones) };
        self.narrow(start, range);
        bit
    }

    #[inline(always)]
    fn bit_then<R>(&mut self, p: u32, bit: bool, then: impl FnOnce(bool) -> R) -> R {
        let ones = (self.range >> PROBABILITY_BITS) * p;
        if bit {
            self.narrow(0, ones);
            then(true)
        } else {
            self.narrow(ones, self.range - ones);
            then(false)
        }
    }

    #[inline]
    fn field(&mut self, bits: u32, value: u32) -> u32 {
        let share = self.range >> bits;
        let start = value * share;
        let is_last = value == (1 << bits) - 1;
        self.narrow_far(start, if is_last { self.range - start } else { share });
        value
    }
}

/// Reads a stream.
#[derive(Debug)]
pub(crate) struct RangeDecoder<'a> {
    stream: core::slice::Iter<'a, u8>,
    value: u32,
    range: u32,
}

impl<'a> RangeDecoder<'a> {
    pub(crate) fn new(stream: &'a [u8]) -> Self {
        let mut decoder = Self { stream: stream.iter(), value: 0, range: u32::MAX };
        for _ in 0..4 {
            decoder.value = decoder.value << 8 | decoder.next();
        }
        // Excludes the one value that no stream of the encoder begins with.
        decoder.value = decoder.value.min(u32::MAX - 1);
        decoder
    }

    #[inline]
    fn next(&mut self) -> u32 {
        self.stream.next().map_or(0, |&byte| u32::from(byte))
    }

    #[inline]
    fn narrow(&mut self, start: u32, range: u32) {
        self.value -= start;
        self.range = range;
        while self.range < BOTTOM {
            self.value = self.value << 8 | self.next();
            self.range <<= 8;
        }
    }

    /// The same for a part of any size, without a branch on how many bytes that moves.
    #[inline]
    fn narrow_far(&mut self, start: u32, range: u32) {
        self.value -= start;
        let shift = range.leading_zeros() & !7;
        self.range = range << shift;
        if let Some((&bytes, _)) = self.stream.as_slice().split_first_chunk() {
            let ahead = u64::from(self.value) << 32 | u64::from(u32::from_be_bytes(bytes));
            self.value = ((ahead << shift) >> 32) as u32;
            self.stream = self.stream.as_slice()[shift as usize / 8..].iter();
        } else {
            (0..shift / 8).for_each(|_| self.value = self.value << 8 | self.next());
        }
    }
}

impl BitCoder for RangeDecoder<'_> {
    #[inline]
    fn symbol(&mut self, shares: &Shares, _: usize) -> usize {
        let share = (self.value / (self.range >> PROBABILITY_BITS)).min(u32::from(u16::MAX));
        let symbol = count_up_to(shares, share as u16).saturating_sub(1);
        let (start, range) = part(self.range, shares, symbol);
        self.narrow_far(start, range);
        symbol
    }

    #[inline]
    fn bit(&mut self, p: u32, _: bool) -> bool {
        let ones = (self.range >> PROBABILITY_BITS) * p;
        if self.value < ones {
            self.narrow(0, ones);
            true
        } else {
            self.narrow(ones, self.range - ones);
            false
        }
    }

    #[inline(always)]
    fn even_bit(&mut self, p: u32, _: bool) -> bool {
        let ones = (self.range >> PROBABILITY_BITS) * p;
        let (rest, bit) = self.value.overflowing_sub(ones);
        self.value = select_unpredictable(bit, self.value, rest);
        self.narrow(0, select_unpredictable(bit, ones, self.range - ones));
        bit
    }

    #[inline]
    fn field(&mut self, bits: u32, _: u32) -> u32 {
        let share = self.range >> bits;
        let last = (1 << bits) - 1;
        let value = (self.value / share).min(last);
        let start = value * share;
        self.narrow_far(start, if value == last { self.range - start } else { share });
        value
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::{vec, vec::Vec};

    /// Decisions with their probabilities, numbers with their digits, and symbols with their shares.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Bit(u32, bool),
        EvenBit(u32, bool),
        Bits(u32, u32),
        Symbol(Shares, usize),
    }

    fn run(coder: &mut impl BitCoder, steps: &[Step]) -> Vec<u32> {
        let mut step = |step: &Step| match *step {
            Step::Bit(p, bit) => u32::from(coder.bit(p, bit)),
            Step::EvenBit(p, bit) => u32::from(coder.even_bit(p, bit)),
            Step::Bits(bits, value) => coder.bits(bits, value),
            Step::Symbol(shares, symbol) => coder.symbol(&shares, symbol) as u32,
        };
        steps.iter().map(&mut step).collect()
    }

    fn encode(steps: &[Step]) -> Vec<u8> {
        let mut out = vec![0xa5; steps.len() * 5 + 8];
        let mut encoder = RangeEncoder::new(&mut out);
        run(&mut encoder, steps);
        let len = encoder.finish();
        out.truncate(len);
        out
    }

    /// Shares that ascend strictly, from 0 on.
    fn usable(mut shares: Shares) -> Shares {
        shares.sort_unstable();
        shares[0] = 0;
        for i in 1..SYMBOLS {
            shares[i] = shares[i].max(shares[i - 1].saturating_add(1)).min(u16::MAX - (SYMBOLS - i) as u16);
        }
        shares
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let p = prop_oneof![1u32..65536, 1u32..40, 65500u32..65536];
        let bit = (p, any::<[bool; 2]>())
            .prop_map(|(p, [is_even, bit])| if is_even { Step::EvenBit(p, bit) } else { Step::Bit(p, bit) });
        let bits = (0u32..=32, any::<u32>())
            .prop_map(|(bits, value)| Step::Bits(bits, (u64::from(value) & ((1 << bits) - 1)) as u32));
        let symbol =
            (any::<Shares>(), 0..SYMBOLS).prop_map(|(shares, symbol)| Step::Symbol(usable(shares), symbol));
        proptest::collection::vec(prop_oneof![4 => bit, 1 => bits, 1 => symbol], 0..600)
    }

    proptest! {
        #[test]
        fn what_was_coded_decodes(steps in steps()) {
            let values = |step: &Step| match *step {
                Step::Bit(_, bit) | Step::EvenBit(_, bit) => u32::from(bit),
                Step::Bits(_, value) => value,
                Step::Symbol(_, symbol) => symbol as u32,
            };
            let stream = encode(&steps);
            let decoded = run(&mut RangeDecoder::new(&stream), &steps);
            prop_assert_eq!(decoded, steps.iter().map(values).collect::<Vec<_>>());
            let mut out = vec![0; stream.len().saturating_sub(1)];
            let mut encoder = RangeEncoder::new(&mut out);
            let mut before = 0;
            for step in &steps {
                run(&mut encoder, core::slice::from_ref(step));
                prop_assert!((before..=encoder.most_bytes()).contains(&encoder.bytes()));
                before = encoder.bytes();
            }
            prop_assert_eq!(before, stream.len());
            prop_assert_eq!(encoder.finish(), stream.len(), "the length is right where it does not fit");
        }

        #[test]
        fn any_bytes_decode_to_numbers_in_range(stream in proptest::collection::vec(any::<u8>(), 0..40), steps in steps()) {
            let decoded = run(&mut RangeDecoder::new(&stream), &steps);
            for (value, step) in decoded.iter().zip(&steps) {
                let bits = match *step { Step::Bit(..) | Step::EvenBit(..) => 1, Step::Bits(bits, _) => bits, Step::Symbol(..) => 4 };
                prop_assert!(u64::from(*value) < 1 << bits);
            }
        }
    }

    #[test]
    fn a_stream_costs_what_its_decisions_are_worth() {
        for (p, n, ones) in [(655, 40_000, 400), (32768, 8000, 4000), (60_000, 8000, 7324)] {
            let steps: Vec<Step> = (0..n).map(|i| Step::Bit(p, i * ones % n < ones)).collect();
            let ones = steps.iter().filter(|step| matches!(step, Step::Bit(_, true))).count() as f64;
            let share = f64::from(p) / 65536.0;
            let worth = -(ones * share.log2() + (f64::from(n) - ones) * (1.0 - share).log2()) / 8.0;
            let bytes = encode(&steps).len() as f64;
            assert!((worth - 1.0..worth * 1.003 + 3.0).contains(&bytes), "{bytes} bytes for {worth}");
        }
    }

    #[test]
    fn a_run_of_certain_decisions_is_empty() {
        assert_eq!(encode(&[Step::Bit(65_535, true); 1000]), []);
    }
}
