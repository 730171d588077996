//! Value coders: the values of the entries of a sparse unit, exact or in few bits.
//!
//! Every coder is total and conserving: for each entry it either gives a decoded value `d`, not zero, whose error
//! `p − d` is exactly a float, or it leaves the entry out. What is left out stays in the residual whole; so what is
//! sent and what is kept add up to what was there, bit for bit, for every coder and input.

pub(crate) mod codebook;
pub(crate) mod narrow;

use crate::built::Full;
use crate::entropy::section::{CodedSymbols, SLOT_WORDS};
use crate::error::{DecodeError, Field};
use crate::kernels::{self, Isa};
use crate::wire::reader::Reader;
use crate::wire::writer::Writer;
use codebook::Codebook;
use half::{bf16, f16};

/// How the values of a sparse unit are sent: the key `values=` of a spelling.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ValueChoice {
    /// As they are.
    #[default]
    F32,
    /// IEEE half precision, nearest even. Magnitudes that round above 65504 are an error.
    F16,
    /// bfloat16, nearest even.
    Bf16,
    /// A sign and one of up to 128 magnitudes fitted to the unit.
    Q8,
    /// A sign and one of up to 8 magnitudes fitted to the unit.
    Q4,
    /// A sign and one of up to 2 magnitudes fitted to the unit.
    Q2,
}

impl ValueChoice {
    /// Magnitudes of the largest codebook as a power of two; `None` where values have a fixed format.
    fn codebook_log2(self) -> Option<u32> {
        match self {
            Self::Q8 => Some(7),
            Self::Q4 => Some(3),
            Self::Q2 => Some(1),
            Self::F32 | Self::F16 | Self::Bf16 => None,
        }
    }

    /// The number of this choice in the `coding` byte.
    pub(crate) fn format(self) -> ValueFormat {
        match self {
            Self::F32 => ValueFormat::F32,
            Self::F16 => ValueFormat::F16,
            Self::Bf16 => ValueFormat::Bf16,
            Self::Q8 | Self::Q4 | Self::Q2 => ValueFormat::Codebook,
        }
    }

    /// Largest number of bytes that the values of `k` entries can take.
    pub(crate) fn max_section_bytes(self, k: usize) -> Option<usize> {
        match self.codebook_log2() {
            None => k.checked_mul(self.format().fixed_bytes().unwrap_or(4)),
            Some(log2) => codebook::max_section_bytes(log2, k),
        }
    }

    /// Largest number of bytes of a section with a single entry.
    pub(crate) fn max_entry_bytes(self) -> usize {
        self.format().fixed_bytes().unwrap_or(codebook::ENTRY_BYTES)
    }

    /// Words of scratch memory, beside those of the entries, that [`prepare`](Self::prepare) needs.
    pub(crate) fn fit_words(self) -> usize {
        if self.codebook_log2().is_some() { codebook::FIT_WORDS } else { 0 }
    }

    /// Values must stay below this magnitude.
    pub(crate) fn overflow_bound(self) -> f32 {
        narrow::overflow_bound(self.format())
    }

    /// Fits the coder to the entries, decides what each decodes to, and drops those that cannot be sent without loss
    /// of conservation: the first [`Prepared::kept`] elements of every slice are then the entries that are sent.
    pub(crate) fn prepare(self, entries: &mut Entries<'_>) -> Prepared {
        // Where this build has no codebooks, a codec that needs one was refused.
        match self.codebook_log2().zip(Full::build()) {
            None => Prepared { kept: narrow::prepare(self.format(), entries), book: None },
            Some((log2, full)) => {
                let (kept, book) = codebook::prepare(full, log2, entries);
                Prepared { kept, book: Some(book) }
            }
        }
    }
}

/// The entries of a unit on their way to the wire. All slices have one element an entry.
#[derive(Debug)]
pub(crate) struct Entries<'a> {
    /// Positions in the unit, ascending.
    pub(crate) indices: &'a mut [u32],
    /// Bits of the values.
    pub(crate) values: &'a mut [u32],
    /// Bits of what each value decodes to.
    pub(crate) decoded: &'a mut [u32],
    /// One symbol an entry; empty for values in a fixed format.
    pub(crate) symbols: &'a mut [u8],
    /// At least [`ValueChoice::fit_words`] elements; free once the values are [prepared](ValueChoice::prepare).
    pub(crate) fit: &'a mut [u32],
}

/// What [`ValueChoice::prepare`] decided.
#[derive(Debug)]
pub(crate) struct Prepared {
    kept: usize,
    book: Option<Codebook>,
}

