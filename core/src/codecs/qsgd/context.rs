//! Norms and levels as decisions under adaptive probabilities, for parts of a unit that are too short for
//! tables of their own.
//!
//! Two averages of the levels before a level decide the probabilities of its digits: one remembers few
//! levels, the other more. The last two signs decide the probability of a sign. The previous exponent decides
//! the probability of the exponent of a norm. One stream holds all: the norm of each bucket, then its levels.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

use super::LevelBits;
use super::fields::Levels;
use super::norms::MANTISSA_BITS;
use crate::coding::entropy::adaptive::{COUNT_BITS, Context, DECISIONS, decide, decide_between};
use crate::coding::entropy::mixer::{Word, decide_even, seen};
use crate::coding::entropy::range::{BitCoder, RangeDecoder, RangeEncoder};
use crate::error::{DecodeError, Field};
use crate::wire::reader::Reader;
use crate::wire::writer::{MAX_VARINT_BYTES, Writer, varint_len};

/// Exponents of norms that are not 0.
const EXPONENTS: core::ops::RangeInclusive<u32> = 1..=254;

/// Classes of an average, by half octaves in 256ths of a level. An average of 127 is in the last class.
const CLASSES: usize = 30;

/// The shifts by which an average moves towards a level: one average remembers few levels, the other more.
const FAST: u32 = 1;
const SLOW: u32 = 4;

/// The number of updates that a word starts with, as if it had seen them.
const FAST_COUNT: u32 = 4;
const SLOW_COUNT: u32 = 6;

/// Index of the first word for digits after the leading one, in a context of levels. The words before it are
/// for the number of digits.
const FIRST_DIGIT: usize = 6;

/// Index of the word for the direction in which an exponent moves. The words before it are for the distance.
const DIRECTION: usize = 15;

/// The same for the words of signs. It is large because the signs of most gradients have no pattern.
const SIGN_COUNT: u32 = 20;

/// Largest stream of one coordinate, its length included: 33 bits of a norm, and 49 of a level.
pub(super) const MAX_SINGLE_BYTES: usize = 1 + 12;

/// A word that is 1 with probability `p` / 2¹⁶, as if it had been updated `count` times.
const fn word(p: u32, count: u32) -> u32 {
    p << COUNT_BITS | count
}

/// Words of the contexts of levels. A level has more than j digits with probability m / (m + 0.45·2ʲ), where
/// m is the least average of the class. The first digit after the leading one is 1 in three of eight cases.
#[allow(clippy::indexing_slicing, reason = "while compiling")]
const fn first_words(count: u32) -> [Context; CLASSES] {
    let mut contexts = [[word(24_000, count); DECISIONS]; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        let mut digits = 0;
        while digits <= FIRST_DIGIT {
            let average = if class < 2 { class as u32 } else { (2 + class as u32 % 2) << (class / 2) >> 1 };
            let p = ((average + 1) << 16) / (average + 1 + (115 << digits));
            let p = if p < 5000 {
                5000
            } else if p > 63_000 {
                63_000
            } else {
                p
            };
            contexts[class][digits] = word(p, count);
            digits += 1;
        }
        class += 1;
    }
    contexts
}

const FIRST_FAST: [Context; CLASSES] = first_words(FAST_COUNT);
const FIRST_SLOW: [Context; CLASSES] = first_words(SLOW_COUNT);

/// The half octave of an average; averages of 0 and 1 have classes 0 and 1.
#[inline]
fn class(average: i32) -> usize {
    let average = average as u32;
    let octave = (average | 1).ilog2();
    let class = (2 * octave + ((2 * average) >> octave)).saturating_sub(2);
    class.max(average.min(1)) as usize
}

/// All models that adapt within a stream.
struct Models {
    /// Bits of the largest level.
    digits_of_largest: u32,
    fast: [Context; CLASSES],
    slow: [Context; CLASSES],
    digits: Context,
    zero: Context,
    exponent: Context,
    /// By the last two signs.
    signs: [Word; 4],
    last_signs: u32,
    /// Averages of levels, in 256ths: the fast one and the slow one.
    averages: [i32; 2],
    last_exponent: Option<u32>,
    was_zero: bool,
}

impl Models {
    fn new(bits: LevelBits) -> Self {
        Self {
            digits_of_largest: bits.width() - 1,
            fast: FIRST_FAST,
            slow: FIRST_SLOW,
            digits: [word(28_000, 4); DECISIONS],
            zero: [word(16_000, 1); DECISIONS],
            exponent: [word(26_000, 2); DECISIONS],
            signs: [seen(1 << 15, SIGN_COUNT); 4],
            last_signs: 0,
            averages: [64 * bits.levels() as i32; 2],
            last_exponent: None,
            was_zero: false,
        }
    }

