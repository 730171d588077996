//! What an exchange costs on a link, as plain formulas: α for a message, bytes over bandwidth for its length.
//!
//! B is the length of the dense vector and b the length of a frame, both in bytes. N is the number of ranks,
//! α the one-way latency and BW the bandwidth. All links are full duplex and equally fast, and nothing
//! overlaps unless the name of a function says so. The results are lower bounds: they leave out packet
//! headers, ramp-up and the arithmetic of a reduction.
//!
//! A link with a [burst](Link::burst_bytes) passes so many bytes of an exchange at once; B and b in the
//! formulas of times are then what is left.

/// A link of the cost model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// α: from the start of sending an empty message until it is received, in seconds.
    pub latency_s: f64,
    /// BW in each direction, in bytes per second.
    pub bytes_per_s: f64,
    /// Bytes that pass at once after a pause, before BW counts: the depth of a token bucket, by which kernels
    /// and clouds limit a rate. 0 for a link that is as slow as it is.
    pub burst_bytes: f64,
}

impl Link {
    /// A link of `gbps` · 10^9 bit/s.
    pub fn from_gbps(gbps: f64, latency_s: f64) -> Self {
        Self { latency_s, bytes_per_s: gbps * 1e9 / 8.0, burst_bytes: 0.0 }
    }

    /// Seconds for which all bytes that go over the link after one pause keep it busy.
    pub fn busy_s(&self, bytes: f64) -> f64 {
        (bytes - self.burst_bytes).max(0.0) / self.bytes_per_s
    }

    /// Seconds of a ring all-reduce: 2(N−1)·α + 2(N−1)/N · B/BW.
    pub fn ring_all_reduce_s(&self, world: usize, dense_bytes: f64) -> f64 {
        let hops = 2.0 * peers(world);
        hops * self.latency_s + self.busy_s(ring_bytes(world, dense_bytes))
    }

    /// Seconds of an all-reduce along a binomial tree: 2⌈log2 N⌉·(α + B/BW).
    pub fn tree_all_reduce_s(&self, world: usize, dense_bytes: f64) -> f64 {
        let hops = 2.0 * f64::from(world.next_power_of_two().ilog2());
        hops * self.latency_s + self.busy_s(hops * dense_bytes)
    }

    /// Seconds of an all-reduce by owners: 2α + 2(N−1)/N · B/BW. All shares are sent at once, and after them
    /// all sums.
    pub fn owners_all_reduce_s(&self, world: usize, dense_bytes: f64) -> f64 {
        2.0 * self.if_any(world) + self.busy_s(ring_bytes(world, dense_bytes))
    }

    /// Seconds until every rank has the frames of all: α + (N−1)·b/BW. All are sent at once, so that the
    /// latency counts once.
    pub fn all_gather_s(&self, world: usize, frame_bytes: f64) -> f64 {
        self.if_any(world) + self.busy_s(all_gather_bytes(world, frame_bytes))
    }

    /// Seconds of a sparse all-reduce of n coordinates at density ρ: 2α + (N−1)/N · (F(ρ) + F(ρ′))/BW,
    /// with the frames F of [`sparse_frame_bytes`] at 32 bits a value, and ρ′ the density of the union
    /// ([`fill_in`]).
    pub fn sparse_all_reduce_s(&self, world: usize, n: usize, density: f64) -> f64 {
        let bytes = sparse_all_reduce_bytes(world, n, density);
        2.0 * self.if_any(world) + self.busy_s(bytes)
    }

    /// α, if there is anybody to send to.
    fn if_any(&self, world: usize) -> f64 {
        if world > 1 { self.latency_s } else { 0.0 }
    }

    /// Seconds of an exchange through a parameter server that sends only after it has received all: 2α +
    /// N·(up + down)/BW. N is `workers`, which does not count the server. The one link of the server carries
    /// everything.
    pub fn parameter_server_s(&self, workers: usize, up_bytes: f64, down_bytes: f64) -> f64 {
        2.0 * self.latency_s + self.busy_s(workers as f64 * (up_bytes + down_bytes))
    }

