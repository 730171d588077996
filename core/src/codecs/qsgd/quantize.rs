//! From values to the norms of buckets and a level for each coordinate.

#[cfg(feature = "alloc")]
use super::fields::Levels;
use super::params::LEAST_NORM;
use super::{Norm, Qsgd, pack};
use crate::built::Full;
use crate::codec::UnitInput;
use crate::corrected::Corrected;
use crate::error::EncodeError;
use crate::gradient::grad::Grad;
use crate::kernels::scalar::total_of;
use crate::kernels::{self, Bucket, Isa};
use crate::memory::Memory;
use crate::rng::Stream;
#[cfg(feature = "parallel")]
use crate::threads;
use core::ops::Range;

/// 2¹¹¹: the Euclidean norm of 2³² values below it stays below 2¹²⁷.
const L2_BOUND: f32 = f32::from_bits((127 + 111) << 23);
/// 2¹²⁶: the largest level times the scale stays below 2¹²⁷.
const MAX_BOUND: f32 = f32::from_bits((127 + 126) << 23);

/// Coordinates that are quantised together: whole bytes in every packing, whole blocks of draws, whole
/// buckets of the usual sizes, and few enough for the first cache level.
pub(super) const PIECE: usize = 2560;

/// The values of a unit from coordinate `first` on.
pub(super) struct Values<'v> {
    first: usize,
    grad: Grad<'v>,
    residual: Option<&'v mut [f32]>,
    /// Position of the first in the flat gradient, for errors.
    start: usize,
}

impl<'v> Values<'v> {
    /// The values of the whole unit.
    pub(super) fn of(input: &'v mut UnitInput<'_, '_>) -> Self {
        let residual = input.memory.as_deref_mut().map(Memory::residual_mut);
        Self { first: 0, grad: input.grad, residual, start: input.unit.start }
    }

    fn end(&self) -> usize {
        self.first + self.grad.len()
    }

    fn source(&self, qsgd: &Qsgd) -> Corrected<'_> {
        Corrected::new(self.grad, self.residual.as_deref(), self.start, overflow_bound(qsgd))
    }
}

/// Far below what f32 holds, so that no norm, and no level times its scale, overflows.
pub(super) fn overflow_bound(qsgd: &Qsgd) -> f32 {
    match qsgd.norm {
        Norm::L2 => L2_BOUND,
        Norm::Max => MAX_BOUND,
    }
}

/// The runs of coordinates of a piece that lie in one bucket, each with the number of its bucket.
fn cut_by_bucket(piece: Range<usize>, size: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut at = piece.start;
    core::iter::from_fn(move || {
        let (first, bucket) = (at, at / size);
        at = piece.end.min(bucket.saturating_add(1).saturating_mul(size));
        (first < piece.end).then_some((bucket, first..at))
    })
}

/// Rounds values piece by piece.
pub(super) struct Quantizer<'q> {
    qsgd: &'q Qsgd,
    isa: Isa,
    /// Draws of stochastic rounding; none for nearest.
    stream: Option<Stream>,
    /// Bits of p of one piece.
    words: &'q mut [u32],
    /// Fields of one piece, one a coordinate: level, and sign in bit 7.
    fields: &'q mut [u8],
    /// Room for one symbol a coordinate, if they are wanted.
    symbols: &'q mut [u8],
    /// Number of symbols so far, in all buckets whose norm is not zero.
    coded: usize,
}

impl<'q> Quantizer<'q> {
    pub(super) fn new(
        qsgd: &'q Qsgd,
        stream: Option<Stream>,
        words: &'q mut [u32],
        fields: &'q mut [u8],
        symbols: &'q mut [u8],
    ) -> Self {
        Self { qsgd, isa: Isa::best(), stream, words, fields, symbols, coded: 0 }
    }

