//! The body of a levels unit as received. Level streams are total by construction: once lengths, norms and
//! tables are checked, any bits decode to levels in range.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

use super::LevelBits;
use super::context::ContextLevels;
use super::norms::Norms;
use super::pack::{
    COUNTED_BITS, PACKING_CONTEXT, PACKING_ELIAS, PACKING_FIXED, PACKING_RANS, PACKING_TERNARY,
    TERNARY_PER_BYTE,
};
use crate::bits::{BitReader, check_padding};
use crate::built::Full;
use crate::codec::{Body, BodyInfo};
use crate::coding::entropy::elias;
use crate::coding::entropy::section::CodedSymbols;
use crate::coding::values::check_magnitude;
use crate::error::{DecodeError, Field};
use crate::gradient::layout::Span;
use crate::gradient::unit::Unit;
use crate::kernels::{self, Isa};
use crate::wire::ids::{CodecId, Kind};
use crate::wire::reader::Reader;
#[cfg(feature = "alloc")]
use alloc::{vec, vec::Vec};

/// Structure of a levels body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LevelsFields<'a> {
    len: usize,
    pub(super) bits: LevelBits,
    pub(super) bucket: usize,
    norms: Norms<'a>,
    packing: Packing<'a>,
}

/// Fields unpacked at a time: whole bytes in every packing.
const UNPACKED: usize = 320;

