//! Momentum ahead of the residual: what is sent and what is kept add up to what momentum makes of the
//! gradients.

use gradwire::arithmetic::clip_norm;
use gradwire::state::UnitState;
use gradwire::{
    EncodeError, Gather, Grad, LayoutRef, Memory, Scratch, Source, Spec, StepInput, StepKey, Unit,
};
use gradwire_tests::inputs::{Input, power_of_two};
use gradwire_tests::naive;
use gradwire_tests::run::{self, Kept, bits};

const SPELLINGS: [&str; 8] = [
    "dgc:density=0.01",
    "dgc:density=0.2",
    "dgc:density=0.2,nesterov",
    "dgc:density=1,momentum=0.5",
    "dgc:density=0.1,values=q8",
    "dgc:density=0.1,values=q2,nesterov",
    "dgc:density=0.1,values=bf16",
    "dgc:density=0.001,momentum=0.99,sample=0.5",
];

fn spec(spelling: &str) -> Spec {
    Spec::parse(spelling).unwrap_or_else(|error| panic!("{spelling}: {error}"))
}

fn key(step: u64) -> StepKey {
    StepKey { seed: 5, step, source: Source::Rank(2) }
}

fn zeros(spelling: &str, n: usize) -> Kept {
    Kept::new(&spec(spelling), n, &[Unit::whole(n)]).expect("a memory")
}

/// Encodes one step, returns what was sent and the step that momentum made of the gradient.
fn step(spelling: &str, at: u64, units: &[Unit], grad: &[f32], kept: &mut Kept) -> (Vec<f32>, Vec<f32>) {
    let (codec, layout) = (spec(spelling).codec, LayoutRef::flat(grad.len()));
    let before = kept.clone();
    let momentum = before.momentum.as_deref().expect("momentum");
    let rule = codec.momentum().expect("momentum");
    let (mut advanced, mut step) = (momentum.to_vec(), grad.to_vec());
    let mut p = before.residual.clone();
    for unit in units {
        if !unit.dense {
            let own = naive::dgc::advance(rule, &momentum[unit.range()], &grad[unit.range()]);
            advanced[unit.range()].copy_from_slice(&own.0);
            step[unit.range()].copy_from_slice(&own.1);
        }
        unit.range().for_each(|i| p[i] += step[i]);
    }
    let frame = run::encode_with(&codec, key(at), &layout, units, Grad::F32(grad), Some(&mut kept.lend()), 0)
        .unwrap();
    let sent = run::decode(&frame, &layout).unwrap();
    let both: Vec<f32> = sent.iter().zip(&kept.residual).map(|(sent, kept)| sent + kept).collect();
    assert_eq!(bits(&both), bits(&p), "{spelling}, step {at}: sent + kept is not residual + step");
    let is_compressed = |i| units.iter().any(|unit| !unit.dense && unit.range().contains(&i));
    (0..grad.len()).filter(|&i| sent[i] != 0.0 && is_compressed(i)).for_each(|i| advanced[i] = 0.0);
    let momentum = kept.momentum.clone().unwrap();
    assert_eq!(bits(&momentum), bits(&advanced), "{spelling}, step {at}: the momentum");
    let mut given_back = kept.clone();
    run::parse(&frame, &layout, &run::no_limits(), |frame| given_back.lend().give_back(frame)).unwrap();
    assert_eq!(
        bits(&given_back.residual),
        bits(&p),
        "{spelling}, step {at}: given back, it is not what it was"
    );
    assert_eq!(given_back.momentum, kept.momentum, "{spelling}: masked momentum does not come back");
    (sent, step)
}

#[test]
fn at_every_step_sent_and_kept_are_residual_and_step_bit_for_bit() {
    for spelling in SPELLINGS {
        for input in [Input::Normal, Input::Heavy, Input::Denormal, Input::Ties, Input::Sparse] {
            for n in [1, 2, 300, 1100] {
                let mut kept = zeros(spelling, n);
                for t in 0..6 {
                    step(spelling, t, &[Unit::whole(n)], &input(7 + t).values(n), &mut kept);
                }
            }
        }
    }
}

