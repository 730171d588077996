//! From values to the body of a levels unit.

use super::norms::{self, CODING_F32, CODING_PLANES};
use super::pack::{self, PACKING_ELIAS, PACKING_RANS};
use super::{EntropyChoice, Norm, Qsgd};
use crate::built::Full;
use crate::entropy::section::{self, ClassRoom};
use crate::error::EncodeError;
use crate::gather::{EncodeUnit, UnitInput};
use crate::kernels::scalar::total_of;
use crate::kernels::{self, Bucket, Isa};
use crate::rng::Stream;
use crate::scratch::ScratchLen;
use crate::source::Source;
use crate::wire::writer::{MAX_VARINT_BYTES, Writer};
use core::ops::Range;

/// 2¹¹¹: the Euclidean norm of 2³² values below it stays below 2¹²⁷.
pub(super) const L2_BOUND: f32 = f32::from_bits((127 + 111) << 23);
/// 2¹²⁶: the largest level times the scale stays below 2¹²⁷.
pub(super) const MAX_BOUND: f32 = f32::from_bits((127 + 126) << 23);
/// 2⁻¹⁰⁰: below it levels / norm could overflow. Such a bucket is sent as zeros.
pub(crate) const LEAST_NORM: f32 = f32::from_bits((127 - 100) << 23);

/// Coordinates that are quantised together: whole bytes in every packing, whole blocks of draws, whole buckets of the usual
/// sizes, and little enough for the first cache level.
const PIECE: usize = 2560;

/// `bits` in the low nibble, `packing` in the high one.
pub(super) fn form_byte(qsgd: &Qsgd, packing: u8) -> u8 {
    qsgd.bits.field_bits() as u8 | packing << 4
}

/// `norm` in the low nibble, its coding in the high one.
pub(super) fn norm_byte(qsgd: &Qsgd, coding: u8) -> u8 {
    qsgd.norm as u8 | coding << 4
}

pub(super) fn max_body_bytes(qsgd: &Qsgd, len: usize) -> Option<usize> {
    let buckets = len.div_ceil(qsgd.bucket.get() as usize);
    let alphabet = qsgd.alphabet();
    let levels = match qsgd.entropy {
        EntropyChoice::Fixed | EntropyChoice::Auto => pack::fixed_bytes(qsgd.bits, len)?,
        _ if Full::build().is_none() => return None,
        EntropyChoice::Elias => {
            len.checked_mul(pack::max_elias_bits(qsgd.bits.levels()) as usize)?.div_ceil(8)
        }
        EntropyChoice::Rans => section::max_section_bytes(len, alphabet)?,
        EntropyChoice::Adaptive => section::max_classed_section_bytes(len, alphabet)?
            .checked_add(norms::max_planes_bytes(buckets)?)?,
    };
    // The form, the norm, the bucket size, and the length of the levels.
    buckets.checked_mul(4)?.checked_add(levels)?.checked_add(2 + 3 * MAX_VARINT_BYTES)
}

