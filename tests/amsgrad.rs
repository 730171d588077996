//! Steps of AMSGrad from summed sketches: against the naive reference, by hand, and what is kept.

use gradwire::codecs::{AmsGrad, Sketch, SketchError};
use gradwire::registry::{Law, LinearCodec};
use gradwire::rounds::LinearScratch;
use gradwire::{Codec, Density, EncodeError, Grad, LayoutRef, Linear, Memory, Source, Spec, StepKey, Unit};
use gradwire_tests::inputs::Input;
use gradwire_tests::naive::{self, amsgrad::Moments};
use gradwire_tests::{rounds, run::bits};
use proptest::prelude::*;

const SPELLINGS: [&str; 6] = [
    "sketch:moments=amsgrad",
    "sketch:density=0.05,cells=0.4,rows=2,moments=amsgrad,momentum=0",
    "sketch:density=0.02,cells=0.9,rows=5,moments=amsgrad,momentum=0.5,squares=0.5,floor=0.1",
    "sketch:density=0.3,cells=0.000001,rows=1,moments=amsgrad,squares=0",
    "sketch:density=1,cells=0.5,rows=3,moments=amsgrad,floor=1000000",
    "sketch:density=0.01,cells=0.1,rows=4,moments=amsgrad,momentum=0.99,squares=0.9,floor=1e-30",
];
const ARRAYS: [&str; 3] = ["mean of gradients", "mean of squares", "largest mean of squares"];

fn codec(spelling: &str) -> (Sketch, AmsGrad) {
    let Codec::Linear(LinearCodec::Sketch(codec)) = Spec::parse(spelling).unwrap().codec else {
        panic!("{spelling} is another codec")
    };
    let SketchError::Divided(amsgrad) = codec.error() else { panic!("{spelling} divides nothing") };
    (codec, amsgrad)
}

fn key(step: u64) -> StepKey {
    StepKey { seed: 11, step, source: Source::Shared }
}

/// What workers have in common, and what each has alone; small enough for some floors to matter.
fn grads(workers: usize, n: usize, step: u64) -> Vec<Vec<f32>> {
    let common = Input::Heavy(step).values(n);
    let own = |rank: usize| Input::Normal(100 * step + rank as u64).values(n);
    (0..workers)
        .map(|rank| own(rank).iter().zip(&common).map(|(own, common)| 0.3 * (own + common)).collect())
        .collect()
}

fn memories(spelling: &str, workers: usize, n: usize) -> Vec<Memory<'static>> {
    let spec = Spec::parse(spelling).unwrap();
    (0..workers).map(|_| Memory::for_spec(&spec, &LayoutRef::flat(n)).unwrap()).collect()
}

fn array(memory: &Memory<'_>, name: &str, unit: &Unit) -> Vec<f32> {
    memory.array(name).map(|array| array[unit.range()].to_vec()).unwrap_or_default()
}

