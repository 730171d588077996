//! From a gradient to a frame.

use super::context::Place;
use super::draws::{Draws, Purpose};
use super::header::{fingerprint, frame, varint};
use super::{dgc, efsign, index, levels, randomk, redsync, sidco, values};
use crate::run::Kept;
use gradwire::codecs::{
    Dense, EntropyChoice, Estimator, IndexChoice, MaxNorm, Norm, Qsgd, Rounding, ValueChoice,
};
use gradwire::registry::{GatherCodec, LinearCodec};
use gradwire::state::UnitState;
use gradwire::{Codec, Density, EncodeError, StepKey, Unit};
use std::num::NonZeroU32;
use std::ops::Range;

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

/// The same of every chunk, each with its own number.
#[must_use]
pub fn largest_of_chunks(p: &[f32], density: Density, chunk: Option<u32>) -> Vec<usize> {
    let chunk = chunk.map_or(p.len().max(1), |chunk| chunk as usize);
    let chosen = |(first, values): (usize, &[f32])| -> Vec<usize> {
        largest(values, count(density, values.len())).into_iter().map(|at| first + at).collect()
    };
    (0..).step_by(chunk).zip(p.chunks(chunk)).flat_map(chosen).collect()
}

/// Kind of a body, its bytes, and what it decodes to.
struct Body {
    kind: u8,
    bytes: Vec<u8>,
    decoded: Vec<f32>,
    /// What is left is p at the coordinates not sent and 0 at the others, rather than p less what was
    /// decoded.
    clears: Option<Vec<usize>>,
    /// What the codec remembers of the unit now, if it does.
    state: Option<UnitState>,
}

fn dense(format: u8, p: &[f32]) -> Body {
    let cells: Vec<_> = p.iter().map(|&value| values::narrow(format, value)).collect();
    let bytes = std::iter::once(format).chain(cells.iter().flat_map(|cell| cell.0.iter().copied())).collect();
    Body {
        kind: 0,
        bytes,
        decoded: cells.into_iter().map(|cell| cell.1).collect(),
        clears: None,
        state: None,
    }
}

/// What is sent of a sparse unit, decided over the whole of it.
struct Chosen {
    index: IndexChoice,
    /// Positions of all that were chosen, of those that are sent, and what the former decode to.
    selected: Vec<usize>,
    kept: Vec<usize>,
    values: values::Decided,
}

impl Chosen {
    fn new(
        index: IndexChoice,
        (choice, rounding): (ValueChoice, Rounding),
        (key, unit): (StepKey, u32),
        p: &[f32],
        selected: Vec<usize>,
    ) -> Self {
        let chosen: Vec<f32> = selected.iter().map(|&i| p[i]).collect();
        let stream = Draws::new(key, unit, Purpose::Rounding);
        let draws: Vec<u64> = selected.iter().map(|&i| stream.below_at(i as u64, 1 << 32)).collect();
        let is_drawn = rounding == Rounding::Stochastic;
        let values = values::decide(choice, &chosen, is_drawn.then_some(&draws));
        let sent = selected.iter().zip(&values.decoded).filter(|(_, sent)| sent.is_some());
        let kept = sent.map(|(&i, _)| i).collect();
        Self { index, selected, kept, values }
    }

    /// A body with the entries number `entries` of a piece that covers these coordinates of the unit.
    fn body(&self, unit: &Place<'_>, entries: Range<usize>, covered: Range<usize>) -> Vec<u8> {
        let mut bytes = varint(entries.len() as u64);
        if !entries.is_empty() {
            let kept: Vec<usize> = self.kept[entries.clone()].iter().map(|i| i - covered.start).collect();
            let place = Place { start: unit.start + covered.start, len: covered.len(), ..*unit };
            let (coder, positions) = index::section(self.index, &kept, &place);
            let (format, values) = self
                .values
                .section(entries, matches!(self.index, IndexChoice::Small | IndexChoice::Smallest));
            bytes.push(coder | format << 4);
            bytes.extend(positions);
            bytes.extend(values);
        }
        bytes
    }

