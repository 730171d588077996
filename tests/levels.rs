//! Level coders: what they cost, on synthetic and on real gradients.
//!
//! The table of all gradients is printed by
//! `GRADWIRE_DATA=… cargo test --release -p gradwire-tests --test levels -- --nocapture`.

use gradwire::format::UnitInfo;
use gradwire::{Grad, LayoutRef, Source, Spec, StepKey, Unit};
use gradwire_tests::gradients;
use gradwire_tests::inputs::Input;
use gradwire_tests::naive::bits::Bits;
use gradwire_tests::naive::rans;
use gradwire_tests::run;

/// Width of a level and coordinates of a bucket.
const PARAMETERS: [(u32, usize); 5] = [(2, 128), (2, 512), (4, 512), (4, 4096), (8, 512)];

/// Frame, norms and levels, in bytes, and the decoded gradient.
struct Measured {
    frame: usize,
    norms: usize,
    levels: usize,
    decoded: Vec<f32>,
}

fn measure((bits, bucket): (u32, usize), entropy: &str, grad: &[f32]) -> Measured {
    let codec = Spec::parse(&format!("qsgd:bits={bits},bucket={bucket},entropy={entropy}")).unwrap().codec;
    let layout = LayoutRef::flat(grad.len());
    let key = StepKey { seed: 1, step: 1000, source: Source::Rank(0) };
    let units = [Unit::whole(grad.len())];
    let frame = run::encode(&codec, key, &layout, &units, Grad::F32(grad), None, 0).unwrap();
    let decoded = run::decode(&frame, &layout).unwrap();
    let info =
        run::parse(&frame, &layout, &run::no_limits(), |frame| frame.units().next().unwrap().info()).unwrap();
    let bytes = |section: Option<(&str, usize)>| section.map_or(0, |(_, bytes)| bytes);
    Measured { frame: frame.len(), norms: bytes(info.index), levels: bytes(info.values), decoded }
}

/// Bytes of the order-0 entropy of the levels of all buckets that are not zero, and of the table that says
/// their frequencies.
fn ideal_bytes((bits, bucket): (u32, usize), grad: &[f32], decoded: &[f32]) -> f64 {
    let s = (1 << (bits - 1)) - 1;
    let mut counts = vec![0u64; 2 * s + 1];
    for (grad, decoded) in grad.chunks(bucket).zip(decoded.chunks(bucket)) {
        let norm = grad.iter().fold(0.0f32, |max, value| max.max(value.abs()));
        for value in decoded.iter().filter(|_| norm >= 2.0f32.powi(-100)) {
            let level = (f64::from(value.abs()) / f64::from(norm) * s as f64).round() as usize;
            counts[(2 * level).saturating_sub(usize::from(*value > 0.0))] += 1;
        }
    }
    let total: u64 = counts.iter().sum();
    let cost = |&count: &u64| count as f64 * (total as f64 / count as f64).log2();
    let mut table = Bits::default();
    rans::write_table(&rans::frequencies(&counts), &mut table);
    (counts.iter().filter(|count| **count > 0).map(cost).sum::<f64>() + table.len() as f64) / 8.0
}

/// Holds one gradient against what is promised of every one, levels that take no more than `most` above their
/// entropy among it, and prints what it costs.
fn check(name: &str, most: f64, grad: &[f32]) {
    for parameters in PARAMETERS {
        let [fixed, rans, adaptive, auto] =
            ["fixed", "rans", "adaptive", "auto"].map(|entropy| measure(parameters, entropy, grad));
        let ideal = ideal_bytes(parameters, grad, &rans.decoded);
        let excess = rans.levels as f64 / ideal - 1.0;
        let bits = |bytes: usize| 8.0 * bytes as f64 / grad.len() as f64;
        println!(
            "{name:48} {parameters:?}: fixed {:.4}, rans {:.4} ({:+.2} % over the entropy), adaptive {:.4} (norms {:.4})",
            bits(fixed.frame),
            bits(rans.frame),
            100.0 * excess,
            bits(adaptive.frame),
            bits(adaptive.norms),
        );
        assert!(excess <= most, "{name} {parameters:?}: {} bytes, ideal {ideal:.0}", rans.levels);
        assert_eq!(auto.frame, fixed.frame.min(rans.frame).min(adaptive.frame), "{name} {parameters:?}");
        assert!(adaptive.frame <= rans.frame + 64, "{name} {parameters:?}: adaptive is larger");
        assert_eq!(adaptive.decoded, rans.decoded);
    }
}

