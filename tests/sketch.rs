//! Sketches as all that is sent: against the naive reference, what is kept, and what they find of the sum.

use gradwire::codecs::{Sketch, SketchError};
use gradwire::registry::{Law, LinearCodec};
use gradwire::rounds::{LinearScratch, Payload, UnitStep};
use gradwire::{Codec, Density, EncodeError, Grad, LayoutRef, Linear, Memory, Source, Spec, StepKey, Unit};
use gradwire_tests::inputs::{Input, Words};
use gradwire_tests::{gradients, naive, rounds, run::bits};
use proptest::prelude::*;

const SPELLINGS: [&str; 8] = [
    "sketch",
    "sketch:density=0.02,cells=0.5,rows=1,momentum=0",
    "sketch:density=0.05,cells=0.3,rows=4",
    "sketch:density=0.001,cells=0.9,rows=9,momentum=0.5",
    "sketch:density=0.3,cells=0.000001,rows=2,momentum=0.25",
    "sketch:error=workers",
    "sketch:density=0.05,cells=0.4,rows=2,error=workers",
    "sketch:density=0.2,cells=0.1,rows=1,error=workers",
];
const ARRAYS: [&str; 2] = ["sketched error", "sketched momentum"];

fn sketch(spelling: &str) -> Sketch {
    let Codec::Linear(LinearCodec::Sketch(codec)) = Spec::parse(spelling).unwrap().codec else {
        panic!("{spelling} is another codec")
    };
    codec
}

fn key(step: u64) -> StepKey {
    StepKey { seed: 11, step, source: Source::Shared }
}

/// What workers have in common, and what each has alone.
fn grads(workers: usize, n: usize, step: u64) -> Vec<Vec<f32>> {
    let common = Input::Heavy(step).values(n);
    let own = |rank: usize| Input::Normal(100 * step + rank as u64).values(n);
    (0..workers)
        .map(|rank| own(rank).iter().zip(&common).map(|(own, common)| own + common).collect())
        .collect()
}

fn memories(spelling: &str, workers: usize, n: usize) -> Vec<Memory<'static>> {
    let spec = Spec::parse(spelling).unwrap();
    (0..workers).map(|_| Memory::for_spec(&spec, &LayoutRef::flat(n)).unwrap()).collect()
}

/// Cells of the arrays of a memory, from the first on.
fn kept(memory: &Memory<'_>) -> Vec<Vec<u32>> {
    ARRAYS.iter().map(|name| bits(memory.array(name).unwrap_or_default())).collect()
}

