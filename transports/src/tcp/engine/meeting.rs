//! How connections come about: who calls, who is called, and whether the two let each other in.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Instant;

use mio::net::TcpStream;

use super::{Engine, Over, STRANGERS};
use crate::rank::Rank;
use crate::tcp::error::TcpError;
use crate::tcp::frame::{Control, Hello, MAX_CONTROL, Refusal};
use crate::tcp::greeting::{Fault, Greeting, Said};
use crate::tcp::inlet::Arrived;
use crate::tcp::link::{Connection, Link, Stage};
use crate::tcp::reader::Reader;
use crate::tcp::state::{Shared, Standing};
use crate::terms::{Difference, Terms};

impl Engine {
    pub(super) fn accept(&mut self, now: Instant) {
        while self.is_called {
            match self.listener.accept() {
                Ok((stream, address)) => {
                    self.connections.make_room(STRANGERS + self.world);
                    let greeting = Box::new(Greeting::answer(self.options.security.key()));
                    let stage = Stage::Greeting(greeting, None);
                    self.connections.add(self.poll.registry(), stream, address, stage, now);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_called = false,
                // One that ended before it was accepted, or no more files: the next turn tries again.
                Err(_) => return,
            }
        }
    }

    pub(super) fn dial(&mut self, now: Instant) {
        let (resolved, expected) = {
            let mut state = self.shared.lock();
            let expected: Vec<bool> =
                state.peers.iter().map(|peer| peer.standing == Standing::Expected).collect();
            (std::mem::take(&mut state.resolved), expected)
        };
        for (rank, found) in resolved {
            if let Err(error) = &found {
                self.shared.lock().know(rank, &format!("its name is not known: {error}"));
            }
            self.dials[rank].found(found.unwrap_or_default(), now);
        }
        for rank in (0..self.dials.len()).filter(|&rank| expected[rank]) {
            let Some(address) = self.dials[rank].next(rank, now, &self.shared) else { continue };
            if let Err(error) = self.options.security.allow(address) {
                self.shared.fail(error);
                continue;
            }
            let (connections, registry) = (&mut self.connections, self.poll.registry());
            let stage = Stage::Connecting(rank);
            let added = TcpStream::connect(address)
                .map(|stream| connections.add(registry, stream, address, stage, now));
            match added {
                Ok(Some(token)) => self.dials[rank].token = Some(token),
                Ok(None) => self.dials[rank].failed(now),
                Err(error) => self.missed(rank, &format!("{address}: {error}"), now),
            }
        }
    }

    /// An attempt to reach a peer failed.
    pub(super) fn missed(&mut self, rank: usize, why: &str, now: Instant) {
        self.shared.lock().know(rank, why);
        self.dials[rank].failed(now);
    }

    /// Begins the greeting once the system has connected.
    pub(super) fn connect(&mut self, rank: usize, connection: &mut Connection) -> Result<(), Over> {
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

    pub(super) fn greet(&mut self, connection: &mut Connection, now: Instant) -> Result<(), Over> {
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
                    return Err(Over(refused(&self.shared, &self.terms, rank, connection.address, refusal)));
                }
                (Ok(Some(_)), None) => return Err(Over("it answers without a question".to_owned())),
                (Err(fault), Some(rank)) => {
                    return Err(Over(faulted(&self.shared, rank, connection.address, fault)));
                }
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
        let why = if differences.is_empty() { refusal.to_string() } else { Difference::line(&differences) };
        self.shared.lock().turn_away(address, &format!("{}: {why}", hello.from));
        connection.stage = Stage::Dismissed;
        if refusal == Refusal::Over {
            self.shared.lock().peers[rank].standing = Standing::Gone;
        }
        if !differences.is_empty() {
            self.shared.fail(TcpError::Differs {
                peer: hello.from,
                address: address.to_string(),
                differences,
            });
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
}

/// A peer refuses this end. Returns why.
fn refused(shared: &Shared, terms: &Terms, rank: usize, address: SocketAddr, refusal: Refusal) -> String {
    let (peer, why) = (Rank(rank as u32), refusal.to_string());
    let address = address.to_string();
    match refusal {
        // Its old connection may not have ended there yet.
        Refusal::Taken => {}
        Refusal::Differs(theirs) => {
            shared.fail(TcpError::Differs { peer, address, differences: terms.differences(&theirs) });
        }
        Refusal::Over => shared.fail(TcpError::Over { peer, address }),
        Refusal::Misplaced | Refusal::TooLate => {
            shared.fail(TcpError::Refused { peer, address, why: why.clone() });
        }
    }
    why
}

/// What answers at the address of a peer cannot be talked to. Returns why.
fn faulted(shared: &Shared, rank: usize, address: SocketAddr, fault: Fault) -> String {
    let (peer, address) = (Rank(rank as u32), address.to_string());
    match fault {
        // Another program may have the port for now.
        Fault::Garbage => {}
        Fault::Version(theirs) => shared.fail(TcpError::Version { peer, address, theirs }),
        Fault::Key => shared.fail(TcpError::OtherKey { peer, address }),
        Fault::Encrypts(they_encrypt) => {
            shared.fail(TcpError::Encryption { peer, address, they_encrypt });
        }
    }
    describe(fault)
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
