//! Codecs of other crates in an exchange: the same means, conservation and refusals as for codecs that have a
//! spelling.

use std::thread;
use std::time::Duration;

use gradwire::codecs::{DenseSum, IndexChoice, TopK, ValueChoice};
use gradwire::experiments::{
    BodyOutline, EncodeBody, Experiment, Experimental, ParseBody, Refused, UnitBody, UnitSource,
};
use gradwire::format::CodecId;
use gradwire::packets::{PacketSize, Packets};
use gradwire::plan::Plan;
use gradwire::registry::Law;
use gradwire::rounds::{LinearScratch, LinearScratchLen, MemoryView, Payload, Reduction, Round, UnitStep};
use gradwire::{
    Codec, DecodeError, Density, EncodeError, Gather, Grad, Layout, LayoutRef, Linear, Memory, Scratch,
    ScratchLen, Source, Spec, StepInput, StepKey, Unit, UnitPolicy,
};
use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{Exchange, ExchangeError, Report, Route, ServerOptions};
use gradwire_transports::{Deadline, Rank, Transport, local};

/// The largest coordinate of each unit: its position and its value.
#[derive(Clone, Copy, Debug)]
struct Largest {
    number: u8,
    /// Refuses to send values above the first, and to read any above the second.
    most: (f32, f32),
}

const PLAIN: Largest = Largest { number: 0xf5, most: (f32::MAX, f32::MAX) };

impl ParseBody for Largest {
    fn experiment(&self) -> Experiment {
        Experiment::new(self.number).unwrap()
    }

    fn outline(&self, _: &UnitBody<'_>) -> Result<BodyOutline, Refused> {
        // More words than the limits for a layout allow, which go by the codecs of the crate.
        Ok(BodyOutline { bytes: 8, held: 1, scratch_words: 1 << 17 })
    }

    fn check(&self, body: &UnitBody<'_>, scratch: &mut [u32]) -> Result<(), Refused> {
        for (word, bytes) in scratch.iter_mut().zip(body.bytes.chunks_exact(4)) {
            *word = u32::from_le_bytes(bytes.try_into().unwrap());
        }
        if f32::from_bits(scratch[1]).abs() > self.most.1 {
            Err(Refused::new("too large to read"))
        } else {
            Ok(())
        }
    }

    fn visit(&self, _: &UnitBody<'_>, scratch: &[u32], f: &mut dyn FnMut(usize, f32)) {
        f(scratch[0] as usize, f32::from_bits(scratch[1]));
    }
}

impl EncodeBody for Largest {
    fn law(&self) -> Law {
        Law::Exact
    }

    fn max_body_bytes(&self, _: usize) -> Option<usize> {
        Some(8)
    }

    fn max_parse_words(&self, _: usize) -> usize {
        1 << 17
    }

    fn encode_body(
        &self,
        _: &UnitSource<'_>,
        values: &[f32],
        _: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, Refused> {
        let larger = |best: usize, at: usize| if values[at].abs() > values[best].abs() { at } else { best };
        let at = (0..values.len()).fold(0, larger);
        if values[at].abs() > self.most.0 {
            return Err(Refused::new("too large to send"));
        }
        out[..4].copy_from_slice(&(at as u32).to_le_bytes());
        out[4..].copy_from_slice(&values[at].to_le_bytes());
        Ok(8)
    }
}

/// Sums of sixteenths, rounded down; what is rounded off is kept.
#[derive(Debug)]
struct Sixteenths;

impl Linear for Sixteenths {
    fn round_scratch_len(&self, _: &LayoutRef<'_>, unit: &Unit, _: u32) -> LinearScratchLen {
        LinearScratchLen { words: unit.len, floats: unit.len, ints: unit.len }
    }

    fn held(&self, len: usize) -> usize {
        len
    }

    fn begin(
        &self,
        step: &UnitStep<'_>,
        grad: Grad<'_>,
        memory: Option<MemoryView<'_>>,
        scratch: &mut LinearScratch<'_>,
    ) -> Result<Round, EncodeError> {
        let Grad::F32(grad) = grad else { panic!("a gradient of f32") };
        let residual = memory.expect("a memory").residual;
        for (at, (grad, kept)) in grad.iter().zip(residual).enumerate() {
            let p = kept + grad;
            scratch.words[at] = p.to_bits();
            scratch.ints[at] = (p * 16.0).floor() as i32;
            scratch.floats[at] = scratch.ints[at] as f32 / 16.0;
        }
        Ok(Round { index: 0, reduction: Reduction::SumI32, unit: *step.unit, payload_len: step.unit.len })
    }