/// Two roundings a step make p, one of them in the step itself, which is added up as it is: T·2⁻²⁴·max|p| in
/// all.
#[test]
fn over_a_long_run_all_that_was_sent_and_is_kept_is_the_sum_of_the_steps() {
    const STEPS: u64 = 200;
    for spelling in SPELLINGS {
        let n = 64;
        let mut kept = zeros(spelling, n);
        let (mut sent, mut steps, mut largest) = (vec![0.0f64; n], vec![0.0f64; n], 0.0f64);
        for t in 0..STEPS {
            let grad = Input::Normal(t).values(n);
            let (frame, own) = step(spelling, t, &[Unit::whole(n)], &grad, &mut kept);
            for i in 0..n {
                sent[i] += f64::from(frame[i]);
                steps[i] += f64::from(own[i]);
                largest = largest.max(f64::from((kept.residual[i] + frame[i]).abs()));
            }
        }
        let bound = STEPS as f64 * f64::from(power_of_two(-24)) * largest;
        for i in 0..n {
            let error = (sent[i] + f64::from(kept.residual[i]) - steps[i]).abs();
            assert!(error <= bound, "{spelling}: coordinate {i} is off by {error}, bound {bound}");
        }
    }
}

/// A coordinate that is sent late has by then accumulated all that dense momentum would have moved it by.
#[test]
fn a_delayed_coordinate_accumulates_what_dense_momentum_would_have_done() {
    for (nesterov, spelling) in [(false, "dgc:density=0.01"), (true, "dgc:density=0.01,nesterov")] {
        let (n, mut kept) = (100, zeros(spelling, 100));
        let (mut velocity, mut moved) = (0.0f64, 0.0f64);
        for t in 0..20 {
            // The first coordinate is always the largest; the second waits.
            let mut grad = vec![0.0; n];
            (grad[0], grad[1]) = (1e6, 0.01 * (t as f32 + 1.0));
            let (sent, _) = step(spelling, t, &[Unit::whole(n)], &grad, &mut kept);
            assert_eq!(sent.iter().filter(|&&sent| sent != 0.0).count(), 1);
            let g = f64::from(grad[1]);
            velocity = if nesterov { 0.9 * (velocity + g) } else { 0.9 * velocity + g };
            moved += if nesterov { velocity + g } else { velocity };
        }
        assert!((f64::from(kept.residual[1]) - moved).abs() < 1e-5 * moved, "{spelling}");
        assert_eq!(kept.momentum.unwrap()[0], 0.0, "{spelling}: momentum is masked where it was sent");
    }
}

#[test]
fn the_worked_steps_of_the_paper_come_out() {
    let spelling = "dgc:density=0.333333333,momentum=0.9";
    let mut kept = zeros(spelling, 3);
    let grad = [1.0, 0.0, 2.0];
    // Nothing is sent of the first step: it is given back.
    let (codec, layout, units) = (spec(spelling).codec, LayoutRef::flat(3), [Unit::whole(3)]);
    let frame =
        run::encode_with(&codec, key(0), &layout, &units, Grad::F32(&grad), Some(&mut kept.lend()), 0)
            .unwrap();
    assert_eq!(run::decode(&frame, &layout).unwrap(), [0.0, 0.0, 2.0]);
    run::parse(&frame, &layout, &run::no_limits(), |frame| kept.lend().give_back(frame)).unwrap();
    assert_eq!((kept.residual.as_slice(), kept.momentum.as_deref()), (&grad[..], Some(&[1.0, 0.0, 0.0][..])));
    let mut kept = Kept { residual: grad.to_vec(), momentum: Some(grad.to_vec()), ..kept };
    let (sent, _) = step(spelling, 1, &units, &[1.0, 1.0, 1.0], &mut kept);
    assert_eq!(sent, [0.0, 0.0, 4.8]);
    assert_eq!(kept.residual, [2.9, 1.0, 0.0]);
    assert_eq!(kept.momentum.as_deref(), Some(&[1.9, 1.0, 0.0][..]));
}

