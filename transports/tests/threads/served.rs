//! A server that reduces the payloads of linear codecs, round by round.

use std::ops::Range;
use std::thread;
use std::time::Duration;

use gradwire::plan::Plan;
use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey};
use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{Exchange, ExchangeError, Route, ServerOptions};
use gradwire_transports::local::LocalTransport;
use gradwire_transports::{Deadline, Rank, Transport, local};

use crate::common::led;

const STEPS: u64 = 5;
/// In this step the last rank has no gradient.
const BAD: u64 = 2;
const FETCH_SGD: &str = "sketch:density=0.05,momentum=0.9";
const CODECS: [&str; 11] = [
    "powersgd:rank=2",
    "powersgd:rank=1,unit=tensor",
    "maxnorm:bits=4+8,unit=tensor",
    "sharedk:density=0.05,candidates=2",
    "sharedk:density=0.1,by=leader,unit=tensor",
    "sharedk:density=0.05,by=leader,lowpass=0.25",
    "sharedk:density=0.05,feedback=ef21,momentum=0.5,unit=tensor",
    FETCH_SGD,
    "sketch:density=0.05,error=workers,unit=tensor",
    "sketch:density=0.05,moments=amsgrad",
    "x:led",
];

fn layout() -> Layout {
    Layout::packed([("w", vec![20, 31]), ("b", vec![31]), ("v", vec![8, 8, 2])]).unwrap()
}

fn key(rank: u32, step: u64) -> StepKey {
    StepKey { seed: 4, step, source: Source::Rank(rank) }
}

fn gradient(rank: u32, step: u64) -> Vec<f32> {
    let stream = key(rank, step).stream(0);
    (0..layout().len() as u64).map(|at| (stream.u64_at(at) as i32 >> 16) as f32 / 4096.0).collect()
}