/// fl(residual + gradient) of every worker.
fn sums(memories: &[Memory<'_>], grads: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let add = |(memory, grad): (&Memory<'_>, &Vec<f32>)| {
        memory.residual().iter().zip(grad).map(|(kept, g)| kept + g).collect()
    };
    memories.iter().zip(grads).map(add).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// Means, sketches that are kept, and residuals: p less the mean where it has a value, p elsewhere, and
    /// zeros where the error is in the sketch.
    #[test]
    fn steps_are_those_of_the_reference(
        spelling in prop::sample::select(SPELLINGS.to_vec()),
        n in prop_oneof![0usize..40, 100usize..700, Just(4096), Just(9001)],
        workers in 1usize..6,
        first in 0u64..1000,
    ) {
        let (codec, layout, unit) = (sketch(spelling), LayoutRef::flat(n), Unit::whole(n));
        let mut memories = memories(spelling, workers, n);
        let cells = naive::sketch::columns(&codec, n).unwrap_or(0) * usize::from(codec.rows());
        let mut expected = [vec![0.0; cells], vec![0.0; cells]];
        for step in first..first + 4 {
            let grads = grads(workers, n, step);
            let p = sums(&memories, &grads);
            let (mean, payloads) = rounds::step(&codec, key(step), &layout, &unit, &grads, &mut memories, false);
            prop_assert_eq!(payloads, vec![if cells == 0 { n } else { cells }]);
            let by_reference = naive::sketch::step(&codec, key(step), 0, &p, &mut expected);
            prop_assert_eq!(bits(&mean), bits(&by_reference));
            for (memory, p) in memories.iter().zip(p) {
                let rest: Vec<f32> = match codec.error() {
                    SketchError::Workers if cells > 0 => p.iter().zip(&mean).map(|(p, mean)| p - mean).collect(),
                    _ => vec![0.0; n],
                };
                prop_assert_eq!(bits(memory.residual()), bits(&rest));
                for (found, expected) in kept(memory).iter().zip(&expected).filter(|(found, _)| !found.is_empty()) {
                    prop_assert_eq!(&found[..cells], &bits(expected));
                    prop_assert!(found[cells..].iter().all(|&bits| bits == 0));
                }
            }
        }
    }

    /// Units of one layout have cells of their own, and each is as if it were alone.
    #[test]
    fn units_share_no_cells(
        lens in prop::collection::vec(prop_oneof![Just(0usize), 1usize..60, 60usize..900], 1..6),
        spelling in prop::sample::select(SPELLINGS[..5].to_vec()),
    ) {
        let codec = sketch(spelling);
        let starts = lens.iter().scan(0, |end, len| { *end += len; Some(*end - len) });
        let units: Vec<Unit> = (0..).zip(starts).zip(&lens)
            .map(|((id, start), &len)| Unit { id, start, len, dense: false }).collect();
        let n = lens.iter().sum();
        let layout = LayoutRef::flat(n);
        let lengths = Codec::Linear(LinearCodec::Sketch(codec)).state_len(&layout, units.len(), Default::default());
        let total = lengths.arrays().iter().map(|array| array.len).sum();
        let mut memories = vec![Memory::new(vec![0.0; n]).with_arrays(lengths.arrays().to_vec(), vec![0.0; total])];
        let mut expected: Vec<_> = units.iter().map(|unit| {
            let cells = naive::sketch::columns(&codec, unit.len).unwrap_or(0) * usize::from(codec.rows());
            [vec![0.0; cells], vec![0.0; cells]]
        }).collect();
        for step in 0..3 {
            for (unit, expected) in units.iter().zip(&mut expected) {
                let grads = grads(1, unit.len, step + 10 * u64::from(unit.id));
                let (mean, _) = rounds::step(&codec, key(step), &layout, unit, &grads, &mut memories, false);
                prop_assert_eq!(bits(&mean), bits(&naive::sketch::step(&codec, key(step), unit.id, &grads, expected)));
            }
        }
    }
}

/// With one worker's large values in cells of their own, FetchSGD is top-k with momentum, error feedback and
/// momentum masking, as DGC is: the figures of its two steps, worked by hand.
#[test]
fn without_collisions_two_steps_are_those_worked_by_hand() {
    let spelling = "sketch:density=0.001,cells=0.9,rows=5,momentum=0.9";
    let (codec, n) = (sketch(spelling), 1000);
    let at = [40, 500, 900];
    let columns = naive::sketch::columns(&codec, n).unwrap();
    for key in naive::sketch::keys(5, key(0), 0) {
        let cells = at.map(|at| naive::sketch::cell(key, columns, at).0);
        assert!(cells[0] != cells[1] && cells[1] != cells[2] && cells[0] != cells[2], "choose another seed");
    }
    let gradient = |values: [f32; 3]| {
        let mut gradient = vec![0.0; n];
        at.iter().zip(values).for_each(|(&at, value)| gradient[at] = value);
        gradient
    };
    let (layout, unit, mut memories) = (LayoutRef::flat(n), Unit::whole(n), memories(spelling, 1, n));
    let mut step = |at, values| {
        let grads = [gradient(values)];
        rounds::step(&codec, key(at), &layout, &unit, &grads, &mut memories, false).0
    };
    assert_eq!(step(0, [1.0, -3.0, 2.0]), gradient([0.0, -3.0, 0.0]));
    assert_eq!(step(1, [1.0, 1.0, 1.0]), gradient([0.0, 0.0, 2.0 + (0.9 * 2.0 + 1.0)]));
    assert_eq!(step(2, [0.0, 0.0, 0.0]), gradient([(1.0 + (0.9 + 1.0)) + 0.9 * (0.9 + 1.0), 0.0, 0.0]));
}

