//! A warm step allocates nothing: neither what transports do (send and receive, all-gather, barrier, both
//! rings) nor whole steps of training, from gradient to mean, by every route and kind of codec.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::thread;

use gradwire::state::MemoryChoice;
use gradwire::{Grad, Layout as Tensors, Memory, Source, Spec, StepKey, UnitPolicy};
use gradwire_transports::collective::{self, Buffers, Gathered, Reduce, Wire};
use gradwire_transports::exchange::{Exchange, NewPart, Route, ServerOptions};
use gradwire_transports::gossip::{Mixer, Topology};
use gradwire_transports::layer::Meter;
use gradwire_transports::{Deadline, Rank, Tag, Transport, local};

#[path = "common/learned.rs"]
mod learned;

/// Counts the allocations of each thread, and the bytes that it holds.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static HELD: Cell<i64> = const { Cell::new(0) };
}

// SAFETY: every call goes unchanged to the system's allocator, which keeps the contract. The counter is a
// thread-local cell without a destructor and with a constant initial value, so touching it neither allocates
// nor runs code.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        HELD.set(HELD.get() + layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same for the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as i64);
        // SAFETY: as above; the pointer comes from `alloc`, thus from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Elements of the reduced vectors, and bytes of the largest message.
const LEN: usize = 1000;

/// What one rank keeps from step to step.
struct Warm {
    transport: Box<dyn Transport>,
    others: Vec<Rank>,
    payload: Vec<u8>,
    gathered: Gathered,
    scratch: Buffers,
    received: Vec<u8>,
    vector: Vec<f32>,
}

impl Warm {
    fn new(transport: Box<dyn Transport>) -> Self {
        let me = transport.rank();
        let others = transport.membership().ranks.iter().filter(|rank| *rank != me).collect();
        Self {
            transport,
            others,
            payload: vec![1; 4 * LEN],
            gathered: Gathered::new(),
            scratch: Buffers::new(),
            received: Vec::new(),
            vector: vec![1.0; LEN],
        }
    }

    fn step(&mut self, step: u64) {
        let (tag, never) = (Tag::new(0, step), Deadline::NEVER);
        self.others.iter().for_each(|to| self.transport.send(*to, tag, &self.payload, never).unwrap());
        self.others
            .iter()
            .for_each(|from| self.transport.recv(*from, tag, &mut self.received, never).unwrap());
        let shorter = LEN + step as usize * 300 % LEN;
        collective::all_gather(&mut self.transport, tag, &self.payload[..shorter], &mut self.gathered, never)
            .unwrap();
        assert_eq!(self.gathered.len(), self.others.len() + 1);
        for (unit, wire) in [Wire::F32, Wire::Bf16].into_iter().enumerate() {
            let sum = Reduce::SumF32(&mut self.vector, wire);
            collective::all_reduce(&mut self.transport, tag.unit(unit as u32), sum, &mut self.scratch, never)
                .unwrap();
        }
        collective::barrier(&mut self.transport, tag, never).unwrap();
        self.transport.retire(tag);
    }
}

/// Fills the pools: more messages of these sizes in flight on every link than a step ever has.
fn prime(transport: &mut dyn Transport, step: u64, sizes: &[usize]) {
    let (me, members) = (transport.rank(), transport.membership().ranks);
    let others = || members.iter().filter(|rank| *rank != me);
    let mut received = Vec::new();
    let messages = || sizes.iter().cycle().take(16).zip(0..);
    let tag = |chunk| Tag::new(0, step).unit(9).chunk(chunk);
    for (&size, chunk) in messages() {
        let payload = vec![1; size];
        others().for_each(|to| transport.send(to, tag(chunk), &payload, Deadline::NEVER).unwrap());
    }
    collective::barrier(transport, Tag::new(0, step), Deadline::NEVER).unwrap();
    for (_, chunk) in messages() {
        others().for_each(|from| transport.recv(from, tag(chunk), &mut received, Deadline::NEVER).unwrap());
    }
}

/// Allocations of `steps` warm steps of one rank.
fn allocations(transport: Box<dyn Transport>, steps: u64) -> u64 {
    let mut warm = Warm::new(transport);
    prime(warm.transport.as_mut(), 1, &[4 * LEN]);
    (2..6).for_each(|step| warm.step(step));
    let before = ALLOCATIONS.get();
    (6..6 + steps).for_each(|step| warm.step(step));
    ALLOCATIONS.get() - before
}

