//! Means and variances of what is random. Seeds are fixed, so a test passes or fails for good; bounds are
//! five standard deviations, or stated.

use gradwire::codecs::Norm;
use gradwire::{Codec, Grad, Layout, LayoutRef, Source, Spec, StepKey, Unit};
use gradwire_tests::inputs::Input;
use gradwire_tests::{naive, run};

fn codec(spelling: &str) -> Codec {
    Spec::parse(spelling).unwrap_or_else(|error| panic!("{spelling}: {error}")).codec
}

/// Rows of five coordinates, if there can be such.
fn matrix(len: usize) -> Layout {
    let columns = if len.is_multiple_of(5) { 5 } else { 1 };
    run::layout(&[vec![len / columns, columns]])
}

fn frame(codec: &Codec, key: StepKey, grad: &[f32]) -> Vec<u8> {
    let (layout, unit) = (matrix(grad.len()), [Unit::whole(grad.len())]);
    run::encode(codec, key, &layout.as_ref(), &unit, Grad::F32(grad), None, 0).unwrap()
}

fn decoded(codec: &Codec, key: StepKey, grad: &[f32]) -> Vec<f64> {
    let values = run::decode(&frame(codec, key, grad), &matrix(grad.len()).as_ref()).unwrap();
    values.into_iter().map(f64::from).collect()
}

fn key(seed: u64, step: u64, rank: u32) -> StepKey {
    StepKey { seed, step, source: Source::Rank(rank) }
}

fn energy(values: &[f32]) -> f64 {
    values.iter().map(|&value| f64::from(value).powi(2)).sum()
}

fn distance(a: &[f64], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, &b)| (a - f64::from(b)).powi(2)).sum()
}

/// Mean of every coordinate, and mean squared error, over `trials` steps.
fn moments(codec: &Codec, grad: &[f32], trials: u64) -> (Vec<f64>, f64) {
    let (mut mean, mut error) = (vec![0.0; grad.len()], 0.0);
    for step in 0..trials {
        let sample = decoded(codec, key(5, step, 2), grad);
        error += distance(&sample, grad) / trials as f64;
        mean.iter_mut().zip(&sample).for_each(|(mean, value)| *mean += value / trials as f64);
    }
    (mean, error)
}

/// A coordinate between two levels that are R/s apart, at a fraction f of the way, has the variance
/// (R/s)²·f·(1 − f).
fn level_variances(spelling_norm: Norm, levels: f64, grad: &[f32]) -> (Vec<f64>, f64) {
    let norm = f64::from(naive::levels::bucket_norm(spelling_norm, grad));
    let scale = norm / levels;
    let variance = |&v: &f32| {
        let fraction = (f64::from(v.abs()) / scale).fract();
        scale * scale * fraction * (1.0 - fraction)
    };
    (grad.iter().map(variance).collect(), scale)
}

#[test]
fn qsgd_is_unbiased_and_its_variance_is_the_papers() {
    const TRIALS: u64 = 4000;
    let grad = Input::Normal(3).values(48);
    let by_bits =
        [("bits=ternary", 1.0), ("bits=2", 1.0), ("bits=3", 3.0), ("bits=4", 7.0), ("bits=8", 127.0)];
    let counted =
        [("levels=64", 64.0), ("levels=16", 16.0), ("levels=4", 4.0), ("levels=5", 5.0), ("levels=1", 1.0)];
    for (bits, levels) in by_bits.into_iter().chain(counted) {
        for (name, norm) in [("l2", Norm::L2), ("max", Norm::Max)] {
            let codec = codec(&format!("qsgd:{bits},norm={name},bucket=48"));
            let (mean, error) = moments(&codec, &grad, TRIALS);
            let (variances, scale) = level_variances(norm, levels, &grad);
            for i in 0..grad.len() {
                // Draws of 16 bits: the bias of one coordinate is at most 2⁻¹⁷ levels.
                let bound = 5.0 * (variances[i] / TRIALS as f64).sqrt() + scale / 131_072.0 + 1e-6 * scale;
                let off = (mean[i] - f64::from(grad[i])).abs();
                assert!(off <= bound, "{bits},norm={name}: coordinate {i} is off by {off}, bound {bound}");
            }
            let expected: f64 = variances.iter().sum();
            assert!((error / expected - 1.0).abs() < 0.05, "{bits},norm={name}: {error} against {expected}");
            let d = grad.len() as f64;
            let paper = (d / (levels * levels)).min(d.sqrt() / levels) * energy(&grad);
            assert!(norm != Norm::L2 || error <= paper, "{bits}: {error} is above the bound {paper}");
        }
    }
}