/// Over all workers, sent and kept are the sum of p.
#[test]
fn what_workers_keep_and_send_adds_up_to_their_gradients() {
    let (spelling, workers, n) = ("sketch:density=0.02,error=workers", 4, 3000);
    let (codec, layout, unit) = (sketch(spelling), LayoutRef::flat(n), Unit::whole(n));
    let mut memories = memories(spelling, workers, n);
    let (mut sent, mut given) = (vec![0.0f64; n], vec![0.0f64; n]);
    for at in 0..30 {
        let grads = grads(workers, n, at);
        let (mean, _) = rounds::step(&codec, key(at), &layout, &unit, &grads, &mut memories, false);
        for i in 0..n {
            sent[i] += workers as f64 * f64::from(mean[i]);
            given[i] += grads.iter().map(|grad| f64::from(grad[i])).sum::<f64>();
        }
    }
    for i in 0..n {
        let kept: f64 = memories.iter().map(|memory| f64::from(memory.residual()[i])).sum();
        let scale = sent[i].abs() + given[i].abs() + kept.abs() + 1.0;
        assert!((sent[i] + kept - given[i]).abs() < 1e-4 * scale, "coordinate {i}");
    }
}

#[test]
fn a_step_that_is_abandoned_keeps_p_at_workers_and_no_residual_beside_a_sketch() {
    for spelling in SPELLINGS {
        let (codec, n) = (sketch(spelling), 2000);
        let (mut memories, grads) = (memories(spelling, 3, n), grads(3, n, 1));
        let p = sums(&memories, &grads);
        let (layout, unit) = (LayoutRef::flat(n), Unit::whole(n));
        rounds::step(&codec, key(1), &layout, &unit, &grads, &mut memories, true);
        let keeps = codec.error() == SketchError::Workers;
        for (memory, p) in memories.iter().zip(&p) {
            let expected = if keeps { p.clone() } else { vec![0.0; n] };
            assert_eq!(bits(memory.residual()), bits(&expected), "{spelling}");
        }
    }
}

/// A sum that is not finite came from another worker. A median may hide it, but not from the mean.
#[test]
fn a_sum_that_is_not_finite_is_seen_in_the_mean() {
    let (spelling, n) = ("sketch:cells=0.5", 1000);
    let (codec, layout, unit) = (sketch(spelling), LayoutRef::flat(n), Unit::whole(n));
    let step = UnitStep { workers: 2, ..rounds::alone(key(0), &layout, &unit) };
    let needed = codec.round_scratch_len(&layout, &unit, 2);
    let mut memory = memories(spelling, 1, n).remove(0);
    let (mut words, mut floats) = (vec![0; needed.words], vec![0.0; needed.floats]);
    let mut scratch = LinearScratch { words: &mut words, floats: &mut floats, ints: &mut [] };
    let (grad, mut mean) = (vec![1.0; n], vec![0.0; n]);
    let view = Some(memory.view(unit.range()));
    let round = codec.begin(&step, Grad::F32(&grad), view, &mut scratch).unwrap();
    let Payload::F32(sums) = codec.payload(&round, &mut scratch) else { panic!("floats") };
    sums[7] = f32::NAN;
    assert!(codec.advance(&step, round, &mut scratch, &mut mean, Some(&mut memory)).is_none());
    assert!(mean.iter().all(|mean| mean.is_nan()));
}

