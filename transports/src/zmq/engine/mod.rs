//! The thread that owns all sockets of one transport: it reads, answers, keeps time and writes.
//!
//! | module | is about |
//! | --- | --- |
//! | [`record`] | what only the thread knows of a peer, and how packets reach it |
//! | [`listening`] | the socket to which peers connect: greetings, and who may come in |
//! | [`connecting`] | sockets that this end connects: greetings, and what refuses them |
//! | [`session`] | packets of a session, its beginning and its end |
//! | [`tending`] | what depends on time and on calls |

mod connecting;
mod listening;
mod record;
mod session;
mod tending;

use std::sync::Arc;
use std::time::{Duration, Instant};

use zmq::{Context, Message, PollItem, Socket};

use super::event::Event;
use super::options::ZmqOptions;
use super::state::{Peer, Shared};
use super::strangers::Strangers;
use super::zap;
use crate::rank::Rank;
use crate::terms::Terms;

pub(super) use self::record::{Path, PeerRecord};

/// Frames that are read from one socket before the next socket is read.
const BURST: usize = 64;
/// The longest that the thread sleeps.
const TICK: Duration = Duration::from_millis(100);

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

    /// The silence after which something is wrong with the link to a peer.
    fn silence(&self, peer: &Peer, now: Instant) -> Duration {
        self.options.timing.silence_at(peer.lateness(now))
    }
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
