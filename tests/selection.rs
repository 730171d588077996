//! An encode in two steps is the encode at the density that was decided on, bit for bit, and nothing changes
//! before that. Likewise with rounds in place of a frame.

use gradwire::arithmetic::gain::{Gain, of_frame_and_gradient, of_frame_and_residual};
use gradwire::codecs::ValueChoice;
use gradwire::registry::CODECS;
use gradwire::rounds::{LinearScratch, UnitStep};
use gradwire::{
    Codec, Density, EncodeError, Encoder, Grad, Layout, LayoutRef, Memory, Selection, Source, Spec,
    StepInput, StepKey, Unit,
};
use gradwire_tests::inputs::Input;
use gradwire_tests::naive::gain::of_density;
use gradwire_tests::rounds;
use gradwire_tests::run::{self, Gradient, Kept, bits};
use proptest::prelude::*;

fn key(step: u64) -> StepKey {
    StepKey { seed: 3, step, source: Source::Rank(1) }
}

fn densities(shares: &[f64]) -> Vec<Density> {
    shares.iter().map(|&share| Density::new(share).unwrap()).collect()
}

/// Three units, the middle one dense where there are enough elements, and a gap behind the first.
fn units(n: usize) -> Vec<Unit> {
    let (a, b) = (n / 2, n / 2 + n / 4);
    let ranges = [(0, a, false), (a, b, true), ((b + 1).min(n), n, false)];
    let unit = |(id, (start, end, dense)): (usize, (usize, usize, bool))| Unit {
        id: id as u32,
        start,
        len: end - start,
        dense,
    };
    ranges.into_iter().enumerate().map(unit).collect()
}

/// Rows of as many coordinates as there can be, up to nine, so that units may hold whole rows.
fn matrix(n: usize) -> Layout {
    let columns = (1..10).rev().find(|columns| n.is_multiple_of(*columns)).unwrap_or(1);
    run::layout(&[vec![n / columns, columns]])
}

const CODINGS: [&str; 9] = [
    "",
    ",index=chunks",
    ",index=raw",
    ",index=context",
    ",values=f16",
    ",values=bf16,index=rice",
    ",values=q8",
    ",values=q2",
    ",values=q4,rounding=stochastic,memory=none",
];

const METHODS: [&str; 19] = [
    "topk:density=1",
    "topk:density=1,memory=none",
    "topk:density=1,chunk=64",
    "topk:density=1,chunk=256,memory=none",
    "topk:density=1,chunk=4096",
    "dgc:density=1,momentum=0",
    "dgc:density=1",
    "dgc:density=1,momentum=0.75,nesterov,sample=0.2",
    "dgc:density=1,momentum=0,sample=1,memory=none",
    "redsync:density=1",
    "redsync:density=1,width=0.001",
    "redsync:density=1,width=0.01,memory=none",
    "randomk:density=1",
    "randomk:density=1,estimator=unbiased",
    "randomk:density=1,block=run",
    "randomk:density=1,block=tile,estimator=unbiased",
    "sidco:density=1,stages=1",
    "sidco:density=1,stages=3,fit=exp",
    "sidco:density=1,stages=2,fit=gamma,cap=exact,memory=none",
];

/// Not with a memory and stochastic rounding, or with a memory that is stated twice.
fn specs() -> impl Strategy<Value = Spec> {
    (prop::sample::select(METHODS.to_vec()), prop::sample::select(CODINGS.to_vec())).prop_filter_map(
        "no such codec",
        |(method, coding)| {
            let coding =
                if method.ends_with("none") { coding.trim_end_matches(",memory=none") } else { coding };
            Spec::parse(Box::leak(format!("{method}{coding}").into_boxed_str())).ok()
        },
    )
}

fn inputs() -> impl Strategy<Value = Input> {
    (any::<u64>(), 0..8).prop_map(|(seed, kind)| match kind {
        0 | 1 => Input::Normal(seed),
        2 => Input::Heavy(seed),
        3 => Input::Denormal(seed),
        4 => Input::Ties(seed),
        5 => Input::Sparse(seed),
        6 => Input::Range(seed),
        _ => Input::Zero,
    })
}

