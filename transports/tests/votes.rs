//! A linear codec whose rounds move bytes: votes for the sign of each coordinate, counted.

use std::thread;
use std::time::Duration;

use gradwire::plan::Plan;
use gradwire::rounds::{LinearScratch, LinearScratchLen, MemoryView, Payload, Reduction, Round, bytes_of};
use gradwire::{
    EncodeError, Grad, Layout, LayoutRef, Linear, Memory, Source, Spec, StepKey, Unit, UnitPolicy,
};
use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{Exchange, ExchangeError, Report, Route, ServerOptions};
use gradwire_transports::{Deadline, Transport, TransportError, local};

/// signSGD with majority vote: +1 where at least half of all workers have a sign that is not negative, else
/// −1. Two counts of 4 bits a byte, so at most 15 vote.
#[derive(Clone, Copy, Debug)]
struct Majority;

impl Linear for Majority {
    fn round_scratch_len(&self, len: usize) -> LinearScratchLen {
        LinearScratchLen { words: len + len.div_ceil(8), floats: 0, ints: 0 }
    }

    fn held(&self, len: usize) -> usize {
        len
    }

    fn most_contributors(&self) -> u32 {
        15
    }

    fn begin(
        &self,
        _: StepKey,
        _: &LayoutRef<'_>,
        unit: &Unit,
        grad: Grad<'_>,
        memory: Option<MemoryView<'_>>,
        scratch: &mut LinearScratch<'_>,
    ) -> Result<Round, EncodeError> {
        if memory.is_some() {
            return Err(EncodeError::MemoryRefused);
        }
        let Grad::F32(grad) = grad else { panic!("a gradient of f32") };
        if let Some(index) = grad.iter().position(|value| value.is_nan()) {
            return Err(EncodeError::NonFiniteInput { index: unit.start + index });
        }
        let votes = bytes_of(&mut scratch.words[unit.len..]);
        votes.fill(0);
        grad.iter()
            .enumerate()
            .for_each(|(at, value)| votes[at / 2] |= u8::from(*value >= 0.0) << (4 * (at % 2)));
        Ok(Round { index: 0, reduction: Reduction::SumU8, unit: *unit, payload_len: unit.len.div_ceil(2) })
    }

    fn payload<'s>(&self, round: &Round, scratch: &'s mut LinearScratch<'_>) -> Payload<'s> {
        Payload::Bytes(&mut bytes_of(&mut scratch.words[round.unit.len..])[..round.payload_len])
    }

    fn advance(
        &self,
        _: &LayoutRef<'_>,
        round: Round,
        scratch: &mut LinearScratch<'_>,
        contributors: u32,
        mean: &mut [f32],
        _: Option<&mut Memory<'_>>,
    ) -> Option<Round> {
        let votes = bytes_of(&mut scratch.words[round.unit.len..]);
        for (at, mean) in mean.iter_mut().enumerate() {
            let count = votes[at / 2] >> (4 * (at % 2)) & 15;
            *mean = if 2 * u32::from(count) >= contributors { 1.0 } else { -1.0 };
        }
        None
    }

    /// Nothing is kept.
    fn abandon(&self, _: Round, _: &mut LinearScratch<'_>, _: Option<&mut Memory<'_>>) {}
}

fn layout() -> Layout {
    Layout::packed([("w", vec![20, 33]), ("b", vec![33]), ("v", vec![7, 11]), ("x", vec![1])]).unwrap()
}

/// Every tensor a unit, of odd lengths too; that of one dimension is summed as it is.
fn units() -> UnitPolicy {
    Spec::parse("topk:density=0.1,unit=tensor,dense_below=34").unwrap().units
}

fn gradient(rank: u32) -> Vec<f32> {
    let stream = StepKey { seed: 9, step: 0, source: Source::Rank(rank) }.stream(0);
    // Zeros as well, which are not negative.
    (0..layout().len() as u64).map(|at| (stream.u64_at(at) as u32 % 9) as f32 - 4.0).collect()
}

fn step(
    transport: &mut impl Transport,
    exchange: &mut Exchange,
    grad: &[f32],
) -> Result<(Vec<f32>, Report), ExchangeError> {
    let key = StepKey { seed: 7, step: 0, source: Source::Rank(transport.rank().0) };
    let (deadline, mut mean) = (Deadline::after(Duration::from_secs(60)), vec![f32::NAN; grad.len()]);
    exchange.start(transport, key, Grad::F32(grad), None, deadline)?;
    let report = exchange.finish(transport, &mut mean, None, deadline)?;
    Ok((mean, report))
}