#[test]
fn units_that_are_sent_dense_have_no_momentum() {
    let unit = |id, start, len, dense| Unit { id, start, len, dense };
    let units = [unit(0, 0, 100, false), unit(1, 100, 30, true), unit(4, 140, 60, false)];
    for spelling in SPELLINGS {
        let mut kept = zeros(spelling, 210);
        for t in 0..5 {
            step(spelling, t, &units, &Input::Normal(t).values(210), &mut kept);
        }
        let momentum = kept.momentum.unwrap();
        assert!(momentum[100..140].iter().chain(&momentum[200..]).all(|&u| u == 0.0), "{spelling}");
        assert!(kept.residual[100..140].iter().all(|&kept| kept == 0.0), "{spelling}");
    }
}

#[test]
fn a_run_resumed_from_a_saved_memory_goes_on_bit_for_bit() {
    for spelling in SPELLINGS {
        let (n, layout) = (150, LayoutRef::flat(150));
        let go_on = |kept: &mut Kept, steps: std::ops::Range<u64>| -> Vec<Vec<f32>> {
            steps.map(|t| step(spelling, t, &[Unit::whole(n)], &Input::Normal(t).values(n), kept).0).collect()
        };
        let mut kept = zeros(spelling, n);
        go_on(&mut kept, 0..5);
        let mut saved = vec![0; kept.lend().saved_bytes().unwrap()];
        kept.lend().save(&layout, &mut saved).unwrap();
        let expected = go_on(&mut kept, 5..9);
        let mut resumed = zeros(spelling, n);
        resumed.lend().load(&layout, &saved).unwrap();
        assert_eq!(go_on(&mut resumed, 5..9), expected, "{spelling}");
        assert_eq!(resumed.words(), kept.words(), "{spelling}");
    }
}

/// The error of an encode that must fail, after a check that nothing of the memory has changed.
fn refused(spelling: &str, units: &[Unit], grad: &[f32], kept: &Kept, short: [usize; 2]) -> EncodeError {
    let (codec, layout) = (spec(spelling).codec, LayoutRef::flat(grad.len()));
    let needed = codec.scratch_len(units);
    let mut words = vec![7; needed.words - short[1]];
    let mut bytes = vec![7; needed.bytes];
    let mut out = vec![7; codec.max_frame_bytes(units).unwrap() - short[0]];
    let mut scratch = Scratch { words: &mut words, bytes: &mut bytes };
    let mut after = kept.clone();
    let memory = &mut after.lend();
    let input = StepInput { key: key(1), layout: &layout, units, grad: Grad::F32(grad) };
    let result = codec.encode(&input, Some(memory), &mut scratch, &mut out);
    let error = result.expect_err(spelling);
    assert_eq!(after.words(), kept.words(), "{spelling}: {error} changed the memory");
    error
}

#[test]
fn every_refused_encode_leaves_residual_and_momentum_as_they_were() {
    let n = 700;
    let whole = [Unit::whole(n)];
    let two = [0, 350].map(|start| Unit { id: start as u32, start, len: 350, dense: false });
    for spelling in SPELLINGS {
        let mut kept = zeros(spelling, n);
        kept.residual = Input::Normal(1).values(n);
        kept.momentum = Some(Input::Normal(2).values(n));
        let fine = Input::Normal(3).values(n);
        for units in [&whole[..], &two] {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut grad = fine.clone();
                grad[n - 1] = bad;
                let error = refused(spelling, units, &grad, &kept, [0, 0]);
                assert_eq!(error, EncodeError::NonFiniteInput { index: n - 1 }, "{spelling}");
            }
            // Gradient, momentum and residual are finite, and what becomes of them is not.
            let (mut grad, mut large) = (fine.clone(), kept.clone());
            grad[n - 1] = f32::MAX;
            large.momentum.as_mut().unwrap()[n - 1] = f32::MAX;
            let error = refused(spelling, units, &grad, &large, [0, 0]);
            assert_eq!(error, EncodeError::NonFiniteInput { index: n - 1 }, "{spelling}");
            let error = refused(spelling, units, &fine, &kept, [1, 0]);
            assert!(matches!(error, EncodeError::BufferTooSmall { .. }), "{spelling}");
            let error = refused(spelling, units, &fine, &kept, [0, 1]);
            assert!(matches!(error, EncodeError::ScratchTooSmall { .. }), "{spelling}");
            let plain = Kept { momentum: None, ..kept.clone() };
            assert_eq!(refused(spelling, units, &fine, &plain, [0, 0]), EncodeError::MemoryIncomplete);
        }
    }
}