/// What the codec at that density does in one step.
fn usual(
    codec: &Codec,
    (key, layout, units): (StepKey, &LayoutRef<'_>, &[Unit]),
    grad: Grad<'_>,
    kept: &mut Option<Kept>,
) -> Result<Vec<u8>, EncodeError> {
    let mut memory = kept.as_mut().map(Kept::lend);
    Encoder::new().encode(codec, &StepInput { key, layout, units, grad }, memory.as_mut()).map(<[u8]>::to_vec)
}

/// A memory that owns what `kept` holds, or that borrows it.
fn memory_of(kept: &mut Option<Kept>, owns: bool) -> Option<Memory<'_>> {
    let Some(held) = kept.as_ref().filter(|_| owns) else { return kept.as_mut().map(Kept::lend) };
    let memory = Memory::new(held.residual.clone());
    Some(match &held.momentum {
        Some(momentum) => memory.with_momentum(momentum.clone()),
        None => memory,
    })
}

fn words(memory: Option<&Memory<'_>>) -> Option<[Vec<u32>; 2]> {
    memory.map(|memory| [bits(memory.residual()), bits(memory.momentum().unwrap_or_default())])
}

fn gain_of(frame: &[u8], layout: &LayoutRef<'_>, grad: Grad<'_>, kept: Option<&Kept>) -> Gain {
    let gain = |frame: &gradwire::Frame<'_>| match kept {
        Some(kept) => of_frame_and_residual(frame, &kept.residual),
        None => of_frame_and_gradient(frame, grad),
    };
    run::parse(frame, layout, &run::no_limits(), gain).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// Three steps with one selection, which has stale content from the second on; the last is too large to
    /// be sent, unless what is known of the memory is wrong.
    #[test]
    fn both_steps_together_are_the_encode_at_that_density(
        spec in specs(),
        n in prop_oneof![0usize..300, 0usize..9000],
        gradients in prop::collection::vec(inputs(), 2),
        before in inputs(),
        shares in prop::collection::vec(
            prop::sample::select(vec![1e-9, 0.001, 0.01, 0.05, 0.3, 0.5, 0.9, 1.0]), 1..4),
        format in prop::sample::select(vec!["f32", "f16", "bf16"]),
        (is_cut, owns, is_parted) in any::<(bool, bool, bool)>(),
    ) {
        let layout = matrix(n);
        let layout = layout.as_ref();
        let units = if is_cut { units(n) } else { vec![Unit::whole(n)] };
        let densities = densities(&shares);
        let mut kept = Kept::new(&spec, n, &units);
        if let Some(kept) = &mut kept {
            kept.residual = before.values(n);
            kept.momentum.iter_mut().for_each(|momentum| *momentum = Input::Normal(n as u64).values(n));
        }
        let (mut lent, mut selection) = (kept.clone(), Selection::new());
        let mut memory = memory_of(&mut lent, owns);
        let too_large = Input::List(vec![f32::MAX; n]);
        for (step, gradient) in gradients.iter().chain([&too_large]).enumerate() {
            let values = Gradient::new(if step == 2 { "f32" } else { format }, &gradient.values(n));
            let (key, grad) = (key(step as u64), values.as_grad());
            let at = step % densities.len();
            let known = words(memory.as_ref());
            let selected = selection
                .select(&spec.codec, &StepInput { key, layout: &layout, units: &units, grad }, memory.as_ref(), &densities)
                .map(<[Gain]>::to_vec);
            prop_assert_eq!(words(memory.as_ref()), known, "selecting changes nothing");
            let mut others = vec![kept.clone(); densities.len()];
            let frames: Vec<_> = densities.iter().zip(&mut others).map(|(&density, kept)| {
                usual(&spec.codec.with_density(density), (key, &layout, &units), grad, kept)
            }).collect();
            let expected = match &frames[at] {
                Ok(frame) => frame,
                Err(error) => {
                    prop_assert_eq!(selected, Err(*error));
                    prop_assert!(step == 2 || matches!(error, EncodeError::ValueOverflow { .. }
                        | EncodeError::NonFiniteInput { .. }), "{}", error);
                    return Ok(());
                }
            };
            for ((gain, frame), kept) in selected.unwrap().into_iter().zip(&frames).zip(&others) {
                if spec.codec.sparse_values().is_none_or(|values| values == ValueChoice::F32) {
                    let of_frame = gain_of(frame.as_ref().unwrap(), &layout, grad, kept.as_ref());
                    prop_assert_eq!(gain, of_frame, "{}", spec);
                }
            }
            if let Some(memory) = &mut memory {
                selection.keep(memory);
            }
            let mut encoder = Encoder::new();
            if is_parted && units.len() == 3 {
                let (first, rest) = units.split_at(1 + n % 2);
                for part in [first, rest] {
                    let frame = selection.encode(&mut encoder, at, &layout, part, memory.as_mut()).to_vec();
                    let mut other = kept.clone();
                    let codec = spec.codec.with_density(densities[at]);
                    prop_assert_eq!(Ok(frame), usual(&codec, (key, &layout, part), grad, &mut other), "{}", spec);
                }
            } else {
                let frame = selection.encode(&mut encoder, at, &layout, &units, memory.as_mut());
                prop_assert_eq!(frame, expected, "{}", spec);
            }
            kept = others.swap_remove(at);
            let left = kept.as_mut().map(Kept::lend);
            prop_assert_eq!(words(memory.as_ref()), words(left.as_ref()), "{} at step {}", spec, step);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Two or three workers, three steps, unit by unit; the last step is abandoned.
    #[test]
    fn rounds_of_a_selection_are_the_rounds_at_that_density(
        method in prop::sample::select(vec!["randomk", "randomk:memory=none", "randomk:estimator=unbiased", "randomk:block=run", "randomk:block=tile"]),
        n in prop_oneof![0usize..300, 0usize..9000],
        gradients in prop::collection::vec(inputs(), 2..4),
        before in inputs(),
        shares in prop::collection::vec(
            prop::sample::select(vec![1e-9, 0.001, 0.01, 0.3, 0.5, 0.9, 1.0]), 1..4),
        is_cut in any::<bool>(),
    ) {
        let (spec, layout) = (Spec::parse(method).unwrap(), matrix(n));
        let layout = layout.as_ref();
        let units = if is_cut { units(n) } else { vec![Unit::whole(n)] };
        let (densities, workers) = (densities(&shares), gradients.len());
        let residual = || before.values(n).iter().map(|value| value / 4.0).collect::<Vec<f32>>();
        let memories = || -> Vec<Memory<'static>> {
            let keeps = Kept::new(&spec, n, &units).is_some();
            (0..workers).filter(|_| keeps).map(|_| Memory::new(residual())).collect()
        };
        let (mut plain, mut selected) = (memories(), memories());
        let mut selections = vec![Selection::new(); workers];
        for step in 0..3 {
            let (at, abandons) = (step % densities.len(), step == 2);
            let grads: Vec<Vec<f32>> = (0..workers)
                .map(|rank| gradients[(rank + step) % workers].values(n).iter().map(|v| v / 8.0).collect())
                .collect();
            let key = |rank| StepKey { seed: 3, step: step as u64, source: Source::Rank(rank as u32) };
            for (rank, selection) in selections.iter_mut().enumerate() {
                let (grad, memory) = (Grad::F32(&grads[rank]), selected.get(rank));
                let done = selection.select(&spec.codec, &StepInput { key: key(rank), layout: &layout, units: &units, grad }, memory, &densities);
                prop_assert!(done.is_ok());
            }
            let codec = spec.codec.with_density(densities[at]).as_linear().unwrap();
            for unit in &units {
                let codec = codec.rounds_of(unit);
                let parts: Vec<Vec<f32>> = grads.iter().map(|grad| grad[unit.range()].to_vec()).collect();
                let expected = rounds::step(codec, key(0), &layout, unit, &parts, &mut plain, abandons);
                let begun = selections.iter().enumerate().map(|(place, selection)| {
                    let step = UnitStep { workers: workers as u32, place: place as u32, ..rounds::alone(key(place), &layout, unit) };
                    rounds::begin_by(codec, &step, |scratch| selection.begin(at, &step, scratch).unwrap())
                });
                let mean = rounds::finish(codec, &layout, &mut begun.collect::<Vec<_>>(), &mut selected, abandons);
                prop_assert_eq!(bits(&mean.0), bits(&expected.0));
                prop_assert_eq!(mean.1, expected.1);
            }
            for (plain, selected) in plain.iter().zip(&selected) {
                prop_assert_eq!(words(Some(plain)), words(Some(selected)), "step {}", step);
            }
        }
    }
}

