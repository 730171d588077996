//! Makes a fast transport as slow as a given link.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::collective::Reduce;
use crate::counters::Counters;
use crate::error::TransportError;
use crate::rank::{Membership, Rank, RankSet};
use crate::tag::{Deadline, Tag, Wanted};
use crate::transport::Transport;

/// The speed of every rank's link, in each direction at the same time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpeed {
    /// Bits per second, up and down separately. Payload and envelope count.
    pub bits_per_second: f64,
    /// From the last bit's departure to its arrival.
    pub one_way_latency: Duration,
    /// How many bytes a link passes at once after it was idle.
    pub burst_bytes: u64,
}

impl LinkSpeed {
    /// A link without bursts.
    pub const fn new(bits_per_second: f64, one_way_latency: Duration) -> Self {
        Self { bits_per_second, one_way_latency, burst_bytes: 0 }
    }

    fn time_of(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 * 8.0 / self.bits_per_second)
    }
}

/// A token bucket, represented by the moment at which all its bytes have passed.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    free_at: Instant,
}

impl Bucket {
    /// Adds `bytes` at the moment `at`, or when the bucket is free. Returns the moment at which the last of
    /// them has passed.
    fn pass(&mut self, at: Instant, bytes: u64, speed: &LinkSpeed) -> Instant {
        let idle_since = at.checked_sub(speed.time_of(speed.burst_bytes)).unwrap_or(at);
        self.free_at = self.free_at.max(idle_since) + speed.time_of(bytes);
        self.free_at.max(at)
    }
}

/// What all ranks of one simulated network share.
#[derive(Debug)]
struct Network {
    speed: LinkSpeed,
    /// Up and down, for each rank.
    links: BTreeMap<Rank, (Bucket, Bucket)>,
    /// When a message of (receiver, sender, tag) arrives.
    due: BTreeMap<(Rank, Tag, Rank), Instant>,
}

impl Network {
    fn new(speed: LinkSpeed) -> Self {
        Self { speed, links: BTreeMap::new(), due: BTreeMap::new() }
    }

    /// Both links carry the message at the same time; the slower one decides when its last bit is through. A
    /// downlink is charged in the order of sending, even if an uplink holds a message back, so it never idles
    /// for one.
    fn depart(&mut self, from: Rank, to: Rank, bytes: u64, now: Instant) -> Instant {
        let speed = self.speed;
        let up = self.link(from, now).0.pass(now, bytes, &speed);
        let down = self.link(to, now).1.pass(now, bytes, &speed);
        up.max(down) + speed.one_way_latency
    }

    fn link(&mut self, rank: Rank, now: Instant) -> &mut (Bucket, Bucket) {
        let idle =
            Bucket { free_at: now.checked_sub(self.speed.time_of(self.speed.burst_bytes)).unwrap_or(now) };
        self.links.entry(rank).or_insert((idle, idle))
    }
}

/// Carries each message as late as a link of the given speed would.
///
/// `send` returns at once, as from a socket with a large buffer. `recv` sees the message when its last bit
/// has passed the sender's uplink and the receiver's downlink, in the order of sending, and the latency is
/// over. So messages travel while ranks compute, and a server with many senders is as slow as its one link.
#[derive(Debug)]
pub struct Throttle<T> {
    inner: T,
    network: Arc<Mutex<Network>>,
    /// Messages that the inner transport has delivered, but that are still in flight on the simulated link.
    early: BTreeMap<(Tag, Rank), Vec<u8>>,
}

impl<T: Transport> Throttle<T> {
    /// Joins the ranks of one process by a network in which every rank has a link of `speed`.
    ///
    /// # Panics
    /// If the rate is not positive and finite.
    pub fn network(transports: impl IntoIterator<Item = T>, speed: LinkSpeed) -> Vec<Self> {
        let rate = speed.bits_per_second;
        assert!(rate > 0.0 && rate.is_finite(), "a link has a positive rate");
        let network = Arc::new(Mutex::new(Network::new(speed)));
        let join = |inner| Self { inner, network: Arc::clone(&network), early: BTreeMap::new() };
        transports.into_iter().map(join).collect()
    }

