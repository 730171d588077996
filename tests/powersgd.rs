//! PowerSGD over several workers: against the naive reference, what is kept, and what travels whole.

use gradwire::codecs::{PowerSgd, PowerSgdByUnit};
use gradwire::format::Field;
use gradwire::registry::LinearCodec;
use gradwire::rounds::{LinearScratch, MemoryView, UnitStep};
use gradwire::state::Keeper;
use gradwire::{
    Codec, DecodeError, EncodeError, Encoder, Grad, Layout, LayoutRef, Memory, Source, Spec, StepInput,
    StepKey, TensorRef, Unit,
};
use gradwire_tests::inputs::Input;
use gradwire_tests::naive::powersgd as naive;
use gradwire_tests::{rounds, run};
use proptest::prelude::*;

fn linear(spelling: &str) -> LinearCodec {
    let Codec::Linear(linear) = Spec::parse(spelling).unwrap().codec else {
        panic!("{spelling} is not linear")
    };
    linear
}

fn key(step: u64) -> StepKey {
    StepKey { seed: 11, step, source: Source::Shared }
}

/// Workers of one codec with the memory that its spelling asks for.
struct Run {
    spec: Spec,
    codec: LinearCodec,
    layout: Layout,
    memories: Vec<Memory<'static>>,
}

impl Run {
    fn new(spelling: &str, shapes: &[Vec<usize>], workers: usize) -> Self {
        let (spec, layout) = (Spec::parse(spelling).unwrap(), run::layout(shapes));
        let memories = (0..workers).map(|_| Memory::for_spec(&spec, &layout.as_ref()).unwrap()).collect();
        Self { spec, codec: linear(spelling), layout, memories }
    }

    fn step(&mut self, step: u64, grads: &[Vec<f32>], abandon: bool) -> (Vec<f32>, Vec<usize>) {
        let (layout, unit) = (self.layout.as_ref(), Unit::whole(self.layout.len()));
        rounds::step(self.codec.rounds(), key(step), &layout, &unit, grads, &mut self.memories, abandon)
    }

    /// fl(residual + gradient) of every worker.
    fn p(&self, grads: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let fold = |(memory, grad): (&Memory<'_>, &Vec<f32>)| {
            memory.residual().iter().zip(grad).map(|(kept, g)| kept + g).collect()
        };
        self.memories.iter().zip(grads).map(fold).collect()
    }
}

fn grads(workers: usize, n: usize, step: u64) -> Vec<Vec<f32>> {
    let grad = |rank: usize| Input::Normal(1000 * step + rank as u64).values(n);
    (0..workers).map(|rank| grad(rank).iter().map(|g| g * (1 + rank) as f32).collect()).collect()
}

/// A matrix of this rank.
fn of_rank(rank: usize, rows: usize, cols: usize) -> Vec<f32> {
    let mut matrix = vec![0.0; rows * cols];
    for k in 0..rank as u64 {
        let (a, b) = (Input::Normal(50 + k).values(rows), Input::Normal(90 + k).values(cols));
        for (i, value) in matrix.iter_mut().enumerate() {
            *value += a[i / cols] * b[i % cols];
        }
    }
    matrix
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum::<f64>().sqrt()
}

fn norm(a: &[f32]) -> f64 {
    distance(a, &vec![0.0; a.len()])
}

#[test]
fn a_matrix_of_no_higher_rank_is_sent_whole_in_one_step() {
    for (rank, of) in [(1, 1), (2, 2), (3, 2), (4, 4)] {
        let matrix = of_rank(of, 24, 40);
        let mut run = Run::new(&format!("powersgd:rank={rank}"), &[vec![24, 40]], 2);
        let (mean, payloads) = run.step(0, &[matrix.clone(), matrix.clone()], false);
        assert!(distance(&mean, &matrix) < 1e-5 * norm(&matrix), "rank {rank} of {of}");
        assert_eq!(payloads, [24 * rank, 40 * rank]);
        assert!(run.memories[0].residual().iter().all(|kept| kept.abs() < 1e-4));
    }
}