    /// The symbols so far.
    pub(super) fn into_symbols(self) -> &'q [u8] {
        &self.symbols[..self.coded]
    }

    fn bucket_size(&self) -> usize {
        self.qsgd.bucket.get() as usize
    }

    /// Finds norms and levels of a unit piece by piece, while each piece is in the cache. With a memory, it
    /// finds all norms first, because an error must leave the memory as it was.
    pub(super) fn quantize(
        &mut self,
        mut values: Values<'_>,
        norms: &mut [[u8; 4]],
        fixed: &mut [u8],
    ) -> Result<(), EncodeError> {
        let len = values.end();
        let mut known = 0;
        for first in (0..len).step_by(PIECE) {
            let piece = first..len.min(first + PIECE);
            let norms_first = if values.residual.is_some() { len } else { piece.end };
            known = self.find_norms(&values, known, norms_first, norms)?;
            self.quantize_piece(&mut values, piece, norms, fixed)?;
        }
        Ok(())
    }

    /// Finds the norms of the whole unit, and a field for each of its coordinates. No memory is lent.
    pub(super) fn decide(
        &mut self,
        mut values: Values<'_>,
        norms: &mut [[u8; 4]],
        fields: &mut [u8],
    ) -> Result<(), EncodeError> {
        let len = values.end();
        let mut known = 0;
        for first in (0..len).step_by(PIECE) {
            let piece = first..len.min(first + PIECE);
            known = self.find_norms(&values, known, piece.end, norms)?;
            self.quantize_piece(&mut values, piece.clone(), norms, &mut [])?;
            fields[piece.clone()].copy_from_slice(&self.fields[..piece.len()]);
        }
        Ok(())
    }

    /// Takes norms and levels that were decided before.
    #[cfg(feature = "alloc")]
    pub(super) fn take(&mut self, levels: &Levels<'_>, norms: &mut [[u8; 4]], fixed: &mut [u8]) {
        norms.copy_from_slice(levels.norms);
        if !fixed.is_empty() {
            pack::fixed(self.isa, self.qsgd.bits, levels.fields, fixed);
        }
        if !self.symbols.is_empty() {
            self.coded = levels.gather_symbols(self.qsgd, self.symbols);
        }
    }

    /// Finds the norms of the buckets from number `known` on that begin before coordinate `end`. Returns how
    /// many are known afterwards.
    fn find_norms(
        &mut self,
        values: &Values<'_>,
        known: usize,
        end: usize,
        norms: &mut [[u8; 4]],
    ) -> Result<usize, EncodeError> {
        let (len, size) = (values.end(), self.bucket_size());
        let last = end.div_ceil(size).max(known);
        for i in known..last {
            let bucket = i * size..len.min(i.saturating_add(1).saturating_mul(size));
            norms[i] = self.bucket_norm(values, bucket)?.to_le_bytes();
        }
        Ok(last)
    }

    /// The norm as sent: an f32, or zero if it is too small to divide by.
    fn bucket_norm(&mut self, values: &Values<'_>, bucket: Range<usize>) -> Result<f32, EncodeError> {
        // A small build has refused the Euclidean norm and cutoffs.
        let is_full = Full::build().is_some();
        let source = values.source(self.qsgd);
        let cutoff = self.qsgd.cutoff().filter(|_| is_full);
        let (mut max, mut squares, mut sums) = (0, [0.0; 8], [0.0; 8]);
        let len = bucket.len();
        for first in bucket.clone().step_by(PIECE) {
            let at = first..bucket.end.min(first + PIECE);
            let room = &mut self.words[..at.len()];
            let (p, largest) = source.bits(self.isa, at.start - values.first, room)?;
            max = max.max(largest);
            if is_full && (self.qsgd.norm == Norm::L2 || cutoff.is_some()) {
                kernels::add_squares(self.isa, p, &mut squares);
            }
            if cutoff.is_some() {
                kernels::add_values(self.isa, p, &mut sums);
            }
        }
        let norm = match self.qsgd.norm {
            Norm::L2 if is_full => libm::sqrt(total_of(squares)) as f32,
            Norm::L2 | Norm::Max => f32::from_bits(max),
        };
        let norm = cutoff.map_or(norm, |cutoff| norm.min(cutoff.largest(sums, squares, len)));
        Ok(if norm < LEAST_NORM { 0.0 } else { norm })
    }

    /// Quantises one piece, keeps the rounding errors, and packs or gathers the levels. `fixed` is the room
    /// for the fixed packing of all values, or empty.
    fn quantize_piece(
        &mut self,
        values: &mut Values<'_>,
        piece: Range<usize>,
        norms: &[[u8; 4]],
        fixed: &mut [u8],
    ) -> Result<(), EncodeError> {
        let (size, levels, isa) = (self.bucket_size(), self.qsgd.bits.built().levels(), self.isa);
        let room = &mut self.words[..piece.len()];
        let p = values.source(self.qsgd).known_bits(isa, piece.start - values.first, room);
        let fields = &mut self.fields[..piece.len()];
        for (bucket, at) in cut_by_bucket(piece.clone(), size) {
            let part = at.start - piece.start..at.end - piece.start;
            let norm = f32::from_le_bytes(norms[bucket]);
            let fields = &mut fields[part.clone()];
            if norm == 0.0 {
                fields.fill(0);
            } else {
                let scale = norm / levels as f32;
                let bucket = Bucket { first: at.start as u64, inverse: levels as f32 / norm, scale, levels };
                kernels::quantize(isa, &p[part], &bucket, self.stream.as_ref(), fields);
                if !self.symbols.is_empty() {
                    kernels::symbols_of(isa, fields, &mut self.symbols[self.coded..]);
                    self.coded += fields.len();
                }
            }
        }
        if !fixed.is_empty() {
            let packed = |end: usize| packed_bytes(self.qsgd, end - values.first);
            pack::fixed(isa, self.qsgd.bits, fields, &mut fixed[packed(piece.start)..packed(piece.end)]);
        }
        if values.residual.is_some() {
            self.keep(values, piece, norms);
        }
        Ok(())
    }

    /// Sets the residual to p less the decoded levels of a piece. With a memory, p is in scratch memory.
    fn keep(&self, values: &mut Values<'_>, piece: Range<usize>, norms: &[[u8; 4]]) {
        let levels = self.qsgd.bits.built().levels() as f32;
        let Some(residual) = &mut values.residual else { return };
        for (bucket, at) in cut_by_bucket(piece.clone(), self.bucket_size()) {
            let part = at.start - piece.start..at.end - piece.start;
            let scale = f32::from_le_bytes(norms[bucket]) / levels;
            let residual = &mut residual[at.start - values.first..at.end - values.first];
            kernels::keep_rounding(self.isa, &self.words[part.clone()], &self.fields[part], scale, residual);
        }
    }
}

