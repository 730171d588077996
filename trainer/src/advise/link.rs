//! How fast the links between the workers of a job are.

use std::ops::RangeInclusive;
use std::thread;
use std::time::{Duration, Instant};

use gradwire_transports::collective::{self, Fold, Scalar};
use gradwire_transports::cost::Link;
use gradwire_transports::{Deadline, Rank, Tag, Transport, TransportError};

use crate::codec_cli::median;

/// Bytes of a message that takes the latency alone.
const SHORT: usize = 64;

/// The fewest and the most bytes of the message that shows the bandwidth.
const LEAST: usize = 1 << 16;
const MOST: usize = 1 << 24;

/// The longest that the message that shows the bandwidth should take. Where packets are lost, times differ by
/// as much as this, and a difference of one and two messages shows little.
const LONGEST: Duration = Duration::from_millis(60);

/// How many times as long as a short message it should take, so that its length shows.
const CLEARLY: f64 = 5.0;

/// Messages of the longer kind of turn, each sent when the one before it has come: as many as there is time
/// for, within these limits. The shorter kind has one.
const TIME_OF_TURN: Duration = Duration::from_millis(250);
const HOPS: RangeInclusive<u32> = 4..=9;

/// How often each turn is made: as often as there is time for, within these limits.
const TIME: Duration = Duration::from_secs(4);
const TURNS: RangeInclusive<u32> = 3..=9;

/// Turns that are not counted: buffers grow, and TCP learns how fast a slow link is.
const WARM_UP: u32 = 4;

/// Before each turn nothing is sent for so long, as while a step is computed.
const PAUSE: Duration = Duration::from_millis(5);

/// How much longer than a short message the one takes that shows a burst: long beside what times differ by,
/// and short beside a step.
const LONGER: Duration = Duration::from_millis(10);

/// What messages take, in seconds.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// One after a pause, with the wait for the rank that begins last.
    one_s: f64,
    /// One that follows another one.
    hop_s: f64,
}

impl Times {
    /// From one message, and `many` that follow one another. On a fast link the difference may drown in what
    /// repeats differ by, and be negative.
    fn of(one_s: f64, many_s: f64, many: u32) -> Self {
        Self { one_s, hop_s: ((many_s - one_s) / f64::from(many - 1)).max(0.0) }
    }
}

/// Measures the links of a world: every rank sends to the next one around a ring while it receives from the
/// one before, as an exchange does, so that links of both directions are busy at all ranks.
///
/// A turn is one message, or several that follow one another, after a pause. The difference is what a message
/// takes: the latency is that of 64 bytes. The bandwidth follows from a message as long as the one that a
/// dense ring would send, `dense_bytes` over the number of ranks. It has at least 64 KiB, because libraries
/// send long messages in another way than short ones, and at most 16 MiB or what passes in 60 ms, so that
/// several of them fit into a turn. On a link on which such a message takes hardly longer than a short one,
/// its length is doubled until it does.
///
/// The burst is what single messages after a pause save: one that should take 10 ms longer than a short one,
/// at most 16 MiB, and does not. It is 0 if they save less than a latency.
///
/// Each time is a median over turns. All ranks get the same result. `None` for one rank, which has no link.
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
    ring.meet()?;
    let short = ring.times(SHORT)?;
    let of_ring = dense_bytes / ring.transport.membership().world();
    let mut len = of_ring.clamp(LEAST, ring.longest()?);
    let mut long = ring.times(len)?;
    while long.hop_s < CLEARLY * short.hop_s && 2 * len <= MOST {
        len *= 2;
        long = ring.times(len)?;
    }
    // If the clock stood still, the bandwidth would be infinite.
    let bytes_per_s = (len - SHORT) as f64 / (long.hop_s - short.hop_s).max(1e-9);
    let more = ((bytes_per_s * LONGER.as_secs_f64()) as usize).min(MOST);
    let link = Link { latency_s: short.hop_s, bytes_per_s, burst_bytes: 0.0 };
    let longer_s = ring.single_s(SHORT + more)? - short.one_s;
    Ok(Some(Link { burst_bytes: burst(&link, more, longer_s), ..link }))
}

