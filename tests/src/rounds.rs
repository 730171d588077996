//! Linear codecs over several workers at once, their payloads reduced in the order of ranks; gossip over one
//! edge.

use gradwire::rounds::{Gossip, LinearScratch, Payload, Reduction, Round, Turn, UnitStep};
use gradwire::{Grad, LayoutRef, Linear, Memory, Source, StepKey, Unit};

/// One worker: its round and its working memory, filled with rubbish before the first.
pub struct Worker {
    /// The round under way.
    pub round: Round,
    key: StepKey,
    words: Vec<u32>,
    floats: Vec<f32>,
    ints: Vec<i32>,
    sent: Vec<(Reduction, Vec<u32>)>,
}

impl Worker {
    /// The payload of each round so far, a word for each element, and how it was reduced.
    #[must_use]
    pub fn sent(&self) -> &[(Reduction, Vec<u32>)] {
        &self.sent
    }

    /// The floats of the working memory.
    #[must_use]
    pub fn floats(self) -> Vec<f32> {
        self.floats
    }

    fn scratch(&mut self) -> LinearScratch<'_> {
        LinearScratch { words: &mut self.words, floats: &mut self.floats, ints: &mut self.ints }
    }
}

/// The step of a single worker.
#[must_use]
pub fn alone<'a>(key: StepKey, layout: &'a LayoutRef<'a>, unit: &'a Unit) -> UnitStep<'a> {
    UnitStep { key, layout, unit, workers: 1, place: 0 }
}

/// One payload, a word for each element.
fn words(payload: Payload<'_>) -> Vec<u32> {
    match payload {
        Payload::F32(payload) => payload.iter().map(|value| value.to_bits()).collect(),
        Payload::I32(payload) => payload.iter().map(|&value| value as u32).collect(),
        Payload::U32(payload) => payload.to_vec(),
        Payload::Bytes(payload) => payload.iter().map(|&byte| byte.into()).collect(),
        _ => panic!("a payload of another kind"),
    }
}

/// Two elements of payloads, reduced to one.
fn reduce_two(reduction: Reduction, a: u32, b: u32) -> u32 {
    let floats = [a, b].map(f32::from_bits);
    match reduction {
        Reduction::MaxF32 => floats[0].max(floats[1]).to_bits(),
        Reduction::SumF32 => (floats[0] + floats[1]).to_bits(),
        Reduction::SumI32 => (a as i32).checked_add(b as i32).expect("sums fit") as u32,
        Reduction::MinI32 => (a as i32).min(b as i32) as u32,
        Reduction::And => a & b,
        Reduction::SumU8 => u32::from((a as u8).wrapping_add(b as u8)),
        _ => panic!("a reduction that is not summed here"),
    }
}

/// The payloads of all workers, in the order of ranks, reduced to one.
fn reduce_all(reduction: Reduction, mut payloads: Vec<Vec<u32>>) -> Vec<u32> {
    match reduction {
        Reduction::Gather => {
            let part = payloads[0].len() / payloads.len();
            assert_eq!(payloads[0].len(), part * payloads.len(), "a part for each worker, all as long");
            let parts = payloads.iter().enumerate();
            parts.flat_map(|(place, payload)| &payload[place * part..][..part]).copied().collect()
        }
        Reduction::Broadcast { from } => payloads.swap_remove(from as usize),
        _ => {
            let two = |a: Vec<u32>, b: Vec<u32>| {
                assert_eq!(a.len(), b.len(), "payloads are as long");
                a.into_iter().zip(b).map(|(a, b)| reduce_two(reduction, a, b)).collect()
            };
            payloads.into_iter().reduce(two).expect("a worker")
        }
    }
}

/// The payloads of all workers, each replaced by their reduction.
fn reduce(codec: &dyn Linear, workers: &mut [Worker]) {
    let round = workers[0].round;
    assert!(workers.iter().all(|worker| worker.round == round), "all are in the same round");
    let mut of = |worker: &mut Worker| words(codec.payload(&round, &mut worker.scratch()));
    let payloads: Vec<_> = workers.iter_mut().map(&mut of).collect();
    let reduced = reduce_all(round.reduction, payloads.clone());
    for (worker, payload) in workers.iter_mut().zip(payloads) {
        worker.sent.push((round.reduction, payload));
        match codec.payload(&round, &mut worker.scratch()) {
            Payload::F32(to) => {
                to.iter_mut().zip(&reduced).for_each(|(to, &word)| *to = f32::from_bits(word));
            }
            Payload::I32(to) => to.iter_mut().zip(&reduced).for_each(|(to, &word)| *to = word as i32),
            Payload::U32(to) => to.copy_from_slice(&reduced),
            Payload::Bytes(to) => to.iter_mut().zip(&reduced).for_each(|(to, &word)| *to = word as u8),
            _ => panic!("a payload of another kind"),
        }
    }
}

/// The mean that every worker has at the end, and the lengths of the payloads of the rounds.
///
/// # Panics
/// When a gradient is refused, or the workers do not agree.
#[must_use]
pub fn mean(
    codec: &dyn Linear,
    key: StepKey,
    layout: &LayoutRef<'_>,
    unit: &Unit,
    grads: &[Vec<f32>],
) -> (Vec<f32>, Vec<usize>) {
    step(codec, key, layout, unit, grads, &mut [], false)
}

