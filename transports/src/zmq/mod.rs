//! Ranks in processes and on machines of their own, over ZeroMQ: authenticated, encrypted, and across
//! connections that break.
//!
//! Each transport has one thread that owns all its sockets; libzmq has one more for input and output. A
//! listening end has a ROUTER socket. A connecting end has one DEALER socket for each peer that listens
//! ([`Topology`]).
//!
//! # Who may come in
//! With [`Security::Curve`], each connection proves its key to libzmq (CURVE), and the [`Roster`] must
//! contain that key (ZAP). A peer's rank is the one that the roster gives to its key, whatever its messages
//! say. The listening end draws the routing id of a connection. Without keys everything is open, so you must
//! request [`Security::Plain`], and it is restricted to the loopback interface unless you waive that too. A
//! program that is linked with a libzmq without CURVE refuses to begin a secured run ([`ZmqError::NoCurve`]).
//!
//! # Greeting
//! The connecting end says hello: version, session, ranks, [`Terms`]. The listening end welcomes it or
//! refuses it. A refusal names every term on which the two ends differ, and both get [`ZmqError::Differs`].
//! The end that refused stays until the other one has received the reason, at most 10 s.
//!
//! # Slow links
//! The greeting and every acknowledgement measure the rate and the round trip of a link. They set the size of
//! chunks, how much is on the way, and after which silence a connection counts as lost ([`Timing`]), from
//! 64 kbit/s and round trips of 1.5 s upwards. An end that waits says for whom, and what is known of the
//! reason, at growing intervals ([`Event::Waiting`]).
//!
//! # Delivery
//! A message is cut into numbered chunks. The sender keeps each chunk until the other end has acknowledged
//! it. When a connection breaks, libzmq makes a new one, and its greeting says where to continue: nothing is
//! lost, and chunks that come twice are dropped. `send` returns when the message is queued; it waits only for
//! room in that queue. If a peer was silent for [`Timing::give_up`], its session is over: callers that wait
//! for it get [`TransportError::Disconnected`](crate::TransportError::Disconnected), and messages queued for
//! it are dropped.
//!
//! # Memory
//! [`ZmqLimits::bytes_per_peer`] bounds how much one peer can make this end store. libzmq refuses frames that
//! are too long before it allocates memory for them, and a message of several parts is dropped. But until
//! such a message is complete, libzmq stores its parts, each within the limit. So a peer *that was let in*
//! can make memory grow as long as it sends: without keys, by up to 30 times the bytes that it sends. libzmq
//! shows an incomplete message to no reader and counts it against no limit. It has no call that ends a single
//! connection of a ROUTER. SECURITY.md has figures and countermeasures.
//!
//! # CURVE in libzmq
//! The crate `zmq` builds a libzmq of its own, without CURVE. There are two ways to get CURVE:
//! - **A**: link the system's libzmq (Debian, Ubuntu: `libzmq3-dev`) with these lines in `.cargo/config.toml`
//!   of the workspace that is built. Cargo does not read the file of a dependency, so a program that uses
//!   this crate needs the lines in its own file.
//!   ```toml
//!   [target.x86_64-unknown-linux-gnu.zmq]
//!   rustc-link-lib = ["zmq"]
//!   ```
//! - **B**: build the crate's own libzmq with libsodium (`libsodium-dev`). Set
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

// What callers name:                             keys roster endpoint options event error
// The bytes of a link, parsed once:              packet refusal
// One session with one peer, without sockets:    pace outgoing incoming link
// The thread that owns the sockets of one rank:  sockets zap strangers growing dial engine
// What the caller holds, and how it is made:     transport state bound
// Who takes part in which step:                  roll

mod bound;
mod dial;
mod endpoint;
mod engine;
mod error;
mod event;
mod incoming;
mod keys;
mod link;
mod options;
mod outgoing;
mod pace;
mod packet;
mod refusal;
pub mod roll;
mod roster;
mod sockets;
mod state;
mod strangers;
mod threads;
mod transport;
mod zap;

pub use self::bound::Bound;
pub use self::error::ZmqError;
pub use self::event::{Event, Log};
pub use self::keys::{KeyPair, NotAKey, PublicKey, read_public};
pub use self::options::{Returns, Security, Timing, Topology, ZmqLimits, ZmqOptions};
pub use self::roster::{Entry, Roster};
pub use self::transport::{LinkTally, ZmqTransport, has_curve};
pub use crate::growing::Growing;
pub use crate::terms::{Difference, Terms};