fn exchange(route: Route) -> Result<Exchange, ExchangeError> {
    Exchange::new(Plan::of_linear(Majority, units(), &layout().as_ref()), layout(), route)
}

/// What every rank has after a step.
fn run(world: u32, route: &Route, parts: usize) -> Vec<Result<(Vec<f32>, Report), ExchangeError>> {
    let ends: Vec<_> = local::world(world)
        .into_iter()
        .map(|mut end| {
            let mut exchange = exchange(route.clone()).unwrap();
            if parts > 1 {
                exchange = exchange.pipelined(parts).unwrap();
            }
            thread::spawn(move || {
                let rank = end.rank().0;
                // The end as well: nobody leaves while another still sends to it.
                (step(&mut end, &mut exchange, &gradient(rank)), end)
            })
        })
        .collect();
    let ends: Vec<_> = ends.into_iter().map(|end| end.join().unwrap()).collect();
    ends.into_iter().map(|(result, _)| result).collect()
}

#[test]
fn votes_are_counted_and_ties_go_up() {
    // What an f32 takes between two hops is no matter for bytes.
    let (exact, narrow) = (Wire::F32, Wire::Bf16);
    let ring = |wire| Route::AllReduce { wire };
    for (route, parts) in
        [(ring(exact), 1), (ring(narrow), 1), (ring(exact), 3), (Route::Tree { wire: exact }, 1)]
    {
        for world in [1, 2, 3, 4, 15] {
            let all: Vec<_> = (0..world).map(gradient).collect();
            let (mut ties, mut payload) = (0, 0);
            let mut expected = vec![0.0; layout().len()];
            for unit in units().units(&layout().as_ref()) {
                payload += if unit.dense && route == ring(narrow) {
                    2 * unit.len
                } else if unit.dense {
                    4 * unit.len
                } else {
                    unit.len.div_ceil(2)
                };
                for at in unit.range() {
                    let up = all.iter().filter(|grad| grad[at] >= 0.0).count() as u32;
                    ties += u32::from(!unit.dense && 2 * up == world);
                    let sum: f32 = all.iter().map(|grad| grad[at]).sum();
                    expected[at] = match unit.dense {
                        true => sum / world as f32,
                        false if 2 * up >= world => 1.0,
                        false => -1.0,
                    };
                }
            }
            assert_eq!(ties > 0, world % 2 == 0);
            for end in run(world, &route, parts) {
                let (mean, report) = end.unwrap();
                assert_eq!((mean, report.frame_bytes), (expected.clone(), payload), "{route:?} of {world}");
            }
        }
    }
}

#[test]
fn more_votes_than_a_count_holds_are_refused_by_name() {
    for end in run(16, &Route::Tree { wire: Wire::F32 }, 1) {
        let ExchangeError::TooManyWorkers { codec, workers: 16, most: 15 } = end.unwrap_err() else {
            panic!("another error")
        };
        assert!(codec.contains("Majority"), "{codec}");
    }
}

#[test]
fn a_gradient_that_cannot_vote_makes_the_step_void_for_all() {
    let ends = local::world(3).into_iter().map(|mut end| {
        let mut exchange = exchange(Route::AllReduce { wire: Wire::F32 }).unwrap();
        thread::spawn(move || {
            let rank = end.rank().0;
            let mut grad = gradient(rank);
            if rank == 1 {
                grad[7] = f32::NAN;
            }
            (step(&mut end, &mut exchange, &grad).unwrap_err(), end)
        })
    });
    let ends: Vec<_> = ends.collect();
    let ends: Vec<_> = ends.into_iter().map(|end| end.join().unwrap()).collect();
    for (error, _) in ends {
        assert!(error.is_void() && error.to_string().contains('7'), "{error}");
    }
}

#[test]
fn routes_that_do_not_sum_bytes_refuse_them_by_name() {
    for route in [Route::AllGather, Route::SparseAllReduce, Route::Server(ServerOptions::default())] {
        let refused = exchange(route).unwrap_err();
        assert!(
            matches!(refused, ExchangeError::NoFrames { codec } if codec.contains("Majority")),
            "{refused}"
        );
    }
    // Threads have no library that sums.
    for end in run(2, &Route::Native { wire: Wire::F32 }, 1) {
        let refused = TransportError::Unsupported { operation: "native all-reduce" };
        assert_eq!(end.unwrap_err(), ExchangeError::Transport(refused));
    }
}
