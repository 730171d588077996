//! How much of a gradient is sent: the same as encoding and decoding say, and nothing changes.

use gradwire::arithmetic::gain::{
    Gain, Trial, densities_scratch_len, of_densities, of_frame_and_gradient, of_frame_and_residual,
};
use gradwire::codecs::{IndexChoice, Momentum, TopK, ValueChoice};
use gradwire::registry::{CODECS, Law};
use gradwire::state::MemoryChoice;
use gradwire::{
    Codec, Density, EncodeError, Gather, Grad, LayoutRef, Memory, Scratch, Source, Spec, StepKey, Unit,
};
use gradwire_tests::inputs::Input;
use gradwire_tests::naive::gain::{of_density, squares};
use gradwire_tests::run::{self, Gradient, Kept, bits};
use proptest::prelude::*;

const KEY: StepKey = StepKey { seed: 3, step: 4, source: Source::Rank(1) };

fn densities(shares: &[f64]) -> Vec<Density> {
    shares.iter().map(|&share| Density::new(share).unwrap()).collect()
}

/// With exactly as much dirty scratch memory as is asked for.
fn gains_of(
    units: &[Unit],
    grad: Grad<'_>,
    memory: Option<&Memory<'_>>,
    momentum: Option<Momentum>,
    densities: &[Density],
) -> Result<Vec<Gain>, EncodeError> {
    let needed = densities_scratch_len(units, densities);
    let mut words = vec![0xa5a5_a5a5; needed.words];
    let mut gains = vec![Gain { sent: 1.0, whole: 1.0 }; densities.len()];
    let mut scratch = Scratch { words: &mut words, bytes: &mut [] };
    of_densities(units, grad, memory, momentum, densities, &mut scratch, &mut gains)?;
    Ok(gains)
}

