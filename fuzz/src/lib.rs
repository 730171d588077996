//! What the targets share: bytes as gradients, and the law that every codec with a memory keeps.

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

/// Encodes the first half of `data` onto a residual, the second half. Either all is as the naive reference says, and
/// what is sent and what is kept add up to residual + gradient, bit for bit; or there is the same error, and the residual
/// is as it was.
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
    run::parse(&frame, &layout, &run::no_limits(), |frame| Memory::new(&mut kept).give_back(frame))
        .expect("a frame");
    assert_eq!(bits(&kept), bits(&p));
}