/// Bytes of the fixed packing of `len` coordinates.
fn packed_bytes(qsgd: &Qsgd, len: usize) -> usize {
    pack::fixed_bytes(qsgd.bits, len).unwrap_or(usize::MAX)
}

/// Quantises on several threads: norms first, then levels, in parts that share no byte.
#[cfg(feature = "parallel")]
mod in_parts {
    use super::*;
    use alloc::vec::Vec;

    impl Quantizer<'_> {
        /// [`quantize`](Quantizer::quantize), in parts if that pays.
        pub(in crate::codecs::qsgd) fn quantize_in_parts(
            &mut self,
            threads: usize,
            mut values: Values<'_>,
            norms: &mut [[u8; 4]],
            mut fixed: &mut [u8],
        ) -> Result<(), EncodeError> {
            let len = values.end();
            let step = threads::part_len(threads, len, PIECE);
            if step >= len {
                return self.quantize(values, norms, fixed);
            }
            self.find_all_norms(step, &values, norms)?;
            let (qsgd, stream, norms) = (self.qsgd, &self.stream, &*norms);
            let mut symbols = &mut *self.symbols;
            let mut parts = Vec::new();
            for first in (0..len).step_by(step) {
                let range = first..len.min(first + step);
                let coded = if symbols.is_empty() { 0 } else { coded_in(qsgd, range.clone(), norms) };
                let packed = if fixed.is_empty() { 0 } else { packed_bytes(qsgd, range.len()) };
                let part = Values {
                    first,
                    grad: values.grad.slice(first, range.len()),
                    residual: values.residual.as_mut().and_then(|kept| kept.split_off_mut(..range.len())),
                    start: values.start + first,
                };
                let symbols = symbols.split_off_mut(..coded).unwrap_or_default();
                self.coded += coded;
                parts.push((part, range, fixed.split_off_mut(..packed).unwrap_or_default(), symbols));
            }
            let done = threads::on_each(parts, |(mut values, range, fixed, symbols)| {
                let (mut words, mut fields) = ([0; PIECE], [0; PIECE]);
                let mut quantizer = Quantizer::new(qsgd, stream.clone(), &mut words, &mut fields, symbols);
                range.clone().step_by(PIECE).try_for_each(|first| {
                    let piece = first..range.end.min(first + PIECE);
                    quantizer.quantize_piece(&mut values, piece, norms, fixed)
                })
            });
            done.into_iter().collect()
        }

        fn find_all_norms(
            &self,
            step: usize,
            values: &Values<'_>,
            norms: &mut [[u8; 4]],
        ) -> Result<(), EncodeError> {
            let (qsgd, size, len) = (self.qsgd, self.bucket_size(), values.end());
            let buckets = step.div_ceil(size);
            let parts = norms.chunks_mut(buckets).enumerate().collect();
            let done = threads::on_each(parts, |(part, norms): (usize, &mut [[u8; 4]])| {
                let mut words = [0; PIECE];
                let mut quantizer = Quantizer::new(qsgd, None, &mut words, &mut [], &mut []);
                norms.iter_mut().zip(part * buckets..).try_for_each(|(norm, i)| {
                    let bucket = i * size..len.min(i.saturating_add(1).saturating_mul(size));
                    *norm = quantizer.bucket_norm(values, bucket)?.to_le_bytes();
                    Ok(())
                })
            });
            done.into_iter().collect()
        }
    }

    /// Number of symbols of these coordinates: those in buckets whose norm is not zero.
    fn coded_in(qsgd: &Qsgd, range: Range<usize>, norms: &[[u8; 4]]) -> usize {
        let parts = cut_by_bucket(range, qsgd.bucket.get() as usize);
        parts.filter(|(bucket, _)| norms[*bucket] != [0; 4]).map(|(_, at)| at.len()).sum()
    }
}
