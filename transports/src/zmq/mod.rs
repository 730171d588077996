//! Ranks in processes and on machines of their own, over ZeroMQ: authenticated, encrypted, and across
//! connections that break.
//!
//! One thread for each transport owns all its sockets; libzmq has one more for input and output. A listening
//! end has a ROUTER, a connecting end one DEALER for each peer that listens ([`Topology`]).
//!
//! # Who may come in
//! With [`Security::Curve`], a connection proves its key to libzmq (CURVE), and the [`Roster`] must contain
//! that key (ZAP). A peer's rank is the one that the roster gives to its key, whatever its messages say. The
//! listening end draws the routing id of a connection. Without keys everything is open, so
//! [`Security::Plain`] must be requested, and stays on the loopback interface unless that is waived too. A
//! program that is linked with a libzmq without CURVE refuses to begin a secured run ([`ZmqError::NoCurve`]).
//!
//! # Greeting
//! The connecting end says hello: version, session, ranks, [`Terms`]. The listening end welcomes it or
//! refuses it, and names every term on which the two differ; both get [`ZmqError::Differs`]. An end that
//! fails for it stays until the other one has heard why, 10 s at most.
//!
//! # Delivery
//! A message is cut into numbered chunks, which are kept until the other end has acknowledged them. When a
//! connection breaks, libzmq makes a new one, and the greeting on it says where to continue: nothing is lost,
//! and what comes twice is dropped. `send` returns when the message is queued and waits only for room in that
//! queue. If nothing was heard of a peer for [`Timing::give_up`], its session is over: callers that wait for
//! it get [`TransportError::Disconnected`](crate::TransportError::Disconnected), and messages queued for it
//! are dropped.
//!
//! # Memory
//! [`ZmqLimits::bytes_per_peer`] bounds what one peer can make this end store. libzmq refuses frames that are
//! too long before it makes room for them, and drops a message of several parts. But while such a message is
//! not complete, libzmq stores its parts, each within the limit. So a peer *that was let in* can make memory
//! grow as long as it sends: without keys by up to 30 times the bytes that it sends. libzmq shows such a
//! message to no reader, counts it against no limit, and has no call that ends one connection of a ROUTER.
//! SECURITY.md has figures, and countermeasures.
//!
//! # CURVE in libzmq
//! The crate `zmq` builds a libzmq of its own, without CURVE. Two ways to have it:
//! - **A**, the system's libzmq (Debian, Ubuntu: `libzmq3-dev`), through `.cargo/config.toml` of the
//!   workspace that is built (cargo reads none from a dependency, so a program that uses this crate needs the
//!   lines in its own):
//!   ```toml
//!   [target.x86_64-unknown-linux-gnu.zmq]
//!   rustc-link-lib = ["zmq"]
//!   ```
//! - **B**, the built-in one with libsodium (`libsodium-dev`):
//!   `CXXFLAGS="-DZMQ_HAVE_CURVE=1 -DZMQ_USE_LIBSODIUM=1"` and `RUSTFLAGS=-lsodium` in the environment of the
//!   build.
//!
//! # Examples
//! ```no_run
//! use std::time::Duration;
//!
//! use gradwire::{LayoutRef, Spec};
//! use gradwire_transports::zmq::{Bound, KeyPair, Roster, Security, Terms, Topology, ZmqOptions};
//! use gradwire_transports::{Deadline, Rank};
//!
//! let roster = Roster::read("peers.txt".as_ref())?;
//! let keys = KeyPair::read("rank1.key".as_ref())?;
//! let terms = Terms::new(&LayoutRef::flat(650), &Spec::parse("none").unwrap());
//! let options = ZmqOptions::new(Rank(1), roster, Topology::AllToAll, Security::Curve(keys), terms);
//! let transport = Bound::new(options)?.join(Deadline::after(Duration::from_secs(60)))?;
//! # Ok::<(), gradwire_transports::zmq::ZmqError>(())
//! ```

mod bound;
mod engine;
mod error;
mod event;
mod incoming;
mod keys;
mod link;
mod options;
mod outgoing;
mod packet;
pub mod roll;
mod roster;
mod sockets;
mod state;
mod strangers;
mod terms;
mod transport;
mod zap;

pub use self::bound::Bound;
pub use self::error::ZmqError;
pub use self::event::{Event, Log};
pub use self::keys::{KeyPair, NotAKey, PublicKey, read_public};
pub use self::options::{Returns, Security, Timing, Topology, ZmqLimits, ZmqOptions};
pub use self::roster::{Entry, Roster};
pub use self::terms::{Difference, Terms};
pub use self::transport::{LinkTally, ZmqTransport, has_curve};
