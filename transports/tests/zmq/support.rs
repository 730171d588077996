//! Worlds of ranks in this process, over TCP on the loopback interface.

use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use gradwire::{LayoutRef, Spec};
use gradwire_transports::inbox::InboxLimits;
use gradwire_transports::zmq::{
    Bound, Entry, Event, KeyPair, Log, PublicKey, Roster, Security, Terms, Topology, ZmqLimits, ZmqOptions,
    ZmqTransport,
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

/// Chunks and queues that are small against the messages of the suite, so that all of them work.
pub(crate) fn limits() -> ZmqLimits {
    let queue = InboxLimits { messages: 4096, bytes: 64 << 20 };
    ZmqLimits { chunk_bytes: 64 << 10, window: 8, inbox: queue, outbox: queue, max_message_bytes: 8 << 20 }
}

/// Events, as they were told.
#[derive(Clone, Default)]
pub(crate) struct Heard(Arc<Mutex<Vec<Event>>>);

impl Heard {
    pub(crate) fn log(&self) -> Log {
        let events = Arc::clone(&self.0);
        Log::new(move |event| events.lock().unwrap().push(event.clone()))
    }

    pub(crate) fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.0.lock().unwrap()
    }

    /// Waits for an event.
    pub(crate) fn wait(&self, what: impl Fn(&Event) -> bool) -> Event {
        let start = Instant::now();
        loop {
            if let Some(event) = self.events().iter().find(|event| what(event)) {
                return event.clone();
            }
            assert!(start.elapsed() < LONG, "not heard: {:?}", self.events());
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for an event whose text contains `part`.
    pub(crate) fn wait_for(&self, part: &str) -> Event {
        self.wait(|event| event.to_string().contains(part))
    }
}

/// Everything that the ranks of a world have in common.
pub(crate) struct World {
    pub(crate) ranks: Vec<Rank>,
    pub(crate) pairs: Vec<KeyPair>,
    pub(crate) topology: Topology,
    pub(crate) is_secure: bool,
}

impl World {
    pub(crate) fn new(world: usize) -> Self {
        let ranks = (0..world as u32).map(Rank).collect();
        let pairs = (0..world).map(|_| KeyPair::generate().unwrap()).collect();
        Self { ranks, pairs, topology: Topology::AllToAll, is_secure: true }
    }

    pub(crate) fn star(world: usize) -> Self {
        Self { topology: Topology::Star { server: Rank(0) }, ..Self::new(world) }
    }

    pub(crate) fn roster(&self) -> Roster {
        self.ranks.iter().zip(&self.pairs).fold(Roster::new(), |roster, (&rank, pair)| {
            let endpoint = Some("tcp://127.0.0.1:*".to_owned());
            roster.with(rank, Entry { key: self.is_secure.then(|| pair.public()), endpoint })
        })
    }

    pub(crate) fn key(&self, at: usize) -> PublicKey {
        self.pairs[at].public()
    }

    /// What the rank at that place is told.
    pub(crate) fn options(&self, at: usize) -> ZmqOptions {
        let security = match self.is_secure {
            true => Security::Curve(self.pairs[at].clone()),
            false => Security::Plain { beyond_loopback: false },
        };
        let options = ZmqOptions::new(self.ranks[at], self.roster(), self.topology, security, terms());
        ZmqOptions { limits: limits(), ..options }
    }

    pub(crate) fn bind(&self) -> Vec<Bound> {
        (0..self.ranks.len()).map(|at| Bound::new(self.options(at)).unwrap()).collect()
    }

    /// All ranks, joined.
    pub(crate) fn join(&self) -> Vec<ZmqTransport> {
        join(self.bind())
    }
}

/// Tells everyone where the others listen.
pub(crate) fn introduce(bound: &mut [Bound], ranks: &[Rank]) {
    let endpoints: Vec<_> = bound.iter().map(|end| end.endpoint().map(str::to_owned)).collect();
    for end in bound {
        for (rank, endpoint) in ranks.iter().zip(&endpoints) {
            endpoint.iter().for_each(|endpoint| end.locate(*rank, endpoint));
        }
    }
}

/// Joins ends whose ranks are 0, 1, …, or those of the world they were made for, in order.
pub(crate) fn join_ranks(mut bound: Vec<Bound>, ranks: &[Rank]) -> Vec<ZmqTransport> {
    introduce(&mut bound, ranks);
    let joining: Vec<_> =
        bound.into_iter().map(|end| thread::spawn(move || end.join(long()).unwrap())).collect();
    joining.into_iter().map(|thread| thread.join().unwrap()).collect()
}

pub(crate) fn join(bound: Vec<Bound>) -> Vec<ZmqTransport> {
    let ranks: Vec<Rank> = (0..bound.len() as u32).map(Rank).collect();
    join_ranks(bound, &ranks)
}

pub(crate) fn boxed(transports: Vec<ZmqTransport>) -> Vec<Box<dyn Transport>> {
    transports.into_iter().map(|transport| Box::new(transport) as _).collect()
}