    /// The body of a whole unit.
    fn whole(&self, place: &Place<'_>) -> Body {
        let bytes = self.body(place, 0..self.kept.len(), 0..place.len);
        Body { kind: 1, bytes, decoded: self.decoded(place.len), clears: None, state: None }
    }

    fn decoded(&self, len: usize) -> Vec<f32> {
        let mut decoded = vec![0.0; len];
        let sent = self.selected.iter().zip(&self.values.decoded);
        sent.for_each(|(&i, value)| decoded[i] = value.unwrap_or(0.0));
        decoded
    }
}

/// The entries that a sparsifier chooses.
fn chosen(codec: &Codec, key: StepKey, unit: u32, state: Option<UnitState>, p: &[f32]) -> Option<Chosen> {
    match codec {
        Codec::Gather(GatherCodec::Sidco(codec)) => {
            let (selected, _) = sidco::select(codec, state.unwrap_or_default(), p);
            let coding = (codec.values(), codec.rounding());
            Some(Chosen::new(codec.index(), coding, (key, unit), p, selected))
        }
        Codec::Gather(GatherCodec::Redsync(codec)) => {
            let coding = (codec.values(), codec.rounding());
            Some(Chosen::new(codec.index(), coding, (key, unit), p, redsync::select(codec, p)))
        }
        Codec::Gather(GatherCodec::Dgc(codec)) => {
            let coding = (codec.values(), codec.rounding());
            Some(Chosen::new(codec.index(), coding, (key, unit), p, dgc::select(codec, key, unit, p)))
        }
        Codec::Gather(GatherCodec::TopK(topk)) => {
            let selected = largest_of_chunks(p, topk.density(), topk.chunk());
            Some(Chosen::new(topk.index(), (topk.values(), topk.rounding()), (key, unit), p, selected))
        }
        Codec::Gather(GatherCodec::Threshold(threshold)) => {
            let is_sent = |&i: &usize| p[i].abs() >= threshold.value() && p[i] != 0.0;
            let selected = (0..p.len()).filter(is_sent).collect();
            let coding = (threshold.values(), threshold.rounding());
            Some(Chosen::new(threshold.index(), coding, (key, unit), p, selected))
        }
        _ => None,
    }
}

fn rounded(qsgd: &Qsgd, key: StepKey, unit: u32, p: &[f32]) -> levels::Rounded {
    let draws = (qsgd.rounding() == Rounding::Stochastic).then(|| Draws::new(key, unit, Purpose::Rounding));
    levels::round(qsgd, p, draws.as_ref())
}

fn quantized(qsgd: &Qsgd, key: StepKey, unit: u32, p: &[f32]) -> Body {
    let rounded = rounded(qsgd, key, unit, p);
    let (bytes, decoded) = (rounded.body(qsgd), rounded.decoded(qsgd));
    Body { kind: 2, bytes, decoded, clears: None, state: None }
}

/// What one worker alone contributes: one bucket, norm `max`, fixed width.
fn alone(maxnorm: &MaxNorm) -> Qsgd {
    let one_bucket = Qsgd::new(maxnorm.bits()).with_bucket(NonZeroU32::MAX).with_cutoff(maxnorm.cutoff());
    one_bucket.with_entropy(EntropyChoice::Fixed).with_rounding(maxnorm.rounding())
}

