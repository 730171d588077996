//! Ranks of two versions refuse each other by name, on every route.

use std::thread;

use gradwire::plan::ToPlan;
use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey};
use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{Exchange, ExchangeError, NewPart, Route, ServerOptions};
use gradwire_transports::gossip::{Mixer, Topology};
use gradwire_transports::local::{self, LocalTransport};
use gradwire_transports::{Deadline, Rank, Tag, Transport, TransportError, Wanted};

use crate::common::forward::forward_to;

/// The last byte of every message of this version.
const VERSION: u8 = 0xe1;

/// The end of a rank of the next version: its messages have that version, and those of all others have the
/// version before its own.
struct Newer(LocalTransport);

impl Newer {
    fn change(message: &mut [u8]) {
        let last = message.last_mut().expect("every message ends with a version");
        assert_eq!(*last, VERSION);
        *last += 1;
    }
}

impl Transport for Newer {
    forward_to!(0);

    fn is_fail_stop(&self) -> bool {
        self.0.is_fail_stop()
    }

    fn send(&mut self, to: Rank, tag: Tag, payload: &[u8], by: Deadline) -> Result<(), TransportError> {
        let mut changed = payload.to_vec();
        Self::change(&mut changed);
        self.0.send(to, tag, &changed, by)
    }

    fn send_packet(
        &mut self,
        to: Rank,
        tag: Tag,
        payload: &[u8],
        until: Deadline,
    ) -> Result<(), TransportError> {
        self.0.send_packet(to, tag, payload, until)
    }

    fn recv_any(
        &mut self,
        wanted: &[Wanted],
        into: &mut Vec<u8>,
        by: Deadline,
    ) -> Result<(Rank, Tag), TransportError> {
        let received = self.0.recv_any(wanted, into, by)?;
        Self::change(into);
        Ok(received)
    }
}

fn layout() -> Layout {
    Layout::packed([("w", vec![20, 30]), ("b", vec![30])]).unwrap()
}

fn key(rank: Rank) -> StepKey {
    StepKey { seed: 7, step: 3, source: Source::Rank(rank.0) }
}

/// Runs a step at two ranks, of which the second is newer; each gives the error that it got.
fn errors(step: impl Fn(&mut dyn Transport) -> ExchangeError + Sync) -> [ExchangeError; 2] {
    let [first, second] = <[LocalTransport; 2]>::try_from(local::world(2)).unwrap();
    let (mut first, mut second, step) = (first, Newer(second), &step);
    thread::scope(|scope| {
        let newer = scope.spawn(move || step(&mut second));
        let older = step(&mut first);
        [older, newer.join().unwrap()]
    })
}

fn by_name() -> [ExchangeError; 2] {
    [Rank(1), Rank(0)].map(|rank| ExchangeError::OtherVersion { rank, theirs: 2, own: 1 })
}

/// A whole step; steps that fail do not change the memory.
fn step(end: &mut dyn Transport, mut exchange: Exchange, spec: Spec) -> ExchangeError {
    let (rank, layout) = (end.rank(), layout());
    let mut memory = Memory::for_plan(&spec.to_plan(&layout.as_ref()), &layout.as_ref());
    let (grad, mut mean) = (vec![1.0; layout.len()], vec![0.0; layout.len()]);
    let started = exchange.start(end, key(rank), Grad::F32(&grad), memory.as_mut(), Deadline::NEVER);
    let error = started.and_then(|()| {
        exchange.finish(end, &mut mean, memory.as_mut(), Deadline::NEVER).map(|report| panic!("{report:?}"))
    });
    let error = error.unwrap_err();
    assert!(memory.is_none_or(|memory| memory.residual().iter().all(|kept| *kept == 0.0)));
    error
}

