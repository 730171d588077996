//! The thread that owns all sockets of one transport: it reads, answers, keeps time and writes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zmq::{Context, Message, PollItem, Socket};

use super::dial::{Dial, Told};
use super::error::ZmqError;
use super::event::Event;
use super::incoming::Violation;
use super::keys::PublicKey;
use super::link::Link;
use super::options::{Returns, Security, ZmqOptions};
use super::packet::{ACK_BYTES, Greeting, Malformed, Packet, Refusal, VERSION};
use super::roster::Roster;
use super::sockets::{Noticed, notice};
use super::state::{Order, Peer, Shared, Standing, State};
use super::strangers::Strangers;
use super::zap;
use crate::rank::Rank;
use crate::terms::{Difference, Terms};

/// Frames that are read from one socket before the next socket is read.
const BURST: usize = 64;
/// The time after which a socket whose queue was full is tried again.
const RETRY: Duration = Duration::from_millis(2);
/// The longest that the thread sleeps.
const TICK: Duration = Duration::from_millis(100);
/// How long an end that refused another end, and therefore stops, waits until that end has received the
/// reason.
const UNTIL_TOLD: Duration = Duration::from_secs(10);
/// When both ends leave: the longest time that this end waits for the peer to hang up first, or as long as
/// the link is silent without anything being wrong.
const UNTIL_PARTED: Duration = Duration::from_secs(1);

/// How packets reach a peer.
pub(super) enum Path {
    /// It connects to this end. The routing id is that of its current connection.
    Accepts { route: Option<Vec<u8>> },
    /// This end connects to it.
    Connects(Box<Dial>),
}

/// What only the thread knows of a peer. In the order of [`State::peers`].
pub(super) struct PeerRecord {
    pub(super) rank: Rank,
    pub(super) path: Path,
    pub(super) heard: Instant,
    /// At an end that listens: when the peer was welcomed over this connection, and the length of the answer,
    /// until it answers.
    pub(super) welcomed: Option<(Instant, usize)>,
    /// Sockets made for it so far.
    pub(super) dials: u64,
    /// When this end received its last word.
    pub(super) left: Option<Instant>,
}

impl PeerRecord {
    /// Whether this end leaves too, and must wait for a peer that said its last word but has not hung up. If
    /// this end hung up first, the peer's socket would drop messages that it has not read yet: libzmq does so
    /// when nothing may be queued without a connection. The answer to the last word could be among them, and
    /// the peer would wait for it in vain.
    fn is_parting(&self, state: &State, silence: Duration, now: Instant) -> bool {
        let is_recent = |left| now.saturating_duration_since(left) < UNTIL_PARTED.max(silence);
        let is_connected = matches!(self.path, Path::Accepts { route: Some(_) });
        state.closing.is_some() && is_connected && self.left.is_some_and(is_recent)
    }
}

pub(super) struct Engine {
    pub(super) context: Context,
    pub(super) shared: Arc<Shared>,
    pub(super) options: ZmqOptions,
    pub(super) terms: Terms,
    pub(super) router: Option<(Socket, Socket)>,
    pub(super) zap: Option<Socket>,
    pub(super) bell: Socket,
    pub(super) records: Vec<PeerRecord>,
    pub(super) strangers: Strangers,
    pub(super) events: Vec<Event>,
}

/// The result of passing a packet to a socket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    Yes,
    /// The queue is full; try again later.
    Full,
    /// There is no connection.
    Lost,
}

impl Engine {
    /// Runs until the transport is closed.
    pub(super) fn run(mut self) {
        let mut pause = TICK;
        loop {
            self.wait(pause);
            self.read();
            let now = Instant::now();
            self.strangers.report(now, &mut self.events);
            let is_over = self.tend(now, &mut pause);
            for event in self.events.drain(..) {
                self.options.log.tell(&event);
            }
            if is_over {
                break;
            }
        }
    }

    fn wait(&self, pause: Duration) {
        let sockets = [Some(&self.bell), self.zap.as_ref()].into_iter().flatten();
        let listening = self.router.iter().flat_map(|(socket, monitor)| [socket, monitor]);
        let connecting = self.records.iter().filter_map(|record| match &record.path {
            Path::Connects(dial) => Some([&dial.socket, &dial.monitor]),
            Path::Accepts { .. } => None,
        });
        let all = sockets.chain(listening).chain(connecting.flatten());
        let mut items: Vec<PollItem<'_>> = all.map(|socket| socket.as_poll_item(zmq::POLLIN)).collect();
        // An interrupted wait is a short one.
        let _ = zmq::poll(&mut items, i64::try_from(pause.as_millis()).unwrap_or(0));
    }