impl Prepared {
    /// Entries that are sent.
    pub(crate) fn kept(&self) -> usize {
        self.kept
    }

    /// Writes the values of the kept entries.
    pub(crate) fn write(&self, format: ValueFormat, entries: &mut Entries<'_>, writer: &mut Writer<'_>) {
        let (decoded, symbols) = (&entries.decoded[..self.kept], &mut *entries.symbols);
        let kept = self.kept.min(symbols.len());
        let fits = self.write_part(format, decoded, &mut symbols[..kept], usize::MAX, writer);
        debug_assert!(fits, "there is room for every section");
    }

    /// Writes the values of some of the kept entries, if they take no more than `room` bytes.
    pub(crate) fn write_part(
        &self,
        format: ValueFormat,
        decoded: &[u32],
        symbols: &mut [u8],
        room: usize,
        writer: &mut Writer<'_>,
    ) -> bool {
        if let Some(book) = &self.book {
            return book.write(symbols, room, writer);
        }
        let bytes = decoded.len().saturating_mul(format.fixed_bytes().unwrap_or(4));
        if bytes <= room {
            narrow::put_all(Isa::best(), format, decoded, writer);
        }
        bytes <= room
    }
}

/// The value coders as the wire numbers them. Number 4 and above are set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ValueFormat {
    F32 = 0,
    F16 = 1,
    Bf16 = 2,
    Codebook = 3,
}

impl ValueFormat {
    pub(crate) fn from_wire(format: u8) -> Result<Self, DecodeError> {
        Ok(match format {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Bf16,
            3 => Self::Codebook,
            _ => return Err(DecodeError::InvalidField(Field::Coding)),
        })
    }

    /// Name as in a codec spelling, where it has one.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Codebook => "codebook",
        }
    }

    /// Bytes of one value, where that does not depend on the frame.
    pub(crate) fn fixed_bytes(self) -> Option<usize> {
        match self {
            Self::F32 => Some(4),
            Self::F16 | Self::Bf16 => Some(2),
            Self::Codebook => None,
        }
    }
}