#[test]
fn without_its_arrays_or_with_too_little_scratch_memory_a_step_does_not_begin() {
    let (codec, n) = (sketch("sketch"), 1000);
    let (layout, unit) = (LayoutRef::flat(n), Unit::whole(n));
    let step = rounds::alone(key(0), &layout, &unit);
    let needed = codec.round_scratch_len(&layout, &unit, 1);
    let begin = |memory: Option<&Memory<'_>>, less: usize, value: f32| {
        let (mut words, mut floats) = (vec![0; needed.words], vec![0.0; needed.floats - less]);
        let mut scratch = LinearScratch { words: &mut words, floats: &mut floats, ints: &mut [] };
        let view = memory.map(|memory| memory.view(unit.range()));
        codec.begin(&step, Grad::F32(&vec![value; n]), view, &mut scratch).map(drop)
    };
    let memory = memories("sketch", 1, n).remove(0);
    let without = memories("sketch:momentum=0", 1, n).remove(0);
    assert_eq!(begin(Some(&memory), 0, 1.0), Ok(()));
    assert_eq!(begin(None, 0, 1.0), Err(EncodeError::MemoryIncomplete));
    assert_eq!(begin(Some(&without), 0, 1.0), Err(EncodeError::MemoryIncomplete));
    assert_eq!(begin(Some(&memory), 1, 1.0), Err(EncodeError::LinearScratchTooSmall { needed }));
    assert_eq!(begin(Some(&memory), 0, f32::NAN), Err(EncodeError::NonFiniteInput { index: 0 }));
    assert_eq!(begin(Some(&memory), 0, 2f32.powi(72)), Err(EncodeError::ValueOverflow { index: 0 }));
}

#[test]
fn a_run_resumed_from_its_saved_memory_goes_on_bit_for_bit() {
    for spelling in ["sketch:density=0.02", "sketch:density=0.02,error=workers"] {
        let (n, codec) = (3000, sketch(spelling));
        let (layout, unit) = (LayoutRef::flat(n), Unit::whole(n));
        let step = |step: u64, memories: &mut [Memory<'_>]| {
            bits(&rounds::step(&codec, key(step), &layout, &unit, &grads(2, n, step), memories, false).0)
        };
        let mut undisturbed = memories(spelling, 2, n);
        (0..3).for_each(|at| drop(step(at, &mut undisturbed)));
        let mut resumed = memories(spelling, 2, n);
        for (from, to) in undisturbed.iter().zip(&mut resumed) {
            let mut saved = vec![0xa5; from.saved_bytes().unwrap()];
            assert_eq!(from.save(&layout, &mut saved), Ok(saved.len()));
            to.load(&layout, &saved).unwrap();
        }
        for at in 3..6 {
            assert_eq!(step(at, &mut resumed), step(at, &mut undisturbed), "{spelling}, step {at}");
        }
    }
}

#[test]
fn a_spelling_says_what_a_key_allows() {
    let text = "sketch:density=0.1,cells=0.3,rows=3,error=workers";
    assert_eq!(Spec::parse(text).unwrap().to_string(), text);
    let [density, cells] = [0.1, 0.3].map(|share| Density::new(share).unwrap());
    assert_eq!(Some(sketch(text)), Sketch::new(density, cells, 3, SketchError::Workers));
    assert_eq!(Sketch::new(density, cells, 3, SketchError::Sketched { momentum: 1.0 }), None);
    assert_eq!(Sketch::new(density, cells, 10, SketchError::Workers), None);
    let law = |text: &str| Spec::parse(text).unwrap().codec.capabilities().law;
    assert_eq!((law("sketch"), law(text)), (Law::State, Law::Rounded));
    for (spelling, says) in [
        ("sketch:rows=10", "rows=10: expected a whole number from 1 to 9"),
        ("sketch:cells=0", "cells=0: expected a fraction from 1e-9 to 1"),
        ("sketch:momentum=1", "momentum=1: expected a number from 0 to below 1"),
        ("sketch:error=server", "error=server: expected one of sketch workers"),
        ("sketch:error=workers,momentum=0", "momentum: it is kept in the sketch, with error=sketch"),
        ("sketch:decay=0.5", "decay: nothing that is not sent is kept, so nothing can decay"),
        (
            "sketch:memory=ef",
            "memory: the codec keeps a state of its own there, and nothing that was not sent",
        ),
        ("sketch:error=workers,memory=state", "memory=state: this codec keeps no state of its own"),
    ] {
        assert_eq!(Spec::parse(spelling).unwrap_err().to_string(), says);
    }
}

