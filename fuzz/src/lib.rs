//! What the targets share: bytes as gradients, and the law that every codec with a memory keeps.

use gradwire::registry::{CODECS, Law};
use gradwire::state::MemoryChoice;
use gradwire::{Codec, Grad, LayoutRef, Memory, Source, Spec, StepKey, Unit};
use gradwire_tests::naive::encode::{Job, encode};
use gradwire_tests::run::{self, Kept, bits};

/// Floats with the bits of `bytes`; what is left over is dropped.
#[must_use]
pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|&chunk| f32::from_le_bytes(chunk)).collect()
}

/// One of `words`, by the first byte of `data`, which is taken off.
pub fn pick<'w>(data: &mut &[u8], words: &[&'w str]) -> &'w str {
    let (&first, rest) = data.split_first().unwrap_or((&0, &[]));
    *data = rest;
    words[usize::from(first) % words.len()]
}

/// The codec of a spelling that must be one.
///
/// # Panics
/// When it is not.
#[must_use]
pub fn codec(spelling: &str) -> Codec {
    Spec::parse(spelling).unwrap_or_else(|error| panic!("{spelling}: {error}")).codec
}

/// The examples of all codecs that have frames and keep a residual and nothing else.
#[must_use]
pub fn listed() -> Vec<&'static str> {
    let examples = CODECS.iter().flat_map(|entry| entry.examples).copied();
    let is_fit = |spelling: &&str| {
        let spec = Spec::parse(spelling).expect("an example is a spelling");
        let capabilities = spec.codec.capabilities();
        capabilities.has_frames && !capabilities.adapts && spec.memory == MemoryChoice::ErrorFeedback
    };
    examples.filter(is_fit).collect()
}

/// Encodes the first half of `data` onto a residual, the second half. Either all is as the naive reference
/// says, and what is sent and what is kept add up to residual + gradient, as exactly as the codec's law says;
/// or there is the same error, and the residual is as it was.
///
/// # Panics
/// When the law does not hold.
pub fn conserves(codec: &Codec, data: &[u8]) {
    let values = floats(data);
    let (grad, residual) = values.split_at(values.len() / 2);
    // Zeros kept back are +0: a sum of zeros does not tell.
    let residual: Vec<f32> = residual[..grad.len()].iter().map(|kept| kept + 0.0).collect();
    let (key, units) = (StepKey { seed: 1, step: 2, source: Source::Rank(3) }, [Unit::whole(grad.len())]);
    let layout = LayoutRef::flat(grad.len());
    let mut kept = residual.clone();
    let frame = run::encode(codec, key, &layout, &units, Grad::F32(grad), Some(&mut kept), 0);
    let shapes = [vec![grad.len()]];
    let before = Kept { residual: residual.clone(), ..Kept::default() };
    let naive = encode(&Job { codec, key, shapes: &shapes, units: &units, grad, before: Some(&before) });
    let Ok(frame) = frame else {
        assert_eq!(frame.err(), naive.err());
        return assert_eq!(bits(&kept), bits(&residual));
    };
    assert_eq!(frame, naive.expect("both or neither").frame);
    let p: Vec<f32> = residual.iter().zip(grad).map(|(kept, grad)| kept + grad).collect();
    let mut sent = vec![0.0; grad.len()];
    let give_back = |frame: &gradwire::Frame<'_>| {
        frame.add_scaled_to(1.0, &mut sent);
        Memory::new(&mut kept).give_back(frame);
    };
    run::parse(&frame, &layout, &run::no_limits(), give_back).expect("a frame");
    if codec.capabilities().law == Law::Exact {
        return assert_eq!(bits(&kept), bits(&p));
    }
    let magnitudes = p.iter().zip(&sent).map(|(p, sent)| f64::from(p.abs()) + f64::from(sent.abs()));
    for (at, (allowed, (kept, p))) in magnitudes.zip(kept.iter().zip(&p)).enumerate() {
        let off = (f64::from(*kept) - f64::from(*p)).abs();
        assert!(off <= allowed * 0.5_f64.powi(23), "{at}: {kept} is not {p}");
    }
}
