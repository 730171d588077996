//! A sender and a receiver, and packets that are lost, repeated and reordered between them.

use std::collections::VecDeque;

use super::*;
use crate::inbox::{Inbox, InboxLimits};
use crate::spares::Spares;
use crate::tag::Tag;

const LIMITS: ZmqLimits = ZmqLimits {
    chunk_bytes: 5,
    window: 4,
    inbox: InboxLimits { messages: 3, bytes: 40 },
    outbox: InboxLimits { messages: 1000, bytes: 1 << 20 },
    max_message_bytes: 64,
};
const HEARTBEAT: Duration = Duration::from_millis(300);

fn arrivals() -> Arrivals {
    Arrivals { inbox: Inbox::new(LIMITS.inbox), spares: Spares::new(1 << 20) }
}

fn payload(at: u64) -> Vec<u8> {
    (0..at * 7 % 50).map(|byte| (byte + at) as u8).collect()
}

/// SplitMix64.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (x ^ (x >> 27)) % bound
    }
}

/// A sender, a receiver, and the packets on their way between them; faults by seed.
struct World {
    sender: Link,
    receiver: Link,
    arrivals: Arrivals,
    forth: VecDeque<Vec<u8>>,
    back: VecDeque<Vec<u8>>,
    now: Instant,
    draws: Draws,
}

impl World {
    fn new(seed: u64) -> Self {
        let now = Instant::now();
        let (sender, mut receiver) = (Link::new(9, &LIMITS, now), Link::new(9, &LIMITS, now));
        let mut world = Self {
            sender,
            arrivals: arrivals(),
            forth: VecDeque::new(),
            back: VecDeque::new(),
            now,
            draws: Draws(seed),
            receiver: Link::new(9, &LIMITS, now),
        };
        world.sender.on_greeting(receiver.incoming.ack(), true, now).unwrap();
        world.receiver = receiver;
        world
    }

    fn fault(&mut self, percent: u64) -> bool {
        self.draws.below(100) < percent
    }

    /// One round: the sender sends what it may, and everything on the way arrives, out of order or not at
    /// all.
    fn round(&mut self, percent: u64) {
        self.now += Duration::from_millis(50);
        while let Some(packet) = self.sender.outgoing.packet(9, self.now) {
            self.sender.outgoing.sent(self.now);
            self.forth.push_back(packet);
        }
        if self.forth.len() > 1 && self.fault(percent) {
            let at = self.draws.below(self.forth.len() as u64 - 1) as usize;
            self.forth.swap(at, at + 1);
        }
        while let Some(packet) = self.forth.pop_front() {
            if self.fault(percent) {
                continue;
            }
            for _ in 0..=u64::from(self.fault(percent)) {
                self.arrive(&packet);
            }
        }
        self.receiver.settle(Rank(1), &mut self.arrivals).unwrap();
        if let Some(ack) = self.receiver.ack(HEARTBEAT, self.now) {
            self.receiver.acked(self.now);
            self.back.push_back(ack);
        }
        while let Some(packet) = self.back.pop_front() {
            if self.fault(percent) {
                continue;
            }
            let Ok(Packet::Ack { ack, .. }) = Packet::parse(&packet) else { panic!("not an ack") };
            self.sender.outgoing.on_ack(ack, self.now).unwrap();
        }
    }