/// Heavy tails: a coordinate in the place number i has the magnitude 1/i. Each worker has a part of them.
fn long_tails(workers: usize, d: usize) -> Vec<Vec<f32>> {
    let mut words = Words::new(d as u64);
    let mut values: Vec<f32> =
        (1..=d).map(|i| if words.below(2) == 0 { 1.0 } else { -1.0 } / i as f32).collect();
    (1..d).rev().for_each(|i| values.swap(i, words.below(i as u64 + 1) as usize));
    let part = |rank: usize| {
        let own = |(i, value): (usize, &f32)| if i % workers == rank { *value } else { 0.0 };
        values.iter().enumerate().map(own).collect()
    };
    (0..workers).map(part).collect()
}

/// A row of 16·k columns finds a coordinate with a chance that does not depend on d; among more coordinates,
/// more rows are needed to tell it from those that seem large.
#[test]
fn k_times_log_d_cells_find_the_k_largest_coordinates_of_the_sum() {
    const K: usize = 32;
    for (d, rows) in [(10_000, 5), (100_000, 7), (1_000_000, 9)] {
        let grads = long_tails(3, d);
        let recall = |rows: usize, cells: usize| {
            let [density, share] = [K, cells].map(|part| part as f64 / d as f64);
            let codec = sketch(&format!("sketch:density={density},cells={share},rows={rows},error=workers"));
            let (layout, unit) = (LayoutRef::flat(d), Unit::whole(d));
            let (mean, payloads) = rounds::mean(&codec, key(0), &layout, &unit, &grads);
            assert_eq!(payloads, [cells]);
            let best = naive::encode::largest(&naive::sketch::sum(&grads), K);
            best.iter().filter(|&&at| mean[at] != 0.0).count() as f64 / K as f64
        };
        let cells = rows * 16 * K;
        let found = recall(rows, cells);
        assert!(found > 0.8, "{cells} cells for {d} coordinates find {found}");
        assert!(rows == 5 || recall(5, cells / 80 * 80) < found, "as many cells in five rows");
    }
}

/// The share of the k largest coordinates of the true sum that the first step of a sketch finds, and the
/// energy of its coordinates as a share of theirs. Run with `--nocapture` for the table.
#[test]
fn a_larger_sketch_finds_more_of_the_largest_coordinates_of_the_sum() {
    for (name, all) in gradients::groups("what sketches find") {
        for workers in [4, 16].into_iter().filter(|&workers| workers <= all.len()) {
            let (grads, n) = (&all[..workers], all[0].len());
            let total = naive::sketch::sum(grads);
            let best = naive::encode::largest(&total, naive::encode::count(Density::new(0.01).unwrap(), n));
            let energy = |of: &[usize]| of.iter().map(|&i| f64::from(total[i]).powi(2)).sum::<f64>();
            println!("{name}, {workers} workers");
            let of = |spelling: &str| {
                let (codec, layout, unit) =
                    (Spec::parse(spelling).unwrap().codec, LayoutRef::flat(n), Unit::whole(n));
                let mut memories = memories(spelling, workers, n);
                let rounds_of = codec.as_linear().unwrap();
                let (mean, _) =
                    rounds::step(rounds_of.rounds(), key(1), &layout, &unit, grads, &mut memories, false);
                let found: Vec<usize> = (0..n).filter(|&at| mean[at] != 0.0).collect();
                let recall = best.iter().filter(|&&at| mean[at] != 0.0).count() as f64 / best.len() as f64;
                println!("  {spelling}: recall {recall:.3}, energy {:.3}", energy(&found) / energy(&best));
                recall
            };
            let cells = |cells: f64, rows: u8| of(&format!("sketch:density=0.01,cells={cells},rows={rows}"));
            let found = [0.05, 0.1, 0.2, 0.5].map(|share| cells(share, 5));
            assert!(found.is_sorted(), "{name}: {found:?}");
            let one_row = cells(0.2, 1);
            assert!(one_row < found[2], "{name}: {one_row} with one row of as many cells");
            of("sharedk:density=0.01,by=sketch");
        }
    }
}
