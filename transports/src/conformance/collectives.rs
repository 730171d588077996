//! Collectives that move bytes.

use std::thread;
use std::time::Duration;

use super::peer::{Check, Peer, briefly, patience};
use crate::collective::{self, Gathered};
use crate::error::TransportError;
use crate::rank::{Rank, RankSet};
use crate::tag::{Deadline, Tag};

pub(super) const CHECKS: &[Check] = &[
    Check { name: "nobody leaves a barrier before the last has come", run: barrier_waits },
    Check { name: "an all-gather gives everyone all payloads, of any lengths", run: all_gather },
    Check { name: "an all-gather of nothing but empty payloads counts every rank", run: all_gather_empty },
    Check { name: "an all-gather fails in time when one rank does not take part", run: all_gather_is_strict },
    Check { name: "a gather gives the root what came, and only the root", run: gather },
    Check { name: "a gather closes at its deadline without the late", run: gather_is_partial },
    Check { name: "a broadcast copies any payload from any root", run: broadcast },
    Check { name: "ranks that run ahead never mix up steps", run: many_steps },
    Check { name: "a collective refuses tags that are not its own", run: foreign_tags },
];

/// How much later than the others a rank arrives at a barrier.
const LATE: Duration = Duration::from_millis(240);

/// What `rank` contributes: `rank` bytes, so that lengths differ and rank 0 sends nothing.
fn payload(rank: Rank, step: u64) -> Vec<u8> {
    vec![rank.0 as u8 ^ step as u8; rank.0 as usize % 1000]
}

fn assert_gathered(out: &Gathered, ranks: &[Rank], step: u64) {
    assert_eq!(out.len(), ranks.len());
    for ((rank, bytes), expected) in out.iter().zip(ranks) {
        assert_eq!((rank, bytes), (*expected, payload(rank, step).as_slice()));
        assert_eq!(out.payload(rank), Some(bytes));
    }
}

fn barrier_waits(peer: &mut Peer<'_>) {
    let ranks = peer.ranks();
    for (round, late) in [ranks[0], ranks[ranks.len() - 1]].into_iter().enumerate() {
        let (barrier, came) = (peer.tag(round as u64), peer.tag(round as u64).unit(1));
        if peer.rank() == late {
            thread::sleep(LATE);
            peer.others().into_iter().for_each(|to| peer.send(to, came, b""));
        }
        assert_eq!(collective::barrier(peer.transport, barrier, patience()).unwrap().as_slice(), ranks);
        if peer.rank() != late {
            // A rank that leaves the barrier too early would wait for this message beyond the deadline.
            let by = Deadline::after(LATE / 3);
            peer.transport
                .recv(late, came, &mut Vec::new(), by)
                .expect("the late one came before the barrier opened");
        }
    }
}

fn all_gather(peer: &mut Peer<'_>) {
    let mut out = Gathered::new();
    for step in 0..3 {
        let own = payload(peer.rank(), step);
        let tag = peer.tag(step);
        let contributors = collective::all_gather(peer.transport, tag, &own, &mut out, patience()).unwrap();
        assert_eq!(contributors.as_slice(), peer.ranks());
        assert_gathered(&out, &peer.ranks(), step);
    }
    let long = vec![peer.rank().0 as u8; (1 << 20) + peer.position()];
    let tag = peer.tag(3);
    collective::all_gather(peer.transport, tag, &long, &mut out, patience()).unwrap();
    for (position, (rank, bytes)) in out.iter().enumerate() {
        assert!(bytes.len() == (1 << 20) + position && bytes.iter().all(|byte| *byte == rank.0 as u8));
    }
}

fn all_gather_empty(peer: &mut Peer<'_>) {
    let mut out = Gathered::new();
    let tag = peer.tag(0);
    let contributors = collective::all_gather(peer.transport, tag, &[], &mut out, patience()).unwrap();
    assert_eq!(contributors.as_slice(), peer.ranks());
    assert!(out.iter().eq(peer.ranks().into_iter().map(|rank| (rank, &[][..]))));
}

fn all_gather_is_strict(peer: &mut Peer<'_>) {
    let absent = peer.ranks()[0];
    if peer.rank() != absent {
        let mut out = Gathered::new();
        let tag = peer.tag(0);
        let missing = collective::all_gather(peer.transport, tag, b"here", &mut out, briefly()).unwrap_err();
        assert!(matches!(missing, TransportError::Timeout { from, .. } if from == absent), "{missing:?}");
    }
}

