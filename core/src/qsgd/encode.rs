//! From values to the body of a levels unit.

use super::pack::{self, PACKING_ELIAS, PACKING_RANS};
use super::{EntropyChoice, Norm, Qsgd};
use crate::built::Full;
use crate::entropy::section;
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

/// `bits` in the low nibble, `norm` in bits 4 and 5, `packing` in bits 6 and 7.
fn form(qsgd: &Qsgd, packing: u8) -> u8 {
    qsgd.bits.field_bits() as u8 | (qsgd.norm as u8) << 4 | packing << 6
}

pub(super) fn max_body_bytes(qsgd: &Qsgd, len: usize) -> Option<usize> {
    let norms = len.div_ceil(qsgd.bucket.get() as usize).checked_mul(4)?;
    let levels = match qsgd.entropy {
        EntropyChoice::Fixed | EntropyChoice::Auto => pack::fixed_bytes(qsgd.bits, len)?,
        _ if Full::build().is_none() => return None,
        EntropyChoice::Elias => {
            len.checked_mul(pack::max_elias_bits(qsgd.bits.levels()) as usize)?.div_ceil(8)
        }
        EntropyChoice::Rans => section::max_section_bytes(len, 2 * qsgd.bits.levels() as usize + 1)?,
    };
    // The form, the bucket size, and the length of the levels.
    norms.checked_add(levels)?.checked_add(1 + 3 * MAX_VARINT_BYTES)
}

/// A piece of p and of fields; where levels are coded, one symbol a coordinate; where packings are compared, one of them.
pub(super) fn scratch_len(qsgd: &Qsgd, len: usize) -> ScratchLen {
    let piece = len.min(PIECE);
    let [symbols, trial] = coded_lens(qsgd, len);
    ScratchLen { words: piece, bytes: piece.saturating_add(symbols).saturating_add(trial) }
}

/// Bytes of the symbols, and of the section that is compared with the fixed packing.
fn coded_lens(qsgd: &Qsgd, len: usize) -> [usize; 2] {
    let fixed = pack::fixed_bytes(qsgd.bits, len).unwrap_or(usize::MAX);
    match qsgd.entropy {
        EntropyChoice::Fixed => [0, 0],
        EntropyChoice::Elias | EntropyChoice::Rans => [len, 0],
        EntropyChoice::Auto => [len, fixed.saturating_add(section::SLACK)],
    }
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
        let piece = len.min(PIECE);
        let [symbols, trial] = coded_lens(qsgd, len);
        let (fields, bytes) = bytes.split_at_mut(piece);
        let (symbols, bytes) = bytes.split_at_mut(symbols);
        let (words, trial) = (&mut words[..piece], &mut bytes[..trial]);
        Self { qsgd, isa: Isa::best(), stream, words, fields, symbols, trial, coded: 0 }
    }

    /// Writes norms and levels.
    pub(super) fn write(
        mut self,
        mut input: UnitInput<'_, '_>,
        writer: &mut Writer<'_>,
    ) -> Result<(), EncodeError> {
        let len = input.unit.len;
        let form_at = writer.len();
        writer.u8(form(self.qsgd, pack::fixed_packing(self.qsgd.bits)));
        writer.varint(u64::from(self.qsgd.bucket.get()));
        let norm_bytes = len.div_ceil(self.bucket_size()) * 4;
        let fixed_bytes = match self.qsgd.entropy {
            EntropyChoice::Fixed | EntropyChoice::Auto => pack::fixed_bytes(self.qsgd.bits, len).unwrap_or(0),
            EntropyChoice::Elias | EntropyChoice::Rans => 0,
        };
        let (norms, fixed) = writer.reserve(norm_bytes + fixed_bytes).split_at_mut(norm_bytes);
        self.quantize(&mut input, norms.as_chunks_mut().0, fixed)?;
        if let Some(packing) = self.code(fixed_bytes, writer) {
            writer.patch(form_at, form(self.qsgd, packing));
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
        let (len, size, bound) = (input.unit.len, self.bucket_size(), self.qsgd.overflow_bound());
        let mut known = 0;
        for first in (0..len).step_by(PIECE) {
            let piece = first..len.min(first + PIECE);
            let norms_first = if input.memory.is_some() { len } else { piece.end };
            while known < norms_first.div_ceil(size) {
                let bucket = known * size..len.min(known.saturating_add(1).saturating_mul(size));
                norms[known] = self.bucket_norm(input.source(bound), bucket)?.to_le_bytes();
                known += 1;
            }
            self.quantize_piece(input, piece, norms, fixed)?;
        }
        Ok(())
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

    /// Codes the symbols as asked for, in place of the `fixed` bytes written last where that is smaller; returns the
    /// packing if it is another one.
    fn code(&mut self, fixed: usize, writer: &mut Writer<'_>) -> Option<u8> {
        let symbols = &self.symbols[..self.coded];
        let alphabet = 2 * self.qsgd.bits.levels() as usize + 1;
        match self.qsgd.entropy {
            EntropyChoice::Fixed => None,
            // What needs a full build was refused in any other.
            _ if Full::build().is_none() => None,
            EntropyChoice::Elias => {
                pack::elias(symbols, writer);
                Some(PACKING_ELIAS)
            }
            EntropyChoice::Rans => {
                section::write_symbols(symbols, alphabet, usize::MAX, writer).then_some(PACKING_RANS)
            }
            EntropyChoice::Auto => {
                let mut trial = Writer::new(self.trial);
                section::write_symbols(symbols, alphabet, fixed, &mut trial).then(|| {
                    writer.rewind(fixed);
                    writer.bytes(trial.written());
                    PACKING_RANS
                })
            }
        }
    }
}