    fn payload<'s>(&self, round: &Round, scratch: &'s mut LinearScratch<'_>) -> Payload<'s> {
        Payload::I32(&mut scratch.ints[..round.payload_len])
    }

    fn advance(
        &self,
        step: &UnitStep<'_>,
        round: Round,
        scratch: &mut LinearScratch<'_>,
        mean: &mut [f32],
        memory: Option<&mut Memory<'_>>,
    ) -> Option<Round> {
        let residual = memory.expect("a memory").residual_mut();
        for at in 0..round.unit.len {
            mean[at] = scratch.ints[at] as f32 / 16.0 / step.workers as f32;
            residual[at] = f32::from_bits(scratch.words[at]) - scratch.floats[at];
        }
        None
    }
}

fn layout() -> Layout {
    Layout::packed([("w", vec![20, 33]), ("b", vec![33]), ("v", vec![7, 11])]).unwrap()
}

/// Every tensor a unit; that of one dimension is sent dense.
fn units() -> UnitPolicy {
    Spec::parse("topk:density=0.1,unit=tensor,dense_1d=true").unwrap().units
}

fn gradient(rank: u32, step: u64) -> Vec<f32> {
    let stream = StepKey { seed: 9, step, source: Source::Rank(rank) }.stream(0);
    (0..layout().len() as u64).map(|at| (stream.u64_at(at) as u32 % 4001) as f32 / 256.0 - 7.8).collect()
}

/// One worker: its exchange and what it keeps.
struct Worker {
    transport: Box<dyn Transport>,
    exchange: Exchange,
    residual: Vec<f32>,
}

impl Worker {
    fn rank(&self) -> u32 {
        self.transport.rank().0
    }