/// The value section of a sparse, seeded or dense unit. Before [`check`](Self::check) its structure is known and
/// nothing else; after it, decoding cannot fail.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Values<'a> {
    F32(&'a [u8]),
    F16(&'a [u8], Full),
    Bf16(&'a [u8]),
    Codebook(codebook::CodebookView<'a>),
}

impl<'a> Values<'a> {
    /// Takes the section of `k` values off the reader.
    pub(crate) fn fields(
        format: ValueFormat,
        k: usize,
        reader: &mut Reader<'a>,
    ) -> Result<Self, DecodeError> {
        let entries = DecodeError::InvalidField(Field::Entries);
        let mut fixed = |bytes: usize| reader.take(k.checked_mul(bytes).ok_or(entries)?);
        Ok(match format {
            ValueFormat::F32 => Self::F32(fixed(4)?),
            ValueFormat::F16 => Self::F16(fixed(2)?, Full::required()?),
            ValueFormat::Bf16 => Self::Bf16(fixed(2)?),
            ValueFormat::Codebook => Self::Codebook(codebook::CodebookView::fields(k, reader)?),
        })
    }

    /// Words of scratch memory that decoding needs.
    pub(crate) fn scratch_words(&self) -> usize {
        match self {
            Self::Codebook(view) if view.is_entropy_coded() => SLOT_WORDS,
            _ => 0,
        }
    }

    /// All checks: every value finite and within `max_magnitude`, tables valid. Fills `slots`, which has
    /// [`scratch_words`](Self::scratch_words) words.
    pub(crate) fn check(&self, max_magnitude: f32, slots: &mut [u32]) -> Result<(), DecodeError> {
        match *self {
            Self::F32(bytes) => check_f32(bytes, max_magnitude),
            Self::F16(bytes, _) => check_narrow(bytes, |bits| f16::from_bits(bits).to_f32(), max_magnitude),
            Self::Bf16(bytes) => check_narrow(bytes, |bits| bf16::from_bits(bits).to_f32(), max_magnitude),
            Self::Codebook(view) => view.check(max_magnitude, slots),
        }
    }

    /// Calls `f` with each value in order. `slots` is what [`check`](Self::check) filled.
    #[inline]
    pub(crate) fn for_each(&self, slots: &[u32], f: impl FnMut(f32)) {
        match *self {
            Self::F32(bytes) => f32_values(bytes).for_each(f),
            Self::F16(bytes, _) => f16_values(bytes).for_each(f),
            Self::Bf16(bytes) => bf16_values(bytes).for_each(f),
            Self::Codebook(view) => view.for_each(slots, f),
        }
    }

    /// acc[i] += weight · value[i], for as many values as `acc` has elements.
    pub(crate) fn add_scaled_to(&self, slots: &[u32], weight: f32, acc: &mut [f32]) {
        let isa = Isa::best();
        match *self {
            Self::F32(bytes) => kernels::add_f32(isa, bytes.as_chunks().0, weight, acc),
            Self::F16(bytes, _) => kernels::add_f16(isa, bytes.as_chunks().0, weight, acc),
            Self::Bf16(bytes) => kernels::add_bf16(isa, bytes.as_chunks().0, weight, acc),
            Self::Codebook(view) => {
                let mut acc = acc.iter_mut();
                view.for_each(slots, |value| {
                    if let Some(acc) = acc.next() {
                        *acc += weight * value;
                    }
                });
            }
        }
    }

    /// Bytes of the section.
    pub(crate) fn section_bytes(&self) -> usize {
        match self {
            Self::F32(bytes) | Self::F16(bytes, _) | Self::Bf16(bytes) => bytes.len(),
            Self::Codebook(view) => view.section_bytes(),
        }
    }

    pub(crate) fn format(&self) -> ValueFormat {
        match self {
            Self::F32(_) => ValueFormat::F32,
            Self::F16(..) => ValueFormat::F16,
            Self::Bf16(_) => ValueFormat::Bf16,
            Self::Codebook(_) => ValueFormat::Codebook,
        }
    }

    /// The format's name.
    pub(crate) fn name(&self) -> &'static str {
        self.format().name()
    }
}

pub(crate) fn f32_values(bytes: &[u8]) -> impl ExactSizeIterator<Item = f32> + Clone + '_ {
    bytes.as_chunks::<4>().0.iter().map(|&chunk| f32::from_le_bytes(chunk))
}

fn f16_values(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.as_chunks::<2>().0.iter().map(|&chunk| f16::from_le_bytes(chunk).to_f32())
}

fn bf16_values(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.as_chunks::<2>().0.iter().map(|&chunk| bf16::from_le_bytes(chunk).to_f32())
}

/// One integer maximum says whether there is anything to find: magnitude bits order like magnitudes, infinities and NaN
/// above all.
fn check_f32(bytes: &[u8], max_magnitude: f32) -> Result<(), DecodeError> {
    let max = kernels::max_magnitude_bytes(Isa::best(), bytes.as_chunks().0);
    if f32::from_bits(max) <= max_magnitude && f32::from_bits(max).is_finite() {
        return Ok(());
    }
    check_magnitudes(f32_values(bytes), max_magnitude)
}

/// As [`check_f32`], for two formats whose magnitude bits order in the same way.
fn check_narrow(bytes: &[u8], widen: impl Fn(u16) -> f32, max_magnitude: f32) -> Result<(), DecodeError> {
    let max = kernels::max_magnitude_narrow(Isa::best(), bytes.as_chunks().0);
    check_magnitude(widen(max), max_magnitude)
}

/// Finite first, then within the caller's limit, so that the two errors are told apart.
pub(crate) fn check_magnitudes(
    mut values: impl Iterator<Item = f32>,
    max_magnitude: f32,
) -> Result<(), DecodeError> {
    values.try_for_each(|value| check_magnitude(value, max_magnitude))
}

pub(crate) fn check_magnitude(value: f32, max_magnitude: f32) -> Result<(), DecodeError> {
    if !value.is_finite() {
        Err(DecodeError::NonFiniteValue)
    } else if value.abs() > max_magnitude {
        Err(DecodeError::LimitExceeded(crate::error::Limit::Magnitude))
    } else {
        Ok(())
    }
}

/// Whether `p − d` is exactly a float, so that adding `d` back to it restores `p` bit for bit.
///
/// # Source
/// The error term of Knuth's TwoSum (The Art of Computer Programming, volume 2, section 4.2.2, theorem B).
pub(crate) fn difference_is_exact(p: f32, d: f32) -> bool {
    let difference = p - d;
    let d_seen = p - difference;
    let p_seen = difference + d_seen;
    (p - p_seen) + (d_seen - d) == 0.0
}

use crate::entropy::section::write_symbols;
pub(crate) type Coded<'a> = CodedSymbols<'a>;
