//! Training over ZeroMQ: a server, which is rank 0 and trains too, and workers that come and go.
//!
//! Both ends get the same settings of the run, which they compare when they meet: whatever differs is named.
//! The server decides which workers take part in which step, see [`gradwire_transports::zmq::roll`].

mod args;
mod begin;
mod delayed;
mod job;
mod join;
mod keep;
mod keys;
mod list;
mod options;
mod serve;
mod trace;
mod waiting;

pub use self::args::KeyArgs;
pub use self::join::JoinArgs;
pub(crate) use self::join::join;
pub use self::keys::KeygenArgs;
pub(crate) use self::keys::keygen;
pub use self::serve::ServeArgs;
pub(crate) use self::serve::serve;
pub use crate::command::RemoteError;
