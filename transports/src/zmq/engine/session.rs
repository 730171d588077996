//! Packets of a session, its beginning and its end.

use std::sync::Arc;
use std::time::Instant;

use super::{Engine, Path};
use crate::zmq::event::Event;
use crate::zmq::incoming::Violation;
use crate::zmq::packet::{ACK_BYTES, Packet};
use crate::zmq::state::{Standing, State};

impl Engine {
    pub(super) fn on_packet(&mut self, at: usize, packet: &Packet<'_>) {
        let now = Instant::now();
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        let State { arrivals, peers, .. } = &mut *state;
        let (rank, peer) = (self.records[at].rank, &mut peers[at]);
        let Some(link) = &mut peer.link else { return };
        let result = match packet {
            Packet::Data(data) if data.session == link.session => link.on_data(rank, data, arrivals, now),
            Packet::Skip { session, seq } if *session == link.session => link.on_skip(*seq, now),
            Packet::Bye { session, seq } if *session == link.session => link.on_bye(*seq, now),
            Packet::Ack { session, ack } if *session == link.session => {
                link.outgoing.on_ack(*ack, now).map(drop).map_err(Violation::from)
            }
            _ => return,
        };
        let record = &mut self.records[at];
        record.heard = now;
        if let Some((sent, bytes)) = record.welcomed.take() {
            let took = now.saturating_duration_since(sent);
            link.outgoing.pace.on_greeting(bytes + ACK_BYTES, took, now);
        }
        match result {
            Err(violation) => self.break_link(&mut state, at, violation),
            Ok(()) if peer.standing == Standing::Silent => self.is_here(&mut state, at),
            Ok(()) => {}
        }
        shared.notify();
    }

    /// Records that a peer is there, and reports it if it was not there before.
    pub(super) fn is_here(&mut self, state: &mut State, at: usize) {
        let peer = &mut state.peers[at];
        let rank = peer.rank;
        match peer.standing {
            Standing::Expected => self.events.push(Event::Joined { rank }),
            Standing::Silent => self.events.push(Event::Resumed { rank }),
            Standing::Here | Standing::Gone => return,
        }
        peer.standing = Standing::Here;
    }

    pub(super) fn break_link(&mut self, state: &mut State, at: usize, violation: Violation) {
        state.peers[at].is_banned = true;
        self.end_session(state, at, &format!("it broke the protocol: it {violation}"));
        self.shared.notify();
    }

    /// Ends a session without telling the peer.
    pub(super) fn end_session(&mut self, state: &mut State, at: usize, why: &str) {
        let peer = &mut state.peers[at];
        if peer.standing != Standing::Gone {
            self.events.push(Event::Gone { rank: peer.rank, why: why.to_owned() });
        }
        self.drop_session(state, at);
    }

    /// As [`end_session`](Self::end_session), without an event.
    pub(super) fn drop_session(&mut self, state: &mut State, at: usize) {
        let peer = &mut state.peers[at];
        (peer.standing, peer.link) = (Standing::Gone, None);
        if let Path::Connects(dial) = &mut self.records[at].path {
            dial.lost(Instant::now());
        }
    }
}
