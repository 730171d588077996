//! The laws of fuzz targets that go through the list of codecs. A test runs them as well, on a few inputs.

use crate::naive::encode::{Job, encode};
use crate::rounds;
use crate::run::{self, Kept, bits};
use crate::spellings::{examples, has_frames};
use gradwire::registry::{GossipCodec, Law, LinearCodec};
use gradwire::rounds::{Edge, Turn};
use gradwire::state::MemoryChoice;
use gradwire::{Codec, Grad, LayoutRef, Memory, Source, Spec, StepKey, Unit};

/// Floats with the bits of `bytes`; what is left over is dropped.
#[must_use]
pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|&chunk| f32::from_le_bytes(chunk)).collect()
}

/// Removes the first byte of `data` and returns the word that it chooses.
pub fn pick<'w>(data: &mut &[u8], words: &[&'w str]) -> &'w str {
    words[usize::from(byte(data)) % words.len()]
}

/// Removes the first byte of `data` and returns it, or returns 0 if `data` is empty.
pub fn byte(data: &mut &[u8]) -> u8 {
    let (&first, rest) = data.split_first().unwrap_or((&0, &[]));
    *data = rest;
    first
}

/// What a spelling that must be one says.
///
/// # Panics
/// When it is not.
#[must_use]
pub fn spec(spelling: &str) -> Spec {
    Spec::parse(spelling).unwrap_or_else(|error| panic!("{spelling}: {error}"))
}

/// The examples for [`conserves`]: of all codecs that make frames.
#[must_use]
pub fn framed() -> Vec<&'static str> {
    examples().filter(|example| has_frames(&spec(example))).collect()
}

/// The examples for [`agree_in_rounds`]: of all codecs whose payloads are summed.
#[must_use]
pub fn summed() -> Vec<&'static str> {
    examples().filter(|example| matches!(spec(example).codec, Codec::Linear(_))).collect()
}

/// The examples for [`agree_on_an_edge`]: of all codecs between neighbours.
#[must_use]
pub fn mixed() -> Vec<&'static str> {
    examples().filter(|example| matches!(spec(example).codec, Codec::Gossip(_))).collect()
}

/// Zeros kept back are +0: a sum of zeros does not tell.
fn without_negative_zeros(values: &[f32]) -> Vec<f32> {
    values.iter().map(|value| value + 0.0).collect()
}

/// Encodes floats of `data`, with what the memory holds from the same place. Either all is as the naive
/// reference says, and with error feedback what is sent and what is kept add up to residual + gradient, as
/// exactly as the codec's law says; or there is the same error, and the memory is as it was.
///
/// # Panics
/// When the law does not hold.
pub fn conserves(spec: &Spec, data: &[u8]) {
    let values = floats(data);
    let n = match spec.memory {
        MemoryChoice::None => values.len(),
        MemoryChoice::Momentum => values.len() / 3,
        _ => values.len() / 2,
    };
    let (grad, rest) = values.split_at(n);
    let units = [Unit::whole(n)];
    let before = Kept::new(spec, n, &units).map(|kept| Kept {
        residual: without_negative_zeros(&rest[..n]),
        momentum: kept.momentum.map(|_| rest[n..].iter().take(n).map(|&value| moderate(value)).collect()),
        ..kept
    });
    let (codec, shapes, layout) = (&spec.codec, [vec![n]], LayoutRef::flat(n));
    let key = StepKey { seed: 1, step: 2, source: Source::Rank(3) };
    let mut kept = before.clone();
    let mut memory = kept.as_mut().map(Kept::lend);
    let frame = run::encode_with(codec, key, &layout, &units, Grad::F32(grad), memory.as_mut(), 0);
    let naive = encode(&Job { codec, key, shapes: &shapes, units: &units, grad, before: before.as_ref() });
    let words = |kept: &Option<Kept>| kept.as_ref().map(Kept::words);
    let Ok(frame) = frame else {
        assert_eq!(frame.err(), naive.err());
        return assert_eq!(words(&kept), words(&before));
    };
    let naive = naive.expect("both or neither");
    assert_eq!(frame, naive.frame);
    assert_eq!(words(&kept), words(&naive.kept));
    let mut sent = vec![0.0; n];
    run::parse(&frame, &layout, &run::no_limits(), |frame| {
        frame.add_scaled_to(1.0, &mut sent);
        kept.as_mut().into_iter().for_each(|kept| kept.lend().give_back(frame));
    })
    .expect("a frame");
    assert_eq!(bits(&sent), bits(&without_negative_zeros(&naive.decoded)));
    let Some((before, kept)) = before.zip(kept).filter(|(before, _)| before.momentum.is_none()) else {
        return;
    };
    let p: Vec<f32> = before.residual.iter().zip(grad).map(|(kept, grad)| kept + grad).collect();
    if codec.capabilities().law == Law::Exact {
        return assert_eq!(bits(&kept.residual), bits(&p));
    }
    for (at, ((kept, p), sent)) in kept.residual.iter().zip(&p).zip(&sent).enumerate() {
        let allowed = (f64::from(p.abs()) + f64::from(sent.abs())) * 0.5_f64.powi(23);
        let off = (f64::from(*kept) - f64::from(*p)).abs();
        assert!(off <= allowed, "{at}: {kept} is not {p}");
    }
}

/// A value that no sum of a few carries out of the floats; zero in place of others.
fn moderate(value: f32) -> f32 {
    if value.abs() < 1e12 { value } else { 0.0 }
}

