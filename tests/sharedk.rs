//! Coordinates that a summed sketch or one worker finds for all: against the naive reference, what is kept,
//! and how much of the sum they hold.

use gradwire::codecs::{SharedBy, SharedK, SketchSize};
use gradwire::registry::LinearCodec;
use gradwire::rounds::{LinearScratch, MemoryView, Payload, UnitStep};
use gradwire::{
    Codec, Density, EncodeError, Encoder, Grad, LayoutRef, Memory, Source, Spec, StepInput, StepKey, Unit,
};
use gradwire_tests::inputs::Input;
use gradwire_tests::{gradients, naive, rounds, run::bits};
use proptest::prelude::*;

const SPELLINGS: [&str; 9] = [
    "sharedk:density=0.01,by=leader",
    "sharedk:density=0.2,by=leader",
    "sharedk:density=0.01",
    "sharedk:density=0.1,columns=3,candidates=1",
    "sharedk:density=0.02,rows=2,columns=3,candidates=2",
    "sharedk:density=0.01,rows=5,columns=8,candidates=1",
    "sharedk:density=0.005,rows=9,columns=2,candidates=1",
    "sharedk:density=0.01,rows=3,columns=2,candidates=4",
    "sharedk:density=0.001,rows=1,candidates=255",
];

fn sharedk(spelling: &str) -> SharedK {
    let Codec::Linear(LinearCodec::SharedK(codec)) = Spec::parse(spelling).unwrap().codec else {
        panic!("{spelling} is another codec")
    };
    codec
}

fn key(step: u64) -> StepKey {
    StepKey { seed: 11, step, source: Source::Shared }
}

/// fl(residual + gradient) of every worker.
fn sums(memories: &[Memory<'_>], grads: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let add = |(memory, grad): (&Memory<'_>, &Vec<f32>)| {
        memory.residual().iter().zip(grad).map(|(kept, g)| kept + g).collect()
    };
    memories.iter().zip(grads).map(add).collect()
}

fn memories(workers: usize, n: usize) -> Vec<Memory<'static>> {
    (0..workers).map(|rank| Memory::new(Input::Normal(900 + rank as u64).values(n))).collect()
}

/// What workers have in common, and what each has alone.
fn grads(workers: usize, n: usize, step: u64) -> Vec<Vec<f32>> {
    let common = Input::Heavy(step).values(n);
    let own = |rank: usize| Input::Normal(100 * step + rank as u64).values(n);
    (0..workers)
        .map(|rank| own(rank).iter().zip(&common).map(|(own, common)| own + common).collect())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    /// Sent and kept are p at each worker, bit for bit: a worker keeps p, and 0 where the mean has a value.
    #[test]
    fn steps_are_those_of_the_reference_and_what_is_kept_is_all_the_rest(
        spelling in prop::sample::select(SPELLINGS.to_vec()),
        n in prop_oneof![0usize..40, 100usize..700, Just(4096), Just(5003)],
        workers in 1usize..6,
        seed in 0u64..1000,
        id in 0u32..9,
    ) {
        let (codec, unit) = (sharedk(spelling), Unit { id, ..Unit::whole(n) });
        let mut memories = memories(workers, n);
        for step in seed..seed + 3 {
            let grads = grads(workers, n, step);
            let p = sums(&memories, &grads);
            let layout = LayoutRef::flat(n);
            let (mean, _) = rounds::step(&codec, key(step), &layout, &unit, &grads, &mut memories, false);
            let (expected, sent) = naive::sharedk::step(&codec, key(step), id, &p);
            prop_assert_eq!(bits(&mean), bits(&expected));
            for (memory, mut kept) in memories.iter().zip(p) {
                sent.iter().for_each(|&at| kept[at] = 0.0);
                prop_assert_eq!(bits(memory.residual()), bits(&kept));
            }
        }
    }
}

