//! Parts that are added one by one: the bits of a step in one, each as soon as it is there; what a rank lacks
//! and says; and what becomes of the others when one fails.

use std::thread;
use std::time::Duration;

use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey};
use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{
    Exchange, ExchangeError, Machine, NewPart, PartState, Progress, Report, Route, ServerOptions, Setting,
};
use gradwire_transports::local::{self, LocalTransport};
use gradwire_transports::{Deadline, Membership, Rank, RankSet, Tag, Transport};

const OWNERS: Route = Route::Owners { wire: Wire::F32 };
const RING: Route = Route::AllReduce { wire: Wire::F32 };

fn layout() -> Layout {
    Layout::packed([
        ("w", vec![9, 20]),
        ("b", vec![150]),
        ("v", vec![12, 14]),
        ("none", vec![0]),
        ("u", vec![160]),
    ])
    .unwrap()
}

fn gradient(rank: u32, step: u64) -> Vec<f32> {
    let stream = StepKey { seed: 99, step, source: Source::Rank(rank) }.stream(0);
    let value = |at| (stream.u64_at(at) as u32 as f32 / u32::MAX as f32 - 0.5).powi(3) * 16.0;
    (0..layout().len() as u64).map(value).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

struct Worker {
    end: LocalTransport,
    exchange: Exchange,
    memory: Option<Memory<'static>>,
    mean: Vec<f32>,
}

impl Worker {
    fn key(&self, step: u64) -> StepKey {
        StepKey { seed: 7, step, source: Source::Rank(self.end.rank().0) }
    }

    fn begin(&mut self, step: u64) -> Result<(), ExchangeError> {
        let key = self.key(step);
        self.exchange.start_in_parts(&mut self.end, key, self.memory.as_ref(), soon())
    }

    fn add(&mut self, part: &NewPart<'_>, grad: &[f32]) -> usize {
        self.exchange.add_part(&mut self.end, part, Grad::F32(grad), self.memory.as_mut()).unwrap()
    }

    fn take(&mut self, until: Deadline) -> bool {
        self.exchange.take_parts(&mut self.end, &mut self.mean, self.memory.as_mut(), until).unwrap()
    }

    fn finish(&mut self) -> Result<Report, ExchangeError> {
        self.exchange.finish(&mut self.end, &mut self.mean, self.memory.as_mut(), soon())
    }

    /// A step in one, to the same mean.
    fn whole(&mut self, step: u64, grad: &[f32]) -> Result<Report, ExchangeError> {
        let key = self.key(step);
        self.exchange.start(&mut self.end, key, Grad::F32(grad), self.memory.as_mut(), soon())?;
        self.finish()
    }

    /// Mean and memory.
    fn state(&self) -> (Vec<u32>, Vec<u8>) {
        let kept = self.memory.as_ref().map(|memory| {
            let mut bytes = vec![0; memory.saved_bytes().unwrap()];
            memory.save(&layout().as_ref(), &mut bytes).unwrap();
            bytes
        });
        (bits(&self.mean), kept.unwrap_or_default())
    }
}

fn on_ranks<T: Send>(world: u32, (spec, route): &(&str, Route), run: impl Fn(Worker) -> T + Sync) -> Vec<T> {
    let worker = |end| {
        let spec = Spec::parse(spec).unwrap();
        let (memory, mean) = (Memory::for_spec(&spec, &layout().as_ref()), vec![0.0; layout().len()]);
        let exchange = Exchange::new(spec, layout(), route.clone()).unwrap();
        Worker { end, exchange, memory, mean }
    };
    let workers: Vec<Worker> = local::world(world).into_iter().map(worker).collect();
    let run = &run;
    thread::scope(|scope| {
        let threads: Vec<_> = workers.into_iter().map(|worker| scope.spawn(move || run(worker))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn parts_have_the_bits_of_a_step_in_one_in_whatever_order_they_are_added() {
    for case in [
        ("topk:density=0.05,unit=tensor", Route::AllGather),
        ("dgc:density=0.05,unit=tensor", Route::AllGather),
        ("topk:density=0.05,unit=tensor", Route::SparseAllReduce),
        ("dgc:density=0.3,values=q4,unit=tensor", Route::SparseAllReduce),
        ("qsgd:bits=4,bucket=64,unit=tensor", Route::AllGather),
        ("randomk:density=0.1,unit=tensor", OWNERS),
        ("powersgd:rank=2,unit=tensor", OWNERS),
        ("maxnorm:bits=4,unit=tensor", Route::Owners { wire: Wire::Bf16 }),
    ] {
        let whole = on_ranks(3, &case, |mut worker| {
            (0..3).for_each(|step| drop(worker.whole(step, &gradient(worker.end.rank().0, step)).unwrap()));
            worker.state()
        });
        let added = on_ranks(3, &case, |mut worker| {
            for step in 0..3 {
                let grad = gradient(worker.end.rank().0, step);
                worker.begin(step).unwrap();
                for units in [&[2, 4][..], &[0, 3], &[1]] {
                    worker.add(&NewPart { units, ..NewPart::default() }, &grad);
                    worker.take(Deadline::now());
                }
                let report = worker.finish().unwrap();
                assert_eq!(report.contributors.len(), 3);
                // Buffers hold nothing that the next step needs.
                worker.exchange.free().unwrap();
            }
            worker.state()
        });
        assert!(whole == added, "{case:?}");
    }
}

#[test]
fn a_part_is_there_before_the_next_is_added_with_what_the_others_say() {
    for case in [
        ("topk:density=0.1,unit=tensor", Route::AllGather),
        ("topk:density=0.1,unit=tensor", Route::SparseAllReduce),
        ("randomk:density=0.1,unit=tensor", OWNERS),
    ] {
        on_ranks(3, &case, |mut worker| {
            let (me, ranks) = (worker.end.rank().0, RankSet::contiguous(3));
            let grad = gradient(me, 0);
            worker.begin(0).unwrap();
            let says = |rank: u32| format!("checksum {rank}").into_bytes();
            worker.add(&NewPart { units: &[1, 2], lacks: &[], says: &says(me) }, &grad);
            assert!(worker.take(soon()));
            assert_eq!((worker.exchange.part(0), worker.exchange.part(1)), (Some(PartState::Complete), None));
            assert!(ranks.iter().all(|rank| worker.exchange.said(0, rank) == Some(&says(rank.0)[..])));
            let early = bits(&worker.mean[180..498]);
            assert!(early.iter().any(|bits| *bits != 0), "no mean");
            worker.add(&NewPart { units: &[0, 3, 4], ..NewPart::default() }, &grad);
            worker.finish().unwrap();
            assert!(bits(&worker.mean[180..498]) == early, "the mean has changed");
            assert_eq!(worker.exchange.said(1, Rank(2)), Some(&[][..]));
        });
    }
}

/// Rank 2 has run out of inputs; nobody has used unit 4; rank 0 has not used unit 1.
#[test]
fn a_unit_that_a_rank_lacks_counts_as_zero_and_its_residual_stays() {
    for case in [
        ("topk:density=0.5,unit=tensor", Route::AllGather),
        ("topk:density=0.5,unit=tensor", Route::SparseAllReduce),
        ("randomk:density=0.5,unit=tensor", OWNERS),
    ] {
        let ends = on_ranks(3, &case, |mut worker| {
            let me = worker.end.rank().0;
            worker.whole(0, &gradient(me, 0)).unwrap();
            let before = worker.memory.as_ref().unwrap().residual().to_vec();
            // What is lacking is not read.
            let mut grad = vec![f32::NAN; layout().len()];
            let lacks: &[u32] = [&[1, 4][..], &[4], &[0, 1, 2, 3, 4]][me as usize];
            if me < 2 {
                grad[..498].copy_from_slice(&gradient(me, 1)[..498]);
            }
            if me == 0 {
                grad[180..330].fill(f32::NAN);
            }
            worker.begin(1).unwrap();
            let units: &[u32] = &[0, 1, 2, 3, 4];
            worker.add(&NewPart { units, lacks, says: &[] }, &grad);
            worker.finish().unwrap();
            let after = worker.memory.as_ref().unwrap().residual().to_vec();
            (before, worker.mean, after, grad)
        });
        let is_sum = case.1 == OWNERS;
        for at in 0..layout().len() {
            let sent_by = |(before, _, after, grad): &(Vec<f32>, Vec<f32>, Vec<f32>, Vec<f32>)| {
                let grad = if grad[at].is_nan() { 0.0 } else { grad[at] };
                f64::from(before[at]) + f64::from(grad) - f64::from(after[at])
            };
            let sent: f64 = ends.iter().map(sent_by).sum();
            assert!((sent - 3.0 * f64::from(ends[0].1[at])).abs() < 1e-3, "{case:?}: {sent} at {at}");
            // A sum needs the residuals of all ranks, unless nobody has a gradient.
            let stays = |rank: usize| ends[rank].0[at].to_bits() == ends[rank].2[at].to_bits();
            assert!(at < 498 || (0..3).all(stays), "{case:?}: {at}");
            assert!(is_sum || stays(2) && (stays(0) || !(180..330).contains(&at)), "{case:?}: {at}");
        }
        let means: Vec<_> = ends.iter().map(|end| bits(&end.1)).collect();
        assert!(means.iter().all(|mean| *mean == means[0]), "{case:?}");
        assert!(means[0][498..].iter().all(|bits| *bits == 0), "{case:?}: a mean of nothing");
    }
}

#[test]
fn a_gradient_that_is_refused_makes_later_parts_void_at_all_ranks() {
    for case in [
        ("topk:density=0.1,unit=tensor", Route::AllGather),
        ("topk:density=0.1,unit=tensor", Route::SparseAllReduce),
        ("randomk:density=0.1,unit=tensor", OWNERS),
    ] {
        on_ranks(3, &case, |mut worker| {
            let me = worker.end.rank().0;
            let mut grad = gradient(me, 0);
            if me == 1 {
                grad[7] = f32::INFINITY;
            }
            worker.begin(0).unwrap();
            worker.add(&NewPart { units: &[1, 2], ..NewPart::default() }, &grad);
            assert!(worker.take(soon()));
            worker.add(&NewPart { units: &[0], ..NewPart::default() }, &grad);
            assert!(worker.take(soon()));
            let third = worker.add(&NewPart { units: &[3, 4], ..NewPart::default() }, &grad);
            assert!(worker.take(soon()));
            // Another rank may hear of the refusal before it has all frames of the first part.
            let first = worker.exchange.part(0);
            assert!(first == Some(PartState::Complete) || me != 1 && first == Some(PartState::Void));
            assert_eq!(worker.exchange.part(third), Some(PartState::Void));
            assert!(worker.mean[..180].iter().chain(&worker.mean[498..]).all(|value| value.is_nan()));
            let error = worker.finish().unwrap_err();
            assert!(error.is_void(), "{error}");
            let kept = worker.memory.as_ref().unwrap().residual();
            let is_kept = |(kept, grad): (&f32, &f32)| kept == grad || me == 1 && *kept == 0.0;
            assert!(kept.iter().zip(&grad).all(is_kept), "{case:?}: rank {me} has lost something");
        });
    }
}

/// Over threads, which lose nothing.
#[test]
fn what_a_rank_says_that_fails_reaches_all_others_in_the_same_step() {
    let cases = [
        ("topk:density=0.1,unit=tensor", Route::AllGather),
        ("topk:density=0.1,unit=tensor", Route::SparseAllReduce),
        ("randomk:density=0.1,unit=tensor", OWNERS),
        ("randomk:density=0.1,unit=tensor", RING),
        ("topk:density=0.1,unit=tensor", Route::Server(ServerOptions::default())),
    ];
    for case in cases {
        let takes_parts = matches!(case.1, Route::AllGather | Route::SparseAllReduce | Route::Owners { .. });
        for (added, late) in [(true, true), (true, false), (false, false), (false, true)] {
            if added && !takes_parts || late && !added && matches!(case.1, Route::Server(_)) {
                continue;
            }
            on_ranks(3, &case, |worker| {
                let mut worker =
                    if late { Worker { exchange: worker.exchange.voting(), ..worker } } else { worker };
                let (me, step) = (worker.end.rank().0, 4);
                let (grad, key) = (gradient(me, step), worker.key(step));
                let failed = if added {
                    worker.begin(step).unwrap();
                    for units in [&[1, 2][..], &[0, 3, 4]] {
                        if me == 1 && !late && units.len() == 3 {
                            worker.exchange.fail("ValueError: no such column");
                        } else {
                            worker.add(&NewPart { units, ..NewPart::default() }, &grad);
                        }
                    }
                    if me == 1 && late {
                        assert!(worker.take(soon()));
                        worker.exchange.fail("ValueError: no such column");
                    }
                    worker.finish()
                } else if me == 1 && !late {
                    let setting = setting(&worker.end);
                    worker.exchange.begin(setting, key, worker.memory.as_ref(), 0, u64::MAX).unwrap();
                    worker.exchange.fail("ValueError: no such column");
                    worker.finish()
                } else {
                    let memory = worker.memory.as_mut();
                    let started =
                        worker.exchange.start(&mut worker.end, key, Grad::F32(&grad), memory, soon());
                    if me == 1 {
                        worker.exchange.fail("ValueError: no such column");
                    }
                    started.and_then(|()| worker.finish())
                };
                let expected =
                    ExchangeError::Failed { rank: Rank(1), text: "ValueError: no such column".into() };
                assert_eq!(failed.map(drop), Err(expected), "{case:?}, {added}, {late}, rank {me}");
                // The next step goes on.
                worker.whole(step + 1, &grad).unwrap();
            });
        }
    }
}

fn setting(end: &LocalTransport) -> Setting {
    Setting { rank: end.rank(), membership: end.membership(), is_fail_stop: end.is_fail_stop() }
}

#[test]
fn other_routes_refuse_parts_by_name_and_misuse_is_an_error() {
    let server = ("topk:density=0.1", Route::Server(ServerOptions::default()), "a server");
    for (spec, route, name) in [server, ("randomk", RING, "a ring, a tree or a library")] {
        on_ranks(1, &(spec, route), |mut worker| {
            assert_eq!(worker.begin(0), Err(ExchangeError::NoParts { route: name }));
            assert_eq!(worker.exchange.free(), Err(ExchangeError::NoParts { route: name }));
            worker.whole(0, &gradient(0, 0)).unwrap();
        });
    }
    on_ranks(1, &("topk:density=0.1,unit=tensor", Route::AllGather), |mut worker| {
        let (grad, part) = (gradient(0, 0), NewPart { units: &[1], ..NewPart::default() });
        let add = |worker: &mut Worker, part: &NewPart<'_>| {
            worker.exchange.add(part, Grad::F32(&grad), worker.memory.as_mut(), 0)
        };
        assert_eq!(add(&mut worker, &part), Err(ExchangeError::NotStarted));
        worker.begin(0).unwrap();
        assert_eq!(worker.begin(1), Err(ExchangeError::Busy));
        assert_eq!(worker.exchange.free(), Err(ExchangeError::Busy));
        assert_eq!(add(&mut worker, &part), Ok(0));
        assert!(matches!(add(&mut worker, &part), Err(ExchangeError::BadPart { .. })));
        worker.finish().unwrap();
        assert_eq!(add(&mut worker, &part), Err(ExchangeError::NotStarted));
    });
}

#[test]
fn a_rank_of_another_version_is_refused_by_name() {
    let spec = Spec::parse("topk:density=0.1,unit=tensor").unwrap();
    let mut memory = Memory::for_spec(&spec, &layout().as_ref());
    let mut exchange = Exchange::new(spec, layout(), Route::AllGather).unwrap();
    let membership = Membership { epoch: 0, ranks: RankSet::contiguous(2) };
    let setting = Setting { rank: Rank(0), membership, is_fail_stop: true };
    let key = StepKey { seed: 7, step: 3, source: Source::Rank(0) };
    exchange.begin_in_parts(setting, key, memory.as_ref(), 0, u64::MAX).unwrap();
    let (grad, part) = (gradient(0, 3), NewPart { units: &[1], ..NewPart::default() });
    exchange.add(&part, Grad::F32(&grad), memory.as_mut(), 0).unwrap();
    let mut message = exchange.outgoing().unwrap().bytes.to_vec();
    *message.last_mut().unwrap() += 1;
    exchange.receive(Rank(1), Tag::new(0, 3), message).unwrap();
    let mut mean = vec![0.0; layout().len()];
    let error = loop {
        while let Some(id) = exchange.outgoing().map(|next| next.id) {
            exchange.sent(id);
        }
        match exchange.complete(&mut mean, memory.as_mut(), 0, u64::MAX) {
            Ok(Progress::Worked(_)) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert_eq!(error, ExchangeError::OtherVersion { rank: Rank(1), theirs: 2, own: 1 });
    assert!(
        error.to_string().starts_with("rank 1 exchanges by version 2, this rank by version 1"),
        "{error}"
    );
}