/// Whether a memory holds, of one unit, what the reference keeps, bit for bit.
fn holds(memory: &Memory<'_>, unit: &Unit, expected: &Moments) -> Result<(), TestCaseError> {
    prop_assert_eq!(bits(&memory.residual()[unit.range()]), bits(&expected.residual));
    let kept = [&expected.steps, &expected.squares, &expected.peaks];
    for (name, expected) in ARRAYS.iter().zip(kept).filter(|(name, _)| memory.array(name).is_some()) {
        prop_assert_eq!(bits(&array(memory, name, unit)), bits(expected), "{}", name);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn steps_are_those_of_the_reference(
        spelling in prop::sample::select(SPELLINGS.to_vec()),
        n in prop_oneof![0usize..40, 100usize..700, Just(4001)],
        workers in 1usize..6,
        first in 0u64..1000,
    ) {
        let ((codec, amsgrad), layout, unit) = (codec(spelling), LayoutRef::flat(n), Unit::whole(n));
        let mut memories = memories(spelling, workers, n);
        let mut expected = vec![Moments::new(&amsgrad, n); workers];
        for step in first..first + 4 {
            let grads = grads(workers, n, step);
            let (mean, payloads) = rounds::step(&codec, key(step), &layout, &unit, &grads, &mut memories, false);
            let cells = naive::sketch::columns(&codec, n).map(|columns| columns * usize::from(codec.rows()));
            prop_assert_eq!(payloads, vec![cells.unwrap_or(n)]);
            let by_reference = naive::amsgrad::step(&codec, &amsgrad, key(step), 0, &grads, &mut expected);
            prop_assert_eq!(bits(&mean), bits(&by_reference));
            for (memory, expected) in memories.iter().zip(&expected) {
                holds(memory, &unit, expected)?;
            }
        }
    }

    /// Each unit of a layout is as if it were alone.
    #[test]
    fn units_share_nothing(
        lens in prop::collection::vec(prop_oneof![Just(0usize), 1usize..60, 60usize..900], 1..5),
        spelling in prop::sample::select(SPELLINGS.to_vec()),
    ) {
        let (codec, amsgrad) = codec(spelling);
        let starts = lens.iter().scan(0, |end, len| { *end += len; Some(*end - len) });
        let units: Vec<Unit> = (0..).zip(starts).zip(&lens)
            .map(|((id, start), &len)| Unit { id, start, len, dense: false }).collect();
        let n = lens.iter().sum();
        let (layout, mut memories) = (LayoutRef::flat(n), memories(spelling, 1, n));
        let mut expected: Vec<_> = units.iter().map(|unit| vec![Moments::new(&amsgrad, unit.len)]).collect();
        for step in 0..3 {
            for (unit, expected) in units.iter().zip(&mut expected) {
                let grads = grads(1, unit.len, step + 10 * u64::from(unit.id));
                let (mean, _) = rounds::step(&codec, key(step), &layout, unit, &grads, &mut memories, false);
                let by_reference = naive::amsgrad::step(&codec, &amsgrad, key(step), unit.id, &grads, expected);
                prop_assert_eq!(bits(&mean), bits(&by_reference));
            }
        }
        for (unit, expected) in units.iter().zip(&expected) {
            holds(&memories[0], unit, &expected[0])?;
        }
    }

    /// Before the division, what is sent and what is kept add up to the gradients: m will send b₁ / (1 − b₁)
    /// times of itself. And no quotient is above its bound.
    #[test]
    fn nothing_of_a_gradient_is_lost(
        spelling in prop::sample::select(SPELLINGS.to_vec()),
        n in prop_oneof![1usize..60, 200usize..2000],
        workers in 1usize..5,
        steps in 1u64..12,
    ) {
        let ((codec, amsgrad), layout, unit) = (codec(spelling), LayoutRef::flat(n), Unit::whole(n));
        let mut memories = memories(spelling, workers, n);
        let b1 = f64::from(amsgrad.momentum());
        let (mut sent, mut given, mut scale) = (vec![0.0f64; n], vec![0.0f64; n], vec![1.0f64; n]);
        for at in 0..steps {
            let grads = grads(workers, n, at);
            let (mean, _) = rounds::step(&codec, key(at), &layout, &unit, &grads, &mut memories, false);
            let peaks = memories[0].array(ARRAYS[2]).unwrap();
            for i in 0..n {
                let all = workers as f64 * f64::from(mean[i]) * f64::from(peaks[i]).sqrt();
                sent[i] += all;
                given[i] += grads.iter().map(|grad| f64::from(grad[i])).sum::<f64>();
                scale[i] += all.abs() + grads.iter().map(|grad| f64::from(grad[i].abs())).sum::<f64>();
                let bound = 1.0 / (1.0 - f64::from(amsgrad.squares())).sqrt();
                prop_assert!(f64::from(mean[i].abs()) <= bound * (1.0 + 1e-6), "{}", mean[i]);
            }
        }
        for i in 0..n {
            let of = |memory: &Memory<'_>| {
                let step = memory.array(ARRAYS[0]).map_or(0.0, |steps| f64::from(steps[i]));
                f64::from(memory.residual()[i]) + b1 / (1.0 - b1) * step
            };
            let kept: f64 = memories.iter().map(of).sum();
            prop_assert!((sent[i] + kept - given[i]).abs() < 1e-4 * scale[i], "coordinate {}", i);
        }
    }
}

