//! Rounds before a frame: all ranks quantise with one scale, and a rank that fails in a round ends the step
//! of all.

use std::thread;
use std::time::Duration;

use gradwire::experiments::{
    BodyOutline, EncodeBody, Experiment, Experimental, ParseBody, Refused, ShareNumbers, UnitBody, UnitSource,
};
use gradwire::plan::Plan;
use gradwire::registry::Law;
use gradwire::rounds::Reduction;
use gradwire::{
    DecodeError, EncodeError, Encoder, Grad, Layout, Memory, Scratch, Source, Spec, StepInput, StepKey, Unit,
    UnitPolicy,
};
use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{Exchange, ExchangeError, Route, ServerOptions};
use gradwire_transports::{Deadline, Rank, Tag, Transport, TransportError, local};

/// Whole multiples of a scale that all ranks agree on, a power of two: 1/64 of the largest magnitude at any
/// rank, rounded up. What is left is kept. A second round counts the ranks.
#[derive(Clone, Copy, Debug)]
struct OneScale {
    number: u8,
    /// Refuses magnitudes above these: in the round with that index, and when it encodes.
    most: [f32; 3],
    has_rounds: bool,
}

const PLAIN: OneScale = OneScale { number: 0xf3, most: [f32::MAX; 3], has_rounds: true };

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest, value| value.abs().max(largest))
}

fn scale_of(largest: f32) -> f32 {
    if largest == 0.0 { 1.0 } else { (largest.log2().ceil() - 6.0).exp2() }
}

impl ParseBody for OneScale {
    fn experiment(&self) -> Experiment {
        Experiment::new(self.number).unwrap()
    }

    fn outline(&self, body: &UnitBody<'_>) -> Result<BodyOutline, Refused> {
        Ok(BodyOutline { bytes: 4 + body.unit.len, held: body.unit.len, scratch_words: 0 })
    }

    fn visit(&self, body: &UnitBody<'_>, _: &[u32], f: &mut dyn FnMut(usize, f32)) {
        let (scale, levels) = body.bytes.split_first_chunk().unwrap();
        let scale = f32::from_le_bytes(*scale);
        levels.iter().enumerate().for_each(|(at, level)| f(at, f32::from(level.cast_signed()) * scale));
    }
}

impl ShareNumbers for OneScale {
    fn count(&self, _: usize) -> usize {
        2
    }

    fn round(
        &self,
        index: u32,
        source: &UnitSource<'_>,
        values: &[f32],
        numbers: &mut [f32],
    ) -> Result<Option<Reduction>, Refused> {
        assert!(source.numbers.is_empty());
        if index < 2 && largest(values) > self.most[index as usize] {
            return Err(Refused::new("too large for its round"));
        }
        Ok(match index {
            0 => {
                assert_eq!(numbers, [0.0; 2]);
                numbers[0] = largest(values);
                Some(Reduction::MaxF32)
            }
            1 => {
                numbers[1] = 1.0;
                Some(Reduction::SumF32)
            }
            _ => {
                // As many times the largest as there are ranks.
                numbers[0] = scale_of(numbers[0] / numbers[1]);
                None
            }
        })
    }
}

impl EncodeBody for OneScale {
    fn law(&self) -> Law {
        Law::Exact
    }

    fn shared(&self) -> Option<&dyn ShareNumbers> {
        self.has_rounds.then_some(self)
    }

    fn max_body_bytes(&self, len: usize) -> Option<usize> {
        len.checked_add(4)
    }