#[derive(Clone, Copy, Debug)]
enum Packing<'a> {
    Fixed(&'a [u8]),
    Ternary(&'a [u8], Full),
    Elias(&'a [u8], Full),
    Rans(CodedSymbols<'a>, Full),
    /// Holds the norms too.
    Context(ContextLevels<'a>, Full),
}

/// Entropy coders skip the buckets whose norm is zero; fields of fixed width cover all buckets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Buckets {
    All,
    Coded,
}

impl<'a> Body<'a> for LevelsFields<'a> {
    const KIND: Kind = Kind::new(2);

    fn read(_codec: CodecId, unit: &Unit, _step: u64, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Self::fields(unit.len, reader)
    }

    fn scratch_words(&self) -> usize {
        self.words()
    }

    fn check(&self, _span: Span<'_>, max_magnitude: f32, scratch: &mut [u32]) -> Result<(), DecodeError> {
        self.check_all(max_magnitude, scratch)
    }

    #[inline]
    fn for_each(&self, scratch: &[u32], f: impl FnMut(usize, f32)) {
        self.for_each_value(scratch, f);
    }

    const ADDS: bool = true;

    fn add_scaled_to(&self, scratch: &[u32], weight: f32, acc: &mut [f32]) {
        self.add_levels(scratch, weight, acc);
    }

    fn info(&self) -> BodyInfo {
        let [norms, levels] = self.coders();
        BodyInfo { kind: "levels", index: Some(norms), values: Some(levels) }
    }

    #[cfg(feature = "alloc")]
    fn alternatives(&self, scratch: &[u32]) -> Vec<Vec<u8>> {
        self.rewritten(scratch)
    }
}

/// The number of levels of a body that states it.
fn read_count(reader: &mut Reader<'_>) -> Result<LevelBits, DecodeError> {
    Full::required()?;
    let levels = reader.u8()?;
    if (1..=127).contains(&levels) {
        Ok(LevelBits::Levels(levels))
    } else {
        Err(DecodeError::InvalidField(Field::Bits))
    }
}

impl<'a> LevelsFields<'a> {
    fn fields(len: usize, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let invalid = DecodeError::InvalidField;
        let form = reader.u8()?;
        let width = form & 0x0f;
        let is_counted = width == COUNTED_BITS;
        if !is_counted && LevelBits::new(width).is_none() {
            return Err(invalid(Field::Bits));
        }
        let norm = reader.u8()?;
        if norm & 0x0f > 1 {
            return Err(invalid(Field::Norm));
        }
        let bits = if is_counted { read_count(reader)? } else { LevelBits::Bits(width) };
        let bucket = reader.varint_usize()?;
        if bucket == 0 || u32::try_from(bucket).is_err() {
            return Err(invalid(Field::Bucket));
        }
        let norms = Norms::fields(norm >> 4, len.div_ceil(bucket), reader)?;
        let packing = match form >> 4 {
            PACKING_FIXED => {
                let bits = len.checked_mul(bits.built().width() as usize).ok_or(invalid(Field::Bits))?;
                Packing::Fixed(reader.take(bits.div_ceil(8))?)
            }
            PACKING_ELIAS => {
                let full = Full::required()?;
                let bytes = reader.varint_usize()?;
                Packing::Elias(reader.take(bytes)?, full)
            }
            PACKING_RANS => {
                let full = Full::required()?;
                Packing::Rans(CodedSymbols::classed_fields(len, reader)?, full)
            }
            PACKING_TERNARY if bits == LevelBits::Bits(2) => {
                let full = Full::required()?;
                Packing::Ternary(reader.take(len.div_ceil(TERNARY_PER_BYTE))?, full)
            }
            PACKING_CONTEXT if matches!(norms, Norms::Streamed(_)) => {
                let full = Full::required()?;
                Packing::Context(ContextLevels::fields(bits, bucket, reader)?, full)
            }
            _ => return Err(invalid(Field::Packing)),
        };
        if matches!(norms, Norms::Streamed(_)) && !matches!(packing, Packing::Context(..)) {
            return Err(invalid(Field::Norm));
        }
        Ok(Self { len, bits, bucket, norms, packing })
    }

    /// Words for the norms, if they must be decoded, and then for the tables of symbols or, under context,
    /// for the values of all coordinates.
    fn words(&self) -> usize {
        let coded = match self.packing {
            Packing::Rans(coded, _) => coded.scratch_words(),
            Packing::Context(..) => self.len,
            _ => 0,
        };
        self.norms.words().saturating_add(coded.max(self.norms.slot_words()))
    }

    fn levels(&self) -> u32 {
        self.bits.built().levels()
    }

    /// Bits of a field of fixed width, its sign included.
    fn width(&self) -> u32 {
        self.bits.built().width()
    }

    fn alphabet(&self) -> usize {
        2 * self.levels() as usize + 1
    }

    /// Checks that every norm is finite, not negative and within the limit, that tables are valid, and that
    /// padding is zero.
    fn check_all(&self, max_magnitude: f32, scratch: &mut [u32]) -> Result<(), DecodeError> {
        let needed = self.norms.words();
        let (norms, words) =
            scratch.split_at_mut_checked(needed).ok_or(DecodeError::InvalidField(Field::Norm))?;
        self.norms.check(norms, words)?;
        let levels = self.levels();
        for norm in self.norms.iter(norms) {
            check_norm(norm, levels, max_magnitude)?;
        }
        match self.packing {
            Packing::Fixed(bytes) => self.check_fixed(bytes),
            Packing::Ternary(bytes, _) => self.check_ternary(bytes),
            Packing::Elias(bytes, _) => self.check_elias(bytes, self.coded_len(norms)),
            Packing::Rans(coded, _) => coded.with_len(self.coded_len(norms)).check(self.alphabet(), words),
            Packing::Context(coded, _) => self.decode_values(coded, max_magnitude, words),
        }
    }

    /// Decodes the values of all coordinates into `words`, and checks norms on the way.
    fn decode_values(
        &self,
        coded: ContextLevels<'_>,
        max_magnitude: f32,
        words: &mut [u32],
    ) -> Result<(), DecodeError> {
        let levels = self.levels();
        let (mut words, mut largest) = (words.iter_mut(), 0);
        let scale = |norm: f32| check_norm(norm, levels, max_magnitude).map(|()| norm / levels as f32);
        coded.decode(self.len, scale, |field, scale| {
            let level = u32::from(field & 0x7f);
            largest = largest.max(level);
            if let Some(word) = words.next() {
                *word = value(level, field > 0x7f, scale).to_bits();
            }
        })?;
        if largest <= levels { Ok(()) } else { Err(DecodeError::InvalidField(Field::Level)) }
    }

    /// A field can hold a level above the largest only if the number of levels is stated. Checks that none
    /// does.
    fn check_fixed(&self, bytes: &[u8]) -> Result<(), DecodeError> {
        check_padding(bytes, self.len as u64 * u64::from(self.width()))?;
        if Full::build().and_then(|_| self.bits.counted()).is_none() {
            return Ok(());
        }
        let (mut bits, width) = (BitReader::new(bytes), self.width());
        let is_within = |field: u64| field as u32 & self.level_mask() <= self.levels();
        if (0..self.len).all(|_| is_within(bits.take(width))) {
            Ok(())
        } else {
            Err(DecodeError::InvalidField(Field::Level))
        }
    }

    /// The bits of a field of fixed width that are not its sign.
    fn level_mask(&self) -> u32 {
        (1 << (self.width() - 1)) - 1
    }

    /// Coordinates of the buckets whose norm is not zero.
    fn coded_len(&self, norms: &[u32]) -> usize {
        let sizes = (0..self.len).step_by(self.bucket).map(|first| self.bucket.min(self.len - first));
        self.norms.iter(norms).zip(sizes).filter(|&(norm, _)| norm != 0.0).map(|(_, size)| size).sum()
    }

    /// Checks that every byte holds five digits, and that those after the last coordinate are zero.
    fn check_ternary(&self, bytes: &[u8]) -> Result<(), DecodeError> {
        let used = (self.len.wrapping_sub(1) % TERNARY_PER_BYTE) as u32 + 1;
        let is_padded = bytes.last().is_none_or(|&last| u32::from(last) < 3u32.pow(used));
        let is_valid = bytes.iter().all(|&byte| u32::from(byte) < 3u32.pow(TERNARY_PER_BYTE as u32));
        if is_padded && is_valid { Ok(()) } else { Err(DecodeError::TrailingBytes) }
    }

    /// Checks the length and the padding; any bits decode to levels in range. Further bits would make a
    /// second frame for the same levels, so they are refused.
    fn check_elias(&self, bytes: &[u8], coded_len: usize) -> Result<(), DecodeError> {
        let mut bits = BitReader::new(bytes);
        let available = bytes.len() as u64 * 8;
        let left = elias::skip_levels(&mut bits, self.levels(), coded_len);
        // Past the end all bits are 0, and each is a level of 0.
        let used = bits.position() + left as u64;
        if used > available {
            return Err(DecodeError::Truncated { needed: used.div_ceil(8) as usize, actual: bytes.len() });
        }
        check_padding(bytes, used)
    }

    /// Calls `f` with position and value of every coordinate, in order. Those of a bucket whose norm is zero
    /// are 0, whether or not the packing holds levels for them.
    #[inline]
    fn for_each_value(&self, scratch: &[u32], mut f: impl FnMut(usize, f32)) {
        if let Packing::Context(..) = self.packing {
            return scratch.iter().enumerate().for_each(|(i, &word)| f(i, f32::from_bits(word)));
        }
        let mut next = 0;
        self.for_each_level(scratch, |i, level, is_negative, scale| {
            (next..i).for_each(|skipped| f(skipped, 0.0));
            f(i, value(level, is_negative, scale));
            next = i.saturating_add(1);
        });
        (next..self.len).for_each(|skipped| f(skipped, 0.0));
    }

    /// Norms, and one field a coordinate: level, and sign in bit 7. `None` if the first bucket is only a part
    /// of one, because other packings cannot express that.
    #[cfg(feature = "alloc")]
    pub(super) fn norms_and_fields(&self, scratch: &[u32]) -> Option<(Vec<[u8; 4]>, Vec<u8>)> {
        if let Packing::Context(coded, _) = self.packing {
            let (mut norms, mut fields) = (Vec::new(), Vec::with_capacity(self.len));
            let keep_norm = |norm: f32| {
                norms.push(norm.to_le_bytes());
                Ok(())
            };
            coded.decode(self.len, keep_norm, |field, ()| fields.push(field)).ok()?;
            return coded.has_whole_buckets(self.len).then_some((norms, fields));
        }
        let norms = self.norms.iter(self.split(scratch).0).map(f32::to_le_bytes).collect();
        let mut fields = vec![0; self.len];
        self.for_each_level(scratch, |i, level, is_negative, _| {
            if let Some(field) = fields.get_mut(i) {
                *field = level as u8 | u8::from(is_negative) << 7;
            }
        });
        Some((norms, fields))
    }

    /// Calls `f` with position, level, sign and the value of level 1 of every coordinate for which the
    /// packing holds a level: entropy coders hold none in buckets whose norm is zero. Not for levels under
    /// context.
    #[inline]
    fn for_each_level(&self, scratch: &[u32], mut f: impl FnMut(usize, u32, bool, f32)) {
        let levels = self.levels();
        let (norms, words) = self.split(scratch);
        match self.packing {
            Packing::Fixed(bytes) => {
                let mut bits = BitReader::new(bytes);
                for (i, scale) in self.coordinates(norms, Buckets::All) {
                    let field = bits.take(self.width()) as u32;
                    let mask = self.level_mask();
                    f(i, field & mask, field > mask, scale);
                }
            }
            Packing::Ternary(bytes, _) => {
                for (i, scale) in self.coordinates(norms, Buckets::All) {
                    let byte = bytes.get(i / TERNARY_PER_BYTE).copied().unwrap_or(0);
                    let digit = u32::from(byte) / 3u32.pow((i % TERNARY_PER_BYTE) as u32) % 3;
                    f(i, u32::from(digit > 0), digit == 2, scale);
                }
            }
            Packing::Elias(bytes, _) => {
                let mut bits = BitReader::new(bytes);
                for (i, scale) in self.coordinates(norms, Buckets::Coded) {
                    let (level, is_negative) = elias::take_level(&mut bits, levels);
                    f(i, level, is_negative, scale);
                }
            }
            Packing::Rans(coded, _) => {
                let mut coordinates = self.coordinates(norms, Buckets::Coded);
                coded.with_len(self.coded_len(norms)).for_each(self.alphabet(), words, |symbol| {
                    if let Some((i, scale)) = coordinates.next() {
                        let level = u32::from(symbol).div_ceil(2);
                        f(i, level, symbol & 1 == 0 && symbol > 0, scale);
                    }
                });
            }
            Packing::Context(..) => {}
        }
    }

    /// acc[i] += weight · value[i]; `acc` has one element a coordinate.
    fn add_levels(&self, scratch: &[u32], weight: f32, acc: &mut [f32]) {
        let (norms, _) = self.split(scratch);
        match self.packing {
            Packing::Fixed(bytes) if self.width() == 4 && self.has_whole_bytes(2) => {
                self.add_nibbles(bytes, norms, weight, acc);
            }
            // A small build unpacks fields of 8 bits like those of any other width.
            Packing::Fixed(bytes) if Full::build().is_some() && self.width() == 8 => {
                self.add_bytes(bytes, norms, weight, acc);
            }
            Packing::Fixed(bytes) => self.add_unpacked(norms, weight, acc, |isa, first, fields| {
                let bytes = bytes.get(first / 8 * self.width() as usize..).unwrap_or_default();
                kernels::unpack_fields(isa, self.width(), bytes, fields);
            }),
            Packing::Ternary(bytes, _) => self.add_unpacked(norms, weight, acc, |isa, first, fields| {
                let bytes = bytes.get(first / TERNARY_PER_BYTE..).unwrap_or_default();
                kernels::unpack_ternary(isa, bytes, fields);
            }),
            Packing::Rans(coded, _) => {
                let (coded, (_, words)) = (coded.with_len(self.coded_len(norms)), self.split(scratch));
                self.add_symbols(norms, weight, acc, |add| coded.for_each_chunk(self.alphabet(), words, add));
            }
            Packing::Elias(bytes, _) => self.add_symbols(norms, weight, acc, |add| {
                let (mut bits, mut symbols) = (BitReader::new(bytes), [0; UNPACKED]);
                let len = self.coded_len(norms);
                for first in (0..len).step_by(UNPACKED) {
                    let symbols = symbols.get_mut(..UNPACKED.min(len - first)).unwrap_or_default();
                    elias::take_symbols(&mut bits, self.levels(), symbols);
                    add(symbols);
                }
            }),
            Packing::Context(..) => self.for_each(scratch, |i, value| {
                if let Some(acc) = acc.get_mut(i) {
                    *acc += weight * value;
                }
            }),
        }
    }

    /// Whether no byte of `fields` fields lies in two buckets.
    fn has_whole_bytes(&self, fields: usize) -> bool {
        self.bucket.is_multiple_of(fields) || self.bucket >= self.len
    }

    /// The two parts of `scratch` that [`check`](Self::check) filled: norms, and the tables of symbols or the
    /// values.
    fn split<'w>(&self, scratch: &'w [u32]) -> (&'w [u32], &'w [u32]) {
        scratch.split_at_checked(self.norms.words()).unwrap_or_default()
    }

    /// The buckets of the accumulator, each with the value of level 1.
    fn buckets<'c>(
        &self,
        norms: &'c [u32],
        acc: &'c mut [f32],
    ) -> impl Iterator<Item = (&'c mut [f32], f32)> + use<'a, 'c> {
        let levels = self.levels() as f32;
        acc.chunks_mut(self.bucket).zip(self.norms.iter(norms).map(move |norm| norm / levels))
    }

    /// Adds levels of one byte each.
    fn add_bytes(&self, bytes: &[u8], norms: &[u32], weight: f32, acc: &mut [f32]) {
        let isa = Isa::best();
        for ((acc, scale), bytes) in self.buckets(norms, acc).zip(bytes.chunks(self.bucket)) {
            kernels::add_bytes(isa, bytes, scale, weight, acc);
        }
    }

    /// Adds the levels that `unpack(isa, first, fields)` writes as fields of one byte each, for the
    /// coordinates from `first` on. `first` always begins a whole byte of the packing.
    fn add_unpacked(
        &self,
        norms: &[u32],
        weight: f32,
        acc: &mut [f32],
        unpack: impl Fn(Isa, usize, &mut [u8]),
    ) {
        let isa = Isa::best();
        let mut buckets = self.buckets(norms, acc);
        let (mut rest, mut scale) = (Default::default(), 0.0);
        let mut fields = [0; UNPACKED];
        for first in (0..self.len).step_by(UNPACKED) {
            let mut fields = fields.get_mut(..UNPACKED.min(self.len - first)).unwrap_or_default();
            unpack(isa, first, fields);
            while !fields.is_empty() {
                let acc: &mut [f32] = core::mem::take(&mut rest);
                if acc.is_empty() {
                    let Some(bucket) = buckets.next() else { return };
                    (rest, scale) = bucket;
                    continue;
                }
                let len = fields.len().min(acc.len());
                let (now, later) = acc.split_at_mut(len);
                let (fields_now, fields_later) = fields.split_at_mut(len);
                kernels::add_bytes(isa, fields_now, scale, weight, now);
                (rest, fields) = (later, fields_later);
            }
        }
    }

    /// Adds levels packed two a byte. No byte lies in two buckets.
    fn add_nibbles(&self, bytes: &[u8], norms: &[u32], weight: f32, acc: &mut [f32]) {
        let isa = Isa::best();
        for ((acc, scale), bytes) in self.buckets(norms, acc).zip(bytes.chunks(self.bucket.div_ceil(2))) {
            let (pairs, single) = acc.as_chunks_mut();
            kernels::add_nibbles(isa, bytes, scale, weight, pairs);
            if let (Some(acc), Some(&field)) = (single.first_mut(), bytes.last()) {
                let (field, mask) = (u32::from(field), self.level_mask());
                *acc += weight * value(field & mask, field > mask, scale);
            }
        }
    }

    /// Adds coded levels. `decode` hands chunks of symbols to the function that it gets. Each chunk is cut
    /// where a bucket ends.
    fn add_symbols<'c>(
        &self,
        norms: &'c [u32],
        weight: f32,
        acc: &'c mut [f32],
        decode: impl FnOnce(&mut dyn FnMut(&[u8])),
    ) {
        let (isa, levels) = (Isa::best(), self.levels());
        let mut buckets =
            acc.chunks_mut(self.bucket).zip(self.norms.iter(norms)).filter(|(_, norm)| *norm != 0.0);
        let (mut acc, mut scale) = (Default::default(), 0.0);
        decode(&mut |mut symbols| {
            while !symbols.is_empty() {
                let rest: &mut [f32] = core::mem::take(&mut acc);
                if rest.is_empty() {
                    let Some((bucket, norm)) = buckets.next() else { return };
                    (acc, scale) = (bucket, norm / levels as f32);
                    continue;
                }
                let len = symbols.len().min(rest.len());
                let (now, later) = rest.split_at_mut(len);
                let (symbols_now, symbols_later) = symbols.split_at(len);
                kernels::add_symbols(isa, symbols_now, scale, weight, now);
                (acc, symbols) = (later, symbols_later);
            }
        });
    }

    /// Position and scale of every coordinate of the chosen buckets.
    fn coordinates<'w>(
        &self,
        norms: &'w [u32],
        which: Buckets,
    ) -> impl Iterator<Item = (usize, f32)> + use<'a, 'w> {
        let (len, bucket, levels) = (self.len, self.bucket, self.levels() as f32);
        let buckets = self.norms.iter(norms).enumerate();
        let buckets = buckets.filter(move |&(_, norm)| which == Buckets::All || norm != 0.0);
        buckets.flat_map(move |(i, norm)| {
            let first = i * bucket;
            let scale = norm / levels;
            (first..len.min(first.saturating_add(bucket))).map(move |coordinate| (coordinate, scale))
        })
    }

    /// Names and bytes of norms and levels, for inspection.
    fn coders(&self) -> [(&'static str, usize); 2] {
        let norms = match self.norms {
            Norms::Plain(_) => "norms",
            Norms::Planes { .. } => "norm-planes",
            Norms::Streamed(_) => "norms-in-stream",
        };
        let levels = match self.packing {
            Packing::Fixed(bytes) => ("fixed", bytes.len()),
            Packing::Ternary(bytes, _) => ("ternary", bytes.len()),
            Packing::Elias(bytes, _) => ("elias", bytes.len()),
            Packing::Rans(coded, _) if coded.tables() == 1 && self.norms.are_plain() => {
                ("rans", coded.section_bytes())
            }
            Packing::Rans(coded, _) => ("adaptive", coded.section_bytes()),
            Packing::Context(coded, _) => ("context", coded.bytes()),
        };
        [(norms, self.norms.bytes()), levels]
    }
}

/// Checks that a norm is finite, not negative and within the limit, and that its largest level is finite too.
fn check_norm(norm: f32, levels: u32, max_magnitude: f32) -> Result<(), DecodeError> {
    check_magnitude(norm, max_magnitude)?;
    let largest = norm / levels as f32 * levels as f32;
    if norm.is_sign_negative() || !largest.is_finite() {
        return Err(DecodeError::InvalidField(Field::Scale));
    }
    Ok(())
}

#[inline]
fn value(level: u32, is_negative: bool, scale: f32) -> f32 {
    let magnitude = scale * level as f32;
    if is_negative { -magnitude } else { magnitude }
}
