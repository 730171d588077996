//! Every codec of the list keeps the law that it states, on the examples that it gives.

use gradwire::registry::{CODECS, Law};
use gradwire::state::MemoryChoice;
use gradwire::{
    Codec, Decoder, Encoder, Grad, Layout, LayoutRef, Limits, Memory, Source, Spec, StepInput, StepKey, Unit,
};
use gradwire_tests::inputs::{Input, power_of_two};
use gradwire_tests::spellings::{and_examples, has_frames};
use gradwire_tests::{rounds, run};

/// Two matrices and a vector.
fn layout() -> Layout {
    run::layout(&[vec![40, 30], vec![77], vec![9, 5, 8]])
}

/// What one step of a codec with error feedback did.
struct Step {
    /// fl(residual + gradient)
    p: Vec<f32>,
    sent: Vec<f32>,
    kept: Vec<f32>,
    /// What is kept once the frame was given back.
    given_back: Vec<f32>,
}

fn step(spec: &Spec, residual: &[f32], grad: &[f32]) -> Step {
    let layout = layout();
    let (layout, units) = (layout.as_ref(), spec.units.units(&layout.as_ref()).collect::<Vec<_>>());
    let key = StepKey { seed: 5, step: 6, source: Source::Rank(1) };
    let mut kept = residual.to_vec();
    let mut memory = Memory::new(&mut kept);
    let states = if spec.codec.capabilities().adapts { units.len() } else { 0 };
    memory = memory.with_states(vec![Default::default(); states]);
    let mut encoder = Encoder::new();
    let input = StepInput { key, layout: &layout, units: &units, grad: Grad::F32(grad) };
    let frame = encoder.encode(&spec.codec, &input, Some(&mut memory)).unwrap();
    let mut decoder = Decoder::new();
    let frame = decoder.parse(frame, &layout, &Limits::for_layout(&layout)).unwrap();
    let (mut sent, kept) = (vec![0.0; grad.len()], memory.residual().to_vec());
    frame.add_scaled_to(1.0, &mut sent);
    memory.give_back(&frame);
    let given_back = memory.residual().to_vec();
    let p = residual.iter().zip(grad).map(|(kept, grad)| kept + grad).collect();
    Step { p, sent, kept, given_back }
}

/// The examples of all codecs that have frames and plain error feedback.
fn examples(law: Law) -> Vec<Spec> {
    let specs = CODECS.iter().flat_map(|entry| entry.examples).map(|example| Spec::parse(example).unwrap());
    let has_law = |spec: &Spec| {
        let capabilities = spec.codec.capabilities();
        let is_framed = capabilities.has_frames && !matches!(spec.codec, Codec::Gossip(_));
        is_framed && capabilities.law == law && spec.memory == MemoryChoice::ErrorFeedback
    };
    specs.filter(has_law).collect()
}

fn inputs(n: usize) -> Vec<(Vec<f32>, Vec<f32>)> {
    let tiny: Vec<f32> = Input::Normal(3).values(n).iter().map(|value| value * 1e-30).collect();
    let mut mixed = tiny.clone();
    mixed.iter_mut().step_by(7).for_each(|value| *value *= 1e32);
    vec![
        (Input::Normal(1).values(n), Input::Normal(2).values(n)),
        (vec![0.0; n], mixed),
        (tiny, Input::Normal(4).values(n)),
        (vec![0.0; n], vec![0.0; n]),
    ]
}

fn bits(values: &[f32]) -> Vec<u32> {
    // A −0.0 in a residual counts as 0.
    values.iter().map(|value| (value + 0.0).to_bits()).collect()
}

#[test]
fn what_is_sent_and_kept_adds_up_exactly_where_that_is_the_law() {
    let specs = examples(Law::Exact);
    assert!(specs.len() >= 8, "{}", specs.len());
    for spec in specs {
        for (residual, grad) in inputs(layout().len()) {
            let Step { p, sent, kept, given_back } = step(&spec, &residual, &grad);
            let sum: Vec<f32> = sent.iter().zip(&kept).map(|(sent, kept)| sent + kept).collect();
            assert_eq!(bits(&sum), bits(&p), "{spec}");
            assert_eq!(bits(&given_back), bits(&p), "{spec}: given back");
        }
    }
}