/// What exceeds c is sent as c, and the rest without bias: TernGrad's law.
#[test]
fn what_exceeds_a_cutoff_is_sent_as_the_cutoff_and_the_rest_without_bias() {
    const TRIALS: u64 = 4000;
    let mut grad = Input::Normal(3).values(64);
    (grad[5], grad[40]) = (9.0, -20.0);
    let mean = grad.iter().map(|&v| f64::from(v)).sum::<f64>() / 64.0;
    let sigma = (energy(&grad) / 64.0 - mean * mean).sqrt();
    for (bits, levels) in [("bits=ternary", 1.0), ("bits=4", 7.0)] {
        let codec = codec(&format!("qsgd:{bits},bucket=64,sigmas=2.5"));
        let largest = 2.5 * sigma;
        let scale = largest / levels;
        let (mean, _) = moments(&codec, &grad, TRIALS);
        assert!(largest < 9.0, "{largest} cuts off two values");
        for (&value, mean) in grad.iter().zip(mean) {
            let expected = f64::from(value).clamp(-largest, largest);
            let fraction = (expected.abs() / scale).fract();
            let variance = scale * scale * fraction * (1.0 - fraction);
            let variance = if value.abs() >= 9.0 { 0.0 } else { variance };
            let bound = 5.0 * (variance / TRIALS as f64).sqrt() + scale / 131_072.0 + 1e-6 * scale;
            let off = (mean - expected).abs();
            assert!(off <= bound, "{bits}: {value} is off by {off}, bound {bound}");
        }
    }
}

/// σ says nothing of values that are about the same, or of one.
#[test]
fn a_bucket_without_tails_is_sent_as_it_is() {
    let constant = vec![0.1; 100];
    let far = Input::Normal(8).values(100).iter().map(|value| 0.01 * value - 3.0).collect();
    for (grad, bucket) in [(constant, 100), (far, 100), (Input::Heavy(9).values(50), 1), (vec![0.0; 9], 3)] {
        let of =
            |rest: &str| decoded(&codec(&format!("qsgd:bits=8,bucket={bucket}{rest}")), key(1, 2, 3), &grad);
        assert_eq!(of(",sigmas=0.001"), of(""), "buckets of {bucket}");
    }
}

/// A value v between the magnitudes a and b has the variance (b − v)·(v − a).
#[test]
fn codebooks_rounded_to_by_draws_are_unbiased_and_their_variance_is_known() {
    const TRIALS: u64 = 1000;
    for input in [Input::Heavy(6), Input::Normal(7)] {
        let grad = input.values(48);
        for (values, log2) in [("q2", 1), ("q4", 3), ("q8", 6)] {
            let codec = codec(&format!("topk:density=1,values={values},rounding=stochastic"));
            let (mean, error) = moments(&codec, &grad, TRIALS);
            let book =
                naive::values::fit_covering(log2, &grad).into_iter().map(f64::from).collect::<Vec<_>>();
            let (mut expected, mut spread) = (0.0, 0.0);
            for (mean, &value) in mean.iter().zip(&grad) {
                let target = f64::from(value.abs());
                let above = book.iter().position(|&magnitude| magnitude > target).unwrap_or(book.len() - 1);
                let (low, high) = (book[above.saturating_sub(1)], book[above]);
                let (up, down) = (high - target, target - low);
                let variance = up * down;
                let fourth = variance * (up.powi(3) + down.powi(3)) / (up + down).max(f64::MIN_POSITIVE);
                (expected, spread) = (expected + variance, spread + fourth - variance * variance);
                // Draws of 32 bits, and the rounding of sums.
                let bound = 5.0 * (variance / TRIALS as f64).sqrt() + (high - low) / 4e9 + 1e-9 * high;
                let off = (mean - f64::from(value)).abs();
                assert!(off <= bound, "{values}: {value} is off by {off}, bound {bound}");
            }
            let bound = 5.0 * (spread / TRIALS as f64).sqrt();
            assert!((error - expected).abs() < bound, "{values}: {error} against {expected}, bound {bound}");
            let [one, other] = [0, 1].map(|rank| decoded(&codec, key(5, 0, rank), &grad));
            assert_ne!(one, other, "{values}: ranks draw alike");
            assert!(one.iter().all(|value| *value != 0.0), "{values}: a value decodes to zero");
        }
    }
}