    fn step(&mut self, step: u64, grad: &[f32]) -> Result<(Vec<f32>, Report), ExchangeError> {
        let key = StepKey { seed: 7, step, source: Source::Rank(self.rank()) };
        let (deadline, mut mean) = (Deadline::after(Duration::from_secs(60)), vec![f32::NAN; grad.len()]);
        let (transport, mut memory) = (self.transport.as_mut(), Memory::new(&mut self.residual));
        self.exchange.start(transport, key, Grad::F32(grad), Some(&mut memory), deadline)?;
        let report = self.exchange.finish(transport, &mut mean, Some(&mut memory), deadline)?;
        Ok((mean, report))
    }
}

/// Runs one closure a rank on threads of their own, with the exchange that `make` gives the rank.
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

fn own(codec: Largest, route: Route) -> Exchange {
    Exchange::new(Plan::of_gather(Experimental(codec), units(), &layout().as_ref()), layout(), route).unwrap()
}

/// Means and residuals of some steps.
fn run(worker: &mut Worker) -> Vec<(Vec<u32>, Vec<u32>)> {
    let step = |step| {
        let mean = worker.step(step, &gradient(worker.rank(), step)).unwrap().0;
        (bits(&mean), bits(&worker.residual))
    };
    (0..5).map(step).collect()
}

#[test]
fn any_gather_codec_gives_what_its_spelling_gives() {
    let spec = Spec::parse("topk:density=0.1,index=raw,unit=tensor,dense_1d=true").unwrap();
    let codec = TopK::new(Density::new(0.1).unwrap(), IndexChoice::Raw, ValueChoice::F32);
    for route in [Route::AllGather, Route::Server(ServerOptions::default())] {
        let spelled = on_ranks(3, |_| Exchange::new(spec, layout(), route.clone()).unwrap(), run);
        let given = |_| {
            Exchange::new(Plan::of_gather(codec, spec.units, &layout().as_ref()), layout(), route.clone())
                .unwrap()
        };
        assert_eq!(on_ranks(3, given, run), spelled, "{route:?}");
    }
}

#[test]
fn any_linear_codec_gives_what_its_spelling_gives() {
    let spec = Spec::parse("none").unwrap();
    let wire = Wire::F32;
    for route in [Route::AllReduce { wire }, Route::Tree { wire }] {
        let means = |worker: &mut Worker| run(worker).into_iter().map(|(mean, _)| mean).collect::<Vec<_>>();
        let spelled = on_ranks(3, |_| Exchange::new(spec, layout(), route.clone()).unwrap(), means);
        let given = |_| {
            Exchange::new(Plan::of_linear(DenseSum, spec.units, &layout().as_ref()), layout(), route.clone())
                .unwrap()
        };
        assert_eq!(on_ranks(3, given, means), spelled, "{route:?}");
    }
}

#[test]
fn an_experiment_is_summed_in_rank_order_and_keeps_what_it_does_not_send() {
    for (route, parts) in
        [(Route::AllGather, 1), (Route::AllGather, 3), (Route::Server(ServerOptions::default()), 1)]
    {
        let make = |_| {
            let exchange = own(PLAIN, route.clone());
            if parts > 1 { exchange.pipelined(parts).unwrap() } else { exchange }
        };
        let steps = on_ranks(3, make, |worker| {
            let step = |step| {
                let p = added(&worker.residual, &gradient(worker.rank(), step));
                let (mean, report) = worker.step(step, &gradient(worker.rank(), step)).unwrap();
                // One coordinate of each of two tensors, and one tensor dense.
                assert_eq!((report.held, report.contributors.len()), (2 + 33, 3));
                let sent: Vec<f32> = p.iter().zip(&worker.residual).map(|(p, kept)| p - kept).collect();
                assert_eq!(sent.iter().filter(|value| **value != 0.0).count(), 35);
                (mean, sent)
            };
            (0..4).map(step).collect::<Vec<_>>()
        });
        for step in 0..4 {
            let sums = steps.iter().fold(vec![0.0; layout().len()], |sum, rank| added(&sum, &rank[step].1));
            let expected: Vec<f32> = sums.iter().map(|sum| sum / 3.0).collect();
            steps.iter().for_each(|rank| assert_eq!(bits(&rank[step].0), bits(&expected), "{route:?}"));
        }
    }
}

#[test]
fn a_frame_of_another_experiment_is_refused_and_everything_is_kept() {
    let make = |rank| own(Largest { number: 0xf5 + rank as u8, ..PLAIN }, Route::AllGather);
    on_ranks(2, make, |worker| {
        let (rank, grad) = (worker.rank(), gradient(worker.rank(), 0));
        let error = DecodeError::UnknownCodec(0xf5 + 1 - rank as u8);
        let refused = ExchangeError::Frame { rank: Rank(1 - rank), error };
        assert_eq!(worker.step(0, &grad).unwrap_err(), refused);
        assert_eq!(bits(&worker.residual), bits(&grad));
    });
}

#[test]
fn what_the_parser_refuses_is_named_with_rank_and_unit_and_given_back() {
    // The server reads no value above 9; only rank 1 sends one, in the unit of the last tensor.
    let options = ServerOptions { quorum: 2, ..ServerOptions::default() };
    let make = |rank| {
        let most = (f32::MAX, if rank == 0 { 9.0 } else { f32::MAX });
        own(Largest { most, ..PLAIN }, Route::Server(options.clone()))
    };
    on_ranks(3, make, |worker| {
        let mut grad = gradient(worker.rank(), 0);
        if worker.rank() == 1 {
            grad[700] = 12.0;
        }
        let (_, report) = worker.step(0, &grad).unwrap();
        assert_eq!(report.contributors.as_slice(), [Rank(0), Rank(2)]);
        let error = DecodeError::Experiment { unit: 2, why: "too large to read" };
        let refused = if worker.rank() == 0 { vec![(Rank(1), error)] } else { vec![] };
        assert_eq!(report.refused, refused);
        assert_eq!(worker.rank() == 1, bits(&worker.residual) == bits(&grad));
    });
}

#[test]
fn a_gradient_that_the_codec_refuses_makes_the_step_void_for_all() {
    let server = ServerOptions { server: Rank(1), ..ServerOptions::default() };
    for route in [Route::AllGather, Route::Server(server)] {
        let make = |_| own(Largest { most: (100.0, f32::MAX), ..PLAIN }, route.clone());
        on_ranks(3, make, |worker| {
            let mut grad = gradient(worker.rank(), 0);
            if worker.rank() == 2 {
                grad[5] = 101.0;
            }
            let kept = if worker.rank() == 2 { vec![0.0; grad.len()] } else { grad.clone() };
            match worker.step(0, &grad).unwrap_err() {
                ExchangeError::Encode(error) => {
                    let (unit, index, why) = (0, 0, "too large to send");
                    assert_eq!((worker.rank(), error), (2, EncodeError::Experiment { unit, index, why }));
                }
                ExchangeError::Void { rank: Rank(2), index: 0 } => assert_eq!(route, Route::AllGather),
                ExchangeError::NoQuorum { void: Some((Rank(2), 0)), .. } => {}
                other => panic!("{other}"),
            }
            assert_eq!(bits(&worker.residual), bits(&kept));
        });
    }
}

#[test]
fn a_linear_codec_of_another_crate_keeps_what_it_rounds_off() {
    let wire = Wire::F32;
    for route in [Route::AllReduce { wire }, Route::Tree { wire }] {
        let make = |_| {
            Exchange::new(
                Plan::of_linear(Sixteenths, UnitPolicy::default(), &layout().as_ref()),
                layout(),
                route.clone(),
            )
            .unwrap()
        };
        let steps = on_ranks(4, make, |worker| {
            let step = |step| {
                let p = added(&worker.residual, &gradient(worker.rank(), step));
                let mean = worker.step(step, &gradient(worker.rank(), step)).unwrap().0;
                assert!(worker.residual.iter().any(|kept| *kept > 0.0));
                let sent: Vec<f32> = p.iter().zip(&worker.residual).map(|(p, kept)| p - kept).collect();
                (mean, sent)
            };
            (0..4).map(step).collect::<Vec<_>>()
        });
        for step in 0..4 {
            let sums = steps.iter().fold(vec![0.0; layout().len()], |sum, rank| added(&sum, &rank[step].1));
            let expected: Vec<f32> = sums.iter().map(|sum| sum / 4.0).collect();
            steps.iter().for_each(|rank| assert_eq!(rank[step].0, expected, "{route:?}"));
        }
    }
}

#[test]
fn routes_that_need_more_of_a_codec_refuse_it_by_name() {
    let wire = Wire::F32;
    let gather = |route| {
        Exchange::new(Plan::of_gather(Experimental(PLAIN), units(), &layout().as_ref()), layout(), route)
            .map(|_| ())
    };
    let linear = |route| {
        Exchange::new(Plan::of_linear(Sixteenths, units(), &layout().as_ref()), layout(), route).map(|_| ())
    };
    let name = |refused: Result<(), ExchangeError>| match refused.unwrap_err() {
        ExchangeError::NotSparse { codec } => ("sparse", codec),
        ExchangeError::NotLinear { codec } => ("linear", codec),
        ExchangeError::NoFrames { codec } => ("frames", codec),
        other => panic!("{other}"),
    };
    for (refused, missing, codec) in [
        (gather(Route::SparseAllReduce), "sparse", "Largest"),
        (gather(Route::AllReduce { wire }), "linear", "Largest"),
        (gather(Route::Tree { wire }), "linear", "Largest"),
        (gather(Route::Native { wire }), "linear", "Largest"),
        (linear(Route::AllGather), "frames", "Sixteenths"),
        (linear(Route::SparseAllReduce), "frames", "Sixteenths"),
    ] {
        let (what, name) = name(refused);
        assert!(what == missing && name.contains(codec), "{what}: {name}");
    }
}

/// A codec that can sum the payloads of two workers.
struct Pair;

impl Linear for Pair {
    fn round_scratch_len(&self, layout: &LayoutRef<'_>, unit: &Unit, workers: u32) -> LinearScratchLen {
        Sixteenths.round_scratch_len(layout, unit, workers)
    }