    fn read(&mut self) {
        while self.bell.recv_bytes(zmq::DONTWAIT).is_ok() {}
        self.answer_zap();
        self.read_router();
        (0..self.records.len()).for_each(|at| self.read_dealer(at));
    }

    fn answer_zap(&mut self) {
        let Some(socket) = &self.zap else { return };
        while let Ok(question) = socket.recv_multipart(zmq::DONTWAIT) {
            let ranks: Vec<Rank> = self.records.iter().map(|record| record.rank).collect();
            let Some(answer) = zap::answer(&question, &self.options.roster, &ranks) else { continue };
            // This fails only if the context is being closed.
            let _ = socket.send_multipart(answer.frames, 0);
            if let Some((address, why)) = answer.denied {
                self.strangers.refused(address, why);
            }
        }
    }

    fn read_router(&mut self) {
        let Some((socket, monitor)) = self.router.take() else { return };
        while let Some(noticed) = notice(&monitor) {
            if let Noticed::Failed(cause) = noticed {
                let why = cause.at_listening_end(self.options.timing.handshake);
                self.strangers.refused(unknown(&socket), why);
            }
        }
        let (mut id, mut body) = (Message::new(), Message::new());
        for _ in 0..BURST {
            if socket.recv(&mut id, zmq::DONTWAIT).is_err() || !id.get_more() {
                break;
            }
            if socket.recv(&mut body, zmq::DONTWAIT).is_err() {
                break;
            }
            let who = body.gets("User-Id").map(str::to_owned);
            if discard_rest(&socket, &mut body) {
                let who = who.map_or_else(|| unknown(&socket), |key| format!("key {key}"));
                self.strangers.garbage(who, "a message of several parts".to_owned());
            } else {
                self.arrived_at_router(&socket, &id, who.as_deref(), &body);
            }
        }
        self.router = Some((socket, monitor));
    }

    /// The peer of a connection: by its key, or without keys by its own claim.
    fn seat_of(&self, id: &[u8], user: Option<&str>) -> Option<usize> {
        let by_route = || {
            self.records.iter().position(
                |record| matches!(&record.path, Path::Accepts { route: Some(route) } if route == id),
            )
        };
        match self.options.security {
            Security::Plain { .. } => by_route(),
            Security::Curve(_) => {
                let key: PublicKey = user?.parse().ok()?;
                let rank = self.options.roster.rank_of(&key)?;
                self.records.iter().position(|record| record.rank == rank)
            }
        }
    }

    fn arrived_at_router(&mut self, socket: &Socket, id: &[u8], user: Option<&str>, body: &[u8]) {
        let record = self.seat_of(id, user);
        let named = |engine: &Self| match record {
            Some(at) => engine.records[at].rank.to_string(),
            None => user.map_or_else(|| unknown(socket), |key| format!("key {key}")),
        };
        match Packet::parse(body) {
            Ok(Packet::Hello(greeting)) => {
                if let Err(refusal) = self.on_hello(socket, id, record, &greeting) {
                    self.refuse(socket, id, (named(self), greeting.session), &refusal);
                }
            }
            Err(Malformed::Version { session, theirs }) => {
                let (own, theirs) = (VERSION.to_string(), theirs.to_string());
                let difference = Difference { name: "protocol version".to_owned(), own, theirs };
                let differences = vec![difference];
                self.fail(record, session, &differences);
                self.refuse(socket, id, (named(self), session), &Refusal::Differs(differences));
            }
            Ok(Packet::Bye { session, .. }) if self.is_told(session) => {}
            Ok(
                packet @ (Packet::Data(_) | Packet::Skip { .. } | Packet::Bye { .. } | Packet::Ack { .. }),
            ) => {
                // Only the connection that greeted last carries packets. Packets that an older one still
                // holds are sent again.
                let is_present = |at: &usize| matches!(&self.records[*at].path, Path::Accepts { route: Some(route) } if route == id);
                if let Some(at) = record.filter(is_present) {
                    self.on_packet(at, &packet);
                }
            }
            Ok(_) | Err(Malformed::Garbage) => {
                let who = named(self);
                self.strangers.garbage(who, format!("{} bytes that are no packet", body.len()));
            }
        }
    }

