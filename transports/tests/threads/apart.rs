//! Parts whose gradients and means stand in places of their own, over a transport that several exchanges
//! share: the bits of flat ones, and what all ranks hear of one that fails.

use std::ops::Range;
use std::thread;
use std::time::Duration;

use gradwire::plan::Plan;
use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey, Unit};
use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{
    Exchange, ExchangeError, Machine, Means, NewPart, PartState, Progress, Report, Route, Setting,
};
use gradwire_transports::local::{self, LocalTransport};
use gradwire_transports::{Deadline, FIRST_RETRY, Rank, Tag, Transport, now, post, wait};

const OWNERS: Route = Route::Owners { wire: Wire::F32 };
const LENS: [usize; 4] = [180, 150, 3000, 160];
/// Identifiers, which a model with other tensors between these has.
const IDS: [u32; 4] = [0, 3, 4, 9];

fn layout() -> Layout {
    Layout::packed([("w", vec![9, 20]), ("b", vec![150]), ("v", vec![60, 50]), ("u", vec![160])]).unwrap()
}

fn units() -> Vec<Unit> {
    let start = |at: usize| LENS[..at].iter().sum();
    let unit = |at: usize| Unit { id: IDS[at], start: start(at), len: LENS[at], dense: false };
    (0..LENS.len()).map(unit).collect()
}

fn unit(id: u32) -> Unit {
    *units().iter().find(|unit| unit.id == id).unwrap()
}

fn gradient(rank: u32, step: u64) -> Vec<f32> {
    let stream = StepKey { seed: 99, step, source: Source::Rank(rank) }.stream(0);
    let value = |at| (stream.u64_at(at) as u32 as f32 / u32::MAX as f32 - 0.5).powi(3) * 16.0;
    (0..layout().len() as u64).map(value).collect()
}

/// A place for each unit, by its identifier.
struct Places(Vec<Vec<f32>>);

impl Places {
    fn new() -> Self {
        let len = |id| IDS.iter().position(|own| *own == id).map_or(0, |at| LENS[at]);
        Self((0..=IDS[3]).map(|id| vec![7.0; len(id)]).collect())
    }
}

impl Means for Places {
    fn of(&mut self, unit: u32, range: Range<usize>) -> &mut [f32] {
        let place = &mut self.0[unit as usize];
        assert_eq!(place.len(), range.len());
        place
    }

    fn all(&mut self, units: &mut dyn Iterator<Item = (u32, Range<usize>)>) -> Vec<&mut [f32]> {
        let mut places = (0..).zip(&mut self.0);
        let mut place = |id| places.find(|(at, _)| *at == id).unwrap().1;
        units.map(|(id, _)| &mut place(id)[..]).collect()
    }
}

struct Worker {
    end: LocalTransport,
    exchange: Exchange,
    /// What was kept before the step, and what the step keeps.
    before: Option<Memory<'static>>,
    memory: Option<Memory<'static>>,
    means: Places,
}

impl Worker {
    fn new(end: LocalTransport, spelling: &str, route: &Route) -> Self {
        let (spec, layout) = (Spec::parse(spelling).unwrap(), layout());
        let plan = || Plan::of_units(&spec, units(), &layout.as_ref());
        let memory = || Memory::for_plan(&plan(), &layout.as_ref());
        let (before, memory) = (memory(), memory());
        let exchange = Exchange::new(plan(), layout.clone(), route.clone()).unwrap().taking_any_mean();
        Self { end, exchange, before, memory, means: Places::new() }
    }

    fn begin(&mut self, number: u64, step: u64) {
        let (rank, membership) = (self.end.rank(), self.end.membership());
        let key = StepKey { seed: 7, step, source: Source::Rank(rank.0) };
        let setting = Setting { rank, membership, is_fail_stop: true };
        self.exchange.number(number);
        self.exchange.begin_in_parts(setting, key, None, now(), u64::MAX).unwrap();
    }

    fn add(&mut self, part: &NewPart<'_>, grad: &[f32]) {
        let own = part.units.iter().filter(|id| !part.lacks.contains(id));
        let grads: Vec<Grad<'_>> = own.map(|id| Grad::F32(&grad[unit(*id).range()])).collect();
        let (before, memory) = (self.before.as_ref().unwrap(), self.memory.as_mut().unwrap());
        part.lacks.iter().for_each(|id| memory.carry_over(before, &unit(*id)));
        self.exchange.add_beside(part, &grads, before, memory, now()).unwrap();
    }

