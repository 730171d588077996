//! When a codec pays: the bandwidth below which it makes a step shorter.

use gradwire_transports::cost::{
    all_gather_bytes, break_even_gather_gbps, break_even_linear_gbps, ring_bytes,
};

use super::measure::Times;

/// What a step sends, and how long encoding and decoding take. Computing and sending do not overlap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traffic {
    /// Workers that take part.
    pub(super) workers: u32,
    /// Bytes of the dense f32 gradient.
    pub(super) dense_bytes: f64,
    /// Bytes of the frame.
    pub(super) frame_bytes: f64,
    /// Whether payloads are summed by an all-reduce; else frames are gathered.
    pub(super) is_linear: bool,
    /// Times of one worker.
    pub(super) times: Times,
}

impl Traffic {
    /// Gigabits per second of a worker's link at which sending frames takes as long as a dense ring
    /// all-reduce with elements of f32; 0 if the dense ring is always faster. On slower links the codec is
    /// faster.
    ///
    /// With N workers, dense bytes B and frame bytes b, a ring moves 2(N−1)/N·B for each worker. Gathered
    /// frames take (N−1)·b, one encode and N decodes; a linear codec uses the ring itself, with one of each.
    pub(super) fn break_even_gbps(&self) -> f64 {
        self.against_ring_of(self.dense_bytes)
    }

    /// The same against a ring whose elements are bf16, of half the bytes.
    pub(super) fn break_even_gbps_bf16(&self) -> f64 {
        self.against_ring_of(self.dense_bytes / 2.0)
    }

    /// Seconds until everybody has decoded everything, over links of `gbps` gigabits per second.
    pub(super) fn seconds_over(&self, gbps: f64) -> f64 {
        8.0 * self.moved() / 1e9 / gbps + self.coding()
    }

    fn against_ring_of(&self, ring_bytes: f64) -> f64 {
        let Times { encode, decode, .. } = self.times;
        let break_even = if self.is_linear { break_even_linear_gbps } else { break_even_gather_gbps };
        break_even(self.workers as usize, ring_bytes, self.frame_bytes, encode, decode)
    }

    /// Bytes that each worker sends.
    fn moved(&self) -> f64 {
        let moved = if self.is_linear { ring_bytes } else { all_gather_bytes };
        moved(self.workers as usize, self.frame_bytes)
    }

    /// Seconds that a worker takes to encode and decode.
    fn coding(&self) -> f64 {
        let decodes = if self.is_linear { 1.0 } else { f64::from(self.workers) };
        self.times.encode + decodes * self.times.decode
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(is_linear: bool, frame_bytes: f64) -> Traffic {
        let times = Times { encode: 0.002, decode: 0.001, memcpy: 0.0 };
        Traffic { workers: 8, dense_bytes: 4e6, frame_bytes, is_linear, times }
    }

    fn assert_close(actual: f64, expected: f64) {
        assert!((actual - expected).abs() < 1e-9, "{actual} is not {expected}");
    }

    #[test]
    fn gathered_frames_pay_for_every_peer() {
        // 8 · (2·7/8·4 MB − 7·0.1 MB) / (2 ms + 8 ms)
        assert_close(traffic(false, 1e5).break_even_gbps(), 5.04);
        assert_close(traffic(false, 1e5).break_even_gbps_bf16(), 2.24);
    }

    #[test]
    fn summed_payloads_ride_on_the_ring() {
        // 8 · 2·7/8·(4 MB − 0.1 MB) / (2 ms + 1 ms)
        assert_close(traffic(true, 1e5).break_even_gbps(), 18.2);
        assert_close(traffic(true, 1e5).break_even_gbps_bf16(), 8.0 * 1.75 * 1.9e6 / 1e9 / 0.003);
    }

    #[test]
    fn moving_and_coding_do_not_overlap() {
        // 8 · 7·0.1 MB at 0.1 Gbit/s, 2 ms + 8 ms
        assert_close(traffic(false, 1e5).seconds_over(0.1), 0.066);
        // At the break-even bandwidth it takes as long as the ring alone.
        let summed = traffic(true, 1e5);
        let gbps = summed.break_even_gbps();
        assert_close(summed.seconds_over(gbps), 8.0 * 1.75 * 4e6 / 1e9 / gbps);
    }

    #[test]
    fn what_never_pays_is_zero() {
        assert_eq!(traffic(false, 4e6).break_even_gbps(), 0.0);
        let alone = Traffic { workers: 1, ..traffic(false, 1e5) };
        assert_eq!(alone.break_even_gbps(), 0.0);
    }
}
