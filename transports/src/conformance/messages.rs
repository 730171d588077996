//! `send` and `recv`: which messages arrive, which do not, and when.

use std::time::Instant;

use super::peer::{BRIEFLY, Check, PATIENCE, Peer, SLACK, briefly};
use crate::counters::{Counters, Traffic};
use crate::error::TransportError;
use crate::rank::{Rank, RankSet};
use crate::tag::{Deadline, Tag, Wanted};

pub(super) const CHECKS: &[Check] = &[
    Check { name: "every rank sees the same sorted membership with itself in it", run: membership },
    Check { name: "payloads of any length arrive whole", run: payloads_arrive_whole },
    Check { name: "all ranks may send long messages before any receives", run: send_does_not_wait_for_recv },
    Check { name: "messages come out by tag, whatever their order", run: interleaved_tags },
    Check { name: "a message for a later step waits until it is asked for", run: early_messages_wait },
    Check { name: "the first of several messages is whichever is there", run: any_of_several },
    Check { name: "of several that are there the one named first comes", run: first_of_several },
    Check { name: "any of several chunks of a sender can be waited for", run: any_chunk },
    Check { name: "the first of two messages with one tag counts, the other is dropped", run: duplicates },
    Check { name: "a late message of an older step answers no newer recv", run: late_messages },
    Check { name: "what was retired is gone and can no longer be asked for", run: retired_messages },
    Check { name: "a deadline is an error in time, not a hang", run: deadlines },
    Check { name: "a deadline that has passed does not wait", run: passed_deadline },
    Check { name: "strangers and the rank itself are no peers", run: strangers },
    Check { name: "a message over the limit is refused and not sent", run: too_large },
    Check { name: "counters are exact", run: counters },
    Check { name: "a deadline that has passed takes what is there", run: polling },
];

/// Lengths to test. The last is several MiB, and odd.
const LENGTHS: [usize; 6] = [0, 1, 3, 255, 65_537, 3 * 1024 * 1024 + 7];

/// Bytes that depend on their sender, place and length.
fn pattern(from: Rank, len: usize) -> Vec<u8> {
    let block: Vec<u8> = (0..251).map(|at: usize| (at * 31 + from.0 as usize * 7 + len) as u8).collect();
    let mut bytes = block.repeat(len / block.len() + 1);
    bytes.truncate(len);
    bytes
}

fn timeout(from: Rank, tag: Tag) -> Result<(), TransportError> {
    Err(TransportError::Timeout { from, tag })
}

fn membership(peer: &mut Peer<'_>) {
    let members = peer.transport.membership();
    let sorted: RankSet = members.ranks.iter().collect();
    assert_eq!(sorted, members.ranks);
    assert!(members.ranks.contains(peer.rank()));
    let bytes: Vec<u8> = members.ranks.iter().flat_map(|rank| rank.0.to_le_bytes()).collect();
    for to in peer.others() {
        peer.send(to, peer.tag(0), &bytes);
    }
    for from in peer.others() {
        assert_eq!(peer.recv(from, peer.tag(0)), bytes);
    }
}

fn payloads_arrive_whole(peer: &mut Peer<'_>) {
    for (step, len) in LENGTHS.into_iter().enumerate() {
        let (tag, me) = (peer.tag(step as u64), peer.rank());
        for to in peer.others() {
            peer.send(to, tag, &pattern(me, len));
        }
        for from in peer.others() {
            assert!(peer.recv(from, tag) == pattern(from, len), "{len} bytes from {from} were damaged");
        }
    }
}

fn send_does_not_wait_for_recv(peer: &mut Peer<'_>) {
    let (tag, me) = (peer.tag(0), peer.rank());
    let long = pattern(me, 2 << 20);
    peer.others().into_iter().for_each(|to| peer.send(to, tag, &long));
    for from in peer.others().into_iter().rev() {
        assert!(peer.recv(from, tag) == pattern(from, 2 << 20));
    }
}

fn interleaved_tags(peer: &mut Peer<'_>) {
    let tags: Vec<Tag> =
        (0..12).map(|at| peer.tag(at % 2).unit(at as u32 / 2 % 2).chunk(at as u32 / 4)).collect();
    for to in peer.others() {
        tags.iter().enumerate().for_each(|(at, tag)| peer.send(to, *tag, &[at as u8]));
    }
    for from in peer.others() {
        for at in [11, 0, 7, 3, 10, 1, 9, 2, 8, 4, 6, 5] {
            assert_eq!(peer.recv(from, tags[at]), [at as u8]);
        }
    }
}

fn early_messages_wait(peer: &mut Peer<'_>) {
    let (now, next) = (peer.tag(0), peer.tag(1));
    for to in peer.others() {
        peer.send(to, next, b"next");
        peer.send(to, now, b"now");
    }
    for from in peer.others() {
        assert_eq!(peer.recv(from, now), b"now");
    }
    for from in peer.others() {
        assert_eq!(peer.recv(from, next), b"next");
    }
}

