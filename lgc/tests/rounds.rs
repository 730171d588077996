//! The codec over threads: what is sent and what is kept, phases, the gate, failures, resuming, strangers.

use std::sync::Once;
use std::thread;
use std::time::Duration;

use gradwire::rounds::{LinearScratch, Payload, Reduction, UnitStep};
use gradwire::{Codec, Grad, Layout, LayoutRef, Memory, Source, Spec, StepKey, Unit};
use gradwire_lgc::Counts;
use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{Exchange, Route, ServerOptions};
use gradwire_transports::{Deadline, Transport, local};

const WORKERS: u32 = USUAL.workers;

/// Who trains, and on what.
#[derive(Clone, Copy, Debug)]
struct World {
    workers: u32,
    rows: usize,
    seed: u64,
}

const USUAL: World = World { workers: 3, rows: 25, seed: 0 };

fn spec(spelling: &str) -> Spec {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| gradwire_lgc::codec().register().unwrap());
    Spec::parse(spelling).unwrap_or_else(|error| panic!("{error}"))
}

fn uniform(seed: u64, step: u64, at: usize) -> f32 {
    let stream = StepKey { seed, step, source: Source::Shared }.stream(0);
    (stream.u64_at(at as u64) >> 40) as f32 / (1u64 << 24) as f32 - 0.5
}

fn gradient(rank: u32, step: u64) -> Vec<f32> {
    USUAL.gradient(rank, step)
}

impl World {
    fn layout(self) -> Layout {
        Layout::packed([("w", vec![self.rows, 26]), ("b", vec![9])]).unwrap()
    }

    /// Most of it is the same at all workers, which differ by some noise.
    fn gradient(self, rank: u32, step: u64) -> Vec<f32> {
        let draw = |number: u64, at| uniform(1000 * self.seed + number, step, at);
        let value = |at: usize| draw(1, at).powi(3) + 0.01 * draw(2 + u64::from(rank), at);
        (0..self.layout().len()).map(value).collect()
    }
}

/// What one rank has after a step.
struct After {
    mean: Option<Vec<f32>>,
    residual: Vec<f32>,
    counts: Vec<Counts>,
    saved: Vec<u8>,
}

/// What happens before a step.
#[derive(Clone, Copy, PartialEq)]
enum Event {
    Nothing,
    /// The last rank has a value that is not finite.
    Broken,
    /// The last rank forgets all that it kept.
    Forgets,
    /// All ranks go on from what they saved.
    Resumes,
}

fn save(memory: &Memory<'_>, layout: &LayoutRef<'_>) -> Vec<u8> {
    let mut saved = vec![0; memory.saved_bytes().unwrap()];
    memory.save(layout, &mut saved).unwrap();
    saved
}

/// All steps of all ranks: `[rank][step]`.
fn run(spelling: &str, route: &Route, events: &[Event]) -> Vec<Vec<After>> {
    run_in(USUAL, spelling, route, events)
}