    /// Works on the step until `work` is done.
    fn drive<T>(
        &mut self,
        mut work: impl FnMut(&mut Exchange, &mut Places, u64) -> Result<Progress<T>, ExchangeError>,
    ) -> Result<T, ExchangeError> {
        let mut patience = FIRST_RETRY;
        loop {
            post(&mut self.exchange, &mut self.end, &mut patience);
            match work(&mut self.exchange, &mut self.means, now())? {
                Progress::Done(done) => return Ok(done),
                Progress::Worked(_) | Progress::Lent => {}
                Progress::Waiting => {
                    // Its deadlines count from another moment than the driver's.
                    wait(
                        &mut self.exchange,
                        &mut self.end,
                        Deadline::after(Duration::from_millis(5)),
                        &mut patience,
                    );
                }
            }
        }
    }

    fn advance(&mut self) {
        self.drive(|exchange, means, now| exchange.advance_apart(means, None, now)).unwrap();
    }

    fn complete(&mut self) -> Result<Report, ExchangeError> {
        self.drive(|exchange, means, now| exchange.complete_apart(means, None, now, u64::MAX))
    }
}

fn on_ranks<T: Send>(world: u32, case: (&str, Route), run: impl Fn(Worker) -> T + Sync) -> Vec<T> {
    let (run, case) = (&run, &case);
    thread::scope(|scope| {
        let start = |end| scope.spawn(move || run(Worker::new(end, case.0, &case.1)));
        let threads: Vec<_> = local::world(world).into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn saved(memory: &Memory<'_>) -> Vec<u8> {
    let mut bytes = vec![0; memory.saved_bytes().unwrap()];
    memory.save(&layout().as_ref(), &mut bytes).unwrap();
    bytes
}

#[test]
fn gradients_and_means_that_stand_apart_have_the_bits_of_flat_ones() {
    for spelling in ["topk:density=0.02,unit=tensor", "qsgd:bits=4,memory=ef,rounding=nearest,unit=tensor"] {
        let flat = on_ranks(3, (spelling, Route::AllGather), |mut worker| {
            let mut mean = vec![0.0; layout().len()];
            for step in 0..3 {
                let key = StepKey { seed: 7, step, source: Source::Rank(worker.end.rank().0) };
                let grad = gradient(worker.end.rank().0, step);
                let Worker { end, exchange, memory, .. } = &mut worker;
                exchange.start(end, key, Grad::F32(&grad), memory.as_mut(), Deadline::NEVER).unwrap();
                exchange.finish(end, &mut mean, memory.as_mut(), Deadline::NEVER).unwrap();
            }
            let means: Vec<Vec<f32>> = units().iter().map(|unit| mean[unit.range()].to_vec()).collect();
            (means, saved(worker.memory.as_ref().unwrap()))
        });
        let is_sparse = spelling.starts_with("topk");
        for route in [Route::AllGather, Route::SparseAllReduce].into_iter().take(1 + usize::from(is_sparse)) {
            let apart = on_ranks(3, (spelling, route.clone()), |mut worker| {
                for step in 0..3 {
                    worker.begin(step, step);
                    let grad = gradient(worker.end.rank().0, step);
                    // Parts with a gap, and on both sides of another one.
                    for units in [&[0, 4][..], &[3, 9]] {
                        worker.add(&NewPart { units, ..NewPart::default() }, &grad);
                        if step > 0 {
                            worker.advance();
                        }
                    }
                    worker.complete().unwrap();
                    std::mem::swap(&mut worker.before, &mut worker.memory);
                }
                let means: Vec<Vec<f32>> =
                    IDS.iter().map(|id| worker.means.0[*id as usize].clone()).collect();
                (means, saved(worker.before.as_ref().unwrap()))
            });
            assert!(flat == apart, "{spelling} by {route:?}");
        }
    }
}

#[test]
fn sums_of_gradients_that_stand_apart_have_the_bits_of_flat_ones() {
    let step = |is_apart: bool| {
        on_ranks(3, ("maxnorm:bits=8,unit=tensor", OWNERS), move |mut worker| {
            let (me, mut memory) = (worker.end.rank().0, worker.memory.take());
            for step in 0..3 {
                worker.begin(step, step);
                let grad = gradient(me, step);
                for units in [&[4, 9][..], &[0, 3]] {
                    let lacks = if me == 1 { &units[..1] } else { &[] };
                    let part = NewPart { units, lacks, says: &[] };
                    let own = units[lacks.len()..].iter();
                    let grads: Vec<_> = own.map(|id| Grad::F32(&grad[unit(*id).range()])).collect();
                    let (exchange, memory) = (&mut worker.exchange, memory.as_mut());
                    let added = match is_apart {
                        true => exchange.add_apart(&part, &grads, memory, now()),
                        false => exchange.add(&part, Grad::F32(&grad), memory, now()),
                    };
                    added.unwrap();
                    worker.advance();
                }
                worker.complete().unwrap();
            }
            worker.means.0
        })
    };
    let (apart, flat) = (step(true), step(false));
    assert!(apart == flat);
    assert!(flat[0][9].iter().any(|value| *value != 0.0));
}

#[test]
fn only_sums_have_gradients_apart_in_one_memory() {
    on_ranks(2, ("topk:density=0.1,unit=tensor", Route::AllGather), |mut worker| {
        worker.begin(0, 0);
        let (part, grad) = (NewPart { units: &[0], ..NewPart::default() }, gradient(0, 0));
        worker.exchange.add_apart(&part, &[Grad::F32(&grad[..180])], None, now()).unwrap();
        let failed = worker.complete();
        assert!(matches!(failed, Err(ExchangeError::NoParts { .. })), "{failed:?}");
    });
}

#[test]
fn a_mean_that_is_not_finite_is_seen_by_all_ranks_and_ends_no_step() {
    for case in [
        ("topk:density=0.05,unit=tensor", Route::AllGather),
        ("topk:density=0.05,unit=tensor", Route::SparseAllReduce),
        ("none", Route::AllGather),
        ("none", OWNERS),
    ] {
        let spelling = case.0;
        on_ranks(2, case, |mut worker| {
            worker.begin(0, 0);
            let mut grad = gradient(worker.end.rank().0, 0);
            grad[170] = 3e38;
            for (at, units) in [&[0][..], &[3, 4]].into_iter().enumerate() {
                let part = NewPart { units, ..NewPart::default() };
                if spelling.starts_with("topk") {
                    worker.add(&part, &grad);
                } else {
                    worker.exchange.add(&part, Grad::F32(&grad), None, now()).unwrap();
                }
                worker.advance();
                let state = if at == 0 { PartState::NotFinite } else { PartState::Complete };
                assert_eq!(worker.exchange.part(at), Some(state), "{spelling}");
            }
            worker.complete().unwrap();
            assert!(!worker.means.0[0][170].is_finite());
            assert!(worker.means.0[4].iter().all(|value| value.is_finite()));
        });
    }
}

#[test]
fn a_part_that_cannot_be_encoded_is_added_without_its_gradient() {
    [Route::AllGather, Route::SparseAllReduce].into_iter().for_each(add_without_gradient);
}

fn add_without_gradient(route: Route) {
    on_ranks(2, ("topk:density=0.05,unit=tensor", route), |mut worker| {
        worker.begin(0, 0);
        let (me, mut grad) = (worker.end.rank().0, gradient(worker.end.rank().0, 0));
        worker.add(&NewPart { units: &[9], ..NewPart::default() }, &grad);
        if me == 1 {
            grad[3] = f32::NAN;
            let (before, memory) = (worker.before.as_ref().unwrap(), worker.memory.as_mut().unwrap());
            let (part, grads) = (NewPart { units: &[0], ..NewPart::default() }, [Grad::F32(&grad[..180])]);
            let refused = worker.exchange.add_beside(&part, &grads, before, memory, 0);
            assert!(matches!(refused, Err(ExchangeError::Encode(_))), "{refused:?}");
        }
        let lacks: &[u32] = if me == 1 { &[0] } else { &[] };
        worker.add(&NewPart { units: &[0], lacks, says: &[me as u8] }, &grad);
        worker.advance();
        worker.complete().unwrap();
        assert_eq!(worker.exchange.said(1, Rank(1)), Some(&[1][..]));
        assert!(worker.means.0[0].iter().any(|value| *value != 0.0));
    });
}

#[test]
fn exchanges_share_a_transport_by_their_numbers_and_ranks_whose_steps_differ_hear_it() {
    let ends: Vec<_> = local::world(2);
    thread::scope(|scope| {
        for end in ends {
            scope.spawn(move || {
                let me = end.rank().0;
                let mut first = Worker::new(end, "topk:density=0.1,unit=tensor", &Route::AllGather);
                for number in [0, 2] {
                    // The second step of one rank is another one's third.
                    first.begin(number, if number == 2 { 1 + u64::from(me) } else { 0 });
                    let grad = gradient(me, 0);
                    first.add(&NewPart { units: &[0, 3, 4, 9], ..NewPart::default() }, &grad);
                    let ended = first.complete();
                    if number == 0 {
                        ended.unwrap();
                    } else {
                        let differs = matches!(
                            ended,
                            Err(ExchangeError::WrongStep { .. } | ExchangeError::NotAgreed { .. })
                        );
                        assert!(differs, "{ended:?}");
                        return;
                    }
                    // Another exchange, with a number between these two.
                    let mut second = Worker::new(first.end, "none", &OWNERS);
                    second.begin(1, 0);
                    let part = NewPart { units: &[9], lacks: if me == 0 { &[9] } else { &[] }, says: b"hi" };
                    second.exchange.add(&part, Grad::F32(&grad), None, now()).unwrap();
                    second.complete().unwrap();
                    assert_eq!(second.exchange.said(0, Rank(1 - me)), Some(&b"hi"[..]));
                    assert_eq!(second.means.0[9][1], gradient(1, 0)[unit(9).start + 1] / 2.0);
                    first.end = second.end;
                }
            });
        }
    });
}

#[test]
fn what_a_message_is_about_and_says_is_known_before_it_is_read() {
    on_ranks(1, ("topk:density=0.1,unit=tensor", Route::AllGather), |mut worker| {
        worker.begin(6, 2);
        let tag = Tag::new(0, 6);
        let parts = [tag, tag.chunk(1), tag.chunk(99), tag.unit(5), Tag::new(0, 2)];
        assert_eq!(parts.map(|tag| worker.exchange.part_of(tag)), [Some(0), Some(1), None, None, None]);
        assert_eq!(Exchange::said_in(b"short"), None);
        worker.exchange.abandon();
        assert_eq!(worker.exchange.part_of(tag), None);
    });
    on_ranks(2, ("none", OWNERS), |mut worker| {
        worker.begin(6, 2);
        let grad = gradient(0, 0);
        let part = NewPart { units: &[3], lacks: &[], says: b"step 2" };
        worker.exchange.add(&part, Grad::F32(&grad), None, now()).unwrap();
        let next = worker.exchange.outgoing().unwrap();
        let (tag, said) = (next.tag, Exchange::said_in(next.bytes).map(<[u8]>::to_vec));
        assert_eq!((worker.exchange.part_of(tag), said), (Some(0), Some(b"step 2".to_vec())));
        worker.complete().unwrap();
    });
}

#[test]
fn a_step_that_is_abandoned_by_all_is_begun_again() {
    on_ranks(2, ("topk:density=0.1,unit=tensor", Route::AllGather), |mut worker| {
        let grad = gradient(worker.end.rank().0, 0);
        for number in 0..2 {
            worker.begin(number, 0);
            worker.add(&NewPart { units: &[0, 3], ..NewPart::default() }, &grad);
            worker.advance();
            if number == 0 {
                worker.exchange.abandon();
                assert!(matches!(worker.complete(), Err(ExchangeError::NotStarted)));
            }
        }
        worker.complete().unwrap();
    });
}

#[test]
fn all_ranks_name_the_one_that_does_not_come() {
    on_ranks(3, ("topk:density=0.1,unit=tensor", Route::AllGather), |mut worker| {
        let me = worker.end.rank();
        worker.begin(0, 0);
        if me == Rank(2) {
            // Comes too late, and hears why.
            thread::sleep(Duration::from_millis(300));
        }
        let grad = gradient(me.0, 0);
        worker.add(&NewPart { units: &[0, 3], ..NewPart::default() }, &grad);
        if me == Rank(0) {
            let by = now() + 50_000_000;
            worker.exchange.wait_until(by);
            while now() < by {
                worker.exchange.advance_apart(&mut worker.means, None, 0).unwrap();
                let mut patience = FIRST_RETRY;
                post(&mut worker.exchange, &mut worker.end, &mut patience);
                wait(
                    &mut worker.exchange,
                    &mut worker.end,
                    Deadline::after(Duration::from_millis(5)),
                    &mut patience,
                );
            }
            assert_eq!(worker.exchange.missing(), [Rank(2)]);
        }
        worker.advance();
        let error = worker.complete().unwrap_err();
        match error {
            ExchangeError::Transport(error) if me == Rank(0) => assert_eq!(error.peer(), Some(Rank(2))),
            error => assert_eq!((me, error), (me, ExchangeError::NotAgreed { rank: Rank(2) })),
        }
    });
}
