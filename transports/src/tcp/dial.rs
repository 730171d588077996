//! Attempts to reach one peer, again and again until it is there.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::state::Shared;

/// The pause after the first round of attempts. Each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Where a peer is looked for.
#[derive(Debug)]
pub(super) struct Dial {
    /// As `host:port`; `None` until it is known.
    pub(super) address: Option<String>,
    /// The connection under way.
    pub(super) token: Option<usize>,
    found: VecDeque<SocketAddr>,
    is_looking: bool,
    due: Instant,
    pause: Duration,
}

impl Dial {
    pub(super) fn new(address: Option<String>, now: Instant) -> Self {
        let found = VecDeque::new();
        Self { address, token: None, found, is_looking: false, due: now, pause: FIRST_PAUSE }
    }

    /// The address to try now. A name is looked up first, by a thread of its own, since that may take long.
    pub(super) fn next(&mut self, rank: usize, now: Instant, shared: &Arc<Shared>) -> Option<SocketAddr> {
        if self.token.is_some() || self.is_looking || now < self.due {
            return None;
        }
        let address = self.address.as_ref()?;
        if self.found.is_empty() {
            match address.parse() {
                Ok(address) => self.found.push_back(address),
                Err(_) => self.is_looking = look_up(address.clone(), rank, shared),
            }
        }
        self.found.pop_front()
    }

    /// The name was looked up.
    pub(super) fn found(&mut self, addresses: Vec<SocketAddr>, now: Instant) {
        self.is_looking = false;
        self.found.extend(addresses);
        if self.found.is_empty() {
            self.failed(now);
        }
    }

    /// The attempt failed. After the last of several addresses comes a pause.
    pub(super) fn failed(&mut self, now: Instant) {
        self.token = None;
        if self.found.is_empty() {
            self.due = now + self.pause;
            self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        }
    }
}

/// Whether a thread looks the name up.
fn look_up(address: String, rank: usize, shared: &Arc<Shared>) -> bool {
    let shared = Arc::clone(shared);
    let look = move || {
        let found = resolve(&address);
        let mut state = shared.lock();
        state.resolved.push((rank, found));
        shared.wake(&mut state);
    };
    thread::Builder::new().name("tcp-names".to_owned()).spawn(look).is_ok()
}

/// All addresses behind `host:port`.
pub(super) fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    let found: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    if found.is_empty() { Err(io::Error::other("the name has no address")) } else { Ok(found) }
}
