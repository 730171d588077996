//! The thread that owns the sockets of one rank.

mod connections;
mod meeting;
mod moving;
mod rest;

use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mio::net::TcpListener;
use mio::{Events, Poll, Token};

use self::connections::Connections;
use self::rest::{MUCH, REST, Rate};
use super::dial::Dial;
use super::frame::Control;
use super::inlet::Arrived;
use super::link::{Connection, Stage};
use super::options::TcpOptions;
use super::state::{Peer, Shared, Standing};
use crate::rank::Rank;
use crate::terms::Terms;

pub(super) const WAKER: Token = Token(0);
pub(super) const LISTENER: Token = Token(1);
const FIRST_CONNECTION: usize = 2;

/// Connections of whom nobody knows yet who they are, beside one for each rank.
const STRANGERS: usize = 64;
/// Bytes that one connection may move before the others have their turn.
const TURN: usize = 1 << 20;
/// How often times are looked at while there is more to wait for than peers.
const LIVELY: Duration = Duration::from_millis(20);

pub(super) struct Engine {
    options: TcpOptions,
    world: usize,
    /// The caller's and those of the transport.
    terms: Terms,
    /// Where this end listens.
    listens: SocketAddr,
    poll: Poll,
    listener: TcpListener,
    shared: Arc<Shared>,
    connections: Connections,
    /// For each lower rank.
    dials: Vec<Dial>,
    /// Where all ranks listen, if it is this end that tells them.
    roster: Option<Vec<String>>,
    /// Whether all who come are told that the run is over.
    dismisses: bool,
    /// Whether all peers were there.
    has_begun: bool,
    /// Whether somebody may wait to be accepted.
    is_called: bool,
    /// Whether anything moved in this turn.
    is_busy: bool,
    /// Bytes that came in this turn.
    came: usize,
    rate: Rate,
    /// Whether bytes of messages did, and when they last did.
    has_moved: bool,
    moved: Instant,
    last_turn: Instant,
}

/// A connection that is over, and why.
struct Over(String);

impl From<io::Error> for Over {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// What an engine is made of.
pub(super) struct Parts {
    pub(super) options: TcpOptions,
    pub(super) world: usize,
    pub(super) listens: SocketAddr,
    pub(super) poll: Poll,
    pub(super) listener: TcpListener,
    pub(super) shared: Arc<Shared>,
    /// The addresses of the lower ranks.
    pub(super) addresses: Vec<Option<String>>,
    pub(super) tells_addresses: bool,
    pub(super) dismisses: bool,
}

/// Tells the caller that the thread has ended, however it ends.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_stopped = true;
        for (at, peer) in state.peers.iter_mut().enumerate() {
            peer.standing = Standing::Gone;
            self.0.mailbox.sender_left(at);
        }
        self.0.notify();
    }
}