#[test]
fn parts_that_a_codec_does_not_need_are_left_alone() {
    let (n, layout, grad) = (50, LayoutRef::flat(50), Input::Normal(4).values(50));
    for spelling in ["topk:density=0.1", "dgc:density=0.1,momentum=0", "threshold:value=1", "f16:memory=ef"] {
        let momentum = Input::Normal(5).values(n);
        let states = vec![UnitState::from_words([1, 2, 3, 4])];
        let mut kept =
            Kept { residual: vec![0.0; n], momentum: Some(momentum.clone()), states: states.clone() };
        let (codec, units) = (spec(spelling).codec, [Unit::whole(n)]);
        let mut plain = vec![0.0; n];
        let frame =
            run::encode_with(&codec, key(1), &layout, &units, Grad::F32(&grad), Some(&mut kept.lend()), 0);
        let same = run::encode(&codec, key(1), &layout, &units, Grad::F32(&grad), Some(&mut plain), 0);
        assert_eq!(frame, same, "{spelling}");
        assert_eq!(kept, Kept { residual: plain, momentum: Some(momentum), states }, "{spelling}");
    }
}

/// Positions that a frame of DGC holds, of a gradient without a memory.
fn held(spelling: &str, key: StepKey, grad: &[f32]) -> usize {
    let layout = LayoutRef::flat(grad.len());
    let spelling = format!("{spelling},momentum=0,memory=none");
    let codec = spec(&spelling).codec;
    let frame = run::encode(&codec, key, &layout, &[Unit::whole(grad.len())], Grad::F32(grad), None, 0);
    run::parse(&frame.unwrap(), &layout, &run::no_limits(), |frame| {
        frame.units().map(|unit| unit.held()).sum()
    })
    .unwrap()
}

/// A sample of s holds about s·density of the largest k: one standard deviation is 1/√(s·density) of k.
#[test]
fn the_sampled_threshold_leaves_about_k() {
    let n = 100_000;
    for input in [Input::Normal(1), Input::Heavy(2)] {
        let grad = input.values(n);
        for (density, k) in [("0.1", 10_000usize), ("0.01", 1000), ("0.001", 100)] {
            let mut sum = 0;
            for t in 0..20 {
                let held = held(&format!("dgc:density={density},sample=0.1"), key(t), &grad);
                assert!(held * 10 >= k * 8 && held * 10 <= k * 13, "{held} of {k}, step {t}");
                sum += held;
            }
            let mean = sum as f64 / 20.0 / k as f64;
            assert!((0.93..=1.07).contains(&mean), "{density}: {mean} of k on average");
        }
    }
}

#[test]
fn samples_differ_from_step_to_step_and_from_rank_to_rank() {
    let grad = Input::Normal(3).values(50_000);
    let held =
        |step, rank| held("dgc:density=0.01", StepKey { seed: 1, step, source: Source::Rank(rank) }, &grad);
    let all: Vec<usize> = (0..4).flat_map(|step| [held(step, 0), held(step, 1)]).collect();
    let distinct: std::collections::BTreeSet<_> = all.iter().collect();
    assert!(distinct.len() > 3, "{all:?}");
    assert_eq!(held(0, 0), all[0], "and repeat");
}