#[test]
fn a_warm_step_allocates_nothing_at_any_rank_also_through_a_meter() {
    for world in 2..=4 {
        let metered = |rank| Box::new(Meter::new(rank)) as Box<dyn Transport>;
        let threads: Vec<_> = local::world(world)
            .into_iter()
            .map(|rank| thread::spawn(move || allocations(metered(rank), 50)))
            .collect();
        for (rank, thread) in threads.into_iter().enumerate() {
            assert_eq!(thread.join().unwrap(), 0, "allocations at rank {rank} of {world}");
        }
    }
}

/// Runs `rank` on a thread for each of three ranks, and says how often each allocated.
fn on_three_ranks(rank: impl Fn(&mut dyn Transport) -> u64 + Sync) -> Vec<u64> {
    let rank = &rank;
    thread::scope(|scope| {
        let ranks = local::world(3).into_iter();
        let threads: Vec<_> = ranks.map(|mut transport| scope.spawn(move || rank(&mut transport))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Steps before and after the first one that counts: long enough for residuals to settle and buffers to have
/// grown.
const WARM_STEPS: u64 = 24;
const COUNTED_STEPS: u64 = 24;

fn tensors() -> Tensors {
    Tensors::packed([("w", vec![40, 70]), ("b", vec![70])]).unwrap()
}

/// A dense frame, which is the longest message, and a page, which serves all short ones.
fn message_sizes(layout: &Tensors) -> [usize; 2] {
    [4 * layout.len() + 100, 4096]
}

/// A gradient of one of four steps, so that frames do not outgrow those before them.
fn gradient(rank: u32, step: u64, grad: &mut [f32]) {
    let stream = StepKey { seed: 9, step: step % 4, source: Source::Rank(rank) }.stream(0);
    grad.iter_mut().enumerate().for_each(|(i, value)| {
        let draw = stream.u64_at(i as u64) as i32 as f32 / 2e9;
        *value = draw * draw * draw;
    });
}

/// Allocations of warm steps of one rank, from gradient to mean.
fn allocations_of_steps(
    transport: &mut dyn Transport,
    spelling: &str,
    exchange: &(impl Fn(Spec, Tensors) -> Exchange + Sync),
) -> u64 {
    let (spec, layout, rank) = (Spec::parse(spelling).unwrap(), tensors(), transport.rank().0);
    let keeps = spec.memory == MemoryChoice::ErrorFeedback;
    let (mut grad, mut mean) = (vec![0.0; layout.len()], vec![0.0; layout.len()]);
    let mut memory = keeps.then(|| Memory::new(vec![0.0; layout.len()]));
    prime(transport, 1, &message_sizes(&layout));
    let mut exchange = exchange(spec, layout);
    let mut before = 0;
    for step in 2..2 + WARM_STEPS + COUNTED_STEPS {
        if step == 2 + WARM_STEPS {
            before = ALLOCATIONS.get();
        }
        gradient(rank, step, &mut grad);
        let key = StepKey { seed: 7, step, source: Source::Rank(rank) };
        let never = Deadline::NEVER;
        exchange.start(transport, key, Grad::F32(&grad), memory.as_mut(), never).unwrap();
        let report = exchange.finish(transport, &mut mean, memory.as_mut(), never).unwrap();
        assert_eq!(report.contributors.len(), 3);
    }
    ALLOCATIONS.get() - before
}

#[test]
fn a_warm_step_of_training_allocates_nothing_by_any_route() {
    let server = |downlink: &str| {
        Route::Server(ServerOptions { downlink: Spec::parse(downlink).unwrap(), ..ServerOptions::default() })
    };
    let ring = |wire| Route::AllReduce { wire };
    let gathered = [
        "none",
        "bf16",
        "topk:density=0.05",
        "topk:density=0.05,index=rice,values=q4",
        "topk:density=0.05,values=bf16,unit=tensor,dense_1d=true",
        "threshold:value=0.2",
        "qsgd:bits=4,bucket=64",
        "qsgd:bits=4,bucket=64,entropy=rans",
        "qsgd:bits=2,bucket=64,entropy=elias",
        "randomk:density=0.1",
    ];
    let mut cases: Vec<(&str, Route)> = Vec::new();
    for spelling in gathered {
        cases.extend(
            [Route::AllGather, server("none"), server("topk:density=0.1")].map(|route| (spelling, route)),
        );
    }
    for spelling in ["none", "randomk:density=0.1", "randomk:density=0.1,estimator=unbiased"] {
        let tree = Route::Tree { wire: Wire::F32 };
        let owners = |wire| Route::Owners { wire };
        let sums = [ring(Wire::F32), ring(Wire::Bf16), tree, owners(Wire::F32), owners(Wire::Bf16)];
        cases.extend(sums.map(|route| (spelling, route)));
    }
    for (spelling, route) in cases {
        let exchange = |spec, layout| Exchange::new(spec, layout, route.clone()).unwrap();
        let counts = on_three_ranks(|transport| allocations_of_steps(transport, spelling, &exchange));
        assert_eq!(counts, [0; 3], "{spelling} by {route:?}");
        let voting = |spec, layout| exchange(spec, layout).voting();
        let counts = on_three_ranks(|transport| allocations_of_steps(transport, spelling, &voting));
        assert_eq!(counts, [0; 3], "{spelling} by {route:?}, with votes");
    }
}

#[test]
fn a_warm_step_in_several_parts_allocates_nothing() {
    for (spelling, route) in [
        ("topk:density=0.05,unit=tensor", Route::AllGather),
        ("qsgd:bits=4,bucket=64,unit=tensor", Route::AllGather),
        ("topk:density=0.05,unit=tensor", Route::SparseAllReduce),
        ("randomk:density=0.1,unit=tensor", Route::AllReduce { wire: Wire::F32 }),
        ("maxnorm:bits=4,unit=tensor", Route::AllReduce { wire: Wire::F32 }),
    ] {
        let exchange =
            |spec, layout| Exchange::new(spec, layout, route.clone()).unwrap().pipelined(2).unwrap();
        let counts = on_three_ranks(|transport| allocations_of_steps(transport, spelling, &exchange));
        assert_eq!(counts, [0; 3], "{spelling} by {route:?}");
    }
}

#[test]
fn an_exchange_that_is_freed_holds_no_buffer_of_its_steps() {
    for (spelling, route) in [
        ("qsgd:bits=8,unit=tensor", Route::AllGather),
        ("randomk:density=0.9,unit=tensor", Route::Owners { wire: Wire::F32 }),
    ] {
        let (mut end, grad) = (local::world(1).remove(0), vec![1.0; tensors().len()]);
        let mut mean = vec![0.0; grad.len()];
        let mut exchange = Exchange::new(Spec::parse(spelling).unwrap(), tensors(), route).unwrap();
        let before = HELD.get();
        for step in 0..2 {
            let key = StepKey { seed: 7, step, source: Source::Rank(0) };
            let part = NewPart { units: &[0, 1], ..NewPart::default() };
            exchange.start_in_parts(&mut end, key, None, Deadline::NEVER).unwrap();
            exchange.add_part(&mut end, &part, Grad::F32(&grad), None).unwrap();
            exchange.finish(&mut end, &mut mean, None, Deadline::NEVER).unwrap();
        }
        let warm = HELD.get() - before;
        exchange.free().unwrap();
        let left = HELD.get() - before;
        assert!(warm > 2 * grad.len() as i64 && left < warm / 8, "{spelling}: {left} of {warm} bytes");
    }
}

/// Allocations of warm steps of one rank that mixes its model with its neighbours'.
fn allocations_of_mixing(transport: &mut dyn Transport, mut mixer: Mixer) -> u64 {
    let (layout, rank) = (tensors(), transport.rank().0);
    let mut model = vec![rank as f32; layout.len()];
    prime(transport, 1, &message_sizes(&layout));
    let mut before = 0;
    for step in 2..2 + WARM_STEPS + COUNTED_STEPS {
        if step == 2 + WARM_STEPS {
            before = ALLOCATIONS.get();
        }
        let key = StepKey { seed: 7, step, source: Source::Rank(rank) };
        mixer.mix(transport, key, &mut model, Deadline::NEVER).unwrap();
    }
    ALLOCATIONS.get() - before
}

#[test]
fn a_warm_step_of_gossip_allocates_nothing() {
    for topology in [Topology::Ring, Topology::Complete] {
        let plain = || Mixer::new(Spec::parse("dpsgd").unwrap(), tensors(), topology).unwrap();
        let counts = on_three_ranks(|transport| allocations_of_mixing(transport, plain()));
        assert_eq!(counts, [0; 3], "{topology:?}");
        let learned = || Mixer::with_codec(learned::Learned, UnitPolicy::default(), tensors(), topology);
        let counts = on_three_ranks(|transport| allocations_of_mixing(transport, learned()));
        assert_eq!(counts, [0; 3], "{topology:?}, with edges that learn");
    }
}

#[test]
fn the_counter_counts() {
    let before = ALLOCATIONS.get();
    std::hint::black_box(Vec::<u8>::with_capacity(10));
    assert_eq!(ALLOCATIONS.get() - before, 1);
}
