//! What it buys to send a step in several parts, by every route that can, on links of a given rate.
//!
//! `cargo run --release -p gradwire-benches --example pipeline > benches/results/pipeline.md`

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey};
use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{Exchange, Route};
use gradwire_transports::layer::{LinkSpeed, Throttle};
use gradwire_transports::local::{self, LocalTransport};
use gradwire_transports::{Deadline, Transport};

/// Tensors of the gradient, their shape, ranks, and steps of which the fastest counts: others shared the
/// machine.
const TENSORS: usize = 8;
const SHAPE: [usize; 2] = [250, 400];
const EACH: usize = SHAPE[0] * SHAPE[1];
const WORLD: u32 = 2;
const STEPS: u64 = 100;

const RING: Route = Route::AllReduce { wire: Wire::F32 };
const CASES: [(&str, &str, Route); 6] = [
    ("topk:density=0.01,unit=tensor", "all-gather", Route::AllGather),
    ("qsgd:bits=4,unit=tensor", "all-gather", Route::AllGather),
    ("topk:density=0.01,unit=tensor", "sparse", Route::SparseAllReduce),
    ("randomk:density=0.1,unit=tensor", "all-reduce", RING),
    ("maxnorm:bits=4,unit=tensor", "all-reduce", RING),
    ("powersgd:rank=4,unit=tensor", "all-reduce", RING),
];

/// Cubes of uniform draws: some coordinates stand out.
fn gradient(rank: u32) -> Vec<f32> {
    let draws = StepKey { seed: 5, step: 0, source: Source::Rank(rank) }.stream(0);
    let value = |i| (draws.u64_at(i) as u32 as f32 / u32::MAX as f32 - 0.5).powi(3);
    (0..(TENSORS * EACH) as u64).map(value).collect()
}

/// Seconds of each step at one rank; all begin one together.
fn work(
    mut transport: Throttle<LocalTransport>,
    (spec, route): (Spec, &Route),
    parts: usize,
    together: &Barrier,
) -> Vec<f64> {
    let tensors = (0..TENSORS).map(|i| (format!("tensor {i}"), SHAPE.to_vec()));
    let layout = Layout::packed(tensors).expect("a layout");
    let mut memory = Memory::for_spec(&spec, &layout.as_ref());
    let (rank, mut mean) = (transport.rank().0, vec![0.0; layout.len()]);
    let exchange = Exchange::new(spec, layout, route.clone()).expect("a codec for the route");
    let mut exchange = exchange.pipelined(parts).expect("a route with a pipeline");
    let grad = gradient(rank);
    let mut seconds = Vec::new();
    for step in 0..STEPS {
        let key = StepKey { seed: 3, step, source: Source::Rank(rank) };
        let deadline = Deadline::after(Duration::from_secs(60));
        together.wait();
        let started = Instant::now();
        exchange.start(&mut transport, key, Grad::F32(&grad), memory.as_mut(), deadline).expect("a start");
        exchange.finish(&mut transport, &mut mean, memory.as_mut(), deadline).expect("a finish");
        seconds.push(started.elapsed().as_secs_f64());
    }
    seconds
}

/// Milliseconds of the fastest step, from its beginning to the last rank's end.
fn measure(rate: f64, case: (Spec, &Route), parts: usize) -> f64 {
    let transports = Throttle::network(local::world(WORLD), LinkSpeed::new(rate, Duration::from_micros(50)));
    let together = Barrier::new(WORLD as usize);
    let ranks: Vec<Vec<f64>> = thread::scope(|scope| {
        let start = |transport| scope.spawn(|| work(transport, case, parts, &together));
        let threads: Vec<_> = transports.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    });
    let steps = (0..STEPS as usize).map(|step| ranks.iter().map(|rank| rank[step]).fold(0.0, f64::max));
    1e3 * steps.fold(f64::INFINITY, f64::min)
}

fn main() {
    println!("# Pipelined exchanges\n");
    println!(
        "    cargo run --release -p gradwire-benches --example pipeline > benches/results/pipeline.md\n"
    );
    println!(
        "{TENSORS} tensors of {} × {} f32, {WORLD} ranks that are threads of one machine, links with 50 µs of latency;",
        SHAPE[0], SHAPE[1]
    );
    println!("the fastest of {STEPS} steps, from its beginning to the last rank's end, in milliseconds.\n");
    println!("| codec | exchange | Mbit/s | 1 part | 2 parts | 4 parts | 8 parts | 1 over 8 |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for (spelling, exchange, route) in &CASES {
        let spec = Spec::parse(spelling).expect("a spelling");
        for megabits in [100.0, 1000.0] {
            let times = [1, 2, 4, 8].map(|parts| measure(megabits * 1e6, (spec, route), parts));
            let cells = times.map(|time| format!("{time:.1}")).join(" | ");
            println!("| `{spelling}` | {exchange} | {megabits} | {cells} | {:.2} |", times[0] / times[3]);
        }
    }
}