    /// Opens a session, or resumes it. Nothing changes when it is refused.
    fn on_hello(
        &mut self,
        socket: &Socket,
        id: &[u8],
        record: Option<usize>,
        greeting: &Greeting,
    ) -> Result<(), Refusal> {
        let differs = |name: &str, own: String, theirs: Rank| {
            Refusal::Differs(vec![Difference { name: name.to_owned(), own, theirs: theirs.to_string() }])
        };
        let at = match (&self.options.security, record) {
            (Security::Curve(_), Some(at)) if self.records[at].rank == greeting.from => at,
            // The claim in a greeting never decides: a key that is not on the list has no rank.
            (Security::Curve(_), record) => {
                let own = record.map_or("none".to_owned(), |at| self.records[at].rank.to_string());
                return Err(differs("rank of the key", own, greeting.from));
            }
            (Security::Plain { .. }, _) => {
                let at = self.records.iter().position(|record| record.rank == greeting.from);
                at.ok_or_else(|| differs("rank", "another one".to_owned(), greeting.from))?
            }
        };
        if greeting.to != self.options.rank {
            return Err(differs("rank that listens", self.options.rank.to_string(), greeting.to));
        }
        let differences = self.terms.differences(&greeting.terms);
        if !differences.is_empty() {
            self.fail(Some(at), greeting.session, &differences);
            return Err(Refusal::Differs(differences));
        }
        let now = Instant::now();
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        self.admit(&mut state, at, greeting, now)?;
        let peer = &mut state.peers[at];
        let Some(link) = &mut peer.link else { return Err(Refusal::UnknownSession) };
        let is_new = !matches!(&self.records[at].path, Path::Accepts { route: Some(route) } if route == id);
        let welcomed = link.on_greeting(greeting.ack, is_new || !link.is_open, now);
        let ack = link.incoming.ack();
        // A peer may come back because it does not know that its last word has arrived. It is told so again.
        let left = link.incoming.is_over().then_some(now);
        if let Err(violation) = welcomed {
            self.break_link(&mut state, at, violation);
            return Ok(());
        }
        let (from, to) = (self.options.rank, greeting.from);
        let answer = Greeting {
            session: greeting.session,
            resumes: greeting.resumes,
            from,
            to,
            ack,
            terms: self.terms.clone(),
        };
        let answer = Packet::greeting(&answer, true);
        let _ = socket.send_multipart([id, &answer], zmq::DONTWAIT);
        let record = &mut self.records[at];
        (record.path, record.heard, record.left) = (Path::Accepts { route: Some(id.to_vec()) }, now, left);
        record.welcomed = is_new.then_some((now, answer.len()));
        self.is_here(&mut state, at);
        shared.notify();
        Ok(())
    }

    /// Sets the peer's session to that of the greeting.
    fn admit(
        &mut self,
        state: &mut State,
        at: usize,
        greeting: &Greeting,
        now: Instant,
    ) -> Result<(), Refusal> {
        let peer = &mut state.peers[at];
        if peer.is_banned {
            return Err(Refusal::ShutOut);
        }
        if peer.link.as_ref().is_some_and(|link| link.session == greeting.session) {
            return Ok(());
        }
        if greeting.resumes {
            return Err(Refusal::UnknownSession);
        }
        let silence = self.silence(peer, now);
        let is_fresh = now.saturating_duration_since(self.records[at].heard) < silence;
        match peer.standing {
            Standing::Expected => {}
            Standing::Here if is_fresh => return Err(Refusal::Taken),
            _ if self.options.returns == Returns::Never => return Err(Refusal::TooLate),
            Standing::Here | Standing::Silent => self.end_session(state, at, "it was started again"),
            Standing::Gone => {}
        }
        let peer = &mut state.peers[at];
        peer.link = Some(Link::new(greeting.session, &self.options.limits, now));
        peer.standing = Standing::Expected;
        peer.sessions += 1;
        Ok(())
    }

