//! Injects faults into messages, chosen by a seed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::collective::Reduce;
use crate::counters::Counters;
use crate::error::TransportError;
use crate::rank::{Membership, Rank, RankSet};
use crate::tag::{Deadline, Tag, Wanted};
use crate::transport::Transport;

/// How often a rank that waits for a peer behind a cut checks whether the cut was healed.
const HEAL_POLL: Duration = Duration::from_millis(1);

/// Probabilities, from 0 to 1, that a message suffers a fault. Each is drawn independently; a dropped message
/// suffers nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultPlan {
    /// Seed that decides which message suffers which fault.
    pub seed: u64,
    /// The message is not sent.
    pub drop: f64,
    /// It is sent twice.
    pub duplicate: f64,
    /// It is sent after the next message to the same peer, or when its sender next receives or asks for
    /// progress.
    pub reorder: f64,
    /// It is cut to a random length that is smaller.
    pub truncate: f64,
    /// One random bit of it is flipped.
    pub flip: f64,
    /// Only [packets](Transport::send_packet) suffer faults; all other messages arrive.
    pub only_packets: bool,
}

/// The faults so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultTally {
    /// Not sent, by chance.
    pub dropped: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Sent later.
    pub reordered: u64,
    /// Shortened.
    pub truncated: u64,
    /// With one bit flipped.
    pub flipped: u64,
    /// Not sent, because the peer was cut off.
    pub swallowed: u64,
}

/// Cuts peers off and heals them while the transport is in use in another thread.
#[derive(Clone, Debug, Default)]
pub struct Partition(Arc<Mutex<BTreeSet<Rank>>>);

impl Partition {
    /// From now on no message from this rank reaches `peer`, and this rank sees no message from `peer`. After
    /// the cut heals, it sees the messages that `peer` sent meanwhile, unless `peer` cut this rank off too.
    pub fn cut(&self, peer: Rank) {
        self.peers().insert(peer);
    }

    /// Ends the cut. Swallowed messages stay lost.
    pub fn heal(&self, peer: Rank) {
        self.peers().remove(&peer);
    }

    /// Whether `peer` is cut off now.
    pub fn is_cut(&self, peer: Rank) -> bool {
        self.peers().contains(&peer)
    }

    fn peers(&self) -> std::sync::MutexGuard<'_, BTreeSet<Rank>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Message {
    to: Rank,
    tag: Tag,
    payload: Vec<u8>,
    is_packet: bool,
}

/// Drops, repeats, delays and damages messages that are sent through it.
///
/// # Determinism
/// The fate of the j-th message that a rank sends to a peer depends only on the seed, the two ranks and j.
/// The fate of a packet depends only on the seed, the two ranks and its tag, so a resumed run loses the same
/// packets.
#[derive(Debug)]
pub struct FaultInjector<T> {
    inner: T,
    plan: FaultPlan,
    partition: Partition,
    tally: FaultTally,
    /// Messages sent so far, for each peer.
    sent: Vec<(Rank, u64)>,
    held: Vec<Message>,
}

impl<T: Transport> FaultInjector<T> {
    /// Injects faults by `plan`.
    ///
    /// # Panics
    /// If a probability is not between 0 and 1.
    pub fn new(inner: T, plan: FaultPlan) -> Self {
        let all = [plan.drop, plan.duplicate, plan.reorder, plan.truncate, plan.flip];
        assert!(all.iter().all(|p| (0.0..=1.0).contains(p)), "a probability lies between 0 and 1");
        let (partition, tally) = Default::default();
        Self { inner, plan, partition, tally, sent: Vec::new(), held: Vec::new() }
    }

    /// A handle that cuts off this rank's peers and heals them.
    pub fn partition(&self) -> Partition {
        self.partition.clone()
    }

    /// The faults so far.
    pub fn tally(&self) -> FaultTally {
        self.tally
    }

    /// The transport inside.
    pub fn inner(&self) -> &T {
        &self.inner
    }

    /// The transport inside, without faults.
    pub fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    /// The draws for a packet with `tag`, or for the next message, to `to`.
    fn draws(&mut self, to: Rank, packet: Option<Tag>) -> Draws {
        let pair = u64::from(self.inner.rank().0) << 32 | u64::from(to.0);
        let link = mix(self.plan.seed ^ mix(pair));
        if let Some(Tag { epoch, step, unit, chunk }) = packet {
            let place = mix(u64::from(epoch) << 32 | u64::from(unit)) ^ u64::from(chunk);
            return Draws(mix(link ^ mix(mix(step) ^ place)));
        }
        let at = self.sent.iter().position(|(rank, _)| *rank == to).unwrap_or_else(|| {
            self.sent.push((to, 0));
            self.sent.len() - 1
        });
        let count = self.sent[at].1;
        self.sent[at].1 += 1;
        Draws(mix(link ^ count))
    }

    /// A damaged copy of the payload, if it is to be damaged.
    fn damage(&mut self, payload: &[u8], draws: &mut Draws) -> Option<Vec<u8>> {
        let (truncate, flip) = (draws.happens(self.plan.truncate), draws.happens(self.plan.flip));
        if payload.is_empty() || !(truncate || flip) {
            return None;
        }
        let mut damaged = payload.to_vec();
        if truncate {
            damaged.truncate(draws.below(payload.len()));
            self.tally.truncated += 1;
        }
        if flip && !damaged.is_empty() {
            let at = draws.below(damaged.len());
            damaged[at] ^= 1 << draws.below(8);
            self.tally.flipped += 1;
        }
        Some(damaged)
    }