#[test]
fn rounds_need_the_scratch_memory_that_the_codec_needs() {
    let (codec, layout, unit) = (Spec::parse("randomk").unwrap().codec, LayoutRef::flat(9), Unit::whole(9));
    let (densities, mut selection) = (densities(&[0.5, 0.2]), Selection::new());
    let input = StepInput { key: key(1), layout: &layout, units: &[unit], grad: Grad::F32(&[1.0; 9]) };
    selection.select(&codec, &input, None, &densities).unwrap();
    let begin = |at: usize, less: usize| {
        let codec = codec.with_density(densities[at]).as_linear().unwrap();
        let needed = codec.rounds().round_scratch_len(&layout, &unit, 1);
        let (mut words, mut floats) = (vec![0; needed.words - less], vec![0.0; needed.floats]);
        let mut scratch = LinearScratch { words: &mut words, floats: &mut floats, ints: &mut [] };
        let begun = selection
            .begin(at, &rounds::alone(key(1), &layout, &unit), &mut scratch)
            .map(|round| round.payload_len);
        (begun, needed)
    };
    assert_eq!([begin(0, 0).0, begin(1, 0).0], [Ok(5), Ok(2)]);
    let (begun, needed) = begin(1, 1);
    assert_eq!(begun, Err(EncodeError::LinearScratchTooSmall { needed }));
}