/// E‖Q‖₀ ≤ s·(s + √d).
#[test]
fn qsgd_under_the_euclidean_norm_is_as_sparse_as_the_paper_says() {
    let grad = Input::Normal(4).values(512);
    for (bits, s) in [("bits=2", 1.0), ("bits=3", 3.0), ("levels=4", 4.0), ("levels=5", 5.0)] {
        let codec = codec(&format!("qsgd:{bits},norm=l2,bucket=512"));
        let count = |step| {
            decoded(&codec, key(5, step, 2), &grad).iter().filter(|value| **value != 0.0).count() as f64
        };
        let mean = (0..100).map(count).sum::<f64>() / 100.0;
        assert!(mean <= s * (s + 512f64.sqrt()), "{bits}: {mean} non-zero levels");
    }
}

#[test]
fn nearest_rounding_is_a_contraction_wherever_it_says_so() {
    for (spelling, bucket) in [
        ("qsgd:bits=2,bucket=32,rounding=nearest", 32),
        ("qsgd:bits=4,norm=l2,bucket=128,rounding=nearest", 128),
        ("qsgd:bits=ternary,bucket=512,rounding=nearest", 512),
        ("qsgd:levels=5,bucket=64,rounding=nearest", 64),
        ("qsgd:levels=64,norm=l2,bucket=512,rounding=nearest", 512),
    ] {
        let Codec::Gather(gradwire::registry::GatherCodec::Qsgd(qsgd)) = codec(spelling) else {
            panic!("{spelling}")
        };
        assert!(qsgd.proves_contraction());
        for seed in 0..50 {
            let grad = Input::Heavy(seed).values(bucket);
            let error = distance(&decoded(&codec(spelling), key(1, 1, 1), &grad), &grad);
            assert!(error < energy(&grad), "{spelling}: {error}");
        }
    }
}

#[test]
fn top_k_is_a_contraction_by_k_over_n() {
    for (density, kept) in [("0.01", 0.01), ("0.1", 0.1), ("0.5", 0.5), ("1", 1.0)] {
        for seed in 0..20 {
            let grad = Input::Normal(seed).values(1000);
            let error =
                distance(&decoded(&codec(&format!("topk:density={density}")), key(1, 1, 1), &grad), &grad);
            assert!(error <= (1.0 - kept) * energy(&grad) * (1.0 + 1e-9), "density={density}: {error}");
        }
    }
}

const BLOCKS: [&str; 3] = ["block=none", "block=run", "block=tile"];

#[test]
fn unbiased_random_k_is_unbiased_with_variance_n_over_k_less_one() {
    const TRIALS: u64 = 4000;
    let grad = Input::Normal(6).values(40);
    for block in BLOCKS {
        let codec = codec(&format!("randomk:density=0.2,estimator=unbiased,{block}"));
        let (mean, error) = moments(&codec, &grad, TRIALS);
        for i in 0..grad.len() {
            let v = f64::from(grad[i]);
            let bound = 5.0 * v.abs() * (4.0 / TRIALS as f64).sqrt() + 1e-6;
            assert!((mean[i] - v).abs() <= bound, "{block}: coordinate {i} is off by {}", mean[i] - v);
        }
        let expected = 4.0 * energy(&grad);
        assert!((error / expected - 1.0).abs() < 0.05, "{block}: {error} against {expected}");
    }
}

#[test]
fn contracting_random_k_keeps_k_over_n_of_the_energy() {
    let grad = Input::Normal(7).values(40);
    for block in BLOCKS {
        let (_, error) = moments(&codec(&format!("randomk:density=0.2,{block}")), &grad, 4000);
        let expected = 0.8 * energy(&grad);
        assert!((error / expected - 1.0).abs() < 0.05, "{block}: {error} against {expected}");
    }
}