fn any_of_several(peer: &mut Peer<'_>) {
    let (first, others, unasked) = (peer.tag(0), peer.others(), peer.tag(2));
    let me = peer.rank();
    for &to in &others {
        peer.send(to, unasked, b"unasked");
        peer.send(to, first, &me.0.to_le_bytes());
    }
    // One that never comes is asked for beside those that do.
    let both = |&from: &Rank| [peer.tag(1), first].map(|tag| Wanted::one(from, tag));
    let mut wanted: Vec<_> = others.iter().flat_map(both).collect();
    while wanted.len() > others.len() {
        let mut payload = Vec::new();
        let (from, tag) = peer.transport.recv_any(&wanted, &mut payload, super::peer::patience()).unwrap();
        assert_eq!((tag, payload.as_slice()), (first, &from.0.to_le_bytes()[..]));
        wanted.retain(|message| !message.holds(from, tag));
    }
    if let Some(&Wanted { from, tag, .. }) = wanted.first() {
        let mut payload = vec![7; 5];
        let late = peer.transport.recv_any(&wanted, &mut payload, briefly());
        assert_eq!((late.map(|_| ()), payload), (timeout(from, tag), vec![7; 5]));
    }
    for &from in &others {
        assert_eq!(peer.recv(from, unasked), b"unasked");
    }
}

fn first_of_several(peer: &mut Peer<'_>) {
    let tags = [2, 0, 1].map(|step| peer.tag(step));
    for to in peer.others() {
        tags.iter().for_each(|tag| peer.send(to, *tag, b""));
        peer.send(to, peer.tag(3), b"all are there");
    }
    for from in peer.others() {
        peer.recv(from, peer.tag(3));
        let mut wanted: Vec<_> = tags.iter().rev().map(|tag| Wanted::one(from, *tag)).collect();
        while let Some(expected) = wanted.first().map(|first| (first.from, first.tag)) {
            let found = peer.transport.recv_any(&wanted, &mut Vec::new(), super::peer::patience());
            assert_eq!(found, Ok(expected));
            wanted.remove(0);
        }
    }
}

fn any_chunk(peer: &mut Peer<'_>) {
    let (tag, last) = (peer.tag(0).unit(3).chunk(2), peer.tag(1));
    let me = peer.rank();
    for to in peer.others() {
        // Those around them differ in one part of the tag each.
        for other in [tag.chunk(1), tag.chunk(5), tag.unit(2).chunk(3), tag.unit(4).chunk(3)] {
            peer.send(to, other, b"unasked");
        }
        [4, 2].iter().for_each(|chunk| peer.send(to, tag.chunk(*chunk), &me.0.to_le_bytes()));
        peer.send(to, last, b"all are there");
    }
    for from in peer.others() {
        peer.recv(from, last);
        let (wanted, mut payload) = ([Wanted::chunks(from, tag, 3)], Vec::new());
        for chunk in [2, 4] {
            let found = peer.transport.recv_any(&wanted, &mut payload, super::peer::patience());
            assert_eq!(
                (found, payload.as_slice()),
                (Ok((from, tag.chunk(chunk))), &from.0.to_le_bytes()[..])
            );
        }
        let more = peer.transport.recv_any(&wanted, &mut payload, briefly());
        assert_eq!(more.map(|_| ()), timeout(from, tag));
    }
    // Whoever waits is woken by a chunk.
    let late = peer.tag(2);
    for to in peer.others() {
        peer.send(to, late.chunk(7), b"late");
    }
    for from in peer.others() {
        let wanted = [Wanted::chunks(from, late, 9)];
        let found = peer.transport.recv_any(&wanted, &mut Vec::new(), super::peer::patience());
        assert_eq!(found, Ok((from, late.chunk(7))));
    }
}

fn duplicates(peer: &mut Peer<'_>) {
    let (tag, after) = (peer.tag(0), peer.tag(1));
    for to in peer.others() {
        peer.send(to, tag, b"first");
        peer.send(to, tag, b"second");
    }
    for from in peer.others() {
        assert_eq!(peer.recv(from, tag), b"first");
    }
    for to in peer.others() {
        peer.send(to, tag, b"third");
        peer.send(to, after, b"after");
    }
    for from in peer.others() {
        assert_eq!(peer.recv(from, after), b"after");
        assert_eq!(peer.transport.recv(from, tag, &mut Vec::new(), briefly()), timeout(from, tag));
    }
}

fn late_messages(peer: &mut Peer<'_>) {
    let (old, new, after) = (peer.tag(0), peer.tag(1), peer.tag(2));
    for to in peer.others() {
        peer.send(to, old, b"old");
        peer.send(to, after, b"after");
    }
    for from in peer.others() {
        let mut payload = vec![7; 5];
        assert_eq!(peer.transport.recv(from, new, &mut payload, briefly()), timeout(from, new));
        assert_eq!(payload, [7; 5], "an error leaves the buffer as it was");
        assert_eq!(peer.recv(from, after), b"after");
    }
}