#[test]
fn a_step_that_is_abandoned_keeps_everything() {
    for spelling in SPELLINGS {
        let (codec, n) = (sharedk(spelling), 2000);
        let (mut memories, grads) = (memories(3, n), grads(3, n, 1));
        let p = sums(&memories, &grads);
        let (layout, unit) = (LayoutRef::flat(n), Unit::whole(n));
        rounds::step(&codec, key(1), &layout, &unit, &grads, &mut memories, true);
        for (memory, p) in memories.iter().zip(&p) {
            assert_eq!(bits(memory.residual()), bits(p), "{spelling}");
        }
    }
}

/// Values are whole numbers, so that all sums are exact.
#[test]
fn the_sum_of_sketches_is_the_sketch_of_the_sum() {
    let (codec, n) = (sharedk("sharedk:density=0.01,rows=5,columns=4,candidates=1"), 3000);
    let (layout, unit) = (LayoutRef::flat(n), Unit::whole(n));
    let first = |grad: &[f32]| {
        let step = rounds::alone(key(3), &layout, &unit);
        let worker = rounds::begin_by(&codec, &step, |scratch| {
            gradwire::Linear::begin(&codec, &step, Grad::F32(grad), None, scratch).unwrap()
        });
        worker.floats()
    };
    let whole =
        |seed| Input::Normal(seed).values(n).iter().map(|value| (value * 50.0).round()).collect::<Vec<_>>();
    let (a, b) = (whole(1), whole(2));
    let both: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
    let added: Vec<f32> = first(&a).iter().zip(first(&b)).map(|(a, b)| a + b).collect();
    assert_eq!(added.len(), 5 * 128);
    assert_eq!(bits(&added), bits(&first(&both)));
}

/// Each worker has large values of its own that cancel, and the same small ones: top-k of each finds the
/// former, the sum is the latter.
#[test]
fn what_only_the_sum_shows_is_found() {
    let (n, k) = (10_000, 100);
    let codec = sharedk("sharedk:density=0.01,rows=3,columns=2,candidates=4");
    let grad = |sign: f32| -> Vec<f32> {
        let value = |i: usize| match i % 100 {
            7 => 1.0,
            50 => sign * 30.0,
            _ => 0.0,
        };
        (0..n).map(value).collect()
    };
    let (layout, unit) = (LayoutRef::flat(n), Unit::whole(n));
    let (mean, payloads) = rounds::mean(&codec, key(0), &layout, &unit, &[grad(1.0), grad(-1.0)]);
    let found = (0..n).filter(|&i| mean[i] != 0.0).collect::<Vec<_>>();
    assert!(found.iter().all(|i| i % 100 == 7 && mean[*i] == 1.0), "{found:?}");
    assert!(found.len() >= 95, "{found:?}");
    assert_eq!(payloads[0], 3 * 800);
    assert!(payloads[1] <= 4 * k);
}

#[test]
fn exact_values_of_several_candidates_correct_what_the_sketch_mistook() {
    let (workers, n) = (4, 20_000);
    let grads = grads(workers, n, 5);
    let total: Vec<f64> = (0..n).map(|i| grads.iter().map(|grad| f64::from(grad[i])).sum()).collect();
    let energy = |spelling: &str| {
        let (layout, unit) = (LayoutRef::flat(n), Unit::whole(n));
        let (mean, _) = rounds::mean(&sharedk(spelling), key(2), &layout, &unit, &grads);
        (0..n).filter(|&i| mean[i] != 0.0).map(|i| total[i] * total[i]).sum::<f64>()
    };
    let (one, four) =
        (energy("sharedk:density=0.01,columns=4,candidates=1"), energy("sharedk:density=0.01,candidates=4"));
    assert!(four > 1.2 * one, "{four} with candidates, {one} without, of sketches of one size");
}

