//! Linear codecs over several workers at once, their payloads reduced in the order of ranks.

use gradwire::rounds::{LinearScratch, Payload, Reduction, Round, UnitStep};
use gradwire::{Grad, LayoutRef, Linear, Memory, Source, StepKey, Unit};

/// One worker: its round and its working memory, filled with rubbish before the first.
pub struct Worker {
    /// The round under way.
    pub round: Round,
    key: StepKey,
    words: Vec<u32>,
    floats: Vec<f32>,
    ints: Vec<i32>,
}

impl Worker {
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
    let reduced = reduce_all(round.reduction, workers.iter_mut().map(&mut of).collect());
    for worker in workers {
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
    let views: Vec<_> = memories.iter().map(|memory| memory.view(unit.range())).collect();
    let begin = |(rank, grad): (usize, &Vec<f32>)| {
        let key = StepKey { source: Source::Rank(rank as u32), ..key };
        let step = UnitStep { workers: grads.len() as u32, place: rank as u32, ..alone(key, layout, unit) };
        begin_by(codec, &step, |scratch| {
            codec.begin(&step, Grad::F32(grad), views.get(rank).copied(), scratch).unwrap()
        })
    };
    let workers = grads.iter().enumerate().map(begin).collect();
    finish(codec, layout, workers, memories, abandon)
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
    Worker { round, key: step.key, words, floats, ints }
}

/// The rounds of workers that have begun, as [`step`] goes on with them.
///
/// # Panics
/// When the workers do not agree.
pub fn finish(
    codec: &dyn Linear,
    layout: &LayoutRef<'_>,
    mut workers: Vec<Worker>,
    memories: &mut [Memory<'_>],
    abandon: bool,
) -> (Vec<f32>, Vec<usize>) {
    let (unit, count) = (workers[0].round.unit, workers.len() as u32);
    let mut payloads = Vec::new();
    loop {
        payloads.push(workers[0].round.payload_len);
        reduce(codec, &mut workers);
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
