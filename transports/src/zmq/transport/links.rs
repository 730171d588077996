//! What a caller sees of the links to its peers.

use std::time::Duration;

use super::ZmqTransport;
use crate::rank::{Rank, RankSet};
use crate::tag::Tag;
use crate::zmq::link::Link;
use crate::zmq::state::{Peer, Standing};

/// What a link repeated or dropped, which [`counters`](crate::Transport::counters) does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTally {
    /// Chunks that were sent again.
    pub resent: u64,
    /// Chunks that arrived again and were dropped.
    pub duplicates: u64,
    /// Sessions with this peer so far.
    pub sessions: u64,
}

impl ZmqTransport {
    /// What was repeated or dropped on the link to `rank`.
    pub fn tally(&self, rank: Rank) -> LinkTally {
        let state = self.shared.lock();
        let Some(peer) = state.peers.iter().find(|peer| peer.rank == rank) else {
            return LinkTally::default();
        };
        let of_link = |link: &Link| (link.outgoing.resent, link.incoming.duplicates);
        let (resent, duplicates) = peer.link.as_ref().map_or((0, 0), of_link);
        LinkTally { resent, duplicates, sessions: peer.sessions }
    }

    /// The peers with an open session, silent ones included.
    pub fn present(&self) -> RankSet {
        let state = self.shared.lock();
        let is_present = |peer: &&Peer| matches!(peer.standing, Standing::Here | Standing::Silent);
        state.peers.iter().filter(is_present).map(|peer| peer.rank).collect()
    }

    /// The number of the open session with `rank`, if there is one. Both ends have the same number.
    pub fn session(&self, rank: Rank) -> Option<u64> {
        let state = self.shared.lock();
        let peer = state.peers.iter().find(|peer| peer.rank == rank)?;
        let is_present = matches!(peer.standing, Standing::Here | Standing::Silent);
        peer.link.as_ref().filter(|_| is_present).map(|link| link.session)
    }

    /// The time in which everything that is queued can be with its receivers, by the measured rate of each
    /// link; zero where nothing is measured or queued.
    pub fn delivery_time(&self) -> Duration {
        let state = self.shared.lock();
        let links = state.peers.iter().filter(|peer| peer.standing != Standing::Gone);
        let times = links.filter_map(|peer| {
            let outgoing = &peer.link.as_ref()?.outgoing;
            outgoing.pace.time_for(outgoing.queued_bytes()).filter(|_| !outgoing.is_done())
        });
        times.max().unwrap_or(Duration::ZERO)
    }

    /// Of the message that is arriving from `rank`, the bytes that are here, and all.
    pub fn arriving(&self, rank: Rank) -> Option<(usize, usize)> {
        let state = self.shared.lock();
        let peer = state.peers.iter().find(|peer| peer.rank == rank)?;
        peer.link.as_ref()?.incoming.arriving()
    }

    /// Whether the message to `rank` with that tag has arrived there, or never can.
    pub(in crate::zmq) fn has_arrived(&self, rank: Rank, tag: Tag) -> bool {
        let state = self.shared.lock();
        let peer = state.peers.iter().find(|peer| peer.rank == rank);
        let link = peer.filter(|peer| peer.standing != Standing::Gone).and_then(|peer| peer.link.as_ref());
        link.is_none_or(|link| link.outgoing.has_arrived(tag))
    }
}
