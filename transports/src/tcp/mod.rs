//! Ranks on machines of their own, over plain TCP: every rank is connected to every other one, and nothing
//! has to be installed.
//!
//! Each transport has one thread that owns its sockets ([`mio`](https://docs.rs/mio)). The higher of two
//! ranks connects to the lower one. Ranks know each other's addresses from a list, or ask rank 0 for them
//! ([`Meeting`]). Until all are there, connections that break are made anew.
//!
//! # Who may come in
//! With [`Security::Key`], all ranks share 32 bytes, and everything is encrypted and authenticated by the
//! Noise protocol: `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`, with fresh keys for each connection
//! ([`snow`](https://docs.rs/snow)). Without a key, whoever reaches the socket can take part, so that is
//! restricted to the loopback interface ([`Security::Loopback`]) unless you ask for
//! [`Security::Insecure`]. A key says that an end belongs to the run, not which rank it is: among
//! themselves, ranks are trusted.
//!
//! # Greeting
//! Magic, version and encryption are compared first, then the keys, then ranks and [`Terms`]: the layout, the
//! codec and whatever the caller adds. A refusal names every term on which the two ends differ, at both ends.
//! A connection has [`Timing::greeting`] to say who it is; there are at most 64 such connections beside one
//! for each rank, and a new one takes the place of the oldest.
//!
//! # Fail-stop
//! Once all are there, a connection that breaks is not made anew. For either end the other one is gone. Both
//! tell all others, for whom the one that they first hear of is gone too. Calls return
//! [`Disconnected`](crate::TransportError::Disconnected) after the last messages. Start the job again from
//! its checkpoint. A peer counts as gone when its connection ends without a farewell, or when not a single
//! byte came from it for [`Timing::silence`]. Ends that have nothing to send send signs of life, also while
//! their program computes, so this means that the host or the network is dead, or the process is stopped. No
//! limit of time passes while bytes move.
//!
//! # Memory
//! For each peer a rank stores what [`TcpLimits`] allow for the inbox and for the queue of messages to send,
//! in each at least one message of any legal size, and 640 KiB for the connection. If the inbox has no room
//! for the next message, its bytes stay in the buffers of the operating systems, and then with the sender.
//! Nothing is reserved before it is used, and a message takes memory as its bytes come.
//!
//! # Examples
//! ```
//! use gradwire::{LayoutRef, Spec};
//! use gradwire_transports::tcp::{Bound, Meeting, Security, TcpOptions, Terms};
//! use gradwire_transports::{Deadline, Rank, Tag, Transport};
//!
//! let terms = Terms::new(&LayoutRef::flat(650), &Spec::parse("none").unwrap());
//! let options = |rank| TcpOptions::new(Rank(rank), terms.clone(), Security::Loopback);
//! let bound = [0, 1].map(|rank| Bound::new(options(rank), "127.0.0.1:0").unwrap());
//! let meeting = Meeting::Hosts(bound.iter().map(|bound| bound.address().to_string()).collect());
//! let threads = bound.map(|bound| {
//!     let meeting = meeting.clone();
//!     std::thread::spawn(move || {
//!         let mut end = bound.join(&meeting, Deadline::NEVER).unwrap();
//!         let (peer, tag) = (Rank(1 - end.rank().0), Tag::new(0, 1));
//!         end.send(peer, tag, b"frame", Deadline::NEVER).unwrap();
//!         let mut frame = Vec::new();
//!         end.recv(peer, tag, &mut frame, Deadline::NEVER).unwrap();
//!         assert_eq!(frame, b"frame");
//!         end.close(Deadline::NEVER).unwrap();
//!     })
//! });
//! threads.into_iter().for_each(|thread| thread.join().unwrap());
//! ```

// What callers name:                             key options error
// The bytes between two ends, without sockets:   frame reader inlet greeting
// The thread that owns the sockets of one rank:  wire link dial state engine
// What the caller holds, and how it is made:     transport

mod dial;
mod engine;
mod error;
mod frame;
mod greeting;
mod inlet;
mod key;
mod link;
mod options;
mod reader;
mod state;
mod transport;
mod wire;

pub use self::error::TcpError;
#[doc(hidden)]
pub use self::greeting::greet_stranger;
pub use self::key::Key;
pub use self::options::{Meeting, Security, TcpLimits, TcpOptions, Timing};
pub use self::transport::{Bound, Joining, Met, TcpTransport, TcpWaker};
pub use crate::terms::{Difference, Terms};
