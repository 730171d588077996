//! Makes a transport from options: bind, set the addresses of the others, join.

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use zmq::{Context, Socket};

use super::dial::Dial;
use super::endpoint::{Endpoint, Use};
use super::engine::{Engine, Path, PeerRecord};
use super::error::ZmqError;
use super::incoming::Arrivals;
use super::options::{Returns, Security, ZmqOptions};
use super::sockets::{bell, router, zap};
use super::state::{Peer, Shared};
use super::threads::ensure_threads;
use super::transport::{Bell, Me, ZmqTransport, has_curve};
use crate::counters::Counters;
use crate::inbox::Inbox;
use crate::rank::{Membership, Rank};
use crate::spares::Spares;
use crate::tag::Deadline;

/// An end that has not joined the others yet. It already listens, if the roster says that it should.
pub struct Bound {
    context: Context,
    options: ZmqOptions,
    /// The socket and its monitor, and the address on which it listens.
    router: Option<(Socket, Socket)>,
    endpoint: Option<String>,
    zap: Option<Socket>,
}

impl std::fmt::Debug for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bound").field("rank", &self.options.rank).field("endpoint", &self.endpoint).finish()
    }
}

impl Bound {
    /// Checks the options, and listens at the address that the roster gives for this rank, if any. For a port
    /// of `*` the system chooses one.
    ///
    /// # Errors
    /// `NoCurve`, `NotLoopback`, `Options`, `Socket`, `Threads`.
    pub fn new(options: ZmqOptions) -> Result<Self, ZmqError> {
        Self::with(options, has_curve())
    }

    /// As [`new`](Self::new); the caller says whether libzmq has CURVE.
    pub(super) fn with(options: ZmqOptions, has_curve: bool) -> Result<Self, ZmqError> {
        options.check(has_curve)?;
        ensure_threads()?;
        let context = Context::new();
        let is_secure = matches!(options.security, Security::Curve(_));
        let zap = if is_secure { Some(zap(&context)?) } else { None };
        let mut bound = Self { context, options, router: None, endpoint: None, zap };
        if bound.options.neighbours().iter().any(|&rank| bound.options.listens_for(rank)) {
            bound.listen()?;
        }
        Ok(bound)
    }

    fn listen(&mut self) -> Result<(), ZmqError> {
        let endpoint = endpoint(&self.options, self.options.rank, Use::Listen)?;
        let (socket, monitor) = router(&self.context, &self.options, &endpoint)?;
        self.endpoint = socket.get_last_endpoint().ok().and_then(Result::ok);
        self.router = Some((socket, monitor));
        Ok(())
    }

    /// The address at which this end listens; `None` if it only connects.
    pub fn endpoint(&self) -> Option<&str> {
        self.endpoint.as_deref()
    }

    /// Sets the address at which `rank` listens, in place of the one in the roster.
    pub fn locate(&mut self, rank: Rank, endpoint: &str) {
        let mut entry = self.options.roster.get(rank).cloned().unwrap_or_default();
        entry.endpoint = Some(endpoint.to_owned());
        self.options.roster = self.options.roster.clone().with(rank, entry);
    }

    /// Connects, greets, and waits until all peers are there. With [`Returns::AtAnyTime`], an end that
    /// listens waits for no peer. The membership is then that of the roster, in epoch 0.
    ///
    /// # Errors
    /// `Differs`, `Denied`, `Refused`, `NotAllThere`, `NotLoopback`, `Options`, `Socket`, `Threads`.
    pub fn join(self, deadline: Deadline) -> Result<ZmqTransport, ZmqError> {
        let mut transport = self.start()?;
        transport.wait_for_peers(deadline)?;
        Ok(transport)
    }