#[test]
fn whole_steps_of_two_versions_are_refused_by_every_route() {
    let sums = [
        ("none", Route::AllReduce { wire: Wire::F32 }),
        ("randomk:density=0.3", Route::AllReduce { wire: Wire::Bf16 }),
        ("none", Route::Tree { wire: Wire::F32 }),
        ("maxnorm:bits=6", Route::Owners { wire: Wire::F32 }),
    ];
    let frames = [
        ("topk:density=0.1", Route::AllGather),
        ("none", Route::AllGather),
        ("topk:density=0.1", Route::SparseAllReduce),
        ("topk:density=0.1", Route::Server(ServerOptions::default())),
        ("none:max_packet_bytes=64", Route::Server(ServerOptions::default())),
    ];
    for votes in [false, true] {
        for (spelling, route) in sums.iter().chain(&frames) {
            let spec = Spec::parse(spelling).unwrap();
            let found = errors(|end| {
                let exchange = Exchange::new(spec, layout(), route.clone()).unwrap().undoing();
                step(end, if votes { exchange.voting() } else { exchange }, spec)
            });
            assert_eq!(found, by_name(), "{spelling} by {route:?}");
        }
    }
}

/// One worker must not be able to fail the steps of all: what has another version may be damaged.
#[test]
fn a_server_makes_the_mean_without_a_worker_of_another_version() {
    for spelling in ["topk:density=0.1", "none", "none:max_packet_bytes=64"] {
        let spec = Spec::parse(spelling).unwrap();
        let end_of = |end: &mut dyn Transport| {
            let options = ServerOptions { quorum: 2, ..ServerOptions::default() };
            let mut exchange = Exchange::new(spec, layout(), Route::Server(options)).unwrap().undoing();
            let (grad, mut mean) = (vec![1.0; layout().len()], vec![0.0; layout().len()]);
            let mut memory = Memory::for_plan(&spec.to_plan(&layout().as_ref()), &layout().as_ref());
            let rank = end.rank();
            exchange.start(end, key(rank), Grad::F32(&grad), memory.as_mut(), Deadline::NEVER)?;
            exchange.finish(end, &mut mean, memory.as_mut(), Deadline::NEVER)
        };
        let [mut server, mut worker, newer] = <[LocalTransport; 3]>::try_from(local::world(3)).unwrap();
        let mut newer = Newer(newer);
        thread::scope(|scope| {
            let newer = scope.spawn(|| end_of(&mut newer));
            let worker = scope.spawn(|| end_of(&mut worker));
            let report = end_of(&mut server).unwrap();
            assert_eq!(report.contributors.iter().collect::<Vec<_>>(), [Rank(0), Rank(1)], "{spelling}");
            let has_frames = spec.packets.is_none();
            assert_eq!(report.refused.iter().any(|(rank, _)| *rank == Rank(2)), has_frames, "{spelling}");
            assert_eq!(worker.join().unwrap().unwrap().contributors, report.contributors);
            let error = newer.join().unwrap().unwrap_err();
            assert_eq!(error, ExchangeError::OtherVersion { rank: Rank(0), theirs: 2, own: 1 }, "{spelling}");
        });
    }
}

#[test]
fn added_parts_of_two_versions_are_refused() {
    for (spelling, route) in [
        ("topk:density=0.1,unit=tensor", Route::AllGather),
        ("maxnorm:bits=6,unit=tensor", Route::Owners { wire: Wire::F32 }),
    ] {
        let spec = Spec::parse(spelling).unwrap();
        let found = errors(|end| {
            let mut exchange = Exchange::new(spec, layout(), route.clone()).unwrap();
            let mut memory = Memory::for_spec(&spec, &layout().as_ref());
            let (grad, mut mean) = (vec![1.0; layout().len()], vec![0.0; layout().len()]);
            let step = key(end.rank());
            exchange.start_in_parts(end, step, memory.as_ref(), Deadline::NEVER).unwrap();
            for unit in 0..2 {
                let part = NewPart { units: &[unit], ..NewPart::default() };
                exchange.add_part(end, &part, Grad::F32(&grad), memory.as_mut()).unwrap();
            }
            exchange.finish(end, &mut mean, memory.as_mut(), Deadline::NEVER).unwrap_err()
        });
        assert_eq!(found, by_name(), "{spelling} by {route:?}");
    }
}

#[test]
fn gossip_of_two_versions_is_refused() {
    let found = errors(|end| {
        let mut mixer = Mixer::new(Spec::parse("dpsgd").unwrap(), layout(), Topology::Ring).unwrap();
        let mut model = vec![1.0; layout().len()];
        let step = key(end.rank());
        mixer.mix(end, step, &mut model, Deadline::NEVER).unwrap_err()
    });
    assert_eq!(found, by_name());
}