    /// Seconds of an exchange through a parameter server that sends while it receives: 2α + N·max(up,
    /// down)/BW.
    pub fn parameter_server_overlapped_s(&self, workers: usize, up_bytes: f64, down_bytes: f64) -> f64 {
        2.0 * self.latency_s + self.busy_s(workers as f64 * up_bytes.max(down_bytes))
    }
}

/// Bytes that each rank sends, and receives, in an all-reduce by a ring or by owners: 2(N−1)/N · B.
pub fn ring_bytes(world: usize, dense_bytes: f64) -> f64 {
    if world == 0 { 0.0 } else { 2.0 * peers(world) / world as f64 * dense_bytes }
}

/// Bytes that each rank sends, and receives, when every rank gets the frames of all, each of `frame_bytes`:
/// (N−1)·b.
pub fn all_gather_bytes(world: usize, frame_bytes: f64) -> f64 {
    peers(world) * frame_bytes
}

/// Bytes that each rank sends, and receives, in a sparse all-reduce: (N−1)/N · (F(ρ) + F(ρ′)).
pub fn sparse_all_reduce_bytes(world: usize, n: usize, density: f64) -> f64 {
    if world == 0 || n == 0 {
        return 0.0;
    }
    let union = fill_in(n, density, world) / n as f64;
    let frames = sparse_frame_bytes(n, density, 32.0) + sparse_frame_bytes(n, union, 32.0);
    peers(world) / world as f64 * frames
}

/// Bytes of a frame of ρ·n entries at random coordinates: n·(H(ρ) + ρ·`value_bits`)/8. H(ρ) = −ρ·log2 ρ −
/// (1−ρ)·log2(1−ρ) is the bits per coordinate that say which coordinates are sent. Headers are not included.
pub fn sparse_frame_bytes(n: usize, density: f64, value_bits: f64) -> f64 {
    let bits_of = |share: f64| if share > 0.0 { -share * libm::log2(share) } else { 0.0 };
    let positions = bits_of(density) + bits_of(1.0 - density);
    n as f64 * (positions + density * value_bits) / 8.0
}

/// The expected entries in the union of N random sets of density ρ out of n: n·(1 − (1−ρ)^N).
///
/// The sets of real gradients overlap more than random sets do, so this is an upper estimate for them.
pub fn fill_in(n: usize, density: f64, world: usize) -> f64 {
    // Written with expm1 and ln_1p, because (1−ρ)^N loses all digits of a small ρ. From `libm`, so that ranks
    // on different machines make the same choice.
    -libm::expm1(world as f64 * libm::log1p(-density)) * n as f64
}

/// How many times as many entries as one frame the union of the frames of all ranks has, if each has ρ·n
/// entries at random coordinates: [`fill_in`] over ρ·n, and that at least 1.
pub fn union_growth(n: usize, density: f64, world: usize) -> f64 {
    fill_in(n, density, world) / (density * n as f64).max(1.0)
}

/// The bandwidth below which gathering frames takes less time than a dense ring, in Gbit/s: 8·(2(N−1)/N·B −
/// (N−1)·b) / (t_enc + N·t_dec), with bytes in GB; 0 if gathering sends more bytes than the ring.
///
/// Every rank decodes all frames, its own included. Against a bf16 ring, `dense_bytes` is half.
pub fn break_even_gather_gbps(
    world: usize,
    dense_bytes: f64,
    frame_bytes: f64,
    encode_s: f64,
    decode_s: f64,
) -> f64 {
    let saved = ring_bytes(world, dense_bytes) - all_gather_bytes(world, frame_bytes);
    break_even_gbps(saved, encode_s + world as f64 * decode_s)
}

/// The bandwidth below which a reduced payload of b bytes takes less time than a dense ring, in Gbit/s:
/// 8·2(N−1)/N·(B − b) / (t_enc + t_dec), with bytes in GB; 0 if the payload is not shorter.
///
/// Against a bf16 ring, `dense_bytes` is half.
pub fn break_even_linear_gbps(
    world: usize,
    dense_bytes: f64,
    payload_bytes: f64,
    encode_s: f64,
    decode_s: f64,
) -> f64 {
    break_even_gbps(ring_bytes(world, dense_bytes - payload_bytes), encode_s + decode_s)
}

