//! Worlds of ranks in this process, on the loopback interface.

use std::thread;
use std::time::Duration;

use gradwire::{LayoutRef, Spec};
use gradwire_transports::inbox::InboxLimits;
use gradwire_transports::tcp::{
    Bound, Key, Meeting, Security, TcpError, TcpLimits, TcpOptions, TcpTransport, Terms, Timing,
};
use gradwire_transports::{Deadline, Rank, Transport};

/// Long enough on any machine; nothing that works waits for it.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn long() -> Deadline {
    Deadline::after(LONG)
}

pub(crate) fn terms() -> Terms {
    Terms::new(&LayoutRef::flat(650), &Spec::parse("topk:density=0.01").unwrap())
}

pub(crate) fn key() -> Security {
    Security::Key(Key::new([42; 32]))
}

/// Queues that are small against the messages of the suite, so that flow control works.
pub(crate) fn limits() -> TcpLimits {
    let queue = InboxLimits { messages: 64, bytes: 1 << 20 };
    TcpLimits { inbox: queue, outbox: queue, max_message_bytes: 8 << 20 }
}

/// Everything that the ranks of a world have in common.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) world: usize,
    pub(crate) host: &'static str,
    pub(crate) security: Security,
    pub(crate) limits: TcpLimits,
    pub(crate) timing: Timing,
}

impl World {
    pub(crate) fn new(world: usize) -> Self {
        let (limits, timing) = (limits(), Timing::default());
        Self { world, host: "127.0.0.1", security: Security::Loopback, limits, timing }
    }

    pub(crate) fn sealed(world: usize) -> Self {
        Self { security: key(), ..Self::new(world) }
    }

    pub(crate) fn options(&self, rank: usize) -> TcpOptions {
        let options = TcpOptions::new(Rank(rank as u32), terms(), self.security.clone());
        TcpOptions { limits: self.limits, timing: self.timing, ..options }
    }

    pub(crate) fn bind(&self) -> Vec<Bound> {
        let address = format!("{}:0", self.host);
        (0..self.world).map(|rank| Bound::new(self.options(rank), &address).unwrap()).collect()
    }

    /// All ranks, joined.
    pub(crate) fn join(&self) -> Vec<TcpTransport> {
        let bound = self.bind();
        let meeting = list(&bound);
        join(bound, &meeting, long()).into_iter().map(Result::unwrap).collect()
    }
}

pub(crate) fn list(bound: &[Bound]) -> Meeting {
    Meeting::Hosts(bound.iter().map(|end| end.address().to_string()).collect())
}

pub(crate) fn join(
    bound: Vec<Bound>,
    meeting: &Meeting,
    by: Deadline,
) -> Vec<Result<TcpTransport, TcpError>> {
    thread::scope(|scope| {
        let joining: Vec<_> =
            bound.into_iter().map(|end| scope.spawn(move || end.join(meeting, by))).collect();
        joining.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub(crate) fn boxed(transports: Vec<TcpTransport>) -> Vec<Box<dyn Transport>> {
    transports.into_iter().map(|transport| Box::new(transport) as _).collect()
}
