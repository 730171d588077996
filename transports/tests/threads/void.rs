//! Void steps: every rank learns of a gradient that cannot be encoded, and the memories stay as they were
//! where that is asked for.

use std::thread;
use std::time::Duration;

use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey, Unit};
use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{Exchange, ExchangeError, Route, ServerOptions};
use gradwire_transports::{Deadline, Rank, Tag, Transport, local};

const RING: Route = Route::AllReduce { wire: Wire::F32 };

/// Every route that can be told, with every part that a memory has, and in how many messages a step goes.
fn cases() -> Vec<(&'static str, Route, usize)> {
    let server = || Route::Server(ServerOptions { server: Rank(1), ..ServerOptions::default() });
    vec![
        ("topk:density=0.05", Route::AllGather, 1),
        ("topk:density=0.05,unit=tensor", Route::AllGather, 5),
        ("dgc:density=0.05,unit=tensor", Route::AllGather, 2),
        ("sidco:density=0.1,unit=tensor", Route::SparseAllReduce, 1),
        ("topk:density=0.05,unit=tensor", Route::SparseAllReduce, 5),
        ("randomk:density=0.1,unit=tensor", RING, 1),
        ("randomk:density=0.1,unit=tensor", RING, 5),
        ("powersgd:rank=2,unit=tensor", RING, 2),
        ("randomk:density=0.1", Route::Tree { wire: Wire::F32 }, 1),
        ("dgc:density=0.05", server(), 1),
        ("topk:density=0.05,max_packet_bytes=256", server(), 1),
    ]
}

fn layout() -> Layout {
    Layout::packed([("w", vec![9, 20]), ("b", vec![150]), ("v", vec![12, 14]), ("u", vec![160])]).unwrap()
}

fn gradient(rank: u32, step: u64) -> Vec<f32> {
    let stream = StepKey { seed: 99, step, source: Source::Rank(rank) }.stream(0);
    let value = |at| (stream.u64_at(at) as u32 as f32 / u32::MAX as f32 - 0.5).powi(3) * 16.0;
    (0..layout().len() as u64).map(value).collect()
}

struct Worker {
    transport: Box<dyn Transport>,
    exchange: Exchange,
    memory: Memory<'static>,
}

impl Worker {
    fn new(transport: impl Transport + 'static, (spec, route, messages): &(&str, Route, usize)) -> Self {
        let spec = Spec::parse(spec).unwrap();
        let memory = Memory::for_spec(&spec, &layout().as_ref()).unwrap();
        let mut exchange = Exchange::new(spec, layout(), route.clone()).unwrap().undoing();
        if *messages > 1 {
            exchange = exchange.pipelined(*messages).unwrap();
        }
        Self { transport: Box::new(transport), exchange, memory }
    }

    fn step(&mut self, step: u64, grad: &[f32]) -> Result<Vec<u32>, ExchangeError> {
        let key = StepKey { seed: 7, step, source: Source::Rank(self.transport.rank().0) };
        // A rank that is not told fails by its deadline, with another error.
        let (transport, by) = (self.transport.as_mut(), Deadline::after(Duration::from_secs(60)));
        let mut mean = vec![f32::NAN; grad.len()];
        self.exchange.start(transport, key, Grad::F32(grad), Some(&mut self.memory), by)?;
        self.exchange.finish(transport, &mut mean, Some(&mut self.memory), by)?;
        Ok(mean.iter().map(|value| value.to_bits()).collect())
    }

    /// All that the memory holds.
    fn kept(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.memory.saved_bytes().unwrap()];
        self.memory.save(&layout().as_ref(), &mut bytes).unwrap();
        bytes
    }
}