fn retired_messages(peer: &mut Peer<'_>) {
    let (old, new) = (peer.tag(0), peer.tag(1));
    for to in peer.others() {
        peer.send(to, old, b"old");
        peer.send(to, new, b"new");
    }
    peer.transport.retire(new);
    for from in peer.others() {
        let refused = peer.transport.recv(from, old, &mut Vec::new(), super::peer::patience());
        assert_eq!(refused, Err(TransportError::Retired { tag: old }));
        assert_eq!(peer.recv(from, new), b"new");
    }
}

fn deadlines(peer: &mut Peer<'_>) {
    for from in peer.others() {
        let (tag, start) = (peer.tag(0), Instant::now());
        assert_eq!(peer.transport.recv(from, tag, &mut Vec::new(), briefly()), timeout(from, tag));
        let waited = start.elapsed();
        assert!(waited >= BRIEFLY && waited < BRIEFLY + SLACK, "waited {waited:?} instead of {BRIEFLY:?}");
    }
}

fn passed_deadline(peer: &mut Peer<'_>) {
    for from in peer.others() {
        let (tag, start) = (peer.tag(0), Instant::now());
        for _ in 0..20 {
            assert_eq!(peer.transport.recv(from, tag, &mut Vec::new(), Deadline::now()), timeout(from, tag));
        }
        assert!(start.elapsed() < SLACK);
    }
}

fn strangers(peer: &mut Peer<'_>) {
    let stranger = Rank(peer.ranks().iter().map(|rank| rank.0).max().unwrap_or(0) + 1);
    for rank in [stranger, peer.rank()] {
        let refused = Err(TransportError::NotAPeer { rank });
        let tag = peer.tag(0);
        assert_eq!(peer.transport.send(rank, tag, b"", briefly()), refused);
        assert_eq!(peer.transport.recv(rank, tag, &mut Vec::new(), briefly()), refused);
        let several: Vec<_> =
            peer.others().into_iter().chain([rank]).map(|rank| Wanted::one(rank, tag)).collect();
        let several = peer.transport.recv_any(&several, &mut Vec::new(), briefly());
        assert_eq!(several, Err(TransportError::NotAPeer { rank }));
    }
}

/// A limit above this is not tested.
const TRIED_LIMIT: usize = 64 << 20;

fn too_large(peer: &mut Peer<'_>) {
    let (limit, tag) = (peer.transport.max_message_bytes(), peer.tag(0));
    if limit > TRIED_LIMIT {
        return;
    }
    for to in peer.others() {
        let before = peer.transport.counters();
        let refused = peer.transport.send(to, tag, &vec![0; limit + 1], briefly());
        assert_eq!(refused, Err(TransportError::TooLarge { to, tag, bytes: limit + 1, limit }));
        assert_eq!(peer.transport.counters(), before);
        peer.send(to, tag, &vec![1; limit]);
    }
    for from in peer.others() {
        assert!(peer.recv(from, tag) == vec![1; limit]);
    }
}

fn counters(peer: &mut Peer<'_>) {
    let before = peer.transport.counters();
    let mut expected = Counters::default();
    for (step, len) in LENGTHS.into_iter().enumerate() {
        let (tag, message) =
            (peer.tag(step as u64), Traffic::message(len, peer.transport.envelope_bytes(len)));
        for to in peer.others() {
            peer.send(to, tag, &vec![1; len]);
            expected.up += message;
            assert_eq!(peer.transport.counters() - before, expected);
        }
        for from in peer.others() {
            assert_eq!(peer.recv(from, tag).len(), len);
            expected.down += message;
            assert_eq!(peer.transport.counters() - before, expected);
        }
    }
    // Neither an error nor a message that no rank took is counted.
    for other in peer.others() {
        peer.send(other, peer.tag(10), b"not taken");
        expected.up += Traffic::message(9, peer.transport.envelope_bytes(9));
        peer.transport.recv(other, peer.tag(11), &mut Vec::new(), Deadline::now()).unwrap_err();
    }
    assert_eq!(peer.transport.counters() - before, expected);
}

fn polling(peer: &mut Peer<'_>) {
    let tag = peer.tag(0);
    peer.transport.try_progress().unwrap();
    peer.others().into_iter().for_each(|to| peer.send(to, tag, b"on its way"));
    let start = Instant::now();
    for from in peer.others() {
        let mut payload = Vec::new();
        while peer.transport.recv(from, tag, &mut payload, Deadline::now()).is_err() {
            peer.transport.try_progress().unwrap();
            assert!(start.elapsed() < PATIENCE, "nothing arrives while progress is asked for");
        }
        assert_eq!(payload, b"on its way");
    }
}
