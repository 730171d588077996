//! What workers of `sharedk` keep besides a plain residual: against the naive reference, and what always
//! holds of it.

use gradwire::codecs::{SharedBy, SharedFeedback, SharedK};
use gradwire::registry::{Law, LinearCodec};
use gradwire::rounds::LinearScratch;
use gradwire::{Codec, Density, EncodeError, Grad, LayoutRef, Linear, Memory, Source, Spec, StepKey, Unit};
use gradwire_tests::inputs::Input;
use gradwire_tests::naive::sharedk::{self, Kept};
use gradwire_tests::{rounds, run::bits};
use proptest::prelude::*;

const FILTERED: [&str; 3] = [
    "sharedk:density=0.01,by=leader,lowpass=0.1",
    "sharedk:density=0.2,by=leader,lowpass=0.75",
    "sharedk:density=0.02,rows=2,columns=3,candidates=2,lowpass=0.3",
];
const ESTIMATED: [&str; 4] = [
    "sharedk:density=0.01,by=leader,feedback=ef21",
    "sharedk:density=0.2,by=leader,feedback=ef21,momentum=0",
    "sharedk:density=0.01,feedback=ef21,momentum=0.5",
    "sharedk:density=0.05,columns=3,candidates=1,feedback=ef21,momentum=0.99",
];
const ARRAYS: [&str; 3] = ["mean of estimates", "estimate", "momentum"];

fn all() -> Vec<&'static str> {
    [&FILTERED[..], &ESTIMATED].concat()
}

fn codec(spelling: &str) -> SharedK {
    let Codec::Linear(LinearCodec::SharedK(codec)) = Spec::parse(spelling).unwrap().codec else {
        panic!("{spelling} is another codec")
    };
    codec
}

fn memories(spelling: &str, workers: usize, n: usize) -> Vec<Memory<'static>> {
    let spec = Spec::parse(spelling).unwrap();
    (0..workers).map(|_| Memory::for_spec(&spec, &LayoutRef::flat(n)).unwrap()).collect()
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

/// Whole numbers from −8 to 8, so that sums are exact.
fn whole(workers: usize, n: usize, step: u64) -> Vec<Vec<f32>> {
    grads(workers, n, step)
        .iter()
        .map(|grad| grad.iter().map(|g| g.round().clamp(-8.0, 8.0)).collect())
        .collect()
}