    /// Codes the bits of a norm.
    fn norm(&mut self, coder: &mut impl BitCoder, norm: u32) -> Result<u32, DecodeError> {
        let number = usize::from(self.was_zero);
        self.was_zero = decide(coder, &mut [&mut self.zero], [1], number, norm == 0);
        if self.was_zero {
            return Ok(0);
        }
        let exponent = self.exponent(coder, norm >> MANTISSA_BITS);
        if !EXPONENTS.contains(&exponent) {
            return Err(DecodeError::InvalidField(Field::Norm));
        }
        self.last_exponent = Some(exponent);
        Ok(exponent << MANTISSA_BITS | coder.bits(MANTISSA_BITS, norm & ((1 << MANTISSA_BITS) - 1)))
    }

    fn exponent(&mut self, coder: &mut impl BitCoder, exponent: u32) -> u32 {
        let Some(last) = self.last_exponent else { return coder.bits(8, exponent) };
        let contexts = &mut [&mut self.exponent];
        let (distance, mut steps) = (exponent.abs_diff(last), 0);
        while steps < *EXPONENTS.end()
            && decide(coder, contexts, [1], (steps as usize).min(DIRECTION - 1), distance > steps)
        {
            steps += 1;
        }
        if steps > 0 && decide(coder, contexts, [1], DIRECTION, exponent < last) {
            last.wrapping_sub(steps)
        } else {
            last + steps
        }
    }

    #[inline]
    fn sign(&mut self, coder: &mut impl BitCoder, told: bool) -> u32 {
        let Some(word) = self.signs.get_mut(self.last_signs as usize % 4) else { return 0 };
        let sign = u32::from(decide_even(coder, word, told));
        self.last_signs = self.last_signs << 1 | sign;
        sign
    }

    /// Codes a field: level, and sign in bit 7.
    #[inline]
    fn level(&mut self, coder: &mut impl BitCoder, field: u8) -> u8 {
        let told = u32::from(field & 0x7f);
        let told_digits = u32::BITS - told.leading_zeros();
        let [Some(fast), Some(slow)] =
            [self.fast.get_mut(class(self.averages[0])), self.slow.get_mut(class(self.averages[1]))]
        else {
            return 0;
        };
        let mut contexts = [fast, slow];
        let mut digits = 0;
        while digits < self.digits_of_largest
            && decide_between(&mut contexts, digits as usize, |p| coder.bit(p, told_digits > digits))
        {
            digits += 1;
        }
        let mut level = u32::from(digits > 0);
        if digits >= 2 {
            let number = FIRST_DIGIT + digits as usize;
            let told = told >> (digits - 2) & 1 == 1;
            let bit = decide_between(&mut contexts, number, |p| coder.even_bit(p, told));
            level = level << 1 | u32::from(bit);
        }
        if digits >= 3 {
            let (rest, number) = (digits - 3, 2 * (digits - 3) + level % 2);
            let bit = decide(coder, &mut [&mut self.digits], [1], number as usize, told >> rest & 1 == 1);
            level = level << 1 | u32::from(bit);
            level = level << rest | coder.field(rest, told & ((1 << rest) - 1));
        }
        let sign = if level > 0 { self.sign(coder, field >> 7 == 1) } else { 0 };
        let [fast, slow] = &mut self.averages;
        *fast += ((level << 8) as i32 - *fast) >> FAST;
        *slow += ((level << 8) as i32 - *slow) >> SLOW;
        (level | sign << 7) as u8
    }
}

/// The parameters needed to read a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    pub(super) bits: LevelBits,
    pub(super) bucket: usize,
    /// Coordinates of the first bucket, which may have been cut.
    pub(super) first: usize,
}

impl Form {
    /// Coordinates of each bucket.
    fn sizes(self, len: usize) -> impl Iterator<Item = usize> {
        let (mut left, mut next) = (len, self.first);
        core::iter::from_fn(move || {
            let size = next.min(left);
            left -= size;
            next = self.bucket;
            (size > 0).then_some(size)
        })
    }

    /// Bytes of a body with a stream of `stream` bytes.
    fn body_bytes(self, stream: usize) -> usize {
        let counted = usize::from(self.bits.counted().is_some());
        let varints = [self.bucket, self.first, stream].map(|field| varint_len(field as u64));
        2 + counted + varints.iter().sum::<usize>() + stream
    }
}