/// A matrix as long as there are values, and what does not fill a row.
fn matrix(len: usize, width: usize) -> [Vec<usize>; 2] {
    [vec![len / width, width], vec![len % width]]
}

/// Rounds of up to four workers over gradients and residuals of `data`. All end with the same mean; a worker
/// that gives up keeps residual + gradient, bit for bit; and one worker alone keeps that, less what it sent,
/// unless it sends steps, or what it keeps is filtered.
///
/// # Panics
/// When the codec is not linear, or a law does not hold.
pub fn agree_in_rounds(spec: &Spec, data: &[u8]) {
    let Codec::Linear(codec) = spec.codec else { panic!("{spec} is not linear") };
    let mut data = data;
    let [workers, width, step] = [(); 3].map(|()| usize::from(byte(&mut data)));
    let (workers, width) = (1 + workers % 4, 1 + width % 16);
    let values: Vec<f32> = floats(data).into_iter().map(moderate).collect();
    let n = values.len() / (2 * workers);
    let layout = run::layout(&matrix(n, width));
    let part = |at: usize| values[at * n..(at + 1) * n].to_vec();
    let grads: Vec<_> = (0..workers).map(part).collect();
    let residuals: Vec<_> = (workers..2 * workers).map(|at| without_negative_zeros(&part(at))).collect();
    let layout = layout.as_ref();
    let keeps_residual = spec.codec.capabilities().law != Law::State;
    let memory = |residual: &Vec<f32>| {
        let mut memory = Memory::for_spec(spec, &layout)?;
        if keeps_residual {
            memory.residual_mut().copy_from_slice(residual);
        }
        Some(memory)
    };
    let key = StepKey { seed: 1, step: step as u64, source: Source::Shared };
    let step_of = |codec: &LinearCodec, abandon: bool| {
        let mut memories: Vec<_> = residuals.iter().filter_map(memory).collect();
        let unit = Unit::whole(n);
        let done = rounds::step(codec.rounds(), key, &layout, &unit, &grads, &mut memories, abandon);
        let kept = memories.iter().map(|memory| memory.residual().to_vec()).collect::<Vec<_>>();
        (done, kept)
    };
    let ((mean, payloads), kept) = step_of(&codec, false);
    let ((again, as_many), given_up) = step_of(&codec, true);
    assert_eq!((bits(&mean), payloads), (bits(&again), as_many), "a step is not the same again");
    if !keeps_residual {
        let is_zero = |kept: &Vec<f32>| kept.iter().all(|kept| kept.to_bits() == 0);
        assert!(kept.iter().chain(&given_up).all(is_zero), "there is no residual");
        return;
    }
    let sums = residuals.iter().zip(&grads);
    let sums = sums.map(|(kept, grad)| kept.iter().zip(grad).map(|(kept, grad)| kept + grad).collect());
    let p: Vec<Vec<f32>> = sums.collect();
    for (given_up, p) in given_up.iter().zip(&p) {
        assert_eq!(bits(given_up), bits(p), "who gives up keeps everything");
    }
    let sends_or_filters = spec.codec.accumulates_steps() || spec.codec.capabilities().law == Law::Filtered;
    let (1, false, Some(kept)) = (workers, sends_or_filters, kept.first()) else { return };
    for (at, ((kept, sent), p)) in kept.iter().zip(&mean).zip(&p[0]).enumerate() {
        assert_eq!(*kept, p - sent, "{at}: {sent} sent of {p}");
    }
}

/// Two steps of two ends of an edge, over models of `data`. Their payloads are as long, what both keep is
/// the same, bit for bit, and models that are alike stay as they are.
///
/// # Panics
/// When the codec is not one of gossip, or a law does not hold.
pub fn agree_on_an_edge(spec: &Spec, data: &[u8]) {
    let Codec::Gossip(codec) = spec.codec else { panic!("{spec} is not for gossip") };
    let mut data = data;
    let [width, are_alike] = [(); 2].map(|()| usize::from(byte(&mut data)));
    let values: Vec<f32> = floats(data).into_iter().map(moderate).collect();
    let (low, high) = values.split_at(values.len() / 2);
    let high = if are_alike % 4 == 0 { low } else { &high[..low.len()] };
    let layout = run::layout(&matrix(low.len(), 1 + width % 16));
    let ends = exchanged(&codec, &layout.as_ref(), [low.to_vec(), high.to_vec()]);
    if bits(low) == bits(high) {
        ends.iter().for_each(|model| assert_eq!(model, low, "models that are alike have moved"));
    }
    assert!(ends.iter().flatten().all(|value| value.is_finite()));
}

/// The models of both ends after two steps.
fn exchanged(codec: &GossipCodec, layout: &LayoutRef<'_>, mut models: [Vec<f32>; 2]) -> [Vec<f32>; 2] {
    let (codec, unit) = (codec.rounds(), Unit::whole(layout.len()));
    let mut kept = [(); 2].map(|()| vec![0.0; codec.kept_len(layout, &unit)]);
    for step in 0..2 {
        let key = StepKey { seed: 1, step, source: Source::Shared };
        let at = Turn { key, edge: Edge { low: 2, high: 5 }, is_low: true, layout, unit: &unit, round: 0 };
        rounds::gossip(codec, at, models.each_mut().map(Vec::as_mut), kept.each_mut().map(Vec::as_mut));
    }
    models
}
