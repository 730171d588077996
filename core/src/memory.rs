//! What a worker keeps back from step to step, in storage that the caller lends.

use crate::error::{DecodeError, Field};
use crate::layout::LayoutRef;
use crate::wire::checksum::crc32c;
use crate::wire::frame::Frame;
use crate::wire::reader::Reader;
use crate::wire::writer::Writer;
use core::ops::Range;

/// Error feedback: the residual of a flat gradient, in memory that the caller lends (an array, a slice, a `Vec`).
///
/// A codec that is handed a memory encodes p = fl(residual + gradient) and leaves p less what it sent, exactly: at
/// every step sent + kept = fl(residual + gradient), bit for bit.
///
/// With a changing learning rate the residual, which is in units of the gradient, is [rescaled](Self::rescale) by
/// the ratio of rates. Start from zeros.
///
/// # Source
/// Seide et al. 2014 and Stich, Cordonnier, Jaggi: Sparsified SGD with Memory (arXiv 1809.07599), algorithm 1.
#[derive(Debug)]
pub struct Memory<'a> {
    residual: &'a mut [f32],
}

/// ASCII "GM".
const MAGIC: [u8; 2] = *b"GM";
const VERSION: u8 = 1;
/// Kind of a memory that holds a residual and nothing else.
const KIND_RESIDUAL: u8 = 1;

/// Bytes around the residual of a saved memory: magic, version, kind, fingerprint and length before it, the checksum
/// behind it.
const SAVED_OVERHEAD: usize = 2 + 1 + 1 + 8 + 8 + 4;

impl<'a> Memory<'a> {
    /// A memory over the caller's storage, one element a coordinate.
    pub fn new(residual: &'a mut [f32]) -> Self {
        Self { residual }
    }

    /// What is kept back, one element a coordinate.
    #[must_use]
    pub fn residual(&self) -> &[f32] {
        self.residual
    }

    /// The storage, for codecs.
    pub(crate) fn residual_mut(&mut self) -> &mut [f32] {
        self.residual
    }

    /// The residual becomes the values whose bits are `p`: everything is kept back.
    pub(crate) fn keep_all(&mut self, p: &[u32]) {
        assert_eq!(self.len(), p.len(), "memory and unit differ in length");
        self.residual.iter_mut().zip(p).for_each(|(residual, &bits)| *residual = f32::from_bits(bits));
    }

    /// Number of coordinates.
    #[must_use]
    pub fn len(&self) -> usize {
        self.residual.len()
    }

