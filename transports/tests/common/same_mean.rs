//! The bits of whole steps, to compare transports by.

use std::thread;

use gradwire::state::MemoryChoice;
use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey};
use gradwire_transports::exchange::{Exchange, Route};
use gradwire_transports::{Deadline, Transport};

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
pub(crate) fn run(transports: Vec<Box<dyn Transport>>, spec: &str, route: &Route) -> Vec<Vec<u32>> {
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
            exchange
                .start(end, key(rank, step), Grad::F32(&grad), memory.as_deref_mut(), Deadline::NEVER)
                .unwrap();
            exchange.finish(end, &mut mean, memory, Deadline::NEVER).unwrap();
            bits.extend(mean.iter().map(|value: &f32| value.to_bits()));
        }
        bits.extend(residual.iter().map(|value| value.to_bits()));
        transport.close(Deadline::NEVER).unwrap();
        bits
    };
    thread::scope(|scope| {
        let ends: Vec<_> = transports.into_iter().map(|end| scope.spawn(|| work(end))).collect();
        ends.into_iter().map(|end| end.join().unwrap()).collect()
    })
}
