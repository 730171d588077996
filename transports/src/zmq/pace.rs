//! How fast a link is, measured from what its other end acknowledges, and what follows from that: the size of
//! chunks, how much may be on the way, and after which silence something is wrong. It has no clock and no
//! sockets.
//!
//! # Source
//! Rate and least round trip are measured as BBR does (Cardwell and others, "BBR: Congestion-Based Congestion
//! Control", ACM Queue 14(5), 2016): the largest rate of delivery of the last rounds, and the smallest round
//! trip. Twice their product is on the way at most, so that queues stay short and signs of life are not late.
//! Unlike BBR, this paces nothing, because TCP does.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What may be on the way before the link is measured: a second at 64 kbit/s.
const FIRST_BYTES: usize = 8 << 10;
/// Shorter chunks would be mostly headers.
const LEAST_CHUNK: usize = 2 << 10;
/// The time that a chunk may take, so that whatever is behind it is soon there, also when the link becomes
/// slower.
const CHUNK_TIME: Duration = Duration::from_millis(50);
/// Chunks in a round trip, at least: as many as a window of 16 needs to hold two round trips and more.
const CHUNKS_IN_ROUND_TRIP: u32 = 4;
/// Rounds after which a measured rate is forgotten.
const ROUNDS: u64 = 10;
/// After this time the least round trip is measured anew: the link runs dry once.
const MEASURE_AGAIN: Duration = Duration::from_secs(30);
/// The time in which the memory of a late acknowledgement fades to half.
const FADES: f64 = 10.0;

/// What was known when a chunk was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    sent: Instant,
    delivered: u64,
    delivered_at: Instant,
    /// Whether nothing else was on the way, so that its round trip has no queue of this end in it.
    was_alone: bool,
    /// Whether the link was not full, because there was too little to send.
    had_room: bool,
}

#[derive(Debug)]
pub(super) struct Pace {
    /// The largest chunk.
    most: usize,
    /// Bytes acknowledged so far, and when the last ones were.
    delivered: u64,
    delivered_at: Instant,
    /// Up to here, what was delivered says nothing about how fast the link can be.
    had_room: u64,
    /// Measured rates, each with its round.
    rates: VecDeque<(u64, f64)>,
    round: u64,
    /// The round ends when what is sent now has arrived.
    round_ends: u64,
    best_of_round: f64,
    /// The greeting's rate: the link is at least that fast.
    at_least: f64,
    least: Option<(Duration, Instant)>,
    /// Of the late round trips of the last seconds.
    late: Option<(Duration, Instant)>,
}

impl Pace {
    pub(super) fn new(most: usize, now: Instant) -> Self {
        Self {
            most,
            delivered: 0,
            delivered_at: now,
            had_room: 0,
            rates: VecDeque::new(),
            round: 0,
            round_ends: 0,
            best_of_round: 0.0,
            at_least: 0.0,
            least: None,
            late: None,
        }
    }

    /// A connection was made, and its greeting of so many bytes, there and back, took that long. Nothing of
    /// an earlier connection counts any more, except how late it was.
    pub(super) fn on_greeting(&mut self, bytes: usize, took: Duration, now: Instant) {
        self.late(took, now);
        self.rates.clear();
        (self.least, self.best_of_round) = (Some((took, now)), 0.0);
        self.at_least = bytes as f64 / took.as_secs_f64().max(1e-6);
    }

    /// Bytes per second, as far as they are known: the link is at least that fast.
    pub(super) fn rate(&self) -> f64 {
        self.rates.iter().map(|(_, rate)| *rate).fold(self.at_least, f64::max)
    }

    /// Payload bytes of the next chunk. The one that measures the least round trip is short.
    pub(super) fn chunk(&self, now: Instant) -> usize {
        if self.is_due(now) {
            return LEAST_CHUNK.min(self.most);
        }
        let in_round_trip = self.least.map_or(Duration::ZERO, |(least, _)| least / CHUNKS_IN_ROUND_TRIP);
        let bytes = self.rate() * CHUNK_TIME.max(in_round_trip).as_secs_f64();
        (bytes as usize).max(LEAST_CHUNK).min(self.most)
    }

    /// Whether more may be sent while so many bytes are on the way.
    pub(super) fn has_room(&self, on_the_way: usize, now: Instant) -> bool {
        if on_the_way == 0 {
            return true;
        }
        let Some((least, _)) = self.least else { return on_the_way < FIRST_BYTES };
        let room = 2.0 * self.rate() * (least + CHUNK_TIME).as_secs_f64();
        !self.is_due(now) && on_the_way < FIRST_BYTES.max(room as usize)
    }

    /// Whether the least round trip is to be measured anew.
    fn is_due(&self, now: Instant) -> bool {
        self.least.is_some_and(|(_, at)| now.saturating_duration_since(at) >= MEASURE_AGAIN)
    }

