//! Memories as bytes, from one run to the next.

use super::{Memory, SaveError, UnitState};
use crate::coding::values::{check_magnitudes, f32_values};
use crate::error::{DecodeError, Field};
use crate::gradient::layout::LayoutRef;
use crate::wire::checksum::crc32c;
use crate::wire::reader::Reader;
use crate::wire::writer::Writer;

/// ASCII "GM".
const MAGIC: [u8; 2] = *b"GM";
const VERSION: u8 = 1;
/// Of memories that have arrays. 2 is never assigned: a file that must be refused has it.
const VERSION_WITH_ARRAYS: u8 = 3;

/// The versions of saved memories that this build reads, ascending. A memory with named arrays is written as
/// the last, every other one as the first. FORMAT.md, section 15, says for how long a version is read.
pub const SAVED_VERSIONS: &[u8] = &[VERSION, VERSION_WITH_ARRAYS];

/// Bits of the kind: what the memory holds. The residual is always there.
const HAS_RESIDUAL: u8 = 1;
const HAS_MOMENTUM: u8 = 2;
const HAS_STATES: u8 = 4;
const HAS_FACTORS: u8 = 8;

/// Magic, version, kind, fingerprint and length at the front, the checksum at the end.
const OVERHEAD: usize = 2 + 1 + 1 + 8 + 8 + 4;
const STATE_BYTES: usize = 16;

/// The content of a saved memory, as bytes that passed every check.
struct Saved<'b> {
    residual: &'b [u8],
    momentum: &'b [u8],
    states: &'b [u8],
    factors: &'b [u8],
    arrays: &'b [u8],
}

/// Number of elements of each part.
#[derive(Clone, Copy)]
struct Lengths {
    residual: usize,
    momentum: usize,
    states: usize,
    factors: usize,
    /// Bytes of the names and lengths of the arrays.
    array_table: usize,
    /// Elements of the arrays.
    arrays: usize,
}

impl Lengths {
    /// Bytes of the saved memory; `None` on overflow.
    fn bytes(&self) -> Option<usize> {
        let states = match self.states {
            0 => 0,
            units => units.checked_mul(STATE_BYTES)?.checked_add(4)?,
        };
        let factors = match self.factors {
            0 => 0,
            factors => factors.checked_mul(4)?.checked_add(8)?,
        };
        let floats = self.residual.checked_add(self.momentum)?.checked_add(self.arrays)?.checked_mul(4)?;
        floats.checked_add(self.array_table)?.checked_add(states)?.checked_add(factors)?.checked_add(OVERHEAD)
    }

    /// The number of states as it is written, and the bytes of the saved memory, which `actual` bytes can
    /// hold.
    fn fit(&self, actual: usize) -> Result<(u32, usize), SaveError> {
        let units =
            u32::try_from(self.states).map_err(|_| SaveError::TooManyStates { states: self.states })?;
        let needed = self.bytes().unwrap_or(usize::MAX);
        if actual < needed { Err(SaveError::BufferTooSmall { needed, actual }) } else { Ok((units, needed)) }
    }
}

