//! From a gradient to a frame.

use super::draws::{Draws, Purpose};
use super::header::{fingerprint, frame, varint};
use super::{dgc, index, levels, values};
use crate::run::Kept;
use gradwire::{
    Codec, Dense, Density, EncodeError, EntropyChoice, Estimator, GatherCodec, IndexChoice, LevelBits,
    LinearCodec, MaxNorm, Norm, Qsgd, RandomK, Rounding, Source, StepKey, Unit, ValueChoice,
};
use std::num::NonZeroU32;

/// What is encoded. `grad` is already widened to f32, which is exact.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The codec.
    pub codec: &'a Codec,
    /// Names the draws.
    pub key: StepKey,
    /// Shapes of the layout's tensors.
    pub shapes: &'a [Vec<usize>],
    /// Units of the message.
    pub units: &'a [Unit],
    /// The flat gradient.
    pub grad: &'a [f32],
    /// What the memory holds, if there is one.
    pub before: Option<&'a Kept>,
}

/// What comes out.
#[derive(Clone, Debug, PartialEq)]
pub struct Encoded {
    /// The frame.
    pub frame: Vec<u8>,
    /// What the frame decodes to; 0 where it holds nothing.
    pub decoded: Vec<f32>,
    /// What the memory holds now, if there is one.
    pub kept: Option<Kept>,
}

/// k = clamp(round(density·n), 1, n), halves up, in whole billionths.
#[must_use]
pub fn count(density: Density, n: usize) -> usize {
    let rounded = (2 * n as u128 * billionths(density) + 1_000_000_000) / 2_000_000_000;
    (rounded as usize).max(1).min(n)
}

/// The density in billionths.
pub(super) fn billionths(density: Density) -> u128 {
    (density.fraction() * 1e9).round() as u128
}

/// The `k` largest magnitudes by sorting, ties to the lowest position, zeros never; ascending.
#[must_use]
pub fn largest(p: &[f32], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..p.len()).filter(|&i| p[i] != 0.0).collect();
    order.sort_by(|&a, &b| p[b].abs().total_cmp(&p[a].abs()).then(a.cmp(&b)));
    order.truncate(k);
    order.sort_unstable();
    order
}

/// Kind of a body, its bytes, and what it decodes to.
struct Body {
    kind: u8,
    bytes: Vec<u8>,
    decoded: Vec<f32>,
    /// What is left is p at the coordinates not sent and 0 at the others, rather than p less what was decoded.
    clears: Option<Vec<usize>>,
}

fn dense(format: u8, p: &[f32]) -> Body {
    let cells: Vec<_> = p.iter().map(|&value| values::narrow(format, value)).collect();
    let bytes = std::iter::once(format).chain(cells.iter().flat_map(|cell| cell.0.iter().copied())).collect();
    Body { kind: 0, bytes, decoded: cells.into_iter().map(|cell| cell.1).collect(), clears: None }
}

fn sparse(index: IndexChoice, choice: ValueChoice, p: &[f32], selected: &[usize]) -> Body {
    let chosen: Vec<f32> = selected.iter().map(|&i| p[i]).collect();
    let (section, sent) = values::section(choice, &chosen);
    let kept: Vec<usize> =
        selected.iter().zip(&sent).filter(|(_, sent)| sent.is_some()).map(|(&i, _)| i).collect();
    let mut bytes = varint(kept.len() as u64);
    if !kept.is_empty() {
        let (coder, positions) = index::section(index, &kept, p.len());
        bytes.push(coder | values::format(choice).0 << 4);
        bytes.extend(positions);
        bytes.extend(section);
    }
    let mut decoded = vec![0.0; p.len()];
    selected.iter().zip(sent).for_each(|(&i, value)| decoded[i] = value.unwrap_or(0.0));
    Body { kind: 1, bytes, decoded, clears: None }
}

fn quantized(qsgd: &Qsgd, key: StepKey, unit: u32, p: &[f32]) -> Body {
    let draws = (qsgd.rounding() == Rounding::Stochastic).then(|| Draws::new(key, unit, Purpose::Rounding));
    let (bytes, decoded) = levels::body(qsgd, p, draws.as_ref());
    Body { kind: 2, bytes, decoded, clears: None }
}