fn unit_body(job: &Job<'_>, unit: &Unit, state: Option<UnitState>, p: &[f32]) -> Body {
    let Job { codec, key, shapes, .. } = *job;
    let place = Place { shapes: Some(shapes), start: unit.start, len: unit.len };
    match codec {
        _ if unit.dense => dense(values::F32, p),
        Codec::Gather(GatherCodec::Dense(Dense::F16)) => dense(values::F16, p),
        Codec::Gather(GatherCodec::Dense(Dense::Bf16)) => dense(values::BF16, p),
        Codec::Gather(GatherCodec::Sidco(codec)) => {
            let (selected, state) = sidco::select(codec, state.unwrap_or_default(), p);
            let coding = (codec.values(), codec.rounding());
            let chosen = Chosen::new(codec.index(), coding, (key, unit.id), p, selected);
            let state = codec.stages().is_none().then_some(state);
            Body { state, ..chosen.whole(&place) }
        }
        Codec::Gather(GatherCodec::Qsgd(qsgd)) => quantized(qsgd, key, unit.id, p),
        Codec::Gather(GatherCodec::EfSign(_)) => {
            let (bytes, decoded) = efsign::body(p);
            Body { kind: 5, bytes, decoded, clears: None, state: None }
        }
        Codec::Linear(LinearCodec::RandomK(codec)) => {
            let (bytes, decoded, selected) = randomk::body(codec, (key, unit.id), &place, p);
            Body { kind: 3, bytes, decoded, clears: Some(selected), state: None }
        }
        Codec::Linear(LinearCodec::MaxNorm(maxnorm)) => quantized(&alone(maxnorm), key, unit.id, p),
        _ => match chosen(codec, key, unit.id, state, p) {
            Some(chosen) => chosen.whole(&place),
            None => dense(values::F32, p),
        },
    }
}

/// Numbers of the codecs on the wire.
fn codec_id(codec: &Codec) -> u8 {
    if ["dpsgd", "powergossip", "choco"].contains(&codec.name()) {
        // Whole models are frames of `none`.
        return 0;
    }
    if codec.name() == "maxnorm" {
        // One worker's levels are those of `qsgd`.
        return 5;
    }
    let names =
        ["none", "f16", "bf16", "topk", "threshold", "qsgd", "randomk", "dgc", "sidco", "efsign", "redsync"];
    names.iter().position(|&name| name == codec.name()).expect("every codec has a number") as u8
}