/// √N times as long as one gradient is the sum of N that are independent; clipping must bind on the whole
/// norm.
#[test]
fn local_clipping_binds_on_the_norm() {
    let gradwire::Codec::Gather(gradwire::registry::GatherCodec::Dgc(dgc)) = spec("dgc:clip=6").codec else {
        panic!("dgc")
    };
    assert_eq!(dgc.local_clip(1), Some(6.0));
    assert_eq!(dgc.local_clip(4), Some(3.0));
    assert_eq!(dgc.local_clip(9), Some(2.0));
    let mut grad = Input::Normal(1).values(1000);
    let norm = |grad: &[f32]| grad.iter().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>().sqrt();
    let (before, original) = (norm(&grad), grad.clone());
    let limit = dgc.local_clip(4).unwrap();
    assert!((clip_norm(&mut grad, limit) - before).abs() < 1e-9 * before);
    assert!((norm(&grad) - limit).abs() < 1e-5, "{} after clipping to {limit}", norm(&grad));
    let scale = (limit / before) as f32;
    assert!(grad.iter().zip(&original).all(|(now, then)| *now == then * scale), "one direction");
    let short = grad.clone();
    clip_norm(&mut grad, 3.1);
    assert_eq!(grad, short, "what is short enough is left alone");
    let mut bad = [f32::NAN, 5.0];
    clip_norm(&mut bad, 1.0);
    assert_eq!(bad[1], 5.0);
    assert_eq!(clip_norm(&mut [], 1.0), 0.0);
}

#[test]
fn memories_of_a_spelling_have_the_parts_that_it_needs() {
    let layout = LayoutRef::flat(7);
    for (spelling, momentum) in [("dgc", true), ("dgc:momentum=0", false), ("topk", false)] {
        let memory = Memory::for_spec(&spec(spelling), &layout).unwrap();
        assert_eq!(
            (memory.len(), memory.momentum().map(<[f32]>::len)),
            (7, momentum.then_some(7)),
            "{spelling}"
        );
    }
    assert!(Memory::for_spec(&spec("qsgd"), &layout).is_none());
}

/// A memory that has been through an encode knows how large its values can be, so the values are not all read
/// again.
#[test]
fn a_step_that_only_momentum_makes_too_large_is_refused() {
    for nesterov in ["", ",nesterov"] {
        let spec = spec(&format!("dgc:density=0.1,momentum=0.5,values=f16,dense_1d=false{nesterov}"));
        let (layout, units) = (LayoutRef::flat(40), [Unit::whole(40)]);
        let mut memory = Memory::for_spec(&spec, &layout).expect("a memory");
        let mut grad = [8_000.0f32; 40];
        let mut encoder = gradwire::Encoder::new();
        let mut encode = |at, grad: &[f32], memory: &mut Memory<'_>| {
            let input = StepInput { key: key(at), layout: &layout, units: &units, grad: Grad::F32(grad) };
            encoder.encode(&spec.codec, &input, Some(memory)).map(<[u8]>::len)
        };
        grad[..4].fill(20_000.0);
        grad[39] = 100.0;
        encode(0, &grad, &mut memory).unwrap();
        let before = (bits(memory.residual()), bits(memory.momentum().unwrap()));
        let rule = spec.codec.momentum().unwrap();
        let p = |i: usize, grad: f32| {
            let step = naive::dgc::advance(rule, &memory.momentum().unwrap()[i..=i], &[grad]).1[0];
            memory.residual()[i] + step
        };
        // Too large with the momentum, and not without.
        let index = 20;
        grad.fill(0.0);
        grad[index] = (1..).map(|n| n as f32).find(|&grad| p(index, grad) >= 65_520.0).unwrap();
        assert!(memory.residual()[index] + grad[index] < 65_520.0);
        assert_eq!(encode(1, &grad, &mut memory), Err(EncodeError::ValueOverflow { index }));
        assert_eq!((bits(memory.residual()), bits(memory.momentum().unwrap())), before);
        grad[index] -= 64.0;
        encode(1, &grad, &mut memory).unwrap();
    }
}