fn gather(peer: &mut Peer<'_>) {
    let mut out = Gathered::new();
    for (step, root) in peer.ranks().into_iter().enumerate() {
        let (step, own) = (step as u64, payload(peer.rank(), step as u64));
        let tag = peer.tag(step);
        let contributors = collective::gather(peer.transport, root, tag, &own, &mut out, patience()).unwrap();
        if peer.rank() == root {
            assert_eq!(contributors.as_slice(), peer.ranks());
            assert_gathered(&out, &peer.ranks(), step);
        } else {
            assert_eq!((contributors, out.is_empty()), (RankSet::default(), true));
        }
    }
}

fn gather_is_partial(peer: &mut Peer<'_>) {
    let (root, late) = (peer.ranks()[0], *peer.ranks().last().expect("a world has ranks"));
    let (tag, go_on) = (peer.tag(0), peer.tag(1));
    let mut out = Gathered::new();
    if peer.rank() == late && late != root {
        // Arrives when the root has closed the round.
        peer.recv(root, go_on);
    }
    // All ranks except the late one have sent before the root starts to wait, so its deadline affects only
    // the late one.
    if peer.rank() != root {
        let own = payload(peer.rank(), 0);
        let sent = collective::gather(peer.transport, root, tag, &own, &mut out, patience()).unwrap();
        assert!(sent.is_empty());
        if peer.rank() != late {
            peer.send(root, go_on, b"sent");
        }
        return;
    }
    let in_time: Vec<Rank> = peer.ranks().into_iter().filter(|rank| *rank != late || late == root).collect();
    in_time.iter().filter(|rank| **rank != root).for_each(|from| drop(peer.recv(*from, go_on)));
    let contributors =
        collective::gather(peer.transport, root, tag, &payload(root, 0), &mut out, briefly()).unwrap();
    assert_eq!(contributors.as_slice(), in_time);
    assert_gathered(&out, &in_time, 0);
    if late != root {
        peer.send(late, go_on, b"too late");
    }
}

fn broadcast(peer: &mut Peer<'_>) {
    let mut step = 0;
    for root in peer.ranks() {
        for len in [0, 1, 300_000] {
            let original = vec![root.0 as u8 ^ len as u8; len];
            let mut data = if peer.rank() == root { original.clone() } else { b"something else".to_vec() };
            let tag = peer.tag(step);
            collective::broadcast(peer.transport, root, tag, &mut data, patience()).unwrap();
            assert!(data == original, "{len} bytes of {root} were damaged");
            step += 1;
        }
    }
}

fn many_steps(peer: &mut Peer<'_>) {
    let mut out = Gathered::new();
    for step in 0..60 {
        let own = payload(peer.rank(), step);
        for unit in 0..2 {
            let tag = peer.tag(step).unit(unit);
            collective::all_gather(peer.transport, tag, &own, &mut out, patience()).unwrap();
            assert_gathered(&out, &peer.ranks(), step);
            collective::all_gather(peer.transport, tag.chunk(1), &[unit as u8], &mut out, patience())
                .unwrap();
            assert!(out.iter().all(|(_, bytes)| bytes == [unit as u8]));
        }
        let tag = peer.tag(step);
        collective::barrier(peer.transport, tag, patience()).unwrap();
        let done = peer.tag(step);
        peer.transport.retire(done);
    }
}

fn foreign_tags(peer: &mut Peer<'_>) {
    let (tag, current) = (peer.tag(0), peer.transport.membership().epoch);
    let other = Tag { epoch: current + 1, ..tag };
    let wide = tag.chunk(Tag::COLLECTIVE_CHUNKS);
    let mut out = Gathered::new();
    let refused = collective::all_gather(peer.transport, other, b"", &mut out, patience());
    assert_eq!(refused, Err(TransportError::WrongEpoch { tag: other, current }));
    let refused = collective::all_gather(peer.transport, wide, b"", &mut out, patience());
    assert_eq!(refused, Err(TransportError::TagOutOfRange { tag: wide }));
    let stranger = Rank(peer.ranks().iter().map(|rank| rank.0).max().unwrap_or(0) + 1);
    let refused = collective::broadcast(peer.transport, stranger, tag, &mut Vec::new(), patience());
    assert_eq!(refused, Err(TransportError::NotAPeer { rank: stranger }));
}
