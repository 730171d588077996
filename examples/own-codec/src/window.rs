//! Consecutive coordinates, as they are; with each step the window moves on.

use gradwire::Scratch;
use gradwire::experiments::{BodyOutline, EncodeBody, Experiment, ParseBody, Refused, UnitBody, UnitSource};
use gradwire::registry::Law;

/// Sends as many coordinates as its density says. Error feedback keeps the others.
///
/// A body is the first position and the number of coordinates as u32, and then their values as f32.
pub(crate) struct Window;

/// First position and number of a body's coordinates.
fn head(bytes: &[u8]) -> Option<[usize; 2]> {
    let words = bytes.first_chunk::<8>()?.as_chunks::<4>().0;
    Some([0, 1].map(|at| u32::from_le_bytes(words[at]) as usize))
}

impl ParseBody for Window {
    fn experiment(&self) -> Experiment {
        const { Experiment::new(0xf5).unwrap() }
    }

    fn name(&self) -> &'static str {
        "window"
    }

    fn outline(&self, body: &UnitBody<'_>) -> Result<BodyOutline, Refused> {
        let [_, held] = head(body.bytes).unwrap_or_default();
        // gradwire compares this with the bytes that are there, and with the length of the unit.
        Ok(BodyOutline { bytes: held.saturating_mul(4).saturating_add(8), held, scratch_words: 0 })
    }

    fn visit(&self, body: &UnitBody<'_>, _: &[u32], f: &mut dyn FnMut(usize, f32)) {
        let Some([first, _]) = head(body.bytes) else { return };
        let (values, _) = body.bytes[8..].as_chunks();
        // gradwire checks that positions are inside of the unit, and that values are finite.
        values
            .iter()
            .enumerate()
            .for_each(|(at, value)| f(first.saturating_add(at), f32::from_le_bytes(*value)));
    }
}

impl EncodeBody for Window {
    fn law(&self) -> Law {
        Law::Exact
    }

    fn max_body_bytes(&self, len: usize) -> Option<usize> {
        len.checked_mul(4)?.checked_add(8)
    }

    fn encode_body(
        &self,
        source: &UnitSource<'_>,
        values: &[f32],
        _: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, Refused> {
        let density = source.density.ok_or(Refused::new("it was registered without a density"))?;
        let held = density.count(values.len());
        let windows = values.len().div_ceil(held.max(1)).max(1) as u64;
        let first = (source.key.step % windows) as usize * held;
        let window = &values[first..values.len().min(first + held)];
        out[..4].copy_from_slice(&(first as u32).to_le_bytes());
        out[4..8].copy_from_slice(&(window.len() as u32).to_le_bytes());
        for (bytes, value) in out[8..].chunks_exact_mut(4).zip(window) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
        Ok(8 + 4 * window.len())
    }
}
