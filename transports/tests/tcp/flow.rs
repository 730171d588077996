//! Much at once: messages that nobody takes, long ones, many short ones.

use std::thread;
use std::time::{Duration, Instant};

use gradwire_transports::inbox::InboxLimits;
use gradwire_transports::tcp::{TcpLimits, TcpTransport};
use gradwire_transports::{Deadline, Rank, Tag, Transport, TransportError, Wanted};

use crate::support::{World, long};

fn pair(world: World) -> [TcpTransport; 2] {
    world.join().try_into().unwrap()
}

fn briefly() -> Deadline {
    Deadline::after(Duration::from_millis(200))
}

#[test]
fn a_receiver_that_takes_nothing_stops_the_sender_and_gets_everything_later() {
    for world in [World::new(2), World::sealed(2)] {
        let [mut flooded, mut flooding] = pair(world);
        let payload = vec![7; 300_000];
        let tag = |step| Tag::new(0, step);
        let mut sent = 0;
        let refused = loop {
            match flooding.send(Rank(0), tag(sent), &payload, briefly()) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
            // Queues of 1 MiB at each end; the rest is in the buffers of the system.
            assert!(sent < 200, "nothing stops the sender");
        };
        assert_eq!(refused, TransportError::NoRoom { to: Rank(0), tag: tag(sent) });
        let mut taken = Vec::new();
        for step in 0..sent {
            flooded.recv(Rank(1), tag(step), &mut taken, long()).unwrap();
            assert!(taken == payload);
        }
        flooding.send(Rank(0), tag(sent), &payload, long()).unwrap();
        flooded.recv(Rank(1), tag(sent), &mut taken, long()).unwrap();
    }
}

/// Sends until there is no room; returns how many there were.
fn flood(end: &mut TcpTransport, payload: &[u8]) -> u64 {
    (0..).find(|&step| end.send(Rank(0), Tag::new(1, step), payload, briefly()).is_err()).unwrap()
}

#[test]
fn who_waits_behind_more_messages_than_there_is_room_for_is_told_and_may_still_take_them() {
    for world in [World::new(2), World::sealed(2)] {
        let [mut flooded, mut flooding] = pair(world);
        let payload = vec![3; 300_000];
        let sending = thread::spawn(move || (flood(&mut flooding, &payload), flooding));
        let (behind, mut taken) = (Tag::new(2, 0), Vec::new());
        let error = flooded.recv(Rank(1), behind, &mut taken, Deadline::NEVER);
        assert_eq!(error, Err(TransportError::Flooded { from: Rank(1), tag: behind }));
        let (sent, mut flooding) = sending.join().unwrap();
        for step in 0..sent {
            flooded.recv(Rank(1), Tag::new(1, step), &mut taken, long()).unwrap();
        }
        flooding.send(Rank(0), behind, b"behind", long()).unwrap();
        flooded.recv(Rank(1), behind, &mut taken, long()).unwrap();
        assert_eq!(taken, b"behind");
    }
}

#[test]
fn who_waits_for_another_peer_too_is_not_told_of_a_flood() {
    let [mut flooded, mut flooding, mut quiet]: [_; 3] = World::new(3).join().try_into().unwrap();
    flood(&mut flooding, &[1; 100_000]);
    let (tag, mut payload) = (Tag::new(2, 0), Vec::new());
    let speaking = thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        quiet.send(Rank(0), tag, b"heard", long()).unwrap();
        quiet
    });
    let wanted = [Rank(1), Rank(2)].map(|from| Wanted::one(from, tag));
    assert_eq!(flooded.recv_any(&wanted, &mut payload, Deadline::NEVER), Ok((Rank(2), tag)));
    speaking.join().unwrap();
    let timeout = TransportError::Timeout { from: Rank(1), tag };
    assert_eq!(flooded.recv_any(&wanted[..1], &mut payload, briefly()), Err(timeout));
    let error = TransportError::Flooded { from: Rank(1), tag };
    assert_eq!(flooded.recv_any(&wanted[..1], &mut payload, Deadline::NEVER), Err(error));
}

