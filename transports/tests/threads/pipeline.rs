//! A step in several parts: the mean, the memory and the replicas of a step in one, whatever the network does
//! meanwhile.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use gradwire::random::Stream;
use gradwire::{EncodeError, Grad, Layout, Memory, Source, Spec, StepKey, Unit};
use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{Exchange, ExchangeError, Report, Route, ServerOptions};
use gradwire_transports::inbox::InboxLimits;
use gradwire_transports::layer::{FaultInjector, FaultPlan, LinkSpeed, Throttle};
use gradwire_transports::local::{LocalLimits, LocalTransport};
use gradwire_transports::{
    Deadline, Membership, Rank, RankSet, Tag, Transport, TransportError, Wanted, local,
};

use crate::common::forward::forward_to;

/// Every kind of codec, by every route that has a pipeline.
const CASES: [(&str, Route); 19] = [
    ("topk:density=0.05,unit=tensor", Route::AllGather),
    ("qsgd:bits=4,bucket=64,unit=tensor,dense_1d=true", Route::AllGather),
    ("threshold:value=1.5,unit=tensor", Route::AllGather),
    ("bf16", Route::AllGather),
    ("dgc:density=0.05,unit=tensor", Route::AllGather),
    ("topk:density=0.05,unit=tensor", Route::SparseAllReduce),
    ("sidco:density=0.1,values=q8,unit=tensor,dense_1d=true", Route::SparseAllReduce),
    ("none", RING),
    ("none", Route::AllReduce { wire: Wire::Bf16 }),
    ("randomk:density=0.1,unit=tensor,dense_1d=true", RING),
    ("maxnorm:bits=4,unit=tensor,dense_1d=true", RING),
    ("maxnorm:bits=4+8,unit=tensor,dense_1d=true", RING),
    ("maxnorm:bits=4,density=0.1,unit=tensor", RING),
    ("powersgd:rank=2,unit=tensor", RING),
    ("sharedk:density=0.01,unit=tensor", RING),
    ("sharedk:density=0.01,by=leader,unit=tensor", RING),
    ("sharedk:density=0.01,by=leader,lowpass=0.25,unit=tensor", RING),
    ("sketch:density=0.05,cells=0.5,rows=3,error=workers,unit=tensor", RING),
    ("sketch:density=0.05,cells=0.5,rows=3,moments=amsgrad,unit=tensor", RING),
];
const RING: Route = Route::AllReduce { wire: Wire::F32 };

/// Five units, one of them empty.
fn layout() -> Layout {
    let tensors =
        [("w", vec![9, 20]), ("b", vec![150]), ("v", vec![12, 14]), ("none", vec![0]), ("u", vec![160])];
    Layout::packed(tensors).unwrap()
}