#[test]
fn a_unit_that_a_sketch_does_not_shorten_is_sent_whole_in_one_round() {
    // At 1 % of up to 100 coordinates, k is 1, with 8 candidates, and the smallest sketch has 16 cells.
    for (n, payloads) in [(0, vec![0]), (1, vec![1]), (24, vec![24]), (25, vec![16, 8]), (1000, vec![80, 80])]
    {
        let (grads, mut memories) = (grads(3, n, 1), memories(3, n));
        let (layout, unit) = (LayoutRef::flat(n), Unit::whole(n));
        let codec = sharedk("sharedk:density=0.01");
        let (_, found) = rounds::step(&codec, key(0), &layout, &unit, &grads, &mut memories, false);
        assert_eq!(found, payloads, "{n}");
        if payloads.len() == 1 {
            assert_eq!(memories[1].norm(), 0.0, "{n}");
        }
    }
}

/// Every rank leads in about its share of the steps, whoever takes part.
#[test]
fn each_step_has_one_leader_by_chance() {
    for workers in [1, 2, 3, 4, 7, 16] {
        let mut led = vec![0; workers];
        for step in 0..4000 {
            let bids: Vec<u64> =
                (0..workers as u64).map(|rank| naive::sharedk::bid(key(step), 3, rank)).collect();
            let most = *bids.iter().max().unwrap();
            assert_eq!(bids.iter().filter(|&&bid| bid == most).count(), 1);
            led[bids.iter().position(|&bid| bid == most).unwrap()] += 1;
        }
        let share = 4000 / workers;
        assert!(led.iter().all(|&led| led > share * 3 / 4 && led < share * 5 / 4 + 1), "{led:?}");
    }
}

/// Three rounds: a bid, k positions and k values.
#[test]
fn bytes_of_a_leader_do_not_grow_with_the_workers() {
    let (n, codec) = (5000, sharedk("sharedk:density=0.01,by=leader"));
    let (layout, unit) = (LayoutRef::flat(n), Unit::whole(n));
    for workers in [1, 2, 9] {
        let (mean, payloads) = rounds::mean(&codec, key(4), &layout, &unit, &grads(workers, n, 8));
        assert_eq!((payloads, mean.iter().filter(|&&mean| mean != 0.0).count()), (vec![1, 50, 50], 50));
    }
}

/// Sums of positions that no honest leader makes, as two leaders or a damaged payload would.
#[test]
fn positions_that_are_none_are_left_out() {
    let (n, codec) = (1000, sharedk("sharedk:density=0.006,by=leader"));
    let (layout, unit) = (LayoutRef::flat(n), Unit::whole(n));
    let (grad, codec): (_, &dyn gradwire::Linear) = (Input::Normal(3).values(n), &codec);
    let step = UnitStep { workers: 2, ..rounds::alone(key(0), &layout, &unit) };
    let needed = codec.round_scratch_len(&layout, &unit, 2);
    let (mut words, mut floats) = (vec![0; needed.words], vec![0.0; needed.floats]);
    let (mut ints, mut mean) = (vec![0; needed.ints], vec![f32::NAN; n]);
    let mut memory = Memory::new(vec![0.0; n]);
    let mut scratch = LinearScratch { words: &mut words, floats: &mut floats, ints: &mut ints };
    let view = Some(memory.view(unit.range()));
    let round = codec.begin(&step, Grad::F32(&grad), view, &mut scratch).unwrap();
    let round = codec.advance(&step, round, &mut scratch, &mut mean, Some(&mut memory)).unwrap();
    scratch.ints.copy_from_slice(&[8, 8, -1, 5, 1001, 1000]);
    let round = codec.advance(&step, round, &mut scratch, &mut mean, Some(&mut memory)).unwrap();
    assert_eq!(round.payload_len, 2);
    assert!(codec.advance(&step, round, &mut scratch, &mut mean, Some(&mut memory)).is_none());
    for (i, (&mean, &kept)) in mean.iter().zip(memory.residual()).enumerate() {
        let expected = if i == 7 || i == 999 { (grad[i] / 2.0, 0.0) } else { (0.0, grad[i]) };
        assert_eq!((mean, kept), expected, "{i}");
    }
}

