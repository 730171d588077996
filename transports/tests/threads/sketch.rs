//! Sketches, moments and means that all ranks keep alike: over threads, and after a step that failed.

use std::thread;
use std::time::Duration;

use gradwire::state::MemoryChoice;
use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey};
use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{Exchange, Route};
use gradwire_transports::local::LocalTransport;
use gradwire_transports::{Deadline, Transport, local};

/// What ranks keep: first what is the same at all of them.
const ARRAYS: [&str; 8] = [
    "sketched error",
    "sketched momentum",
    "mean of squares",
    "largest mean of squares",
    "mean of estimates",
    "mean of gradients",
    "estimate",
    "momentum",
];
/// Spellings, and how many of their arrays are the same at all ranks.
const CASES: [(&str, usize); 6] = [
    ("sketch:density=0.02", 2),
    ("sketch:cells=0.4,rows=2,momentum=0,unit=tensor", 1),
    ("sketch:density=0.02,unit=tensor,dense_1d", 2),
    ("sharedk:density=0.02,feedback=ef21,momentum=0.5", 1),
    ("sharedk:density=0.02,feedback=ef21,dense_below=100,unit=tensor", 1),
    ("sharedk:density=0.05,by=leader,feedback=ef21,momentum=0,unit=tensor", 1),
];
const STEPS: [u64; 6] = [0, 1, 2, 3, 4, 5];
/// In this step one rank has no gradient.
const BAD: u64 = 3;

fn layout() -> Layout {
    Layout::packed([("w", vec![40, 30]), ("b", vec![30]), ("v", vec![700])]).unwrap()
}

fn gradient(rank: u32, step: u64) -> Vec<f32> {
    let stream = StepKey { seed: 5, step, source: Source::Rank(rank) }.stream(0);
    (0..layout().len() as u64).map(|at| (stream.u64_at(at) as i32 as f32 / 2e9).powi(3)).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Means and arrays after each of the steps, as one rank sees them.
fn run(mut transport: LocalTransport, spelling: &str, route: Route, steps: &[u64]) -> Vec<Vec<Vec<u32>>> {
    let (spec, layout, rank) = (Spec::parse(spelling).unwrap(), layout(), transport.rank().0);
    let keeps_residual = spec.memory == MemoryChoice::ErrorFeedback;
    let mut memory = Memory::for_spec(&spec, &layout.as_ref()).unwrap();
    let may_be_cut = matches!(route, Route::AllReduce { .. }) && spelling.contains("unit=tensor");
    let exchange = Exchange::new(spec, layout.clone(), route).unwrap();
    let mut exchange = if may_be_cut { exchange.pipelined(2).unwrap() } else { exchange };
    let by = Deadline::after(Duration::from_secs(20));
    let mut step = |&step: &u64| {
        let (mut grad, mut mean) = (gradient(rank, step), vec![0.0; layout.len()]);
        if (rank, step) == (1, BAD) {
            // In the last unit, when others have begun.
            grad[layout.len() - 1] = f32::NAN;
        }
        let key = StepKey { seed: 7, step, source: Source::Rank(rank) };
        let done = exchange.start(&mut transport, key, Grad::F32(&grad), Some(&mut memory), by);
        let done = done.and_then(|()| exchange.finish(&mut transport, &mut mean, Some(&mut memory), by));
        assert_eq!(done.is_err(), step == BAD, "rank {rank}, step {step}: {done:?}");
        assert!(keeps_residual || memory.residual().iter().all(|kept| *kept == 0.0));
        let arrays = ARRAYS.iter().filter_map(|name| memory.array(name)).map(bits);
        [bits(&mean)].into_iter().chain(arrays).collect()
    };
    steps.iter().map(&mut step).collect()
}

fn on_threads(spelling: &str, route: &Route, steps: &[u64]) -> Vec<Vec<Vec<Vec<u32>>>> {
    thread::scope(|scope| {
        let run = |end| scope.spawn(move || run(end, spelling, route.clone(), steps));
        let threads: Vec<_> = local::world(3).into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn all_ranks_keep_the_same_and_a_failed_step_leaves_it_as_it_was() {
    let wire = Wire::F32;
    for (spelling, alike) in CASES {
        for route in [Route::AllReduce { wire }, Route::Tree { wire }, Route::Owners { wire }] {
            let seen = on_threads(spelling, &route, &STEPS);
            let without: Vec<u64> = STEPS.into_iter().filter(|&step| step != BAD).collect();
            let undisturbed = on_threads(spelling, &route, &without);
            for (rank, (mut seen, undisturbed)) in seen.iter().cloned().zip(undisturbed).enumerate() {
                let before = &seen[BAD as usize - 1][1..];
                assert_eq!(seen[BAD as usize][1..], *before, "{spelling}, {route:?}: rank {rank}");
                assert!(before[0].iter().any(|&cell| cell != 0), "{spelling}: nothing is kept");
                seen.remove(BAD as usize);
                assert!(seen == undisturbed, "{spelling}, {route:?}: rank {rank}");
            }
            let last = |of: &[Vec<Vec<u32>>]| of[5][..=alike].to_vec();
            assert!(seen.windows(2).all(|pair| last(&pair[0]) == last(&pair[1])), "{spelling}, {route:?}");
        }
    }
}

/// What a rank kept back of a step that failed: its gradient, whole. The moments know nothing of it.
#[test]
fn all_ranks_keep_the_same_moments_and_a_failed_step_leaves_them_as_they_were() {
    let wire = Wire::F32;
    for spelling in [
        "sketch:density=0.02,moments=amsgrad",
        "sketch:cells=0.4,rows=2,moments=amsgrad,momentum=0,unit=tensor",
    ] {
        for route in [Route::AllReduce { wire }, Route::Tree { wire }, Route::Owners { wire }] {
            let seen = on_threads(spelling, &route, &STEPS);
            for (rank, seen) in seen.iter().enumerate() {
                let before = &seen[BAD as usize - 1][1..];
                assert_eq!(seen[BAD as usize][1..], *before, "{spelling}, {route:?}: rank {rank}");
                assert!(before[1].iter().all(|&peak| peak != 0), "{spelling}: moments have begun");
            }
            let shared = |rank: usize, step: usize| seen[rank][step][..3].to_vec();
            let is_alike = |step: usize| (1..3).all(|rank| shared(rank, step) == shared(0, step));
            let holds = STEPS.into_iter().filter(|&step| step != BAD);
            assert!(holds.into_iter().all(|step| is_alike(step as usize)), "{spelling}, {route:?}");
        }
    }
}
