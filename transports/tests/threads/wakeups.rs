//! How often the driver sleeps in a step: once for each message that the step needs, and never to look.

use std::sync::Barrier;
use std::thread;

use gradwire::plan::ToPlan;
use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey};
use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{Exchange, Route, ServerOptions};
use gradwire_transports::local::{self, LocalTransport};
use gradwire_transports::{Deadline, Rank, Tag, Transport, TransportError, Wanted};

use crate::common::forward::forward_to;

/// Counts the calls in which its rank sleeps.
struct Counting {
    inner: LocalTransport,
    sleeps: u64,
}

impl Transport for Counting {
    forward_to!(inner);

    fn is_fail_stop(&self) -> bool {
        self.inner.is_fail_stop()
    }

    fn send(&mut self, to: Rank, tag: Tag, payload: &[u8], by: Deadline) -> Result<(), TransportError> {
        self.inner.send(to, tag, payload, by)
    }

    fn recv_any(
        &mut self,
        wanted: &[Wanted],
        into: &mut Vec<u8>,
        by: Deadline,
    ) -> Result<(Rank, Tag), TransportError> {
        self.sleeps += 1;
        self.inner.recv_any(wanted, into, by)
    }
}

const STEPS: u64 = 5;

/// Sleeps and received messages of one rank in all steps.
fn steps(
    inner: LocalTransport,
    spec: Spec,
    mut exchange: Exchange,
    layout: &Layout,
    all_done: &Barrier,
) -> (u64, u64) {
    let mut transport = Counting { inner, sleeps: 0 };
    let rank = transport.rank().0;
    let mut memory = Memory::for_plan(&spec.to_plan(&layout.as_ref()), &layout.as_ref());
    let (grad, mut mean) = (vec![0.5; layout.len()], vec![0.0; layout.len()]);
    for step in 0..STEPS {
        let key = StepKey { seed: 7, step, source: Source::Rank(rank) };
        let never = Deadline::NEVER;
        exchange.start(&mut transport, key, Grad::F32(&grad), memory.as_mut(), never).unwrap();
        exchange.finish(&mut transport, &mut mean, memory.as_mut(), never).unwrap();
    }
    // A rank that leaves wakes those that still wait for another one.
    all_done.wait();
    (transport.sleeps, transport.counters().down.messages)
}

#[test]
fn a_step_wakes_up_once_for_each_message_that_it_needs() {
    let server = Route::Server(ServerOptions::default());
    let topk = "topk:density=0.1";
    // For each of three ranks, the times that it sleeps in a step.
    for (spelling, route, votes, each) in [
        (topk, Route::AllGather, false, [2, 2, 2]),
        (topk, Route::AllGather, true, [4, 4, 4]),
        (topk, Route::SparseAllReduce, false, [4, 4, 4]),
        ("none", Route::AllReduce { wire: Wire::F32 }, false, [4, 4, 4]),
        ("none", Route::Tree { wire: Wire::F32 }, false, [2, 1, 1]),
        ("none", Route::Owners { wire: Wire::F32 }, false, [4, 4, 4]),
        ("maxnorm:bits=6", Route::Owners { wire: Wire::F32 }, false, [8, 8, 8]),
        (topk, server, false, [2, 1, 1]),
    ] {
        let (spec, layout) = (Spec::parse(spelling).unwrap(), Layout::packed([("w", vec![40, 9])]).unwrap());
        let all_done = Barrier::new(3);
        let counted: Vec<(u64, u64)> = thread::scope(|scope| {
            let ranks = local::world(3).into_iter().map(|end| {
                let exchange = Exchange::new(spec, layout.clone(), route.clone()).unwrap();
                let exchange = if votes { exchange.voting() } else { exchange };
                let (layout, all_done) = (&layout, &all_done);
                scope.spawn(move || steps(end, spec, exchange, layout, all_done))
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        for (rank, ((sleeps, received), each)) in counted.into_iter().zip(each).enumerate() {
            assert_eq!(sleeps, STEPS * each, "{spelling} by {route:?}, votes {votes}, rank {rank}");
            assert_eq!(received, sleeps, "a sleep for each message");
        }
    }
}