/// Infinite if bytes are saved and no time is spent.
fn break_even_gbps(saved_bytes: f64, spent_s: f64) -> f64 {
    if saved_bytes > 0.0 { 8.0 * saved_bytes / 1e9 / spent_s } else { 0.0 }
}

/// N−1, and 0 for an empty world.
fn peers(world: usize) -> f64 {
    world.saturating_sub(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_close(actual: f64, expected: f64) {
        assert!((actual - expected).abs() <= 1e-9 * expected.abs(), "{actual} is not {expected}");
    }

    #[test]
    fn a_link_of_one_gigabit_carries_125_megabytes_a_second() {
        assert_eq!(Link::from_gbps(1.0, 0.0).bytes_per_s, 125e6);
    }

    #[test]
    fn a_burst_passes_at_once() {
        let link = Link { latency_s: 1e-3, bytes_per_s: 1e6, burst_bytes: 3e3 };
        // 2 · 1 ms, and 2 · 1/2 · 4 kB without the first 3 kB; shorter vectors take latencies alone.
        assert_close(link.ring_all_reduce_s(2, 4e3), 2e-3 + 1e-3);
        assert_close(link.ring_all_reduce_s(2, 2e3), 2e-3);
        assert_close(link.all_gather_s(3, 4e3), 1e-3 + 5e-3);
    }

    #[test]
    fn ring_time_matches_a_value_computed_by_hand() {
        // 4 ranks, 10 MB, 12.5 MB/s, 1 ms: 6 hops of 1 ms and 1.5 · 10 MB / 12.5 MB/s = 0.006 + 1.2 s.
        let link = Link { latency_s: 1e-3, bytes_per_s: 12.5e6, burst_bytes: 0.0 };
        assert_close(link.ring_all_reduce_s(4, 10e6), 1.206);
        assert_eq!(ring_bytes(4, 10e6), 15e6);
    }

    #[test]
    fn owners_move_the_bytes_of_a_ring_with_two_latencies() {
        // 4 ranks, 10 MB, 12.5 MB/s, 1 ms: 2 ms and 1.2 s.
        let link = Link { latency_s: 1e-3, bytes_per_s: 12.5e6, burst_bytes: 0.0 };
        assert_close(link.owners_all_reduce_s(4, 10e6), 1.202);
        assert_close(link.owners_all_reduce_s(2, 10e6), link.ring_all_reduce_s(2, 10e6));
        assert_eq!(link.owners_all_reduce_s(1, 10e6), 0.0);
    }

    #[test]
    fn tree_time_matches_a_value_computed_by_hand() {
        // 5 ranks: 3 hops up and 3 down, of 1 ms and 1 kB / 1 MB/s each.
        let link = Link { latency_s: 1e-3, bytes_per_s: 1e6, burst_bytes: 0.0 };
        assert_close(link.tree_all_reduce_s(5, 1e3), 0.012);
        assert_eq!(link.tree_all_reduce_s(1, 1e3), 0.0);
        // Short vectors are the tree's, long ones the ring's.
        assert!(link.tree_all_reduce_s(8, 100.0) < link.ring_all_reduce_s(8, 100.0));
        assert!(link.tree_all_reduce_s(8, 1e6) > link.ring_all_reduce_s(8, 1e6));
    }

    #[test]
    fn gather_time_matches_a_value_computed_by_hand() {
        // 8 ranks, 100 kB frames, 12.5 MB/s, 1 ms: 1 ms + 7 · 8 ms.
        let link = Link { latency_s: 1e-3, bytes_per_s: 12.5e6, burst_bytes: 0.0 };
        assert_close(link.all_gather_s(8, 100e3), 0.057);
        assert_eq!(all_gather_bytes(8, 100e3), 700e3);
    }

    #[test]
    fn server_time_matches_values_computed_by_hand() {
        // 3 workers, 10 MB up, 5 MB down, 12.5 MB/s, 1 ms: 2 ms + 45/12.5 s, overlapped 2 ms + 30/12.5 s.
        let link = Link { latency_s: 1e-3, bytes_per_s: 12.5e6, burst_bytes: 0.0 };
        assert_close(link.parameter_server_s(3, 10e6, 5e6), 3.602);
        assert_close(link.parameter_server_overlapped_s(3, 10e6, 5e6), 2.402);
    }

    #[test]
    fn fill_in_matches_values_computed_by_hand() {
        // 1000 · (1 − 0.9²) and 1000 · (1 − 0.9³).
        assert_close(fill_in(1000, 0.1, 2), 190.0);
        assert_close(fill_in(1000, 0.1, 3), 271.0);
        assert_close(union_growth(1000, 0.1, 3), 2.71);
        assert_close(fill_in(1000, 0.1, 1), 100.0);
        assert_eq!(fill_in(1000, 1.0, 2), 1000.0);
        assert_eq!((fill_in(1000, 0.0, 9), fill_in(1000, 0.5, 0)), (0.0, 0.0));
        // A density so small that 1 − ρ is 1 in an f64.
        assert_close(fill_in(1 << 60, 1e-18, 2), 2e-18 * (1_u64 << 60) as f64);
    }

    #[test]
    fn sparse_all_reduce_matches_values_computed_by_hand() {
        // H(1/4) = 0.25·2 + 0.75·0.415037… = 0.811278…; with 32 bits for a fourth: 8.811278…/8 bytes a
        // coordinate.
        assert_close(sparse_frame_bytes(1000, 0.25, 32.0), 1_101.409_765_557_392_2);
        assert_eq!(sparse_frame_bytes(1000, 1.0, 32.0), 4000.0);
        assert_eq!(sparse_frame_bytes(1000, 0.0, 32.0), 0.0);
        // Two ranks at 1/2: the union is 3/4, H = 0.811278…; half of (1 + 16)/8 + (0.811278… + 24)/8.
        let bytes = 1000.0 * (17.0 + 24.811_278_124_459_13) / 16.0;
        assert_close(sparse_all_reduce_bytes(2, 1000, 0.5), bytes);
        let link = Link { latency_s: 1e-3, bytes_per_s: 1e6, burst_bytes: 0.0 };
        assert_close(link.sparse_all_reduce_s(2, 1000, 0.5), 2e-3 + bytes / 1e6);
        assert_eq!((sparse_all_reduce_bytes(1, 9, 0.5), sparse_all_reduce_bytes(4, 0, 0.5)), (0.0, 0.0));
    }

    #[test]
    fn break_even_of_a_gather_codec_matches_a_value_computed_by_hand() {
        // 8 ranks, B = 100 MB, b = 1 MB: ring 175 MB, frames 7 MB, saved 168 MB = 1.344 Gbit;
        // spent 40 ms + 8 · 2.5 ms = 60 ms: 22.4 Gbit/s.
        assert_close(break_even_gather_gbps(8, 100e6, 1e6, 0.040, 0.0025), 22.4);
        // Against bf16: ring 87.5 MB, saved 80.5 MB = 0.644 Gbit: 10.7333… Gbit/s.
        assert_close(break_even_gather_gbps(8, 50e6, 1e6, 0.040, 0.0025), 0.644 / 0.060);
        assert_eq!(break_even_gather_gbps(8, 100e6, 25e6, 0.040, 0.0025), 0.0);
    }

    #[test]
    fn break_even_of_a_linear_codec_matches_a_value_computed_by_hand() {
        // 8 ranks, B = 100 MB, b = 20 MB: 1.75 · 80 MB = 140 MB = 1.12 Gbit; spent 56 ms: 20 Gbit/s.
        assert_close(break_even_linear_gbps(8, 100e6, 20e6, 0.050, 0.006), 20.0);
        assert_eq!(break_even_linear_gbps(8, 100e6, 100e6, 0.050, 0.006), 0.0);
    }

    #[test]
    fn a_world_of_one_moves_nothing_and_never_breaks_even() {
        let link = Link { latency_s: 1.0, bytes_per_s: 1.0, burst_bytes: 0.0 };
        assert_eq!((link.ring_all_reduce_s(1, 9.0), link.all_gather_s(1, 9.0)), (0.0, 0.0));
        assert_eq!((ring_bytes(0, 9.0), all_gather_bytes(0, 9.0)), (0.0, 0.0));
        assert_eq!(break_even_gather_gbps(1, 9.0, 1.0, 1.0, 1.0), 0.0);
    }
}