/// A gradient with heavy tails, different on every rank and step.
fn gradient(rank: u32, step: u64, len: usize) -> Vec<f32> {
    let stream: Stream = StepKey { seed: 99, step, source: Source::Rank(rank) }.stream(0);
    let value = |i| (stream.u64_at(i) as u32 as f32 / u32::MAX as f32 - 0.5).powi(3) * 16.0;
    (0..len as u64).map(value).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

struct Worker {
    transport: Box<dyn Transport>,
    exchange: Exchange,
    memory: Option<Memory<'static>>,
    mean: Vec<f32>,
    wait: Duration,
}

/// What a rank has after a step.
#[derive(Debug, PartialEq)]
struct Done {
    mean: Vec<u32>,
    kept: Vec<u32>,
    contributors: usize,
    held: usize,
}

impl Worker {
    fn new(transport: Box<dyn Transport>, (spec, route): &(&str, Route), messages: usize) -> Self {
        let (spec, layout) = (Spec::parse(spec).unwrap(), layout());
        let (memory, mean) = (Memory::for_spec(&spec, &layout.as_ref()), vec![f32::NAN; layout.len()]);
        let exchange = Exchange::new(spec, layout, route.clone()).unwrap().pipelined(messages).unwrap();
        Self { transport, exchange, memory, mean, wait: Duration::from_secs(60) }
    }

    fn step(&mut self, step: u64, grad: &[f32]) -> Result<Report, ExchangeError> {
        let key = StepKey { seed: 7, step, source: Source::Rank(self.transport.rank().0) };
        let (deadline, transport) = (Deadline::after(self.wait), self.transport.as_mut());
        self.exchange.start(transport, key, Grad::F32(grad), self.memory.as_mut(), deadline)?;
        self.exchange.finish(transport, &mut self.mean, self.memory.as_mut(), deadline)
    }

    fn own_gradient(&self, step: u64) -> Vec<f32> {
        gradient(self.transport.rank().0, step, self.mean.len())
    }

    /// Residual and factors.
    fn kept(&self) -> Vec<u32> {
        let memory = self.memory.as_ref();
        memory.map_or_else(Vec::new, |memory| [bits(memory.residual()), bits(memory.factors())].concat())
    }

    fn residual(&self) -> Vec<u32> {
        self.memory.as_ref().map_or_else(Vec::new, |memory| bits(memory.residual()))
    }

    fn run(&mut self, steps: u64) -> Vec<Done> {
        let mut step = |step| {
            let report = self.step(step, &self.own_gradient(step)).unwrap();
            let (contributors, held) = (report.contributors.len(), report.held);
            Done { mean: bits(&self.mean), kept: self.kept(), contributors, held }
        };
        (0..steps).map(&mut step).collect()
    }
}

fn on_threads<T: Send>(workers: Vec<Worker>, run: impl Fn(Worker) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = workers.into_iter().map(|worker| scope.spawn(|| run(worker))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn workers<T: Transport + 'static>(transports: Vec<T>, case: &(&str, Route), messages: usize) -> Vec<Worker> {
    transports.into_iter().map(|transport| Worker::new(Box::new(transport), case, messages)).collect()
}

fn room_for_one(world: u32) -> Vec<LocalTransport> {
    let inbox = InboxLimits { messages: 1, bytes: 1 };
    let members = Membership { epoch: 0, ranks: RankSet::contiguous(world) };
    local::with_limits(members, LocalLimits { inbox, ..LocalLimits::default() })
}

fn faulty(world: u32, plan: FaultPlan) -> Vec<FaultInjector<LocalTransport>> {
    local::world(world).into_iter().map(|transport| FaultInjector::new(transport, plan)).collect()
}

#[test]
fn a_step_in_several_parts_has_the_mean_and_the_memory_of_one() {
    for case in &CASES {
        for world in 1..=4 {
            let run = |mut worker: Worker| (worker.run(3), worker.transport.counters().up.messages);
            let whole = on_threads(workers(local::world(world), case, 1), run);
            for messages in [2, 3, 100] {
                let cut = on_threads(workers(local::world(world), case, messages), run);
                for (cut, whole) in cut.iter().zip(&whole) {
                    assert!(cut.0 == whole.0, "{case:?} over {world} in {messages}");
                    // Around a ring units are apart anyway.
                    let is_apart =
                        matches!(case.1, Route::AllReduce { .. }) || !case.0.contains("unit=tensor");
                    let more = if is_apart { 1 } else { messages.min(5) as u64 };
                    assert_eq!(cut.1, more * whole.1, "{case:?} over {world} in {messages}");
                }
            }
        }
    }
}

#[test]
fn a_spelling_of_one_unit_is_not_cut() {
    for case in [("topk:density=0.05", Route::AllGather), ("topk:density=0.05", Route::SparseAllReduce)] {
        let up = |messages| {
            on_threads(workers(local::world(2), &case, messages), |mut worker| {
                (worker.run(1), worker.transport.counters())
            })
        };
        assert!(up(8) == up(1));
    }
}

#[test]
fn networks_that_are_slow_disorderly_or_full_change_nothing() {
    for (number, case) in CASES.iter().enumerate() {
        let run = |mut worker: Worker| worker.run(3);
        let expected = on_threads(workers(local::world(3), case, 1), run);
        let speed = LinkSpeed::new(1e8, Duration::from_micros(300));
        let plan = FaultPlan { seed: number as u64, duplicate: 0.3, reorder: 0.5, ..FaultPlan::default() };
        for messages in [2, 5] {
            let slow = workers(Throttle::network(local::world(3), speed), case, messages);
            assert!(on_threads(slow, run) == expected, "{case:?} in {messages}, slow");
            let disorderly = workers(faulty(3, plan), case, messages);
            assert!(on_threads(disorderly, run) == expected, "{case:?} in {messages}, disorderly");
        }
        for messages in [1, 2, 5] {
            let full = workers(room_for_one(3), case, messages);
            assert!(on_threads(full, run) == expected, "{case:?} in {messages}, with room for one");
        }
    }
}

/// One step of three ranks over a network that loses and cuts messages by seed: a rank that has all applies
/// the mean of all, any other keeps everything, whatever part it was that failed. Returns how many failed.
fn lossy(case: &(&str, Route), seed: u64) -> usize {
    let whole = on_threads(workers(local::world(3), case, 1), |mut worker| worker.run(1).remove(0));
    let plan = FaultPlan { seed, drop: 0.04, truncate: 0.04, ..FaultPlan::default() };
    let results = on_threads(workers(faulty(3, plan), case, 4), |mut worker| {
        worker.wait = Duration::from_secs(2);
        let grad = worker.own_gradient(0);
        let result = worker.step(0, &grad);
        // Nobody leaves before the others have stopped waiting.
        (result, worker, grad)
    });
    for ((result, worker, grad), whole) in results.iter().zip(&whole) {
        match result {
            Ok(_) => {
                assert!(bits(&worker.mean) == whole.mean && worker.kept() == whole.kept, "{case:?} {seed}");
            }
            // Momentum is not a sum that the gradient can be told from.
            Err(_) if worker.memory.is_none() || case.0.starts_with("dgc") => {}
            Err(error) => assert!(worker.residual() == bits(grad), "{case:?} {seed}: {error}"),
        }
    }
    results.iter().filter(|(result, ..)| result.is_err()).count()
}

#[test]
fn lost_and_cut_messages_fail_the_step_and_nothing_is_lost() {
    let failed: usize = thread::scope(|scope| {
        // All at once, as they mostly wait.
        let case = |(number, case): (u64, _)| {
            scope.spawn(move || (0..3).map(|trial| lossy(case, 10 * number + trial)).sum())
        };
        let threads: Vec<_> = (0_u64..).zip(&CASES).map(case).collect();
        threads.into_iter().map(|thread| -> usize { thread.join().unwrap() }).sum()
    });
    let all = 3 * 3 * CASES.len();
    assert!(all / 4 < failed && failed < all, "{failed} of {all} failed");
}

#[test]
fn a_gradient_that_is_refused_leaves_in_the_memory_what_was_encoded_before() {
    for case in &CASES {
        let spec = Spec::parse(case.0).unwrap();
        let layout = layout();
        let units: Vec<Unit> = spec.units.units(&layout.as_ref()).collect();
        for world in [1, 2] {
            for refused in [0, 2, 4].into_iter().filter(|&at| at < units.len()) {
                // Every unit is a part.
                let results = on_threads(workers(local::world(world), case, 100), |mut worker| {
                    let mut grad = worker.own_gradient(0);
                    if worker.transport.rank() == Rank(0) {
                        grad[units[refused].start] = f32::NAN;
                    }
                    let error = worker.step(0, &grad).unwrap_err();
                    (error, worker, grad)
                });
                let (error, worker, grad) = &results[0];
                let is_named = matches!(
                    error,
                    ExchangeError::Encode(EncodeError::NonFiniteInput { index }) if *index == units[refused].start
                );
                assert!(is_named, "{case:?}: {error}");
                for (error, ..) in &results[1..] {
                    let index = units[refused].start;
                    assert_eq!(*error, ExchangeError::Void { rank: Rank(0), index }, "{case:?}");
                }
                let Some(memory) = worker.memory.as_ref().filter(|_| !case.0.starts_with("dgc")) else {
                    continue;
                };
                let (before, behind) = memory.residual().split_at(units[refused].start);
                assert!(bits(before) == bits(&grad[..before.len()]), "{case:?} before unit {refused}");
                assert!(behind.iter().all(|&value| value == 0.0), "{case:?} from unit {refused}");
            }
        }
    }
}

#[test]
fn a_mean_that_overflows_is_refused_when_it_is_asked_for_and_the_next_step_goes_on() {
    for case in &CASES {
        // Powers of two are what maxnorm can agree on, and others cannot send such a sum at all.
        if ["qsgd", "maxnorm", "powersgd", "sharedk", "sketch", "sidco", "dgc", "bf16"]
            .iter()
            .any(|codec| case.0.starts_with(codec))
        {
            continue;
        }
        let results = on_threads(workers(local::world(3), case, 5), |mut worker| {
            let (key, deadline) = (
                StepKey { seed: 7, step: 0, source: Source::Rank(worker.transport.rank().0) },
                Deadline::after(worker.wait),
            );
            let mut grad = worker.own_gradient(0);
            grad.fill(f32::MAX);
            let Worker { transport, exchange, memory, mean, .. } = &mut worker;
            let transport = transport.as_mut();
            exchange.start(transport, key, Grad::F32(&grad), memory.as_mut(), deadline).unwrap();
            let error = exchange.finish(transport, mean, memory.as_mut(), deadline).unwrap_err();
            assert!(matches!(error, ExchangeError::NonFiniteMean { .. }), "{case:?}: {error}");
            if let Some(memory) = memory {
                assert!(bits(memory.residual()) == bits(&grad), "{case:?}");
                memory.clear();
            }
            let next = gradient(transport.rank().0, 1, grad.len());
            worker.step(1, &next).unwrap();
            bits(&worker.mean)
        });
        assert!(results.iter().all(|mean| *mean == results[0]), "{case:?}");
    }
}

/// Writes down which messages are sent and waited for.
struct Recorder(LocalTransport, Arc<Mutex<String>>);

impl Transport for Recorder {
    forward_to!(0);

    fn is_fail_stop(&self) -> bool {
        self.0.is_fail_stop()
    }

    fn send(&mut self, to: Rank, tag: Tag, payload: &[u8], by: Deadline) -> Result<(), TransportError> {
        self.1.lock().unwrap().push('s');
        self.0.send(to, tag, payload, by)
    }

    fn recv_any(
        &mut self,
        wanted: &[Wanted],
        into: &mut Vec<u8>,
        by: Deadline,
    ) -> Result<(Rank, Tag), TransportError> {
        // A wait is cut into pieces, to look for notes in between: only the one that ends it counts.
        let found = self.0.recv_any(wanted, into, by)?;
        self.1.lock().unwrap().push('r');
        Ok(found)
    }
}

/// While anything is waited for, something of this rank's is on its way, until the last part is.
#[test]
fn the_next_part_is_sent_before_the_one_in_front_is_waited_for() {
    let spec = "topk:density=0.05,unit=tensor";
    let ring = "randomk:density=0.1,unit=tensor";
    for (codec, route, messages, expected) in [
        (spec, Route::AllGather, 1, "s|r"),
        (spec, Route::AllGather, 100, "ssrsrsrsr|r"),
        (spec, Route::SparseAllReduce, 1, "s|rsr"),
        (spec, Route::SparseAllReduce, 100, "ssrssrsrsrsrsrsr|rsrr"),
        (ring, RING, 1, "sssss|rsrsrsrsrsrrrrr"),
        (ring, RING, 100, "ssrssrsrsrsrsrsr|rsrr"),
    ] {
        let logs = [(); 2].map(|()| Arc::new(Mutex::new(String::new())));
        let transports: Vec<_> = local::world(2)
            .into_iter()
            .zip(&logs)
            .map(|(rank, log)| Recorder(rank, Arc::clone(log)))
            .collect();
        on_threads(workers(transports, &(codec, route.clone()), messages), |mut worker| {
            let (grad, rank) = (worker.own_gradient(0), worker.transport.rank());
            let key = StepKey { seed: 7, step: 0, source: Source::Rank(rank.0) };
            let Worker { transport, exchange, memory, mean, .. } = &mut worker;
            let (transport, never) = (transport.as_mut(), Deadline::NEVER);
            exchange.start(transport, key, Grad::F32(&grad), memory.as_mut(), never).unwrap();
            logs[rank.0 as usize].lock().unwrap().push('|');
            exchange.finish(transport, mean, memory.as_mut(), never).unwrap();
        });
        for log in &logs {
            assert_eq!(*log.lock().unwrap(), expected, "{codec} by {route:?} in {messages}");
        }
    }
}

#[test]
fn routes_of_one_message_have_no_pipeline() {
    for (spec, route) in [
        ("none", Route::Tree { wire: Wire::F32 }),
        ("none", Route::Native { wire: Wire::F32 }),
        ("topk", Route::Server(ServerOptions::default())),
    ] {
        let exchange = Exchange::new(Spec::parse(spec).unwrap(), layout(), route).unwrap();
        assert_eq!(exchange.pipelined(2).unwrap_err(), ExchangeError::OneMessage);
    }
}
