//! The mean over senders, against its definition: every frame decoded alone, its coordinates counted, the sum
//! divided by the count.

use std::thread;

use gradwire::format::Divisor;
use gradwire::{Decoder, Encoder, Grad, Layout, Limits, Memory, Source, Spec, StepInput, StepKey};
use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{Exchange, ExchangeError, Route, ServerOptions};
use gradwire_transports::{Deadline, Rank, Transport, local};

/// Sparsifiers of every kind, with units of tensors, dense ones among them.
const SPECS: [&str; 6] = [
    "topk:density=0.1",
    "topk:density=0.05,unit=tensor,dense_1d=true",
    "topk:density=0.3,values=q4,unit=tensor",
    "threshold:value=1.5,unit=tensor",
    "dgc:density=0.1,unit=tensor",
    "sidco:density=0.1,unit=tensor",
];

fn layout() -> Layout {
    Layout::packed([("w", vec![8, 9]), ("b", vec![17]), ("none", vec![0]), ("v", vec![40])]).unwrap()
}

fn gradient(seed: u64, rank: u32, step: u64, len: usize) -> Vec<f32> {
    let stream = StepKey { seed, step, source: Source::Rank(rank) }.stream(0);
    let value = |at| (stream.u64_at(at) as u32 as f32 / u32::MAX as f32 - 0.5).powi(3) * 16.0;
    // Whole rows of zeros, so that coordinates are left that nobody sends.
    (0..len as u64).map(|at| if at % 7 == 3 { 0.0 } else { value(at) }).collect()
}

