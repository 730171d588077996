//! Thresholds that are estimated: how many coordinates they leave, and what is remembered of each unit.

use gradwire::state::UnitState;
use gradwire::{EncodeError, Grad, LayoutRef, Memory, Source, Spec, StepKey, Unit};
use gradwire_tests::inputs::{Input, Words};
use gradwire_tests::run::{self, Kept};

fn spec(spelling: &str) -> Spec {
    Spec::parse(spelling).unwrap_or_else(|error| panic!("{spelling}: {error}"))
}

fn key(step: u64) -> StepKey {
    StepKey { seed: 5, step, source: Source::Rank(2) }
}

/// Encodes one step and returns the entries of each unit.
fn step(spelling: &str, at: u64, units: &[Unit], grad: &[f32], memory: &mut Memory<'_>) -> Vec<usize> {
    let layout = LayoutRef::flat(grad.len());
    let frame =
        run::encode_with(&spec(spelling).codec, key(at), &layout, units, Grad::F32(grad), Some(memory), 0);
    let frame = frame.unwrap_or_else(|error| panic!("{spelling}: {error}"));
    run::parse(&frame, &layout, &run::no_limits(), |frame| frame.units().map(|unit| unit.held()).collect())
        .unwrap()
}

/// What 60 steps of error feedback leave, over what is wanted.
fn mean_ratio(spelling: &str, input: fn(u64) -> Input) -> f64 {
    let (n, steps) = (10_000, 60);
    let mut kept = Kept::new(&spec(spelling), n, &[Unit::whole(n)]).unwrap();
    let k = spec(spelling).codec.density().unwrap().count(n);
    let held = |t| step(spelling, t, &[Unit::whole(n)], &input(t).values(n), &mut kept.lend())[0];
    let sum: usize = (0..steps).map(held).sum();
    sum as f64 / steps as f64 / k as f64
}

/// Within a fifth on Gaussians; gradients that span thirty powers of two are no distribution that is fitted.
#[test]
fn over_a_run_the_density_is_met() {
    for fit in ["gamma", "gp"] {
        for density in ["0.1", "0.01"] {
            let spelling = format!("sidco:density={density},fit={fit}");
            let [gaussian, heavy] = [Input::Normal, Input::Heavy].map(|input| mean_ratio(&spelling, input));
            println!("{spelling}: {gaussian:.3} {heavy:.3}");
            assert!((0.8..=1.2).contains(&gaussian), "{spelling}: {gaussian}");
            assert!((0.6..=1.4).contains(&heavy), "{spelling}: {heavy}");
        }
    }
}

/// Gradients of one distribution, another for each number, from tails lighter than those of a Gaussian to
/// much heavier ones: powers of Gaussians, and mixtures of two.
fn drawn(distribution: u64, step: u64, n: usize) -> Vec<f32> {
    let mut words = Words::new(distribution);
    let power = 0.5 + words.below(250) as f32 / 100.0;
    let (rare, larger) = (words.below(n as u64 / 4), 1.0 + words.below(20) as f32);
    let values = Input::Normal(1_000_000 * distribution + step).values(n);
    let mut chosen = Words::new(!step);
    let scaled = |g: f32| if chosen.below(n as u64) < rare { g * larger } else { g };
    if distribution.is_multiple_of(2) {
        values.into_iter().map(|g| g.abs().powf(power).copysign(g)).collect()
    } else {
        values.into_iter().map(scaled).collect()
    }
}

/// What the last 50 of 100 steps with error feedback send, over what is wanted.
fn settled_ratio(spelling: &str, distribution: u64) -> f64 {
    let (n, spec) = (4_000, spec(spelling));
    let mut kept = Kept::new(&spec, n, &[Unit::whole(n)]).unwrap();
    let mut sent = |t| step(spelling, t, &[Unit::whole(n)], &drawn(distribution, t, n), &mut kept.lend())[0];
    (0..50).for_each(|t| {
        sent(t);
    });
    let sum: usize = (50..100).map(sent).sum();
    sum as f64 / 50.0 / spec.codec.density().unwrap().count(n) as f64
}

/// How many of 40 distributions leave what is wanted, within a fifth, and how far off all are on average.
fn settled_distributions(fit: &str, stages: &str) -> (usize, f64) {
    let densities = ["0.05", "0.02", "0.01"];
    let ratios: Vec<f64> = (0..40)
        .map(|i| {
            let density = densities[i as usize % 3];
            settled_ratio(&format!("sidco:density={density},fit={fit},stages={stages}"), i)
        })
        .collect();
    let is_in_band = |ratio: &&f64| (0.8..=1.2).contains(*ratio);
    let off = ratios.iter().map(|ratio| (ratio - 1.0).abs()).sum::<f64>() / ratios.len() as f64;
    (ratios.iter().filter(is_in_band).count(), off)
}

/// The table of benches/README.md.
#[test]
fn stages_that_adapt_meet_the_density_of_most_distributions() {
    for fit in ["exp", "gamma", "gp"] {
        let [adapted, three] = ["auto", "3"].map(|stages| settled_distributions(fit, stages));
        println!(
            "{fit}: of 40 distributions in the band, mean distance: {adapted:.3?}, three stages {three:.3?}"
        );
        assert!(fit == "exp" || adapted.0 >= 36, "{fit}: {adapted:?}");
    }
}