#[test]
fn the_warm_start_finds_the_largest_directions_in_a_few_steps() {
    // Singular values some 9, 3, 1 times those of noise: without its memory one step is far from the best of
    // rank 1.
    let (rows, cols) = (30, 30);
    let mut matrix = of_rank(1, rows, cols);
    for (i, noise) in Input::Normal(7).values(rows * cols).iter().enumerate() {
        matrix[i] += 0.5 * noise;
    }
    let mut run = Run::new("powersgd:rank=1", &[vec![rows, cols]], 1);
    let mut errors = Vec::new();
    for step in 0..8 {
        // Nothing kept: the same matrix every time.
        run.memories[0].slice(0..rows * cols).rescale(0.0);
        let (mean, _) = run.step(step, std::slice::from_ref(&matrix), false);
        errors.push(distance(&mean, &matrix));
    }
    assert!(errors[7] < errors[0], "{errors:?}");
    assert!((errors[7] - errors[6]).abs() < 1e-4 * errors[7], "{errors:?}");
    assert!(errors.is_sorted_by(|a, b| *b <= a * (1.0 + 1e-6)), "{errors:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Every step begins where the library left off: it is compared with f64 step by step, so errors do not
    /// add up.
    #[test]
    fn steps_are_those_of_the_reference(
        rank in 1usize..4, rows in 12usize..40, cols in 12usize..40, workers in 1usize..5, seed in 0u64..1000,
    ) {
        let mut run = Run::new(&format!("powersgd:rank={rank},min_rate=1"), &[vec![rows, cols]], workers);
        for step in 0..3 {
            let grads = grads(workers, rows * cols, seed + step);
            let p = run.p(&grads);
            let before: Vec<Vec<f64>> = run.memories[0]
                .factors()
                .chunks(cols)
                .map(|column| column.iter().map(|&q| f64::from(q)).collect())
                .collect();
            let (mean, payloads) = run.step(step, &grads, false);
            prop_assert_eq!(payloads, [rows * rank, cols * rank]);
            if step > 0 {
                let expected = naive::step(&p, rows, cols, &naive::orthonormal(&before, 1e-9));
                let expected: Vec<f32> = expected.mean.iter().map(|&value| value as f32).collect();
                prop_assert!(distance(&mean, &expected) < 1e-4 * norm(&expected), "step {}", step);
            }
            for (memory, p) in run.memories.iter().zip(&p) {
                let kept: Vec<f32> = p.iter().zip(&mean).map(|(p, mean)| p - mean).collect();
                prop_assert_eq!(run::bits(memory.residual()), run::bits(&kept));
                prop_assert_eq!(run::bits(memory.factors()), run::bits(run.memories[0].factors()));
            }
        }
    }
}

#[test]
fn error_feedback_sends_in_the_end_what_rank_one_cannot_send_at_once() {
    let (workers, n, steps) = (3, 20 * 30, 400);
    let mut run = Run::new("powersgd:rank=1", &[vec![20, 30]], workers);
    let grads = grads(workers, n, 1);
    let mut sent = vec![0.0f32; n];
    for step in 0..steps {
        let (mean, _) = run.step(step, &grads, false);
        sent.iter_mut().zip(&mean).for_each(|(sent, mean)| *sent += mean);
    }
    let average = |i: usize| grads.iter().map(|grad| grad[i]).sum::<f32>() / workers as f32;
    let owed: Vec<f32> = (0..n).map(|i| average(i) * steps as f32).collect();
    // What is not sent yet stays bounded while what was sent grows: 20 directions take turns.
    assert!(distance(&sent, &owed) < 0.1 * norm(&owed), "{} of {}", distance(&sent, &owed), norm(&owed));
    let kept: Vec<f32> = (0..n)
        .map(|i| run.memories.iter().map(|memory| memory.residual()[i]).sum::<f32>() / workers as f32)
        .collect();
    let all: Vec<f32> = sent.iter().zip(&kept).map(|(sent, kept)| sent + kept).collect();
    assert!(distance(&all, &owed) < 1e-4 * norm(&owed), "sent and kept");
}

#[test]
fn vectors_and_matrices_that_hardly_shrink_travel_whole() {
    // At a rate of 2: 12·12 = 144 in factors of 24·r for r up to 2; 4·90 = 360 in factors of 94·r for r = 1.
    let shapes = [vec![7], vec![12, 12], vec![3, 2], vec![], vec![4, 3, 30], vec![0, 5]];
    for (rank, matrix, tensor) in [(1, 12, 4), (2, 24, 360), (3, 144, 360)] {
        let mut run = Run::new(&format!("powersgd:rank={rank}"), &shapes, 3);
        let n = run.layout.len();
        let grads = grads(3, n, 2);
        let p = run.p(&grads);
        let (mean, payloads) = run.step(0, &grads, false);
        assert_eq!(payloads[0], 7 + matrix + 6 + 1 + tensor, "rank {rank}");
        let q = |first, whole: usize, cols: usize| if first == whole { 0 } else { rank * cols };
        let expected = q(matrix, 144, 12) + q(tensor, 360, 90);
        assert_eq!(payloads.get(1).copied().unwrap_or(0), expected, "rank {rank}");
        assert_eq!(run.spec.codec.state_len(&run.layout.as_ref(), 1, Keeper::Worker).factors(), expected);
        for i in (0..7).chain(151..158) {
            let sum = p.iter().map(|p| p[i]).reduce(|sum, p| sum + p).unwrap();
            assert_eq!(mean[i].to_bits(), (sum / 3.0).to_bits(), "coordinate {i}");
            assert_eq!(run.memories[1].residual()[i], 0.0, "coordinate {i}");
        }
    }
}

#[test]
fn nothing_is_compressed_before_the_start() {
    let mut run = Run::new("powersgd:rank=1,start=2", &[vec![10, 20]], 2);
    for step in 0..4 {
        let grads = grads(2, 200, step);
        let (mean, payloads) = run.step(step, &grads, false);
        let expected: Vec<f32> = grads[0].iter().zip(&grads[1]).map(|(a, b)| (a + b) / 2.0).collect();
        if step < 2 {
            assert_eq!(payloads, [200]);
            assert_eq!(run::bits(&mean), run::bits(&expected));
            assert_eq!(run.memories[0].norm(), 0.0);
        } else {
            assert_eq!(payloads, [10, 20]);
        }
    }
}

#[test]
fn units_of_one_layout_do_not_touch_each_others_factors() {
    let shapes = [vec![10, 20], vec![5], vec![16, 16], vec![9, 30]];
    let mut whole = Run::new("powersgd:rank=2", &shapes, 2);
    let mut apart = Run::new("powersgd:rank=2", &shapes, 2);
    let n = whole.layout.len();
    for step in 0..3 {
        let grads = grads(2, n, step);
        let layout = apart.layout.as_ref();
        whole.step(step, &grads, false);
        // The last unit cuts a tensor, which then travels whole.
        for (id, (start, end)) in [(0, 205), (205, 500), (500, n)].into_iter().enumerate() {
            let unit = Unit { id: id as u32, start, len: end - start, dense: false };
            let part: Vec<Vec<f32>> = grads.iter().map(|grad| grad[unit.range()].to_vec()).collect();
            rounds::step(apart.codec.rounds(), key(step), &layout, &unit, &part, &mut apart.memories, false);
        }
    }
    let (whole, apart) = (&whole.memories[1], &apart.memories[1]);
    assert_eq!(run::bits(&whole.factors()[..40]), run::bits(&apart.factors()[..40]), "the same draws");
    assert!(apart.factors()[40..72].iter().any(|&q| q != 0.0));
    assert!(apart.factors()[72..].iter().all(|&q| q == 0.0), "a tensor that is cut");
    assert_eq!(apart.residual()[461..], vec![0.0; n - 461]);
}

/// A unit for each tensor.
fn units_of(layout: &Layout) -> Vec<Unit> {
    let layout = layout.as_ref();
    let unit = |(id, tensor): (u32, TensorRef<'_>)| {
        let len = tensor.shape.iter().product();
        Unit { id, start: tensor.offset, len, dense: false }
    };
    (0..).zip(layout.tensors()).map(unit).collect()
}

fn part(grads: &[Vec<f32>], unit: &Unit) -> Vec<Vec<f32>> {
    grads.iter().map(|grad| grad[unit.range()].to_vec()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Ranks that change from step to step, and differ from tensor to tensor. Each tensor is as it is alone
    /// in a model at its ranks, bit for bit, and nothing is lost: kept = fl(p − mean).
    #[test]
    fn every_unit_goes_on_at_its_own_ranks_as_it_would_alone(
        ranks in prop::collection::vec(prop::array::uniform5(1u16..6), 1..5),
        workers in 1usize..4,
        min_rate in 1u32..3,
        seed in 0u64..1000,
    ) {
        // The third is too small for any rank but 1, the fourth has none; the fifth is sent dense.
        let shapes = [vec![14, 20], vec![9], vec![5, 3, 2], vec![16, 12], vec![10, 10]];
        let layout = run::layout(&shapes);
        let mut units = units_of(&layout);
        units[4].dense = true;
        let (first, n) = (PowerSgd::new(1).unwrap().with_min_rate(min_rate), layout.len());
        let layout = layout.as_ref();
        let by_unit = |ranks: &[u16]| PowerSgdByUnit::new(&first, ranks, &units, &layout).unwrap();
        let fresh = |codec: &PowerSgd, layout: &LayoutRef<'_>| {
            let spec = format!("powersgd:rank={},min_rate={}", codec.rank(), codec.min_rate());
            let spec = Spec::parse(Box::leak(spec.into_boxed_str())).unwrap();
            (0..workers).map(|_| Memory::for_spec(&spec, layout).unwrap()).collect::<Vec<_>>()
        };
        let mut memories = fresh(&first, &layout);
        let alone: Vec<Layout> = shapes.iter().map(|shape| run::layout(std::slice::from_ref(shape))).collect();
        let mut apart: Vec<_> = alone.iter().map(|layout| fresh(&first, &layout.as_ref())).collect();
        let (mut now, mut last) = (by_unit(&[1; 5]), [1; 5]);
        for (step, ranks) in (0..).zip(&ranks) {
            let next = by_unit(ranks);
            for memory in &mut memories {
                let before = run::bits(memory.residual());
                now.hand_over(&next, &layout, memory).unwrap();
                prop_assert_eq!(run::bits(memory.residual()), before);
            }
            let grads = grads(workers, n, seed + step);
            let mut factors = Vec::new();
            for (at, unit) in units.iter().enumerate() {
                let [was, is] = [last[at], ranks[at]].map(|rank| first.with_rank(rank).unwrap());
                let layout_of_unit = alone[at].as_ref();
                apart[at].iter_mut().for_each(|memory| was.hand_over(&is, &layout_of_unit, memory).unwrap());
                let own = part(&grads, unit);
                let p: Vec<Vec<f32>> = memories.iter().zip(&own).map(|(memory, grad)| {
                    memory.residual()[unit.range()].iter().zip(grad).map(|(kept, g)| kept + g).collect()
                }).collect();
                let codec = next.rounds_of(unit);
                let (mean, payloads) = rounds::step(codec, key(step), &layout, unit, &own, &mut memories, false);
                let (linear, unit_alone) = (LinearCodec::PowerSgd(is), Unit { start: 0, ..*unit });
                let expected = rounds::step(
                    linear.rounds_of(unit), key(step), &layout_of_unit, &unit_alone, &own, &mut apart[at], false,
                );
                prop_assert_eq!((run::bits(&mean), payloads), (run::bits(&expected.0), expected.1));
                for ((memory, p), other) in memories.iter().zip(&p).zip(&apart[at]) {
                    let kept = run::bits(&memory.residual()[unit.range()]);
                    prop_assert_eq!(&kept, &run::bits(other.residual()));
                    let rest: Vec<f32> = p.iter().zip(&mean).map(|(p, mean)| p - mean).collect();
                    prop_assert!(kept == run::bits(&rest) || kept.iter().all(|&bits| bits == 0));
                }
                factors.extend_from_slice(apart[at][0].factors());
            }
            prop_assert_eq!(run::bits(memories[0].factors()), run::bits(&factors));
            (now, last) = (next, *ranks);
        }
    }
}

/// Units that hold several tensors, cut one, leave one out, or hold nothing.
#[test]
fn equal_ranks_are_one_rank() {
    let shapes = [vec![10, 20], vec![5], vec![16, 16], vec![9, 30], vec![12, 12]];
    let layout = run::layout(&shapes);
    let (n, layout) = (layout.len(), layout.as_ref());
    let unit = |(id, (start, end, dense)): (u32, (usize, usize, bool))| Unit {
        id: 2 * id,
        start,
        len: end - start,
        dense,
    };
    let cuts = [
        vec![(0, n, false)],
        vec![(0, 205, false), (205, 500, false), (500, 500, false), (500, n, false)],
        vec![(0, 200, false), (205, 461, true), (731, n, false)],
    ];
    for rank in [1, 2, 4] {
        let codec = PowerSgd::new(rank).unwrap();
        let spelling = Box::leak(format!("powersgd:rank={rank}").into_boxed_str());
        for cut in &cuts {
            let units: Vec<Unit> = (0..).zip(cut.iter().copied()).map(unit).collect();
            let by_unit = PowerSgdByUnit::new(&codec, &vec![rank; units.len()], &units, &layout).unwrap();
            assert!(by_unit.ranks().all(|known| known == rank));
            let mut runs = [(); 2].map(|()| Run::new(spelling, &shapes, 2));
            for step in 0..3 {
                let grads = grads(2, n, step);
                for unit in &units {
                    let own = part(&grads, unit);
                    let [plain, apart] = &mut runs;
                    let rounds = [plain.codec.rounds_of(unit), by_unit.rounds_of(unit)];
                    let expected =
                        rounds::step(rounds[0], key(step), &layout, unit, &own, &mut plain.memories, false);
                    let mean =
                        rounds::step(rounds[1], key(step), &layout, unit, &own, &mut apart.memories, false);
                    assert_eq!((run::bits(&mean.0), mean.1), (run::bits(&expected.0), expected.1));
                }
                for (plain, apart) in runs[0].memories.iter().zip(&runs[1].memories) {
                    assert_eq!(run::bits(plain.residual()), run::bits(apart.residual()));
                    assert_eq!(run::bits(plain.factors()), run::bits(apart.factors()));
                }
            }
        }
    }
}

#[test]
fn ranks_out_of_range_and_memories_of_other_ranks_are_refused() {
    let layout = run::layout(&[vec![10, 20], vec![16, 16]]);
    let (units, codec) = (units_of(&layout), PowerSgd::new(1).unwrap());
    let layout = layout.as_ref();
    let by_unit = |ranks: [u16; 2]| PowerSgdByUnit::new(&codec, &ranks, &units, &layout);
    assert_eq!([by_unit([0, 1]), by_unit([1, 257])], [None, None]);
    let [one, other] = [[1, 2], [2, 2]].map(|ranks| by_unit(ranks).unwrap());
    let mut memory = Memory::new(vec![0.5; 456]).with_factors(vec![1.0; 20 + 2 * 16]);
    assert_eq!(other.hand_over(&one, &layout, &mut memory), Err(EncodeError::MemoryIncomplete));
    assert_eq!((memory.factors(), memory.residual()), (&[1.0; 52][..], &[0.5; 456][..]));
    assert_eq!(one.hand_over(&other, &layout, &mut memory), Ok(()));
    assert_eq!(memory.factors(), [[1.0; 20].as_slice(), &[0.0; 20], &[1.0; 32]].concat());
}

/// A saved memory does not say which ranks it has, as it did not before: their number of factors must agree.
#[test]
fn a_memory_of_different_ranks_is_saved_and_loaded_bit_for_bit() {
    let layout = run::layout(&[vec![10, 20], vec![16, 16]]);
    let (units, codec) = (units_of(&layout), PowerSgd::new(1).unwrap());
    let layout = layout.as_ref();
    let by_unit = PowerSgdByUnit::new(&codec, &[2, 1], &units, &layout).unwrap();
    let alike = PowerSgdByUnit::new(&codec, &[1, 1], &units, &layout).unwrap();
    let fresh = || {
        let spec = Spec::parse("powersgd").unwrap();
        (0..2).map(|_| Memory::for_spec(&spec, &layout).unwrap()).collect::<Vec<_>>()
    };
    let (mut memories, mut resumed) = (fresh(), fresh());
    memories.iter_mut().for_each(|memory| alike.hand_over(&by_unit, &layout, memory).unwrap());
    let run = |step: u64, memories: &mut [Memory<'_>]| {
        let grads = grads(2, 456, step);
        let of = |unit: &Unit| {
            let own = part(&grads, unit);
            run::bits(
                &rounds::step(by_unit.rounds_of(unit), key(step), &layout, unit, &own, memories, false).0,
            )
        };
        units.iter().map(of).collect::<Vec<_>>()
    };
    run(0, &mut memories);
    for (from, to) in memories.iter().zip(&mut resumed) {
        let mut saved = vec![0xa5; from.saved_bytes().unwrap()];
        assert_eq!(from.save(&layout, &mut saved), Ok(saved.len()));
        let refused = to.load(&layout, &saved);
        assert_eq!(refused, Err(DecodeError::InvalidField(Field::Memory)), "ranks 1 and 1");
        alike.hand_over(&by_unit, &layout, to).unwrap();
        to.load(&layout, &saved).unwrap();
    }
    assert_eq!(run(1, &mut resumed), run(1, &mut memories));
}

#[test]
fn nothing_and_next_to_nothing_are_no_trouble() {
    for value in [0.0, -0.0, f32::from_bits(1), 1e-38, 1e-33] {
        let mut run = Run::new("powersgd:rank=2", &[vec![12, 30]], 2);
        for step in 0..3 {
            let grads = vec![vec![value; 360]; 2];
            let p = run.p(&grads);
            let (mean, _) = run.step(step, &grads, false);
            assert!(mean.iter().all(|value| value.is_finite()), "{value}");
            for i in 0..360 {
                let kept = run.memories[0].residual()[i];
                assert_eq!(kept.to_bits(), (p[0][i] - mean[i]).to_bits(), "{value}");
            }
        }
        let (mean, _) = run.step(3, &vec![of_rank(1, 12, 30); 2], false);
        assert!(distance(&mean, &of_rank(1, 12, 30)) < 1e-4 * norm(&mean), "after {value}");
    }
    let mut run = Run::new("powersgd", &[vec![0]], 2);
    assert_eq!(run.step(0, &[Vec::new(), Vec::new()], false), (Vec::new(), vec![0]));
}

#[test]
fn a_step_that_is_abandoned_keeps_everything() {
    let mut run = Run::new("powersgd:rank=2", &[vec![10, 20], vec![6]], 3);
    run.step(0, &grads(3, 206, 0), false);
    let grads = grads(3, 206, 1);
    let p = run.p(&grads);
    run.step(1, &grads, true);
    for (memory, p) in run.memories.iter().zip(&p) {
        assert_eq!(run::bits(memory.residual()), run::bits(p));
    }
}

#[test]
fn a_sum_that_is_not_finite_does_not_reach_the_factors() {
    let (codec, layout) = (linear("powersgd:rank=1"), run::layout(&[vec![8, 9]]));
    let (layout, unit) = (layout.as_ref(), Unit::whole(72));
    let needed = codec.rounds().round_scratch_len(&layout, &unit, 2);
    let step = UnitStep { workers: 2, ..rounds::alone(key(0), &layout, &unit) };
    let (mut words, mut floats) = (vec![0; needed.words], vec![0.0; needed.floats]);
    let mut scratch = LinearScratch { words: &mut words, floats: &mut floats, ints: &mut [] };
    let mut memory = Memory::new(vec![0.0; 72]).with_factors(vec![0.5; 9]);
    let grad = Input::Normal(1).values(72);
    let view = Some(memory.view(0..72));
    let mut round = codec.rounds().begin(&step, Grad::F32(&grad), view, &mut scratch).unwrap();
    let mut mean = vec![0.0; 72];
    loop {
        let gradwire::rounds::Payload::F32(payload) = codec.rounds().payload(&round, &mut scratch) else {
            panic!("floats")
        };
        payload.fill(f32::NAN);
        match codec.rounds().advance(&step, round, &mut scratch, &mut mean, Some(&mut memory)) {
            Some(next) => round = next,
            None => break,
        }
    }
    codec.rounds().abandon(round, &mut scratch, Some(&mut memory));
    assert!(mean[0].is_nan(), "for the exchange to refuse");
    assert_eq!(memory.factors(), [0.5; 9]);
    assert_eq!(run::bits(memory.residual()), run::bits(&grad));
}

#[test]
fn a_run_resumed_from_its_saved_memory_goes_on_bit_for_bit() {
    let shapes = [vec![10, 20], vec![5], vec![16, 16]];
    let mut undisturbed = Run::new("powersgd:rank=2", &shapes, 2);
    let mut resumed = Run::new("powersgd:rank=2", &shapes, 2);
    let (n, layout) = (undisturbed.layout.len(), undisturbed.layout.clone());
    for step in 0..3 {
        undisturbed.step(step, &grads(2, n, step), false);
    }
    for (from, to) in undisturbed.memories.iter().zip(&mut resumed.memories) {
        let mut saved = vec![0xa5; from.saved_bytes().unwrap()];
        assert_eq!(from.save(&layout.as_ref(), &mut saved), Ok(saved.len()));
        to.load(&layout.as_ref(), &saved).unwrap();
    }
    for step in 3..6 {
        let grads = grads(2, n, step);
        let expected = run::bits(&undisturbed.step(step, &grads, false).0);
        assert_eq!(run::bits(&resumed.step(step, &grads, false).0), expected, "step {step}");
    }
}

#[test]
fn bad_gradients_small_scratch_and_missing_factors_are_refused_at_the_start() {
    let (codec, layout) = (linear("powersgd:rank=1"), run::layout(&[vec![5], vec![8, 9]]));
    let (layout, unit) = (layout.as_ref(), Unit { id: 0, start: 5, len: 72, dense: false });
    let needed = codec.rounds().round_scratch_len(&layout, &unit, 1);
    let begin = |grad: &[f32], factors: Option<usize>, less: usize| {
        let (mut words, mut floats) = (vec![0; needed.words], vec![0.0; needed.floats - less]);
        let mut scratch = LinearScratch { words: &mut words, floats: &mut floats, ints: &mut [] };
        let factors = factors.map(|len| vec![0.0; len]);
        let memory = factors.as_deref().map(|factors| MemoryView::new(&[0.0; 72]).with_factors(factors));
        codec
            .rounds()
            .begin(&rounds::alone(key(0), &layout, &unit), Grad::F32(grad), memory, &mut scratch)
            .map(|_| ())
    };
    let mut grad = Input::Normal(1).values(72);
    assert_eq!(begin(&grad, Some(9), 0), Ok(()));
    assert_eq!(begin(&grad, Some(9), 1), Err(EncodeError::LinearScratchTooSmall { needed }));
    assert_eq!(begin(&grad, Some(8), 0), Err(EncodeError::MemoryIncomplete));
    assert_eq!(begin(&grad, None, 0), Err(EncodeError::MemoryIncomplete));
    grad[70] = 1e30;
    assert_eq!(begin(&grad, Some(9), 0), Err(EncodeError::ValueOverflow { index: 75 }));
    grad[3] = f32::NAN;
    assert_eq!(begin(&grad, Some(9), 0), Err(EncodeError::NonFiniteInput { index: 8 }));
}

#[test]
fn the_largest_values_that_are_taken_give_a_finite_mean() {
    let mut run = Run::new("powersgd:rank=2", &[vec![30, 30]], 3);
    let largest = f32::from_bits((127 + 88) << 23).next_down();
    let signs = |seed| Input::Ties(seed).values(900).iter().map(|v| v.signum() * largest).collect();
    let (mean, _) = run.step(0, &[signs(1), signs(2), signs(3)], false);
    assert!(mean.iter().all(|value| value.is_finite()));
    assert!(run.memories[0].residual().iter().all(|value| value.is_finite()));
}

#[test]
fn there_are_no_frames_of_rounds() {
    let spec = Spec::parse("powersgd").unwrap();
    let layout = LayoutRef::flat(4);
    let mut memory = Memory::for_spec(&spec, &layout).unwrap();
    for memory in [None, Some(&mut memory)] {
        let refused = Encoder::new()
            .encode(
                &spec.codec,
                &StepInput {
                    key: key(0),
                    layout: &layout,
                    units: &[Unit::whole(4)],
                    grad: Grad::F32(&[1.0; 4]),
                },
                memory,
            )
            .map(|_| ());
        assert_eq!(refused, Err(EncodeError::NoFrames));
    }
    assert_eq!(memory.norm(), 0.0);
}