impl Engine {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { options, world, listens, poll, listener, shared, addresses, tells_addresses, dismisses } =
            parts;
        let now = Instant::now();
        Self {
            terms: options.all_terms(world),
            options,
            world,
            listens,
            poll,
            listener,
            shared,
            connections: Connections::new(),
            dials: addresses.into_iter().map(|address| Dial::new(address, now)).collect(),
            roster: tells_addresses.then(|| vec![String::new(); world]),
            dismisses,
            has_begun: false,
            is_called: true,
            is_busy: true,
            came: 0,
            rate: Rate::new(now),
            has_moved: false,
            moved: now,
            last_turn: now,
        }
    }

    /// Works until the caller leaves and every peer has confirmed what it was sent, or the deadline passed.
    pub(super) fn run(mut self) {
        let _ending = Ending(Arc::clone(&self.shared));
        let mut events = Events::with_capacity(256);
        while !self.is_over() {
            let timeout = self.timeout();
            match self.poll.poll(&mut events, Some(timeout)) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return,
                _ => self.note(&events),
            }
            let now = Instant::now();
            // A thread that was itself stopped has not heard others, and judges nobody.
            let was_away = now - self.last_turn > timeout + self.options.timing.heartbeat;
            self.last_turn = now;
            (self.is_busy, self.came) = (false, 0);
            self.accept(now);
            self.dial(now);
            let tokens: Vec<usize> = self.connections.by_token.keys().copied().collect();
            tokens.into_iter().for_each(|token| self.receive(token, now));
            self.begin(now);
            self.send(now);
            self.note_moves(now);
            self.look_at_times(was_away, now);
            if self.came > 0 && self.rate.is_slow(self.came, now) && self.has_much_to_come() {
                thread::sleep(REST);
            }
        }
    }

    fn has_much_to_come(&mut self) -> bool {
        self.connections.peers().any(|(_, link)| link.reader.left() >= MUCH)
    }

    fn me(&self) -> usize {
        self.options.rank.0 as usize
    }

    fn note(&mut self, events: &Events) {
        for event in events {
            match event.token() {
                WAKER => {}
                LISTENER => self.is_called = true,
                Token(token) => {
                    let Some(connection) = self.connections.by_token.get_mut(&token) else { continue };
                    connection.wire.is_readable |= event.is_readable() || event.is_read_closed();
                    connection.wire.is_writable |= event.is_writable() || event.is_write_closed();
                }
            }
        }
    }

    fn timeout(&self) -> Duration {
        if self.is_busy {
            return Duration::ZERO;
        }
        let is_settled = self.has_begun && self.connections.by_token.values().all(Connection::is_peer);
        let rest = self.options.timing.heartbeat / 2;
        if is_settled && self.shared.lock().closing.is_none() { rest } else { rest.min(LIVELY) }
    }

    /// Whether the caller has left and nothing is left to do for it.
    fn is_over(&self) -> bool {
        let state = self.shared.lock();
        let Some(deadline) = state.closing else { return false };
        let is_done = state.peers.iter().all(|peer| peer.is_settled) && self.connections.are_idle();
        is_done || deadline.has_passed()
    }

    fn receive(&mut self, token: usize, now: Instant) {
        let Some(mut connection) = self.connections.by_token.remove(&token) else { return };
        match self.advance(&mut connection, now) {
            Ok(()) => drop(self.connections.by_token.insert(token, connection)),
            Err(Over(why)) => self.end(connection, &why, now),
        }
    }

    /// A connection is over.
    fn end(&mut self, connection: Connection, why: &str, now: Instant) {
        let address = connection.address;
        match connection.stage {
            Stage::Connecting(rank) | Stage::Greeting(_, Some(rank)) => {
                self.missed(rank, &format!("{address}: {why}"), now);
            }
            Stage::Greeting(_, None) => self.shared.lock().turn_away(address, why),
            Stage::Dismissed => {}
            Stage::Peer(link) if link.has_left => {}
            Stage::Peer(link) => self.lose(link.rank, &format!("{address}: {why}"), now),
        }
    }

    /// A peer is gone without a word. While the mesh forms, it may come again.
    fn lose(&mut self, rank: usize, why: &str, now: Instant) {
        if self.has_begun {
            // One that leaves at the same time as this end may not have said so any more.
            let is_leaving = self.shared.lock().closing.is_some();
            return self.bury(rank, !is_leaving);
        }
        let mut state = self.shared.lock();
        state.peers[rank].standing = Standing::Expected;
        state.know(rank, why);
        drop(state);
        if let Some(dial) = self.dials.get_mut(rank) {
            dial.failed(now);
        }
    }

    /// A peer is gone for ever. If it is `lost`, the others hear of it: the job ends.
    fn bury(&mut self, rank: usize, is_lost: bool) {
        let mut state = self.shared.lock();
        let peer = &mut state.peers[rank];
        if peer.standing == Standing::Gone {
            return;
        }
        peer.standing = Standing::Gone;
        peer.is_settled = true;
        peer.outbox.clear();
        drop(state);
        self.shared.mailbox.sender_left(rank);
        self.shared.notify();
        if is_lost {
            let lost = Control::Lost(Rank(rank as u32)).to_bytes();
            for (wire, link) in self.connections.peers() {
                if !link.said_bye {
                    wire.push_control(lost.clone());
                }
            }
        }
    }

    /// Does what a connection's bytes ask for.
    fn advance(&mut self, connection: &mut Connection, now: Instant) -> Result<(), Over> {
        if let Stage::Connecting(rank) = connection.stage {
            self.connect(rank, connection)?;
        }
        if let Stage::Greeting(..) = connection.stage {
            self.greet(connection, now)?;
        }
        match &connection.stage {
            Stage::Dismissed => discard(connection),
            Stage::Peer(_) => self.read_frames(connection, now),
            Stage::Connecting(_) | Stage::Greeting(..) => Ok(()),
        }
    }

    /// Whether all peers were there now for the first time.
    fn begin(&mut self, now: Instant) {
        let is_missing = |peer: &Peer| peer.standing == Standing::Expected;
        if self.has_begun || self.shared.lock().peers.iter().any(is_missing) {
            return;
        }
        self.has_begun = true;
        self.shared.lock().has_begun = true;
        self.shared.notify();
        let Some(mut roster) = self.roster.take() else { return };
        roster[self.me()] = self.listens.to_string();
        let roster = Control::Roster(roster).to_bytes();
        for (wire, link) in self.connections.peers() {
            wire.push_control(roster.clone());
            link.last_sent = now;
        }
    }

    fn note_moves(&mut self, now: Instant) {
        if std::mem::take(&mut self.has_moved) {
            self.moved = now;
            self.shared.lock().moved = now;
        }
    }

    fn look_at_times(&mut self, was_away: bool, now: Instant) {
        let timing = self.options.timing;
        // Two, so that a peer hears of it also if the last sign of life went out just before.
        let is_moving = now - self.moved <= 2 * timing.heartbeat;
        let life = if is_moving { Control::Moving } else { Control::Heartbeat };
        let mut over = Vec::new();
        for (&token, connection) in &mut self.connections.by_token {
            let age = now - connection.since;
            match &mut connection.stage {
                Stage::Peer(link) => {
                    if link.is_blocked || was_away {
                        link.did_not_listen(now);
                    }
                    let silence = link.is_silent(&timing, now);
                    over.extend(
                        silence.map(|silence| (token, format!("silent for {} s", silence.as_secs()))),
                    );
                    if connection.wire.is_idle() && now - link.last_sent >= timing.heartbeat {
                        connection.wire.push_control(life.to_bytes());
                        self.is_busy = true;
                    }
                }
                Stage::Connecting(_) if age > timing.greeting => over.push((token, "no answer".to_owned())),
                Stage::Greeting(..) if age > timing.greeting_after(connection.wire.received()) => {
                    over.push((token, "its greeting took too long".to_owned()));
                }
                Stage::Dismissed if age > timing.greeting => {
                    over.push((token, "its greeting took too long".to_owned()));
                }
                _ => {}
            }
        }
        for (token, why) in over {
            if let Some(connection) = self.connections.by_token.remove(&token) {
                self.end(connection, &why, now);
            }
        }
    }
}

/// Lets one that was turned away read why, and drops what it sends.
fn discard(connection: &mut Connection) -> Result<(), Over> {
    let wire = &mut connection.wire;
    if wire.is_idle() {
        // It has gone if this fails.
        let _ = wire.stream.shutdown(Shutdown::Write);
    }
    while wire.is_readable {
        let kept = wire.inlet.raw().len();
        wire.inlet.take_raw(kept);
        if wire.read()? == Arrived::End {
            return Err(Over(String::new()));
        }
    }
    Ok(())
}
