//! How fast the links between the workers of a job are.

use std::time::{Duration, Instant};

use gradwire_transports::collective::{Fold, Scalar};
use gradwire_transports::cost::Link;
use gradwire_transports::{Deadline, Rank, Tag, Transport, TransportError};

use crate::codec_cli::median;

/// Bytes of a message that takes the latency alone.
const SHORT: usize = 64;

/// Bytes of the first longer message; each next one is twice as long.
const FIRST: usize = 1 << 16;

/// The most bytes of a message, and how long it should travel, so that the measurement is longer than its
/// disturbances.
const LONGEST: usize = 1 << 24;
const LONG_ENOUGH: Duration = Duration::from_millis(100);

/// How often each length is sent.
const TURNS: u32 = 9;

/// Measures the links of a world: every rank sends to the next one around a ring while it receives from the
/// one before, as an exchange does, so that links of both directions are busy at all ranks.
///
/// The latency is the time of a message of 64 bytes. The bandwidth follows from the bytes that the longest
/// message has more than one of half its length, and from the time that they take. Each time is a median over
/// turns; the time of a turn is that of its slowest rank. All ranks get the same result. `None` for one rank,
/// which has no link.
///
/// # Errors
/// Those of [`Transport::send`] and [`Transport::recv`].
pub(crate) fn measure(transport: &mut impl Transport) -> Result<Option<Link>, TransportError> {
    let mut ring = Ring::new(transport);
    if ring.next == ring.rank {
        return Ok(None);
    }
    let latency_s = ring.seconds(SHORT)?;
    let (mut len, mut before, mut seconds) = (FIRST, latency_s, ring.seconds(FIRST)?);
    let mut extra = FIRST - SHORT;
    while seconds < LONG_ENOUGH.as_secs_f64() && len < LONGEST {
        (extra, len) = (len, 2 * len);
        (before, seconds) = (seconds, ring.seconds(len)?);
    }
    // If the clock stood still, the bandwidth would be infinite.
    let bytes_per_s = extra as f64 / (seconds - before).max(1e-9);
    Ok(Some(Link { latency_s, bytes_per_s }))
}

/// A rank between its neighbours.
struct Ring<'t, T> {
    transport: &'t mut T,
    rank: Rank,
    next: Rank,
    previous: Rank,
    tag: Tag,
    inbox: Vec<u8>,
}

impl<'t, T: Transport> Ring<'t, T> {
    fn new(transport: &'t mut T) -> Self {
        let (rank, membership) = (transport.rank(), transport.membership());
        let ranks: Vec<Rank> = membership.ranks.iter().collect();
        let at = ranks.iter().position(|&other| other == rank).unwrap_or(0);
        let neighbour = |distance: usize| ranks[(at + distance) % ranks.len()];
        let (next, previous) = (neighbour(1), neighbour(ranks.len() - 1));
        Self { transport, rank, next, previous, tag: Tag::new(membership.epoch, 0), inbox: Vec::new() }
    }

    /// The median over some turns of the slowest rank's time. Ranks start together, and at least one starts
    /// before the message that it receives is sent, so no turn is shorter than the travel of a message.
    fn seconds(&mut self, len: usize) -> Result<f64, TransportError> {
        let message = vec![0x5a; len];
        let mut times = Vec::new();
        for turn in 0..=TURNS {
            self.tag = Tag::new(self.tag.epoch, self.tag.step + 1);
            self.transport.barrier(self.tag, Deadline::NEVER)?;
            let start = Instant::now();
            self.transport.send(self.next, self.tag, &message, Deadline::NEVER)?;
            self.transport.recv(self.previous, self.tag, &mut self.inbox, Deadline::NEVER)?;
            let elapsed = start.elapsed().as_secs_f64();
            self.transport.retire(self.tag);
            // The first turn warms up: buffers, and the tokens of a link that was idle, come to their usual
            // level.
            if turn > 0 {
                times.push(elapsed);
            }
        }
        let mut slowest: Vec<_> = times.into_iter().map(|time| (Fold::Max, Scalar::F64(time))).collect();
        self.tag = Tag::new(self.tag.epoch, self.tag.step + 1);
        self.transport.agree(self.tag, &mut slowest, Deadline::NEVER)?;
        let seconds = |(_, scalar)| match scalar {
            Scalar::F64(seconds) => seconds,
            Scalar::F32(_) | Scalar::I64(_) => 0.0,
        };
        Ok(median(slowest.into_iter().map(seconds).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradwire_transports::layer::{LinkSpeed, Throttle};
    use gradwire_transports::local;

    #[test]
    fn every_rank_measures_the_same_and_no_link_is_faster_than_it_is() {
        let one_way_latency = Duration::from_millis(3);
        let speed = LinkSpeed::new(1e9, one_way_latency);
        let ranks = Throttle::network(local::world(3), speed)
            .into_iter()
            .map(|mut end| std::thread::spawn(move || measure(&mut end).unwrap().unwrap()));
        let ranks: Vec<_> = ranks.collect();
        let links: Vec<Link> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        assert!(links[0].latency_s >= 3e-3 && links[0].bytes_per_s > 0.0, "{links:?}");
        assert!(links[1] == links[0] && links[2] == links[0], "{links:?}");
    }

    #[test]
    fn one_rank_has_no_link() {
        assert_eq!(measure(&mut local::world(1).remove(0)), Ok(None));
    }
}
