//! Linear codecs of more than one round, over several workers, against the naive reference.

use gradwire::codecs::MaxNorm;
use gradwire::registry::LinearCodec;
use gradwire::rounds::{LinearScratch, MemoryView};
use gradwire::state::MemoryChoice;
use gradwire::{Codec, EncodeError, Grad, LayoutRef, Memory, Source, Spec, StepKey, Unit};
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

/// Every variant: one scale or two, all coordinates or a block, both roundings.
fn variants() -> Vec<String> {
    let scales = [
        "bits=2",
        "bits=3",
        "bits=4",
        "bits=8",
        "levels=64",
        "levels=5",
        "bits=2+6",
        "bits=4+8",
        "bits=8+16",
    ];
    let rest = [
        "",
        ",rounding=nearest",
        ",density=0.1",
        ",density=0.4,rounding=stochastic",
        ",sigmas=1.5",
        ",sigmas=0.1,rounding=nearest",
    ];
    scales.iter().flat_map(|scales| rest.map(|rest| format!("maxnorm:{scales}{rest}"))).collect()
}

/// The residual of each worker, if the spelling asks for one.
fn memories(spelling: &str, residuals: &[Vec<f32>]) -> Vec<Memory<'static>> {
    let keeps = Spec::parse(spelling).unwrap().memory == MemoryChoice::ErrorFeedback;
    residuals.iter().filter(|_| keeps).map(|residual| Memory::new(residual.clone())).collect()
}

fn sums(memories: &[Memory<'_>], grads: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let p = |(rank, grad): (usize, &Vec<f32>)| match memories.get(rank) {
        Some(memory) => memory.residual().iter().zip(grad).map(|(kept, g)| kept + g).collect(),
        None => grad.clone(),
    };
    grads.iter().enumerate().map(p).collect()
}

#[test]
fn max_norm_sends_and_keeps_what_the_reference_does() {
    for spelling in variants() {
        let linear = linear(&spelling);
        let LinearCodec::MaxNorm(codec) = linear else { panic!("{spelling}") };
        for (workers, n) in [(1, 1), (1, 77), (2, 5), (3, 1024), (4, 2500), (5, 3100), (17, 64), (40, 9)] {
            let unit = Unit { id: 3, ..Unit::whole(n) };
            let residuals = (0..workers).map(|i| Input::Normal(90 + i as u64).values(n)).collect::<Vec<_>>();
            let mut memories = memories(&spelling, &residuals);
            for step in 4..7 {
                let grads = grads(workers, n);
                let p = sums(&memories, &grads);
                let (layout, codec_rounds) = (LayoutRef::flat(n), linear.rounds());
                let (mean, payloads) =
                    rounds::step(codec_rounds, key(step), &layout, &unit, &grads, &mut memories, false);
                let (expected, kept) = naive::maxnorm::step(&codec, key(step), 3, &p);
                assert_eq!(bits(&mean), bits(&expected), "{spelling}: {workers} workers, {n} coordinates");
                for (memory, kept) in memories.iter().zip(&kept) {
                    assert_eq!(bits(memory.residual()), bits(kept), "{spelling}: {n} coordinates are kept");
                }
                assert_eq!(payloads.len(), 2 + usize::from(spelling.contains('+')), "{spelling}");
                assert_eq!(payloads[0], 1, "the range is one number");
            }
        }
    }
}

