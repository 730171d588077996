//! Rounds that copy instead of summing: what one worker sends to all, and what all workers send to all.

use std::thread;
use std::time::Duration;

use gradwire::{Grad, Layout, Memory, Source, StepKey};
use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{Exchange, Route};
use gradwire_transports::local::LocalTransport;
use gradwire_transports::{Deadline, Transport, local};

use crate::common::led;

const STEPS: u64 = 5;
/// In this step the last rank has no gradient.
const BAD: u64 = 2;

fn layout(len: usize) -> Layout {
    Layout::packed([("v", vec![len / 3]), ("w", vec![len - len / 3])]).unwrap()
}

fn key(rank: u32, step: u64) -> StepKey {
    StepKey { seed: 4, step, source: Source::Rank(rank) }
}

fn gradient(rank: u32, step: u64, len: usize) -> Vec<f32> {
    let stream = key(rank, step).stream(0);
    (0..len as u64).map(|at| (stream.u64_at(at) as i32 >> 16) as f32 / 64.0).collect()
}

/// The bits of a mean, if there is one, and of what the rank keeps after the step.
type Seen = (Option<Vec<u32>>, Vec<u32>);

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// What a rank has after each step, one after the other, of all ranks.
fn naive(spelling: &str, world: u32, len: usize) -> Vec<Vec<Seen>> {
    let units: Vec<_> = led::spec(spelling).units.units(&layout(len).as_ref()).collect();
    let mut kept = vec![vec![0.0; len]; world as usize];
    let mut seen = vec![Vec::new(); world as usize];
    for step in 0..STEPS {
        let mut mean = vec![0.0; len];
        for (rank, kept) in (0..).zip(&mut kept) {
            kept.iter_mut().zip(gradient(rank, step, len)).for_each(|(kept, grad)| {
                *kept += if step == BAD && rank == world - 1 { 0.0 } else { grad };
            });
        }
        for unit in units.iter().filter(|_| step != BAD) {
            let leader = led::leader(key(0, step), unit.id, world) as usize;
            for at in led::largest(&kept[leader][unit.range()]) {
                let at = unit.start + at as usize;
                let all = kept.iter_mut().map(|kept| std::mem::replace(&mut kept[at], 0.0));
                mean[at] = all.reduce(|sum, value| sum + value).unwrap() / world as f32;
            }
        }
        for (seen, kept) in seen.iter_mut().zip(&kept) {
            seen.push(((step != BAD).then(|| bits(&mean)), bits(kept)));
        }
    }
    seen
}

fn run(mut transport: LocalTransport, spelling: &str, route: Route, len: usize) -> Vec<Seen> {
    let (spec, layout, rank) = (led::spec(spelling), layout(len), transport.rank().0);
    let is_last = transport.membership().world() as u32 == rank + 1;
    let mut memory = Memory::for_spec(&spec, &layout.as_ref()).unwrap();
    let mut exchange = Exchange::new(spec, layout, route).unwrap();
    let by = Deadline::after(Duration::from_secs(20));
    let mut step = |step: u64| {
        let (mut grad, mut mean) = (gradient(rank, step, len), vec![f32::NAN; len]);
        if is_last && step == BAD {
            grad[len - 1] = f32::INFINITY;
        }
        let done = exchange.start(&mut transport, key(rank, step), Grad::F32(&grad), Some(&mut memory), by);
        let done = done.and_then(|()| exchange.finish(&mut transport, &mut mean, Some(&mut memory), by));
        (done.is_ok().then(|| bits(&mean)), bits(memory.residual()))
    };
    (0..STEPS).map(&mut step).collect()
}

#[test]
fn what_one_worker_and_all_workers_send_reaches_all_on_every_route() {
    let routes = [
        Route::AllReduce { wire: Wire::Bf16 },
        Route::Tree { wire: Wire::F32 },
        Route::Owners { wire: Wire::Bf16 },
    ];
    for (spelling, route) in
        ["x:led", "x:led:unit=tensor"].iter().flat_map(|spelling| routes.iter().map(move |r| (spelling, r)))
    {
        for (world, len) in [(1, 20), (2, 3), (3, 100), (4, 61), (5, 7), (7, 200), (8, 1000)] {
            let spawn = |end| {
                let route = route.clone();
                thread::spawn(move || run(end, spelling, route, len))
            };
            let threads: Vec<_> = local::world(world).into_iter().map(spawn).collect();
            let seen: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            assert!(seen == naive(spelling, world, len), "{spelling}, {route:?} of {world}, {len}");
        }
    }
}

/// An all-reduce of the same payloads would take 6,000 and 24,000 bytes.
#[test]
fn a_rank_sends_no_part_that_the_receiver_has() {
    let (world, len) = (4, 4000);
    let sent = |route: &Route| -> Vec<u64> {
        let spawn = |mut end: LocalTransport| {
            let (spec, route) = (led::spec("x:led"), route.clone());
            thread::spawn(move || {
                let mut memory = Memory::for_spec(&spec, &layout(len).as_ref()).unwrap();
                let mut exchange = Exchange::new(spec, layout(len), route).unwrap();
                let (rank, mut mean) = (end.rank().0, vec![0.0; len]);
                let (grad, by) = (gradient(rank, 0, len), Deadline::NEVER);
                exchange.start(&mut end, key(rank, 0), Grad::F32(&grad), Some(&mut memory), by).unwrap();
                exchange.finish(&mut end, &mut mean, Some(&mut memory), by).unwrap();
                end.counters().up.payload_bytes
            })
        };
        let ends: Vec<_> = local::world(world).into_iter().map(spawn).collect();
        ends.into_iter().map(|end| end.join().unwrap()).collect()
    };
    for route in [Route::AllReduce { wire: Wire::F32 }, Route::Owners { wire: Wire::F32 }] {
        let most = sent(&route).into_iter().max().unwrap();
        // Of the positions a quarter in each of 2(N-1) hops, and N-1 parts of the values.
        assert!((18_000..18_100).contains(&most), "{route:?}: {most}");
    }
}