/// The same for workers with memories of the whole gradient, in the order of ranks; there may be none.
/// Workers that `abandon` do so behind the last round.
///
/// # Panics
/// When a gradient is refused, or the workers do not agree.
pub fn step(
    codec: &dyn Linear,
    key: StepKey,
    layout: &LayoutRef<'_>,
    unit: &Unit,
    grads: &[Vec<f32>],
    memories: &mut [Memory<'_>],
    abandon: bool,
) -> (Vec<f32>, Vec<usize>) {
    finish(codec, layout, &mut begin(codec, key, layout, unit, grads, memories), memories, abandon)
}

/// Workers, in the order of ranks, that have begun a step.
///
/// # Panics
/// When a gradient is refused.
#[must_use]
pub fn begin(
    codec: &dyn Linear,
    key: StepKey,
    layout: &LayoutRef<'_>,
    unit: &Unit,
    grads: &[Vec<f32>],
    memories: &[Memory<'_>],
) -> Vec<Worker> {
    let views: Vec<_> = memories.iter().map(|memory| memory.view(unit.range())).collect();
    let begin = |(rank, grad): (usize, &Vec<f32>)| {
        let key = StepKey { source: Source::Rank(rank as u32), ..key };
        let step = UnitStep { workers: grads.len() as u32, place: rank as u32, ..alone(key, layout, unit) };
        begin_by(codec, &step, |scratch| {
            codec.begin(&step, Grad::F32(grad), views.get(rank).copied(), scratch).unwrap()
        })
    };
    grads.iter().enumerate().map(begin).collect()
}

/// A worker whose rounds `begin` begins, in working memory of exactly the stated size.
pub fn begin_by(
    codec: &dyn Linear,
    step: &UnitStep<'_>,
    begin: impl FnOnce(&mut LinearScratch<'_>) -> Round,
) -> Worker {
    let needed = codec.round_scratch_len(step.layout, step.unit, step.workers);
    let (mut words, mut floats) = (vec![7u32; needed.words], vec![7.0f32; needed.floats]);
    let mut ints = vec![7i32; needed.ints];
    let round = begin(&mut LinearScratch { words: &mut words, floats: &mut floats, ints: &mut ints });
    Worker { round, key: step.key, words, floats, ints, sent: Vec::new() }
}

/// The rounds of workers that have begun, as [`step`] goes on with them.
///
/// # Panics
/// When the workers do not agree.
pub fn finish(
    codec: &dyn Linear,
    layout: &LayoutRef<'_>,
    workers: &mut [Worker],
    memories: &mut [Memory<'_>],
    abandon: bool,
) -> (Vec<f32>, Vec<usize>) {
    let (unit, count) = (workers[0].round.unit, workers.len() as u32);
    let mut payloads = Vec::new();
    loop {
        payloads.push(workers[0].round.payload_len);
        reduce(codec, workers);
        let (mut means, mut last) = (Vec::new(), true);
        for (rank, worker) in workers.iter_mut().enumerate() {
            let mut mean = vec![f32::NAN; unit.len];
            let round = worker.round;
            let mut memory = memories.get_mut(rank).map(|memory| memory.slice(unit.range()));
            let of = UnitStep { workers: count, place: rank as u32, ..alone(worker.key, layout, &unit) };
            let next = codec.advance(&of, round, &mut worker.scratch(), &mut mean, memory.as_mut());
            if next.is_none() && abandon {
                codec.abandon(round, &mut worker.scratch(), memory.as_mut());
            }
            last = next.is_none();
            worker.round = next.unwrap_or(round);
            means.push(mean);
        }
        if last {
            let bits = |mean: &[f32]| mean.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert!(means.iter().all(|mean| bits(mean) == bits(&means[0])), "replicas differ");
            return (means.swap_remove(0), payloads);
        }
    }
}

/// One step of both ends of an edge, the lower rank first: the payloads of its rounds. The models and what
/// the ends keep are those of the unit. `at` says all of the step but the end and the round.
///
/// # Panics
/// When a model is refused, or the ends do not agree.
pub fn gossip(
    codec: &dyn Gossip,
    at: Turn<'_>,
    models: [&mut [f32]; 2],
    kept: [&mut [f32]; 2],
) -> Vec<[Vec<f32>; 2]> {
    let needed = codec.round_scratch_len(at.unit.len);
    let mut buffers =
        [(); 2].map(|()| (vec![7; needed.words], vec![f32::NAN; needed.floats], vec![7; needed.ints]));
    let [low, high] = &mut buffers;
    let mut scratch = [low, high].map(|(words, floats, ints)| LinearScratch { words, floats, ints });
    let run = |round| {
        let turn = |end: usize| Turn { is_low: end == 0, round, ..at };
        let payloads = [0, 1].map(|end| {
            let sent = codec.payload(&turn(end), models[end], kept[end], &mut scratch[end]);
            sent.expect("models that are finite").to_vec()
        });
        assert_eq!(payloads[0].len(), payloads[1].len());
        for end in [0, 1] {
            let theirs = &payloads[1 - end];
            codec.advance(&turn(end), theirs, 0.5, models[end], kept[end], &mut scratch[end]);
        }
        let bits = |kept: &[f32]| kept.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(kept[0]), bits(kept[1]), "the ends keep other things");
        payloads
    };
    (0..codec.rounds()).map(run).collect()
}