    fn encode_body(
        &self,
        source: &UnitSource<'_>,
        values: &[f32],
        _: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, Refused> {
        if largest(values) > self.most[2] {
            return Err(Refused::new("too large to send"));
        }
        let scale = if self.has_rounds { source.numbers[0] } else { scale_of(largest(values)) };
        out[..4].copy_from_slice(&scale.to_le_bytes());
        out[4..]
            .iter_mut()
            .zip(values)
            .for_each(|(level, value)| *level = ((value / scale) as i8).cast_unsigned());
        Ok(4 + values.len())
    }
}

fn layout() -> Layout {
    Layout::packed([("w", vec![20, 33]), ("b", vec![33]), ("v", vec![7, 11])]).unwrap()
}

/// Every tensor a unit; that of one dimension is sent dense, and takes part in no round.
fn units() -> UnitPolicy {
    Spec::parse("topk:density=0.1,unit=tensor,dense_1d=true").unwrap().units
}

/// Every rank's is larger than that of the rank before.
fn gradient(rank: u32, step: u64) -> Vec<f32> {
    let stream = StepKey { seed: 9, step, source: Source::Rank(rank) }.stream(0);
    let size = (3 * rank + 1) as f32;
    let value = |at| size * ((stream.u64_at(at) as u32 % 4001) as f32 / 256.0 - 7.8);
    (0..layout().len() as u64).map(value).collect()
}

struct Worker {
    transport: Box<dyn Transport>,
    exchange: Exchange,
    residual: Vec<f32>,
}

impl Worker {
    fn rank(&self) -> u32 {
        self.transport.rank().0
    }

