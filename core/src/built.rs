//! The feature `full`: what a build for a small machine leaves out.

use crate::error::DecodeError;

/// Proof that nothing is left out of this build.
///
/// Without the feature `full` there is no value of this type, so the compiler drops all code that needs such
/// a value. Codecs and frames that need that code are refused. So no build ever gives another result than the
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full(Build);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Build {
    #[cfg(feature = "full")]
    Full,
}

impl Full {
    /// The proof, in a full build.
    pub(crate) const fn build() -> Option<Self> {
        #[cfg(feature = "full")]
        return Some(Self(Build::Full));
        #[cfg(not(feature = "full"))]
        None
    }

    /// The proof, for a frame that needs it.
    ///
    /// # Errors
    /// [`DecodeError::NotBuilt`] in a build that is not full.
    pub(crate) fn required() -> Result<Self, DecodeError> {
        Self::build().ok_or(DecodeError::NotBuilt)
    }
}

/// A bound on magnitudes that only a full build keeps: elsewhere it is always infinite, and takes no room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FullBound {
    #[cfg(feature = "full")]
    bound: f32,
}

impl FullBound {
    /// Nothing is known.
    pub(crate) const UNKNOWN: Self = Self::new(f32::INFINITY);

    /// This bound.
    pub(crate) const fn new(bound: f32) -> Self {
        #[cfg(not(feature = "full"))]
        let _ = bound;
        Self {
            #[cfg(feature = "full")]
            bound,
        }
    }

