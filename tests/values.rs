//! Value coders: what they cost and what they lose, on synthetic and on real gradients, and what they never
//! do.
//!
//! The table of all gradients is printed by
//! `GRADWIRE_DATA=… cargo test --release -p gradwire-tests --test values -- --nocapture`.

use gradwire::{Grad, LayoutRef, Source, Spec, StepKey, Unit};
use gradwire_tests::gradients::{self, Regime};
use gradwire_tests::inputs::Input;
use gradwire_tests::run;
use proptest::prelude::*;

/// One frame, measured. Bits are an entry's; `frame_bits` counts header, tables and all.
#[derive(Clone, Copy, Debug)]
struct Measured {
    k: usize,
    index_bits: f64,
    value_bits: f64,
    frame_bits: f64,
    /// Squared error over the selected values, over their squares.
    selected_error: f64,
    /// The same over all coordinates.
    error: f64,
}

fn measure(spelling: &str, grad: &[f32], layout: &LayoutRef<'_>) -> Measured {
    let spec = Spec::parse(spelling).unwrap_or_else(|error| panic!("{spelling}: {error}"));
    let units: Vec<Unit> = spec.units.units(layout).collect();
    let key = StepKey { seed: 1, step: 1000, source: Source::Rank(0) };
    let frame = run::encode(&spec.codec, key, layout, &units, Grad::F32(grad), None, 0).unwrap();
    let decoded = run::decode(&frame, layout).unwrap();
    let infos = run::parse(&frame, layout, &run::no_limits(), |frame| {
        frame.units().map(|unit| unit.info()).collect::<Vec<_>>()
    });
    let infos = infos.unwrap();
    let square = |value: f32| f64::from(value) * f64::from(value);
    let difference = |(p, d): (&f32, &f32)| (f64::from(*p) - f64::from(*d)).powi(2);
    let is_sent = |(_, d): &(&f32, &f32)| **d != 0.0;
    let pairs = || grad.iter().zip(&decoded);
    let sent: f64 = pairs().filter(is_sent).map(|(p, _)| square(*p)).sum();
    let all: f64 = grad.iter().map(|&p| square(p)).sum();
    let k: usize = infos.iter().map(|info| info.held).sum();
    let bits = |bytes: usize| 8.0 * bytes as f64 / k.max(1) as f64;
    Measured {
        k,
        index_bits: bits(infos.iter().filter_map(|info| info.index).map(|(_, bytes)| bytes).sum()),
        value_bits: bits(infos.iter().filter_map(|info| info.values).map(|(_, bytes)| bytes).sum()),
        frame_bits: bits(frame.len()),
        selected_error: if sent > 0.0 {
            pairs().filter(is_sent).map(difference).sum::<f64>() / sent
        } else {
            0.0
        },
        error: if all > 0.0 { pairs().map(difference).sum::<f64>() / all } else { 0.0 },
    }
}

/// Largest error over the selected values, and most bits an entry, of frames at 1 % with at least 2,500
/// entries.
fn targets(values: &str, regime: Regime) -> (f64, f64) {
    match (values, regime) {
        ("q4", Regime::Raw) => (0.02, 8.5),
        ("q4", Regime::ErrorFeedback) => (0.02, 11.2),
        ("q4", Regime::Dgc) => (0.02, 12.0),
        (_, Regime::Raw) => (0.2, 7.0),
        (_, Regime::ErrorFeedback) => (0.12, 9.7),
        (_, Regime::Dgc) => (0.05, 10.5),
    }
}

#[test]
fn codebooks_of_real_gradients_reach_their_targets() {
    let test = "codebooks_of_real_gradients_reach_their_targets";
    println!(
        "| gradient | regime | values | k | positions, `auto` | `small` | values, `auto` | `small` | frame, `small` | error of the selected | error of all |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for gradient in gradients::all(test) {
        for values in ["f32", "f16", "bf16", "q8", "q4", "q2", "sign"] {
            let [auto, small] = ["auto", "small"].map(|index| {
                let spelling = format!("topk:density=0.01,index={index},values={values}");
                measure(&spelling, &gradient.values, &gradient.layout.as_ref())
            });
            let Measured { k, index_bits, value_bits, frame_bits, selected_error, error } = small;
            let (name, regime) = (&gradient.name, gradient.regime());
            println!(
                "| {name} | {regime:?} | {values} | {k} | {:.2} | {index_bits:.2} | {:.2} | {value_bits:.2} | {frame_bits:.2} | {selected_error:.4} | {error:.3} |",
                auto.index_bits, auto.value_bits
            );
            assert_eq!(error, auto.error, "{name}: {values}: coders change values");
            assert!(error < 1.0, "{name}: {values}: no contraction");
            assert!(value_bits <= auto.value_bits, "{name}: {values}: values are longer");
            if k >= 2_500 && ["q4", "q2"].contains(&values) {
                let (most_error, most_bits) = targets(values, regime);
                assert!(selected_error <= most_error, "{name}: {values}: error {selected_error}");
                assert!(frame_bits <= most_bits, "{name}: {values}: {frame_bits} bits an entry");
            }
        }
    }
}

