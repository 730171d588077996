//! Levels that were decided for a whole unit, as bodies of parts of it.

use super::norms::CODING_F32;
use super::pack::{self, PACKING_ELIAS, PACKING_RANS};
use super::quantize::{PIECE, Quantizer, Values};
use super::{EntropyChoice, Qsgd, encode};
use crate::built::Full;
use crate::entropy::section;
use crate::error::EncodeError;
use crate::gather::UnitInput;
use crate::kernels::{self, Isa};
use crate::packets::{Content, LevelsContent};
use crate::scratch::{Scratch, ScratchLen};
use crate::wire::writer::{Writer, varint_len};

/// Norms and levels of some buckets, or of a part of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Levels<'l> {
    /// The norm of each bucket, little-endian.
    pub(crate) norms: &'l [[u8; 4]],
    /// One field a coordinate: level, and sign in bit 7.
    pub(crate) fields: &'l [u8],
}

/// Norms, a field a coordinate, and room for a symbol a coordinate, in this order.
pub(super) fn scratch_len(qsgd: &Qsgd, len: usize) -> ScratchLen {
    let norms = len.div_ceil(qsgd.bucket.get() as usize).saturating_mul(4);
    let words = encode::scratch_len(&plain(qsgd), len).words;
    ScratchLen { words, bytes: len.saturating_mul(2).saturating_add(norms) }
}

/// The same levels, uncoded.
fn plain(qsgd: &Qsgd) -> Qsgd {
    qsgd.with_entropy(EntropyChoice::Fixed)
}

/// Rounds a whole unit.
pub(super) fn decide(
    qsgd: &Qsgd,
    mut input: UnitInput<'_, '_>,
    scratch: &mut Scratch<'_>,
) -> Result<Content, EncodeError> {
    Full::build().ok_or(EncodeError::NotBuilt)?;
    let content = LevelsContent::new(*qsgd, input.unit.len);
    let (plain, stream, (norms, fields, symbols)) =
        (plain(qsgd), qsgd.draws(&input), content.parts_mut(scratch.bytes));
    let piece = input.unit.len.min(PIECE);
    let mut quantizer =
        Quantizer::new(&plain, stream, &mut scratch.words[..piece], &mut symbols[..piece], &mut []);
    quantizer.decide(Values::of(&mut input), norms, fields)?;
    Ok(Content::Levels(content))
}

impl Levels<'_> {
    /// Writes the body, if it takes no more than `room` bytes; `symbols` has room for one symbol a coordinate.
    pub(crate) fn write(
        &self,
        qsgd: &Qsgd,
        symbols: &mut [u8],
        room: usize,
        writer: &mut Writer<'_>,
    ) -> bool {
        let head = 2 + varint_len(u64::from(qsgd.bucket.get())) + 4 * self.norms.len();
        let Some(room) = room.checked_sub(head) else { return false };
        let form = writer.len();
        writer.u8(0);
        writer.u8(encode::norm_byte(qsgd, CODING_F32));
        writer.varint(u64::from(qsgd.bucket.get()));
        writer.bytes(self.norms.as_flattened());
        let packing = self.pack(qsgd, symbols, room, writer);
        if let Some(packing) = packing {
            writer.patch(form, encode::form_byte(qsgd, packing));
        }
        packing.is_some()
    }

    /// Symbols of the buckets whose norm is not zero, at the front of `symbols`; returns how many.
    pub(super) fn gather_symbols(&self, qsgd: &Qsgd, symbols: &mut [u8]) -> usize {
        let buckets = self.fields.chunks(qsgd.bucket.get() as usize).zip(self.norms);
        buckets.filter(|(_, norm)| **norm != [0; 4]).fold(0, |coded, (fields, _)| {
            kernels::symbols_of(Isa::best(), fields, &mut symbols[coded..]);
            coded + fields.len()
        })
    }

    /// Writes the levels in the packing asked for, or the smaller one; returns which, or `None` if it does not fit.
    fn pack(&self, qsgd: &Qsgd, symbols: &mut [u8], room: usize, writer: &mut Writer<'_>) -> Option<u8> {
        let fixed = pack::fixed_bytes(qsgd.bits, self.fields.len())?;
        let coded = self.gather_symbols(qsgd, symbols);
        let symbols = &symbols[..coded];
        let alphabet = 2 * qsgd.bits.levels() as usize + 1;
        let limit = match qsgd.entropy {
            EntropyChoice::Elias => {
                let bytes = pack::elias_bytes(symbols);
                let fits = varint_len(bytes as u64) + bytes <= room;
                return fits.then(|| {
                    pack::elias(symbols, writer);
                    PACKING_ELIAS
                });
            }
            EntropyChoice::Rans => room + 1,
            EntropyChoice::Fixed => 0,
            // Norms and classes of a few buckets are not worth the tables of their own.
            EntropyChoice::Auto | EntropyChoice::Adaptive => fixed.min(room + 1),
        };
        if Full::build().is_some() && limit > 0 && section::write_symbols(symbols, alphabet, limit, writer) {
            return Some(PACKING_RANS);
        }
        if fixed > room || qsgd.entropy == EntropyChoice::Rans {
            return None;
        }
        pack::fixed(Isa::best(), qsgd.bits, self.fields, writer.reserve(fixed));
        Some(pack::fixed_packing(qsgd.bits))
    }
}

/// Largest body with a single coordinate: form, bucket, norm, and one level in any packing.
pub(super) fn least_body_bytes(qsgd: &Qsgd) -> usize {
    let level = match qsgd.entropy {
        EntropyChoice::Rans => section::MAX_SINGLE_BYTES,
        EntropyChoice::Elias => 1 + 3,
        EntropyChoice::Fixed | EntropyChoice::Auto | EntropyChoice::Adaptive => 1,
    };
    2 + varint_len(u64::from(qsgd.bucket.get())) + 4 + level
}