    /// Records that there is nothing to send although there is room.
    pub(super) fn starve(&mut self, on_the_way: usize) {
        self.had_room = self.delivered + on_the_way as u64 + 1;
    }

    /// A chunk is sent now.
    pub(super) fn mark(&mut self, on_the_way: usize, now: Instant) -> Mark {
        let was_alone = on_the_way == 0;
        if was_alone {
            self.delivered_at = now;
        }
        let had_room = self.had_room > self.delivered || was_alone && self.is_due(now);
        let (delivered, delivered_at) = (self.delivered, self.delivered_at);
        Mark { sent: now, delivered, delivered_at, was_alone, had_room }
    }

    /// A chunk with so many bytes was acknowledged, and those before it.
    pub(super) fn on_delivered(&mut self, mark: &Mark, bytes: usize, now: Instant) {
        self.delivered += bytes as u64;
        self.delivered_at = now;
        let took = now.saturating_duration_since(mark.sent);
        self.late(took, now);
        let is_less = self.least.is_none_or(|(least, _)| took <= least);
        if is_less || mark.was_alone && self.is_due(now) {
            self.least = Some((took, now));
        }
        let since = now.saturating_duration_since(mark.delivered_at).as_secs_f64();
        let rate = (self.delivered - mark.delivered) as f64 / since.max(1e-6);
        if !mark.had_room || rate > self.rate() || self.is_too_late(mark, took) {
            self.measured(rate);
        }
        if mark.delivered >= self.round_ends {
            self.end_round();
        }
    }

    /// Whether a chunk took so much longer than it should that the link must be slower now, however little
    /// there was to send.
    fn is_too_late(&self, mark: &Mark, took: Duration) -> bool {
        let bytes = (self.delivered - mark.delivered) as f64;
        let expected = self.time_for(bytes as usize).unwrap_or(Duration::MAX);
        took > expected.saturating_mul(4).saturating_add(Duration::from_secs(1))
    }

    fn measured(&mut self, rate: f64) {
        self.best_of_round = self.best_of_round.max(rate);
        let round = self.round;
        self.rates.retain(|(at, known)| at + ROUNDS > round && *known > rate);
        self.rates.push_back((round, rate));
        // From now on the greeting's rate is one of several measurements.
        self.at_least = 0.0;
    }

    /// After a whole round at less than half of the rate, the link has become slower.
    fn end_round(&mut self) {
        let best = std::mem::take(&mut self.best_of_round);
        if best > 0.0 && best < self.rate() / 2.0 {
            self.rates.clear();
            self.rates.push_back((self.round, best));
        }
        self.round += 1;
        self.round_ends = self.delivered;
    }

    /// A round trip: late ones are remembered for a while.
    fn late(&mut self, took: Duration, now: Instant) {
        let known = self.lateness(now);
        if took >= known {
            self.late = Some((took, now));
        }
    }

    /// How late acknowledgements of the last seconds were, or zero.
    pub(super) fn lateness(&self, now: Instant) -> Duration {
        let Some((took, at)) = self.late else { return Duration::ZERO };
        let seconds = now.saturating_duration_since(at).as_secs_f64();
        let least = self.least.map_or(Duration::ZERO, |(least, _)| least);
        took.mul_f64((-seconds / FADES).exp2()).max(least)
    }