#[test]
fn what_is_kept_is_the_rounded_difference_where_that_is_the_law() {
    let n = layout().len();
    // The largest values that these codecs take: what is given back must not overflow.
    let mut large = Input::Normal(5).values(n);
    large.iter_mut().step_by(9).for_each(|value| *value = power_of_two(126).next_down().copysign(*value));
    let inputs = inputs(n).into_iter().chain([(vec![0.0; n], large)]);
    for (residual, grad) in inputs {
        for spec in examples(Law::Rounded) {
            let Step { p, sent, kept, given_back } = step(&spec, &residual, &grad);
            for i in 0..p.len() {
                assert_eq!(
                    (p[i] - sent[i] + 0.0).to_bits(),
                    (kept[i] + 0.0).to_bits(),
                    "{spec}: coordinate {i}"
                );
                let bound = (f64::from(p[i].abs()) + f64::from(sent[i].abs())) * 2f64.powi(-23);
                let error = (f64::from(given_back[i]) - f64::from(p[i])).abs();
                assert!(error <= bound, "{spec}: coordinate {i} comes back off by {error}");
            }
        }
    }
}

/// One worker alone: what it sends is the mean. Codecs that send steps are tested by themselves.
#[test]
fn linear_codecs_keep_what_their_law_says_of_what_they_send() {
    let layout = layout();
    let (layout, n) = (layout.as_ref(), layout.len());
    let specs = CODECS.iter().flat_map(|entry| entry.examples).map(|example| Spec::parse(example).unwrap());
    let mut laws = Vec::new();
    let keeps = |spec: &Spec| spec.memory == MemoryChoice::ErrorFeedback && !spec.codec.accumulates_steps();
    for spec in specs.filter(keeps) {
        let Some(codec) = spec.codec.as_linear() else { continue };
        let law = spec.codec.capabilities().law;
        laws.push(law);
        for (residual, grad) in inputs(n) {
            let mut memory = Memory::for_spec(&spec, &layout).unwrap();
            memory.residual_mut().copy_from_slice(&residual);
            let p: Vec<f32> = residual.iter().zip(&grad).map(|(kept, grad)| kept + grad).collect();
            let (key, unit) = (StepKey { seed: 5, step: 6, source: Source::Shared }, Unit::whole(n));
            let memories = &mut [memory][..];
            let (sent, _) = rounds::step(codec.rounds(), key, &layout, &unit, &[grad], memories, false);
            let kept = memories[0].residual();
            if law == Law::Exact {
                let sum: Vec<f32> = sent.iter().zip(kept).map(|(sent, kept)| sent + kept).collect();
                assert_eq!(bits(&sum), bits(&p), "{spec}");
                continue;
            }
            let left: Vec<f32> = p.iter().zip(&sent).map(|(p, sent)| p - sent).collect();
            if law == Law::Rounded {
                assert_eq!(bits(kept), bits(&left), "{spec}");
                continue;
            }
            // Between what was kept before and what is left, except for rounding.
            for ((&kept, &before), &left) in kept.iter().zip(&residual).zip(&left) {
                let slack = 1e-6 * before.abs().max(left.abs());
                let is_between = before.min(left) - slack <= kept && kept <= before.max(left) + slack;
                assert!(is_between, "{spec}: {kept} of {before} and {left}");
            }
        }
    }
    assert!([Law::Exact, Law::Rounded, Law::Filtered].iter().all(|law| laws.contains(law)), "{laws:?}");
}

