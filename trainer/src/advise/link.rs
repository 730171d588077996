//! How fast the links between the workers of a job are.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use gradwire_transports::collective::{Fold, Scalar};
use gradwire_transports::cost::Link;
use gradwire_transports::{Deadline, Rank, Tag, Transport, TransportError};

use crate::codec_cli::median;

/// Bytes of a message that takes the latency alone.
const SHORT: usize = 64;

/// The fewest and the most bytes of the message that shows the bandwidth.
const LEAST: usize = 1 << 16;
const MOST: usize = 1 << 24;

/// How many times as long as a short message it should take, so that its length shows.
const CLEARLY: f64 = 5.0;

/// Messages of a turn, each sent when the one before it has come: as many as there is time for, within these
/// limits. Ranks leave a barrier one after the other, so the first message of a turn also waits for the rank
/// that left it last.
const TIME_OF_TURN: Duration = Duration::from_millis(250);
const HOPS: RangeInclusive<u32> = 1..=8;

/// How often each length is sent: as often as there is time for, within these limits.
const TIME: Duration = Duration::from_secs(2);
const TURNS: RangeInclusive<u32> = 3..=9;

/// Measures the links of a world: every rank sends to the next one around a ring while it receives from the
/// one before, as an exchange does, so that links of both directions are busy at all ranks.
///
/// The latency is the time of a message of 64 bytes. The bandwidth follows from a message as long as the one
/// that a dense ring would send, `dense_bytes` over the number of ranks, but at least 64 KiB and at most 16
/// MiB: libraries send long messages in another way than short ones. On a link on which such a message takes
/// hardly longer than a short one, its length is doubled until it does. Each time is a median over turns. A
/// turn is several messages, one after the other as around a ring, and its time is that of its slowest rank
/// over their number. All ranks get the same result. `None` for one rank, which has no link.
///
/// # Errors
/// Those of [`Transport::send`] and [`Transport::recv`].
pub(crate) fn measure(
    transport: &mut impl Transport,
    dense_bytes: usize,
) -> Result<Option<Link>, TransportError> {
    let mut ring = Ring::new(transport);
    if ring.next == ring.rank {
        return Ok(None);
    }
    let latency_s = ring.seconds(SHORT)?;
    let mut len = (dense_bytes / ring.transport.membership().world()).clamp(LEAST, MOST);
    let mut seconds = ring.seconds(len)?;
    while seconds < CLEARLY * latency_s && 2 * len <= MOST {
        len *= 2;
        seconds = ring.seconds(len)?;
    }
    // If the clock stood still, the bandwidth would be infinite.
    let bytes_per_s = (len - SHORT) as f64 / (seconds - latency_s).max(1e-9);
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

    /// The median over some turns. The first turn warms up: buffers, and the tokens of a link that was idle,
    /// come to their usual level. It also tells for how many turns there is time.
    fn seconds(&mut self, len: usize) -> Result<f64, TransportError> {
        let message = vec![0x5a; len];
        let first = self.turn(&message, 1)?;
        let hops = fitting(TIME_OF_TURN, first, HOPS);
        let turns = fitting(TIME, first * f64::from(hops), TURNS);
        let times: Result<_, _> = (0..turns).map(|_| self.turn(&message, hops)).collect();
        Ok(median(times?))
    }

    /// The slowest rank's time of a message. A rank sends the next one when the one before it has come, so
    /// none is shorter than its travel.
    fn turn(&mut self, message: &[u8], hops: u32) -> Result<f64, TransportError> {
        let tag = self.next_tag();
        self.transport.barrier(tag, Deadline::NEVER)?;
        let start = Instant::now();
        for hop in 0..hops {
            self.transport.send(self.next, tag.chunk(hop), message, Deadline::NEVER)?;
            self.transport.recv(self.previous, tag.chunk(hop), &mut self.inbox, Deadline::NEVER)?;
        }
        let mut slowest = [(Fold::Max, Scalar::F64(start.elapsed().as_secs_f64() / f64::from(hops)))];
        self.transport.retire(tag);
        let tag = self.next_tag();
        self.transport.agree(tag, &mut slowest, Deadline::NEVER)?;
        self.transport.retire(tag);
        match slowest[0].1 {
            Scalar::F64(seconds) => Ok(seconds),
            Scalar::F32(_) | Scalar::I64(_) => unreachable!("an f64 is folded to an f64"),
        }
    }

    fn next_tag(&mut self) -> Tag {
        self.tag = Tag::new(self.tag.epoch, self.tag.step + 1);
        self.tag
    }
}

/// How often something that takes so many seconds fits into a time, within the limits.
fn fitting(time: Duration, seconds: f64, limits: RangeInclusive<u32>) -> u32 {
    ((time.as_secs_f64() / seconds) as u32).clamp(*limits.start(), *limits.end())
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
            .map(|mut end| std::thread::spawn(move || measure(&mut end, 4_000).unwrap().unwrap()));
        let ranks: Vec<_> = ranks.collect();
        let links: Vec<Link> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        assert!(links[0].latency_s >= 3e-3 && links[0].bytes_per_s > 0.0, "{links:?}");
        assert!(links[1] == links[0] && links[2] == links[0], "{links:?}");
    }

    #[test]
    fn one_rank_has_no_link() {
        assert_eq!(measure(&mut local::world(1).remove(0), 4_000), Ok(None));
    }
}
