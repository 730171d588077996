//! All connections of an engine, by the tokens under which its poller knows them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use super::FIRST_CONNECTION;
use crate::tcp::link::{Connection, Link, Stage};
use crate::tcp::wire::Wire;

pub(super) struct Connections {
    pub(super) by_token: BTreeMap<usize, Connection>,
    next_token: usize,
}

impl Connections {
    pub(super) fn new() -> Self {
        Self { by_token: BTreeMap::new(), next_token: FIRST_CONNECTION }
    }

    pub(super) fn add(
        &mut self,
        registry: &Registry,
        stream: TcpStream,
        address: SocketAddr,
        stage: Stage,
        now: Instant,
    ) -> Option<usize> {
        let token = self.next_token;
        let mut connection = Connection::new(stream, address, stage, now);
        let interest = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut connection.wire.stream, Token(token), interest).ok()?;
        self.by_token.insert(token, connection);
        self.next_token += 1;
        Some(token)
    }

    /// The connections to peers.
    pub(super) fn peers(&mut self) -> impl Iterator<Item = (&mut Wire, &mut Link)> {
        self.by_token.values_mut().filter_map(Connection::link)
    }

    /// Whether nothing is left to be written to a peer.
    pub(super) fn are_idle(&self) -> bool {
        self.by_token.values().all(|connection| !connection.is_peer() || connection.wire.is_idle())
    }

    /// Drops the connection to a peer, if there is one.
    pub(super) fn drop_peer(&mut self, rank: usize) {
        self.by_token
            .retain(|_, connection| !matches!(&connection.stage, Stage::Peer(link) if link.rank == rank));
    }

    /// Drops the oldest stranger if there are so many.
    pub(super) fn make_room(&mut self, most: usize) {
        let strangers = |(_, connection): &(&usize, &Connection)| {
            matches!(connection.stage, Stage::Greeting(_, None) | Stage::Dismissed)
        };
        let count = self.by_token.iter().filter(strangers).count();
        let oldest = self.by_token.iter().find(strangers).map(|(token, _)| *token);
        if let Some(token) = oldest.filter(|_| count >= most) {
            self.by_token.remove(&token);
        }
    }
}