    fn step(&mut self, step: u64, grad: &[f32]) -> Result<Vec<f32>, ExchangeError> {
        let key = StepKey { seed: 7, step, source: Source::Rank(self.rank()) };
        // A rank that is not told fails by its deadline, with another error.
        let (deadline, mut mean) = (Deadline::after(Duration::from_secs(60)), vec![f32::NAN; grad.len()]);
        let (transport, mut memory) = (self.transport.as_mut(), Memory::new(&mut self.residual));
        self.exchange.start(transport, key, Grad::F32(grad), Some(&mut memory), deadline)?;
        self.exchange.finish(transport, &mut mean, Some(&mut memory), deadline)?;
        Ok(mean)
    }
}

fn on_ranks<T: Send>(
    world: u32,
    make: impl Fn(u32) -> Exchange,
    run: impl Fn(&mut Worker) -> T + Sync,
) -> Vec<T> {
    let workers = local::world(world).into_iter().map(|transport| {
        let exchange = make(transport.rank().0);
        Worker { transport: Box::new(transport), exchange, residual: vec![0.0; layout().len()] }
    });
    let workers: Vec<Worker> = workers.collect();
    thread::scope(|scope| {
        let run = &run;
        // The worker as well: nobody leaves while another still sends to it.
        let start = |mut worker| scope.spawn(move || (run(&mut worker), worker));
        let threads: Vec<_> = workers.into_iter().map(start).collect();
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        ended.into_iter().map(|(result, _)| result).collect()
    })
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn added(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

fn exchange(codec: OneScale, parts: usize) -> Exchange {
    let exchange = Exchange::new(
        Plan::of_gather(Experimental(codec), units(), &layout().as_ref()),
        layout(),
        Route::AllGather,
    )
    .unwrap();
    if parts > 1 { exchange.pipelined(parts).unwrap() } else { exchange }
}

#[test]
fn all_ranks_quantise_with_one_scale_and_keep_the_rest() {
    for (world, parts) in [(1, 1), (2, 1), (3, 1), (4, 1), (2, 3), (3, 2), (4, 3)] {
        let steps = on_ranks(
            world,
            |_| exchange(PLAIN, parts),
            |worker| {
                let step = |step| {
                    let grad = gradient(worker.rank(), step);
                    let p = added(&worker.residual, &grad);
                    let mean = worker.step(step, &grad).unwrap();
                    (p, mean, worker.residual.clone())
                };
                (0..4).map(step).collect::<Vec<_>>()
            },
        );
        for step in 0..4 {
            let all: Vec<_> = steps.iter().map(|rank| &rank[step]).collect();
            let mut sums = vec![0.0; layout().len()];
            for unit in units().units(&layout().as_ref()) {
                let largest = all.iter().map(|(p, ..)| largest(&p[unit.range()])).fold(0.0, f32::max);
                let scale = scale_of(largest);
                for (p, _, kept) in &all {
                    for at in unit.range() {
                        let sent = if unit.dense { p[at] } else { (p[at] / scale).trunc() * scale };
                        assert_eq!(kept[at].to_bits(), (p[at] - sent).to_bits(), "{world} ranks, {at}");
                        sums[at] += sent;
                    }
                }
            }
            let expected: Vec<f32> = sums.iter().map(|sum| sum / world as f32).collect();
            all.iter().for_each(|(_, mean, _)| assert_eq!(bits(mean), bits(&expected), "{world} ranks"));
        }
    }
}

/// A rank whose gradient is refused in a round, or when it encodes after them.
#[test]
fn a_rank_that_fails_ends_the_step_of_all_at_once_and_the_next_goes_on() {
    let limit = |at: usize| {
        let mut codec = PLAIN;
        codec.most[at] = 1e6;
        codec
    };
    let cases =
        [(PLAIN, f32::NAN, ""), (PLAIN, f32::INFINITY, ""), (limit(0), 2e6, "too large for its round")]
            .into_iter()
            .chain([(limit(1), 2e6, "too large for its round"), (limit(2), 2e6, "too large to send")]);
    for (codec, value, why) in cases {
        for (world, bad, parts) in [(2, 0, 1), (3, 1, 1), (4, 3, 3)] {
            for undone in [false, true] {
                let make = |_| {
                    let exchange = exchange(codec, parts);
                    if undone { exchange.undoing() } else { exchange }
                };
                let ends = on_ranks(world, make, |worker| {
                    let rank = worker.rank();
                    worker.step(0, &gradient(rank, 0)).unwrap();
                    let (mut grad, before) = (gradient(rank, 1), worker.residual.clone());
                    if rank == bad {
                        grad[3] = value;
                    }
                    let error = worker.step(1, &grad).unwrap_err();
                    let index = if why.is_empty() { 3 } else { 0 };
                    match &error {
                        ExchangeError::Encode(error) if why.is_empty() => {
                            assert_eq!(*error, EncodeError::NonFiniteInput { index });
                        }
                        ExchangeError::Encode(error) => {
                            assert_eq!(*error, EncodeError::Experiment { unit: 0, index, why });
                        }
                        error => assert_eq!(*error, ExchangeError::Void { rank: Rank(bad), index }),
                    }
                    assert_eq!(matches!(error, ExchangeError::Encode(_)), rank == bad, "{error}");
                    let kept = if rank == bad || undone { before.clone() } else { added(&before, &grad) };
                    assert_eq!(bits(&worker.residual), bits(&kept), "{why}: rank {rank} of {world}");
                    bits(&worker.step(2, &gradient(rank, 2)).unwrap())
                });
                assert!(ends.iter().all(|mean| *mean == ends[0]));
            }
        }
    }
}

#[test]
fn a_rank_that_leaves_in_a_round_is_named_and_everything_is_kept() {
    let mut ends = local::world(2);
    drop(ends.pop());
    let transport: Box<dyn Transport> = Box::new(ends.pop().unwrap());
    let mut worker = Worker { transport, exchange: exchange(PLAIN, 1), residual: vec![0.5; layout().len()] };
    let grad = gradient(0, 0);
    let gone = ExchangeError::Transport(TransportError::Disconnected { rank: Rank(1) });
    assert_eq!(worker.step(0, &grad).unwrap_err(), gone);
    assert_eq!(bits(&worker.residual), bits(&added(&vec![0.5; grad.len()], &grad)));
}

/// The rank that is waited for first never sends.
#[test]
fn a_round_ends_while_a_slower_rank_is_waited_for() {
    let worker = |transport| Worker {
        transport: Box::new(transport),
        exchange: exchange(PLAIN, 1),
        residual: vec![0.5; layout().len()],
    };
    let mut ends = local::world(3);
    let (mut bad, absent, mut worker) =
        (worker(ends.pop().unwrap()), ends.pop(), worker(ends.pop().unwrap()));
    let grad = gradient(0, 0);
    let mut broken = grad.clone();
    broken[8] = f32::NEG_INFINITY;
    bad.step(0, &broken).unwrap_err();
    assert_eq!(worker.step(0, &grad).unwrap_err(), ExchangeError::Void { rank: Rank(2), index: 8 });
    assert_eq!(bits(&worker.residual), bits(&added(&vec![0.5; grad.len()], &grad)));
    drop(absent);
}

#[test]
fn numbers_that_are_not_finite_or_of_another_round_name_the_rank() {
    let count = 2 * 2;
    let message = |kind: u8, numbers: &[f32]| {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
        std::iter::once(kind).chain(bytes).collect::<Vec<u8>>()
    };
    let (own, wrong) = (vec![1.0; count], ExchangeError::WrongUnits { rank: Rank(1) });
    let broken = |index| ExchangeError::NonFinitePayload { rank: Rank(1), index };
    let with = |at: usize, value| {
        let mut numbers = own.clone();
        numbers[at] = value;
        numbers
    };
    for (message, expected) in [
        (message(1, &with(2, f32::NAN)), broken(2)),
        (message(1, &with(3, f32::INFINITY)), broken(3)),
        (message(0, &own), wrong.clone()),
        (message(1, &own[1..]), wrong.clone()),
        (message(7, &own), wrong.clone()),
        (Vec::new(), wrong.clone()),
    ] {
        let mut ends = local::world(2);
        let mut other = ends.pop().unwrap();
        let versioned = [&message[..], &[0xe1]].concat();
        other.send(Rank(0), Tag::new(0, 4), &versioned, Deadline::NEVER).unwrap();
        let transport: Box<dyn Transport> = Box::new(ends.pop().unwrap());
        let mut worker =
            Worker { transport, exchange: exchange(PLAIN, 1), residual: vec![0.0; layout().len()] };
        let grad = gradient(0, 4);
        assert_eq!(worker.step(4, &grad).unwrap_err(), expected);
        assert_eq!(bits(&worker.residual), bits(&grad));
    }
}

/// Numbers stand where a frame would stand, so nobody waits for either.
#[test]
fn a_rank_with_another_codec_is_named_at_once() {
    let ends = on_ranks(
        2,
        |rank| exchange(OneScale { has_rounds: rank == 0, ..PLAIN }, 1),
        |worker| worker.step(0, &gradient(worker.rank(), 0)).unwrap_err(),
    );
    assert_eq!(ends[0], ExchangeError::WrongUnits { rank: Rank(1) });
    assert_eq!(ends[1], ExchangeError::Frame { rank: Rank(0), error: DecodeError::BadMagic });
}

#[test]
fn other_routes_and_an_encode_without_rounds_refuse_by_name() {
    let wire = Wire::F32;
    let server = || Route::Server(ServerOptions::default());
    let gather = |route| {
        Exchange::new(Plan::of_gather(Experimental(PLAIN), units(), &layout().as_ref()), layout(), route)
            .map(|_| ())
    };
    let name = |refused: Result<(), ExchangeError>| match refused.unwrap_err() {
        ExchangeError::NotSparse { codec } => ("sparse", codec),
        ExchangeError::NotLinear { codec } => ("linear", codec),
        ExchangeError::RoundsFirst { codec } => ("rounds", codec),
        other => panic!("{other}"),
    };
    for (refused, missing) in [
        (gather(server()), "rounds"),
        (gather(Route::SparseAllReduce), "sparse"),
        (gather(Route::AllReduce { wire }), "linear"),
        (gather(Route::Tree { wire }), "linear"),
    ] {
        let (what, name) = name(refused);
        assert!(what == missing && name.contains("OneScale"), "{what}: {name}");
    }
    let (layout, units) = (layout(), [Unit::whole(layout().len())]);
    let key = StepKey { seed: 7, step: 0, source: Source::Rank(0) };
    let (mut encoder, grad) = (Encoder::new(), gradient(0, 0));
    let input = StepInput { key, layout: &layout.as_ref(), units: &units, grad: Grad::F32(&grad) };
    let refused = encoder.encode(&Experimental(PLAIN), &input, None).unwrap_err();
    let why = "its rounds come before its frame";
    assert_eq!(refused, EncodeError::Experiment { unit: 0, index: 0, why });
}

#[test]
fn a_server_sends_no_mean_back_by_a_codec_with_rounds() {
    let route = Route::Server(ServerOptions::default());
    let exchange = Exchange::new(Spec::parse("none").unwrap(), layout(), route).unwrap();
    let refused = exchange.with_downlink(Experimental(PLAIN), None).unwrap_err();
    assert!(
        matches!(refused, ExchangeError::RoundsFirst { codec } if codec.contains("OneScale")),
        "{refused}"
    );
}
