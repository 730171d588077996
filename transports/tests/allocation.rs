//! A warm step allocates nothing: send and receive, all-gather, barrier and both rings, on two to four ranks.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::thread;

use gradwire_transports::collective::{Gathered, Reduce, Scratch, Wire};
use gradwire_transports::layer::Meter;
use gradwire_transports::{Deadline, Rank, Tag, Transport, local};

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes unchanged to the system's allocator, which keeps the contract. The counter is a thread-local
// cell without a destructor and with a constant initial value, so touching it neither allocates nor runs code.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same for the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
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
    scratch: Scratch,
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
            scratch: Scratch::new(),
            received: Vec::new(),
            vector: vec![1.0; LEN],
        }
    }

    /// Fills the pools: more messages of the largest size in flight on every link than a step ever has.
    fn prime(&mut self, step: u64) {
        for chunk in 0..16 {
            let tag = Tag::new(0, step).unit(9).chunk(chunk);
            self.others
                .iter()
                .for_each(|to| self.transport.send(*to, tag, &self.payload, Deadline::NEVER).unwrap());
        }
        self.transport.barrier(Tag::new(0, step), Deadline::NEVER).unwrap();
        for chunk in 0..16 {
            let tag = Tag::new(0, step).unit(9).chunk(chunk);
            for from in &self.others {
                self.transport.recv(*from, tag, &mut self.received, Deadline::NEVER).unwrap();
            }
        }
    }

    fn step(&mut self, step: u64) {
        let (tag, never) = (Tag::new(0, step), Deadline::NEVER);
        self.others.iter().for_each(|to| self.transport.send(*to, tag, &self.payload, never).unwrap());
        self.others
            .iter()
            .for_each(|from| self.transport.recv(*from, tag, &mut self.received, never).unwrap());
        let shorter = LEN + step as usize * 300 % LEN;
        self.transport.all_gather(tag, &self.payload[..shorter], &mut self.gathered, never).unwrap();
        assert_eq!(self.gathered.len(), self.others.len() + 1);
        for (unit, wire) in [Wire::F32, Wire::Bf16].into_iter().enumerate() {
            let sum = Reduce::SumF32(&mut self.vector, wire);
            self.transport.all_reduce(tag.unit(unit as u32), sum, &mut self.scratch, never).unwrap();
        }
        self.transport.barrier(tag, never).unwrap();
        self.transport.retire(tag);
    }
}

/// Allocations of `steps` warm steps of one rank.
fn allocations(transport: Box<dyn Transport>, steps: u64) -> u64 {
    let mut warm = Warm::new(transport);
    warm.prime(1);
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

#[test]
fn the_counter_counts() {
    let before = ALLOCATIONS.get();
    std::hint::black_box(Vec::<u8>::with_capacity(10));
    assert_eq!(ALLOCATIONS.get() - before, 1);
}