/// One step of whole gradients: the mean.
fn step(codec: &SharedK, at: u64, grads: &[Vec<f32>], memories: &mut [Memory<'_>]) -> Vec<f32> {
    let n = grads[0].len();
    rounds::step(codec, key(at), &LayoutRef::flat(n), &Unit::whole(n), grads, memories, false).0
}

/// Residual and arrays, as bits.
fn contents(memory: &Memory<'_>) -> Vec<Vec<u32>> {
    let arrays = ARRAYS.iter().filter_map(|name| memory.array(name));
    [memory.residual()].into_iter().chain(arrays).map(bits).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// Two units of one layout, each as the reference has it alone.
    #[test]
    fn steps_are_those_of_the_reference(
        spelling in prop::sample::select(all()),
        lens in prop::array::uniform2(prop_oneof![0usize..40, 100usize..700, Just(4096)]),
        workers in 1usize..6,
        seed in 0u64..1000,
    ) {
        let (codec, n) = (codec(spelling), lens[0] + lens[1]);
        let units = [(0, 0, lens[0]), (1, lens[0], lens[1])].map(|(id, start, len)| Unit { id, start, len, dense: false });
        let mut memories = memories(spelling, workers, n);
        let mut expected = units.map(|unit| vec![Kept::new(unit.len); workers]);
        for (at, id) in (seed..seed + 4).flat_map(|at| [(at, 0), (at, 1)]) {
            let (unit, expected) = (units[id], &mut expected[id]);
            let grads = grads(workers, unit.len, at);
            let layout = LayoutRef::flat(n);
            let (mean, _) = rounds::step(&codec, key(at), &layout, &unit, &grads, &mut memories, false);
            let p: Vec<_> = expected.iter_mut().zip(&grads).map(|(kept, grad)| kept.values(codec.feedback(), grad)).collect();
            let (shared, sent) = sharedk::step(&codec, key(at), unit.id, &p);
            for ((memory, expected), p) in memories.iter().zip(expected).zip(&p) {
                let own = expected.finish(codec.feedback(), p, &sent, &shared);
                prop_assert_eq!(bits(&mean), bits(&own));
                prop_assert_eq!(bits(&memory.residual()[unit.range()]), bits(&expected.residual));
                let arrays = [&expected.mean, &expected.estimate, &expected.momentum];
                for (found, expected) in ARRAYS.iter().zip(arrays).filter_map(|(name, array)| Some((memory.array(name)?, array))) {
                    prop_assert_eq!(bits(&found[unit.range()]), bits(expected));
                }
            }
        }
    }
}

/// The law of an estimate: all workers have the same H, and it is the mean of their estimates. In whole
/// numbers and with a power of two of workers, bit for bit.
#[test]
fn the_mean_that_all_have_is_the_mean_of_the_estimates() {
    for (spelling, workers) in [
        ("sharedk:density=0.05,by=leader,feedback=ef21,momentum=0", 4),
        ("sharedk:density=0.01,feedback=ef21,momentum=0", 2),
    ] {
        let (codec, n) = (codec(spelling), 2000);
        let mut memories = memories(spelling, workers, n);
        for at in 0..20 {
            let mean = step(&codec, at, &whole(workers, n, at), &mut memories);
            let estimates =
                |i: usize| memories.iter().map(|memory| memory.array("estimate").unwrap()[i]).sum::<f32>();
            let expected: Vec<f32> = (0..n).map(|i| estimates(i) / workers as f32).collect();
            assert_eq!(mean, expected, "{spelling}, step {at}");
        }
        assert!(memories.iter().all(|memory| memory.norm() == 0.0), "there is no residual");
    }
}

/// The same of any numbers, within roundings.
#[test]
fn rounding_moves_the_mean_of_the_estimates_by_little() {
    for spelling in ESTIMATED {
        let (codec, workers, n, steps) = (codec(spelling), 3, 1000, 60);
        let mut memories = memories(spelling, workers, n);
        let (mut largest, mut mean) = (0.0f64, Vec::new());
        for at in 0..steps {
            let grads = grads(workers, n, at);
            mean = step(&codec, at, &grads, &mut memories);
            largest = grads.iter().flatten().fold(largest, |largest, g| largest.max(f64::from(g.abs())));
        }
        let bound = steps as f64 * largest * 2f64.powi(-20);
        for (i, &mean) in mean.iter().enumerate() {
            let estimate = |memory: &Memory<'_>| f64::from(memory.array("estimate").unwrap()[i]);
            let expected = memories.iter().map(estimate).sum::<f64>() / workers as f64;
            assert!((f64::from(mean) - expected).abs() <= bound, "{spelling}: {mean}, {expected}");
        }
    }
}

/// Each step sends some of what the estimates lack, so these come to gradients that stay as they are.
#[test]
fn a_gradient_that_does_not_change_arrives_whole() {
    for (spelling, steps) in [
        ("sharedk:density=0.1,by=leader,feedback=ef21,momentum=0", 80),
        ("sharedk:density=0.02,feedback=ef21,momentum=0", 80),
    ] {
        let (codec, workers, n) = (codec(spelling), 2, 1000);
        let (mut memories, grads) = (memories(spelling, workers, n), whole(workers, n, 1));
        let expected: Vec<f32> = (0..n).map(|i| (grads[0][i] + grads[1][i]) / 2.0).collect();
        assert_ne!(step(&codec, 0, &grads, &mut memories), expected, "{spelling}");
        let last = (1..steps).map(|at| step(&codec, at, &grads, &mut memories)).last().unwrap();
        // By a sketch, a coordinate whose sum is 0 is never a candidate, and needs none.
        assert_eq!(last, expected, "{spelling}");
    }
}

/// One worker, two of eight coordinates a step: the figures of two steps, worked by hand.
#[test]
fn two_steps_of_each_are_those_worked_by_hand() {
    let grads = [[8.0, -2.0, 1.0, 0.0, 4.0, 0.0, 0.0, 0.0], [4.0, -6.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]];
    let run = |spelling: &str| {
        let (codec, mut memories) = (codec(spelling), memories(spelling, 1, 8));
        let means = [0, 1].map(|at| step(&codec, at, &[grads[at as usize].to_vec()], &mut memories));
        (means, memories.remove(0))
    };
    let (means, memory) = run("sharedk:density=0.25,by=leader,lowpass=0.5");
    assert_eq!(means, [[8.0, 0.0, 0.0, 0.0, 4.0, 0.0, 0.0, 0.0], [4.0, -7.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]]);
    // Coordinate 1 was −1 and is sent: half of that stays. Coordinate 2 was 0.5, and half of 1 comes to it.
    assert_eq!(memory.residual(), [0.0, -0.5, 1.0, 0.0, 0.5, 0.0, 0.0, 0.0]);

    let (means, memory) = run("sharedk:density=0.25,by=leader,feedback=ef21,momentum=0.5");
    // v is [4, −1, 0.5, 0, 2, …], then [4, −3.5, 0.75, 0, 1.5, …]; h lacks −3.5, 0.75 and −0.5 of the latter.
    assert_eq!(means, [[4.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0], [4.0, -3.5, 0.75, 0.0, 2.0, 0.0, 0.0, 0.0]]);
    assert_eq!(memory.array("momentum").unwrap(), [4.0, -3.5, 0.75, 0.0, 1.5, 0.0, 0.0, 0.0]);
    assert_eq!(memory.array("estimate"), memory.array("mean of estimates"));
}

#[test]
fn a_step_that_is_abandoned_keeps_p_in_a_residual_and_nothing_beside_an_estimate() {
    for spelling in all() {
        let (codec, n) = (codec(spelling), 2000);
        let mut memories = memories(spelling, 3, n);
        step(&codec, 0, &grads(3, n, 0), &mut memories);
        let next = grads(3, n, 1);
        let p: Vec<Vec<f32>> = memories
            .iter()
            .zip(&next)
            .map(|(memory, grad)| memory.residual().iter().zip(grad).map(|(m, g)| m + g).collect())
            .collect();
        let (layout, unit) = (LayoutRef::flat(n), Unit::whole(n));
        rounds::step(&codec, key(1), &layout, &unit, &next, &mut memories, true);
        let keeps = matches!(codec.feedback(), SharedFeedback::Residual { .. });
        for (memory, p) in memories.iter().zip(&p) {
            let expected = if keeps { p.clone() } else { vec![0.0; n] };
            assert_eq!(bits(memory.residual()), bits(&expected), "{spelling}");
        }
    }
}

#[test]
fn a_run_resumed_from_its_saved_memory_goes_on_bit_for_bit() {
    for spelling in all() {
        let (n, codec) = (1500, codec(spelling));
        let mut undisturbed = memories(spelling, 2, n);
        (0..3).for_each(|at| drop(step(&codec, at, &grads(2, n, at), &mut undisturbed)));
        let mut resumed = memories(spelling, 2, n);
        let layout = LayoutRef::flat(n);
        for (from, to) in undisturbed.iter().zip(&mut resumed) {
            let mut saved = vec![0xa5; from.saved_bytes().unwrap()];
            assert_eq!(from.save(&layout, &mut saved), Ok(saved.len()));
            to.load(&layout, &saved).unwrap();
        }
        for at in 3..6 {
            let [a, b] = [&mut undisturbed, &mut resumed].map(|all| step(&codec, at, &grads(2, n, at), all));
            assert_eq!(bits(&a), bits(&b), "{spelling}, step {at}");
        }
        assert!(undisturbed.iter().map(contents).eq(resumed.iter().map(contents)), "{spelling}");
    }
}

#[test]
fn without_its_arrays_or_where_the_estimate_is_too_far_off_a_step_does_not_begin() {
    let (spelling, n) = ("sharedk:density=0.01,feedback=ef21", 300);
    let (codec, layout) = (codec(spelling), LayoutRef::flat(n + 5));
    let unit = Unit { start: 5, ..Unit::whole(n) };
    let step = rounds::alone(key(0), &layout, &unit);
    let needed = codec.round_scratch_len(&layout, &unit, 1);
    let begin = |memory: Option<&Memory<'_>>, less: usize, value: f32| {
        let (mut words, mut floats) = (vec![0; needed.words - less], vec![0.0; needed.floats]);
        let mut scratch = LinearScratch { words: &mut words, floats: &mut floats, ints: &mut [] };
        let view = memory.map(|memory| memory.view(unit.range()));
        codec.begin(&step, Grad::F32(&vec![value; n]), view, &mut scratch).map(drop)
    };
    let mut memory = memories(spelling, 1, n + 5).remove(0);
    let without = memories("sharedk:feedback=ef21,momentum=0", 1, n + 5).remove(0);
    assert_eq!(begin(Some(&memory), 0, 1.0), Ok(()));
    assert_eq!(begin(None, 0, 1.0), Err(EncodeError::MemoryIncomplete));
    assert_eq!(begin(Some(&without), 0, 1.0), Err(EncodeError::MemoryIncomplete));
    assert_eq!(begin(Some(&memory), 1, 1.0), Err(EncodeError::LinearScratchTooSmall { needed }));
    assert_eq!(begin(Some(&memory), 0, f32::NAN), Err(EncodeError::NonFiniteInput { index: 5 }));
    assert_eq!(begin(Some(&memory), 0, 2f32.powi(72)), Err(EncodeError::ValueOverflow { index: 5 }));
    memory.array_mut("estimate").unwrap()[12] = -f32::MAX;
    assert_eq!(begin(Some(&memory), 0, 1.0), Err(EncodeError::ValueOverflow { index: 12 }));
}