    fn arrive(&mut self, packet: &[u8]) {
        match Packet::parse(packet).unwrap() {
            Packet::Data(data) => {
                self.receiver.on_data(Rank(1), &data, &mut self.arrivals, self.now).unwrap();
            }
            Packet::Skip { seq, .. } => self.receiver.on_skip(seq, self.now).unwrap(),
            Packet::Bye { seq, .. } => self.receiver.on_bye(seq, self.now).unwrap(),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn every_message_arrives_once_and_whole_whatever_is_lost_repeated_or_reordered() {
    for seed in 0..60 {
        let percent = seed % 4 * 6;
        let mut world = World::new(seed);
        (0..40).for_each(|at| world.sender.outgoing.push(Tag::new(0, at), payload(at), None));
        world.sender.outgoing.push_bye();
        let mut taken = 0;
        for round in 0.. {
            assert!(round < 100_000, "seed {seed}: stuck at message {taken}");
            world.round(percent);
            // The caller takes messages only now and then, so the inbox is often full.
            if round % 3 == 0
                && let Some(bytes) = world.arrivals.inbox.take(Rank(1), Tag::new(0, taken))
            {
                assert_eq!(bytes, payload(taken), "seed {seed}");
                taken += 1;
            }
            assert!(world.arrivals.inbox.bytes() <= LIMITS.max_message_bytes.max(LIMITS.inbox.bytes));
            if world.sender.outgoing.is_done() && taken == 40 {
                break;
            }
        }
        assert!(world.receiver.incoming.is_over() && world.arrivals.inbox.is_empty());
        assert_eq!(world.sender.outgoing.resent > 0, percent > 0, "seed {seed}");
    }
}

#[test]
fn what_may_be_lost_is_not_sent_when_its_time_is_over_and_holds_nothing_else_up() {
    for seed in 0..40 {
        let percent = seed % 4 * 6;
        let mut world = World::new(seed);
        let until = world.now + Duration::from_secs(1);
        let may_be_lost = |at: u64| !at.is_multiple_of(3);
        for at in 0..40 {
            // Half of what may be lost is too late from the start.
            let until = may_be_lost(at).then_some(if at % 2 == 0 { until } else { world.now });
            let bytes = payload(at)[..5.min(payload(at).len())].to_vec();
            world.sender.outgoing.push(Tag::new(0, at), bytes, until);
        }
        world.sender.outgoing.push_bye();
        let mut arrived = Vec::new();
        for round in 0.. {
            assert!(round < 100_000, "seed {seed}: stuck with {arrived:?}");
            world.round(percent);
            let mut taken =
                (0..40).filter_map(|at| Some((at, world.arrivals.inbox.take(Rank(1), Tag::new(0, at))?)));
            if let Some((at, bytes)) = taken.next() {
                assert_eq!(bytes, payload(at)[..5.min(payload(at).len())], "seed {seed}");
                arrived.push(at);
            }
            if world.sender.outgoing.is_done() && world.arrivals.inbox.is_empty() {
                break;
            }
        }
        assert!(world.receiver.incoming.is_over() && arrived.is_sorted());
        assert!((0..40).filter(|&at| !may_be_lost(at)).all(|at| arrived.contains(&at)), "seed {seed}");
        assert!(!arrived.iter().any(|&at| may_be_lost(at) && at % 2 == 1), "seed {seed}: {arrived:?}");
    }
}

#[test]
fn a_message_of_several_chunks_is_delivered_whole_however_late() {
    let mut world = World::new(1);
    world.sender.outgoing.push(Tag::new(0, 1), vec![1; 12], Some(world.now));
    (0..10).for_each(|_| world.round(0));
    assert_eq!(world.arrivals.inbox.take(Rank(1), Tag::new(0, 1)), Some(vec![1; 12]));
}

#[test]
fn a_skip_inside_a_message_breaks_the_link() {
    let now = Instant::now();
    let (mut link, mut arrivals) = (Link::new(9, &LIMITS, now), arrivals());
    let data = Data { session: 9, seq: 0, tag: Tag::new(0, 1), total: 10, offset: 0, bytes: &[0; 5] };
    link.on_data(Rank(1), &data, &mut arrivals, now).unwrap();
    assert_eq!(link.on_skip(1, now), Err(Violation::WrongChunk));
    link.on_bye(2, now).unwrap();
    assert_eq!(link.on_skip(3, now), Err(Violation::AfterBye));
}

#[test]
fn a_full_inbox_stops_the_sender_within_the_window() {
    let mut world = World::new(1);
    (0..20).for_each(|at| world.sender.outgoing.push(Tag::new(0, at), vec![0; 15], None));
    (0..200).for_each(|_| world.round(0));
    // Two messages of 15 bytes fill the inbox, one waits whole, and the window holds 4 chunks of the
    // next.
    assert_eq!(world.arrivals.inbox.len(), 2);
    assert_eq!(world.receiver.incoming.ack().received, 9 + 4);
    assert_eq!(world.sender.outgoing.resent, 0);
}

#[test]
fn a_lost_connection_goes_on_where_the_receiver_stands() {
    let mut world = World::new(1);
    (0..6).for_each(|at| world.sender.outgoing.push(Tag::new(0, at), vec![at as u8; 12], None));
    world.round(0);
    while world.sender.outgoing.packet(9, world.now).is_some() {
        world.sender.outgoing.sent(world.now);
    }
    let ack = world.receiver.incoming.ack();
    world.sender.on_greeting(ack, true, world.now).unwrap();
    let packet = world.sender.outgoing.packet(9, world.now).unwrap();
    let Ok(Packet::Data(data)) = Packet::parse(&packet) else { panic!("not data") };
    assert_eq!(data.seq, ack.received);
}

/// What is sent over the first connection is lost, and the second is slower: chunks of another length
/// join to the same messages.
#[test]
fn what_a_new_connection_repeats_is_cut_anew() {
    let limits = ZmqLimits { chunk_bytes: 64 << 10, max_message_bytes: 1 << 20, ..LIMITS };
    let queue = InboxLimits { messages: 9, bytes: 1 << 20 };
    let limits = ZmqLimits { inbox: queue, outbox: queue, ..limits };
    let mut now = Instant::now();
    let [mut sender, mut receiver] = [(); 2].map(|()| Link::new(9, &limits, now));
    let mut arrivals = Arrivals { inbox: Inbox::new(queue), spares: Spares::new(1 << 20) };
    let message = |at: usize| (0..50_000 + at * 7).map(|byte| (byte * 31 + at) as u8).collect::<Vec<u8>>();
    (0..3).for_each(|at| sender.outgoing.push(Tag::new(0, at as u64), message(at), None));
    sender.outgoing.push_bye();
    // A fast link, a slow one, one in between, the slow one again.
    let mut lengths = Vec::new();
    for (connection, took) in [1, 900, 40, 900].into_iter().enumerate() {
        sender.on_greeting(receiver.incoming.ack(), true, now).unwrap();
        sender.outgoing.pace.on_greeting(3000, Duration::from_millis(took), now);
        let mut sent = 0;
        while let Some(packet) = sender.outgoing.packet(9, now) {
            sender.outgoing.sent(now);
            now += Duration::from_millis(took);
            sent += 1;
            match Packet::parse(&packet).unwrap() {
                Packet::Data(data) => {
                    lengths.push(data.bytes.len());
                    receiver.on_data(Rank(1), &data, &mut arrivals, now).unwrap();
                }
                Packet::Bye { seq, .. } => receiver.on_bye(seq, now).unwrap(),
                other => panic!("{other:?}"),
            }
            // Of the first connections the last packets are lost, or what acknowledges them.
            if connection < 3 && sent == 2 {
                let _lost = sender.outgoing.packet(9, now).inspect(|_| sender.outgoing.sent(now));
                break;
            }
            sender.outgoing.on_ack(receiver.incoming.ack(), now).unwrap();
        }
    }
    for at in 0..3 {
        assert_eq!(arrivals.inbox.take(Rank(1), Tag::new(0, at as u64)), Some(message(at)));
    }
    assert!(sender.outgoing.is_done() && receiver.incoming.is_over());
    lengths.sort_unstable();
    assert!(lengths[0] <= 2048 && lengths[lengths.len() - 1] > 40_000, "{lengths:?}");
}

#[test]
fn a_late_acknowledgement_of_an_earlier_connection_is_not_of_this_one() {
    let now = Instant::now();
    let mut link = Link::new(9, &LIMITS, now);
    link.outgoing.push(Tag::new(0, 1), vec![1; 12], None);
    let ack = |received| Ack { received, limit: 9, gap: false };
    link.on_greeting(ack(0), true, now).unwrap();
    while link.outgoing.packet(9, now).is_some() {
        link.outgoing.sent(now);
    }
    link.on_greeting(ack(1), true, now).unwrap();
    assert_eq!(link.outgoing.on_ack(ack(3), now), Ok(false));
    assert!(!link.outgoing.is_done() && link.outgoing.packet(9, now).is_some());
    assert!(link.outgoing.on_ack(ack(4), now).is_err());
}

#[test]
fn chunks_that_do_not_fit_break_the_link_and_nothing_else() {
    let data = |seq, total, offset, len| Data {
        session: 9,
        seq,
        tag: Tag::new(0, 1),
        total,
        offset,
        bytes: &[0; 64][..len],
    };
    let now = Instant::now();
    for (first, second, expected) in [
        (data(0, 65, 0, 5), None, Violation::TooLarge { bytes: 65, limit: 64 }),
        (data(0, u64::MAX, 0, 5), None, Violation::TooLarge { bytes: u64::MAX, limit: 64 }),
        (data(0, 10, 5, 5), None, Violation::WrongChunk),
        (data(0, 10, 0, 0), None, Violation::WrongChunk),
        (data(0, 10, 0, 6), None, Violation::WrongChunk),
        (data(0, 10, 0, 10), None, Violation::WrongChunk),
        (data(0, 3, 0, 4), None, Violation::WrongChunk),
        (data(0, 0, 0, 1), None, Violation::WrongChunk),
        (data(0, 10, 0, 3), Some(data(1, 10, 5, 5)), Violation::WrongChunk),
        (data(0, 10, 0, 3), Some(data(1, 10, 3, 0)), Violation::WrongChunk),
        (data(0, 10, 0, 5), Some(data(1, 11, 5, 5)), Violation::WrongChunk),
        (data(0, 10, 0, 5), Some(data(1, 10, 0, 5)), Violation::WrongChunk),
    ] {
        let (mut link, mut arrivals) = (Link::new(9, &LIMITS, now), arrivals());
        let mut result = link.on_data(Rank(1), &first, &mut arrivals, now);
        if let Some(second) = second {
            result.unwrap();
            result = link.on_data(Rank(1), &second, &mut arrivals, now);
        }
        assert_eq!((result, arrivals.inbox.len()), (Err(expected), 0));
    }
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_breaks_the_link() {
    let now = Instant::now();
    let mut link = Link::new(9, &LIMITS, now);
    link.outgoing.push(Tag::new(0, 1), vec![1; 12], None);
    let ack = Ack { received: 1, limit: 9, gap: false };
    assert_eq!(link.on_greeting(ack, true, now), Err(Violation::NeverSent));
}

#[test]
fn nothing_follows_a_last_packet() {
    let now = Instant::now();
    let (mut link, mut arrivals) = (Link::new(9, &LIMITS, now), arrivals());
    link.on_bye(0, now).unwrap();
    let data = Data { session: 9, seq: 1, tag: Tag::new(0, 1), total: 0, offset: 0, bytes: b"" };
    assert_eq!(link.on_data(Rank(1), &data, &mut arrivals, now), Err(Violation::AfterBye));
}