    /// Connects and greets, but does not wait: [`ZmqTransport::wait_for_peers`] does.
    ///
    /// # Errors
    /// `NotLoopback`, `Options`, `Socket`.
    pub fn start(self) -> Result<ZmqTransport, ZmqError> {
        let Self { context, options, router, zap, .. } = self;
        let (listens, rings) = bell(&context)?;
        let now = Instant::now();
        let (mut peers, mut records) = (Vec::new(), Vec::new());
        for rank in options.neighbours() {
            let mut peer = Peer::new(rank);
            let path = if options.listens_for(rank) {
                Path::Accepts { route: None }
            } else {
                peer.begin(&options.limits, now);
                let endpoint = endpoint(&options, rank, Use::Connect)?;
                let has_ipv6 = endpoint.needs_ipv6();
                let dial = Dial::new(&context, &options, (rank, 0), endpoint, has_ipv6)?;
                peer.absence = dial.absence(now);
                Path::Connects(Box::new(dial))
            };
            peers.push(peer);
            records.push(PeerRecord {
                rank,
                path,
                heard: now,
                welcomed: None,
                broke: None,
                dials: 0,
                left: None,
            });
        }
        let limits = options.limits;
        let arrivals = Arrivals { inbox: Inbox::new(limits.inbox), spares: Spares::new(limits.inbox.bytes) };
        let shared = Arc::new(Shared::new(arrivals, peers));
        let me = Me {
            rank: options.rank,
            limits,
            is_secure: zap.is_some(),
            listens: router.is_some(),
            roster: options.roster.ranks(),
            is_patient: options.returns == Returns::Never || router.is_none(),
        };
        let members = Membership { epoch: 0, ranks: me.roster.clone() };
        let terms = options.all_terms();
        let (strangers, events) = Default::default();
        let engine = Engine {
            context,
            shared: Arc::clone(&shared),
            options,
            terms,
            router,
            zap,
            bell: listens,
            records,
            strangers,
            events,
        };
        let name = format!("zmq-{}", me.rank.0);
        let thread = thread::Builder::new().name(name).spawn(move || {
            // Dropped last, also by a panic.
            let _end = End(Arc::clone(&engine.shared));
            engine.run();
        });
        let thread = thread.map_err(|error| ZmqError::Threads { error: error.to_string() })?;
        Ok(ZmqTransport {
            members,
            me,
            shared,
            bell: Bell(rings),
            thread: Some(thread),
            counters: Counters::default(),
        })
    }
}

/// When dropped, tells waiting callers that the thread has ended.
struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.lock().is_stopped = true;
        self.0.notify();
    }
}

/// The address at which `rank` listens, if a socket is allowed there.
fn endpoint(options: &ZmqOptions, rank: Rank, used: Use) -> Result<Endpoint, ZmqError> {
    let endpoint = options.roster.get(rank).and_then(|entry| entry.endpoint.clone());
    let none = || ZmqError::Options { what: format!("the list of peers does not say where {rank} listens") };
    options.endpoint(&endpoint.ok_or_else(none)?, used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zmq::{Entry, KeyPair, Roster, Terms, Topology};

    fn options(security: Security, key: Option<crate::zmq::PublicKey>) -> ZmqOptions {
        let endpoint = Some("tcp://127.0.0.1:*".to_owned());
        let roster = Roster::new().with(Rank(0), Entry { key, endpoint });
        ZmqOptions::new(Rank(0), roster, Topology::AllToAll, security, Terms::default())
    }

    #[test]
    fn a_secured_run_on_a_libzmq_without_curve_does_not_begin_and_says_how_to_build_another() {
        let pair = KeyPair::generate().unwrap();
        let secured = || options(Security::Curve(pair.clone()), Some(pair.public()));
        let refused = Bound::with(secured(), false).unwrap_err();
        assert_eq!(refused, ZmqError::NoCurve);
        let text = refused.to_string();
        for fix in ["libzmq3-dev", ".cargo/config.toml", "-DZMQ_HAVE_CURVE=1", "libsodium-dev"] {
            assert!(text.contains(fix), "{text}");
        }
        Bound::with(secured(), true).unwrap();
        Bound::with(options(Security::Plain { beyond_loopback: false }, None), false).unwrap();
    }
}