/// What a body needs beside the caller's buffers, in words and in bytes.
struct Needs {
    /// Words for p and bytes for fields of one piece.
    piece: usize,
    /// Bytes for one symbol a coordinate, where levels are coded.
    symbols: usize,
    /// Bytes for one exponent a bucket, where norms may be coded.
    exponents: usize,
    /// Words and bytes for choosing classes.
    classes: ScratchLen,
    /// Bytes for another packing, where packings are compared.
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
    isa: Isa,
    /// Draws of stochastic rounding; none for nearest.
    stream: Option<Stream>,
    /// Bits of p of one piece.
    words: &'b mut [u32],
    /// Fields of one piece, one a coordinate: level, and sign in bit 7.
    fields: &'b mut [u8],
    /// Room for one symbol a coordinate.
    symbols: &'b mut [u8],
    exponents: &'b mut [u8],
    classes: ClassRoom<'b>,
    /// Room for another packing.
    trial: &'b mut [u8],
    /// Symbols so far: those of all buckets whose norm is not zero.
    coded: usize,
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
        Self { qsgd, isa: Isa::best(), stream, words, fields, symbols, exponents, classes, trial, coded: 0 }
    }

    /// Writes norms and levels.
    pub(super) fn write(
        mut self,
        mut input: UnitInput<'_, '_>,
        writer: &mut Writer<'_>,
    ) -> Result<(), EncodeError> {
        let (qsgd, len) = (self.qsgd, input.unit.len);
        let form_at = writer.len();
        writer.u8(form_byte(qsgd, pack::fixed_packing(qsgd.bits)));
        writer.u8(norm_byte(qsgd, CODING_F32));
        writer.varint(u64::from(qsgd.bucket.get()));
        let norm_bytes = len.div_ceil(self.bucket_size()) * 4;
        let fixed_bytes = match qsgd.entropy {
            EntropyChoice::Fixed | EntropyChoice::Auto => pack::fixed_bytes(qsgd.bits, len).unwrap_or(0),
            _ => 0,
        };
        let (norms, fixed) = writer.reserve(norm_bytes + fixed_bytes).split_at_mut(norm_bytes);
        self.quantize(&mut input, norms.as_chunks_mut().0, fixed)?;
        if let Some((packing, coding)) = self.code(norm_bytes, fixed_bytes, writer) {
            writer.patch(form_at, form_byte(qsgd, packing));
            writer.patch(form_at + 1, norm_byte(qsgd, coding));
        }
        Ok(())
    }

    fn bucket_size(&self) -> usize {
        self.qsgd.bucket.get() as usize
    }

    /// Norms and levels, piece by piece, while it is in the cache. With a memory all norms come first, because an error
    /// must leave the memory as it was.
    fn quantize(
        &mut self,
        input: &mut UnitInput<'_, '_>,
        norms: &mut [[u8; 4]],
        fixed: &mut [u8],
    ) -> Result<(), EncodeError> {
        let len = input.unit.len;
        let mut known = 0;
        for first in (0..len).step_by(PIECE) {
            let piece = first..len.min(first + PIECE);
            let norms_first = if input.memory.is_some() { len } else { piece.end };
            known = self.find_norms(input, known, norms_first, norms)?;
            self.quantize_piece(input, piece, norms, fixed)?;
        }
        Ok(())
    }

    /// The norms of the whole unit, and a field for each of its coordinates; the memory is not lent.
    pub(super) fn decide(
        &mut self,
        input: &mut UnitInput<'_, '_>,
        norms: &mut [[u8; 4]],
        fields: &mut [u8],
    ) -> Result<(), EncodeError> {
        let len = input.unit.len;
        let mut known = 0;
        for first in (0..len).step_by(PIECE) {
            let piece = first..len.min(first + PIECE);
            known = self.find_norms(input, known, piece.end, norms)?;
            self.quantize_piece(input, piece.clone(), norms, &mut [])?;
            fields[piece.clone()].copy_from_slice(&self.fields[..piece.len()]);
        }
        Ok(())
    }

    /// The norms of the buckets from number `known` on that begin before coordinate `end`; returns how many are known then.
    fn find_norms(
        &mut self,
        input: &UnitInput<'_, '_>,
        known: usize,
        end: usize,
        norms: &mut [[u8; 4]],
    ) -> Result<usize, EncodeError> {
        let (len, size, bound) = (input.unit.len, self.bucket_size(), self.qsgd.overflow_bound());
        let last = end.div_ceil(size).max(known);
        for i in known..last {
            let bucket = i * size..len.min(i.saturating_add(1).saturating_mul(size));
            norms[i] = self.bucket_norm(input.source(bound), bucket)?.to_le_bytes();
        }
        Ok(last)
    }

    /// The norm as the wire carries it: f32, zero when too small to divide by.
    fn bucket_norm(&mut self, source: Source<'_>, bucket: Range<usize>) -> Result<f32, EncodeError> {
        // In any other build a Euclidean norm was refused.
        let is_full = Full::build().is_some();
        let (mut max, mut squares) = (0, [0.0; 8]);
        for first in bucket.clone().step_by(PIECE) {
            let room = &mut self.words[..PIECE.min(bucket.end - first)];
            let p = source.bits(self.isa, first, room)?;
            match self.qsgd.norm {
                Norm::L2 if is_full => kernels::add_squares(self.isa, p, &mut squares),
                Norm::L2 | Norm::Max => max = max.max(kernels::max_magnitude(self.isa, p)),
            }
        }
        let norm = match self.qsgd.norm {
            Norm::L2 if is_full => libm::sqrt(total_of(squares)) as f32,
            Norm::L2 | Norm::Max => f32::from_bits(max),
        };
        Ok(if norm < LEAST_NORM { 0.0 } else { norm })
    }

    /// Quantises one piece, keeps what rounding took, and packs or gathers the levels.
    fn quantize_piece(
        &mut self,
        input: &mut UnitInput<'_, '_>,
        piece: Range<usize>,
        norms: &[[u8; 4]],
        fixed: &mut [u8],
    ) -> Result<(), EncodeError> {
        let (size, levels, isa) = (self.bucket_size(), self.qsgd.bits.levels(), self.isa);
        let source = input.source(self.qsgd.overflow_bound());
        let p = source.bits(isa, piece.start, &mut self.words[..piece.len()])?;
        let fields = &mut self.fields[..piece.len()];
        let mut at = piece.start;
        while at < piece.end {
            let bucket = at / size;
            let end = piece.end.min(bucket.saturating_add(1).saturating_mul(size));
            let part = at - piece.start..end - piece.start;
            let norm = f32::from_le_bytes(norms[bucket]);
            let fields = &mut fields[part.clone()];
            if norm == 0.0 {
                fields.fill(0);
            } else {
                let scale = norm / levels as f32;
                let bucket = Bucket { first: at as u64, inverse: levels as f32 / norm, scale, levels };
                kernels::quantize(isa, &p[part], &bucket, self.stream.as_ref(), fields);
                if !self.symbols.is_empty() {
                    kernels::symbols_of(isa, fields, &mut self.symbols[self.coded..]);
                    self.coded += fields.len();
                }
            }
            at = end;
        }
        if !fixed.is_empty() {
            let packed = |len| pack::fixed_bytes(self.qsgd.bits, len).unwrap_or(usize::MAX);
            pack::fixed(isa, self.qsgd.bits, fields, &mut fixed[packed(piece.start)..packed(piece.end)]);
        }
        if input.memory.is_some() {
            self.keep(input, piece, norms);
        }
        Ok(())
    }

    /// The residual becomes p less what the levels of a piece decode to. A memory has p made in scratch memory.
    fn keep(&self, input: &mut UnitInput<'_, '_>, piece: Range<usize>, norms: &[[u8; 4]]) {
        let (size, levels) = (self.bucket_size(), self.qsgd.bits.levels() as f32);
        let Some(memory) = &mut input.memory else { return };
        let residual = memory.residual_mut();
        let mut at = piece.start;
        while at < piece.end {
            let bucket = at / size;
            let end = piece.end.min(bucket.saturating_add(1).saturating_mul(size));
            let part = at - piece.start..end - piece.start;
            let scale = f32::from_le_bytes(norms[bucket]) / levels;
            let (p, fields) = (&self.words[part.clone()], &self.fields[part]);
            kernels::keep_rounding(self.isa, p, fields, scale, &mut residual[at..end]);
            at = end;
        }
    }

    /// Codes the symbols as asked for, in place of the norms and the fixed packing that were written last where that is
    /// smaller; returns packing and coding of the norms if they are others.
    fn code(self, norms: usize, fixed: usize, writer: &mut Writer<'_>) -> Option<(u8, u8)> {
        let alphabet = self.qsgd.alphabet();
        let levels = Levels {
            symbols: &self.symbols[..self.coded],
            alphabet,
            exponents: self.exponents,
            classes: self.classes,
        };
        match self.qsgd.entropy {
            EntropyChoice::Fixed => None,
            // What needs a full build was refused in any other.
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
    /// Takes the smaller of rANS, adaptive or not, and the fixed packing, which stands behind the norms at the end of what
    /// was written; the first of equals.
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

    /// Writes norms in planes and levels with classes, if that takes fewer than `limit` bytes; else it may have written
    /// anything.
    fn write_adaptive(self, norms: &[[u8; 4]], limit: usize, writer: &mut Writer<'_>) -> bool {
        if !norms::write_planes(norms, self.exponents, limit, writer) || writer.len() >= limit {
            return false;
        }
        let left = limit - writer.len();
        section::write_classed_symbols(self.symbols, self.alphabet, self.classes, left, writer)
    }
}