    fn held(&self, len: usize) -> usize {
        len
    }

    fn most_contributors(&self) -> u32 {
        2
    }

    fn begin(
        &self,
        step: &UnitStep<'_>,
        grad: Grad<'_>,
        memory: Option<MemoryView<'_>>,
        scratch: &mut LinearScratch<'_>,
    ) -> Result<Round, EncodeError> {
        Sixteenths.begin(step, grad, memory, scratch)
    }

    fn payload<'s>(&self, round: &Round, scratch: &'s mut LinearScratch<'_>) -> Payload<'s> {
        Sixteenths.payload(round, scratch)
    }

    fn advance(
        &self,
        step: &UnitStep<'_>,
        round: Round,
        scratch: &mut LinearScratch<'_>,
        mean: &mut [f32],
        memory: Option<&mut Memory<'_>>,
    ) -> Option<Round> {
        Sixteenths.advance(step, round, scratch, mean, memory)
    }
}

#[test]
fn more_workers_than_a_codec_of_another_crate_can_sum_are_refused_by_its_name() {
    let route = Route::AllReduce { wire: Wire::F32 };
    let make = |_| {
        Exchange::new(
            Plan::of_linear(Pair, UnitPolicy::default(), &layout().as_ref()),
            layout(),
            route.clone(),
        )
        .unwrap()
    };
    on_ranks(3, make, |worker| {
        let refused = worker.step(0, &gradient(worker.rank(), 0)).unwrap_err();
        let ExchangeError::TooManyWorkers { codec, workers: 3, most: 2 } = refused else {
            panic!("{refused}")
        };
        assert!(codec.contains("Pair"), "{codec}");
    });
    on_ranks(2, make, |worker| worker.step(0, &gradient(worker.rank(), 0)).map(drop).unwrap());
}

/// Writes frames that nobody can read, itself included.
#[derive(Clone, Copy)]
struct Unreadable(TopK);

impl Gather for Unreadable {
    fn id(&self) -> CodecId {
        self.0.id()
    }