/// With the largest values in cells of their own: three steps, worked by hand.
#[test]
fn three_steps_are_those_worked_by_hand() {
    let spelling = "sketch:density=0.001,cells=0.9,moments=amsgrad,momentum=0.5,squares=0.75,floor=5";
    let ((codec, _), n, at) = (codec(spelling), 1000, [40, 500, 900]);
    let columns = naive::sketch::columns(&codec, n).unwrap();
    for key in (0..3).flat_map(|step| naive::sketch::keys(5, key(step), 0)) {
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
    // m = 7, −1, 4. Chosen, the first has v = 0.75·5 + 0.25·49 = 16: 7 / 4.
    assert_eq!(step(0, [14.0, -2.0, 8.0]), gradient([1.75, 0.0, 0.0]));
    // p = 3.5, −1.5, 4 + 2. The last has v = 0.75·3.75 + 0.25·36, the first v̂ = 16.
    assert_eq!(step(1, [0.0; 3]), gradient([0.0, 0.0, 6.0 / 11.8125f32.sqrt()]));
    // p = 3.5 + 1.75, −1.5 − 0.25, 1. Of the first v fell to 12, then 0.75·12 + 0.25·5.25² is below v̂ = 16.
    assert_eq!(step(2, [0.0; 3]), gradient([5.25 / 4.0, 0.0, 0.0]));
}

/// A unit that is sent whole has the steps of AMSGrad on the mean of the workers' m.
#[test]
fn a_unit_that_is_sent_whole_makes_the_steps_of_amsgrad() {
    let spelling = "sketch:moments=amsgrad,squares=0.9,floor=0.01";
    let ((codec, _), n, workers) = (codec(spelling), 50, 3);
    let (layout, unit, mut memories) = (LayoutRef::flat(n), Unit::whole(n), memories(spelling, workers, n));
    let (mut m, mut v, mut peak) = (vec![0.0f64; n], vec![0.01f64; n], vec![0.01f64; n]);
    for at in 0..20 {
        let grads = grads(workers, n, at);
        let (mean, payloads) = rounds::step(&codec, key(at), &layout, &unit, &grads, &mut memories, false);
        assert_eq!(payloads, [n]);
        for i in 0..n {
            let grad = grads.iter().map(|grad| f64::from(grad[i])).sum::<f64>() / workers as f64;
            m[i] = 0.9 * m[i] + 0.1 * grad;
            v[i] = 0.9 * v[i] + 0.1 * m[i] * m[i];
            peak[i] = peak[i].max(v[i]);
            let expected = m[i] / peak[i].sqrt();
            assert!((f64::from(mean[i]) - expected).abs() < 1e-5, "{} is not {expected}", mean[i]);
        }
        assert!(memories.iter().all(|memory| memory.residual().iter().all(|kept| *kept == 0.0)));
    }
}

/// All that m would have sent of the gradient: an exchange leaves m as it was.
#[test]
fn a_step_that_is_abandoned_keeps_residual_and_gradient() {
    for spelling in SPELLINGS {
        let ((codec, _), n) = (codec(spelling), 2000);
        let (layout, unit, mut memories) = (LayoutRef::flat(n), Unit::whole(n), memories(spelling, 3, n));
        rounds::step(&codec, key(0), &layout, &unit, &grads(3, n, 0), &mut memories, false);
        let grads = grads(3, n, 1);
        let sum = |(memory, grad): (&Memory<'_>, &Vec<f32>)| -> Vec<f32> {
            memory.residual().iter().zip(grad).map(|(kept, g)| kept + g).collect()
        };
        let expected: Vec<_> = memories.iter().zip(&grads).map(sum).collect();
        rounds::step(&codec, key(1), &layout, &unit, &grads, &mut memories, true);
        for (memory, expected) in memories.iter().zip(&expected) {
            assert_eq!(bits(memory.residual()), bits(expected), "{spelling}");
        }
    }
}

#[test]
fn without_its_arrays_or_with_too_little_scratch_memory_a_step_does_not_begin() {
    let ((codec, _), n) = (codec(SPELLINGS[0]), 1000);
    let (layout, unit) = (LayoutRef::flat(n), Unit::whole(n));
    let step = rounds::alone(key(0), &layout, &unit);
    let needed = codec.round_scratch_len(&layout, &unit, 1);
    let begin = |memory: Option<&Memory<'_>>, less: usize, value: f32| {
        let (mut words, mut floats) = (vec![0; needed.words], vec![0.0; needed.floats - less]);
        let mut scratch = LinearScratch { words: &mut words, floats: &mut floats, ints: &mut [] };
        let view = memory.map(|memory| memory.view(unit.range()));
        codec.begin(&step, Grad::F32(&vec![value; n]), view, &mut scratch).map(drop)
    };
    let mut memory = memories(SPELLINGS[0], 1, n).remove(0);
    let without = memories("sketch:moments=amsgrad,momentum=0", 1, n).remove(0);
    assert_eq!(begin(Some(&memory), 0, 1.0), Ok(()));
    assert_eq!(begin(None, 0, 1.0), Err(EncodeError::MemoryIncomplete));
    assert_eq!(begin(Some(&without), 0, 1.0), Err(EncodeError::MemoryIncomplete));
    assert_eq!(begin(Some(&memory), 1, 1.0), Err(EncodeError::LinearScratchTooSmall { needed }));
    assert_eq!(begin(Some(&memory), 0, f32::NAN), Err(EncodeError::NonFiniteInput { index: 0 }));
    assert_eq!(begin(Some(&memory), 0, 2f32.powi(72)), Err(EncodeError::ValueOverflow { index: 0 }));
    // Of m and the residual only the sum is too large.
    memory.array_mut(ARRAYS[0]).unwrap()[7] = 2f32.powi(72);
    memory.residual_mut()[7] = 2f32.powi(71);
    assert_eq!(begin(Some(&memory), 0, 1.0), Err(EncodeError::ValueOverflow { index: 7 }));
}