    /// The silence after which something is wrong with the link to a peer.
    fn silence(&self, peer: &Peer, now: Instant) -> Duration {
        self.options.timing.silence_at(peer.lateness(now))
    }

    fn refuse(&mut self, socket: &Socket, id: &[u8], (who, session): (String, u64), refusal: &Refusal) {
        let _ = socket.send_multipart([id, &Packet::refusal(session, refusal)], zmq::DONTWAIT);
        self.strangers.refused(who, refusal.to_string());
    }

    /// A run that waits for all peers cannot begin with a peer that differs. This end stays until that peer
    /// has received the reason. If the connection breaks before the refusal arrived, the peer says hello
    /// again.
    fn fail(&mut self, record: Option<usize>, session: u64, differences: &[Difference]) {
        let Some(at) = record.filter(|_| self.options.returns == Returns::Never) else { return };
        let (peer, differences) = (self.records[at].rank, differences.to_vec());
        let mut state = self.shared.lock();
        if !state.has_begun {
            state.peers[at].untold = Some((session, Instant::now()));
            state.failure.get_or_insert(ZmqError::Differs { peer, differences });
        }
        self.shared.notify();
    }

    /// Whether a bye says that its sender has received the refusal.
    fn is_told(&self, session: u64) -> bool {
        let mut state = self.shared.lock();
        let mut told =
            state.peers.iter_mut().filter_map(|peer| peer.untold.take_if(|(of, _)| *of == session));
        told.next().is_some()
    }

    fn fail_with(&self, error: ZmqError) {
        let mut state = self.shared.lock();
        if !state.has_begun {
            state.failure.get_or_insert(error);
        }
        self.shared.notify();
    }

    fn read_dealer(&mut self, at: usize) {
        let handshake = self.options.timing.handshake;
        let PeerRecord { path: Path::Connects(dial), rank, .. } = &mut self.records[at] else { return };
        let (rank, told) = (*rank, dial.read_monitor(handshake, Instant::now()));
        let mut bodies = Vec::new();
        let mut body = Message::new();
        while bodies.len() < BURST && dial.socket.recv(&mut body, zmq::DONTWAIT).is_ok() {
            if !discard_rest(&dial.socket, &mut body) {
                bodies.push(std::mem::replace(&mut body, Message::new()));
            }
        }
        for told in told {
            match told {
                Told::Denied => self.fail_with(self.denied(rank)),
                Told::Failed(why) => self.strangers.refused(rank.to_string(), why),
            }
        }
        bodies.iter().for_each(|body| self.arrived_at_dealer(at, body));
    }

    fn denied(&self, peer: Rank) -> ZmqError {
        let entry = self.options.roster.get(peer);
        let endpoint = entry.and_then(|entry| entry.endpoint.clone()).unwrap_or_default();
        ZmqError::Denied { peer, endpoint }
    }

    fn arrived_at_dealer(&mut self, at: usize, body: &[u8]) {
        let Path::Connects(dial) = &self.records[at].path else { return };
        let is_greeted = dial.is_greeted();
        match Packet::parse(body) {
            Ok(Packet::Welcome(greeting)) => self.on_welcome(at, &greeting, body.len()),
            Ok(Packet::Refusal { session, refusal }) => self.on_refusal(at, session, refusal),
            Ok(
                packet @ (Packet::Data(_) | Packet::Skip { .. } | Packet::Bye { .. } | Packet::Ack { .. }),
            ) => {
                if is_greeted {
                    self.on_packet(at, &packet);
                }
            }
            Err(Malformed::Version { theirs, .. }) => {
                let (own, theirs) = (VERSION.to_string(), theirs.to_string());
                let difference = Difference { name: "protocol version".to_owned(), own, theirs };
                let differences = vec![difference];
                self.fail_with(ZmqError::Differs { peer: self.records[at].rank, differences });
            }
            Ok(Packet::Hello(_)) | Err(Malformed::Garbage) => {
                let who = self.records[at].rank.to_string();
                self.strangers.garbage(who, format!("{} bytes that are no packet", body.len()));
            }
        }
    }