/// Values about the largest that each format has, alone and together.
fn large_gradients(n: usize) -> Vec<Vec<f32>> {
    let borders = [f32::MAX, power_of_two(127), power_of_two(126), 65_520.0, 3.38e38];
    let near = borders.iter().flat_map(|&border| [border, border.next_down(), border / 2.0]);
    let mixed = Input::Heavy(7).values(n);
    let largest = mixed.iter().fold(1e-30, |largest: f32, value| largest.max(value.abs()));
    let patterns = |value: f32| -> [Vec<f32>; 5] {
        let sign = |at: usize| if at.is_multiple_of(2) { value } else { -value };
        let one = |at: usize| if at == n / 2 { -value } else { 0.0 };
        let few = |at: usize| if at.is_multiple_of(37) { value } else { 1e-3 };
        let mixed = mixed.iter().map(|mixed| value * (mixed / largest)).collect();
        [
            mixed,
            vec![value; n],
            (0..n).map(sign).collect(),
            (0..n).map(one).collect(),
            (0..n).map(few).collect(),
        ]
    };
    // Beside the largest float, small multiples of its last place: means and differences with ties.
    let ties = (0..16u8).map(|last| {
        let rest = f32::from(last) * power_of_two(104);
        (0..n).map(|at| [f32::MAX, -rest, 0.0].get(at).copied().unwrap_or(0.0)).collect()
    });
    near.flat_map(patterns).chain(ties).collect()
}

/// A codec states a bound on magnitudes; below it, no sum of what is sent and kept leaves the floats.
#[test]
fn the_largest_values_are_refused_or_sent_and_kept_as_floats() {
    let finite = |values: &[f32]| values.iter().all(|value| value.is_finite());
    let (mut sent_some, mut refused_some) = (0, 0);
    let others = [
        "randomk:density=0.1,estimator=unbiased",
        "qsgd:bits=4,rounding=nearest,memory=ef",
        "qsgd:bits=3,bucket=2,norm=l2",
        "qsgd:bits=8,norm=l2,rounding=nearest,memory=ef",
        "f16:memory=ef",
    ];
    for spelling in and_examples(&others, has_frames) {
        let spec = Spec::parse(spelling).unwrap();
        for (n, grad) in [1, 2, 3, 4, 8, 65, 300]
            .into_iter()
            .flat_map(|n| large_gradients(n).into_iter().map(move |grad| (n, grad)))
        {
            let (layout, unit) = (LayoutRef::flat(n), [Unit::whole(n)]);
            let mut memory = Memory::for_spec(&spec, &layout);
            let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
            for step in 0..3 {
                let key = StepKey { seed: 5, step, source: Source::Rank(1) };
                let before = memory.as_ref().map(contents);
                let input = StepInput { key, layout: &layout, units: &unit, grad: Grad::F32(&grad) };
                let made = encoder.encode(&spec.codec, &input, memory.as_mut());
                let Ok(frame) = made else {
                    assert_eq!(memory.as_ref().map(contents), before, "{spelling}");
                    refused_some += 1;
                    continue;
                };
                let frame = decoder.parse(frame, &layout, &Limits::for_layout(&layout));
                let frame = frame.unwrap_or_else(|error| panic!("{spelling} of {:e}: {error}", grad[0]));
                let mut sent = vec![0.0; n];
                frame.add_scaled_to(1.0, &mut sent);
                assert!(finite(&sent), "{spelling} of {:e} sends more than a float", grad[0]);
                sent_some += 1;
                let Some(memory) = &mut memory else { continue };
                assert!(finite(memory.residual()), "{spelling} of {:e} keeps more than a float", grad[0]);
                memory.give_back(&frame);
                assert!(finite(memory.residual()), "{spelling} of {:e} given back", grad[0]);
            }
        }
    }
    assert!(sent_some > 1000 && refused_some > 1000, "{sent_some} were sent, {refused_some} were refused");
}

#[test]
fn every_example_is_printed_as_a_spelling_of_itself() {
    for example in CODECS.iter().flat_map(|entry| entry.examples) {
        let spec = Spec::parse(example).unwrap_or_else(|error| panic!("{example}: {error}"));
        assert_eq!(Spec::parse(&spec.to_string()).as_ref(), Ok(&spec), "{example}");
    }
}

#[test]
fn names_and_numbers_are_those_of_the_list() {
    for entry in CODECS {
        for (name, id) in entry.names {
            assert!(Spec::names().contains(name));
            assert!(id.is_none_or(|id| id.name() == Some(name)), "{name}");
        }
    }
}