/// The square of a sum of 2⁶⁵ is no f32. It may come from another worker, and spoils nothing.
#[test]
fn what_has_no_square_is_not_sent_and_stays() {
    for spelling in ["sketch:moments=amsgrad,momentum=0", "sketch:cells=1,rows=1,moments=amsgrad,momentum=0"]
    {
        let ((codec, _), n) = (codec(spelling), 40);
        let (layout, unit, mut memories) = (LayoutRef::flat(n), Unit::whole(n), memories(spelling, 1, n));
        let mut grad = vec![1.0; n];
        grad[3] = 2f32.powi(65);
        let (mean, _) = rounds::step(&codec, key(0), &layout, &unit, &[grad], &mut memories, false);
        assert_eq!((mean[3], memories[0].residual()[3]), (0.0, 2f32.powi(65)), "{spelling}");
        let finite = |name: &&str| memories[0].array(name).unwrap_or_default().iter().all(|x| x.is_finite());
        assert!(ARRAYS.iter().all(finite), "{spelling}");
    }
}

#[test]
fn a_run_resumed_from_its_saved_memory_goes_on_bit_for_bit() {
    for spelling in SPELLINGS {
        let ((codec, _), n) = (codec(spelling), 3000);
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
    let text = "sketch:density=0.1,cells=0.3,rows=3,moments=amsgrad,momentum=0.8,squares=0.99,floor=0.01";
    assert_eq!(Spec::parse(text).unwrap().to_string(), text);
    let short = "sketch:density=0.01,cells=0.2,moments=amsgrad,momentum=0.9";
    assert_eq!(Spec::parse("sketch:moments=amsgrad,error=workers").unwrap().to_string(), short);
    let [density, cells] = [0.1, 0.3].map(|share| Density::new(share).unwrap());
    let amsgrad = AmsGrad::new(0.8, 0.99, 0.01).unwrap();
    assert_eq!(Some(codec(text).0), Sketch::new(density, cells, 3, SketchError::Divided(amsgrad)));
    for (momentum, squares, floor) in [(1.0, 0.5, 1.0), (0.5, 1.0, 1.0), (-0.1, 0.5, 1.0), (0.5, 0.5, 0.0)] {
        assert_eq!(AmsGrad::new(momentum, squares, floor), None);
    }
    assert_eq!(AmsGrad::new(0.5, 0.5, f32::INFINITY), None);
    let spec = Spec::parse(text).unwrap();
    assert_eq!(spec.codec.capabilities().law, Law::Rounded);
    assert!(spec.codec.accumulates_steps());
    for (spelling, says) in [
        ("sketch:moments=adam", "moments=adam: expected one of none amsgrad"),
        ("sketch:moments=amsgrad,squares=1", "squares=1: expected a number from 0 to below 1"),
        ("sketch:moments=amsgrad,floor=0", "floor=0: expected a finite number above 0"),
        ("sketch:squares=0.5", "squares, floor: they belong to moments=amsgrad"),
        ("sketch:error=workers,floor=1", "squares, floor: they belong to moments=amsgrad"),
        (
            "sketch:moments=none,error=workers,momentum=0",
            "momentum: it is kept in the sketch, with error=sketch",
        ),
        (
            "sketch:moments=amsgrad,error=sketch",
            "moments=amsgrad: workers keep what was not sent, as with error=workers",
        ),
        (
            "sketch:moments=amsgrad,dense_1d",
            "dense_1d, dense_below: what is sent dense is no step of moments=amsgrad",
        ),
        (
            "sketch:moments=amsgrad,dense_below=9",
            "dense_1d, dense_below: what is sent dense is no step of moments=amsgrad",
        ),
        ("sketch:moments=amsgrad,memory=none", "memory=none: AMSGrad keeps its moments there"),
        ("sketch:moments=amsgrad,memory=state", "memory=state: this codec keeps no state of its own"),
    ] {
        assert_eq!(Spec::parse(spelling).unwrap_err().to_string(), says);
    }
}