#[test]
fn a_flood_of_one_peer_does_not_hold_up_another() {
    let mut ends = World::new(3).join();
    let (mut quiet, mut flooding, mut flooded) =
        (ends.pop().unwrap(), ends.pop().unwrap(), ends.pop().unwrap());
    flood(&mut flooding, &[1; 100_000]);
    let (tag, mut payload) = (Tag::new(0, 1), Vec::new());
    quiet.send(Rank(0), tag, b"heard", long()).unwrap();
    flooded.recv(Rank(2), tag, &mut payload, long()).unwrap();
    assert_eq!(payload, b"heard");
}

#[test]
fn a_long_message_passes_whole_through_small_queues_both_ways_at_once() {
    let queue = InboxLimits { messages: 2, bytes: 1 << 10 };
    let limits = TcpLimits { inbox: queue, outbox: queue, max_message_bytes: 64 << 20 };
    for world in [World { limits, ..World::new(2) }, World { limits, ..World::sealed(2) }] {
        thread::scope(|scope| {
            for mut end in pair(world) {
                scope.spawn(move || {
                    let (peer, tag) = (Rank(1 - end.rank().0), Tag::new(0, 1));
                    let pattern = |rank: Rank| -> Vec<u8> {
                        let block: Vec<u8> = (0..251).map(|at| at as u8 ^ rank.0 as u8).collect();
                        block.repeat((64 << 20) / 251)
                    };
                    end.send(peer, tag, &pattern(end.rank()), long()).unwrap();
                    let mut payload = Vec::new();
                    end.recv(peer, tag, &mut payload, long()).unwrap();
                    assert!(payload == pattern(peer));
                    end.close(long()).unwrap();
                });
            }
        });
    }
}

/// Lengths do not fit 32 bits.
#[test]
#[ignore = "needs 14 GB of memory, and minutes where nothing is optimised"]
fn a_message_above_4_gib_passes_whole() {
    const LEN: usize = (4 << 30) + 12_345;
    // No two blocks are alike, so none can stand in for another.
    let fill = |block: usize, bytes: &mut [u8]| {
        bytes.fill(0x5a);
        bytes[..8].copy_from_slice(&block.to_le_bytes());
    };
    const BLOCK: usize = 1 << 12;
    for world in [World::new(2), World::sealed(2)] {
        let [mut receiver, mut sender] = pair(World { limits: TcpLimits::default(), ..world });
        let tag = Tag::new(0, 1);
        let sending = thread::spawn(move || {
            let mut message = vec![0; LEN];
            (0..).zip(message.chunks_mut(BLOCK)).for_each(|(block, bytes)| fill(block, bytes));
            sender.send(Rank(0), tag, &message, long()).unwrap();
            sender
        });
        let (mut payload, mut expected) = (Vec::new(), [0; BLOCK]);
        receiver.recv(Rank(1), tag, &mut payload, long()).unwrap();
        assert_eq!(payload.len(), LEN);
        for (block, bytes) in (0..).zip(payload.chunks(BLOCK)) {
            fill(block, &mut expected);
            assert!(bytes == &expected[..bytes.len()], "block {block}");
        }
        sending.join().unwrap().close(long()).unwrap();
    }
}

#[test]
fn many_short_messages_arrive_each() {
    const COUNT: u64 = 20_000;
    for world in [World::new(2), World::sealed(2)] {
        let [mut receiver, mut sender] = pair(world);
        let sending = thread::spawn(move || {
            for step in 0..COUNT {
                sender.send(Rank(0), Tag::new(0, step), &step.to_le_bytes(), long()).unwrap();
            }
            sender
        });
        let mut payload = Vec::new();
        for step in 0..COUNT {
            receiver.recv(Rank(1), Tag::new(0, step), &mut payload, long()).unwrap();
            assert_eq!(payload, step.to_le_bytes());
        }
        sending.join().unwrap().close(long()).unwrap();
    }
}

