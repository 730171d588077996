//! How much of a worker's gradient a codec would send at two densities, before it sends anything.

use gradwire::arithmetic::gain::{Gain, Trial};
use gradwire::{
    Codec, Decoder, Density, EncodeError, Grad, LayoutRef, Limits, Memory, Selection, StepKey, Unit,
};

/// Below this factor between two densities, values are not compressed a second time: they have gained too
/// little from the first.
const LEAST_FACTOR: f64 = 2.0;

/// Measures gains. The memory stays as it is.
///
/// The second density is at most the first. With codecs that a [`Selection`] fits, the gradient is read once,
/// and the selection stays for the encode. With others, the values in the frame of a [`Trial`] are compressed
/// again, unit by unit; but densities that are closer than [`LEAST_FACTOR`] have a trial each.
#[derive(Debug, Default)]
pub(super) struct Gains {
    trial: Trial,
    again: Trial,
    decoder: Decoder,
    values: Vec<f32>,
}

/// What would be encoded.
pub(super) struct Gradient<'a> {
    pub(super) codec: &'a Codec,
    pub(super) key: StepKey,
    pub(super) layout: &'a LayoutRef<'a>,
    pub(super) units: &'a [Unit],
    pub(super) grad: Grad<'a>,
    pub(super) memory: Option<&'a Memory<'static>>,
}

/// A step at density 1 is dense. Redsync's frame at that density would not be: its threshold is above the
/// mean.
fn sent_at(density: Density, gain: Gain) -> Gain {
    if density.fraction() == 1.0 { Gain { sent: gain.whole, ..gain } } else { gain }
}

impl Gains {
    /// The gain at each of the densities, in descending order.
    ///
    /// # Errors
    ///
    /// What keeps the gradient from being encoded.
    pub(super) fn of(
        &mut self,
        gradient: &Gradient<'_>,
        levels: [Density; 2],
        selection: &mut Selection,
    ) -> Result<[f64; 2], EncodeError> {
        let gains = if Selection::fits(gradient.codec) {
            let Gradient { codec, key, layout, units, grad, memory } = *gradient;
            let gains = selection.select(codec, key, layout, units, grad, memory, &levels)?;
            [sent_at(levels[0], gains[0]), sent_at(levels[1], gains[1])]
        } else {
            self.tried(gradient, levels)?
        };
        Ok(gains.map(Gain::ratio))
    }

    fn tried(&mut self, gradient: &Gradient<'_>, levels: [Density; 2]) -> Result<[Gain; 2], EncodeError> {
        let [first, second] = levels;
        if first == second {
            return Ok([self.direct(gradient, first)?; 2]);
        }
        if first.fraction() < LEAST_FACTOR * second.fraction() {
            return Ok([self.direct(gradient, first)?, self.direct(gradient, second)?]);
        }
        let Gradient { codec, key, layout, units, grad, memory } = *gradient;
        let Self { trial, again, decoder, values, .. } = self;
        let tried = trial.encode(&codec.with_density(first), key, layout, units, grad, memory)?;
        let frame = decoder.parse(tried.frame, layout, &Limits::for_layout(layout));
        let frame = frame.expect("a frame that was just written decodes");
        let mut sent = 0.0;
        for unit in frame.units() {
            values.clear();
            unit.for_each(|_, value| values.push(value));
            let is_dense = units.iter().any(|known| known.dense && known.range() == unit.range());
            let count = if is_dense { values.len() } else { second.count(unit.range().len()) };
            sent += sent_of(again, codec, key, values, count)?;
        }
        Ok([tried.gain, Gain { sent, whole: tried.gain.whole }])
    }

    /// The gain of the frame at that density.
    fn direct(&mut self, gradient: &Gradient<'_>, density: Density) -> Result<Gain, EncodeError> {
        let Gradient { codec, key, layout, units, grad, memory } = *gradient;
        let codec = codec.with_density(density);
        Ok(self.trial.encode(&codec, key, layout, units, grad, memory)?.gain)
    }
}