fn key(seed: u64, rank: u32, step: u64) -> StepKey {
    StepKey { seed, step, source: Source::Rank(rank) }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Means of `steps`, and how many coordinates had no sender and how many not all.
fn means_by_definition(world: u32, spec: &Spec, seed: u64, steps: u64) -> (Vec<Vec<f32>>, [usize; 2]) {
    let layout = layout();
    let layout = layout.as_ref();
    let units: Vec<_> = spec.units.units(&layout).collect();
    let mut memories: Vec<_> = (0..world).map(|_| Memory::for_spec(spec, &layout)).collect();
    let (mut encoder, mut decoder, mut missing) = (Encoder::new(), Decoder::new(), [0, 0]);
    let means = (0..steps).map(|step| {
        let (mut sum, mut count) = (vec![0.0_f32; layout.len()], vec![0_u32; layout.len()]);
        for (rank, memory) in (0..world).zip(&mut memories) {
            let grad = gradient(seed, rank, step, layout.len());
            let (key, grad) = (key(seed, rank, step), Grad::F32(&grad));
            let input = StepInput { key, layout: &layout, units: &units, grad };
            let bytes = encoder.encode(&spec.codec, &input, memory.as_mut()).unwrap();
            let frame = decoder.parse(bytes, &layout, &Limits::for_layout(&layout)).unwrap();
            for unit in frame.units() {
                let start = unit.range().start;
                unit.for_each(|at, value| {
                    sum[start + at] += value;
                    count[start + at] += 1;
                });
            }
        }
        missing[0] += count.iter().filter(|&&count| count == 0).count();
        missing[1] += count.iter().filter(|&&count| (1..world).contains(&count)).count();
        let mean = |(&sum, &count): (&f32, &u32)| if count == 0 { 0.0 } else { sum / count as f32 };
        sum.iter().zip(&count).map(mean).collect()
    });
    (means.collect(), missing)
}

/// What a rank has after some steps.
struct Done {
    means: Vec<Result<Vec<f32>, ExchangeError>>,
    kept: Vec<f32>,
}

/// Runs `steps` of an exchange over threads.
fn run(
    world: u32,
    seed: u64,
    steps: u64,
    exchange: impl Fn(Rank) -> Exchange + Sync,
    spec: &Spec,
) -> Vec<Done> {
    let layout = layout();
    thread::scope(|scope| {
        let threads: Vec<_> = local::world(world)
            .into_iter()
            .map(|mut end| {
                let (layout, exchange) = (&layout, &exchange);
                scope.spawn(move || {
                    let (rank, mut exchange) = (end.rank(), exchange(end.rank()));
                    let mut memory = Memory::for_spec(spec, &layout.as_ref()).unwrap();
                    let by = Deadline::NEVER;
                    let mut step = |step| {
                        let grad = gradient(seed, rank.0, step, layout.len());
                        let (key, mut mean) = (key(seed, rank.0, step), vec![f32::NAN; grad.len()]);
                        exchange.start(&mut end, key, Grad::F32(&grad), Some(&mut memory), by)?;
                        exchange.finish(&mut end, &mut mean, Some(&mut memory), by)?;
                        Ok(mean)
                    };
                    let means = (0..steps).map(&mut step).collect();
                    Done { means, kept: memory.residual().to_vec() }
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn every_coordinate_is_divided_by_those_that_sent_it() {
    for (number, spec) in (0u64..).zip(SPECS) {
        let spec = Spec::parse(spec).unwrap();
        for (world, messages) in [(1, Some(1)), (2, Some(3)), (4, Some(1)), (4, Some(4)), (3, None)] {
            let seed = 10 * number + u64::from(world);
            let (expected, _) = means_by_definition(world, &spec, seed, 3);
            // Without parts there is a server.
            let exchange = |divisor| {
                move |_: Rank| {
                    let server = Route::Server(ServerOptions::default());
                    let route = if messages.is_some() { Route::AllGather } else { server };
                    let exchange =
                        Exchange::new(spec, layout(), route).unwrap().with_divisor(divisor).unwrap();
                    messages.into_iter().fold(exchange, |exchange, parts| exchange.pipelined(parts).unwrap())
                }
            };
            let [senders, contributors] = [Divisor::Senders, Divisor::Contributors]
                .map(|divisor| run(world, seed, 3, exchange(divisor), &spec));
            for (Done { means, kept }, contributors) in senders.iter().zip(&contributors) {
                for (mean, expected) in means.iter().zip(&expected) {
                    assert_eq!(
                        bits(mean.as_ref().unwrap()),
                        bits(expected),
                        "{spec} over {world}, {messages:?}"
                    );
                }
                assert_eq!(
                    bits(kept),
                    bits(&contributors.kept),
                    "{spec}: what a worker keeps depends on the divisor"
                );
            }
        }
    }
}

#[test]
fn the_definition_has_coordinates_that_nobody_sends_and_some_that_not_all_send() {
    for spec in SPECS {
        let (_, [none, some]) = means_by_definition(3, &Spec::parse(spec).unwrap(), 5, 3);
        assert!(none > 0 && some > 0, "{spec}: {none} without senders, {some} with some");
    }
}

#[test]
fn a_frame_that_asks_for_another_divisor_is_refused() {
    let spec = Spec::parse("topk:density=0.1").unwrap();
    let exchange = |rank: Rank| {
        let divisor = if rank == Rank(0) { Divisor::Senders } else { Divisor::Contributors };
        Exchange::new(spec, layout(), Route::AllGather).unwrap().with_divisor(divisor).unwrap()
    };
    for (rank, Done { means, kept }) in run(2, 1, 1, exchange, &spec).into_iter().enumerate() {
        let other = Rank(1 - rank as u32);
        assert_eq!(means, [Err(ExchangeError::WrongUnits { rank: other })]);
        assert_eq!(bits(&kept), bits(&gradient(1, rank as u32, 0, kept.len())));
    }
}

#[test]
fn a_mean_over_senders_is_refused_by_name_where_there_is_none() {
    let (wire, server) = (Wire::F32, || Route::Server(ServerOptions::default()));
    let refused = |spec: &str, route| {
        let exchange = Exchange::new(Spec::parse(spec).unwrap(), layout(), route).unwrap();
        exchange.with_divisor(Divisor::Contributors).unwrap().with_divisor(Divisor::Senders).err()
    };
    for (spec, route, why) in [
        ("topk", Route::SparseAllReduce, "only all-gather and a server count"),
        ("randomk", Route::AllReduce { wire }, "only all-gather and a server count"),
        ("none", Route::Tree { wire }, "only all-gather and a server count"),
        ("topk:max_packet_bytes=256", server(), "packets are divided by the workers"),
        ("none", Route::AllGather, "all ranks send the same coordinates"),
        ("qsgd", server(), "all ranks send the same coordinates"),
        ("efsign", Route::AllGather, "all ranks send the same coordinates"),
        ("randomk", Route::AllGather, "all ranks send the same coordinates"),
    ] {
        let error = refused(spec, route.clone()).unwrap_or_else(|| panic!("{spec} by {route:?} is accepted"));
        assert!(error.to_string().contains(why), "{spec}: {error}");
    }
    assert_eq!(refused("topk", Route::AllGather), None);
    let spec = Spec::parse("topk:density=0.1").unwrap();
    let exchange = Exchange::new(spec, layout(), Route::AllGather).unwrap();
    let mut exchange = exchange.with_divisor(Divisor::Senders).unwrap();
    let dense = exchange.set_codec(Spec::parse("qsgd:bits=4").unwrap().codec);
    assert!(matches!(dense, Err(ExchangeError::NoSenders { .. })), "{dense:?}");
    assert_eq!(exchange.set_codec(Spec::parse("threshold:value=2").unwrap().codec), Ok(()));
}