/// Long enough for samples that mislead: the largest values are neighbours, or all lie at the end.
#[test]
fn long_gradients_are_selected_as_an_encode_selects_them() {
    let n = 200_000;
    let mut rising = Input::Normal(1).values(n);
    rising.iter_mut().enumerate().for_each(|(i, value)| *value *= 1.0 + i as f32);
    let mut clustered = Input::Normal(2).values(n);
    clustered[70_001..71_001].iter_mut().for_each(|value| *value *= 1000.0);
    let densities = densities(&[0.0001, 0.1, 0.001, 0.01, 0.004, 0.01]);
    let layout = matrix(n);
    let (layout, units) = (layout.as_ref(), [Unit::whole(n)]);
    for values in [rising, clustered, Input::Heavy(3).values(n), Input::Ties(4).values(n)] {
        for spelling in [
            "topk",
            "topk:chunk=65536",
            "topk:chunk=64",
            "dgc:momentum=0",
            "redsync",
            "redsync:width=0.0001",
            "sidco:stages=1",
            "sidco:stages=4",
            "randomk",
            "randomk:block=tile",
        ] {
            let spec = Spec::parse(spelling).unwrap();
            let (grad, mut selection) = (Grad::F32(&values), Selection::new());
            let mut kept = Some(Kept { residual: Input::Normal(9).values(n), ..Kept::default() });
            let mut memory = Memory::new(kept.as_ref().unwrap().residual.clone());
            let selected = (&spec.codec, key(7));
            let input = StepInput { key: selected.1, layout: &layout, units: &units, grad };
            let gains = selection.select(selected.0, &input, Some(&memory), &densities).unwrap().to_vec();
            assert_eq!(gains[3], gains[5], "the same density twice");
            let p: Vec<f32> = memory.residual().iter().zip(&values).map(|(kept, grad)| kept + grad).collect();
            assert_eq!(bits(selection.values()), bits(&p));
            for (at, &density) in densities.iter().enumerate() {
                let (codec, mut kept) = (spec.codec.with_density(density), kept.clone());
                let frame = usual(&codec, (key(7), &layout, &units), grad, &mut kept).unwrap();
                assert_eq!(gains[at], gain_of(&frame, &layout, grad, kept.as_ref()), "{spelling}");
                if spelling == "topk" {
                    assert_eq!(gains[at], of_density(&units, &p, density));
                }
            }
            selection.keep(&mut memory);
            let mut encoder = Encoder::new();
            let frame = selection.encode(&mut encoder, 3, &layout, &units, Some(&mut memory));
            let codec = spec.codec.with_density(densities[3]);
            assert_eq!(Ok(frame.to_vec()), usual(&codec, (key(7), &layout, &units), grad, &mut kept));
            assert_eq!(bits(memory.residual()), bits(&kept.unwrap().residual));
        }
    }
}

#[test]
fn what_an_encode_refuses_a_selection_refuses_in_the_same_words() {
    let (densities, layout) = (densities(&[0.5]), LayoutRef::flat(4));
    let select = |spelling: &str, units: &[Unit], grad: &[f32], memory: Option<&Memory<'_>>| {
        let codec = Spec::parse(spelling).unwrap().codec;
        let mut selection = Selection::new();
        let input = StepInput { key: key(1), layout: &layout, units, grad: Grad::F32(grad) };
        let selected = selection.select(&codec, &input, memory, &densities);
        let selected = selected.map(<[Gain]>::len);
        assert_eq!(selection.key().is_some(), selected.is_ok(), "after an error nothing is selected");
        selected
    };
    let whole = [Unit::whole(4)];
    let not_finite = Err(EncodeError::NonFiniteInput { index: 2 });
    assert_eq!(select("topk", &whole, &[1.0, 2.0, f32::NAN, f32::INFINITY], None), not_finite);
    let mut large = [0.0, 0.0, f32::MAX, 0.0];
    let memory = Memory::new(&mut large);
    assert_eq!(select("topk", &whole, &[0.0, 0.0, f32::MAX, 0.0], Some(&memory)), not_finite);
    assert_eq!(select("dgc", &whole, &[0.0; 4], Some(&memory)), Err(EncodeError::MemoryIncomplete));
    assert_eq!(
        select("topk:values=f16", &whole, &[0.0, 70_000.0, 0.0, 0.0], None),
        Err(EncodeError::ValueOverflow { index: 1 })
    );
    assert_eq!(
        select("topk:values=q4,rounding=stochastic,memory=none", &whole, &[0.0; 4], Some(&memory)),
        Err(EncodeError::MemoryRefused)
    );
    assert_eq!(
        select("topk", &[Unit::whole(5)], &[0.0; 4], None),
        Err(EncodeError::UnitOutOfOrder { unit: 0 })
    );
    assert_eq!(select("topk", &[], &[0.0; 4], None), Err(EncodeError::TooLarge));
}