fn on_threads<T: Send>(workers: Vec<Worker>, run: impl Fn(Worker) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = workers.into_iter().map(|worker| scope.spawn(|| run(worker))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn workers(world: u32, case: &(&str, Route, usize)) -> Vec<Worker> {
    local::world(world).into_iter().map(|end| Worker::new(end, case)).collect()
}

#[test]
fn a_void_step_that_is_undone_leaves_every_memory_as_it_was_and_no_trace_in_later_steps() {
    for case in cases() {
        let units: Vec<Unit> = Spec::parse(case.0).unwrap().units.units(&layout().as_ref()).collect();
        for (world, bad, index) in
            [(2, 0, 0), (3, 2, units[units.len() / 2].start + 3), (3, 1, layout().len() - 1)]
        {
            let run = |has_void: bool| {
                on_threads(workers(world, &case), |mut worker| {
                    let rank = worker.transport.rank().0;
                    let mut means = vec![worker.step(0, &gradient(rank, 0)).unwrap()];
                    if has_void {
                        let (mut grad, before) = (gradient(rank, 1), worker.kept());
                        if rank == bad {
                            grad[index] = f32::NAN;
                        }
                        let error = worker.step(1, &grad).unwrap_err();
                        assert!(error.is_void(), "{case:?}: {error}");
                        match error {
                            ExchangeError::Encode(_) => assert_eq!(rank, bad, "{case:?}"),
                            ExchangeError::NoQuorum { void, .. } => {
                                assert_eq!(void, Some((Rank(bad), index)));
                            }
                            error => {
                                assert_eq!(error, ExchangeError::Void { rank: Rank(bad), index }, "{case:?}");
                            }
                        }
                        assert!(worker.kept() == before, "{case:?}: rank {rank} of {world}, {bad} is bad");
                    }
                    for step in 2..4 {
                        means.push(worker.step(step, &gradient(rank, step)).unwrap());
                    }
                    (means, worker.kept())
                })
            };
            assert!(run(true) == run(false), "{case:?}: the void step has left something");
        }
    }
}

/// Two ranks at once, in different parts of the step.
#[test]
fn a_step_that_several_ranks_make_void_fails_at_all_of_them() {
    for case in cases() {
        let results = on_threads(workers(4, &case), |mut worker| {
            let rank = worker.transport.rank().0;
            let (mut grad, before) = (gradient(rank, 0), worker.kept());
            match rank {
                1 => grad[400] = f32::INFINITY,
                3 => grad[0] = f32::NAN,
                _ => {}
            }
            let error = worker.step(0, &grad).unwrap_err();
            assert!(worker.kept() == before, "{case:?}: {error}");
            let mean = worker.step(1, &gradient(rank, 1)).unwrap();
            (error, mean)
        });
        for (rank, (error, mean)) in results.iter().enumerate() {
            assert_eq!(mean, &results[0].1, "{case:?}");
            match error {
                ExchangeError::Encode(_) => assert!(rank % 2 == 1, "{case:?}: {error}"),
                ExchangeError::NoQuorum { void, .. } => {
                    assert!([Some((Rank(1), 400)), Some((Rank(3), 0))].contains(void), "{case:?}: {error}");
                }
                ExchangeError::Void { rank: Rank(1), index: 400 }
                | ExchangeError::Void { rank: Rank(3), index: 0 } => {}
                other => panic!("{case:?}: {other}"),
            }
        }
    }
}

/// Where steps are undone, a step that fails for another reason is undone too.
#[test]
fn a_step_that_fails_without_being_void_is_undone() {
    let case = ("topk:density=0.05", Route::AllGather, 1);
    let mut workers = workers(2, &case);
    let absent = workers.pop().unwrap();
    let mut worker = workers.pop().unwrap();
    let grad = gradient(0, 0);
    let key = StepKey { seed: 7, step: 0, source: Source::Rank(0) };
    let (transport, memory) = (worker.transport.as_mut(), Some(&mut worker.memory));
    worker.exchange.start(transport, key, Grad::F32(&grad), memory, Deadline::NEVER).unwrap();
    drop(absent);
    let mut mean = vec![0.0; grad.len()];
    let (transport, memory) = (worker.transport.as_mut(), Some(&mut worker.memory));
    let error = worker.exchange.finish(transport, &mut mean, memory, Deadline::NEVER).unwrap_err();
    assert!(matches!(error, ExchangeError::Transport(_)) && !error.is_void(), "{error}");
    assert!(worker.memory.residual().iter().all(|value| value.to_bits() == 0), "it keeps the gradient");
}

/// Where frames travel, the void frame lies where the frame would have been: nothing else is sent.
#[test]
fn where_frames_travel_a_void_frame_stands_in_the_place_of_the_frame() {
    let server = || Route::Server(ServerOptions::default());
    for (spec, route) in [
        ("topk:density=0.05", Route::AllGather),
        ("topk:density=0.05", Route::SparseAllReduce),
        ("topk:density=0.05", server()),
        ("topk:density=0.05,max_packet_bytes=256", server()),
    ] {
        let mut ends = local::world(2);
        let (end, mut other) = (ends.pop().unwrap(), ends.remove(0));
        let mut worker = Worker::new(end, &(spec, route, 1));
        let mut grad = gradient(1, 3);
        grad[33] = f32::NAN;
        assert!(matches!(worker.step(3, &grad), Err(ExchangeError::Encode(_))));
        let traffic = worker.transport.counters().up;
        let mut bytes = Vec::new();
        other.recv(Rank(1), Tag::new(0, 3), &mut bytes, Deadline::now()).unwrap();
        assert_eq!((traffic.messages, traffic.payload_bytes), (1, bytes.len() as u64), "{spec}");
        // The version of the exchange follows the frame.
        assert_eq!(bytes.pop(), Some(0xe1));
        let void = gradwire::format::VoidFrame::parse(&bytes, &layout().as_ref()).unwrap().unwrap();
        assert_eq!((void.codec.number(), void.step, void.index), (3, 3, 33));
    }
}

/// Routes of frames, in one message and in several.
fn frame_cases() -> Vec<(&'static str, Route, usize)> {
    vec![
        ("topk:density=0.05", Route::AllGather, 1),
        ("topk:density=0.05,unit=tensor", Route::AllGather, 3),
        ("topk:density=0.05,unit=tensor", Route::SparseAllReduce, 1),
        ("topk:density=0.05,unit=tensor", Route::SparseAllReduce, 3),
    ]
}

/// The rank that is waited for first never sends.
#[test]
fn a_void_frame_ends_the_step_while_a_slower_rank_is_waited_for() {
    for case in frame_cases() {
        let mut workers = workers(4, &case);
        let absent = workers.remove(1);
        let results = on_threads(workers, |mut worker| {
            let (rank, before) = (worker.transport.rank().0, worker.kept());
            let mut grad = gradient(rank, 0);
            if rank == 3 {
                grad[0] = f32::NAN;
            }
            let error = worker.step(0, &grad).unwrap_err();
            assert!(worker.kept() == before, "{case:?}: {error}");
            // The worker as well: nobody leaves while another still sends to it.
            (error, worker)
        });
        for (error, worker) in &results {
            match error {
                ExchangeError::Encode(_) => assert_eq!(worker.transport.rank(), Rank(3), "{case:?}"),
                error => assert_eq!(*error, ExchangeError::Void { rank: Rank(3), index: 0 }, "{case:?}"),
            }
        }
        drop(absent);
    }
}

/// What the others looked at meanwhile is not lost.
#[test]
fn a_rank_that_sends_late_changes_nothing() {
    for case in frame_cases() {
        let run = |late: Option<u32>| {
            on_threads(workers(3, &case), |mut worker| {
                let rank = worker.transport.rank().0;
                let steps: Vec<_> = (0..2)
                    .map(|step| {
                        if late == Some(rank) && step == 0 {
                            thread::sleep(Duration::from_millis(600));
                        }
                        worker.step(step, &gradient(rank, step)).unwrap()
                    })
                    .collect();
                (steps, worker.kept(), worker.transport)
            })
            .into_iter()
            .map(|(steps, kept, _)| (steps, kept))
            .collect::<Vec<_>>()
        };
        assert!(run(Some(0)) == run(None) && run(Some(1)) == run(None), "{case:?}");
    }
}
