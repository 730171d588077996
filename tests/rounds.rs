//! Linear codecs of more than one round, over several workers, against the naive reference.

use gradwire::registry::LinearCodec;
use gradwire::rounds::{LinearScratch, MemoryView};
use gradwire::{Codec, EncodeError, Grad, LayoutRef, Source, Spec, StepKey, Unit};
use gradwire_tests::inputs::Input;
use gradwire_tests::{naive, rounds};

fn linear(spelling: &str) -> LinearCodec {
    let Codec::Linear(linear) = Spec::parse(spelling).unwrap().codec else {
        panic!("{spelling} is not linear")
    };
    linear
}

fn key(step: u64) -> StepKey {
    StepKey { seed: 11, step, source: Source::Shared }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// What `workers` hold: of one kind, but of different scales, so that their ranges differ.
fn grads(workers: usize, n: usize) -> Vec<Vec<f32>> {
    (0..workers)
        .map(|i| Input::Normal(i as u64).values(n).iter().map(|g| g * (1 + i) as f32).collect())
        .collect()
}

#[test]
fn max_norm_sums_the_levels_that_the_reference_sums() {
    let by_bits = [("bits=2", 1), ("bits=3", 3), ("bits=4", 7), ("bits=8", 127)];
    let counted = [("levels=64", 64), ("levels=16", 16), ("levels=4", 4), ("levels=5", 5), ("levels=1", 1)];
    for (key_of_levels, s) in by_bits.into_iter().chain(counted) {
        let codec = linear(&format!("maxnorm:{key_of_levels}"));
        for (workers, n) in [(1, 1), (1, 77), (2, 5), (3, 1024), (4, 2500), (5, 3100), (17, 64), (40, 9)] {
            let unit = Unit { id: 3, ..Unit::whole(n) };
            let grads = grads(workers, n);
            let (mean, payloads) = rounds::mean(codec.rounds(), key(4), &LayoutRef::flat(n), &unit, &grads);
            let expected = naive::maxnorm::mean(s, key(4), 3, &grads);
            assert_eq!(bits(&mean), bits(&expected), "{workers} workers, {n} coordinates, {key_of_levels}");
            assert_eq!(payloads.len(), 2);
            assert_eq!(payloads[0], 1, "the range is one number");
        }
    }
}

#[test]
fn max_norm_sends_as_many_levels_a_word_as_their_sum_allows() {
    // 2·N·s = 56 needs 6 bits: 5 a word. With 2 bits and 2 workers, 4 needs 3: 10. With 8 bits and 100
    // workers, 15. With 5 levels and 3 workers, 30 needs 5: 6 a word, of which 7 levels would have 5.
    for (spelling, workers, words) in [
        ("maxnorm:bits=4", 4, 200),
        ("maxnorm:bits=2", 2, 100),
        ("maxnorm:bits=8", 100, 500),
        ("maxnorm:levels=5", 3, 167),
        ("maxnorm:levels=7", 3, 200),
    ] {
        let unit = Unit::whole(1000);
        let (_, payloads) = rounds::mean(
            linear(spelling).rounds(),
            key(0),
            &LayoutRef::flat(1000),
            &unit,
            &grads(workers, 1000),
        );
        assert_eq!(payloads, [1, words], "{spelling}");
    }
}

#[test]
fn max_norm_is_unbiased() {
    let (n, trials) = (64, 4000u64);
    let counted =
        [("levels=64", 64.0), ("levels=16", 16.0), ("levels=4", 4.0), ("levels=5", 5.0), ("levels=1", 1.0)];
    for (key_of_levels, s) in [("bits=3", 3.0)].into_iter().chain(counted) {
        let codec = linear(&format!("maxnorm:{key_of_levels}"));
        let (unit, layout) = (Unit::whole(n), LayoutRef::flat(n));
        let grads = grads(2, n);
        let range = grads.iter().flatten().fold(0.0f64, |max, &g| max.max(f64::from(g.abs())));
        let mut sums = vec![0.0f64; n];
        for step in 0..trials {
            let (mean, _) = rounds::mean(codec.rounds(), key(step), &layout, &unit, &grads);
            sums.iter_mut().zip(mean).for_each(|(sum, value)| *sum += f64::from(value));
        }
        // The variance of one rounding is at most (R/s)²/4; the mean of two workers has half of it.
        let sigma = (range / s / 2.0) / (2.0 * trials as f64).sqrt();
        for (i, sum) in sums.iter().enumerate() {
            let expected = (f64::from(grads[0][i]) + f64::from(grads[1][i])) / 2.0;
            assert!((sum / trials as f64 - expected).abs() < 5.0 * sigma, "{key_of_levels}: coordinate {i}");
        }
    }
}

#[test]
fn max_norm_of_nothing_is_nothing() {
    for grads in [vec![vec![0.0; 9]; 3], vec![vec![f32::MIN_POSITIVE; 9]; 2], vec![Vec::new(); 2]] {
        let unit = Unit::whole(grads[0].len());
        let layout = LayoutRef::flat(unit.len);
        let (mean, _) = rounds::mean(linear("maxnorm").rounds(), key(1), &layout, &unit, &grads);
        assert!(mean.iter().all(|&value| value == 0.0));
    }
}

#[test]
fn max_norm_refuses_what_it_cannot_round_and_takes_no_memory() {
    let (codec, unit, layout) = (linear("maxnorm"), Unit { start: 5, ..Unit::whole(4) }, LayoutRef::flat(9));
    let needed = codec.rounds().round_scratch_len(4);
    let begin = |grad: &[f32], residual: Option<&[f32]>, less: usize| {
        let memory = residual.map(MemoryView::new);
        let (mut words, mut floats) = (vec![0; needed.words - less], vec![0.0; needed.floats]);
        let mut ints = vec![0; needed.ints];
        let mut scratch = LinearScratch { words: &mut words, floats: &mut floats, ints: &mut ints };
        codec.rounds().begin(key(1), &layout, &unit, Grad::F32(grad), memory, &mut scratch).map(|_| ())
    };
    assert_eq!(begin(&[1.0; 4], None, 0), Ok(()));
    assert_eq!(begin(&[1.0; 4], None, 1), Err(EncodeError::LinearScratchTooSmall { needed }));
    assert_eq!(begin(&[1.0; 4], Some(&[0.0; 4]), 0), Err(EncodeError::MemoryRefused));
    assert_eq!(begin(&[1.0, 2.0, f32::NAN, 0.0], None, 0), Err(EncodeError::NonFiniteInput { index: 7 }));
    assert_eq!(begin(&[1.0, f32::MAX, 1.0, 0.0], None, 0), Err(EncodeError::ValueOverflow { index: 6 }));
}
