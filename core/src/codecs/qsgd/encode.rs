//! From values to the body of a levels unit.

use super::norms::{self, CODING_F32, CODING_PLANES};
use super::pack::{self, COUNTED_BITS, PACKING_ELIAS, PACKING_RANS};
use super::quantize::{PIECE, Quantizer, Values};
use super::{EntropyChoice, Qsgd};
use crate::built::Full;
use crate::codec::UnitInput;
use crate::coding::entropy::section::{self, ClassRoom};
use crate::error::EncodeError;
use crate::rng::Stream;
use crate::scratch::ScratchLen;
use crate::wire::writer::{MAX_VARINT_BYTES, Writer, varint_len};

/// `bits` in the low nibble, `packing` in the high one.
pub(super) fn form_byte(qsgd: &Qsgd, packing: u8) -> u8 {
    let bits = if qsgd.bits.counted().is_some() { COUNTED_BITS } else { qsgd.bits.built().width() as u8 };
    bits | packing << 4
}

/// Writes the fields in front of the norms: the form, the norm and its coding, the number of levels if the
/// form does not state it, and the size of a bucket.
pub(super) fn write_head(qsgd: &Qsgd, packing: u8, coding: u8, writer: &mut Writer<'_>) {
    writer.u8(form_byte(qsgd, packing));
    writer.u8(norm_byte(qsgd, coding));
    if let Some(levels) = Full::build().and_then(|_| qsgd.bits.counted()) {
        writer.u8(levels);
    }
    writer.varint(u64::from(qsgd.bucket.get()));
}

/// Bytes of [`write_head`].
pub(super) fn head_bytes(qsgd: &Qsgd) -> usize {
    2 + usize::from(qsgd.bits.counted().is_some()) + varint_len(u64::from(qsgd.bucket.get()))
}

/// `norm` in the low nibble, its coding in the high one.
fn norm_byte(qsgd: &Qsgd, coding: u8) -> u8 {
    qsgd.norm as u8 | coding << 4
}

pub(super) fn max_body_bytes(qsgd: &Qsgd, len: usize) -> Option<usize> {
    let buckets = len.div_ceil(qsgd.bucket.get() as usize);
    let alphabet = qsgd.alphabet();
    let levels = match qsgd.entropy {
        EntropyChoice::Fixed | EntropyChoice::Auto => pack::fixed_bytes(qsgd.bits, len)?,
        _ if Full::build().is_none() => return None,
        EntropyChoice::Elias => {
            len.checked_mul(pack::max_elias_bits(qsgd.bits.built().levels()) as usize)?.div_ceil(8)
        }
        EntropyChoice::Rans => section::max_section_bytes(len, alphabet)?,
        EntropyChoice::Adaptive => section::max_classed_section_bytes(len, alphabet)?
            .checked_add(norms::max_planes_bytes(buckets)?)?,
    };
    // The form, the norm, the number of levels, the bucket size, and the length of the levels.
    buckets.checked_mul(4)?.checked_add(levels)?.checked_add(3 + 3 * MAX_VARINT_BYTES)
}

/// The working memory of a body, in words and in bytes.
struct Needs {
    /// Words for p and bytes for fields of one piece.
    piece: usize,
    /// Bytes for one symbol a coordinate, if levels are coded.
    symbols: usize,
    /// Bytes for one exponent a bucket, if norms may be coded.
    exponents: usize,
    /// Words and bytes for choosing classes.
    classes: ScratchLen,
    /// Bytes for a second packing, if packings are compared.
    trial: usize,
}