/// What SparseLoCo sends of an outer gradient, with signs and one magnitude for each tensor. If all ways to
/// choose 64 of 4096 are alike, positions and signs take 8.37 bits an entry.
#[test]
fn signs_of_outer_gradients_are_short() {
    let test = "signs_of_outer_gradients_are_short";
    for gradient in gradients::all(test).filter(|gradient| gradient.name.starts_with("pseudo/")) {
        let [whole, signs] = ["f32", "sign"].map(|values| {
            let spelling =
                format!("topk:density=0.015625,chunk=4096,values={values},index=smallest,unit=tensor");
            measure(&spelling, &gradient.values, &gradient.layout.as_ref())
        });
        // With f32 only what was not selected is lost. With signs some of what was waits, and counts as lost.
        let (bits, error) = (signs.frame_bits, ((signs.error - whole.error) / (1.0 - whole.error)).sqrt());
        println!(
            "{}: {bits:.2} bits an entry, error of the selected {error:.3} of their norm",
            gradient.name
        );
        assert!(bits <= 8.55, "{}: {bits} bits an entry", gradient.name);
        assert!(error <= 0.14, "{}: error {error}", gradient.name);
    }
}

/// Cubes of about normal values, as in young models, and normal ones, as in accumulators.
#[test]
fn codebooks_of_synthetic_gradients_reach_their_targets() {
    let normal = Input::Normal(5).values(300_000);
    let cubes: Vec<f32> = normal.iter().map(|value| value * value * value).collect();
    for (name, grad, errors, value_bits) in
        [("heavy", &cubes, [0.02, 0.2], [3.4, 1.9]), ("normal", &normal, [0.002, 0.02], [3.5, 2.0])]
    {
        for (values, (most_error, most_bits)) in
            ["q4", "q2"].into_iter().zip(errors.into_iter().zip(value_bits))
        {
            let row =
                measure(&format!("topk:density=0.01,values={values}"), grad, &LayoutRef::flat(grad.len()));
            assert!(row.selected_error <= most_error, "{name}, {values}: error {}", row.selected_error);
            assert!(row.value_bits <= most_bits, "{name}, {values}: {} bits a value", row.value_bits);
        }
    }
}

fn gradients() -> impl Strategy<Value = Vec<f32>> {
    let input = (any::<u64>(), 0..5).prop_map(|(seed, kind)| match kind {
        0 => Input::Normal(seed),
        1 => Input::Heavy(seed),
        2 => Input::Ties(seed),
        3 => Input::Range(seed),
        _ => Input::Sparse(seed),
    });
    (input, 1usize..2000).prop_map(|(input, n)| input.values(n))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_codebook_is_a_contraction_and_sends_no_zero(
        grad in gradients(),
        values in prop::sample::select(vec!["q8", "q4", "q2", "sign"]),
        density in prop::sample::select(vec!["0.001", "0.01", "0.1", "1"]),
    ) {
        let spelling = format!("topk:density={density},values={values}");
        let layout = LayoutRef::flat(grad.len());
        let Measured { k, error, .. } = measure(&spelling, &grad, &layout);
        let is_zero = grad.iter().all(|&value| value == 0.0);
        prop_assert!(is_zero || error < 1.0, "{}: error {}", spelling, error);
        let codec = Spec::parse(&spelling).unwrap().codec;
        let key = StepKey { seed: 1, step: 0, source: Source::Rank(0) };
        let frame = run::encode(&codec, key, &layout, &[Unit::whole(grad.len())], Grad::F32(&grad), None, 0).unwrap();
        let decoded = run::decode(&frame, &layout).unwrap();
        prop_assert_eq!(decoded.iter().filter(|value| **value != 0.0).count(), k);
        for (p, d) in grad.iter().zip(&decoded) {
            prop_assert!(*d == 0.0 || (d.is_sign_negative() == p.is_sign_negative() && (p - d).abs() <= p.abs()));
        }
    }
}