    /// How long so many bytes take, if the rate is known.
    pub(super) fn time_for(&self, bytes: usize) -> Option<Duration> {
        let rate = self.rate();
        let round_trip = self.least.map_or(Duration::ZERO, |(least, _)| least);
        (rate > 0.0).then(|| Duration::from_secs_f64((bytes as f64 / rate).min(1e6)) + round_trip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 256 << 10;

    /// A link with a rate in bytes per second and a round trip, and a sender that keeps it full: bytes
    /// delivered after some seconds, the longest round trip of the last third, and the pace.
    fn send(pace: &mut Pace, start: Instant, (rate, round_trip): (f64, f64), seconds: f64) -> (f64, f64) {
        let (mut clock, mut link_free, mut delivered, mut late) = (0.0, 0.0_f64, 0.0, 0.0_f64);
        let at = |clock: f64| start + Duration::from_secs_f64(clock);
        // Acknowledgements on their way: when, and of what.
        let mut on_the_way: VecDeque<(f64, Mark, usize)> = VecDeque::new();
        while clock < seconds {
            let bytes: usize = on_the_way.iter().map(|(.., bytes)| bytes).sum();
            if pace.has_room(bytes, at(clock)) && on_the_way.len() < 16 {
                let chunk = pace.chunk(at(clock));
                let mark = pace.mark(bytes, at(clock));
                link_free = link_free.max(clock) + chunk as f64 / rate;
                on_the_way.push_back((link_free + round_trip, mark, chunk));
                continue;
            }
            let (when, mark, bytes) = on_the_way.pop_front().unwrap();
            clock = when;
            let took = at(clock).saturating_duration_since(mark.sent).as_secs_f64();
            late = if clock > seconds * 2.0 / 3.0 { late.max(took) } else { 0.0 };
            delivered += bytes as f64;
            pace.on_delivered(&mark, bytes, at(clock));
        }
        (delivered, late)
    }

    fn greeted(rate: f64, round_trip: f64, start: Instant) -> Pace {
        let mut pace = Pace::new(MOST, start);
        let took = 3000.0 / rate + round_trip;
        pace.on_greeting(3000, Duration::from_secs_f64(took), start);
        pace
    }

    #[test]
    fn links_of_all_kinds_are_kept_busy_and_their_queues_short() {
        for kbit in [32.0, 64.0, 256.0, 1500.0, 20_000.0, 1_000_000.0] {
            for round_trip in [0.0005, 0.02, 0.3, 0.6, 1.5, 3.0] {
                let (start, rate) = (Instant::now(), kbit * 125.0);
                let mut pace = greeted(rate, round_trip, start);
                let (delivered, late) = send(&mut pace, start, (rate, round_trip), 90.0);
                let share = delivered / (rate * 90.0);
                // A window of chunks of 256 KiB is 4 MiB, whatever the link could hold.
                let most = (16.0 * MOST as f64 / round_trip / rate).min(1.0);
                assert!(share > 0.5 * most, "{kbit} kbit/s, {round_trip} s: {share}");
                // A queue of one round trip, and of what is sent without a measurement.
                let queue = round_trip + 2.0 * (FIRST_BYTES + LEAST_CHUNK) as f64 / rate + 0.4;
                assert!(late < round_trip + 2.0 * queue, "{kbit} kbit/s, {round_trip} s: {late}");
                let time = pace.chunk(start) as f64 / rate;
                let limit = (round_trip + 1.0) / 2.0;
                assert!(time < limit.max(LEAST_CHUNK as f64 / rate * 1.01), "{kbit}, {round_trip}: {time}");
            }
        }
    }

    #[test]
    fn another_rate_and_another_round_trip_are_measured_within_a_minute() {
        let links = [(1e6, 0.02), (8e3, 0.02), (8e3, 1.5), (2e5, 0.6), (1e6, 0.02)];
        let mut start = Instant::now();
        let mut pace = greeted(links[0].0, links[0].1, start);
        for (rate, round_trip) in links {
            send(&mut pace, start, (rate, round_trip), 90.0);
            start += Duration::from_secs(90);
            let (delivered, late) = send(&mut pace, start, (rate, round_trip), 60.0);
            start += Duration::from_secs(60);
            assert!(delivered > 0.5 * 60.0 * rate, "{rate}, {round_trip}: {delivered}");
            assert!(late < 3.0 * round_trip + 5.0, "{rate}, {round_trip}: {late}");
        }
    }

    #[test]
    fn short_messages_now_and_then_do_not_make_a_link_slow() {
        let start = Instant::now();
        let mut pace = greeted(1e6, 0.02, start);
        send(&mut pace, start, (1e6, 0.02), 10.0);
        let before = pace.rate();
        for at in 0..1000 {
            let now = start + Duration::from_millis(10_000 + 100 * at);
            pace.starve(0);
            let mark = pace.mark(0, now);
            pace.on_delivered(&mark, 100, now + Duration::from_millis(20));
        }
        assert!(pace.rate() > 0.9 * before, "{} {before}", pace.rate());
    }

    #[test]
    fn lateness_is_remembered_and_fades() {
        let start = Instant::now();
        let mut pace = greeted(1e6, 0.1, start);
        let mark = pace.mark(0, start);
        let seconds = |seconds| start + Duration::from_secs(seconds);
        pace.on_delivered(&mark, 1000, seconds(4));
        assert_eq!(pace.lateness(seconds(4)), Duration::from_secs(4));
        assert!(pace.lateness(seconds(14)) < Duration::from_millis(2001));
        assert!(pace.lateness(seconds(300)) < Duration::from_millis(150));
        assert!(pace.lateness(seconds(300)) > Duration::from_millis(99));
    }

    #[test]
    fn without_any_measurement_little_is_sent_in_short_chunks() {
        let now = Instant::now();
        let pace = Pace::new(MOST, now);
        assert_eq!((pace.chunk(now), pace.time_for(1)), (LEAST_CHUNK, None));
        assert!(pace.has_room(FIRST_BYTES - 1, now) && !pace.has_room(FIRST_BYTES, now));
        assert_eq!(Pace::new(5, now).chunk(now), 5);
    }
}
