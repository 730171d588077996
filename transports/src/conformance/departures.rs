//! Ranks that leave. Each check ends its world, so it gets a world of its own.

use std::time::Instant;

use super::peer::{Check, Peer, SLACK, patience};
use crate::collective::{self, Buffers, Gathered, Reduce, Wire};
use crate::error::TransportError;
use crate::rank::{Rank, RankSet};
use crate::tag::Wanted;

pub(super) const CHECKS: &[Check] = &[
    Check { name: "who waits for a rank that left is told so, after its last messages", run: last_messages },
    Check { name: "a barrier ends when a rank leaves", run: barrier_ends },
    Check { name: "an all-gather ends when a rank leaves", run: all_gather_ends },
    Check { name: "an all-reduce ends when a rank leaves", run: all_reduce_ends },
    Check { name: "a gather goes on without the rank that left", run: gather_goes_on },
    Check { name: "a closed end refuses everything", run: closed },
];

fn disconnected(rank: Rank) -> Result<(), TransportError> {
    Err(TransportError::Disconnected { rank })
}

fn leaver(peer: &Peer<'_>) -> Rank {
    *peer.ranks().last().expect("a world has ranks")
}

fn last_messages(peer: &mut Peer<'_>) {
    let (leaver, tag, never) = (leaver(peer), peer.tag(0), peer.tag(1));
    if peer.rank() == leaver {
        peer.others().into_iter().for_each(|to| peer.send(to, tag, b"last words"));
        return peer.transport.close(patience()).unwrap();
    }
    let start = Instant::now();
    assert_eq!(peer.transport.recv(leaver, never, &mut Vec::new(), patience()), disconnected(leaver));
    let mut payload = Vec::new();
    let both = [never, tag].map(|tag| Wanted::one(leaver, tag));
    assert_eq!(peer.transport.recv_any(&both, &mut payload, patience()), Ok((leaver, tag)));
    assert_eq!(payload, b"last words");
    let any = peer.transport.recv_any(&both, &mut payload, patience());
    assert_eq!(any.map(|_| ()), disconnected(leaver));
    assert_eq!(peer.transport.send(leaver, never, b"", patience()), disconnected(leaver));
    assert!(start.elapsed() < SLACK, "a departure was noticed late");
}

/// The last rank leaves. The others must fail in `collective`, and then leave too, as ranks do when their job
/// has ended. Their leaving also ends the wait of a rank that waits for one of them.
fn all_fail(peer: &mut Peer<'_>, collective: impl FnOnce(&mut Peer<'_>) -> Result<RankSet, TransportError>) {
    let start = Instant::now();
    if peer.rank() != leaver(peer) {
        let error = collective(peer).unwrap_err();
        assert!(matches!(error, TransportError::Disconnected { .. }), "{error:?}");
        assert!(start.elapsed() < SLACK, "a departure was noticed late");
    }
    let start = Instant::now();
    peer.transport.close(patience()).unwrap();
    assert!(start.elapsed() < SLACK, "it waited for ranks that were leaving as well");
}

fn barrier_ends(peer: &mut Peer<'_>) {
    all_fail(peer, |peer| {
        let tag = peer.tag(0);
        collective::barrier(peer.transport, tag, patience())
    });
}

fn all_gather_ends(peer: &mut Peer<'_>) {
    all_fail(peer, |peer| {
        let tag = peer.tag(0);
        collective::all_gather(peer.transport, tag, b"x", &mut Gathered::new(), patience())
    });
}

fn all_reduce_ends(peer: &mut Peer<'_>) {
    all_fail(peer, |peer| {
        let (tag, mut data) = (peer.tag(0), [1.0_f32; 9]);
        let sum = Reduce::SumF32(&mut data, Wire::F32);
        collective::all_reduce(peer.transport, tag, sum, &mut Buffers::new(), patience())
    });
}

fn gather_goes_on(peer: &mut Peer<'_>) {
    let (leaver, root, tag, me) = (leaver(peer), peer.ranks()[0], peer.tag(0), peer.rank());
    if me == leaver && me != root {
        return peer.transport.close(patience()).unwrap();
    }
    let mut out = Gathered::new();
    let contributors =
        collective::gather(peer.transport, root, tag, &me.0.to_le_bytes(), &mut out, patience()).unwrap();
    if me == root {
        let stayed: Vec<Rank> =
            peer.ranks().into_iter().filter(|rank| *rank != leaver || me == leaver).collect();
        assert_eq!(contributors.as_slice(), stayed);
        let payloads: Vec<(Rank, Vec<u8>)> = out.iter().map(|(rank, bytes)| (rank, bytes.to_vec())).collect();
        let expected = stayed.iter().map(|rank| (*rank, rank.0.to_le_bytes().to_vec()));
        assert!(payloads.into_iter().eq(expected));
        // The others stay until the root has everything.
        stayed.iter().filter(|to| **to != me).for_each(|to| peer.send(*to, peer.tag(1), b""));
    } else {
        peer.recv(root, peer.tag(1));
    }
}

fn closed(peer: &mut Peer<'_>) {
    let (others, tag) = (peer.others(), peer.tag(0));
    peer.transport.close(patience()).unwrap();
    let closed = Err(TransportError::Closed);
    for other in others {
        assert_eq!(peer.transport.send(other, tag, b"", patience()), closed);
        assert_eq!(peer.transport.recv(other, tag, &mut Vec::new(), patience()), closed);
    }
    assert_eq!(peer.transport.try_progress(), closed);
    assert_eq!(peer.transport.close(patience()), closed);
}