#[test]
fn nothing_is_sent_of_zeros() {
    for (spelling, expected) in
        [("sharedk:density=0.01", vec![48, 0]), ("sharedk:density=0.01,by=leader", vec![1, 5, 0])]
    {
        for zero in [0.0, -0.0] {
            let (n, codec) = (500, sharedk(spelling));
            let (layout, unit) = (LayoutRef::flat(n), Unit::whole(n));
            let (mean, payloads) = rounds::mean(&codec, key(0), &layout, &unit, &vec![vec![zero; n]; 2]);
            assert_eq!((bits(&mean), payloads), (vec![0; n], expected.clone()), "{spelling}");
        }
    }
}

#[test]
fn a_run_resumed_from_its_saved_memory_goes_on_bit_for_bit() {
    let (n, codec) = (3000, sharedk("sharedk:density=0.02"));
    let (layout, unit) = (LayoutRef::flat(n), Unit::whole(n));
    let mut undisturbed = memories(2, n);
    let step = |step: u64, memories: &mut [Memory<'_>]| {
        bits(&rounds::step(&codec, key(step), &layout, &unit, &grads(2, n, step), memories, false).0)
    };
    (0..3).for_each(|at| drop(step(at, &mut undisturbed)));
    let mut resumed: Vec<_> = (0..2).map(|_| Memory::new(vec![0.0; n])).collect();
    for (from, to) in undisturbed.iter().zip(&mut resumed) {
        let mut saved = vec![0xa5; from.saved_bytes().unwrap()];
        assert_eq!(from.save(&layout, &mut saved), Ok(saved.len()));
        to.load(&layout, &saved).unwrap();
    }
    for at in 3..6 {
        assert_eq!(step(at, &mut resumed), step(at, &mut undisturbed), "step {at}");
    }
}

/// The largest values that are taken give finite sketches, and larger ones are refused.
#[test]
fn values_are_refused_by_name_and_taken_up_to_the_bound() {
    let (n, codec) = (200, sharedk("sharedk:density=0.01"));
    let (layout, unit) = (LayoutRef::flat(n + 5), Unit { start: 5, ..Unit::whole(n) });
    let needed = gradwire::Linear::round_scratch_len(&codec, &layout, &unit, 1);
    let begin = |grad: &[f32], less: usize| {
        let (mut words, mut floats) = (vec![0; needed.words], vec![0.0; needed.floats - less]);
        let mut scratch = LinearScratch { words: &mut words, floats: &mut floats, ints: &mut [] };
        let memory = Some(MemoryView::new(&[0.0; 200]));
        let codec: &dyn gradwire::Linear = &codec;
        let round =
            codec.begin(&rounds::alone(key(0), &layout, &unit), Grad::F32(grad), memory, &mut scratch)?;
        let Payload::F32(table) = codec.payload(&round, &mut scratch) else { panic!("floats") };
        assert!(table.iter().all(|cell| cell.is_finite()));
        Ok(())
    };
    let bound = 2f32.powi(72);
    let mut grad = vec![bound.next_down(); n];
    assert_eq!(begin(&grad, 0), Ok(()));
    assert_eq!(begin(&grad, 1), Err(EncodeError::LinearScratchTooSmall { needed }));
    grad[70] = bound;
    assert_eq!(begin(&grad, 0), Err(EncodeError::ValueOverflow { index: 75 }));
    grad[3] = f32::NAN;
    assert_eq!(begin(&grad, 0), Err(EncodeError::NonFiniteInput { index: 8 }));
    let spec = Spec::parse("sharedk").unwrap();
    let refused = Encoder::new()
        .encode(
            &spec.codec,
            &StepInput {
                key: key(0),
                layout: &LayoutRef::flat(4),
                units: &[Unit::whole(4)],
                grad: Grad::F32(&[1.0; 4]),
            },
            None,
        )
        .map(|_| ());
    assert_eq!(refused, Err(EncodeError::NoFrames));
}