/// kept = p − sent in every worker, so what all sent, N times the mean, and what all keep is the sum of p.
/// Nothing that is kept of what was sent exceeds half of the widest level.
#[test]
fn max_norm_with_error_feedback_loses_nothing_and_keeps_less_than_half_a_level() {
    for spelling in variants().into_iter().filter(|spelling| linear_keeps(spelling)) {
        let linear = linear(&spelling);
        let LinearCodec::MaxNorm(codec) = linear else { panic!("{spelling}") };
        let (workers, n) = (3usize, 500);
        let (unit, layout) = (Unit::whole(n), LayoutRef::flat(n));
        let mut memories = memories(&spelling, &vec![vec![0.0; n]; workers]);
        for step in 0..20 {
            let grads: Vec<_> = (0..workers).map(|i| Input::Heavy(7 * step + i as u64).values(n)).collect();
            let p = sums(&memories, &grads);
            let (mean, _) =
                rounds::step(linear.rounds(), key(step), &layout, &unit, &grads, &mut memories, false);
            let range = p.iter().flatten().fold(0.0f32, |max, p| max.max(p.abs()));
            let half = f64::from(range) / f64::from(codec.bits().levels()) / 2.0;
            for i in 0..n {
                let of_all =
                    |values: &dyn Fn(usize) -> f32| (0..workers).map(|w| f64::from(values(w))).sum::<f64>();
                let before = of_all(&|w| p[w][i]);
                let kept = of_all(&|w| memories[w].residual()[i]);
                let largest = p.iter().fold(0.0f64, |max, p| max.max(f64::from(p[i].abs())));
                let error = (before - kept - workers as f64 * f64::from(mean[i])).abs();
                assert!(
                    error <= 1e-5 * f64::from(range),
                    "{spelling}: {error} of {i} is lost at step {step}"
                );
                for memory in &memories {
                    let kept = f64::from(memory.residual()[i].abs());
                    assert!(kept <= (half * 1.0001).max(largest), "{spelling}: {kept} of {i} is kept");
                    assert!(codec.density().is_some() || kept <= half * 1.0001, "{spelling}: {kept} of {i}");
                }
            }
        }
    }
}

/// TernGrad with a shared scaler: sums of two workers lie in −2 … 2, which takes three bits.
#[test]
fn ternary_levels_of_a_shared_range_are_summed_in_three_bits() {
    let codec = linear("maxnorm:bits=2,sigmas=2.5");
    for (n, words) in [(2, 1), (10, 1), (11, 2), (20, 2)] {
        let grad: Vec<f32> = (0..n).map(|i| if i % 2 == 0 { 4.0 } else { -4.0 }).collect();
        let grads = [grad.clone(), grad.clone()];
        let (layout, unit) = (LayoutRef::flat(n), Unit::whole(n));
        let (mean, payloads) = rounds::mean(codec.rounds(), key(1), &layout, &unit, &grads);
        assert_eq!((mean, payloads), (grad, vec![1, words]));
    }
}

/// Who has tails shares no more than its c; who has larger values than R sends R.
#[test]
fn the_shared_range_is_the_largest_that_a_worker_is_left_with() {
    let codec = linear("maxnorm:bits=8,sigmas=1.5");
    let mut tailed = vec![1.0; 100];
    tailed.iter_mut().step_by(2).for_each(|value| *value = -1.0);
    tailed[7] = -50.0;
    let sigma = ((99.0 + 2500.0) / 100.0 - 0.51f64.powi(2)).sqrt();
    let (layout, unit) = (LayoutRef::flat(100), Unit::whole(100));
    let (mean, _) = rounds::mean(codec.rounds(), key(1), &layout, &unit, &[tailed.clone(), vec![2.0; 100]]);
    // 1.5·σ is above 2, so it is R.
    let expected = (2.0 - 1.5 * sigma) / 2.0;
    assert!((f64::from(mean[7]) - expected).abs() < 0.05 * sigma, "{} is not {expected}", mean[7]);
}

fn linear_keeps(spelling: &str) -> bool {
    Spec::parse(spelling).unwrap().memory == MemoryChoice::ErrorFeedback
}