/// Encodes levels for as long as `goes_on` returns true. `goes_on` is called after each run of coordinates,
/// with the encoder, the number of coordinates before the run, and the number including it. A run is a
/// coordinate, or a whole bucket of zeros, and adds at most a few bytes.
fn encode<'o>(
    form: Form,
    levels: &Levels<'_>,
    out: &'o mut [u8],
    mut goes_on: impl FnMut(&RangeEncoder<'o>, usize, usize) -> bool,
) -> RangeEncoder<'o> {
    let (mut coder, mut models) = (RangeEncoder::new(out), Models::new(form.bits));
    let mut at = 0;
    for (size, norm) in form.sizes(levels.fields.len()).zip(levels.norms) {
        let norm = u32::from_le_bytes(*norm);
        // Encoding a norm cannot fail.
        let _ = models.norm(&mut coder, norm);
        let fields = levels.fields.get(at..at + size).unwrap_or_default();
        if norm == 0 {
            if !goes_on(&coder, at, at + size) {
                return coder;
            }
            at += size;
            continue;
        }
        for &field in fields {
            models.level(&mut coder, field);
            if !goes_on(&coder, at, at + 1) {
                return coder;
            }
            at += 1;
        }
    }
    coder
}

/// How many of the coordinates fit a body of at most `room(coordinates)` bytes. The room never grows with
/// their number.
pub(super) fn fitting(form: Form, levels: &Levels<'_>, room: impl Fn(usize) -> usize) -> usize {
    let least_room = room(levels.fields.len());
    let mut fitting = 0;
    encode(form, levels, &mut [], |coder, before, with| {
        if form.body_bytes(coder.most_bytes()) <= least_room {
            fitting = with;
            return true;
        }
        let bytes = form.body_bytes(coder.bytes());
        let (mut fits, mut fails) = (before, with + 1);
        while fits + 1 < fails {
            let middle = fits + (fails - fits) / 2;
            if bytes <= room(middle) { fits = middle } else { fails = middle }
        }
        fitting = fits;
        fits == with
    });
    fitting
}

/// Writes what follows the bucket size, if the whole body then takes at most `room` bytes.
pub(super) fn write(form: Form, levels: &Levels<'_>, room: usize, writer: &mut Writer<'_>) -> bool {
    writer.varint(form.first as u64);
    let spare = writer.spare();
    let Some(out) = spare.get_mut(MAX_VARINT_BYTES..) else { return false };
    let bytes = encode(form, levels, out, |coder, _, _| coder.bytes() <= room).finish();
    if form.body_bytes(bytes) > room {
        return false;
    }
    spare.copy_within(MAX_VARINT_BYTES..MAX_VARINT_BYTES + bytes, varint_len(bytes as u64));
    writer.varint(bytes as u64);
    writer.advance(bytes);
    true
}

/// Norms and levels as received.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContextLevels<'a> {
    form: Form,
    stream: &'a [u8],
}

impl<'a> ContextLevels<'a> {
    pub(super) fn fields(
        bits: LevelBits,
        bucket: usize,
        reader: &mut Reader<'a>,
    ) -> Result<Self, DecodeError> {
        let first = reader.varint_usize()?;
        if first == 0 || first > bucket {
            return Err(DecodeError::InvalidField(Field::Bucket));
        }
        let bytes = reader.varint_usize()?;
        Ok(Self { form: Form { bits, bucket, first }, stream: reader.take(bytes)? })
    }

    /// Bytes of the stream.
    pub(super) fn bytes(&self) -> usize {
        self.stream.len()
    }

    /// Whether buckets begin at the same coordinates as in other packings.
    #[cfg(feature = "alloc")]
    pub(super) fn has_whole_buckets(&self, len: usize) -> bool {
        self.form.first == self.form.bucket || len <= self.form.first
    }

    /// Decodes `len` coordinates. Passes each norm to `norm`, whose result is passed to `field` with each
    /// field of the bucket. Buckets whose norm is 0 have fields of 0.
    pub(super) fn decode<T: Copy>(
        &self,
        len: usize,
        mut norm: impl FnMut(f32) -> Result<T, DecodeError>,
        mut field: impl FnMut(u8, T),
    ) -> Result<(), DecodeError> {
        let (mut coder, mut models) = (RangeDecoder::new(self.stream), Models::new(self.form.bits));
        for size in self.form.sizes(len) {
            let bits = models.norm(&mut coder, 0)?;
            let own = norm(f32::from_bits(bits))?;
            for _ in 0..size {
                field(if bits == 0 { 0 } else { models.level(&mut coder, 0) }, own);
            }
        }
        Ok(())
    }
}