impl Memory<'_> {
    /// Bytes that [`save`](Self::save) writes; `None` on overflow.
    #[must_use]
    pub fn saved_bytes(&self) -> Option<usize> {
        self.lengths().bytes()
    }

    /// Writes the memory with its version, the layout's fingerprint and a checksum to the front of `out`, and
    /// returns the number of bytes. The version is 3 if the memory has [arrays](Self::arrays). Otherwise it
    /// is 1, with the same bytes as before arrays existed.
    ///
    /// # Errors
    /// [`SaveError::BufferTooSmall`] when `out` has fewer than [`saved_bytes`](Self::saved_bytes),
    /// [`SaveError::TooManyStates`] for 2³² states or more. `out` is then as it was.
    ///
    /// # Panics
    /// When the memory has another length than the layout.
    pub fn save(&self, layout: &LayoutRef<'_>, out: &mut [u8]) -> Result<usize, SaveError> {
        assert_eq!(self.len(), layout.len(), "memory and layout differ in length");
        let (units, bytes) = self.lengths().fit(out.len())?;
        let out = &mut out[..bytes];
        let mut writer = Writer::new(out);
        writer.bytes(&MAGIC);
        writer.u8(self.version());
        writer.u8(self.kind());
        writer.bytes(&layout.fingerprint().to_le_bytes());
        writer.bytes(&(self.len() as u64).to_le_bytes());
        if units > 0 {
            writer.bytes(&units.to_le_bytes());
        }
        if !self.factors.is_empty() {
            writer.bytes(&(self.factors.len() as u64).to_le_bytes());
        }
        if !self.arrays.is_empty() {
            writer.u8(self.arrays.len() as u8);
        }
        for array in self.arrays.iter() {
            writer.u8(array.name.len() as u8);
            writer.bytes(array.name.as_bytes());
            writer.bytes(&(array.len as u64).to_le_bytes());
        }
        let floats = self.residual.iter().chain(self.momentum().unwrap_or_default());
        floats.for_each(|value| writer.bytes(&value.to_le_bytes()));
        let words = self.states.iter().flat_map(|state| state.words());
        words.for_each(|word| writer.bytes(&word.to_le_bytes()));
        let floats = self.factors.iter().chain(self.values.iter());
        floats.for_each(|value| writer.bytes(&value.to_le_bytes()));
        let (saved, checksum) = out.split_at_mut(bytes - 4);
        checksum.copy_from_slice(&crc32c(0, saved).to_le_bytes());
        Ok(bytes)
    }

    /// Restores what [`save`](Self::save) wrote, bit for bit.
    ///
    /// # Errors
    /// `BadMagic`, `UnsupportedVersion`, `LayoutMismatch`, `Truncated`, `TrailingBytes`, `ChecksumMismatch`,
    /// `NonFiniteValue`, or `InvalidField(Memory)` for other parts, another length, another number of states
    /// or factors, or other arrays. The memory is then as it was.
    ///
    /// # Panics
    /// When the memory has another length than the layout.
    pub fn load(&mut self, layout: &LayoutRef<'_>, bytes: &[u8]) -> Result<(), DecodeError> {
        assert_eq!(self.len(), layout.len(), "memory and layout differ in length");
        let saved = self.parse(layout, bytes)?;
        let restore = |slots: &mut [f32], saved| {
            slots.iter_mut().zip(f32_values(saved)).for_each(|(slot, value)| *slot = value);
        };
        let (residual, momentum) = self.parts_mut();
        restore(residual.unwrap_or_default(), saved.residual);
        restore(momentum.unwrap_or_default(), saved.momentum);
        let words: &[[[u8; 4]; 4]] = saved.states.as_chunks().0.as_chunks().0;
        for (slot, words) in self.states.iter_mut().zip(words) {
            *slot = UnitState::from_words(words.map(u32::from_le_bytes));
        }
        restore(&mut self.factors, saved.factors);
        restore(&mut self.values, saved.arrays);
        Ok(())
    }

    fn lengths(&self) -> Lengths {
        Lengths {
            residual: self.len(),
            momentum: self.momentum().map_or(0, <[f32]>::len),
            states: self.states.len(),
            factors: self.factors.len(),
            array_table: match self.arrays.len() {
                0 => 0,
                _ => 1 + self.arrays.iter().map(|array| 1 + array.name.len() + 8).sum::<usize>(),
            },
            arrays: self.values.len(),
        }
    }

    fn kind(&self) -> u8 {
        let momentum = if self.momentum.is_some() { HAS_MOMENTUM } else { 0 };
        let states = if self.states.is_empty() { 0 } else { HAS_STATES };
        let factors = if self.factors.is_empty() { 0 } else { HAS_FACTORS };
        HAS_RESIDUAL | momentum | states | factors
    }

    fn version(&self) -> u8 {
        if self.arrays.is_empty() { VERSION } else { VERSION_WITH_ARRAYS }
    }

    /// Every check; nothing is changed.
    fn parse<'b>(&self, layout: &LayoutRef<'_>, bytes: &'b [u8]) -> Result<Saved<'b>, DecodeError> {
        let other = DecodeError::InvalidField(Field::Memory);
        let mut reader = Reader::new(bytes);
        if reader.array()? != MAGIC {
            return Err(DecodeError::BadMagic);
        }
        let version = reader.u8()?;
        if !SAVED_VERSIONS.contains(&version) {
            return Err(DecodeError::UnsupportedVersion(version));
        }
        if (version, reader.u8()?) != (self.version(), self.kind()) {
            return Err(other);
        }
        let frame = reader.u64()?;
        if frame != layout.fingerprint() {
            return Err(DecodeError::LayoutMismatch { frame, layout: layout.fingerprint() });
        }
        if reader.u64()? != layout.len() as u64 {
            return Err(other);
        }
        if !self.states.is_empty() && reader.u32()? as usize != self.states.len() {
            return Err(other);
        }
        if !self.factors.is_empty() && reader.u64()? != self.factors.len() as u64 {
            return Err(other);
        }
        if !self.arrays.is_empty() && usize::from(reader.u8()?) != self.arrays.len() {
            return Err(other);
        }
        for array in self.arrays.iter() {
            let name_bytes = usize::from(reader.u8()?);
            let is_named = reader.take(name_bytes)? == array.name.as_bytes();
            if !is_named || reader.u64()? != array.len as u64 {
                return Err(other);
            }
        }
        // The caller holds this many bytes, so no product overflows.
        let residual = reader.take(4 * self.residual.len())?;
        let momentum = reader.take(4 * self.momentum().map_or(0, <[f32]>::len))?;
        let states = reader.take(STATE_BYTES * self.states.len())?;
        let factors = reader.take(4 * self.factors.len())?;
        let arrays = reader.take(4 * self.values.len())?;
        let stated = reader.u32()?;
        reader.finish()?;
        let computed = crc32c(0, &bytes[..bytes.len() - 4]);
        if stated != computed {
            return Err(DecodeError::ChecksumMismatch { stated, computed });
        }
        check_magnitudes(f32_values(residual), f32::MAX)?;
        check_magnitudes(f32_values(momentum), f32::MAX)?;
        check_magnitudes(f32_values(factors), f32::MAX)?;
        check_magnitudes(f32_values(arrays), f32::MAX)?;
        Ok(Saved { residual, momentum, states, factors, arrays })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::{Lengths, SaveError};

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn states_that_32_bits_cannot_count_are_too_many() {
        let lengths =
            |states| Lengths { residual: 1, momentum: 1, states, factors: 1, array_table: 0, arrays: 0 };
        let most = u32::MAX as usize;
        assert_eq!(lengths(most).fit(usize::MAX), Ok((u32::MAX, most * 16 + 4 + 4 * 3 + 8 + 24)));
        let error = SaveError::TooManyStates { states: most + 1 };
        assert_eq!(lengths(most + 1).fit(usize::MAX), Err(error));
        let text = "4294967296 unit states are too many for a saved memory, which has fewer than 2^32";
        assert_eq!(std::format!("{error}"), text);
    }

    #[test]
    fn sizes_that_overflow_fit_no_buffer() {
        let residual = usize::MAX / 8 + 1;
        let lengths =
            Lengths { residual, momentum: residual, states: 0, factors: 0, array_table: 0, arrays: 0 };
        assert_eq!(lengths.bytes(), None);
        let error = SaveError::BufferTooSmall { needed: usize::MAX, actual: 100 };
        assert_eq!(lengths.fit(100), Err(error));
    }
}
