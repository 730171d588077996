//! The thread that owns the sockets of one rank.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use super::dial::Dial;
use super::error::TcpError;
use super::frame::{Control, Hello, MAX_CONTROL, Refusal};
use super::greeting::{Fault, Greeting, Said};
use super::inlet::Arrived;
use super::link::{Connection, Link, Stage};
use super::options::TcpOptions;
use super::reader::{AHEAD, Entry, Item, Reader};
use super::state::{Shared, Standing};
use super::wire::Frame;
use crate::error::TransportError;
use crate::rank::Rank;
use crate::tag::Deadline;
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
    /// By token.
    connections: BTreeMap<usize, Connection>,
    next_token: usize,
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
            connections: BTreeMap::new(),
            next_token: FIRST_CONNECTION,
            dials: addresses.into_iter().map(|address| Dial::new(address, now)).collect(),
            roster: tells_addresses.then(|| vec![String::new(); world]),
            dismisses,
            has_begun: false,
            is_called: true,
            is_busy: true,
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
            self.is_busy = false;
            self.accept(now);
            self.dial(now);
            let tokens: Vec<usize> = self.connections.keys().copied().collect();
            tokens.into_iter().for_each(|token| self.receive(token, now));
            self.begin(now);
            self.send(now);
            self.look_at_times(was_away, now);
        }
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
                    let Some(connection) = self.connections.get_mut(&token) else { continue };
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
        let is_settled = self.has_begun && self.connections.values().all(Connection::is_peer);
        let rest = self.options.timing.heartbeat / 2;
        if is_settled && self.shared.lock().closing.is_none() { rest } else { rest.min(LIVELY) }
    }

    /// Whether the caller has left and nothing is left to do for it.
    fn is_over(&self) -> bool {
        let state = self.shared.lock();
        let Some(deadline) = state.closing else { return false };
        let is_done = state.peers.iter().all(|peer| peer.is_settled)
            && self.connections.values().all(|connection| !connection.is_peer() || connection.wire.is_idle());
        is_done || deadline.has_passed()
    }

    // --- who comes and who is called ---------------------------------------------------------------------

    fn accept(&mut self, now: Instant) {
        while self.is_called {
            match self.listener.accept() {
                Ok((stream, address)) => {
                    self.make_room();
                    let greeting = Box::new(Greeting::answer(self.options.security.key()));
                    self.add(stream, address, Stage::Greeting(greeting, None), now);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_called = false,
                // One that ended before it was accepted, or no more files: the next turn tries again.
                Err(_) => return,
            }
        }
    }

    /// Drops the oldest stranger when there are too many.
    fn make_room(&mut self) {
        let strangers = |(_, connection): &(&usize, &Connection)| {
            matches!(connection.stage, Stage::Greeting(_, None) | Stage::Dismissed)
        };
        let count = self.connections.iter().filter(strangers).count();
        let oldest = self.connections.iter().find(strangers).map(|(token, _)| *token);
        if let Some(token) = oldest.filter(|_| count >= STRANGERS + self.world) {
            self.connections.remove(&token);
        }
    }

    fn add(&mut self, stream: TcpStream, address: SocketAddr, stage: Stage, now: Instant) -> Option<usize> {
        let token = self.next_token;
        let mut connection = Connection::new(stream, address, stage, now);
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut connection.wire.stream, Token(token), interest).ok()?;
        self.connections.insert(token, connection);
        self.next_token += 1;
        Some(token)
    }

    fn dial(&mut self, now: Instant) {
        let (resolved, expected) = {
            let mut state = self.shared.lock();
            let expected: Vec<bool> =
                state.peers.iter().map(|peer| peer.standing == Standing::Expected).collect();
            (std::mem::take(&mut state.resolved), expected)
        };
        for (rank, found) in resolved {
            if let Err(error) = &found {
                self.know(rank, &format!("its name is not known: {error}"));
            }
            self.dials[rank].found(found.unwrap_or_default(), now);
        }
        for rank in (0..self.dials.len()).filter(|&rank| expected[rank]) {
            let Some(address) = self.dials[rank].next(rank, now, &self.shared) else { continue };
            if let Err(error) = self.options.security.allow(address) {
                self.fail(error);
                continue;
            }
            let connected = TcpStream::connect(address);
            let added = connected.map(|stream| self.add(stream, address, Stage::Connecting(rank), now));
            match added {
                Ok(Some(token)) => self.dials[rank].token = Some(token),
                Ok(None) => self.dials[rank].failed(now),
                Err(error) => self.missed(rank, &format!("{address}: {error}"), now),
            }
        }
    }

    /// What is known of a peer that is not there.
    fn know(&self, rank: usize, known: &str) {
        known.clone_into(&mut self.shared.lock().peers[rank].known);
    }

    /// An attempt to reach a peer failed.
    fn missed(&mut self, rank: usize, why: &str, now: Instant) {
        self.know(rank, why);
        self.dials[rank].failed(now);
    }

    /// No mesh comes about.
    fn fail(&self, error: TcpError) {
        if !self.has_begun {
            self.shared.lock().failure.get_or_insert(error);
            self.shared.notify();
        }
    }

    // --- what comes in -----------------------------------------------------------------------------------

    fn receive(&mut self, token: usize, now: Instant) {
        let Some(mut connection) = self.connections.remove(&token) else { return };
        match self.advance(&mut connection, now) {
            Ok(()) => drop(self.connections.insert(token, connection)),
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
        self.shared.lock().peers[rank].standing = Standing::Expected;
        self.know(rank, why);
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
            for (wire, link) in self.connections.values_mut().filter_map(Connection::link) {
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

    /// Begins the greeting once the system has connected.
    fn connect(&mut self, rank: usize, connection: &mut Connection) -> Result<(), Over> {
        let wire = &mut connection.wire;
        if !wire.is_writable {
            return Ok(());
        }
        if let Some(error) = wire.stream.take_error()? {
            return Err(error.into());
        }
        if wire.stream.peer_addr().is_err() {
            wire.is_writable = false;
            return Ok(());
        }
        let mut listens = self.listens;
        if listens.ip().is_unspecified() {
            listens.set_ip(wire.stream.local_addr()?.ip());
        }
        let hello = Hello {
            from: self.options.rank,
            to: Rank(rank as u32),
            listens: listens.to_string(),
            terms: self.terms.clone(),
        };
        let mut out = Vec::new();
        let greeting = Greeting::dial(self.options.security.key(), hello, &mut out);
        let greeting = greeting.map_err(|_| Over("the system has no random numbers".to_owned()))?;
        wire.push_raw(&out);
        connection.stage = Stage::Greeting(Box::new(greeting), Some(rank));
        Ok(())
    }

    fn greet(&mut self, connection: &mut Connection, now: Instant) -> Result<(), Over> {
        while connection.wire.is_readable {
            match connection.wire.read()? {
                Arrived::Nothing => return Ok(()),
                Arrived::End => return Err(Over("it hung up during the greeting".to_owned())),
                Arrived::Some(_) => self.is_busy = true,
            }
            let Stage::Greeting(greeting, to) = &mut connection.stage else { return Ok(()) };
            let (to, mut out) = (*to, Vec::new());
            let said = greeting.advance(&mut connection.wire.inlet, &mut out);
            connection.wire.push_raw(&out);
            match (said, to) {
                (Ok(None), _) => {}
                (Ok(Some(Said::Hello(hello))), _) => self.answer(connection, hello, now),
                (Ok(Some(Said::Welcome)), Some(rank)) => self.welcome(connection, rank, now),
                (Ok(Some(Said::Refusal(refusal))), Some(rank)) => {
                    return self.refused(rank, connection.address, refusal);
                }
                (Ok(Some(_)), None) => return Err(Over("it answers without a question".to_owned())),
                (Err(fault), Some(rank)) => return self.faulted(rank, connection.address, fault),
                (Err(fault), None) => {
                    self.shared.lock().turn_away(connection.address, &describe(fault));
                    connection.stage = Stage::Dismissed;
                }
            }
            if !matches!(connection.stage, Stage::Greeting(..)) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Lets a peer in, or says why not.
    fn answer(&mut self, connection: &mut Connection, hello: Hello, now: Instant) {
        let rank = hello.from.0 as usize;
        let differences = self.terms.differences(&hello.terms);
        let is_placed = hello.to == self.options.rank && (self.me() + 1..self.world).contains(&rank);
        let standing = self.shared.lock().peers.get(rank).map(|peer| peer.standing);
        let refusal = match standing {
            _ if !differences.is_empty() => Some(Refusal::Differs(self.terms.clone())),
            _ if !is_placed => Some(Refusal::Misplaced),
            Some(_) if self.dismisses => Some(Refusal::Over),
            Some(Standing::Expected) => None,
            Some(Standing::Here) => Some(Refusal::Taken),
            Some(Standing::Gone) | None => Some(Refusal::TooLate),
        };
        let address = connection.address;
        let answer = refusal.clone().map_or(Control::Welcome, Control::Refusal).to_bytes();
        let mut out = Vec::new();
        // Sealing fails only once 2^64 messages were sealed.
        let _ = connection.wire.inlet.seal_frame(&answer, &mut out);
        connection.wire.push_raw(&out);
        let Some(refusal) = refusal else {
            if let Some(roster) = &mut self.roster {
                roster[rank] = hello.listens;
            }
            return self.welcome(connection, rank, now);
        };
        let why = if differences.is_empty() {
            refusal.to_string()
        } else {
            crate::terms::Difference::line(&differences)
        };
        self.shared.lock().turn_away(address, &format!("{}: {why}", hello.from));
        connection.stage = Stage::Dismissed;
        if refusal == Refusal::Over {
            self.shared.lock().peers[rank].standing = Standing::Gone;
        }
        if !differences.is_empty() {
            self.fail(TcpError::Differs { peer: hello.from, address: address.to_string(), differences });
        }
    }

    /// A peer is here.
    fn welcome(&mut self, connection: &mut Connection, rank: usize, now: Instant) {
        // Without it, short messages are late and nothing else happens.
        let _ = connection.wire.stream.set_nodelay(true);
        let reader = Reader::new(self.options.limits.max_message_bytes, MAX_CONTROL);
        connection.stage = Stage::Peer(Link::new(rank, reader, now));
        self.shared.lock().peers[rank].standing = Standing::Here;
        self.shared.notify();
    }

    /// A peer refuses this end.
    fn refused(&mut self, rank: usize, address: SocketAddr, refusal: Refusal) -> Result<(), Over> {
        let (peer, why) = (Rank(rank as u32), refusal.to_string());
        let address = address.to_string();
        match refusal {
            // Its old connection may not have ended there yet.
            Refusal::Taken => {}
            Refusal::Differs(theirs) => {
                let differences = self.terms.differences(&theirs);
                self.fail(TcpError::Differs { peer, address, differences });
            }
            Refusal::Over => self.fail(TcpError::Over { peer, address }),
            Refusal::Misplaced | Refusal::TooLate => {
                self.fail(TcpError::Refused { peer, address, why: why.clone() });
            }
        }
        Err(Over(why))
    }

    /// What answers at the address of a peer cannot be talked to.
    fn faulted(&mut self, rank: usize, address: SocketAddr, fault: Fault) -> Result<(), Over> {
        let (peer, address) = (Rank(rank as u32), address.to_string());
        match fault {
            // Another program may have the port for now.
            Fault::Garbage => {}
            Fault::Version(theirs) => self.fail(TcpError::Version { peer, address, theirs }),
            Fault::Key => self.fail(TcpError::OtherKey { peer, address }),
            Fault::Encrypts(they_encrypt) => {
                self.fail(TcpError::Encryption { peer, address, they_encrypt });
            }
        }
        Err(Over(describe(fault)))
    }

    /// Reads what a peer sent, up to a bound.
    fn read_frames(&mut self, connection: &mut Connection, now: Instant) -> Result<(), Over> {
        let garbage = |_| Over("it sent what is no frame".to_owned());
        let (me, shared) = (self.options.rank, Arc::clone(&self.shared));
        let mut moved = 0;
        loop {
            let Some((wire, link)) = connection.link() else { return Ok(()) };
            let from = Rank(link.rank as u32);
            let enter = |tag, len: usize| {
                let lengths = (len, len.min(AHEAD));
                match shared.mailbox.reserve((me, from), tag, lengths, Deadline::now()) {
                    Ok(Some(buffer)) => Entry::Into(buffer),
                    Err(TransportError::NoRoom { .. }) => Entry::Full,
                    Ok(None) | Err(_) => Entry::Drop,
                }
            };
            let mut input = wire.inlet.plain().map_err(garbage)?;
            let before = input.len();
            let item = link.reader.next(&mut input, enter).map_err(garbage)?;
            let used = before - input.len();
            wire.inlet.take_plain(used);
            let was_blocked = std::mem::replace(&mut link.is_blocked, false);
            match item {
                Some(Item::Message(tag, bytes)) => shared.mailbox.fill(from, tag, bytes),
                Some(Item::Control(control)) => {
                    if let Some(answer) = self.hear(link, control)? {
                        wire.push_control(answer);
                    }
                }
                Some(Item::Blocked) => {
                    link.is_blocked = true;
                    link.did_not_listen(now);
                    // The caller may have made room before it could know that this matters.
                    let is_known = shared.is_held_back.swap(true, Ordering::SeqCst);
                    if was_blocked && is_known {
                        return Ok(());
                    }
                }
                None if used > 0 => {}
                None if !wire.is_readable || moved >= TURN => return Ok(()),
                None => match wire.read()? {
                    Arrived::Nothing => return Ok(()),
                    Arrived::End => return Err(Over("it closed the connection".to_owned())),
                    Arrived::Some(count) => {
                        link.heard(now);
                        moved += count;
                        self.is_busy = true;
                    }
                },
            }
        }
    }

    /// Does what a frame says; returns the answer.
    fn hear(&mut self, link: &mut Link, control: Control) -> Result<Option<Vec<u8>>, Over> {
        match control {
            Control::Heartbeat => {}
            Control::Bye => {
                link.has_left = true;
                self.bury(link.rank, false);
                return Ok(Some(Control::Farewell.to_bytes()));
            }
            Control::Farewell if link.said_bye => {
                self.shared.lock().peers[link.rank].is_settled = true;
            }
            Control::Lost(rank) => {
                let rank_at = rank.0 as usize;
                if !self.has_begun {
                    self.fail(TcpError::Lost { rank });
                } else if rank_at < self.world && rank_at != self.me() {
                    let is_theirs = |(_, connection): &(&usize, &mut Connection)| matches!(&connection.stage, Stage::Peer(link) if link.rank == rank_at);
                    let token = self.connections.iter_mut().find(is_theirs).map(|(token, _)| *token);
                    token.map(|token| self.connections.remove(&token));
                    self.bury(rank_at, true);
                }
            }
            Control::Roster(addresses) if link.rank == 0 && addresses.len() == self.world => {
                for (dial, address) in self.dials.iter_mut().zip(addresses) {
                    dial.address.get_or_insert(address);
                }
            }
            _ => return Err(Over("it sent a frame that is out of place".to_owned())),
        }
        Ok(None)
    }

    /// Whether all peers were there now for the first time.
    fn begin(&mut self, now: Instant) {
        let is_missing = |peer: &super::state::Peer| peer.standing == Standing::Expected;
        if self.has_begun || self.shared.lock().peers.iter().any(is_missing) {
            return;
        }
        self.has_begun = true;
        self.shared.lock().has_begun = true;
        self.shared.notify();
        let Some(mut roster) = self.roster.take() else { return };
        roster[self.me()] = self.listens.to_string();
        let roster = Control::Roster(roster).to_bytes();
        for (wire, link) in self.connections.values_mut().filter_map(Connection::link) {
            wire.push_control(roster.clone());
            link.last_sent = now;
        }
    }

    // --- what goes out -----------------------------------------------------------------------------------

    fn send(&mut self, now: Instant) {
        self.collect();
        let mut written: Vec<(usize, Frame)> = Vec::new();
        let mut over = Vec::new();
        for (&token, connection) in &mut self.connections {
            let rank = if let Stage::Peer(link) = &connection.stage { Some(link.rank) } else { None };
            let flushed = connection.wire.flush(TURN, |frame| {
                written.extend(rank.filter(|_| frame.is_message).map(|rank| (rank, frame)));
            });
            match flushed {
                Ok(0) => {}
                Ok(_) => {
                    self.is_busy = true;
                    connection.link().into_iter().for_each(|(_, link)| link.last_sent = now);
                }
                Err(error) => over.push((token, error)),
            }
        }
        if !written.is_empty() {
            let mut state = self.shared.lock();
            for (rank, frame) in written {
                state.peers[rank].outbox.written(&frame);
                state.spares.put(frame.bytes);
            }
            drop(state);
            self.shared.notify();
        }
        for (token, error) in over {
            let Some(mut connection) = self.connections.remove(&token) else { continue };
            // What came before the connection broke still counts.
            let read = self.advance(&mut connection, now);
            let why = read.err().map_or_else(|| error.to_string(), |Over(why)| why);
            self.end(connection, &why, now);
        }
    }

    /// Moves messages from the queues to sockets that have nothing to write.
    fn collect(&mut self) {
        let mut state = self.shared.lock();
        state.look();
        let is_closing = state.closing.is_some() && self.has_begun;
        for (wire, link) in self.connections.values_mut().filter_map(Connection::link) {
            if !wire.is_idle() || link.has_left {
                continue;
            }
            let outbox = &mut state.peers[link.rank].outbox;
            let mut bytes = 0;
            while bytes < TURN
                && let Some(frame) = outbox.pop()
            {
                bytes += frame.len();
                wire.push(Frame { bytes: frame, is_message: true });
            }
            if is_closing && outbox.is_empty() && !link.said_bye {
                wire.push_control(Control::Bye.to_bytes());
                link.said_bye = true;
            }
        }
    }

    // --- what takes too long -----------------------------------------------------------------------------

    fn look_at_times(&mut self, was_away: bool, now: Instant) {
        let timing = self.options.timing;
        let mut over = Vec::new();
        for (&token, connection) in &mut self.connections {
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
                        connection.wire.push_control(Control::Heartbeat.to_bytes());
                        self.is_busy = true;
                    }
                }
                Stage::Connecting(_) if age > timing.greeting => over.push((token, "no answer".to_owned())),
                Stage::Greeting(..) | Stage::Dismissed if age > timing.greeting => {
                    over.push((token, "its greeting took too long".to_owned()));
                }
                _ => {}
            }
        }
        for (token, why) in over {
            if let Some(connection) = self.connections.remove(&token) {
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

fn describe(fault: Fault) -> String {
    match fault {
        Fault::Garbage => "it does not speak this protocol".to_owned(),
        Fault::Version(theirs) => format!("it has version {theirs} of the protocol"),
        Fault::Encrypts(true) => "it encrypts, and this end does not".to_owned(),
        Fault::Encrypts(false) => "it does not encrypt, and this end does".to_owned(),
        Fault::Key => "it has another key".to_owned(),
    }
}