fn run_in(world: World, spelling: &str, route: &Route, events: &[Event]) -> Vec<Vec<After>> {
    let (spec, layout) = (spec(spelling), world.layout());
    let one = |mut transport: local::LocalTransport| {
        let rank = transport.rank().0;
        let mut memory = Memory::for_spec(&spec, &layout.as_ref()).unwrap();
        let mut exchange = Exchange::new(spec, layout.clone(), route.clone()).unwrap();
        let by = Deadline::after(Duration::from_secs(60));
        let step = |(step, event): (u64, &Event)| {
            let mut grad = world.gradient(rank, step);
            match event {
                Event::Broken if rank == world.workers - 1 => *grad.last_mut().unwrap() = f32::NAN,
                Event::Forgets if rank == world.workers - 1 => memory.clear(),
                Event::Resumes => {
                    let saved = save(&memory, &layout.as_ref());
                    memory = Memory::for_spec(&spec, &layout.as_ref()).unwrap();
                    memory.load(&layout.as_ref(), &saved).unwrap();
                    exchange = Exchange::new(spec, layout.clone(), route.clone()).unwrap();
                }
                _ => {}
            }
            let key = StepKey { seed: 7, step, source: Source::Rank(rank) };
            let mut mean = vec![0.0; layout.len()];
            let done = exchange.start(&mut transport, key, Grad::F32(&grad), Some(&mut memory), by);
            let done = done.and_then(|()| exchange.finish(&mut transport, &mut mean, Some(&mut memory), by));
            assert_eq!(done.is_err(), *event == Event::Broken, "rank {rank}, step {step}: {done:?}");
            let saved = save(&memory, &layout.as_ref());
            let counts = Counts::of_memory(&memory).collect();
            After { mean: done.ok().map(|_| mean), residual: memory.residual().to_vec(), counts, saved }
        };
        (0..).zip(events).map(step).collect()
    };
    thread::scope(|scope| {
        let spawn = |end| scope.spawn(|| one(end));
        let threads: Vec<_> = local::world(world.workers).into_iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn all_reduce() -> Route {
    Route::AllReduce { wire: Wire::F32 }
}

const QUICK: &str = "x:lgc:top=0.1,dense_steps=2,train_steps=40";

/// With a decoder for each worker.
const APART: &str = "x:lgc:top=0.1,dense_steps=2,train_steps=40,decoders=3";

const INSTANCES: [&str; 2] = [QUICK, APART];

/// A run with all phases.
fn plain() -> Vec<Event> {
    vec![Event::Nothing; 50]
}

/// Runs all steps, and returns how many were decoded.
fn assert_adds_up(world: World, spelling: &str, events: &[Event]) -> f32 {
    let ranks = run_in(world, spelling, &all_reduce(), events);
    let len = world.layout().len();
    let mut kept = vec![vec![0.0; len]; ranks.len()];
    for step in 0..events.len() {
        let mean = ranks[0][step].mean.as_ref().unwrap();
        let grads: Vec<_> = (0..world.workers).map(|rank| world.gradient(rank, step as u64)).collect();
        for at in 0..len {
            let p = kept.iter().zip(&grads).map(|(kept, grad)| f64::from(kept[at]) + f64::from(grad[at]));
            let expected: f64 = p.sum();
            let now: f64 = ranks.iter().map(|rank| f64::from(rank[step].residual[at])).sum();
            let found = now + f64::from(world.workers) * f64::from(mean[at]);
            let what = format!("{spelling}, {world:?}, step {step}, {at}");
            assert!((found - expected).abs() < 2e-5, "{what}: {found}, {expected}");
        }
        kept = ranks.iter().map(|rank| rank[step].residual.clone()).collect();
    }
    ranks[0].last().unwrap().counts[0].decoded
}

#[test]
fn what_is_sent_and_what_all_workers_keep_add_up() {
    for spelling in [QUICK, APART, "x:lgc:top=0.1,dense_steps=2,train_steps=40,order=index"] {
        assert_adds_up(USUAL, spelling, &plain());
    }
}

#[test]
fn it_adds_up_with_any_workers_lengths_and_settings() {
    let mut decoded = 0.0;
    for seed in 1..=12 {
        let below = |at: usize, bound: u64| ((uniform(99, seed, at) + 0.5) * bound as f32) as u64;
        let world = World { workers: 1 + below(0, 5) as u32, rows: 25 + below(1, 12) as usize, seed };
        let decoders = if seed % 2 == 0 { world.workers } else { 0 };
        let spelling = format!(
            "x:lgc:top={},dense_steps={},train_steps={},gate={},order={},unit={},decoders={decoders}",
            ["0.1", "0.13", "0.2"][below(2, 3) as usize],
            below(3, 3),
            1 + below(4, 8),
            ["0.5", "0.99"][below(5, 2) as usize],
            ["value", "index"][below(6, 2) as usize],
            ["model", "tensor"][below(7, 2) as usize],
        );
        let events: Vec<_> =
            (0..14u64).map(|step| if step == seed { Event::Resumes } else { Event::Nothing }).collect();
        decoded += assert_adds_up(world, &spelling, &events);
    }
    assert!(decoded > 20.0, "{decoded} steps were decoded");
}

#[test]
fn it_goes_through_its_phases_and_all_ranks_decide_alike() {
    let routes = [all_reduce(), Route::Tree { wire: Wire::F32 }, Route::Owners { wire: Wire::F32 }];
    let served = Route::Server(ServerOptions::default());
    let cases =
        routes.into_iter().map(|route| (QUICK, route)).chain([(APART, all_reduce()), (APART, served)]);
    for (spelling, route) in cases {
        let ranks = run(spelling, &route, &plain());
        let held = |step: usize| ranks[0][step].mean.as_ref().unwrap().iter().filter(|v| **v != 0.0).count();
        assert_eq!((held(1), held(2)), (659, 66), "dense, then the share that is sent");
        for step in 0..plain().len() {
            for rank in &ranks {
                assert_eq!(rank[step].mean, ranks[0][step].mean, "step {step}");
                assert_eq!(rank[step].counts, ranks[0][step].counts, "step {step}");
            }
        }
        let last = ranks[0].last().unwrap().counts[0];
        assert_eq!(last.decoded + last.refused, 8.0, "{route:?}: {last:?}");
        assert_eq!(last.trained, 40.0 + last.refused, "what is refused is learned from");
        // The gate judges each worker's values, and more decoders learn more slowly.
        assert!(last.decoded >= if spelling == APART { 2.0 } else { 6.0 }, "{last:?}");
    }
}

#[test]
fn a_gate_that_lets_nothing_pass_leaves_the_values_as_they_are() {
    for decoders in [0, 3] {
        let spelling = format!("x:lgc:top=0.1,dense_steps=0,train_steps=1,gate=0,decoders={decoders}");
        let ranks = run(&spelling, &all_reduce(), &[Event::Nothing; 4]);
        for (step, after) in ranks[0].iter().enumerate() {
            let last = after.counts[0];
            assert_eq!((last.decoded, last.refused), (0.0, step as f32));
            assert_eq!(last.trained, 1.0 + step as f32);
        }
        // At the coordinates that were sent, nothing is kept.
        let after = &ranks[0][3];
        let sent = after.mean.as_ref().unwrap().iter().zip(&after.residual).filter(|(mean, _)| **mean != 0.0);
        assert!(sent.map(|(_, kept)| *kept).all(|kept| kept == 0.0));
    }
}

#[test]
fn a_step_that_fails_changes_no_array_and_keeps_the_gradient() {
    for (spelling, broken) in [(QUICK, 1), (QUICK, 20), (QUICK, 46), (APART, 46)] {
        let mut events = plain();
        events[broken] = Event::Broken;
        let ranks = run(spelling, &all_reduce(), &events);
        for (rank, after) in (0..).zip(&ranks).filter(|(rank, _)| *rank < WORKERS - 1) {
            assert!(after[broken].mean.is_none());
            assert_eq!(after[broken].counts, after[broken - 1].counts);
            let added = after[broken - 1].residual.iter().zip(gradient(rank, broken as u64));
            assert!(
                after[broken].residual.iter().zip(added).all(|(now, (before, grad))| *now == before + grad)
            );
        }
    }
}

#[test]
fn it_goes_on_from_what_was_saved_to_the_same_bits() {
    for spelling in INSTANCES {
        let mut events = plain();
        let expected = run(spelling, &all_reduce(), &events);
        for step in [1, 2, 30, 45] {
            events[step] = Event::Resumes;
        }
        for (resumed, expected) in run(spelling, &all_reduce(), &events).iter().zip(&expected) {
            for (resumed, expected) in resumed.iter().zip(expected) {
                assert!(resumed.mean == expected.mean && resumed.saved == expected.saved);
            }
        }
    }
}

#[test]
fn a_rank_that_lost_its_autoencoder_makes_all_begin_again_together() {
    for (spelling, forgets) in [(QUICK, 20), (QUICK, 45), (APART, 45)] {
        let mut events = plain();
        events[forgets] = Event::Forgets;
        let ranks = run(spelling, &all_reduce(), &events);
        for (step, first) in ranks[0].iter().enumerate() {
            assert!(ranks.iter().all(|rank| rank[step].mean == first.mean), "step {step}");
            let trained = ranks.iter().map(|rank| rank[step].counts[0].trained);
            assert!(trained.clone().all(|trained| trained == first.counts[0].trained));
        }
        assert_eq!(ranks[0][forgets].counts[0].trained, 1.0);
    }
}

#[test]
fn a_unit_that_latents_would_not_shorten_is_sent_whole() {
    let ranks = run("x:lgc:top=0.05,dense_steps=0", &all_reduce(), &[Event::Nothing; 2]);
    assert!(ranks[0][1].residual.iter().all(|kept| *kept == 0.0));
}

/// What others send may be anything: every round ends, without a panic.
#[test]
fn any_bytes_from_others_lead_to_an_end() {
    let (layout, unit) = (LayoutRef::flat(1000), Unit::whole(1000));
    for round in 0..40 {
        let decoders = if round % 2 == 0 { 0 } else { 2 };
        let spec = spec(&format!("x:lgc:top=0.1,dense_steps=0,train_steps=0,gate=0.9,decoders={decoders}"));
        let Codec::Linear(codec) = &spec.codec else { panic!("a linear codec") };
        let codec = codec.rounds();
        let mut memory = Memory::for_spec(&spec, &layout).unwrap();
        let key = StepKey { seed: 1, step: 600, source: Source::Rank(1) };
        let step = UnitStep { key, layout: &layout, unit: &unit, workers: 2, place: 1 };
        let needed = codec.round_scratch_len(&layout, &unit, 2);
        let (mut words, mut floats, mut ints) =
            (vec![0; needed.words], vec![0.0; needed.floats], vec![0; needed.ints]);
        let mut scratch = LinearScratch { words: &mut words, floats: &mut floats, ints: &mut ints };
        let grad: Vec<f32> = (0..1000).map(|at| uniform(1, round, at)).collect();
        let view = memory.view(0..1000);
        let mut next = codec.begin(&step, Grad::F32(&grad), Some(view), &mut scratch).ok();
        let mut rounds = 0;
        while let Some(now) = next {
            let draws = StepKey { seed: round, step: rounds, source: Source::Shared }.stream(0);
            match codec.payload(&now, &mut scratch) {
                Payload::Bytes(bytes) => {
                    bytes.iter_mut().zip(0..).for_each(|(byte, at)| *byte = draws.u64_at(at) as u8);
                }
                Payload::F32(sums) => {
                    let sum = |at| f32::from_bits(draws.u64_at(at) as u32);
                    sums.iter_mut().zip(0..).for_each(|(float, at)| *float = sum(at));
                }
                other => panic!("{other:?}"),
            }
            assert!(rounds < 3 && now.index == rounds as u32 && now.reduction != Reduction::SumI32);
            next = codec.advance(&step, now, &mut scratch, &mut vec![0.0; 1000], Some(&mut memory));
            rounds += 1;
        }
    }
}