    /// The bound.
    pub(crate) const fn get(self) -> f32 {
        #[cfg(feature = "full")]
        return self.bound;
        #[cfg(not(feature = "full"))]
        f32::INFINITY
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use crate::codecs::*;
    use crate::format::CodecId;
    use crate::frame::header::{HEADER_BYTES, Header};
    use crate::half::{bf16, f16};
    use crate::wire::writer::Writer;
    use crate::*;
    use core::num::NonZeroU32;
    use std::{vec, vec::Vec};

    const N: usize = 2;

    fn encode(codec: &dyn Gather) -> Result<Vec<u8>, EncodeError> {
        let (mut words, mut bytes, mut out) = ([0; 8192], [0; 64], vec![0; 4096]);
        let mut scratch = Scratch { words: &mut words, bytes: &mut bytes };
        let (layout, grad) = (LayoutRef::flat(N), Grad::F32(&[0.5, -3.0]));
        let key = StepKey { seed: 1, step: 0, source: Source::Rank(0) };
        let step = StepInput { key, layout: &layout, units: &[Unit::whole(N)], grad };
        let len = codec.encode(&step, None, &mut scratch, &mut out)?;
        out.truncate(len);
        Ok(out)
    }

    #[test]
    fn gradients_of_half_precision_need_a_full_build() {
        let (mut words, mut out) = ([0; 64], [0; 128]);
        let mut scratch = Scratch { words: &mut words, bytes: &mut [] };
        let key = StepKey { seed: 1, step: 0, source: Source::Rank(0) };
        let mut encode = |grad| {
            let layout = LayoutRef::flat(N);
            let input = StepInput { key, layout: &layout, units: &[Unit::whole(N)], grad };
            Dense::F32.encode(&input, None, &mut scratch, &mut out).map(|_| ())
        };
        let half = encode(Grad::F16(&[f16::ONE; N]));
        assert_eq!(half, if cfg!(feature = "full") { Ok(()) } else { Err(EncodeError::NotBuilt) });
        assert_eq!(encode(Grad::Bf16(&[bf16::ONE; N])), Ok(()));
    }

    fn parse(frame: &[u8]) -> Result<(), DecodeError> {
        let layout = LayoutRef::flat(N);
        Frame::parse(frame, &layout, &Limits::for_layout(&layout), &mut [0; 8192]).map(|_| ())
    }

    fn topk(values: ValueChoice) -> TopK {
        TopK::new(Density::new(0.5).unwrap(), IndexChoice::Raw, values)
    }

    fn coded_by(index: IndexChoice) -> TopK {
        TopK::new(Density::new(0.5).unwrap(), index, ValueChoice::F32)
    }

    fn qsgd(entropy: EntropyChoice) -> Qsgd {
        Qsgd::new(LevelBits::new(4).unwrap()).with_entropy(entropy)
    }

    #[test]
    fn codecs_that_need_a_full_build_are_refused_in_any_other() {
        let half = Density::new(0.5).unwrap();
        let whole: [&dyn Gather; 16] = [
            &Dgc::new(half, IndexChoice::Context, ValueChoice::F32),
            &Sidco::new(half, IndexChoice::Raw, ValueChoice::Q4).with_stages(NonZeroU32::new(1)),
            &coded_by(IndexChoice::Context),
            &coded_by(IndexChoice::ContextMax),
            &coded_by(IndexChoice::Small),
            &coded_by(IndexChoice::Smallest),
            &Dense::F16,
            &topk(ValueChoice::F16),
            &Qsgd::new(LevelBits::Ternary).with_entropy(EntropyChoice::Fixed),
            &topk(ValueChoice::Q4),
            &qsgd(EntropyChoice::Auto),
            &qsgd(EntropyChoice::Elias),
            &qsgd(EntropyChoice::Rans),
            &qsgd(EntropyChoice::Adaptive),
            &qsgd(EntropyChoice::Fixed).with_norm(Norm::L2),
            &RandomK::new(Density::new(0.5).unwrap(), Estimator::Contraction),
        ];
        for codec in whole {
            let encoded = encode(codec).map(|frame| parse(&frame));
            assert_eq!(encoded, if cfg!(feature = "full") { Ok(Ok(())) } else { Err(EncodeError::NotBuilt) });
        }
        for codec in [&topk(ValueChoice::Bf16) as &dyn Gather, &qsgd(EntropyChoice::Fixed), &Dense::Bf16] {
            assert_eq!(encode(codec).map(|frame| parse(&frame)), Ok(Ok(())));
        }
    }

    #[test]
    fn codecs_that_remember_something_of_a_unit_need_a_full_build() {
        let sidco = Sidco::new(Density::new(0.5).unwrap(), IndexChoice::Raw, ValueChoice::F32);
        let missing =
            if cfg!(feature = "full") { EncodeError::MemoryIncomplete } else { EncodeError::NotBuilt };
        assert_eq!(encode(&sidco), Err(missing));
    }

    /// A frame with one byte of its body, counted from the end, replaced.
    fn patched(mut frame: Vec<u8>, codec: CodecId, from_end: usize, byte: u8) -> Vec<u8> {
        let at = frame.len() - from_end;
        frame[at] = byte;
        let (head, body) = frame.split_at_mut(HEADER_BYTES);
        let header = Header { codec, ..Header::parse(head).unwrap() };
        let len = body.len();
        let mut writer = Writer::new(body);
        writer.advance(len);
        head.copy_from_slice(&header.to_bytes(&writer));
        frame
    }

    #[test]
    fn frames_that_need_a_full_build_are_refused_in_any_other() {
        let sparse = encode(&topk(ValueChoice::F32)).unwrap();
        let levels = encode(&qsgd(EntropyChoice::Fixed)).unwrap();
        // After `coding` of the sparse body come a byte of positions and a value; before it are `k` and the
        // kind. After `norm` of the levels body come two bytes of bucket size, a norm and a byte of levels;
        // before it is `form`.
        for (frame, codec, from_end, byte) in [
            (&sparse, CodecId::new(3), 6, 3 << 4),
            (&sparse, CodecId::new(3), 6, 4 << 4),
            (&sparse, CodecId::new(3), 6, 5 << 4),
            (&sparse, CodecId::new(3), 6, 6 << 4),
            (&sparse, CodecId::new(3), 6, 3),
            (&sparse, CodecId::new(6), 8, 3),
            (&levels, CodecId::new(5), 8, 1 << 4 | 1),
            (&levels, CodecId::new(5), 9, 1 << 4 | 4),
            (&levels, CodecId::new(5), 9, 2 << 4 | 4),
            (&levels, CodecId::new(5), 9, 3 << 4 | 2),
        ] {
            let result = parse(&patched(frame.clone(), codec, from_end, byte));
            assert_eq!(result == Err(DecodeError::NotBuilt), !cfg!(feature = "full"), "{result:?}");
        }
    }
}
