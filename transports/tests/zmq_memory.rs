//! A connection over ZeroMQ keeps nothing of the packets that it carried.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};

use gradwire::{LayoutRef, Spec};
use gradwire_transports::zmq::{Bound, Entry, KeyPair, Roster, Security, Terms, Topology, ZmqOptions};
use gradwire_transports::{Deadline, Rank, Tag, Transport};

/// Bytes that are allocated now, in the whole process. What libzmq allocates does not count.
static HELD: AtomicI64 = AtomicI64::new(0);

struct Counting;

// SAFETY: every call goes unchanged to the system's allocator, which keeps the contract; counting allocates
// nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same for the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as above; the pointer comes from `alloc`, thus from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Messages each way in a round, which are as many packets and as many acknowledgements.
const MESSAGES: u64 = 1000;
/// Buffers may be larger after a round than before it. A single byte kept of each packet is three times as
/// much.
const BUFFERS: i64 = 2000;

/// A server and a worker with keys, that have met.
fn pair() -> [Box<dyn Transport>; 2] {
    let pairs = [(); 2].map(|()| KeyPair::generate().unwrap());
    let roster = pairs.iter().zip(0..).fold(Roster::new(), |roster, (pair, rank)| {
        let endpoint = (rank == 0).then(|| "tcp://127.0.0.1:*".to_owned());
        roster.with(Rank(rank), Entry { key: Some(pair.public()), endpoint })
    });
    let terms = || Terms::new(&LayoutRef::flat(650), &Spec::parse("topk:density=0.01").unwrap());
    let bound = |rank: u32| {
        let (topology, security) =
            (Topology::Star { server: Rank(0) }, Security::Curve(pairs[rank as usize].clone()));
        Bound::new(ZmqOptions::new(Rank(rank), roster.clone(), topology, security, terms())).unwrap()
    };
    let (server, mut worker) = (bound(0), bound(1));
    worker.locate(Rank(0), server.endpoint().unwrap());
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| Box::new(worker.join(Deadline::NEVER).unwrap()) as Box<dyn Transport>);
        [Box::new(server.join(Deadline::NEVER).unwrap()), worker.join().unwrap()]
    })
}

/// Every message is answered, so nothing is under way at the end but the last acknowledgement.
fn round([server, worker]: &mut [Box<dyn Transport>; 2], first: u64, received: &mut Vec<u8>) {
    let payload = [7; 500];
    for step in first..first + MESSAGES {
        let tag = Tag::new(0, step);
        worker.send(Rank(0), tag, &payload, Deadline::NEVER).unwrap();
        server.recv(Rank(1), tag, received, Deadline::NEVER).unwrap();
        server.send(Rank(1), tag, &payload, Deadline::NEVER).unwrap();
        worker.recv(Rank(0), tag, received, Deadline::NEVER).unwrap();
        [&mut *server, &mut *worker].into_iter().for_each(|end| end.retire(tag));
    }
}

#[test]
fn a_connection_with_keys_holds_as_much_memory_after_thousands_of_packets_as_after_some() {
    let (mut ends, mut received) = (pair(), Vec::new());
    round(&mut ends, 0, &mut received);
    let before = HELD.load(Ordering::Relaxed);
    (1..4).for_each(|times| round(&mut ends, times * MESSAGES, &mut received));
    let kept = HELD.load(Ordering::Relaxed) - before;
    assert!(kept < BUFFERS, "{kept} bytes are kept of {} packets", 6 * MESSAGES);
}