/// Nothing is coded then, so values of any magnitude can be taken.
#[test]
fn everything_can_be_taken_out_of_the_memory_at_once() {
    let n = 3000;
    let (layout, units, codec) = (LayoutRef::flat(n), units(n), Spec::parse("dgc:values=f16").unwrap().codec);
    let mut values = Input::Normal(5).values(n);
    values[7] = 1e6;
    let (residual, momentum) = (Input::Heavy(6).values(n), Input::Normal(7).values(n));
    let mut memory = Memory::new(residual.clone()).with_momentum(momentum.clone());
    let mut selection = Selection::new();
    let grad = Grad::F32(&values);
    let input = StepInput { key: key(1), layout: &layout, units: &units, grad };
    let refused = selection.select(&codec, &input, Some(&memory), &densities(&[0.1]));
    assert_eq!(refused, Err(EncodeError::ValueOverflow { index: 7 }));
    let input = StepInput { key: key(1), layout: &layout, units: &units, grad };
    let gains = selection.select(&codec, &input, Some(&memory), &[]);
    assert_eq!(gains, Ok(&[][..]));
    let rule = codec.momentum().unwrap().factor();
    for unit in &units {
        for i in unit.range() {
            let step = if unit.dense { values[i] } else { rule * momentum[i] + values[i] };
            assert_eq!(selection.values()[i].to_bits(), (residual[i] + step).to_bits(), "{i}");
        }
    }
    selection.take_all(&mut memory);
    let is_outside = |i: &usize| units.iter().all(|unit| !unit.range().contains(i));
    for i in 0..n {
        let kept = [memory.residual()[i], memory.momentum().unwrap()[i]];
        let expected = match units.iter().find(|unit| unit.range().contains(&i)) {
            None => [residual[i], momentum[i]],
            Some(unit) if unit.dense => [0.0, momentum[i]],
            Some(_) => [0.0, 0.0],
        };
        assert_eq!(bits(&kept), bits(&expected), "{i}");
    }
    assert!((0..n).any(|i| is_outside(&i)));
}

#[test]
fn codecs_with_a_density_fit_unless_they_adapt_or_have_rounds_alone() {
    for example in CODECS.iter().flat_map(|entry| entry.examples) {
        let codec = Spec::parse(example).unwrap().codec;
        let knows = codec.capabilities();
        let expected = codec.density().is_some() && !knows.adapts && knows.has_frames;
        assert_eq!(Selection::fits(&codec), expected, "{example}");
    }
}

#[test]
#[should_panic(expected = "a linear codec")]
fn a_codec_of_frames_has_no_rounds() {
    let (codec, layout, unit) = (Spec::parse("topk").unwrap().codec, LayoutRef::flat(4), Unit::whole(4));
    let mut selection = Selection::new();
    let grad = Grad::F32(&[1.0, 2.0, 3.0, 4.0]);
    let input = StepInput { key: key(1), layout: &layout, units: &[unit], grad };
    selection.select(&codec, &input, None, &densities(&[0.5])).unwrap();
    let mut scratch = LinearScratch { words: &mut [0; 20], floats: &mut [0.0; 20], ints: &mut [] };
    let _ = selection.begin(0, &rounds::alone(key(1), &layout, &unit), &mut scratch);
}

#[test]
#[should_panic(expected = "the memory keeps the values first")]
fn a_frame_is_not_written_before_the_memory_keeps_the_values() {
    let (layout, units, mut selection) = (LayoutRef::flat(4), [Unit::whole(4)], Selection::new());
    let (codec, mut memory) = (Spec::parse("topk").unwrap().codec, Memory::new(vec![0.0; 4]));
    let grad = Grad::F32(&[1.0, 2.0, 3.0, 4.0]);
    let input = StepInput { key: key(1), layout: &layout, units: &units, grad };
    selection.select(&codec, &input, Some(&memory), &densities(&[0.5])).unwrap();
    selection.encode(&mut Encoder::new(), 0, &layout, &units, Some(&mut memory));
}