#[test]
fn a_spelling_says_what_a_key_allows() {
    for text in [
        "sharedk:density=0.1,by=leader,lowpass=0.1",
        "sharedk:density=0.1,by=sketch,rows=3,feedback=ef21,momentum=0.5",
    ] {
        assert_eq!(Spec::parse(text).unwrap().to_string(), text);
    }
    let by_leader = SharedK::new(Density::new(0.1).unwrap(), SharedBy::Leader);
    let with = |feedback| by_leader.with_feedback(feedback);
    let filtered = "sharedk:density=0.1,by=leader,lowpass=0.1";
    assert_eq!(Some(codec(filtered)), with(SharedFeedback::Residual { lowpass: 0.1 }));
    let estimated = "sharedk:density=0.1,by=leader,feedback=ef21";
    assert_eq!(Some(codec(estimated)), with(SharedFeedback::Estimate { momentum: 0.9 }));
    assert_eq!(codec("sharedk:density=0.1,by=leader,lowpass=1,feedback=residual"), by_leader);
    for lowpass in [0.0, -0.5, 1.5, f32::NAN] {
        assert_eq!(with(SharedFeedback::Residual { lowpass }), None);
    }
    for momentum in [-0.1, 1.0, f32::NAN] {
        assert_eq!(with(SharedFeedback::Estimate { momentum }), None);
    }
    let law = |text: &str| Spec::parse(text).unwrap().codec.capabilities().law;
    assert_eq!([law("sharedk"), law(filtered), law(estimated)], [Law::Exact, Law::Filtered, Law::State]);
    for (spelling, says) in [
        ("sharedk:lowpass=0", "lowpass=0: expected a number above 0, at most 1"),
        ("sharedk:momentum=1", "momentum=1: expected a number from 0 to below 1"),
        ("sharedk:feedback=ef", "feedback=ef: expected one of residual ef21"),
        ("sharedk:feedback=ef21,lowpass=1", "lowpass: it filters a residual, with feedback=residual"),
        ("sharedk:momentum=0", "momentum: it belongs to feedback=ef21"),
        ("sharedk:lowpass=0.5,memory=none", "lowpass: with memory=none there is no residual to filter"),
        ("sharedk:feedback=ef21,decay=0.5", "decay: nothing that is not sent is kept, so nothing can decay"),
        (
            "sharedk:feedback=ef21,memory=ef",
            "memory: the codec keeps a state of its own there, and nothing that was not sent",
        ),
    ] {
        assert_eq!(Spec::parse(spelling).unwrap_err().to_string(), says);
    }
}