#[test]
fn capped_frames_never_hold_more_than_k() {
    let n = 3000;
    for fit in ["exp", "gamma", "gp"] {
        for stages in ["auto", "1", "3"] {
            let spelling = format!("sidco:density=0.02,fit={fit},stages={stages},cap=exact");
            let uncapped = spelling.replace(",cap=exact", "");
            let mut kept = Kept::new(&spec(&spelling), n, &[Unit::whole(n)]).unwrap();
            for t in 0..30 {
                let input = [Input::Normal, Input::Heavy, Input::Ties, Input::Sparse][t as usize % 4];
                let grad = input(t).values(n);
                let mut other = kept.clone();
                let free = step(&uncapped, t, &[Unit::whole(n)], &grad, &mut other.lend())[0];
                let held = step(&spelling, t, &[Unit::whole(n)], &grad, &mut kept.lend())[0];
                assert_eq!(held, free.min(60), "{spelling}, step {t}");
                assert!(free <= 120, "{uncapped}, step {t}: {free}");
                assert_eq!(kept.states, other.states, "stages adapt alike");
            }
        }
    }
}

fn stages(state: UnitState) -> u32 {
    (state.words()[0] & 0xff) + 1
}

/// Of a Gaussian, one exponential fit for 0.1 % leaves almost nothing: more stages are needed. Of equal
/// values no number of stages leaves k.
#[test]
fn stages_are_added_where_one_leaves_too_few_and_every_unit_has_its_own() {
    let unit = |id, start| Unit { id, start, len: 10_000, dense: false };
    let units = [unit(0, 0), unit(1, 10_000)];
    let spelling = "sidco:density=0.001,fit=exp";
    let mut kept = Kept::new(&spec(spelling), 20_000, &units).unwrap();
    for t in 0..40 {
        // No feedback from one step to the next, so that each unit keeps its distribution.
        kept.residual.fill(0.0);
        let mut grad = Input::Normal(t).values(20_000);
        grad[10_000..].iter_mut().for_each(|g| *g *= g.abs());
        step(spelling, t, &units, &grad, &mut kept.lend());
    }
    let [gaussian, laplacian] = [0, 1].map(|unit| stages(kept.states[unit]));
    assert!(gaussian > 1, "{gaussian}");
    assert_ne!(kept.states[0], kept.states[1], "{gaussian} {laplacian}");
    assert!(gaussian <= 10 && laplacian <= 10, "at most log2 of 1000, rounded up");
}

#[test]
fn a_refused_encode_leaves_every_state_as_it_was() {
    let n = 400;
    let two = [0, 200].map(|start| Unit { id: start as u32 / 200, start, len: 200, dense: false });
    for spelling in ["sidco:density=0.05", "sidco:density=0.05,fit=gamma,cap=exact,values=q4"] {
        let mut kept = Kept::new(&spec(spelling), n, &two).unwrap();
        step(spelling, 0, &two, &Input::Normal(1).values(n), &mut kept.lend());
        assert!(kept.states.iter().all(|state| *state != UnitState::default()));
        let (layout, codec, before) = (LayoutRef::flat(n), spec(spelling).codec, kept.words());
        for bad in [f32::NAN, f32::INFINITY] {
            let mut grad = Input::Normal(2).values(n);
            grad[n - 1] = bad;
            let error =
                run::encode_with(&codec, key(1), &layout, &two, Grad::F32(&grad), Some(&mut kept.lend()), 0);
            assert_eq!(error, Err(EncodeError::NonFiniteInput { index: n - 1 }), "{spelling}");
            assert_eq!(kept.words(), before, "{spelling}");
        }
        let grad = Input::Normal(3).values(n);
        let mut one_state = Kept { states: kept.states[..1].to_vec(), ..kept.clone() };
        let missing =
            run::encode_with(&codec, key(1), &layout, &two, Grad::F32(&grad), Some(&mut one_state.lend()), 0);
        assert_eq!(missing, Err(EncodeError::MemoryIncomplete), "{spelling}");
        let none = run::encode_with(&codec, key(1), &layout, &two, Grad::F32(&grad), None, 0);
        assert_eq!(none, Err(EncodeError::MemoryIncomplete), "{spelling}");
        let dense = two.map(|unit| Unit { dense: unit.id == 1, ..unit });
        let enough = run::encode_with(
            &codec,
            key(1),
            &layout,
            &dense,
            Grad::F32(&grad),
            Some(&mut one_state.lend()),
            0,
        );
        assert!(enough.is_ok(), "a unit that is sent dense needs no state");
    }
}

#[test]
fn a_run_resumed_from_a_saved_memory_adapts_on_bit_for_bit() {
    let (n, units, spelling) = (2000, [Unit::whole(2000)], "sidco:density=0.01,fit=exp");
    let layout = LayoutRef::flat(n);
    let go_on = |memory: &mut Memory<'_>, steps: std::ops::Range<u64>| -> Vec<Vec<usize>> {
        steps.map(|t| step(spelling, t, &units, &Input::Normal(t).values(n), memory)).collect()
    };
    let mut memory = Memory::for_spec(&spec(spelling), &layout).unwrap();
    go_on(&mut memory, 0..13);
    let mut saved = vec![0; memory.saved_bytes().unwrap()];
    memory.save(&layout, &mut saved).unwrap();
    let expected = go_on(&mut memory, 13..40);
    let mut resumed = Memory::for_spec(&spec(spelling), &layout).unwrap();
    resumed.load(&layout, &saved).unwrap();
    assert_ne!(resumed.states()[0], UnitState::default());
    assert_eq!(go_on(&mut resumed, 13..40), expected);
    assert_eq!(resumed.states(), memory.states());
}