/// What one worker alone contributes: one bucket, norm `max`, fixed width.
fn alone(maxnorm: &MaxNorm) -> Qsgd {
    Qsgd::new(LevelBits::new(maxnorm.bits()).expect("2 to 8 bits"))
        .with_bucket(NonZeroU32::MAX)
        .with_entropy(EntropyChoice::Fixed)
}

fn seeded(randomk: &RandomK, key: StepKey, unit: u32, p: &[f32]) -> Body {
    let k = count(randomk.density(), p.len());
    let shared = StepKey { source: Source::Shared, ..key };
    let selected = Draws::new(shared, unit, Purpose::Selection).sample(p.len(), k);
    let factor = match randomk.estimator() {
        Estimator::Contraction => 1.0,
        Estimator::Unbiased => (p.len() as f64 / k as f64) as f32,
        other => panic!("the reference does not know {other:?}"),
    };
    let mut bytes = key.seed.to_le_bytes().to_vec();
    bytes.extend(varint(k as u64));
    bytes.push(values::F32);
    bytes.extend(selected.iter().flat_map(|&i| (p[i] * factor).to_le_bytes()));
    let mut decoded = vec![0.0; p.len()];
    selected.iter().for_each(|&i| decoded[i] = p[i] * factor);
    Body { kind: 3, bytes, decoded, clears: Some(selected) }
}

fn unit_body(codec: &Codec, key: StepKey, unit: &Unit, p: &[f32]) -> Body {
    match codec {
        _ if unit.dense => dense(values::F32, p),
        Codec::Gather(GatherCodec::Dense(Dense::F16)) => dense(values::F16, p),
        Codec::Gather(GatherCodec::Dense(Dense::Bf16)) => dense(values::BF16, p),
        Codec::Gather(GatherCodec::TopK(topk)) => {
            sparse(topk.index(), topk.values(), p, &largest(p, count(topk.density(), p.len())))
        }
        Codec::Gather(GatherCodec::Threshold(threshold)) => {
            let is_sent = |&i: &usize| p[i].abs() >= threshold.value() && p[i] != 0.0;
            let selected: Vec<usize> = (0..p.len()).filter(is_sent).collect();
            sparse(threshold.index(), threshold.values(), p, &selected)
        }
        Codec::Gather(GatherCodec::Dgc(codec)) => {
            sparse(codec.index(), codec.values(), p, &dgc::select(codec, key, unit.id, p))
        }
        Codec::Gather(GatherCodec::Qsgd(qsgd)) => quantized(qsgd, key, unit.id, p),
        Codec::Linear(LinearCodec::RandomK(randomk)) => seeded(randomk, key, unit.id, p),
        Codec::Linear(LinearCodec::MaxNorm(maxnorm)) => quantized(&alone(maxnorm), key, unit.id, p),
        _ => dense(values::F32, p),
    }
}

/// Numbers of the codecs on the wire.
fn codec_id(codec: &Codec) -> u8 {
    if codec.name() == "dpsgd" {
        // Whole models are frames of `none`.
        return 0;
    }
    if codec.name() == "maxnorm" {
        // One worker's levels are those of `qsgd`.
        return 5;
    }
    let names = ["none", "f16", "bf16", "topk", "threshold", "qsgd", "randomk", "dgc"];
    names.iter().position(|&name| name == codec.name()).expect("every codec has a number") as u8
}

