//! A linear codec of another crate that copies: one worker says which coordinates are sent, and all workers
//! hear the values of all.

use std::sync::Once;

use gradwire::experiments::OwnCodec;
use gradwire::registry::Law;
use gradwire::rounds::{
    LinearScratch, LinearScratchLen, MemoryView, Payload, Reduction, Round, UnitStep, bytes_of,
};
use gradwire::{EncodeError, Grad, LayoutRef, Linear, Memory, Source, Spec, StepKey, Unit};

/// A quarter of the coordinates: those where the leader's p is largest. The leader of a step is drawn.
pub(crate) struct Led;

/// Coordinates that are sent of a unit.
pub(crate) fn count(len: usize) -> usize {
    len.div_ceil(4)
}

/// The place of the leader of a unit.
pub(crate) fn leader(key: StepKey, unit: u32, workers: u32) -> u32 {
    let draw = StepKey { source: Source::Shared, ..key }.experiment(unit).u64_at(0);
    (draw % u64::from(workers)) as u32
}

/// The largest of these values, by position.
pub(crate) fn largest(p: &[f32]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..p.len() as u32).collect();
    let size = |at: u32| p[at as usize].abs();
    order.sort_by(|a, b| size(*b).total_cmp(&size(*a)).then(a.cmp(b)));
    order.truncate(count(p.len()));
    order
}

/// The working memory: p, the positions, and the values of all workers.
struct Parts<'s> {
    p: &'s mut [u32],
    positions: &'s mut [u32],
    values: &'s mut [u32],
}

fn parts<'s>(scratch: &'s mut LinearScratch<'_>, len: usize) -> Parts<'s> {
    let (p, words) = scratch.words.split_at_mut(len);
    let (positions, values) = words.split_at_mut(count(len));
    Parts { p, positions, values }
}

impl Linear for Led {
    fn round_scratch_len(&self, _: &LayoutRef<'_>, unit: &Unit, workers: u32) -> LinearScratchLen {
        let sent = count(unit.len);
        LinearScratchLen { words: unit.len + sent + workers as usize * sent, floats: 0, ints: 0 }
    }

    fn held(&self, len: usize) -> usize {
        count(len)
    }

    fn begin(
        &self,
        step: &UnitStep<'_>,
        grad: Grad<'_>,
        memory: Option<MemoryView<'_>>,
        scratch: &mut LinearScratch<'_>,
    ) -> Result<Round, EncodeError> {
        let (Grad::F32(grad), unit) = (grad, *step.unit) else { panic!("a gradient of f32") };
        let residual = memory.ok_or(EncodeError::MemoryIncomplete)?.residual;
        let p: Vec<f32> = residual.iter().zip(grad).map(|(kept, grad)| kept + grad).collect();
        if let Some(at) = p.iter().position(|value| !value.is_finite()) {
            return Err(EncodeError::NonFiniteInput { index: unit.start + at });
        }
        let from = leader(step.key, unit.id, step.workers);
        let parts = parts(scratch, unit.len);
        parts.p.iter_mut().zip(&p).for_each(|(to, value)| *to = value.to_bits());
        if step.place == from {
            parts.positions.iter_mut().zip(largest(&p)).for_each(|(to, at)| *to = at.to_le());
        }
        let payload_len = 4 * count(unit.len);
        Ok(Round { index: 0, reduction: Reduction::Broadcast { from }, unit, payload_len })
    }

    fn payload<'s>(&self, round: &Round, scratch: &'s mut LinearScratch<'_>) -> Payload<'s> {
        let parts = parts(scratch, round.unit.len);
        let words = if round.index == 0 { parts.positions } else { parts.values };
        Payload::Bytes(&mut bytes_of(words)[..round.payload_len])
    }

    fn advance(
        &self,
        step: &UnitStep<'_>,
        round: Round,
        scratch: &mut LinearScratch<'_>,
        mean: &mut [f32],
        memory: Option<&mut Memory<'_>>,
    ) -> Option<Round> {
        let (parts, workers) = (parts(scratch, round.unit.len), step.workers as usize);
        let sent = parts.positions.len();
        if round.index == 0 {
            // A stranger may have sent any positions.
            let of = |at: &u32| parts.p[u32::from_le(*at) as usize % round.unit.len].to_le();
            let own = &mut parts.values[step.place as usize * sent..][..sent];
            own.iter_mut().zip(&*parts.positions).for_each(|(to, at)| *to = of(at));
            let payload_len = 4 * workers * sent;
            return Some(Round { index: 1, reduction: Reduction::Gather, payload_len, ..round });
        }
        let residual = memory.expect("it was there before").residual_mut();
        residual.iter_mut().zip(&*parts.p).for_each(|(kept, p)| *kept = f32::from_bits(*p));
        mean.fill(0.0);
        for (i, at) in parts.positions.iter().enumerate() {
            let at = u32::from_le(*at) as usize % round.unit.len;
            let all = (0..workers).map(|place| f32::from_bits(u32::from_le(parts.values[place * sent + i])));
            mean[at] = all.reduce(|sum, value| sum + value).expect("a worker") / workers as f32;
            residual[at] = 0.0;
        }
        None
    }
}

/// Registers the codec as `x:led`.
pub(crate) fn spec(spelling: &str) -> Spec {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let codec = OwnCodec::linear("led", "where one worker's are largest", Law::Exact, |_| Ok(Led));
        codec.examples(&["x:led", "x:led:unit=tensor"]).register().unwrap();
    });
    Spec::parse(spelling).unwrap_or_else(|error| panic!("{error}"))
}