    /// Whether there are no coordinates.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.residual.is_empty()
    }

    /// The memory of a part of the gradient.
    ///
    /// # Panics
    /// When the range reaches beyond the memory.
    #[must_use]
    pub fn slice(&mut self, range: Range<usize>) -> Memory<'_> {
        Memory { residual: &mut self.residual[range] }
    }

    /// The residual of a part of the gradient, to read.
    ///
    /// # Panics
    /// When the range reaches beyond the memory.
    #[must_use]
    pub fn view(&self, range: Range<usize>) -> &[f32] {
        &self.residual[range]
    }

    /// Returns the content of a frame that did not enter the mean: lost, late, refused. Given back right after the
    /// encode that made it, the residual is fl(residual + gradient) of that step again, bit for bit.
    ///
    /// # Panics
    /// When the memory has another length than the frame's layout.
    pub fn give_back(&mut self, frame: &Frame<'_>) {
        frame.add_scaled_to(1.0, self.residual);
    }

    /// Multiplies the residual by `ratio`, the old learning rate over the new one, so that what is kept back weighs as
    /// much in the parameters as it did when it was kept.
    pub fn rescale(&mut self, ratio: f32) {
        if ratio != 1.0 {
            self.residual.iter_mut().for_each(|residual| *residual *= ratio);
        }
    }

    /// Forgets everything that was kept back.
    pub fn clear(&mut self) {
        self.residual.fill(0.0);
    }

    /// L2 norm of what is kept back; f64 sum in the order of the coordinates' eight strides.
    #[must_use]
    pub fn norm(&self) -> f64 {
        libm::sqrt(crate::kernels::sum_of_squares_f32(crate::kernels::Isa::best(), self.residual))
    }

    /// Bytes that [`save`](Self::save) writes; `None` on overflow.
    #[must_use]
    pub fn saved_bytes(&self) -> Option<usize> {
        self.residual.len().checked_mul(4)?.checked_add(SAVED_OVERHEAD)
    }

    /// Writes the memory with its version, the layout's fingerprint and a checksum to the front of `out`; returns the
    /// bytes, or `None` when `out` is too small (see [`saved_bytes`](Self::saved_bytes)).
    ///
    /// # Panics
    /// When the memory has another length than the layout.
    pub fn save(&self, layout: &LayoutRef<'_>, out: &mut [u8]) -> Option<usize> {
        assert_eq!(self.len(), layout.len(), "memory and layout differ in length");
        let bytes = self.saved_bytes()?;
        let out = out.get_mut(..bytes)?;
        let mut writer = Writer::new(out);
        writer.bytes(&MAGIC);
        writer.u8(VERSION);
        writer.u8(KIND_RESIDUAL);
        writer.bytes(&layout.fingerprint().to_le_bytes());
        writer.bytes(&(self.len() as u64).to_le_bytes());
        self.residual.iter().for_each(|residual| writer.bytes(&residual.to_le_bytes()));
        let (saved, checksum) = out.split_at_mut(bytes - 4);
        checksum.copy_from_slice(&crc32c(0, saved).to_le_bytes());
        Some(bytes)
    }

    /// Restores what [`save`](Self::save) wrote, bit for bit.
    ///
    /// # Errors
    /// `BadMagic`, `UnsupportedVersion`, `InvalidField(Memory)` for another kind or length, `LayoutMismatch`,
    /// `Truncated`, `TrailingBytes`, `ChecksumMismatch`, `NonFiniteValue`. The memory is then as it was.
    ///
    /// # Panics
    /// When the memory has another length than the layout.
    pub fn load(&mut self, layout: &LayoutRef<'_>, bytes: &[u8]) -> Result<(), DecodeError> {
        assert_eq!(self.len(), layout.len(), "memory and layout differ in length");
        let residual = parse_saved(layout, bytes)?;
        for (slot, value) in self.residual.iter_mut().zip(crate::values::f32_values(residual)) {
            *slot = value;
        }
        Ok(())
    }
}

/// Checks a saved memory and returns the bytes of its residual.
fn parse_saved<'b>(layout: &LayoutRef<'_>, bytes: &'b [u8]) -> Result<&'b [u8], DecodeError> {
    let mut reader = Reader::new(bytes);
    if reader.array()? != MAGIC {
        return Err(DecodeError::BadMagic);
    }
    let version = reader.u8()?;
    if version != VERSION {
        return Err(DecodeError::UnsupportedVersion(version));
    }
    if reader.u8()? != KIND_RESIDUAL {
        return Err(DecodeError::InvalidField(Field::Memory));
    }
    let frame = reader.u64()?;
    if frame != layout.fingerprint() {
        return Err(DecodeError::LayoutMismatch { frame, layout: layout.fingerprint() });
    }
    if reader.u64()? != layout.len() as u64 {
        return Err(DecodeError::InvalidField(Field::Memory));
    }
    let residual =
        reader.take(layout.len().checked_mul(4).ok_or(DecodeError::InvalidField(Field::Memory))?)?;
    let stated = reader.u32()?;
    reader.finish()?;
    let computed = crc32c(0, &bytes[..bytes.len() - 4]);
    if stated != computed {
        return Err(DecodeError::ChecksumMismatch { stated, computed });
    }
    crate::values::check_magnitudes(crate::values::f32_values(residual), f32::MAX)?;
    Ok(residual)
}
