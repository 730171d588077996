//! What the in-process transport promises beyond the contract: bounds, backpressure, departures by panic, new
//! epochs.

use std::thread;
use std::time::{Duration, Instant};

use gradwire_transports::collective::{self, Buffers, Gathered, Reduce, Wire};
use gradwire_transports::inbox::InboxLimits;
use gradwire_transports::local::{self, LocalLimits, LocalTransport};
use gradwire_transports::{Deadline, Membership, Rank, RankSet, Tag, Transport, TransportError};

const STEP: Tag = Tag::new(0, 1);

fn soon() -> Deadline {
    Deadline::after(Duration::from_millis(30))
}

fn two(limits: LocalLimits) -> (LocalTransport, LocalTransport) {
    let members = Membership { epoch: 0, ranks: RankSet::contiguous(2) };
    let [a, b] = local::with_limits(members, limits).try_into().unwrap();
    (a, b)
}

fn tight() -> LocalLimits {
    LocalLimits { inbox: InboxLimits { messages: 2, bytes: 100 }, max_message_bytes: 1000 }
}

#[test]
fn a_full_inbox_refuses_in_time_and_the_message_can_be_sent_again() {
    let (mut a, mut b) = two(tight());
    a.send(Rank(1), STEP, &[0; 60], soon()).unwrap();
    let tag = STEP.chunk(1);
    let start = Instant::now();
    assert_eq!(a.send(Rank(1), tag, &[1; 60], soon()), Err(TransportError::NoRoom { to: Rank(1), tag }));
    assert!(start.elapsed() >= Duration::from_millis(30));
    assert_eq!(a.counters().up.messages, 1);
    let mut payload = Vec::new();
    b.recv(Rank(0), STEP, &mut payload, soon()).unwrap();
    a.send(Rank(1), tag, &[1; 60], soon()).unwrap();
    b.recv(Rank(0), tag, &mut payload, soon()).unwrap();
    assert_eq!(payload, [1; 60]);
}

#[test]
fn a_blocked_sender_goes_on_when_the_receiver_takes_or_retires_a_message() {
    let (mut a, mut b) = two(tight());
    a.send(Rank(1), STEP, &[0; 60], soon()).unwrap();
    let sender = thread::spawn(move || {
        for chunk in [1, 2] {
            a.send(Rank(1), STEP.chunk(chunk), &[1; 60], Deadline::after(Duration::from_secs(20))).unwrap();
        }
        a
    });
    thread::sleep(Duration::from_millis(20));
    b.recv(Rank(0), STEP, &mut Vec::new(), soon()).unwrap();
    while b.recv(Rank(0), STEP.chunk(1), &mut Vec::new(), soon()).is_err() {}
    b.retire(Tag::new(0, 2));
    sender.join().unwrap();
}

#[test]
fn a_panic_of_one_rank_is_a_departure_for_those_who_wait() {
    let [a, mut b] = local::world(2).try_into().unwrap();
    let start = Instant::now();
    let panicking = thread::spawn(move || {
        let _moved = a;
        thread::sleep(Duration::from_millis(20));
        panic!("on purpose");
    });
    let gone = TransportError::Disconnected { rank: Rank(0) };
    assert_eq!(b.recv(Rank(0), STEP, &mut Vec::new(), Deadline::NEVER), Err(gone));
    assert!(start.elapsed() < Duration::from_secs(5));
    panicking.join().unwrap_err();
}

#[test]
fn a_sender_that_waits_for_room_hears_of_the_receivers_departure() {
    let (mut a, b) = two(tight());
    a.send(Rank(1), STEP, &[0; 1000], soon()).unwrap();
    let sender = thread::spawn(move || a.send(Rank(1), STEP.chunk(1), b"", Deadline::NEVER));
    thread::sleep(Duration::from_millis(20));
    drop(b);
    assert_eq!(sender.join().unwrap(), Err(TransportError::Disconnected { rank: Rank(1) }));
}

/// One rank of three leaves; the two others go on in the next epoch with what they have.
#[test]
fn survivors_go_on_in_a_new_epoch_and_old_messages_stay_out_of_it() {
    let ranks = [2, 5, 9].map(Rank);
    let members = Membership { epoch: 4, ranks: ranks.into_iter().collect() };
    let [a, b, c] = local::with_limits(members, LocalLimits::default()).try_into().unwrap();
    drop(b);
    let threads = [a, c].map(|mut transport| {
        thread::spawn(move || {
            let (mut out, old) = (Gathered::new(), Tag::new(4, 7));
            let gone = collective::all_gather(&mut transport, old, b"old", &mut out, Deadline::NEVER);
            assert_eq!(gone, Err(TransportError::Disconnected { rank: Rank(5) }));
            let survivors: RankSet = [ranks[0], ranks[2]].into_iter().collect();
            transport.adopt(Membership { epoch: 5, ranks: survivors.clone() }).unwrap();
            transport.retire(Tag::new(5, 7));
            let now = Tag::new(5, 7);
            let refused = collective::all_gather(&mut transport, old, b"old", &mut out, Deadline::NEVER);
            assert_eq!(refused, Err(TransportError::WrongEpoch { tag: old, current: 5 }));
            assert_eq!(
                collective::all_gather(&mut transport, now, b"new", &mut out, Deadline::NEVER),
                Ok(survivors)
            );
            assert!(out.iter().all(|(_, payload)| payload == b"new"));
            let mut data = [transport.rank().0 as f32];
            let sum = Reduce::SumF32(&mut data, Wire::F32);
            collective::all_reduce(&mut transport, now, sum, &mut Buffers::new(), Deadline::NEVER).unwrap();
            assert_eq!(data, [11.0]);
        })
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_membership_without_this_rank_or_with_a_stranger_is_not_adopted() {
    let mut a = local::world(2).swap_remove(0);
    let before = a.membership();
    let without = Membership { epoch: 1, ranks: [Rank(1)].into_iter().collect() };
    assert_eq!(a.adopt(without), Err(TransportError::NotAPeer { rank: Rank(0) }));
    assert_eq!(
        a.adopt(Membership { epoch: 1, ranks: RankSet::contiguous(3) }),
        Err(TransportError::NotAPeer { rank: Rank(2) })
    );
    assert_eq!(a.membership(), before);
}

#[test]
#[should_panic(expected = "larger")]
fn an_epoch_never_goes_back() {
    let mut a = local::world(2).swap_remove(0);
    let same = a.membership();
    let _ = a.adopt(same);
}

#[test]
fn a_message_that_does_not_fit_a_collective_is_an_error_that_says_where() {
    let [mut a, mut b] = local::world(2).try_into().unwrap();
    let (sum, mut scratch) = ([1.0_f32; 4], Buffers::new());
    let damaged = thread::spawn(move || {
        let mut short = [1.0_f32; 3];
        let data = Reduce::SumF32(&mut short, Wire::F32);
        let _ = collective::all_reduce(&mut b, STEP, data, &mut Buffers::new(), soon());
    });
    let mut data = sum;
    let result = collective::all_reduce(
        &mut a,
        STEP,
        Reduce::SumF32(&mut data, Wire::F32),
        &mut scratch,
        Deadline::NEVER,
    );
    let text = result.unwrap_err().to_string();
    assert_eq!(
        text,
        "message from rank 1 has 4 bytes instead of 8 (step 1): do all ranks run the same program with the same \
         settings?"
    );
    damaged.join().unwrap();
}