impl Needs {
    fn of(qsgd: &Qsgd, len: usize) -> Needs {
        let buckets = len.div_ceil(qsgd.bucket.get() as usize);
        let may_adapt = matches!(qsgd.entropy, EntropyChoice::Adaptive | EntropyChoice::Auto);
        let plain =
            pack::fixed_bytes(qsgd.bits, len).unwrap_or(usize::MAX).saturating_add(buckets.saturating_mul(4));
        Needs {
            piece: len.min(PIECE),
            symbols: if qsgd.entropy == EntropyChoice::Fixed { 0 } else { len },
            exponents: if may_adapt { buckets } else { 0 },
            classes: if may_adapt { ClassRoom::scratch_len(len) } else { ScratchLen::default() },
            trial: if qsgd.entropy == EntropyChoice::Auto { plain.saturating_add(section::SLACK) } else { 0 },
        }
    }
}

pub(super) fn scratch_len(qsgd: &Qsgd, len: usize) -> ScratchLen {
    let Needs { piece, symbols, exponents, classes, trial } = Needs::of(qsgd, len);
    let bytes = [symbols, exponents, classes.bytes, trial].into_iter().fold(piece, usize::saturating_add);
    ScratchLen { words: piece.saturating_add(classes.words), bytes }
}

/// One body while it is written.
pub(super) struct Body<'b> {
    qsgd: &'b Qsgd,
    len: usize,
    quantizer: Quantizer<'b>,
    exponents: &'b mut [u8],
    classes: ClassRoom<'b>,
    /// Room for a second packing to compare with.
    trial: &'b mut [u8],
}

impl<'b> Body<'b> {
    /// The body of a unit of `len` elements, in scratch memory of [`scratch_len`].
    pub(super) fn new(
        qsgd: &'b Qsgd,
        stream: Option<Stream>,
        len: usize,
        words: &'b mut [u32],
        bytes: &'b mut [u8],
    ) -> Self {
        let needs = Needs::of(qsgd, len);
        let (fields, bytes) = bytes.split_at_mut(needs.piece);
        let (symbols, bytes) = bytes.split_at_mut(needs.symbols);
        let (exponents, bytes) = bytes.split_at_mut(needs.exponents);
        let (classes, bytes) = bytes.split_at_mut(needs.classes.bytes);
        let (words, class_words) = words.split_at_mut(needs.piece);
        let classes = ClassRoom::new(len, &mut class_words[..needs.classes.words], classes);
        let trial = &mut bytes[..needs.trial];
        let quantizer = Quantizer::new(qsgd, stream, words, fields, symbols);
        Self { qsgd, len, quantizer, exponents, classes, trial }
    }

    /// Writes norms and levels.
    pub(super) fn write(
        self,
        mut input: UnitInput<'_, '_>,
        writer: &mut Writer<'_>,
    ) -> Result<(), EncodeError> {
        self.write_filled(writer, |quantizer, norms, fixed| {
            #[cfg(feature = "parallel")]
            let quantized = quantizer.quantize_in_parts(input.threads, Values::of(&mut input), norms, fixed);
            #[cfg(not(feature = "parallel"))]
            let quantized = quantizer.quantize(Values::of(&mut input), norms, fixed);
            quantized
        })
    }