    /// The transport inside.
    pub fn inner(&self) -> &T {
        &self.inner
    }

    /// The transport inside, at full speed.
    pub fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    fn shared(&self) -> MutexGuard<'_, Network> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which of the messages that the inner transport has delivered arrives first here, and when.
    fn next_due(&self, wanted: &[Wanted]) -> Option<(Instant, (Rank, Tag))> {
        let (network, me, now) = (self.shared(), self.inner.rank(), Instant::now());
        let here = wanted.iter().flat_map(|wanted| self.here(wanted));
        let due = |&(from, tag): &(Rank, Tag)| network.due.get(&(me, tag, from)).copied().unwrap_or(now);
        here.map(|message| (due(&message), message)).min_by_key(|(due, _)| *due)
    }

    /// The messages among these that the inner transport has delivered.
    fn here(&self, wanted: &Wanted) -> impl Iterator<Item = (Rank, Tag)> {
        let near = self.early.range((wanted.tag, wanted.from)..=(wanted.last(), wanted.from));
        near.map(|((tag, from), _)| (*from, *tag)).filter(|(from, _)| *from == wanted.from)
    }
}

impl<T: Transport> Transport for Throttle<T> {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn membership(&self) -> Membership {
        self.inner.membership()
    }

    fn is_fail_stop(&self) -> bool {
        self.inner.is_fail_stop()
    }

    fn max_message_bytes(&self) -> usize {
        self.inner.max_message_bytes()
    }

    fn envelope_bytes(&self, payload_bytes: usize) -> usize {
        self.inner.envelope_bytes(payload_bytes)
    }

    fn send(&mut self, to: Rank, tag: Tag, payload: &[u8], deadline: Deadline) -> Result<(), TransportError> {
        let from = self.inner.rank();
        let bytes = payload.len() + self.inner.envelope_bytes(payload.len());
        {
            let mut network = self.shared();
            let at = network.depart(from, to, bytes as u64, Instant::now());
            network.due.entry((to, tag, from)).or_insert(at);
        }
        self.inner.send(to, tag, payload, deadline)
    }