#[test]
fn what_a_block_does_not_send_is_zero_in_the_mean_and_stays_whole_in_the_residual() {
    let (workers, n, k) = (3, 103, 10);
    for spelling in ["maxnorm:bits=4,density=0.1", "maxnorm:bits=8,density=0.1,rounding=stochastic"] {
        let (codec, unit, layout) = (linear(spelling), Unit::whole(n), LayoutRef::flat(n));
        let mut memories = memories(spelling, &vec![vec![0.0; n]; workers]);
        // 103 coordinates in blocks of 10 are 11 steps a sweep.
        let (mut sent, mut blocks) = (vec![0u32; n], Vec::new());
        for step in 0..22 {
            let grads: Vec<_> = (0..workers).map(|i| Input::Range(50 * step + i as u64).values(n)).collect();
            let (p, grads) = (sums(&memories, &grads), grads);
            let (mean, payloads) =
                rounds::step(codec.rounds(), key(step), &layout, &unit, &grads, &mut memories, false);
            let (_, kept) = naive::maxnorm::step(&maxnorm(spelling), key(step), 0, &p);
            let block: Vec<usize> =
                (0..n).filter(|&i| kept.iter().zip(&p).any(|(kept, p)| kept[i] != p[i])).collect();
            assert!(block.len() <= k && payloads[1] <= k);
            for i in (0..n).filter(|i| !block.contains(i)) {
                assert_eq!(mean[i].to_bits(), 0, "{spelling}: coordinate {i} of step {step} is local");
                for (memory, p) in memories.iter().zip(&p) {
                    assert_eq!(memory.residual()[i].to_bits(), p[i].to_bits(), "{spelling}: {i}");
                }
            }
            mean.iter().zip(&mut sent).for_each(|(mean, sent)| *sent += u32::from(*mean != 0.0));
            blocks.push(block);
        }
        assert!(blocks[..11] != blocks[11..], "each sweep has an order of its own");
    }
}

fn maxnorm(spelling: &str) -> MaxNorm {
    let LinearCodec::MaxNorm(codec) = linear(spelling) else { panic!("{spelling}") };
    codec
}

/// All values are the range itself, so every level that is sent is the largest.
#[test]
fn a_sweep_sends_every_coordinate_and_the_last_block_begins_k_before_the_end() {
    for (n, density) in [(103, "0.1"), (1, "0.5"), (10, "1"), (64, "0.25"), (1000, "0.003")] {
        let codec = linear(&format!("maxnorm:bits=2,density={density},rounding=stochastic"));
        let (unit, layout) = (Unit::whole(n), LayoutRef::flat(n));
        let k = codec.rounds().held(n);
        let blocks = n.div_ceil(k);
        for sweep in 0..3 {
            let mut times = vec![0; n];
            for step in 0..blocks {
                let step = (sweep * blocks + step) as u64;
                let (mean, _) = rounds::mean(codec.rounds(), key(step), &layout, &unit, &[vec![1.0; n]]);
                assert_eq!(mean.iter().filter(|&&mean| mean == 1.0).count(), k, "{n}, {density}");
                times.iter_mut().zip(&mean).for_each(|(times, mean)| *times += u32::from(*mean == 1.0));
            }
            assert_eq!(times.iter().filter(|&&times| times == 2).count(), blocks * k - n, "{n}, {density}");
            assert!(times.iter().all(|times| [1, 2].contains(times)), "{n}, {density}: {times:?}");
        }
    }
}

#[test]
fn a_coordinate_is_rounded_finely_only_where_no_worker_has_more_than_a_level_holds() {
    // R = 1, s = 7, s' = 127: up to 7/127 = 0.0551 a coordinate is a multiple of 1/127.
    let codec = linear("maxnorm:bits=4+8,rounding=nearest");
    let grads = [vec![1.0, 0.05, 0.05, 7.0 / 127.0], vec![0.0, -0.03, 0.06, 0.0]];
    let (unit, layout) = (Unit::whole(4), LayoutRef::flat(4));
    let (mean, payloads) = rounds::mean(codec.rounds(), key(0), &layout, &unit, &grads);
    let expected = [0.5, (6.0 - 4.0) / 127.0 / 2.0, 0.0, 7.0 / 127.0 / 2.0];
    for (mean, expected) in mean.iter().zip(expected) {
        assert!((f64::from(*mean) - expected).abs() < 1e-7, "{mean} in place of {expected}");
    }
    // The sum of two levels of at most 7 has 28 values apart from 0: 5 bits, 6 a word.
    assert_eq!(payloads, [1, 1, 1]);
}