#[test]
fn every_coordinate_is_sampled_equally_often() {
    const TRIALS: u64 = 5000;
    let grad = vec![1.0; 30];
    let deviation = (0.1 * 0.9 / TRIALS as f64).sqrt();
    for block in BLOCKS {
        let (mean, _) = moments(&codec(&format!("randomk:density=0.1,{block}")), &grad, TRIALS);
        assert!(mean.iter().all(|share| (share - 0.1).abs() < 5.0 * deviation), "{block}: {mean:?}");
    }
}

#[test]
fn the_same_key_gives_the_same_bytes_and_every_part_of_it_counts() {
    let grad = Input::Normal(8).values(300);
    let codec = codec("qsgd:bits=3,entropy=fixed");
    // The step itself stands in the frame; compare what was drawn.
    let drawn = |key| decoded(&codec, key, &grad);
    let base = key(1, 2, 3);
    assert_eq!(frame(&codec, base, &grad), frame(&codec, base, &grad));
    for other in [
        key(2, 2, 3),
        key(1 + (1 << 32), 2, 3),
        key(1, 3, 3),
        key(1, 2 + (1 << 32), 3),
        key(1, 2, 4),
        StepKey { source: Source::Shared, ..base },
    ] {
        assert_ne!(drawn(other), drawn(base), "{other:?}");
    }
    let unit = |id| [Unit { id, ..Unit::whole(300) }];
    let of_unit = |id| {
        let frame =
            run::encode(&codec, base, &LayoutRef::flat(300), &unit(id), Grad::F32(&grad), None, 0).unwrap();
        run::decode(&frame, &LayoutRef::flat(300)).unwrap()
    };
    assert_ne!(of_unit(0), of_unit(1));
}

/// Errors of two ranks on the same gradient are uncorrelated, so that averaging N workers divides the
/// variance by N.
#[test]
fn ranks_round_independently() {
    let grad = Input::Normal(9).values(64);
    let codec = codec("qsgd:bits=3,bucket=64");
    let (mut product, mut squares) = (0.0, 0.0);
    for step in 0..2000 {
        let error = |rank| -> Vec<f64> {
            decoded(&codec, key(5, step, rank), &grad)
                .iter()
                .zip(&grad)
                .map(|(a, &b)| a - f64::from(b))
                .collect()
        };
        let (a, b) = (error(0), error(1));
        product += a.iter().zip(&b).map(|(a, b)| a * b).sum::<f64>();
        squares += a.iter().map(|a| a * a).sum::<f64>();
    }
    // 2000 · 64 products of independent errors: the correlation has a standard deviation of 1/√128000 at the
    // most.
    assert!((product / squares).abs() < 5.0 / 128_000f64.sqrt() * 2.0, "correlation {}", product / squares);
}

#[test]
fn every_rank_samples_the_same_coordinates_and_no_two_units_do() {
    let grad = vec![1.0; 500];
    for block in BLOCKS {
        samples_are_shared_by_ranks_and_not_by_units(&codec(&format!("randomk:density=0.1,{block}")), &grad);
    }
}

fn samples_are_shared_by_ranks_and_not_by_units(codec: &Codec, grad: &[f32]) {
    let base = decoded(codec, key(1, 2, 0), grad);
    for rank in [1, 2, 77, (1 << 30) - 2] {
        assert_eq!(frame(codec, key(1, 2, rank), grad), frame(codec, key(1, 2, 0), grad));
    }
    assert_ne!(decoded(codec, key(1, 3, 0), grad), base);
    assert_ne!(decoded(codec, key(2, 2, 0), grad), base);
    let units = [0, 1].map(|id| Unit { id, start: 250 * id as usize, len: 250, dense: false });
    let both =
        run::encode(codec, key(1, 2, 0), &LayoutRef::flat(500), &units, Grad::F32(grad), None, 0).unwrap();
    let both = run::decode(&both, &LayoutRef::flat(500)).unwrap();
    assert_ne!(both[..250], both[250..]);
}