    fn recv_any(
        &mut self,
        wanted: &[Wanted],
        into: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<(Rank, Tag), TransportError> {
        loop {
            let next = self.next_due(wanted);
            let now = Instant::now();
            if let Some((_, found)) = next.filter(|(due, _)| *due <= now) {
                let (from, tag) = found;
                self.shared().due.remove(&(self.inner.rank(), tag, from));
                *into = self.early.remove(&(tag, from)).unwrap_or_default();
                return Ok(found);
            }
            let is_here = |wanted: &&Wanted| wanted.chunks == 1 && self.here(wanted).next().is_some();
            let missing: Vec<_> = wanted.iter().filter(|wanted| !is_here(wanted)).copied().collect();
            let until = next.map_or(deadline, |(due, _)| deadline.earlier(Deadline::at(due)));
            let mut message = Vec::new();
            let received = match (missing.as_slice(), next) {
                ([], _) => None,
                (missing, next) => match self.inner.recv_any(missing, &mut message, until) {
                    Ok(found) => Some(found),
                    Err(TransportError::Timeout { .. }) if next.is_some() => None,
                    // The last message of a rank that is gone may still be on its way.
                    Err(TransportError::Disconnected { .. }) if next.is_some() => None,
                    Err(error) => return Err(error),
                },
            };
            if let Some((from, tag)) = received {
                self.early.insert((tag, from), message);
                continue;
            }
            thread::sleep(until.remaining().unwrap_or_default());
            if deadline.has_passed() && next.is_none_or(|(due, _)| due > Instant::now()) {
                let Wanted { from, tag, .. } = wanted[0];
                return Err(TransportError::Timeout { from, tag });
            }
        }
    }

    fn try_progress(&mut self) -> Result<(), TransportError> {
        self.inner.try_progress()
    }

    fn retire(&mut self, before: Tag) {
        let me = self.inner.rank();
        self.shared().due.retain(|(to, tag, _), _| *to != me || *tag >= before);
        self.early.retain(|(tag, _), _| *tag >= before);
        self.inner.retire(before);
    }

    fn close(&mut self, deadline: Deadline) -> Result<(), TransportError> {
        self.early.clear();
        self.inner.close(deadline)
    }

    /// The counters of the transport inside; a message still in flight here counts as received once it was
    /// requested.
    fn counters(&self) -> Counters {
        self.inner.counters()
    }

    fn native_all_reduce(
        &mut self,
        tag: Tag,
        data: Reduce<'_>,
        deadline: Deadline,
    ) -> Result<RankSet, TransportError> {
        self.inner.native_all_reduce(tag, data, deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Link;

    const MBIT_80: f64 = 80e6;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn network(speed: LinkSpeed) -> (Network, Instant) {
        (Network::new(speed), Instant::now())
    }

    #[test]
    fn a_message_takes_latency_and_length_over_rate() {
        let (mut network, now) = network(LinkSpeed::new(8e6, ms(30)));
        assert_eq!(network.depart(Rank(0), Rank(1), 400_000, now), now + ms(430));
        // The way back is free. The way there is busy until the last bit has left, not until it has arrived.
        assert_eq!(network.depart(Rank(1), Rank(0), 100_000, now), now + ms(130));
        assert_eq!(network.depart(Rank(0), Rank(1), 100_000, now + ms(410)), now + ms(540));
        assert_eq!(network.depart(Rank(0), Rank(1), 1, now + ms(415)), now + ms(540) + ms(1) / 1000);
    }

    #[test]
    fn a_server_is_as_slow_as_its_one_link() {
        let (mut network, now) = network(LinkSpeed::new(MBIT_80, ms(1)));
        let due = [1, 2, 3].map(|rank| network.depart(Rank(rank), Rank(0), 500_000, now));
        assert_eq!(due, [51, 101, 151].map(|after| now + ms(after)));
    }

    #[test]
    fn a_ring_takes_what_the_cost_model_says() {
        let (mut network, start) = network(LinkSpeed::new(MBIT_80, ms(5)));
        let mut now = start;
        for _hop in 0..6 {
            let due = [0, 1, 2, 3].map(|rank| network.depart(Rank(rank), Rank((rank + 1) % 4), 500_000, now));
            assert_eq!(due, [due[0]; 4]);
            now = due[0];
        }
        let ideal = Link::from_gbps(0.08, 0.005).ring_all_reduce_s(4, 2e6);
        assert_eq!(now - start, Duration::from_secs_f64(ideal));
    }

    #[test]
    fn frames_that_all_send_at_once_pay_the_latency_once() {
        let (mut network, now) = network(LinkSpeed::new(MBIT_80, ms(5)));
        let pairs = (0..4).flat_map(|from| (1..4).map(move |hop| (Rank(from), Rank((from + hop) % 4))));
        let last = pairs.map(|(from, to)| network.depart(from, to, 500_000, now)).max();
        let link = Link::from_gbps(0.08, 0.005);
        let ideal = link.all_gather_s(4, 500e3);
        assert_eq!(last, Some(now + Duration::from_secs_f64(ideal)));
    }

    #[test]
    fn an_idle_link_lets_a_burst_through_at_once_and_once_more_when_it_has_rested() {
        let (mut network, now) = network(LinkSpeed { burst_bytes: 500_000, ..LinkSpeed::new(8e6, ms(0)) });
        assert_eq!(network.depart(Rank(0), Rank(1), 400_000, now), now);
        assert_eq!(network.depart(Rank(0), Rank(1), 350_000, now), now + ms(250));
        assert_eq!(network.depart(Rank(0), Rank(1), 500_000, now + ms(750)), now + ms(750));
    }
}