/// The sum of squares of what the codec sends, if it sends `count` of these values.
fn sent_of(
    trial: &mut Trial,
    codec: &Codec,
    key: StepKey,
    values: &[f32],
    count: usize,
) -> Result<f64, EncodeError> {
    let share = Density::new(count as f64 / values.len() as f64).filter(|_| count < values.len());
    let Some(share) = share else {
        return Ok(values.iter().map(|&value| f64::from(value) * f64::from(value)).sum());
    };
    let (layout, units) = (LayoutRef::flat(values.len()), [Unit::whole(values.len())]);
    // Other draws than at the first level, because those chose these values.
    let key = StepKey { seed: !key.seed, ..key };
    Ok(trial.encode(&codec.with_density(share), key, &layout, &units, Grad::F32(values), None)?.gain.sent)
}

#[cfg(test)]
mod tests {
    use gradwire::{Layout, Source, Spec};

    use super::*;
    use crate::rng::{Draws, Purpose};

    const LEN: usize = 4000;

    fn gains(codec: &str, levels: [f64; 2]) -> ([f64; 2], [f64; 2]) {
        let spec = Spec::parse(codec).unwrap();
        let layout = Layout::packed([("w", vec![40, 99]), ("b", vec![40])]).unwrap();
        let units: Vec<Unit> = spec.units.units(&layout.as_ref()).collect();
        let mut draws = Draws::new(5, Purpose::Shuffle, 0, 0);
        let mut normal = || (0..LEN).map(|_| draws.normal_f32()).collect::<Vec<f32>>();
        let (grad, before) = (normal(), normal());
        let mut kept = Memory::for_spec(&spec, &layout.as_ref()).unwrap();
        kept.residual_mut().copy_from_slice(&before);
        let key = StepKey { seed: 3, step: 8, source: Source::Rank(1) };
        let (layout, grad) = (layout.as_ref(), Grad::F32(&grad));
        let levels = levels.map(|share| Density::new(share).unwrap());
        let memory = Some(&kept);
        let gradient = Gradient { codec: &spec.codec, key, layout: &layout, units: &units, grad, memory };
        let measured = Gains::default().of(&gradient, levels, &mut Selection::new()).unwrap();
        assert_eq!(kept.residual(), before, "{codec}");
        let encoded = levels.map(|density| {
            let mut trial = Trial::new();
            let codec = spec.codec.with_density(density);
            trial.encode(&codec, key, &layout, &units, grad, memory).unwrap().gain.ratio()
        });
        (measured, encoded)
    }

    #[test]
    fn sparsifiers_of_the_largest_values_have_the_gains_of_their_frames() {
        for codec in ["topk", "topk:unit=tensor", "topk:dense_1d=true", "dgc:momentum=0", "redsync"] {
            let (measured, encoded) = gains(codec, [0.1, 0.02]);
            for level in [0, 1] {
                let off = (measured[level] - encoded[level]).abs();
                assert!(off < 1e-12, "{codec}: {measured:?} {encoded:?}");
            }
            assert!(measured[0] > 1.5 * measured[1], "{codec}");
        }
    }

    #[test]
    fn others_have_about_the_gains_of_their_frames() {
        for (codec, within) in [("topk:chunk=1024", 1.1), ("randomk", 2.0)] {
            let (measured, encoded) = gains(codec, [0.1, 0.02]);
            for level in [0, 1] {
                let ratio = measured[level] / encoded[level];
                assert!((1.0 / within..within).contains(&ratio), "{codec}: {measured:?} {encoded:?}");
            }
            assert!(measured[0] > 1.5 * measured[1], "{codec}");
        }
    }

    #[test]
    fn densities_that_are_near_have_the_gains_of_their_frames_and_everything_has_the_gain_1() {
        for codec in ["topk", "dgc", "redsync", "randomk"] {
            let (measured, _) = gains(codec, [0.1, 0.1]);
            assert_eq!(measured[0], measured[1], "{codec}");
        }
        let (measured, encoded) = gains("randomk", [0.1, 0.06]);
        assert_eq!(measured, encoded, "too near each other to compress twice");
        for codec in ["topk", "redsync", "randomk"] {
            let (measured, _) = gains(codec, [1.0, 1.0]);
            assert!(measured.iter().all(|gain| (gain - 1.0).abs() < 1e-12), "{codec}: {measured:?}");
        }
    }
}