/// Magnitudes must stay below this.
fn bound(codec: &Codec, unit: &Unit) -> f32 {
    let power = |exponent: i32| 2f32.powi(exponent);
    match codec {
        _ if unit.dense => f32::INFINITY,
        Codec::Gather(GatherCodec::Dense(Dense::F16)) => values::overflow_bound(values::F16),
        Codec::Gather(GatherCodec::Dense(Dense::Bf16)) => values::overflow_bound(values::BF16),
        Codec::Gather(GatherCodec::TopK(topk)) => values::bound(topk.values(), topk.rounding()),
        Codec::Gather(GatherCodec::Threshold(threshold)) => {
            values::bound(threshold.values(), threshold.rounding())
        }
        Codec::Linear(LinearCodec::MaxNorm(_)) | Codec::Gather(GatherCodec::EfSign(_)) => power(126),
        Codec::Gather(GatherCodec::Dgc(dgc)) => values::bound(dgc.values(), dgc.rounding()),
        Codec::Gather(GatherCodec::Sidco(sidco)) => values::bound(sidco.values(), sidco.rounding()),
        Codec::Gather(GatherCodec::Redsync(codec)) => values::bound(codec.values(), codec.rounding()),
        Codec::Gather(GatherCodec::Qsgd(qsgd)) => power(if qsgd.norm() == Norm::L2 { 111 } else { 126 }),
        Codec::Linear(LinearCodec::RandomK(codec)) if codec.estimator() == Estimator::Unbiased => power(95),
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
    if let Some(state) = body.state {
        kept.states[unit.id as usize] = state;
    }
    if codec.momentum().is_some() && !unit.dense {
        // Where something was sent, momentum starts anew.
        let momentum = kept.momentum.as_mut().expect("a memory with momentum");
        (0..unit.len).filter(|&i| body.decoded[i] != 0.0).for_each(|i| momentum[unit.start + i] = 0.0);
    }
}

/// What is encoded: the gradient, or the step that momentum makes of it, and the residual. Momentum moves on.
fn sums(job: &Job<'_>, kept: Option<&mut Kept>) -> Vec<f32> {
    let mut p = job.grad.to_vec();
    if let Some(kept) = kept {
        advance_momentum(job, kept, &mut p);
        p.iter_mut().zip(&kept.residual).for_each(|(p, kept)| *p += kept);
    }
    p
}

/// The same, for tests of what becomes of it.
#[must_use]
pub fn encoded_values(job: &Job<'_>) -> Vec<f32> {
    sums(job, job.before.cloned().as_mut())
}

/// One message of all units.
///
/// # Errors
/// `NonFiniteInput` and `ValueOverflow`; structure is taken to be right.
pub fn encode(job: &Job<'_>) -> Result<Encoded, EncodeError> {
    let mut kept = job.before.cloned();
    let p = sums(job, kept.as_mut());
    job.units.iter().try_for_each(|unit| check(&p, unit, bound(job.codec, unit)))?;
    let mut body = varint(job.key.step);
    let mut decoded = vec![0.0; p.len()];
    let (mut next_id, mut next_start) = (0, 0);
    for unit in job.units {
        let state = kept.as_ref().and_then(|kept| kept.states.get(unit.id as usize).copied());
        let own = unit_body(job, unit, state, &p[unit.range()]);
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

/// One unit as it can be cut.
enum Whole {
    Dense(u8, Vec<f32>),
    Sparse(Chosen),
    Levels(Qsgd, levels::Rounded),
    /// With the scale of the unit.
    Signs(f32, Vec<f32>),
}

impl Whole {
    fn new(codec: &Codec, key: StepKey, unit: &Unit, state: Option<UnitState>, p: &[f32]) -> Self {
        match codec {
            _ if unit.dense => Self::Dense(values::F32, p.to_vec()),
            Codec::Gather(GatherCodec::Dense(Dense::F16)) => Self::Dense(values::F16, p.to_vec()),
            Codec::Gather(GatherCodec::Dense(Dense::Bf16)) => Self::Dense(values::BF16, p.to_vec()),
            Codec::Gather(GatherCodec::Qsgd(qsgd)) => Self::Levels(*qsgd, rounded(qsgd, key, unit.id, p)),
            Codec::Gather(GatherCodec::EfSign(_)) => Self::Signs(efsign::scale(p), p.to_vec()),
            _ => chosen(codec, key, unit.id, state, p)
                .map_or_else(|| Self::Dense(values::F32, p.to_vec()), Self::Sparse),
        }
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Dense(..) => 0,
            Self::Sparse(_) => 1,
            Self::Levels(..) => 2,
            Self::Signs(..) => 5,
        }
    }

    /// Entries of a sparse unit, coordinates of others.
    fn atoms(&self) -> usize {
        match self {
            Self::Dense(_, p) | Self::Signs(_, p) => p.len(),
            Self::Sparse(chosen) => chosen.kept.len(),
            Self::Levels(_, rounded) => rounded.len(),
        }
    }

    /// The coordinates that a piece with these atoms covers, of a unit of `len`.
    fn covered(&self, atoms: Range<usize>, len: usize) -> Range<usize> {
        let Self::Sparse(chosen) = self else { return atoms };
        let start = if atoms.start == 0 { 0 } else { chosen.kept[atoms.start] };
        let end = if atoms.end == chosen.kept.len() { len } else { chosen.kept[atoms.end] };
        start..end
    }

    fn body(&self, atoms: Range<usize>, unit: &Place<'_>) -> Vec<u8> {
        match self {
            Self::Dense(format, p) => dense(*format, &p[atoms]).bytes,
            Self::Sparse(chosen) => chosen.body(unit, atoms.clone(), self.covered(atoms, unit.len)),
            Self::Levels(qsgd, rounded) => rounded.piece(qsgd, atoms),
            Self::Signs(scale, p) => efsign::signs(*scale, &p[atoms]),
        }
    }

    /// Grains of the pieces that begin with atom `at`, and how many grains each may have.
    fn cuts(&self, at: usize, size: usize) -> Vec<(usize, usize)> {
        let left = self.atoms() - at;
        match self {
            Self::Dense(format, _) => vec![(1, left.min(size / if *format == values::F32 { 4 } else { 2 }))],
            Self::Sparse(_) => vec![(1, left.min(8 * size))],
            Self::Signs(..) => vec![(1, left.min(1024 * size))],
            Self::Levels(qsgd, _)
                if matches!(qsgd.entropy(), EntropyChoice::Auto | EntropyChoice::Adaptive) =>
            {
                vec![(1, left.min(1024 * size))]
            }
            Self::Levels(qsgd, _) => {
                let bucket = qsgd.bucket().get() as usize;
                let part = (1, (bucket - at % bucket).min(left).min(64 * size));
                if !at.is_multiple_of(bucket) {
                    vec![part]
                } else {
                    vec![(bucket, left.div_ceil(bucket).min(size / 4)), part]
                }
            }
        }
    }

    /// The end of the largest piece from atom `start` for which `fits(end)`, by bisection.
    fn largest(&self, start: usize, size: usize, fits: impl Fn(usize) -> bool) -> Option<usize> {
        for (grain, most) in self.cuts(start, size) {
            let end = |count: usize| (start + count * grain).min(self.atoms());
            if fits(end(most)) {
                return Some(end(most));
            }
            let (mut good, mut bad) = (0, most);
            while good + 1 < bad {
                let middle = good + (bad - good) / 2;
                if fits(end(middle)) { good = middle } else { bad = middle }
            }
            if good > 0 {
                return Some(end(good));
            }
        }
        None
    }
}

/// The same as several messages of at most `size` bytes. Values are taken to be right, and all fits.
///
/// # Panics
/// When an atom does not fit a packet.
#[must_use]
pub fn packets(job: &Job<'_>, size: usize) -> Vec<Vec<u8>> {
    let p = encoded_values(job);
    let (mut packets, mut body, mut pieces) = (Vec::new(), varint(job.key.step), 0);
    let (mut next_id, mut next_start) = (0, 0);
    for unit in job.units {
        let state = job.before.and_then(|kept| kept.states.get(unit.id as usize).copied());
        let whole = Whole::new(job.codec, job.key, unit, state, &p[unit.range()]);
        let place = Place { shapes: Some(job.shapes), start: unit.start, len: unit.len };
        let mut at = 0;
        loop {
            let piece = |end: usize| {
                let covered = whole.covered(at..end, unit.len);
                let mut bytes = varint(u64::from(unit.id) - next_id);
                bytes.extend(varint((unit.start + covered.start - next_start) as u64));
                bytes.extend(varint(covered.len() as u64));
                bytes.push(whole.kind());
                bytes.extend(whole.body(at..end, &place));
                (bytes, unit.start + covered.end)
            };
            match whole.largest(at, size, |end| 24 + body.len() + piece(end).0.len() <= size) {
                Some(end) => {
                    let (bytes, covered_end) = piece(end);
                    body.extend(bytes);
                    (next_id, next_start) = (u64::from(unit.id) + 1, covered_end);
                    pieces += 1;
                    at = end;
                    if at == whole.atoms() {
                        break;
                    }
                }
                None => assert!(pieces > 0, "an atom does not fit"),
            }
            packets.push(frame(codec_id(job.codec), pieces, fingerprint(job.shapes), &body));
            (body, pieces, next_id, next_start) = (varint(job.key.step), 0, 0, 0);
        }
    }
    packets.push(frame(codec_id(job.codec), pieces, fingerprint(job.shapes), &body));
    packets
}
