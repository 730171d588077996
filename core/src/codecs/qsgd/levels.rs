//! The levels decided for a whole unit, written as the bodies of its pieces.

use super::context::{self, Form};
use super::fields::Levels;
use super::norms::{CODING_F32, CODING_STREAM};
use super::pack::{self, PACKING_CONTEXT, PACKING_ELIAS, PACKING_RANS};
use super::quantize::{PIECE, Quantizer, Values};
use super::{EntropyChoice, Qsgd, encode};
use crate::built::Full;
use crate::codec::{Decided, UnitInput};
use crate::coding::entropy::section;
use crate::error::EncodeError;
use crate::kernels::{self, Isa};
use crate::scratch::{Scratch, ScratchLen};
use crate::wire::writer::{Writer, varint_len};

/// The levels of a unit, in the scratch memory: its norms, a field a coordinate, and room for a symbol a
/// coordinate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Content {
    pub(super) qsgd: Qsgd,
    pub(super) len: usize,
}

impl Content {
    pub(super) fn bucket(&self) -> usize {
        self.qsgd.bucket().get() as usize
    }

    /// Norms, fields and symbols.
    pub(super) fn parts_mut<'s>(
        &self,
        bytes: &'s mut [u8],
    ) -> (&'s mut [[u8; 4]], &'s mut [u8], &'s mut [u8]) {
        let (norms, bytes) = bytes.split_at_mut(4 * self.len.div_ceil(self.bucket()));
        let (fields, symbols) = bytes.split_at_mut(self.len);
        (norms.as_chunks_mut().0, fields, &mut symbols[..self.len])
    }
}

/// Norms, a field a coordinate, and room for a symbol a coordinate, in this order.
pub(super) fn scratch_len(qsgd: &Qsgd, len: usize) -> ScratchLen {
    let norms = len.div_ceil(qsgd.bucket.get() as usize).saturating_mul(4);
    let words = encode::scratch_len(&plain(qsgd), len).words;
    ScratchLen { words, bytes: len.saturating_mul(2).saturating_add(norms) }
}

/// The same codec with levels written uncoded.
fn plain(qsgd: &Qsgd) -> Qsgd {
    qsgd.with_entropy(EntropyChoice::Fixed)
}

/// Rounds a whole unit.
pub(super) fn decide(
    qsgd: &Qsgd,
    mut input: UnitInput<'_, '_>,
    scratch: &mut Scratch<'_>,
) -> Result<Decided, EncodeError> {
    Full::build().ok_or(EncodeError::NotBuilt)?;
    let content = Content { qsgd: *qsgd, len: input.unit.len };
    let (plain, stream, (norms, fields, symbols)) =
        (plain(qsgd), qsgd.draws(&input), content.parts_mut(scratch.bytes));
    let piece = input.unit.len.min(PIECE);
    let mut quantizer =
        Quantizer::new(&plain, stream, &mut scratch.words[..piece], &mut symbols[..piece], &mut []);
    quantizer.decide(Values::of(&mut input), norms, fields)?;
    Ok(Decided { atoms: content.len, values: None })
}

impl Levels<'_> {
    /// How many of the coordinates fit a body of at most `room(coordinates)` bytes, if pieces may end
    /// anywhere. `first` is the position of the first in the unit.
    pub(crate) fn fitting(&self, qsgd: &Qsgd, first: usize, room: impl Fn(usize) -> usize) -> usize {
        context::fitting(form_at(qsgd, first), self, room)
    }

    /// Writes the body, if it takes at most `room` bytes. `first` is the position of its first coordinate in
    /// the unit, and `symbols` has room for one symbol a coordinate.
    pub(crate) fn write(
        &self,
        qsgd: &Qsgd,
        first: usize,
        symbols: &mut [u8],
        room: usize,
        writer: &mut Writer<'_>,
    ) -> bool {
        if qsgd.cuts_anywhere() {
            encode::write_head(qsgd, PACKING_CONTEXT, CODING_STREAM, writer);
            return context::write(form_at(qsgd, first), self, room, writer);
        }
        let head = encode::head_bytes(qsgd) + 4 * self.norms.len();
        let Some(room) = room.checked_sub(head) else { return false };
        let form = writer.len();
        encode::write_head(qsgd, 0, CODING_F32, writer);
        writer.bytes(self.norms.as_flattened());
        let packing = self.pack(qsgd, symbols, room, writer);
        if let Some(packing) = packing {
            writer.patch(form, encode::form_byte(qsgd, packing));
        }
        packing.is_some()
    }

    /// Writes the symbols of the buckets whose norm is not zero to the front of `symbols`; returns how many.
    pub(super) fn gather_symbols(&self, qsgd: &Qsgd, symbols: &mut [u8]) -> usize {
        let buckets = self.fields.chunks(qsgd.bucket.get() as usize).zip(self.norms);
        buckets.filter(|(_, norm)| **norm != [0; 4]).fold(0, |coded, (fields, _)| {
            kernels::symbols_of(Isa::best(), fields, &mut symbols[coded..]);
            coded + fields.len()
        })
    }

    /// Writes the levels in the packing that was asked for. Returns the packing, or `None` if it does not
    /// fit.
    fn pack(&self, qsgd: &Qsgd, symbols: &mut [u8], room: usize, writer: &mut Writer<'_>) -> Option<u8> {
        let fixed = pack::fixed_bytes(qsgd.bits, self.fields.len())?;
        let coded = self.gather_symbols(qsgd, symbols);
        let symbols = &symbols[..coded];
        match qsgd.entropy {
            EntropyChoice::Elias => {
                let bytes = pack::elias_bytes(symbols);
                let fits = varint_len(bytes as u64) + bytes <= room;
                fits.then(|| {
                    pack::elias(symbols, writer);
                    PACKING_ELIAS
                })
            }
            EntropyChoice::Rans => {
                section::write_symbols(symbols, qsgd.alphabet(), room + 1, writer).then_some(PACKING_RANS)
            }
            _ => (fixed <= room).then(|| {
                pack::fixed(Isa::best(), qsgd.bits, self.fields, writer.reserve(fixed));
                pack::fixed_packing(qsgd.bits)
            }),
        }
    }
}

/// The form, under context, of a piece that begins with coordinate `at` of the unit.
fn form_at(qsgd: &Qsgd, at: usize) -> Form {
    let bucket = qsgd.bucket.get() as usize;
    Form { bits: qsgd.bits, bucket, first: bucket - at % bucket }
}

/// Largest body with a single coordinate: form, bucket, norm, and one level in any packing.
pub(super) fn least_body_bytes(qsgd: &Qsgd) -> usize {
    let bucket = varint_len(u64::from(qsgd.bucket.get()));
    let level = match qsgd.entropy {
        EntropyChoice::Rans => 4 + section::MAX_SINGLE_BYTES,
        EntropyChoice::Elias => 4 + 1 + 3,
        EntropyChoice::Fixed => 4 + 1,
        EntropyChoice::Auto | EntropyChoice::Adaptive => bucket + context::MAX_SINGLE_BYTES,
    };
    encode::head_bytes(qsgd) + level
}
