//! Rests while a slow link brings a long message, so that its packets are read together.
//!
//! On a slow link packets come one by one, and to wake up for each of them costs several times what reading
//! it costs. A thread that rests for a moment reads all that came meanwhile, and the message is there no
//! later: it needs the link for much longer than that.

use std::time::{Duration, Instant};

/// How long a rest is.
pub(super) const REST: Duration = Duration::from_micros(500);
/// Bytes of a message that are still to come, at least: a slow link needs longer than a rest for them.
pub(super) const MUCH: usize = 64 << 10;

/// A link is slow if it brings less than this: 1 Gbit/s.
const SLOW_BYTES_PER_MICROSECOND: u128 = 125;
/// The rate is that of so long a time, unless nothing came for longer.
const SPAN: Duration = Duration::from_millis(1);
const IDLE: Duration = Duration::from_millis(10);

/// How fast bytes come.
#[derive(Debug)]
pub(super) struct Rate {
    since: Instant,
    bytes: u128,
    is_slow: bool,
}

impl Rate {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, bytes: 0, is_slow: false }
    }

    /// Whether so many bytes, at least one, came over a link that is slow. Where nothing came for long, the
    /// link may be idle, or so slow that rests would spare nothing.
    pub(super) fn is_slow(&mut self, bytes: usize, now: Instant) -> bool {
        self.bytes += bytes as u128;
        let time = now - self.since;
        if time >= SPAN {
            self.is_slow = time < IDLE && self.bytes < SLOW_BYTES_PER_MICROSECOND * time.as_micros();
            (self.since, self.bytes) = (now, 0);
        }
        self.is_slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of so many bytes every so many microseconds.
    fn said(bytes: usize, every: u64) -> Vec<bool> {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        (1..100).map(|turn| rate.is_slow(bytes, start + Duration::from_micros(turn * every))).collect()
    }

    #[test]
    fn a_link_is_slow_once_a_span_has_brought_few_bytes() {
        // 100 Mbit/s, packet by packet, and several together behind rests.
        for (bytes, every) in [(1448, 116), (6 * 1448, 700)] {
            let (said, first) =
                (said(bytes, every), SPAN.as_micros().div_ceil(u128::from(every)) as usize - 1);
            assert!(said[..first].iter().all(|is_slow| !is_slow), "{bytes} every {every}");
            assert!(said[first..].iter().all(|&is_slow| is_slow), "{bytes} every {every}");
        }
    }

    #[test]
    fn neither_a_fast_link_nor_one_that_brings_little_is_rested_for() {
        // 10 Gbit/s; 1.01 Gbit/s; a packet every 12 milliseconds.
        for (bytes, every) in [(1448, 1), (64 << 10, 519), (1448, 12_000)] {
            assert!(said(bytes, every).iter().all(|is_slow| !is_slow), "{bytes} every {every}");
        }
    }
}
