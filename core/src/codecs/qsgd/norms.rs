//! The norms of the buckets on the wire: as they are, or with their exponents coded. Coded, a norm of 0 takes
//! next to nothing, and the others take less.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

use crate::bits::{BitReader, BitWriter, check_padding};
use crate::built::Full;
use crate::coding::entropy::section::{self, CodedSymbols, SLOT_WORDS};
use crate::error::{DecodeError, Field};
use crate::wire::reader::Reader;
use crate::wire::writer::{MAX_VARINT_BYTES, Writer};

/// Codings as the `norm` byte numbers them.
pub(super) const CODING_F32: u8 = 0;
pub(super) const CODING_PLANES: u8 = 1;
pub(super) const CODING_STREAM: u8 = 2;

/// Bits of an f32 below its exponent.
pub(super) const MANTISSA_BITS: u32 = f32::MANTISSA_DIGITS - 1;

/// Exponents of finite values; the exponent of infinity cannot be written.
const EXPONENTS: usize = 255;

/// Largest coding of `buckets` norms in planes.
pub(super) fn max_planes_bytes(buckets: usize) -> Option<usize> {
    let mantissas = buckets.checked_mul(3)?.checked_add(MAX_VARINT_BYTES)?;
    section::max_section_bytes(buckets, EXPONENTS)?.checked_add(mantissas)
}

/// Writes norms in planes, if that takes fewer than `limit` bytes. Otherwise returns false, and the bytes
/// written are unspecified. `exponents` has room for one a norm. No norm is subnormal or negative.
pub(super) fn write_planes(
    norms: &[[u8; 4]],
    exponents: &mut [u8],
    limit: usize,
    writer: &mut Writer<'_>,
) -> bool {
    let bits = |norm: &[u8; 4]| u32::from_le_bytes(*norm);
    exponents
        .iter_mut()
        .zip(norms)
        .for_each(|(exponent, norm)| *exponent = (bits(norm) >> MANTISSA_BITS) as u8);
    if !section::write_symbols(exponents, EXPONENTS, limit, writer) {
        return false;
    }
    let set = || norms.iter().map(bits).filter(|bits| *bits != 0);
    let count = set().count();
    writer.varint(count as u64);
    let bytes = (count as u64 * u64::from(MANTISSA_BITS)).div_ceil(8) as usize;
    if writer.spare().len() < bytes {
        return false;
    }
    let mut mantissas = BitWriter::new(writer.reserve(bytes));
    set().for_each(|bits| mantissas.put(u64::from(bits % (1 << MANTISSA_BITS)), MANTISSA_BITS));
    mantissas.finish().is_some()
}

/// The norms of a unit as received.
#[derive(Clone, Copy, Debug)]
pub(super) enum Norms<'a> {
    Plain(&'a [[u8; 4]]),
    Planes {
        #[expect(dead_code, reason = "a proof, not a value")]
        full: Full,
        buckets: usize,
        exponents: CodedSymbols<'a>,
        /// Norms that are not 0.
        set: usize,
        mantissas: &'a [u8],
    },
    /// In the stream of the levels.
    Streamed(Full),
}

impl<'a> Norms<'a> {
    /// Takes the norms of `buckets` buckets off the reader.
    pub(super) fn fields(coding: u8, buckets: usize, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let invalid = DecodeError::InvalidField;
        match coding {
            CODING_F32 => {
                let bytes = buckets.checked_mul(4).ok_or(invalid(Field::Bucket))?;
                Ok(Self::Plain(reader.take(bytes)?.as_chunks().0))
            }
            CODING_PLANES => {
                let full = Full::required()?;
                let exponents = CodedSymbols::fields(buckets, reader)?;
                let set = reader.varint_usize()?;
                if set > buckets {
                    return Err(invalid(Field::Norm));
                }
                let bits = set.checked_mul(MANTISSA_BITS as usize).ok_or(invalid(Field::Norm))?;
                Ok(Self::Planes { full, buckets, exponents, set, mantissas: reader.take(bits.div_ceil(8))? })
            }
            CODING_STREAM => Ok(Self::Streamed(Full::required()?)),
            _ => Err(invalid(Field::Norm)),
        }
    }

    /// Number of norms that are stored outside the levels.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Plain(norms) => norms.len(),
            Self::Planes { buckets, .. } => *buckets,
            Self::Streamed(_) => 0,
        }
    }

    /// Whether they are uncoded.
    pub(super) fn are_plain(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// Bytes on the wire, except those of lengths.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Plain(norms) => norms.as_flattened().len(),
            Self::Planes { exponents, mantissas, .. } => exponents.section_bytes() + mantissas.len(),
            Self::Streamed(_) => 0,
        }
    }

    /// Words that [`check`](Self::check) decodes norms into: one per norm, or none if the norms need no
    /// decoding.
    pub(super) fn words(&self) -> usize {
        match self {
            Self::Plain(_) => 0,
            Self::Planes { buckets, .. } => *buckets,
            Self::Streamed(_) => 0,
        }
    }

    /// Words of slots that only [`check`](Self::check) needs.
    pub(super) fn slot_words(&self) -> usize {
        match self {
            Self::Plain(_) => 0,
            Self::Planes { .. } => SLOT_WORDS,
            Self::Streamed(_) => 0,
        }
    }

    /// Decodes the norms into `words`, of [`words`](Self::words).
    pub(super) fn check(&self, words: &mut [u32], slots: &mut [u32]) -> Result<(), DecodeError> {
        let Self::Planes { exponents, set, mantissas, .. } = self else { return Ok(()) };
        exponents.check(EXPONENTS, slots)?;
        let mut bits = BitReader::new(mantissas);
        let (mut words, mut found) = (words.iter_mut(), 0);
        exponents.for_each(EXPONENTS, slots, |exponent| {
            let Some(word) = words.next() else { return };
            *word = u32::from(exponent) << MANTISSA_BITS;
            if exponent > 0 {
                *word |= bits.take(MANTISSA_BITS) as u32;
                found += 1;
            }
        });
        if found != *set {
            return Err(DecodeError::InvalidField(Field::Norm));
        }
        check_padding(mantissas, bits.position())
    }

    /// The norms in order; `words` is what [`check`](Self::check) filled.
    pub(super) fn iter<'w>(&self, words: &'w [u32]) -> impl Iterator<Item = f32> + use<'a, 'w> {
        let norms = *self;
        (0..norms.len()).map(move |i| match norms {
            Self::Plain(norms) => norms.get(i).map_or(0.0, |bytes| f32::from_le_bytes(*bytes)),
            Self::Planes { .. } | Self::Streamed(_) => words.get(i).map_or(0.0, |bits| f32::from_bits(*bits)),
        })
    }
}