    fn on_welcome(&mut self, at: usize, greeting: &Greeting, bytes: usize) {
        let differences = self.terms.differences(&greeting.terms);
        if !differences.is_empty() {
            return self.fail_with(ZmqError::Differs { peer: self.records[at].rank, differences });
        }
        let now = Instant::now();
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        let Some(link) = state.peers[at].link.as_mut().filter(|link| link.session == greeting.session) else {
            return;
        };
        let record = &mut self.records[at];
        record.heard = now;
        let Path::Connects(dial) = &mut record.path else { return };
        let is_new = !dial.is_greeted();
        let greeted = link.on_greeting(greeting.ack, is_new, now);
        if let Some((bytes, took)) = dial.greeted(bytes, now) {
            link.outgoing.pace.on_greeting(bytes, took, now);
        }
        if let Err(violation) = greeted {
            return self.break_link(&mut state, at, violation);
        }
        self.is_here(&mut state, at);
        shared.notify();
    }

    fn on_refusal(&mut self, at: usize, session: u64, refusal: Refusal) {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        let peer = &state.peers[at];
        if peer.standing == Standing::Gone || peer.link.as_ref().is_none_or(|link| link.session != session) {
            return;
        }
        let (peer, has_begun) = (peer.rank, state.has_begun);
        let refusal = match refusal {
            // Tried again, until the deadline of the waiting caller.
            Refusal::Taken => {
                if let Path::Connects(dial) = &mut self.records[at].path {
                    dial.taken(Instant::now());
                }
                return;
            }
            Refusal::Differs(all) => Refusal::Differs(all.into_iter().map(Difference::reversed).collect()),
            other => other,
        };
        let why = refusal.to_string();
        let error = match refusal {
            Refusal::Differs(differences) => ZmqError::Differs { peer, differences },
            _ => ZmqError::Refused { peer, why: why.clone() },
        };
        if let Path::Connects(dial) = &self.records[at].path {
            let _ = dial.socket.send(Packet::bye(session, 0), zmq::DONTWAIT);
        }
        if has_begun {
            self.end_session(&mut state, at, &why);
        } else {
            // Callers that wait for the beginning get the error, so no event repeats it.
            state.failure.get_or_insert(error);
            self.drop_session(&mut state, at);
        }
        shared.notify();
    }

