//! The same frames make the same mean, bit for bit, as in one process.

use std::thread;

use gradwire::state::MemoryChoice;
use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey};
use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{Exchange, Route, ServerOptions};
use gradwire_transports::{Transport, local};

use crate::support::{World, boxed, long};

const STEPS: u64 = 3;

fn layout() -> Layout {
    Layout::packed([("w", vec![90, 70]), ("b", vec![70])]).unwrap()
}

fn key(rank: u32, step: u64) -> StepKey {
    StepKey { seed: 7, step, source: Source::Rank(rank) }
}

fn gradient(rank: u32, step: u64, len: usize) -> Vec<f32> {
    let stream = key(rank + 100, step).stream(0);
    let cube = |x: f32| x * x * x * 16.0;
    (0..len as u64).map(|at| cube(stream.u64_at(at) as u32 as f32 / u32::MAX as f32 - 0.5)).collect()
}

/// The bits of every mean at every rank, and of every residual.
fn run(transports: Vec<Box<dyn Transport>>, spec: &str, route: &Route) -> Vec<Vec<u32>> {
    let work = |mut transport: Box<dyn Transport>| {
        let (spec, layout) = (Spec::parse(spec).unwrap(), layout());
        let len = layout.len();
        let keeps = spec.memory == MemoryChoice::ErrorFeedback;
        let mut exchange = Exchange::new(spec, layout, route.clone()).unwrap();
        let (mut residual, mut mean, mut bits) = (vec![0.0; len], vec![0.0; len], Vec::new());
        for step in 0..STEPS {
            let rank = transport.rank().0;
            let grad = gradient(rank, step, len);
            let mut memory = Memory::new(&mut residual);
            let mut memory = keeps.then_some(&mut memory);
            let end = transport.as_mut();
            exchange.start(end, key(rank, step), Grad::F32(&grad), memory.as_deref_mut(), long()).unwrap();
            exchange.finish(end, &mut mean, memory, long()).unwrap();
            bits.extend(mean.iter().map(|value: &f32| value.to_bits()));
        }
        bits.extend(residual.iter().map(|value| value.to_bits()));
        transport.close(long()).unwrap();
        bits
    };
    thread::scope(|scope| {
        let ends: Vec<_> = transports.into_iter().map(|end| scope.spawn(|| work(end))).collect();
        ends.into_iter().map(|end| end.join().unwrap()).collect()
    })
}

#[test]
fn the_same_frames_make_the_same_mean_as_in_one_process_on_every_route() {
    let server = || Route::Server(ServerOptions::default());
    let ring = Route::AllReduce { wire: Wire::F32 };
    for (spec, route) in [
        ("topk:density=0.05,values=q8", Route::AllGather),
        ("qsgd:bits=4,bucket=64", Route::AllGather),
        ("topk:density=0.05", server()),
        ("randomk:density=0.1", ring),
    ] {
        let inside = run(local::world(3).into_iter().map(|end| Box::new(end) as _).collect(), spec, &route);
        let world = match route {
            Route::Server(_) => World::star(3),
            _ => World::new(3),
        };
        assert_eq!(run(boxed(world.join()), spec, &route), inside, "{spec}");
    }
}