#[test]
fn closing_does_not_wait_longer_than_it_may_for_one_that_takes_nothing() {
    let [_deaf, mut leaving] = pair(World::new(2));
    let mut step = 0;
    while leaving.send(Rank(0), Tag::new(0, step), &[1; 300_000], briefly()).is_ok() {
        step += 1;
    }
    let start = Instant::now();
    let closed = leaving.close(briefly());
    assert_eq!(closed, Err(TransportError::Timeout { from: Rank(0), tag: Tag::new(0, step - 1) }));
    assert!(start.elapsed() < Duration::from_secs(5));
}

/// Not a check: prints what this machine can do, with both ranks on it.
#[test]
#[ignore = "measures"]
fn how_fast_it_is() {
    const MESSAGES: u64 = 32;
    const PINGS: u64 = 2000;
    for (name, world) in [("plain", World::new(2)), ("sealed", World::sealed(2))] {
        let limits = TcpLimits::default();
        let [mut first, mut second] = pair(World { limits, ..world });
        let (tag, mut payload) = (|step| Tag::new(0, step), Vec::new());
        let echo = thread::spawn(move || {
            let mut payload = Vec::new();
            for step in 0..PINGS {
                second.recv(Rank(0), tag(step), &mut payload, long()).unwrap();
                second.send(Rank(0), tag(step), &payload, long()).unwrap();
            }
            for step in PINGS..PINGS + MESSAGES {
                second.recv(Rank(0), tag(step), &mut payload, long()).unwrap();
            }
            second.send(Rank(0), tag(PINGS), b"all are here", long()).unwrap();
            second
        });
        let start = Instant::now();
        for step in 0..PINGS {
            first.send(Rank(1), tag(step), &[0; 8], long()).unwrap();
            first.recv(Rank(1), tag(step), &mut payload, long()).unwrap();
        }
        let trip = start.elapsed() / PINGS as u32;
        let (long_one, start) = (vec![1; 16 << 20], Instant::now());
        for step in PINGS..PINGS + MESSAGES {
            first.send(Rank(1), tag(step), &long_one, long()).unwrap();
        }
        first.recv(Rank(1), tag(PINGS), &mut payload, long()).unwrap();
        let rate = (MESSAGES * (16 << 20)) as f64 / start.elapsed().as_secs_f64() / 1e6;
        println!("{name}: a round trip of 8 bytes {trip:?}, messages of 16 MiB {rate:.0} MB/s");
        echo.join().unwrap();
    }
}

#[test]
fn another_thread_ends_the_wait_for_a_message_and_no_message_is_lost() {
    let [mut waiting, mut sending] = pair(World::new(2));
    let (waker, tag, mut taken) = (waiting.waker(), Tag::new(0, 1), Vec::new());
    let timeout = Err(TransportError::Timeout { from: Rank(1), tag });
    // Before the wait, and in it.
    waker.wake();
    assert_eq!(waiting.recv(Rank(1), tag, &mut taken, long()), timeout);
    let other = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        waker.wake();
        waker
    });
    let began = Instant::now();
    assert_eq!(waiting.recv(Rank(1), tag, &mut taken, long()), timeout);
    assert!(began.elapsed() >= Duration::from_millis(50) && began.elapsed() < Duration::from_secs(20));
    sending.send(Rank(0), tag, b"frame", long()).unwrap();
    waiting.recv(Rank(1), tag, &mut taken, long()).unwrap();
    assert_eq!(taken, b"frame");
    // A call that finds a message does not use it up.
    let waker = other.join().unwrap();
    sending.send(Rank(0), tag.chunk(1), b"next", long()).unwrap();
    thread::sleep(Duration::from_millis(200));
    waker.wake();
    waiting.recv(Rank(1), tag.chunk(1), &mut taken, long()).unwrap();
    let next = tag.chunk(2);
    let timeout = Err(TransportError::Timeout { from: Rank(1), tag: next });
    assert_eq!(waiting.recv(Rank(1), next, &mut taken, long()), timeout);
}