    /// Like [`write`](Self::write), but `fill` makes the norms and levels. It fills the norms, the fixed
    /// packing if its room is not empty, and the symbols of the quantizer if they are wanted.
    pub(super) fn write_filled(
        mut self,
        writer: &mut Writer<'_>,
        fill: impl FnOnce(&mut Quantizer<'b>, &mut [[u8; 4]], &mut [u8]) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let (qsgd, len) = (self.qsgd, self.len);
        let form_at = writer.len();
        write_head(qsgd, pack::fixed_packing(qsgd.bits), CODING_F32, writer);
        let norm_bytes = len.div_ceil(qsgd.bucket.get() as usize) * 4;
        let fixed_bytes = match qsgd.entropy {
            EntropyChoice::Fixed | EntropyChoice::Auto => pack::fixed_bytes(qsgd.bits, len).unwrap_or(0),
            _ => 0,
        };
        let (norms, fixed) = writer.reserve(norm_bytes + fixed_bytes).split_at_mut(norm_bytes);
        fill(&mut self.quantizer, norms.as_chunks_mut().0, fixed)?;
        if let Some((packing, coding)) = self.code(norm_bytes, fixed_bytes, writer) {
            writer.patch(form_at, form_byte(qsgd, packing));
            writer.patch(form_at + 1, norm_byte(qsgd, coding));
        }
        Ok(())
    }

    /// Codes the symbols as the entropy choice says. Under `auto` the result replaces the norms and the fixed
    /// packing, which were written last, only if it is smaller. Returns packing and coding of the norms if
    /// they changed.
    fn code(self, norms: usize, fixed: usize, writer: &mut Writer<'_>) -> Option<(u8, u8)> {
        let alphabet = self.qsgd.alphabet();
        let levels = Levels {
            symbols: self.quantizer.into_symbols(),
            alphabet,
            exponents: self.exponents,
            classes: self.classes,
        };
        match self.qsgd.entropy {
            EntropyChoice::Fixed => None,
            // A small build has refused every other choice.
            _ if Full::build().is_none() => None,
            EntropyChoice::Elias => {
                pack::elias(levels.symbols, writer);
                Some((PACKING_ELIAS, CODING_F32))
            }
            EntropyChoice::Rans => {
                let fits = section::write_symbols(levels.symbols, alphabet, usize::MAX, writer);
                debug_assert!(fits, "a section has room for the largest");
                Some((PACKING_RANS, CODING_F32))
            }
            EntropyChoice::Adaptive => {
                let (plain, spare) = writer.last_and_spare(norms);
                let mut adaptive = Writer::new(spare);
                let fits = levels.write_adaptive(plain.as_chunks().0, usize::MAX, &mut adaptive);
                debug_assert!(fits, "a section has room for the largest");
                let bytes = adaptive.len();
                writer.keep_spare(norms, bytes);
                Some((PACKING_RANS, CODING_PLANES))
            }
            EntropyChoice::Auto => levels.choose(norms, fixed, self.trial, writer),
        }
    }
}

/// Levels about to be coded.
struct Levels<'b> {
    symbols: &'b [u8],
    alphabet: usize,
    exponents: &'b mut [u8],
    classes: ClassRoom<'b>,
}

impl Levels<'_> {
    /// Replaces the fixed packing, which follows the norms at the end of the written bytes, by rANS or
    /// adaptive rANS if that is smaller. Of equal sizes the first wins, in the order fixed, rANS, adaptive.
    fn choose(
        self,
        norms: usize,
        fixed: usize,
        trial: &mut [u8],
        writer: &mut Writer<'_>,
    ) -> Option<(u8, u8)> {
        let mut best = (fixed, None);
        let mut rans = Writer::new(trial);
        if section::write_symbols(self.symbols, self.alphabet, fixed, &mut rans) {
            writer.rewind(fixed);
            writer.bytes(rans.written());
            best = (rans.len(), Some((PACKING_RANS, CODING_F32)));
        }
        let written = norms + best.0;
        let (plain, _) = writer.last_and_spare(written);
        let mut adaptive = Writer::new(trial);
        if self.write_adaptive(plain[..norms].as_chunks().0, written, &mut adaptive) {
            writer.rewind(written);
            writer.bytes(adaptive.written());
            best.1 = Some((PACKING_RANS, CODING_PLANES));
        }
        best.1
    }

    /// Writes norms in planes and levels with classes, if that takes fewer than `limit` bytes. Otherwise
    /// returns false, and the bytes written are unspecified.
    fn write_adaptive(self, norms: &[[u8; 4]], limit: usize, writer: &mut Writer<'_>) -> bool {
        if !norms::write_planes(norms, self.exponents, limit, writer) || writer.len() >= limit {
            return false;
        }
        let left = limit - writer.len();
        section::write_classed_symbols(self.symbols, self.alphabet, self.classes, left, writer)
    }
}