/// What a message saves that has `more` bytes than a short one, and takes so much longer.
fn burst(link: &Link, more: usize, longer_s: f64) -> f64 {
    let saved = more as f64 - link.bytes_per_s * longer_s;
    if saved > link.bytes_per_s * link.latency_s { saved.min(more as f64) } else { 0.0 }
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

    /// Waits until all ranks are there, so that no turn is measured while one of them starts.
    fn meet(&mut self) -> Result<(), TransportError> {
        let tag = self.next_tag();
        collective::barrier(self.transport, tag, Deadline::NEVER)?;
        self.transport.retire(tag);
        Ok(())
    }

    /// The bytes that pass in the longest time for a message, within the limits.
    fn longest(&mut self) -> Result<usize, TransportError> {
        let message = vec![0x5a; LEAST];
        // The first one is not counted: buffers grow.
        self.turn(&message, 1)?;
        let bytes_per_s = LEAST as f64 / self.turn(&message, 1)?;
        Ok(((bytes_per_s * LONGEST.as_secs_f64()) as usize).clamp(LEAST, MOST))
    }

    /// Of messages of so many bytes. The first turn tells for how many others there is time.
    fn times(&mut self, len: usize) -> Result<Times, TransportError> {
        let message = vec![0x5a; len];
        let first = self.turn(&message, 1)?;
        let many = fitting(TIME_OF_TURN, first, HOPS);
        let turns = fitting(TIME, first * f64::from(1 + many), TURNS);
        for _ in 0..WARM_UP {
            self.turn(&message, many)?;
        }
        let (mut of_one, mut of_many) = (Vec::new(), Vec::new());
        for _ in 0..turns {
            of_one.push(self.turn(&message, 1)?);
            of_many.push(self.turn(&message, many)?);
        }
        Ok(Times::of(median(of_one), median(of_many), many))
    }

    /// One message of so many bytes, after a pause.
    fn single_s(&mut self, len: usize) -> Result<f64, TransportError> {
        let message = vec![0x5a; len];
        let turns = fitting(TIME, self.turn(&message, 1)?, TURNS);
        let times: Result<_, _> = (0..turns).map(|_| self.turn(&message, 1)).collect();
        times.map(median)
    }

    /// The slowest rank's time.
    fn turn(&mut self, message: &[u8], hops: u32) -> Result<f64, TransportError> {
        // The turn before ended at all ranks at once. A barrier here would let all begin in the same instant,
        // as steps never do: all queues on the way then overflow together.
        thread::sleep(PAUSE);
        let tag = self.next_tag();
        let start = Instant::now();
        for hop in 0..hops {
            self.transport.send(self.next, tag.chunk(hop), message, Deadline::NEVER)?;
            self.transport.recv(self.previous, tag.chunk(hop), &mut self.inbox, Deadline::NEVER)?;
        }
        let mut slowest = [(Fold::Max, Scalar::F64(start.elapsed().as_secs_f64()))];
        self.transport.retire(tag);
        let tag = self.next_tag();
        collective::agree(self.transport, tag, &mut slowest, Deadline::NEVER)?;
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
        let latency_s = 3e-3;
        let network =
            || Throttle::network(local::world(3), LinkSpeed::new(1e9, Duration::from_secs_f64(latency_s)));
        // Each of them counts its turns from the first on, and a turn that is over takes no more messages.
        let ends = network().into_iter().zip(network());
        let of_all = |(mut end, mut other)| {
            let times = Ring::new(&mut end).times(SHORT).unwrap();
            (times, measure(&mut other, 4_000).unwrap().unwrap())
        };
        let ranks: Vec<_> = ends.map(|ends| thread::spawn(move || of_all(ends))).collect();
        let found: Vec<(Times, Link)> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        let (times, link) = found[0];
        assert!(found.iter().all(|(_, other)| *other == link), "{found:?}");
        assert!(link.latency_s >= 0.0 && link.bytes_per_s > 0.0, "{link:?}");
        // However busy the machine: no message comes sooner, and neither do several that follow one another.
        let sum_s = |hops: u32| times.one_s + f64::from(hops - 1) * times.hop_s;
        assert!(times.one_s >= latency_s, "{times:?}");
        assert!(HOPS.into_iter().any(|hops| sum_s(hops) >= f64::from(hops) * latency_s - 1e-9), "{times:?}");
    }

    #[test]
    fn a_message_is_no_longer_than_what_passes_in_its_time() {
        // 2 MB/s.
        let ends = Throttle::network(local::world(2), LinkSpeed::new(16e6, Duration::ZERO));
        let ranks: Vec<_> = ends
            .into_iter()
            .map(|mut end| thread::spawn(move || Ring::new(&mut end).longest().unwrap()))
            .collect();
        let longest: Vec<usize> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        assert!((LEAST..=120_000).contains(&longest[0]), "{longest:?}");
        assert_eq!(longest[0], longest[1]);
    }

    #[test]
    fn no_latency_is_negative() {
        assert_eq!(Times::of(1.0, 5.0, 9).hop_s, 0.5);
        assert_eq!(Times::of(1.5e-3, 1e-3, 9).hop_s, 0.0);
    }

    #[test]
    fn what_a_bucket_passes_at_once_is_what_a_message_saves() {
        let link = Link { latency_s: 1e-3, bytes_per_s: 1e5, burst_bytes: 0.0 };
        // A kilobyte more should take 10 ms more.
        assert_eq!(burst(&link, 1000, 6e-3).round(), 400.0);
        assert_eq!(burst(&link, 1000, -1e-3), 1000.0);
        // To save less than a latency is what repeats differ by.
        assert_eq!(burst(&link, 1000, 9.5e-3), 0.0);
    }

    #[test]
    fn one_rank_has_no_link() {
        assert_eq!(measure(&mut local::world(1).remove(0), 4_000), Ok(None));
    }
}