/// A memory for each codec, and what it holds as bits.
fn memory_of(spec: &Spec, units: usize, n: usize) -> Memory<'static> {
    let states = if spec.codec.capabilities().adapts { units } else { 0 };
    Memory::new(vec![0.0; n]).with_states(vec![Default::default(); states])
}

fn contents(memory: &Memory<'_>) -> (Vec<u32>, Vec<[u32; 4]>) {
    let states = memory.states().iter().map(|state| state.words()).collect();
    (memory.residual().iter().map(|value| value.to_bits()).collect(), states)
}

/// Over five steps, of which every second comes to nothing, and of which each leaves one unit out.
#[test]
fn a_step_beside_the_memory_before_is_the_same_step_and_leaves_that_memory_alone() {
    let (layout, n) = (layout(), layout().len());
    let layout = layout.as_ref();
    for spec in [examples(Law::Exact), examples(Law::NotKept)].concat() {
        // A unit for each tensor, the vector dense.
        let units = [(0, 0, 1200), (1, 1200, 77), (2, 1277, 360)].map(|(id, start, len)| Unit {
            id,
            start,
            len,
            dense: id == 1,
        });
        let [mut usual, mut before, mut beside] = [(); 3].map(|()| memory_of(&spec, units.len(), n));
        let (mut encoder, mut other) = (Encoder::new(), Encoder::new());
        for step in 0..5 {
            let key = StepKey { seed: 5, step, source: Source::Rank(1) };
            let values = Input::Normal(step + 1).values(n);
            let format = ["f32", "f16", "bf16"][step as usize % 3];
            let values = run::Gradient::new(format, &values);
            let (mut taken, mut grads, mut old) = (Vec::new(), Vec::new(), contents(&before));
            for (at, unit) in units.iter().enumerate() {
                if step as usize % 3 == at {
                    beside.carry_over(&before, unit);
                } else {
                    grads.push(values.as_grad().slice(unit.start, unit.len));
                    taken.push(*unit);
                }
            }
            let input = StepInput { key, layout: &layout, units: &taken, grad: &grads[..] };
            let frame = other.encode_beside(&spec.codec, &input, &before, &mut beside).unwrap();
            assert_eq!(contents(&before), old, "{spec}");
            let mut copy = memory_of(&spec, units.len(), n);
            let snapshot = &mut gradwire::state::Snapshot::new();
            snapshot.take(&usual);
            snapshot.restore(&mut copy);
            let mut same = memory_of(&spec, units.len(), n);
            same.copy_from(&usual);
            assert_eq!(contents(&same), contents(&copy), "{spec}");
            let input = StepInput { key, layout: &layout, units: &taken, grad: values.as_grad() };
            let expected = encoder.encode(&spec.codec, &input, Some(&mut copy)).unwrap();
            assert_eq!(frame, expected, "{spec}, step {step}");
            assert_eq!(contents(&beside), contents(&copy), "{spec}, step {step}");
            if step % 2 == 0 {
                (usual, old) = (copy, contents(&beside));
                std::mem::swap(&mut before, &mut beside);
                assert_eq!(contents(&before), old);
            }
        }
    }
}

#[test]
fn a_gradient_that_is_not_finite_is_refused_beside_the_memory_before() {
    let (layout, unit) = (LayoutRef::flat(3), Unit::whole(3));
    let spec = Spec::parse("topk:density=0.5").unwrap();
    let (before, mut beside) = (Memory::new(vec![1.0, f32::MAX, 0.0]), Memory::new(vec![0.0; 3]));
    let key = StepKey { seed: 5, step: 6, source: Source::Rank(1) };
    for (bad, at) in [(f32::NAN, 0), (f32::INFINITY, 2), (f32::MAX, 1)] {
        let mut grad = [1.0; 3];
        grad[at] = bad;
        let grads = [Grad::F32(&grad)];
        let input = StepInput { key, layout: &layout, units: &[unit], grad: &grads[..] };
        let result = Encoder::new().encode_beside(&spec.codec, &input, &before, &mut beside).map(<[u8]>::len);
        assert_eq!(result, Err(gradwire::EncodeError::NonFiniteInput { index: at }), "{bad}");
    }
}