fn served_by(rank: u32) -> Route {
    Route::Server(ServerOptions { server: Rank(rank), ..ServerOptions::default() })
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// What a rank has after a step, if it is not void, and what it keeps.
type Seen = (Result<Vec<u32>, ExchangeError>, Vec<u32>);

fn run(mut transport: LocalTransport, spelling: &str, route: Route) -> Vec<Seen> {
    steps(&mut transport, spelling, route, 0..STEPS)
}

fn steps(transport: &mut LocalTransport, spelling: &str, route: Route, steps: Range<u64>) -> Vec<Seen> {
    led::spec("x:led");
    let (spec, layout, rank) = (Spec::parse(spelling).unwrap(), layout(), transport.rank().0);
    let is_last = transport.membership().world() as u32 == rank + 1;
    let mut memory = Memory::for_spec(&spec, &layout.as_ref());
    let mut exchange = Exchange::new(spec, layout.clone(), route).unwrap();
    let by = Deadline::after(Duration::from_secs(60));
    let mut step = |step: u64| {
        let (mut grad, mut mean) = (gradient(rank, step), vec![f32::NAN; layout.len()]);
        if is_last && step == BAD {
            grad[layout.len() - 1] = f32::INFINITY;
        }
        let done = exchange.start(transport, key(rank, step), Grad::F32(&grad), memory.as_mut(), by);
        let done = done.and_then(|()| exchange.finish(transport, &mut mean, memory.as_mut(), by));
        if let Ok(report) = &done {
            assert_eq!(report.contributors.len(), transport.membership().world());
        }
        (done.map(|_| bits(&mean)), memory.as_ref().map_or_else(Vec::new, kept))
    };
    steps.map(&mut step).collect()
}

/// The residual and all arrays.
fn kept(memory: &Memory<'_>) -> Vec<u32> {
    let arrays = memory.arrays().iter().map(|array| memory.array(array.name).unwrap());
    [memory.residual()].into_iter().chain(arrays).flat_map(bits).collect()
}

fn on_threads<T: Send>(world: usize, work: impl Fn(LocalTransport) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let spawn = |end| {
            let work = &work;
            scope.spawn(move || work(end))
        };
        let threads: Vec<_> = local::world(world as u32).into_iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Rank 0 adds in the order of ranks, as owners do.
#[test]
fn means_and_memories_are_those_of_owners_bit_for_bit() {
    for spelling in CODECS {
        for world in [1, 2, 3, 6] {
            let owners = on_threads(world, |end| run(end, spelling, Route::Owners { wire: Wire::F32 }));
            let served = on_threads(world, |end| run(end, spelling, served_by(0)));
            for (rank, (owners, served)) in owners.iter().zip(&served).enumerate() {
                for (step, (owners, served)) in (0..).zip(owners.iter().zip(served)) {
                    let what = format!("{spelling}, step {step} at {rank} of {world}");
                    assert_eq!(
                        owners.0.as_ref().ok(),
                        served.0.as_ref().ok(),
                        "{what}: {:?}",
                        served.0.as_ref().err()
                    );
                    assert_eq!(owners.1, served.1, "{what}");
                    assert_eq!(served.0.is_err(), step == BAD, "{what}");
                    assert!(served.0.as_ref().err().is_none_or(ExchangeError::is_void), "{what}: {served:?}");
                }
            }
        }
    }
}

#[test]
fn any_rank_can_serve_and_all_have_the_same_mean() {
    for spelling in CODECS {
        let seen = on_threads(4, |end| run(end, spelling, served_by(2)));
        for (step, of_first) in seen[0].iter().enumerate().filter(|(step, _)| *step as u64 != BAD) {
            assert!(seen.iter().all(|of_rank| of_rank[step].0 == of_first.0), "{spelling}, step {step}");
        }
    }
}

/// The rank that serves trains too, so it has one gradient, its own. Sums of cells are exact here, so their
/// order does not matter.
#[test]
fn a_server_of_fetch_sgd_gets_and_returns_cells_alone_and_ends_as_ranks_of_a_ring_do() {
    let (cells, world, held) = (80, 4, BAD + 1..BAD + 5);
    let [ring, served] = [Route::AllReduce { wire: Wire::F32 }, served_by(0)].map(|route| {
        on_threads(world, |mut end| {
            let seen = steps(&mut end, FETCH_SGD, route.clone(), held.clone());
            (seen, end.counters())
        })
    });
    for ((ring, _), (served, _)) in ring.iter().zip(&served) {
        assert_eq!(ring, served);
        for (_, kept) in served {
            let (residual, sketches) = kept.split_at(layout().len());
            assert!(residual.iter().all(|kept| *kept == 0));
            assert!(sketches.len() < layout().len(), "of the error and of the momentum, together");
        }
    }
    let (messages, moved) = (held.count() * (world - 1), served[0].1);
    // Beside the cells: what they are and the version, or who took part and the version.
    let [from_workers, to_workers] = [1 + 4 * cells + 1, 4 + 4 * world + 4 * cells + 1];
    let traffic = |bytes: usize| (messages as u64, (messages * bytes) as u64);
    assert_eq!((moved.down.messages, moved.down.payload_bytes), traffic(from_workers));
    assert_eq!((moved.up.messages, moved.up.payload_bytes), traffic(to_workers));
}

#[test]
fn payloads_of_another_length_fail_the_step_and_name_their_sender() {
    let lengths = |rank: u32| if rank == 2 { "sharedk:density=0.2" } else { "sharedk:density=0.05" };
    let seen = on_threads(4, |end| {
        let spelling = lengths(end.rank().0);
        run(end, spelling, served_by(0))
    });
    assert_eq!(seen[0][0].0, Err(ExchangeError::WrongUnits { rank: Rank(2) }));
    for (rank, of_rank) in (0..).zip(&seen) {
        assert!(of_rank[0].0.is_err());
        assert_eq!(of_rank[0].1, bits(&gradient(rank, 0)), "rank {rank} keeps its gradient");
    }
}

#[test]
fn what_only_frames_have_is_refused() {
    let refused = |plan: Plan, options| {
        let made = Exchange::new(plan, layout(), Route::Server(options));
        made.expect_err("a refusal")
    };
    let powersgd = || Plan::of(&Spec::parse("powersgd").unwrap(), &layout().as_ref());
    let defaults = ServerOptions::default;
    let options = ServerOptions { downlink: Spec::parse("bf16").unwrap(), ..defaults() };
    assert_eq!(refused(powersgd(), options), ExchangeError::NoDownlink { codec: "bf16" });
    let options = ServerOptions { norm_cap: Some(2.0), ..defaults() };
    assert_eq!(refused(powersgd(), options), ExchangeError::CappedPackets);
}