    fn max_frame_bytes(&self, units: &[Unit]) -> Option<usize> {
        self.0.max_frame_bytes(units)
    }

    fn scratch_len(&self, units: &[Unit]) -> ScratchLen {
        self.0.scratch_len(units)
    }

    fn encode(
        &self,
        step: &StepInput<'_>,
        memory: Option<&mut Memory<'_>>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        let bytes = self.0.encode(step, memory, scratch, out)?;
        out[bytes - 1] ^= 1;
        Ok(bytes)
    }

    fn packet_scratch_len(&self, units: &[Unit], size: PacketSize) -> ScratchLen {
        self.0.packet_scratch_len(units, size)
    }

    fn packets<'a>(
        &'a self,
        step: &StepInput<'a>,
        memory: Option<&'a mut Memory<'_>>,
        scratch: &'a mut Scratch<'_>,
        size: PacketSize,
    ) -> Result<Packets<'a>, EncodeError> {
        self.0.packets(step, memory, scratch, size)
    }
}

#[test]
fn a_frame_that_cannot_be_given_back_is_named_with_why_the_step_failed() {
    let codec = TopK::new(Density::new(0.1).unwrap(), IndexChoice::Raw, ValueChoice::F32);
    let quorum = ServerOptions { quorum: 1, ..ServerOptions::default() };
    for route in [Route::AllGather, Route::Server(ServerOptions::default()), Route::Server(quorum)] {
        let make = |rank| match rank {
            1 => Exchange::new(
                Plan::of_gather(Unreadable(codec), units(), &layout().as_ref()),
                layout(),
                route.clone(),
            )
            .unwrap(),
            _ => Exchange::new(Plan::of_gather(codec, units(), &layout().as_ref()), layout(), route.clone())
                .unwrap(),
        };
        on_ranks(2, make, |worker| {
            let (rank, grad) = (worker.rank(), gradient(worker.rank(), 0));
            let result = worker.step(0, &grad).map(|(_, report)| report.contributors.len());
            if rank == 0 {
                let whole = bits(&worker.residual) == bits(&grad);
                assert_eq!(whole, result.is_err(), "{route:?}");
                return;
            }
            let Err(ExchangeError::NotGivenBack { error: DecodeError::ChecksumMismatch { .. }, cause }) =
                result
            else {
                panic!("{route:?}: {result:?}")
            };
            match (&route, *cause) {
                (Route::Server(ServerOptions { quorum: 0, .. }), ExchangeError::NoQuorum { .. }) => {}
                // By all-gather, or as a worker without whom the step goes on, it reads its own frame.
                (Route::AllGather | Route::Server(_), ExchangeError::Frame { rank: Rank(1), .. }) => {}
                other => panic!("{other:?}"),
            }
        });
    }
}

#[test]
fn a_frame_that_cannot_be_given_back_is_no_matter_where_a_void_step_is_undone() {
    let codec = TopK::new(Density::new(0.1).unwrap(), IndexChoice::Raw, ValueChoice::F32);
    let make = |rank| match rank {
        1 => Exchange::new(
            Plan::of_gather(Unreadable(codec), units(), &layout().as_ref()),
            layout(),
            Route::AllGather,
        )
        .unwrap(),
        _ => Exchange::new(Plan::of_gather(codec, units(), &layout().as_ref()), layout(), Route::AllGather)
            .unwrap(),
    };
    on_ranks(
        2,
        |rank| make(rank).undoing(),
        |worker| {
            let mut grad = gradient(worker.rank(), 0);
            if worker.rank() == 0 {
                grad[9] = f32::NAN;
            }
            let error = worker.step(0, &grad).unwrap_err();
            if worker.rank() == 1 {
                assert_eq!(error, ExchangeError::Void { rank: Rank(0), index: 9 });
            }
            assert_eq!(bits(&worker.residual), vec![0; grad.len()]);
        },
    );
}

#[test]
fn an_exchange_with_a_codec_of_another_crate_keeps_it() {
    let mut exchange = own(PLAIN, Route::AllGather);
    let refused = exchange.set_codec(Codec::NONE).unwrap_err();
    assert!(
        matches!(refused, ExchangeError::Conflict { codec, .. } if codec.contains("Largest")),
        "{refused}"
    );
    assert_eq!(exchange.set_density(Density::new(0.5).unwrap()), Ok(()));
    assert!(format!("{exchange:?}").contains("Largest"));
    assert_eq!(exchange.units().iter().map(|unit| unit.dense).collect::<Vec<_>>(), [false, true, false]);
}