    fn on_packet(&mut self, at: usize, packet: &Packet<'_>) {
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
    fn is_here(&mut self, state: &mut State, at: usize) {
        let peer = &mut state.peers[at];
        let rank = peer.rank;
        match peer.standing {
            Standing::Expected => self.events.push(Event::Joined { rank }),
            Standing::Silent => self.events.push(Event::Resumed { rank }),
            Standing::Here | Standing::Gone => return,
        }
        peer.standing = Standing::Here;
    }

    fn break_link(&mut self, state: &mut State, at: usize, violation: Violation) {
        state.peers[at].is_banned = true;
        self.end_session(state, at, &format!("it broke the protocol: it {violation}"));
        self.shared.notify();
    }

    /// Ends a session without telling the peer.
    fn end_session(&mut self, state: &mut State, at: usize, why: &str) {
        let peer = &mut state.peers[at];
        if peer.standing != Standing::Gone {
            self.events.push(Event::Gone { rank: peer.rank, why: why.to_owned() });
        }
        self.drop_session(state, at);
    }

    /// As [`end_session`](Self::end_session), without an event.
    fn drop_session(&mut self, state: &mut State, at: usize) {
        let peer = &mut state.peers[at];
        (peer.standing, peer.link) = (Standing::Gone, None);
        if let Path::Connects(dial) = &mut self.records[at].path {
            dial.lost(Instant::now());
        }
    }

    /// Does everything that depends on time or on calls. Returns whether the thread must end.
    fn tend(&mut self, now: Instant, pause: &mut Duration) -> bool {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        state.is_woken = false;
        self.obey(&mut state);
        let mut is_blocked = false;
        for at in 0..self.records.len() {
            self.settle(&mut state, at, now);
            self.watch(&mut state, at, now);
            self.greet(&mut state, at, now);
            self.say_what_is_waited_for(&mut state, at, now);
            is_blocked |= self.flush(&mut state, at, now) == Sent::Full;
        }
        let is_parting = (0..self.records.len()).any(|at| self.is_parting(&state, at, now));
        *pause = if is_blocked || is_parting { RETRY } else { TICK.min(self.options.timing.heartbeat / 3) };
        shared.notify();
        let is_settled = !is_parting && state.peers.iter().all(Peer::is_settled);
        let waits = |(_, since)| now.saturating_duration_since(since) < UNTIL_TOLD;
        let is_told = !state.peers.iter().any(|peer| peer.untold.is_some_and(waits));
        state.closing.is_some_and(|deadline| is_told && (is_settled || deadline.has_passed()))
    }

    /// Whether this end must wait for that peer to hang up.
    fn is_parting(&self, state: &State, at: usize, now: Instant) -> bool {
        self.records[at].is_parting(state, self.silence(&state.peers[at], now), now)
    }

    /// Does what the caller ordered.
    fn obey(&mut self, state: &mut State) {
        for order in std::mem::take(&mut state.orders) {
            match order {
                Order::Readmit(roster) => self.readmit(state, roster),
                // libzmq does not try again after a refusal, so the old socket may be of no use.
                Order::Redial => (0..self.records.len()).for_each(|at| self.redial(state, at)),
                Order::ShutOut { rank, why } => {
                    if let Some(at) = self.records.iter().position(|record| record.rank == rank) {
                        state.peers[at].is_banned = true;
                        self.end_session(state, at, &why);
                    }
                }
            }
        }
    }

    /// Applies another list of peers.
    fn readmit(&mut self, state: &mut State, roster: Roster) {
        for at in 0..self.records.len() {
            let rank = self.records[at].rank;
            let [old, new] =
                [&self.options.roster, &roster].map(|list| list.get(rank).map(|entry| entry.key));
            let what = match (old, new) {
                (old, new) if old == new => continue,
                (_, None) => "was taken off the list",
                (None, Some(_)) => "is on the list again",
                (Some(_), Some(_)) => "has another key on the list",
            };
            self.events.push(Event::Listed { rank, what });
            let peer = &mut state.peers[at];
            (peer.is_listed, peer.is_banned) = (new.is_some(), false);
            if peer.link.is_some() {
                self.end_session(state, at, &format!("it {what}"));
            }
        }
        let own = self.options.roster.get(self.options.rank).cloned().unwrap_or_default();
        self.options.roster = roster.with(self.options.rank, own);
    }

    /// Delivers messages that waited for room, and records peers that said their last word.
    fn settle(&mut self, state: &mut State, at: usize, now: Instant) {
        let State { arrivals, peers, .. } = state;
        let peer = &mut peers[at];
        let Some(link) = &mut peer.link else { return };
        if link.incoming.is_held_back()
            && let Err(violation) = link.settle(peer.rank, arrivals)
        {
            return self.break_link(state, at, violation);
        }
        if link.incoming.is_over() && peer.standing != Standing::Gone {
            self.events.push(Event::Gone { rank: peer.rank, why: "it left".to_owned() });
            peer.standing = Standing::Gone;
            self.records[at].left = Some(now);
        }
    }

    /// Reports a silent peer, and gives it up after a longer silence. A connection that this end made is made
    /// anew.
    fn watch(&mut self, state: &mut State, at: usize, now: Instant) {
        let quiet = now.saturating_duration_since(self.records[at].heard);
        let timing = self.options.timing;
        let peer = &mut state.peers[at];
        let late = peer.lateness(now);
        // Until the welcome is answered, nothing is measured.
        let is_measured = self.records[at].welcomed.is_none();
        let is_silent = quiet > timing.silence_at(late) && (is_measured || quiet > timing.handshake);
        let give_up = timing.give_up_at(late);
        match peer.standing {
            Standing::Here if is_silent => {
                peer.standing = Standing::Silent;
                self.events.push(Event::Silent { rank: peer.rank });
            }
            Standing::Silent if quiet > give_up => {
                let why = format!("nothing was heard of it for {:.1} s", quiet.as_secs_f64());
                self.end_session(state, at, &why);
            }
            _ => {}
        }
        let limit = timing.handshake;
        if let Path::Connects(dial) = &mut self.records[at].path
            && (dial.is_greeted() && is_silent || dial.is_stuck(limit, now) || dial.is_of_other_version(now))
        {
            self.redial(state, at);
        }
    }

    /// Makes another connection to a peer that listens.
    fn redial(&mut self, state: &mut State, at: usize) {
        let record = &mut self.records[at];
        let Path::Connects(dial) = &mut record.path else { return };
        dial.lost(Instant::now());
        record.dials += 1;
        if let Err(error) = dial.again(&self.context, &self.options, (record.rank, record.dials)) {
            self.end_session(state, at, &error.to_string());
        }
    }

    /// Greets a peer that this end connects to, until it answers.
    fn greet(&mut self, state: &mut State, at: usize, now: Instant) {
        let PeerRecord { path: Path::Connects(dial), rank, .. } = &mut self.records[at] else { return };
        let Some(link) = state.peers[at].open_link().filter(|_| dial.is_to_greet(now)) else { return };
        let (session, resumes, ack) = (link.session, link.is_open, link.incoming.ack());
        let greeting =
            Greeting { session, resumes, from: self.options.rank, to: *rank, ack, terms: self.terms.clone() };
        dial.greet(Packet::greeting(&greeting, false), now);
    }

    /// Says, at growing intervals, which peer or which of its messages is waited for.
    fn say_what_is_waited_for(&mut self, state: &mut State, at: usize, now: Instant) {
        let record = &mut self.records[at];
        let peer = &mut state.peers[at];
        let quiet = now.saturating_duration_since(record.heard);
        let told = match &mut record.path {
            Path::Connects(dial) if !dial.is_greeted() => {
                peer.absence = dial.absence(now);
                let missed = dial.is_missed(now).filter(|_| peer.open_link().is_some());
                missed.map(|waited| (peer.absence.clone(), waited))
            }
            _ => peer.is_awaited(quiet, now),
        };
        if let Some((known, waited)) = told {
            self.events.push(Event::Waiting { rank: peer.rank, seconds: waited.as_secs(), known });
        }
    }

    /// Sends what may be sent to a peer.
    fn flush(&mut self, state: &mut State, at: usize, now: Instant) -> Sent {
        let is_parting = self.is_parting(state, at, now);
        let peer = &mut state.peers[at];
        let router = self.router.as_ref().map(|(socket, _)| socket);
        let path = &mut self.records[at].path;
        let Some(link) = &mut peer.link else { return Sent::Yes };
        // A packet that finds no connection shows that the peer has hung up.
        let heartbeat = if is_parting { RETRY } else { self.options.timing.heartbeat };
        if let Some(ack) = link.ack(heartbeat, now) {
            match path.send(router, ack) {
                Sent::Yes => link.acked(now),
                stopped => return stopped,
            }
        }
        if peer.standing == Standing::Gone {
            return Sent::Yes;
        }
        while let Some(packet) = link.outgoing.packet(link.session, now) {
            match path.send(router, packet) {
                Sent::Yes => link.outgoing.sent(now),
                stopped => return stopped,
            }
        }
        Sent::Yes
    }
}

impl Path {
    fn send(&mut self, router: Option<&Socket>, packet: Vec<u8>) -> Sent {
        let (result, route) = match self {
            Self::Accepts { route: None } => return Sent::Lost,
            Self::Connects(dial) if !dial.is_greeted() => return Sent::Lost,
            Self::Connects(dial) => (dial.socket.send(packet, zmq::DONTWAIT), None),
            Self::Accepts { route } => {
                let (Some(id), Some(router)) = (route.as_ref(), router) else { return Sent::Lost };
                (
                    router.send_multipart([Message::from(&id[..]), Message::from(packet)], zmq::DONTWAIT),
                    Some(route),
                )
            }
        };
        match (result, route) {
            (Ok(()), _) => Sent::Yes,
            (Err(zmq::Error::EHOSTUNREACH), Some(route)) => {
                *route = None;
                Sent::Lost
            }
            (Err(_), _) => Sent::Full,
        }
    }
}

/// A peer of which nothing is known but where it came in. libzmq names no address of a failed handshake.
fn unknown(router: &Socket) -> String {
    let endpoint = router.get_last_endpoint().ok().and_then(Result::ok).unwrap_or_default();
    format!("an unknown peer (connected to {endpoint})")
}

/// Reads and drops the further parts of a message. Returns whether there were any.
fn discard_rest(socket: &Socket, part: &mut Message) -> bool {
    let had_more = part.get_more();
    while part.get_more() {
        if socket.recv(part, zmq::DONTWAIT).is_err() {
            break;
        }
    }
    had_more
}
