//! Writes received levels again with every coder, to find their exact size under each.

use super::encode::{self, Body};
use super::fields::Levels;
use super::view::LevelsFields;
use super::{EntropyChoice, LevelBits, Qsgd};
use crate::scratch::ScratchLen;
use crate::wire::writer::Writer;
use alloc::vec;
use alloc::vec::Vec;
use core::num::NonZeroU32;

impl LevelsFields<'_> {
    /// Bodies with the same norms and levels, one from each coder: fixed width (two bits also as ternary
    /// levels), Elias, rANS, adaptive. None if the first bucket is cut. `scratch` is what
    /// [`check`](Self::check) filled.
    pub(super) fn rewritten(&self, scratch: &[u32]) -> Vec<Vec<u8>> {
        let Some((norms, fields)) = self.norms_and_fields(scratch) else { return Vec::new() };
        let levels = Levels { norms: &norms, fields: &fields };
        self.codecs().filter_map(|qsgd| levels.body(&qsgd)).collect()
    }

    /// Codecs that may have written these levels, except for norm and rounding, on which no length depends.
    fn codecs(&self) -> impl Iterator<Item = Qsgd> {
        let width = self.bits;
        let ternary = (width == LevelBits::Bits(2)).then_some((LevelBits::Ternary, EntropyChoice::Fixed));
        let coded = [EntropyChoice::Elias, EntropyChoice::Rans, EntropyChoice::Adaptive];
        let bucket = u32::try_from(self.bucket).ok().and_then(NonZeroU32::new);
        let bucket = bucket.unwrap_or(Qsgd::DEFAULT_BUCKET);
        core::iter::once((width, EntropyChoice::Fixed))
            .chain(ternary)
            .chain(coded.map(|entropy| (width, entropy)))
            .map(move |(bits, entropy)| Qsgd::new(bits).with_bucket(bucket).with_entropy(entropy))
    }
}

impl Levels<'_> {
    /// The body of a unit with these levels; `None` where its bound exceeds the address space.
    fn body(&self, qsgd: &Qsgd) -> Option<Vec<u8>> {
        let len = self.fields.len();
        let mut out = vec![0; encode::max_body_bytes(qsgd, len)?];
        let ScratchLen { words, bytes } = encode::scratch_len(qsgd, len);
        let (mut words, mut bytes) = (vec![0; words], vec![0; bytes]);
        let mut writer = Writer::new(&mut out);
        let body = Body::new(qsgd, None, len, &mut words, &mut bytes);
        body.write_filled(&mut writer, |quantizer, norms, fixed| {
            quantizer.take(self, norms, fixed);
            Ok(())
        })
        .ok()?;
        let bytes = writer.len();
        out.truncate(bytes);
        Some(out)
    }
}