#[test]
fn a_spelling_says_what_a_key_allows() {
    let text = "sharedk:density=0.1,by=sketch,rows=5,columns=2,candidates=3";
    assert_eq!(Spec::parse(text).unwrap().to_string(), text);
    let codec = sharedk(text);
    assert_eq!(
        codec,
        SharedK::new(
            Density::new(0.1).unwrap(),
            SharedBy::Sketch { size: SketchSize::new(5, 2).unwrap(), candidates: 3 }
        )
    );
    for (spelling, says) in [
        ("sharedk:rows=10", "rows=10: expected a whole number from 1 to 9"),
        ("sharedk:columns=0", "columns=0: expected a whole number from 1 to 255"),
        ("sharedk:candidates=256", "candidates=256: expected a whole number from 1 to 255"),
        ("sharedk:by=chance", "by=chance: expected one of sketch leader"),
        ("sharedk:by=leader,rows=3", "rows, columns, candidates: they belong to by=sketch"),
        ("sharedk:candidates=8,by=leader", "rows, columns, candidates: they belong to by=sketch"),
    ] {
        assert_eq!(Spec::parse(spelling).unwrap_err().to_string(), says);
    }
}

/// The share of the energy of the true sum that k coordinates hold: those that are best, the best of one
/// worker, those of sketches, and random ones. Run with `--nocapture` for the table.
#[test]
fn sketched_coordinates_hold_more_of_the_sum_than_those_of_one_worker_or_random_ones() {
    for (name, all) in gradients::groups("the energy that shared coordinates hold") {
        for workers in [4, 16].into_iter().filter(|&workers| workers <= all.len()) {
            let (p, n) = (&all[..workers], all[0].len());
            let total: Vec<f32> = (0..n).map(|i| p.iter().map(|p| p[i]).sum()).collect();
            let energy = |of: &[usize]| of.iter().map(|&i| f64::from(total[i]).powi(2)).sum::<f64>();
            let whole = energy(&(0..n).collect::<Vec<_>>());
            let density = Density::new(0.01).unwrap();
            let k = naive::encode::count(density, n);
            let best = energy(&naive::encode::largest(&total, k)) / whole;
            let own = energy(&naive::encode::largest(&p[0], k)) / whole;
            let random = k as f64 / n as f64;
            let of = |rows, columns, candidates| {
                let size = SketchSize::new(rows, columns).unwrap();
                let codec = SharedK::new(density, SharedBy::Sketch { size, candidates });
                let (layout, unit) = (LayoutRef::flat(n), Unit::whole(n));
                let (mean, payloads) = rounds::mean(&codec, key(1), &layout, &unit, p);
                let sent: Vec<usize> = (0..n).filter(|&i| mean[i] != 0.0).collect();
                (energy(&sent) / whole, payloads.iter().sum::<usize>() as f64 / k as f64)
            };
            let (layout, unit) = (LayoutRef::flat(n), Unit::whole(n));
            let led = |step: u64| {
                let codec = SharedK::new(density, SharedBy::Leader);
                let (mean, _) = rounds::mean(&codec, key(step), &layout, &unit, p);
                energy(&(0..n).filter(|&i| mean[i] != 0.0).collect::<Vec<_>>()) / whole
            };
            let led = (0..4).map(led).sum::<f64>() / 4.0;
            println!(
                "{name}, {workers} workers: best {best:.3}, own {own:.3}, leader {led:.3}, random {random:.3}"
            );
            for (rows, columns, candidates) in
                [(1, 1, 1), (1, 1, 4), (1, 1, 8), (1, 4, 1), (3, 1, 2), (3, 1, 4), (3, 4, 1), (5, 4, 1)]
            {
                let (energy, floats) = of(rows, columns, candidates);
                println!(
                    "  {rows} rows, {columns} columns, {candidates} candidates: {energy:.3}, {floats:.1} floats for each of k"
                );
            }
            let size = SketchSize::DEFAULT;
            let (sketched, _) = of(size.rows(), size.columns(), SharedBy::CANDIDATES);
            assert!(best > sketched && sketched > own && own > random, "{name}: {sketched}");
        }
    }
}