#[test]
fn two_scales_lose_less_than_one_at_a_bit_more_a_coordinate() {
    let (workers, n) = (4, 4000);
    let grads: Vec<_> = (0..workers).map(|i| Input::Heavy(i).values(n)).collect();
    let (unit, layout) = (Unit::whole(n), LayoutRef::flat(n));
    let error = |spelling: &str| {
        let (mean, payloads) = rounds::mean(linear(spelling).rounds(), key(1), &layout, &unit, &grads);
        let exact = |i: usize| grads.iter().map(|grad| f64::from(grad[i])).sum::<f64>() / workers as f64;
        let error: f64 = mean.iter().enumerate().map(|(i, &mean)| (f64::from(mean) - exact(i)).powi(2)).sum();
        (error, payloads.iter().sum::<usize>())
    };
    let (one, two) = (error("maxnorm:bits=4"), error("maxnorm:bits=4+8"));
    assert!(two.0 < one.0 / 4.0, "{two:?}, {one:?}");
    assert_eq!(two.1, one.1 + n / 32);
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

/// An exchange refuses more workers than this by name.
#[test]
fn max_norm_takes_as_many_workers_as_an_i32_has_room_for_their_levels() {
    for spelling in variants() {
        let (codec, s) = (linear(&spelling), u64::from(maxnorm(&spelling).bits().levels()));
        let most = u64::from(codec.rounds().most_contributors());
        assert!(2 * most * s < 1 << 31 && 2 * (most + 1) * s >= 1 << 31, "{spelling}: {most} workers");
    }
}

#[test]
fn max_norm_is_unbiased() {
    let (n, trials) = (64, 4000u64);
    let counted =
        [("levels=64", 64.0), ("levels=16", 16.0), ("levels=4", 4.0), ("levels=5", 5.0), ("levels=1", 1.0)];
    // With two scales, the variance is no larger than that of the coarse one.
    for (key_of_levels, s) in
        [("bits=3", 3.0), ("bits=3+5", 3.0), ("bits=4+12", 7.0)].into_iter().chain(counted)
    {
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
        for spelling in ["maxnorm", "maxnorm:bits=4+8", "maxnorm:bits=2+16,density=0.5,rounding=stochastic"] {
            let (mean, _) = rounds::mean(linear(spelling).rounds(), key(1), &layout, &unit, &grads);
            assert!(mean.iter().all(|&value| value == 0.0), "{spelling}");
        }
    }
}

#[test]
fn max_norm_refuses_what_it_cannot_round_and_takes_no_memory() {
    let (codec, unit, layout) = (linear("maxnorm"), Unit { start: 5, ..Unit::whole(4) }, LayoutRef::flat(9));
    let needed = codec.rounds().round_scratch_len(&layout, &unit, 1);
    let begin = |grad: &[f32], residual: Option<&[f32]>, less: usize| {
        let memory = residual.map(MemoryView::new);
        let (mut words, mut floats) = (vec![0; needed.words - less], vec![0.0; needed.floats]);
        let mut ints = vec![0; needed.ints];
        let mut scratch = LinearScratch { words: &mut words, floats: &mut floats, ints: &mut ints };
        codec
            .rounds()
            .begin(&rounds::alone(key(1), &layout, &unit), Grad::F32(grad), memory, &mut scratch)
            .map(|_| ())
    };
    assert_eq!(begin(&[1.0; 4], None, 0), Ok(()));
    assert_eq!(begin(&[1.0; 4], None, 1), Err(EncodeError::LinearScratchTooSmall { needed }));
    assert_eq!(begin(&[1.0; 4], Some(&[0.0; 4]), 0), Err(EncodeError::MemoryRefused));
    assert_eq!(begin(&[1.0, 2.0, f32::NAN, 0.0], None, 0), Err(EncodeError::NonFiniteInput { index: 7 }));
    assert_eq!(begin(&[1.0, f32::MAX, 1.0, 0.0], None, 0), Err(EncodeError::ValueOverflow { index: 6 }));
}