#[test]
fn rans_is_within_half_a_percent_of_the_entropy_and_auto_takes_the_smallest() {
    check("normal", 0.005, &Input::Normal(1).values(80_000));
    check("uneven", 0.005, &Input::Uneven(2).values(200_000));
    let test = "rans_is_within_half_a_percent_of_the_entropy_and_auto_takes_the_smallest";
    gradients::all(test).for_each(|gradient| check(&gradient.name, 0.005, &gradient.values));
}

/// What the only unit of a frame is made of, and what it would be made of under each level coder.
fn inspected(spelling: &str, grad: &[f32]) -> (UnitInfo, Vec<UnitInfo>) {
    let codec = Spec::parse(spelling).unwrap_or_else(|error| panic!("{spelling}: {error}")).codec;
    let layout = LayoutRef::flat(grad.len());
    let key = StepKey { seed: 3, step: 7, source: Source::Rank(1) };
    let units = [Unit::whole(grad.len())];
    let frame = run::encode(&codec, key, &layout, &units, Grad::F32(grad), None, 0).unwrap();
    run::parse(&frame, &layout, &run::no_limits(), |frame| {
        let unit = frame.units().next().unwrap();
        (unit.info(), unit.level_alternatives())
    })
    .unwrap()
}

#[test]
fn alternatives_are_what_the_coders_make_of_the_same_levels() {
    let parameters = [
        ("2", ""),
        ("ternary", ",bucket=33"),
        ("4", ",bucket=300,norm=l2"),
        ("8", ",bucket=1"),
        ("5", ",bucket=4294967295,rounding=nearest,memory=none"),
    ];
    for ((bits, rest), n) in parameters.into_iter().flat_map(|one| [0, 1, 129, 20_000].map(|n| (one, n))) {
        for input in [Input::Normal(1), Input::Heavy(2), Input::Uneven(3), Input::Zero] {
            let grad = input.values(n);
            let of =
                |bits: &str, entropy| inspected(&format!("qsgd:bits={bits}{rest},entropy={entropy}"), &grad);
            let widths = if ["2", "ternary"].contains(&bits) { vec!["2", "ternary"] } else { vec![bits] };
            let fixed = widths.iter().map(|bits| of(bits, "fixed").0);
            let coded = ["elias", "rans", "adaptive"].map(|entropy| of(bits, entropy).0);
            let expected: Vec<UnitInfo> = fixed.chain(coded).collect();
            for chosen in ["fixed", "elias", "rans", "adaptive", "auto"] {
                let (info, alternatives) = of(bits, chosen);
                assert_eq!(alternatives, expected, "{bits} bits{rest}, {n} of {input:?}, {chosen}");
                assert!(alternatives.contains(&info), "{bits} bits{rest}, {n} of {input:?}, {chosen}");
            }
        }
    }
}

/// Tails so heavy that most levels are rarer than a slot: 4096 slots are too few to say how rare.
#[test]
fn levels_rarer_than_a_slot_cost_two_percent_at_most() {
    check("heavy", 0.02, &Input::Heavy(3).values(300_000));
}

/// An embedding of which a batch touched few rows.
#[test]
fn rows_that_were_not_touched_cost_next_to_nothing() {
    let (rows, columns) = (10_000, 200);
    let touched = Input::Normal(4).values(rows / 20 * columns);
    let mut rows_of = touched.chunks(columns);
    let grad: Vec<f32> = (0..rows)
        .flat_map(|row| if row % 20 == 7 { rows_of.next().unwrap().to_vec() } else { vec![0.0; columns] })
        .collect();
    for parameters in PARAMETERS {
        let [all, alone] = [&grad, &touched].map(|grad| measure(parameters, "adaptive", grad).frame);
        let bits = 8.0 * (all as f64 - alone as f64) / (grad.len() - touched.len()) as f64;
        println!("{parameters:?}: {bits:.4} bits a coordinate of an untouched row");
        assert!(bits < 0.08, "{parameters:?}: {bits:.4} bits a coordinate of an untouched row");
    }
}
