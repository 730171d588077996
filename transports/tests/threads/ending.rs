//! Steps over a transport that may lose messages end alike at all ranks, wherever a connection breaks.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey};
use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{Exchange, ExchangeError, Route};
use gradwire_transports::local::LocalTransport;
use gradwire_transports::{Deadline, Rank, Tag, Transport, TransportError, Wanted, local};

use crate::common::forward::forward_to;

const RING: Route = Route::AllReduce { wire: Wire::F32 };

fn cases() -> [(&'static str, Route, usize); 6] {
    [
        ("topk:density=0.05", Route::AllGather, 1),
        ("topk:density=0.05,unit=tensor", Route::AllGather, 3),
        ("topk:density=0.05", Route::SparseAllReduce, 1),
        ("topk:density=0.05,unit=tensor", Route::SparseAllReduce, 3),
        ("randomk:density=0.1,unit=tensor", RING, 1),
        ("randomk:density=0.1,unit=tensor", RING, 3),
    ]
}

fn layout() -> Layout {
    Layout::packed([("w", vec![20, 33]), ("b", vec![330]), ("v", vec![7, 41])]).unwrap()
}

fn gradient(rank: u32, step: u64) -> Vec<f32> {
    let stream = StepKey { seed: 99, step, source: Source::Rank(rank) }.stream(0);
    let value = |at| (stream.u64_at(at) as u32 as f32 / u32::MAX as f32 - 0.5).powi(3) * 16.0;
    (0..layout().len() as u64).map(value).collect()
}

/// A connection in one direction that carries so many messages, and then breaks.
#[derive(Clone, Copy, Debug)]
struct Break {
    from: Rank,
    to: Rank,
    after: usize,
}

/// What all ends share: the break, and how many messages each connection has carried.
#[derive(Debug, Default)]
struct Wires {
    broken: Option<Break>,
    carried: Vec<(Rank, Rank)>,
}

impl Wires {
    fn carried(&self, from: Rank, to: Rank) -> usize {
        self.carried.iter().filter(|wire| **wire == (from, to)).count()
    }

    fn is_broken(&self, from: Rank, to: Rank) -> bool {
        let broken = self.broken.filter(|broken| (broken.from, broken.to) == (from, to));
        broken.is_some_and(|broken| self.carried(from, to) >= broken.after)
    }
}

/// Loses what is sent over a broken connection. Its sender does not notice; its receiver does, once it has
/// all that came before.
struct Breaking {
    inner: LocalTransport,
    wires: Arc<Mutex<Wires>>,
    is_fail_stop: bool,
}

impl Transport for Breaking {
    forward_to!(inner);

    fn is_fail_stop(&self) -> bool {
        self.is_fail_stop
    }

    fn send(&mut self, to: Rank, tag: Tag, payload: &[u8], by: Deadline) -> Result<(), TransportError> {
        let mut wires = self.wires.lock().unwrap();
        let me = self.inner.rank();
        if wires.is_broken(me, to) {
            return Ok(());
        }
        self.inner.send(to, tag, payload, by)?;
        wires.carried.push((me, to));
        Ok(())
    }

    fn recv_any(
        &mut self,
        wanted: &[Wanted],
        into: &mut Vec<u8>,
        by: Deadline,
    ) -> Result<(Rank, Tag), TransportError> {
        loop {
            // Asked before the look: what came before the break is in the inbox then.
            let (wires, me) = (self.wires.lock().unwrap(), self.inner.rank());
            let broken = wanted.iter().find(|wanted| wires.is_broken(wanted.from, me)).copied();
            drop(wires);
            let until = by.earlier(Deadline::after(Duration::from_millis(1)));
            match (self.inner.recv_any(wanted, into, until), broken) {
                (Err(TransportError::Timeout { .. }), Some(Wanted { from: rank, .. })) => {
                    return Err(TransportError::Disconnected { rank });
                }
                (Err(TransportError::Timeout { .. }), None) if !by.has_passed() => {}
                (other, _) => return other,
            }
        }
    }
}

type Outcome = Result<Vec<u32>, ExchangeError>;

/// What a rank has after a step: the mean or why there is none, and its residual.
type After = (Outcome, Vec<u32>);

struct Worker {
    transport: Breaking,
    exchange: Exchange,
    memory: Memory<'static>,
}

impl Worker {
    fn step(&mut self, step: u64, grad: &[f32]) -> After {
        let outcome = self.mean(step, grad);
        (outcome, bits(self.memory.residual()))
    }

    fn mean(&mut self, step: u64, grad: &[f32]) -> Outcome {
        let key = StepKey { seed: 7, step, source: Source::Rank(self.transport.rank().0) };
        // Nothing that works waits for it.
        let by = Deadline::after(Duration::from_secs(120));
        let mut mean = vec![f32::NAN; grad.len()];
        self.exchange.start(&mut self.transport, key, Grad::F32(grad), Some(&mut self.memory), by)?;
        self.exchange.finish(&mut self.transport, &mut mean, Some(&mut self.memory), by)?;
        Ok(bits(&mean))
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// A world and its wires.
fn world(
    size: u32,
    (spec, route, messages): &(&str, Route, usize),
    is_fail_stop: bool,
) -> (Vec<Worker>, Arc<Mutex<Wires>>) {
    let wires = Arc::new(Mutex::new(Wires::default()));
    let workers = local::world(size).into_iter().map(|inner| {
        let spec = Spec::parse(spec).unwrap();
        let memory = Memory::for_spec(&spec, &layout().as_ref()).unwrap();
        let mut exchange = Exchange::new(spec, layout(), route.clone()).unwrap().undoing();
        if *messages > 1 {
            exchange = exchange.pipelined(*messages).unwrap();
        }
        Worker { transport: Breaking { inner, wires: Arc::clone(&wires), is_fail_stop }, exchange, memory }
    });
    (workers.collect(), wires)
}

/// One step of all ranks, on threads.
fn step(workers: &mut [Worker], step: u64, grad: impl Fn(u32) -> Vec<f32> + Sync) -> Vec<After> {
    let run = |worker: &mut Worker| worker.step(step, &grad(worker.transport.rank().0));
    let run = &run;
    thread::scope(|scope| {
        let threads: Vec<_> = workers.iter_mut().map(|worker| scope.spawn(move || run(worker))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Every place at which a connection can break in a step.
fn breaks(size: u32, case: &(&str, Route, usize)) -> Vec<Break> {
    let (mut workers, wires) = world(size, case, false);
    step(&mut workers, 0, |rank| gradient(rank, 0));
    let wires = wires.lock().unwrap();
    let pairs = (0..size).flat_map(|from| (0..size).map(move |to| (Rank(from), Rank(to))));
    let places = pairs
        .filter(|(from, to)| from != to)
        .flat_map(|(from, to)| (0..=wires.carried(from, to)).map(move |after| Break { from, to, after }));
    places.collect()
}

#[test]
fn wherever_one_connection_breaks_all_ranks_end_the_step_alike() {
    for case in cases() {
        let (mut workers, _) = world(3, &case, false);
        let whole = step(&mut workers, 0, |rank| gradient(rank, 0));
        let (mut ended_well, mut failed) = (0, 0);
        for broken in breaks(3, &case) {
            let (mut workers, wires) = world(3, &case, false);
            wires.lock().unwrap().broken = Some(broken);
            let after = step(&mut workers, 0, |rank| gradient(rank, 0));
            if after.iter().all(|(outcome, _)| outcome.is_ok()) {
                assert!(after == whole, "{case:?}, {broken:?}: another mean or another residual");
                ended_well += 1;
            } else {
                for (rank, (outcome, residual)) in after.iter().enumerate() {
                    assert!(
                        outcome.is_err(),
                        "{case:?}, {broken:?}: rank {rank} has a mean, others have none"
                    );
                    assert!(!matches!(outcome, Err(ExchangeError::Undecided { .. })), "{case:?}, {broken:?}");
                    // Steps that fail are undone here.
                    assert!(residual.iter().all(|bits| *bits == 0), "{case:?}, {broken:?}, rank {rank}");
                }
                failed += 1;
            }
            // The next step goes on.
            wires.lock().unwrap().broken = None;
            let next = step(&mut workers, 1, |rank| gradient(rank, 1));
            let means: Vec<_> = next.iter().map(|(outcome, _)| outcome.as_ref().unwrap()).collect();
            assert!(means.iter().all(|mean| *mean == means[0]), "{case:?}, {broken:?}: the next step");
        }
        // A vote, a word and a healthy connection for each of six; and at least a frame.
        assert!(ended_well >= 18 && failed >= 6, "{case:?}: {ended_well} and {failed}");
    }
}

/// What the round is for: on a transport that promises more than it keeps, there is none.
#[test]
fn without_the_votes_a_frame_that_is_lost_for_one_rank_fails_the_step_there_alone() {
    let case = ("topk:density=0.05", Route::AllGather, 1);
    let (mut workers, wires) = world(3, &case, true);
    wires.lock().unwrap().broken = Some(Break { from: Rank(0), to: Rank(2), after: 0 });
    let after = step(&mut workers, 0, |rank| gradient(rank, 0));
    let has_mean: Vec<bool> = after.iter().map(|(outcome, _)| outcome.is_ok()).collect();
    assert_eq!(has_mean, [true, true, false]);
}

#[test]
fn an_end_that_is_agreed_on_costs_two_messages_of_two_bytes_to_each_peer() {
    for case in cases() {
        let sent = |is_fail_stop| {
            let (mut workers, _) = world(3, &case, is_fail_stop);
            let after = step(&mut workers, 0, |rank| gradient(rank, 0));
            let ups = workers.iter().map(|worker| worker.transport.counters().up);
            (after, ups.map(|up| (up.messages, up.payload_bytes)).collect::<Vec<_>>())
        };
        let ((plain, without), (agreed, with)) = (sent(true), sent(false));
        assert!(plain == agreed, "{case:?}");
        let more: Vec<_> = without.iter().map(|(messages, bytes)| (messages + 4, bytes + 8)).collect();
        assert_eq!(with, more, "{case:?}");
    }
}

/// Two generals: the vote is the last message of a rank that has the other's already.
#[test]
fn of_two_ranks_one_that_misses_the_vote_says_that_it_cannot_know() {
    let case = ("topk:density=0.05", Route::AllGather, 1);
    let mut undecided = 0;
    for broken in breaks(2, &case) {
        let (mut workers, wires) = world(2, &case, false);
        wires.lock().unwrap().broken = Some(broken);
        let after = step(&mut workers, 0, |rank| gradient(rank, 0));
        let [(near, _), (far, residual)] = [broken.from, broken.to].map(|rank| &after[rank.0 as usize]);
        if broken.after == 1 {
            assert!(near.is_ok(), "{broken:?}");
            assert_eq!(*far, Err(ExchangeError::Undecided { missing: broken.from }));
            assert!(residual.iter().all(|bits| *bits == 0), "{broken:?}");
            undecided += 1;
        } else {
            assert_eq!(near.is_ok(), far.is_ok(), "{broken:?}");
        }
    }
    assert_eq!(undecided, 2);
}

/// A rank that cannot encode its gradient tells all, and those who hear of it tell the one that did not.
#[test]
fn a_void_step_is_undone_by_a_rank_that_the_void_frame_did_not_reach() {
    for case in cases() {
        let mut grads: Vec<_> = (0..3).map(|rank| gradient(rank, 0)).collect();
        grads[0][5] = f32::NAN;
        let (mut workers, wires) = world(3, &case, false);
        wires.lock().unwrap().broken = Some(Break { from: Rank(0), to: Rank(2), after: 0 });
        let after = step(&mut workers, 0, |rank| grads[rank as usize].clone());
        for (rank, (outcome, residual)) in after.into_iter().enumerate() {
            let error = outcome.unwrap_err();
            let void = ExchangeError::Void { rank: Rank(0), index: 5 };
            // Whether rank 0 is heard of first, or rank 2, which may blame rank 0, is a matter of time; the
            // step failed in any case.
            let is_told = match rank {
                0 => matches!(error, ExchangeError::Encode(_)),
                1 => error == void || matches!(error, ExchangeError::NotAgreed { rank: Rank(0 | 2) }),
                _ => true,
            };
            let is_undone = residual.iter().all(|bits| *bits == 0);
            assert!(is_told && is_undone, "{case:?}, rank {rank}: {error}");
        }
    }
}