    /// Sends a message to the transport inside, faults and all.
    fn inject(
        &mut self,
        to: Rank,
        tag: Tag,
        payload: &[u8],
        (deadline, is_packet): (Deadline, bool),
    ) -> Result<(), TransportError> {
        let mut draws = self.draws(to, is_packet.then_some(tag));
        if self.partition.is_cut(to) {
            self.tally.swallowed += 1;
            return Ok(());
        }
        if draws.happens(self.plan.drop) {
            self.tally.dropped += 1;
            return Ok(());
        }
        let (duplicate, reorder) = (draws.happens(self.plan.duplicate), draws.happens(self.plan.reorder));
        let damaged = self.damage(payload, &mut draws);
        let payload = damaged.as_deref().unwrap_or(payload);
        if reorder {
            self.tally.reordered += 1;
            self.held.push(Message { to, tag, payload: payload.to_vec(), is_packet });
            return Ok(());
        }
        pass(&mut self.inner, to, tag, payload, (deadline, is_packet))?;
        if duplicate {
            self.tally.duplicated += 1;
            // The message was sent; the fate of its duplicate is not an error for the caller.
            let _ = pass(&mut self.inner, to, tag, payload, (Deadline::now(), is_packet));
        }
        self.release(Some(to));
        Ok(())
    }

    /// Sends the messages held back for `to`, or for all peers. Their `send` calls have already returned, so
    /// errors are not reported: a message without room is tried again later, and a message without a receiver
    /// is lost.
    fn release(&mut self, to: Option<Rank>) {
        let mut at = 0;
        while let Some(held) = self.held.get(at) {
            let sent = to.is_none_or(|to| held.to == to).then(|| {
                pass(&mut self.inner, held.to, held.tag, &held.payload, (Deadline::now(), held.is_packet))
            });
            if matches!(sent, None | Some(Err(TransportError::NoRoom { .. }))) {
                at += 1;
            } else {
                self.held.remove(at);
            }
        }
    }
}

impl<T: Transport> Transport for FaultInjector<T> {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn membership(&self) -> Membership {
        self.inner.membership()
    }

    /// If only packets suffer faults, as the inner transport. A [`Partition`] then breaks that promise on
    /// purpose, for tests.
    fn is_fail_stop(&self) -> bool {
        self.plan.only_packets && self.inner.is_fail_stop()
    }

    fn max_message_bytes(&self) -> usize {
        self.inner.max_message_bytes()
    }

    fn envelope_bytes(&self, payload_bytes: usize) -> usize {
        self.inner.envelope_bytes(payload_bytes)
    }

    fn send(&mut self, to: Rank, tag: Tag, payload: &[u8], deadline: Deadline) -> Result<(), TransportError> {
        if !self.plan.only_packets {
            return self.inject(to, tag, payload, (deadline, false));
        }
        if self.partition.is_cut(to) {
            self.tally.swallowed += 1;
            return Ok(());
        }
        self.inner.send(to, tag, payload, deadline)?;
        self.release(Some(to));
        Ok(())
    }

    fn send_packet(
        &mut self,
        to: Rank,
        tag: Tag,
        payload: &[u8],
        until: Deadline,
    ) -> Result<(), TransportError> {
        self.inject(to, tag, payload, (until, true))
    }

    fn recv_any(
        &mut self,
        wanted: &[Wanted],
        into: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<(Rank, Tag), TransportError> {
        self.release(None);
        loop {
            let is_cut = |wanted: &&Wanted| self.partition.is_cut(wanted.from);
            let Some(&Wanted { from, tag, .. }) = wanted.iter().find(is_cut) else {
                return self.inner.recv_any(wanted, into, deadline);
            };
            // Messages of the others arrive meanwhile.
            let open: Vec<_> = wanted.iter().filter(|wanted| !is_cut(wanted)).copied().collect();
            let until = deadline.earlier(Deadline::after(HEAL_POLL));
            if open.is_empty() {
                thread::sleep(until.remaining().unwrap_or(HEAL_POLL));
            } else {
                match self.inner.recv_any(&open, into, until) {
                    Err(TransportError::Timeout { .. }) => {}
                    received => return received,
                }
            }
            if deadline.has_passed() {
                return Err(TransportError::Timeout { from, tag });
            }
        }
    }

    fn try_progress(&mut self) -> Result<(), TransportError> {
        self.release(None);
        self.inner.try_progress()
    }

    fn retire(&mut self, before: Tag) {
        self.inner.retire(before);
    }

    fn close(&mut self, deadline: Deadline) -> Result<(), TransportError> {
        self.release(None);
        self.inner.close(deadline)
    }

    /// The counters of the transport inside: messages that really left and that the caller received.
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

/// Sends a message or a packet as such.
fn pass(
    transport: &mut impl Transport,
    to: Rank,
    tag: Tag,
    payload: &[u8],
    (deadline, is_packet): (Deadline, bool),
) -> Result<(), TransportError> {
    if is_packet {
        transport.send_packet(to, tag, payload, deadline)
    } else {
        transport.send(to, tag, payload, deadline)
    }
}

/// The random numbers of one message.
#[derive(Clone, Copy, Debug)]
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    fn happens(&mut self, probability: f64) -> bool {
        // 53 bits, as many as an f64 in [0, 1) holds exactly.
        ((self.next() >> 11) as f64) < probability * (1_u64 << 53) as f64
    }

    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
