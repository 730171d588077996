//! Moves gradient frames between the ranks that train a model together.
//!
//! Read in this order:
//! 1. [`Rank`], [`Membership`] and [`Tag`]: the ranks that take part, and the identity of a message.
//! 2. [`Transport`]: the contract of everything that moves bytes, blocking with deadlines.
//! 3. [`collective`]: barrier, gather, broadcast and the ring all-reduce, each with one written order of its
//!    sums.
//! 4. [`exchange`]: how the frames of a step become one mean: all-gather, ring all-reduce, parameter server.
//! 5. [`gossip`]: models that move towards those of their neighbours, without a mean.
//! 6. [`local`]: threads of one process as ranks, with an [`inbox`] each.
//! 7. `tcp`, `zmq` and `mpi`, each behind a feature: ranks on several machines, or as processes.
//! 8. [`layer`]: wrappers around any transport that meter it, slow it down or break it, by seed.
//! 9. [`cost`]: formulas for the time of all this on a link of a given speed.
//!
//! | feature | adds |
//! | --- | --- |
//! | `conformance` | the module `conformance`: one suite that checks every clause of [`Transport`]'s contract |
//! | `tcp`, on by default | the module `tcp`: ranks on machines of their own, over plain sockets, encrypted; needs no library |
//! | `mpi` | the module `mpi`: processes that `mpirun` starts as ranks; needs an MPI library and libclang to build |
//! | `zmq` | the module `zmq`: ranks on machines of their own, over ZeroMQ with CURVE |
//!
//! # Examples
//! Four threads sum a vector; every one ends with the same bits.
//! ```
//! use gradwire_transports::collective::{self, Buffers, Reduce, Wire};
//! use gradwire_transports::{Deadline, Tag, Transport, local};
//!
//! let threads: Vec<_> = local::world(4)
//!     .into_iter()
//!     .map(|mut transport| {
//!         std::thread::spawn(move || {
//!             let mut gradient = [transport.rank().0 as f32, 0.5];
//!             let sum = Reduce::SumF32(&mut gradient, Wire::F32);
//!             let tag = Tag::new(0, 1);
//!             collective::all_reduce(&mut transport, tag, sum, &mut Buffers::new(), Deadline::NEVER).unwrap();
//!             gradient
//!         })
//!     })
//!     .collect();
//! for thread in threads {
//!     assert_eq!(thread.join().unwrap(), [6.0, 2.0]);
//! }
//! ```
// Only `mpi/library.rs` allows it.
#![deny(unsafe_code)]
#![cfg_attr(not(feature = "mpi"), forbid(unsafe_code))]
#![warn(missing_docs)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

pub mod collective;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod cost;
pub mod exchange;
pub mod gossip;
pub mod inbox;
pub mod layer;
pub mod local;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(feature = "tcp")]
pub mod tcp;
#[cfg(feature = "zmq")]
pub mod zmq;

mod clock;
mod counters;
mod derived;
mod driver;
mod error;
mod forward;
#[cfg(any(feature = "tcp", feature = "zmq"))]
mod growing;
mod mailbox;
#[cfg(any(feature = "tcp", feature = "zmq"))]
mod private_file;
mod rank;
mod spares;
mod tag;
#[cfg(any(feature = "tcp", feature = "zmq"))]
mod terms;
mod transport;

pub use clock::{nanos, now};
pub use counters::{Counters, Traffic};
pub use driver::{FIRST_RETRY, post, wait};
pub use error::TransportError;
#[cfg(any(feature = "tcp", feature = "zmq"))]
pub use growing::Growing;
pub use rank::{Membership, Rank, RankSet};
pub use tag::{Deadline, Tag, Wanted};
#[cfg(any(feature = "tcp", feature = "zmq"))]
pub use terms::{Difference, Terms};
pub use transport::Transport;
