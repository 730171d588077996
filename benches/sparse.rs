//! Bytes and time of a step by all-gather and by sparse all-reduce, between ranks of one process on links of
//! a given rate.
//!
//! `cargo run --release -p gradwire-benches --example sparse > benches/results/sparse.md`

use std::thread;
use std::time::{Duration, Instant};

use gradwire::plan::Plan;
use gradwire::{Grad, Layout, LayoutRef, Memory, Source, Spec, StepKey};
use gradwire_transports::cost::Link;
use gradwire_transports::exchange::{Exchange, Route};
use gradwire_transports::layer::{LinkSpeed, Throttle};
use gradwire_transports::local::{self, LocalTransport};
use gradwire_transports::{Deadline, Transport};

/// Elements of the gradient, bits a second of each link, and steps of which the last ones count.
const LEN: usize = 200_000;
const RATE: f64 = 1e8;
const STEPS: u64 = 5;

/// Cubes of uniform draws, one part of which all ranks share: gradients of one model agree about where they
/// are large.
fn gradient(rank: u32, step: u64) -> Vec<f32> {
    let draws = |source| StepKey { seed: 5, step, source }.stream(0);
    let (own, common) = (draws(Source::Rank(rank)), draws(Source::Shared));
    let uniform = |draw: u64| draw as u32 as f32 / u32::MAX as f32 - 0.5;
    let value = |i| 0.5 * uniform(own.u64_at(i)) + uniform(common.u64_at(i));
    (0..LEN as u64).map(|i| value(i).powi(3)).collect()
}

/// Bytes that a rank sends and seconds that it takes, a step.
struct Cost {
    bytes: f64,
    seconds: f64,
}

fn work(mut transport: Throttle<LocalTransport>, spec: Spec, route: Route) -> Cost {
    let layout = Layout::packed([("gradient", vec![LEN])]).expect("a layout");
    let mut memory = Memory::for_spec(&spec, &layout.as_ref());
    let mut exchange = Exchange::new(spec, layout, route).expect("a route for the codec");
    let (rank, mut mean) = (transport.rank().0, vec![0.0; LEN]);
    let mut seconds = Vec::new();
    for step in 0..STEPS {
        let grad = gradient(rank, step);
        let (key, deadline) =
            (StepKey { seed: 3, step, source: Source::Rank(rank) }, Deadline::after(Duration::from_secs(60)));
        let started = Instant::now();
        exchange.start(&mut transport, key, Grad::F32(&grad), memory.as_mut(), deadline).expect("a start");
        exchange.finish(&mut transport, &mut mean, memory.as_mut(), deadline).expect("a finish");
        seconds.push(started.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    let bytes = transport.counters().up.payload_bytes as f64 / STEPS as f64;
    Cost { bytes, seconds: seconds[seconds.len() / 2] }
}

/// The most that a rank sends, and the longest that one takes.
fn measure(world: u32, spec: Spec, route: &Route) -> Cost {
    let speed = LinkSpeed::new(RATE, Duration::from_micros(50));
    let transports = Throttle::network(local::world(world), speed);
    let costs: Vec<Cost> = thread::scope(|scope| {
        let start = |transport| scope.spawn(move || work(transport, spec, route.clone()));
        let threads: Vec<_> = transports.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    });
    let most = |of: fn(&Cost) -> f64| costs.iter().map(of).fold(0.0, f64::max);
    Cost { bytes: most(|cost| cost.bytes), seconds: most(|cost| cost.seconds) }
}

fn main() {
    println!("# All-gather and sparse all-reduce\n");
    println!("    cargo run --release -p gradwire-benches --example sparse > benches/results/sparse.md\n");
    println!(
        "{LEN} f32, links of {:.0} Mbit/s and 50 µs, {STEPS} steps of which bytes are the mean and times the median, of the rank",
        RATE / 1e6
    );
    println!(
        "that sends or takes most. All ranks are threads of one machine, so times hold their work as well.\nThe model assumes random coordinates; here one part of every coordinate is the same at all ranks.\n"
    );
    println!(
        "| codec | ranks | all-gather, bytes | sparse, bytes | all-gather, ms | sparse, ms | the model chooses |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let link = Link::from_gbps(RATE / 1e9, 50e-6);
    for density in [0.001, 0.01, 0.1] {
        for world in [2, 4, 8, 16] {
            let spelling = format!("topk:density={density}");
            let spec = Spec::parse(&spelling).expect("a spelling");
            let [gathered, reduced] =
                [Route::AllGather, Route::SparseAllReduce].map(|route| measure(world, spec, &route));
            let chosen =
                match Exchange::route_over(&Plan::of(&spec, &LayoutRef::flat(LEN)), world as usize, &link) {
                    Route::SparseAllReduce => "sparse",
                    _ => "all-gather",
                };
            println!(
                "| `{spelling}` | {world} | {:.0} | {:.0} | {:.1} | {:.1} | {chosen} |",
                gathered.bytes,
                reduced.bytes,
                gathered.seconds * 1e3,
                reduced.seconds * 1e3
            );
        }
    }
}
