//! The socket to which peers connect: their greetings, and who may come in.

use std::sync::Arc;
use std::time::Instant;

use zmq::{Message, Socket};

use super::{BURST, Engine, Path, discard_rest};
use crate::rank::Rank;
use crate::terms::Difference;
use crate::zmq::error::ZmqError;
use crate::zmq::keys::PublicKey;
use crate::zmq::link::Link;
use crate::zmq::options::{Returns, Security};
use crate::zmq::packet::{Greeting, Malformed, Packet, VERSION};
use crate::zmq::refusal::Refusal;
use crate::zmq::sockets::{Noticed, notice};
use crate::zmq::state::{Standing, State};

impl Engine {
    pub(super) fn read_router(&mut self) {
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
}

/// A peer whose handshake failed. Only the endpoint is known: libzmq does not report the peer's address.
fn unknown(router: &Socket) -> String {
    let endpoint = router.get_last_endpoint().ok().and_then(Result::ok).unwrap_or_default();
    format!("an unknown peer (connected to {endpoint})")
}