fn sum(residual: &[f32], grad: &[f32]) -> Vec<f32> {
    residual.iter().zip(grad).map(|(kept, grad)| kept + grad).collect()
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

/// Encodes for real, with a copy of the memory, and decodes.
fn real_gain(units: &[Unit], grad: &[f32], residual: Option<&[f32]>, density: Density) -> Gain {
    let codec = TopK::new(density, IndexChoice::Auto, ValueChoice::F32);
    let layout = LayoutRef::flat(grad.len());
    let needed = codec.scratch_len(units);
    let (mut words, mut bytes) = (vec![0; needed.words], vec![0; needed.bytes]);
    let mut out = vec![0; codec.max_frame_bytes(units).unwrap()];
    let mut scratch = Scratch { words: &mut words, bytes: &mut bytes };
    let mut kept = residual.map(<[f32]>::to_vec);
    let mut memory = kept.as_mut().map(Memory::new);
    let written =
        codec.encode(KEY, &layout, units, Grad::F32(grad), memory.as_mut(), &mut scratch, &mut out).unwrap();
    run::parse(&out[..written], &layout, &run::no_limits(), |frame| match &kept {
        Some(kept) => of_frame_and_residual(frame, kept),
        None => of_frame_and_gradient(frame, Grad::F32(grad)),
    })
    .unwrap()
}

fn inputs() -> impl Strategy<Value = Input> {
    (any::<u64>(), 0..6).prop_map(|(seed, kind)| match kind {
        0 => Input::Normal(seed),
        1 => Input::Heavy(seed),
        2 => Input::Denormal(seed),
        3 => Input::Ties(seed),
        4 => Input::Sparse(seed),
        _ => Input::Zero,
    })
}

proptest! {
    #[test]
    fn gains_from_one_selection_are_those_of_an_encode_at_each_density(
        n in 0usize..6000,
        gradient in inputs(),
        before in prop::option::of(inputs()),
        shares in prop::collection::vec(prop::sample::select(vec![1e-9, 0.001, 0.01, 0.05, 0.3, 0.5, 1.0]), 0..6),
        is_cut in any::<bool>(),
    ) {
        let grad = gradient.values(n);
        let mut residual = before.map(|before| before.values(n));
        let units = if is_cut { units(n) } else { vec![Unit::whole(n)] };
        let densities = densities(&shares);
        let unchanged = residual.as_deref().map(bits);
        let memory = residual.as_mut().map(Memory::new);
        let gains = gains_of(&units, Grad::F32(&grad), memory.as_ref(), None, &densities).unwrap();
        prop_assert_eq!(memory.as_ref().map(|memory| bits(memory.residual())), unchanged);
        drop(memory);
        let p = residual.as_ref().map_or_else(|| grad.clone(), |residual| sum(residual, &grad));
        for (&density, &gain) in densities.iter().zip(&gains) {
            prop_assert_eq!(gain, of_density(&units, &p, density), "{:?}", density);
            prop_assert_eq!(gain, real_gain(&units, &grad, residual.as_deref(), density), "{:?}", density);
            // Two sums of squares, whose terms are added in other orders.
            prop_assert!((0.0..=1.0 + 1e-12).contains(&gain.ratio()), "{}", gain.ratio());
        }
    }
}

/// Long enough for samples that mislead: the largest values are neighbours, or all lie at the end.
#[test]
fn gains_of_a_long_gradient_are_those_of_the_reference() {
    let n = 200_000;
    let mut rising = Input::Normal(1).values(n);
    rising.iter_mut().enumerate().for_each(|(i, value)| *value *= 1.0 + i as f32);
    let mut clustered = Input::Normal(2).values(n);
    clustered[70_001..71_001].iter_mut().for_each(|value| *value *= 1000.0);
    let densities = densities(&[0.0001, 0.1, 0.001, 0.01, 0.004, 0.01]);
    for grad in [rising, clustered, Input::Heavy(3).values(n), Input::Ties(4).values(n)] {
        let units = [Unit::whole(n)];
        let gains = gains_of(&units, Grad::F32(&grad), None, None, &densities).unwrap();
        for (&density, &gain) in densities.iter().zip(&gains) {
            assert_eq!(gain, of_density(&units, &grad, density), "{density:?}");
        }
        assert_eq!(gains[3], gains[5], "the same density twice");
    }
}

#[test]
fn half_precision_and_momentum_enter_what_is_chosen_from() {
    let n = 3000;
    let (values, units, densities) = (Input::Normal(5).values(n), units(n), densities(&[0.02, 0.3]));
    let narrow = Gradient::new("bf16", &values);
    let (mut residual, mut momentum) = (Input::Heavy(6).values(n), Input::Normal(7).values(n));
    let (before, before_momentum) = (residual.clone(), momentum.clone());
    let grad = narrow.widened();
    for nesterov in [false, true] {
        let rule = Momentum::new(0.75, nesterov).unwrap();
        let memory = Memory::new(&mut residual).with_momentum(&mut momentum);
        let gains = gains_of(&units, narrow.as_grad(), Some(&memory), Some(rule), &densities).unwrap();
        assert_eq!(bits(memory.residual()), bits(&before));
        assert_eq!(memory.momentum().map(bits), Some(bits(&before_momentum)));
        // u ← m·u + g, what is sent of is v + u, or v + m·u + g by Nesterov; dense units do without.
        let dense = units[1].range();
        let step = |i: usize| match () {
            () if dense.contains(&i) => grad[i],
            () if nesterov => 0.75 * (before_momentum[i] + grad[i]) + grad[i],
            () => 0.75 * before_momentum[i] + grad[i],
        };
        let p: Vec<f32> = (0..n).map(|i| step(i) + before[i]).collect();
        for (&density, &gain) in densities.iter().zip(&gains) {
            assert_eq!(gain, of_density(&units, &p, density), "{density:?}, {nesterov}");
        }
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let (units, densities) = ([Unit::whole(4)], densities(&[0.5]));
    let gains = |grad: &[f32], memory: Option<&Memory<'_>>, rule| {
        gains_of(&units, Grad::F32(grad), memory, rule, &densities)
    };
    let refused = Err(EncodeError::NonFiniteInput { index: 2 });
    assert_eq!(gains(&[1.0, 2.0, f32::NAN, f32::INFINITY], None, None), refused);
    let mut large = [0.0, 0.0, f32::MAX, 0.0];
    let memory = Memory::new(&mut large);
    assert_eq!(gains(&[0.0, 0.0, f32::MAX, 0.0], Some(&memory), None), refused);
    assert_eq!(
        gains(&[0.0; 4], Some(&memory), Momentum::new(0.9, false)),
        Err(EncodeError::MemoryIncomplete)
    );
    let needed = densities_scratch_len(&units, &densities);
    let mut words = vec![0; needed.words - 1];
    let mut scratch = Scratch { words: &mut words, bytes: &mut [] };
    let mut gains = [Gain::default()];
    let refused =
        of_densities(&units, Grad::F32(&[0.0; 4]), None, None, &densities, &mut scratch, &mut gains);
    assert_eq!(refused, Err(EncodeError::ScratchTooSmall { needed }));
    let refused = gains_of(&[Unit::whole(5)], Grad::F32(&[0.0; 4]), None, None, &densities);
    assert_eq!(refused, Err(EncodeError::UnitOutOfOrder { unit: 0 }));
}

/// All codecs of the list that make frames, with the memory that they ask for.
#[test]
fn a_trial_gives_the_frame_and_the_gain_of_the_encode_and_keeps_the_memory() {
    let layout = run::layout(&[vec![40, 30], vec![77], vec![9, 5, 8]]);
    let (layout, n) = (layout.as_ref(), 1637);
    let mut trial = Trial::new();
    let mut tried_codecs = 0;
    for example in CODECS.iter().flat_map(|entry| entry.examples) {
        let spec = Spec::parse(example).unwrap();
        if !spec.codec.capabilities().has_frames || matches!(spec.codec, Codec::Gossip(_)) {
            continue;
        }
        let units: Vec<Unit> = spec.units.units(&layout).collect();
        let grad = Input::Normal(8).values(n);
        let mut kept = Kept::new(&spec, n, &units);
        if let Some(kept) = &mut kept {
            kept.residual = Input::Heavy(9).values(n);
            kept.momentum.iter_mut().for_each(|momentum| *momentum = Input::Normal(10).values(n));
        }
        let before = kept.as_ref().map(Kept::words);
        let tried = {
            let memory = kept.as_mut().map(Kept::lend);
            let tried = trial.encode(&spec.codec, KEY, &layout, &units, Grad::F32(&grad), memory.as_ref());
            tried.map(|tried| (tried.frame.to_vec(), tried.gain)).unwrap()
        };
        assert_eq!(kept.as_ref().map(Kept::words), before, "{spec}");
        let mut memory = kept.as_mut().map(Kept::lend);
        let p_before = memory.as_ref().map(|memory| memory.residual().to_vec());
        let frame = run::encode_with(&spec.codec, KEY, &layout, &units, Grad::F32(&grad), memory.as_mut(), 0);
        assert_eq!(frame.as_ref(), Ok(&tried.0), "{spec}");
        let (mut sent, mut whole) = (0.0, 0.0);
        run::parse(&tried.0, &layout, &run::no_limits(), |frame| {
            for unit in frame.units() {
                let mut values = Vec::new();
                unit.for_each(|_, value| values.push(value));
                sent += squares(&values);
                let grad = &grad[unit.range()];
                let p = p_before.as_ref().map(|kept| sum(&kept[unit.range()], grad));
                whole += squares(&p.unwrap_or_else(|| grad.to_vec()));
            }
        })
        .unwrap();
        assert_eq!(tried.1.sent.to_bits(), f64::to_bits(sent), "{spec}");
        if spec.codec.capabilities().law == Law::Rounded {
            assert!((tried.1.whole / whole - 1.0).abs() < 1e-6, "{spec}");
        } else if spec.memory != MemoryChoice::Momentum {
            assert_eq!(tried.1.whole.to_bits(), whole.to_bits(), "{spec}");
        }
        tried_codecs += 1;
    }
    assert!(tried_codecs > 20, "{tried_codecs}");
}