/// Magnitudes must stay below this.
fn bound(codec: &Codec, unit: &Unit) -> f32 {
    let power = |exponent: i32| 2f32.powi(exponent);
    match codec {
        _ if unit.dense => f32::INFINITY,
        Codec::Gather(GatherCodec::Dense(Dense::F16)) => values::overflow_bound(values::F16),
        Codec::Gather(GatherCodec::Dense(Dense::Bf16)) => values::overflow_bound(values::BF16),
        Codec::Gather(GatherCodec::TopK(topk)) => values::overflow_bound(values::format(topk.values()).0),
        Codec::Gather(GatherCodec::Threshold(threshold)) => {
            values::overflow_bound(values::format(threshold.values()).0)
        }
        Codec::Linear(LinearCodec::MaxNorm(_)) => power(126),
        Codec::Gather(GatherCodec::Dgc(dgc)) => values::overflow_bound(values::format(dgc.values()).0),
        Codec::Gather(GatherCodec::Qsgd(qsgd)) => power(if qsgd.norm() == Norm::L2 { 111 } else { 126 }),
        Codec::Linear(LinearCodec::RandomK(randomk)) if randomk.estimator() == Estimator::Unbiased => {
            power(95)
        }
        _ => f32::INFINITY,
    }
}

fn check(p: &[f32], unit: &Unit, bound: f32) -> Result<(), EncodeError> {
    for (index, value) in (unit.start..).zip(&p[unit.range()]) {
        if !value.is_finite() {
            return Err(EncodeError::NonFiniteInput { index });
        }
        if value.abs() >= bound {
            return Err(EncodeError::ValueOverflow { index });
        }
    }
    Ok(())
}

/// Moves the momentum on and turns the gradient in `p` into the step, wherever the codec has momentum.
fn advance_momentum(job: &Job<'_>, kept: &mut Kept, p: &mut [f32]) {
    let Some(rule) = job.codec.momentum() else { return };
    let momentum = kept.momentum.as_mut().expect("a memory with momentum");
    for unit in job.units.iter().filter(|unit| !unit.dense) {
        let (advanced, step) = dgc::advance(rule, &momentum[unit.range()], &job.grad[unit.range()]);
        momentum[unit.range()].copy_from_slice(&advanced);
        p[unit.range()].copy_from_slice(&step);
    }
}

/// What the memory holds of a unit after its body was made of `p`.
fn keep(kept: &mut Kept, codec: &Codec, unit: &Unit, p: &[f32], body: &Body) {
    for i in 0..unit.len {
        kept.residual[unit.start + i] = match &body.clears {
            None => p[i] - body.decoded[i],
            Some(cleared) if cleared.contains(&i) => 0.0,
            Some(_) => p[i],
        };
    }
    if codec.momentum().is_some() && !unit.dense {
        // Where something was sent, momentum starts anew.
        let momentum = kept.momentum.as_mut().expect("a memory with momentum");
        (0..unit.len).filter(|&i| body.decoded[i] != 0.0).for_each(|i| momentum[unit.start + i] = 0.0);
    }
}

/// One message of all units.
///
/// # Errors
/// `NonFiniteInput` and `ValueOverflow`; structure is taken to be right.
pub fn encode(job: &Job<'_>) -> Result<Encoded, EncodeError> {
    let mut kept = job.before.cloned();
    let mut p = job.grad.to_vec();
    if let Some(kept) = &mut kept {
        advance_momentum(job, kept, &mut p);
        p.iter_mut().zip(&kept.residual).for_each(|(p, kept)| *p += kept);
    }
    job.units.iter().try_for_each(|unit| check(&p, unit, bound(job.codec, unit)))?;
    let mut body = varint(job.key.step);
    let mut decoded = vec![0.0; p.len()];
    let (mut next_id, mut next_start) = (0, 0);
    for unit in job.units {
        let own = unit_body(job.codec, job.key, unit, &p[unit.range()]);
        body.extend(varint(u64::from(unit.id) - next_id));
        body.extend(varint((unit.start - next_start) as u64));
        body.extend(varint(unit.len as u64));
        body.push(own.kind);
        body.extend(&own.bytes);
        (next_id, next_start) = (u64::from(unit.id) + 1, unit.start + unit.len);
        decoded[unit.range()].copy_from_slice(&own.decoded);
        if let Some(kept) = &mut kept {
            keep(kept, job.codec, unit, &p[unit.range()], &own);
        }
    }
    let frame = frame(codec_id(job.codec), job.units.len() as u16, fingerprint(job.shapes), &body);
    Ok(Encoded { frame, decoded, kept })
}
