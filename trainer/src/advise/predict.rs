//! How long a step takes, by a model with three parts: computing, coding, and moving bytes.
//!
//! With N workers, dense bytes B, frame bytes b, one-way latency α and bandwidth BW of each worker's link:
//!
//! | exchange | moving | coding |
//! | --- | --- | --- |
//! | ring | 2(N−1)·α + 2(N−1)/N · B/BW | (N−1)/N · one addition of the gradient |
//! | ring of bf16 | the same with B/2 | (N−1)/N · (encoding + decoding of bf16) + one of both |
//! | owners | 2α + 2(N−1)/N · B/BW | (N−1)/N · one addition of the gradient |
//! | owners with bf16 | the same with B/2 | two encodings and two decodings of bf16 |
//! | all-gather | α + (N−1)·b/BW | one encode, N decodes |
//! | sparse | [`Link::sparse_all_reduce_s`], with the codec's bytes an entry where it takes more | one encode, two decodes, of the frame and the union |
//! | rounds | a ring or owners for the payload of each round | one encode, one decode |
//!
//! A tree takes 2⌈log2 N⌉·(α + B/BW) and ⌈log2 N⌉ additions, which is never less than owners take.
//!
//! Computing and coding share a processor and never overlap. Moving overlaps with the backward pass where the
//! framework sends a gradient in buckets, as [`Overlap`] says.
//!
//! # Source
//! Agarwal, Wang, Venkataraman, Papailiopoulos: On the Utility of Gradient Compression in Distributed
//! Training Systems (MLSys 2022, arXiv 2103.00543), section 4. Ours are: latency of 2(N−1) messages around a
//! ring but of one message where all are sent at once, N decodes of gathered frames, and the share of a step
//! that is backward.

use gradwire_transports::cost::{Link, all_gather_bytes, ring_bytes, sparse_frame_bytes, union_growth};
use serde::Serialize;

use super::costs::Costs;
use crate::codec_cli::{Cost, CostKind};

/// Workers, their links, and what they compute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Setup {
    /// Workers that train together.
    pub(crate) workers: usize,
    /// The link of each.
    pub(crate) link: Link,
    /// Seconds of a step without any exchange: forward, backward, optimizer.
    pub(crate) compute_s: f64,
    /// How much of the exchange runs beside the backward pass.
    pub(crate) overlap: Overlap,
    /// Rate in Gbit/s at which a gradient comes from a GPU to the codec, and its mean goes back; none where
    /// the gradient is in the memory of the codec.
    pub(crate) copy_gbps: Option<f64>,
}

impl Setup {
    /// Seconds until the codec has the gradient, and after it until the GPU has the mean.
    fn copies_s(&self, costs: &Costs) -> f64 {
        self.copy_gbps.map_or(0.0, |gbps| 2.0 * 8e-9 * costs.dense_bytes() / gbps)
    }
}

/// Exchanging a gradient while the rest of it is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Overlap {
    /// Parts of equal length in which a gradient is sent; all but the last beside the backward pass. 1 if
    /// nothing overlaps.
    pub(crate) buckets: u32,
    /// How many times as long the backward pass takes beside an exchange as it takes alone, at least 1.
    pub(crate) slowdown: f64,
}

/// The share of computing that is the backward pass: twice the work of the forward pass.
const BACKWARD: f64 = 2.0 / 3.0;

/// How bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Route {
    /// Sums around a ring.
    Ring,
    /// Sums around a ring, two bytes an element.
    RingBf16,
    /// Each part summed by its owner, which sends it to all.
    Owners,
    /// The same, two bytes an element.
    OwnersBf16,
    /// Frames to everybody.
    AllGather,
    /// Sums of sparse frames, each at the owner of its coordinates.
    Sparse,
}

impl Route {
    /// Its name in the documentation.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::RingBf16 => "ring of bf16",
            Self::Owners => "owners",
            Self::OwnersBf16 => "owners with bf16",
            Self::AllGather => "all-gather",
            Self::Sparse => "sparse all-reduce",
        }
    }
}

/// A step with one exchange; times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Step {
    /// How bytes travel.
    pub(crate) exchange: Route,
    /// Encoding, decoding and adding.
    pub(crate) coding_s: f64,
    /// From the first byte that is sent to the last that is received.
    pub(crate) moving_s: f64,
    /// Bytes that each worker sends.
    pub(crate) bytes: f64,
    /// The whole step.
    pub(crate) total_s: f64,
}

/// The exchanges that sum, with elements of f32 all the way.
const SUMS: [Route; 2] = [Route::Ring, Route::Owners];

/// Dense training: the fastest of its exchanges, with elements of f32 all the way.
pub(crate) fn dense(costs: &Costs, setup: &Setup) -> Step {
    let add_s = share_of_others(setup) * costs.add_s;
    fastest(SUMS.map(|exchange| summed(exchange, costs.dense_bytes(), 1, add_s, setup).step(setup)))
}

/// Dense training by the faster of the exchanges whose elements take two bytes.
pub(crate) fn dense_bf16(costs: &Costs, setup: &Setup) -> Step {
    let bytes = costs.dense_bytes() / 2.0;
    let both = (costs.bf16.encode_s + costs.bf16.decode_s) * f64::from(u8::from(setup.workers > 1));
    let by = |exchange, times| summed(exchange, bytes, 1, times * both, setup).step(setup);
    fastest([
        // Each hop of the sums converts both ways; the sums that are then passed on are converted once.
        by(Route::RingBf16, share_of_others(setup) + 1.0),
        // Shares are converted both ways, and so are sums; the owner rounds its own.
        by(Route::OwnersBf16, 2.0),
    ])
}

/// A codec, by the fastest of the exchanges that carry it.
pub(crate) fn compressed(cost: &Cost, costs: &Costs, setup: &Setup) -> Step {
    // Copies to the codec and back are coding: they take the time of every exchange.
    let step = |parts: Parts| {
        let coding_s = parts.coding_s + setup.copies_s(costs);
        Parts { coding_s, ..parts }.step(setup)
    };
    let gathered = || step(gathered(cost, setup));
    match cost.kind {
        CostKind::Dense => dense(costs, setup),
        CostKind::Frames => gathered(),
        CostKind::Sparse { density } => {
            fastest([gathered(), step(summed_sparse(cost, density, costs.coordinates, setup))])
        }
        CostKind::Rounds(rounds) => {
            let coding_s = cost.encode_s + cost.decode_s;
            let by = |exchange| step(summed(exchange, cost.bytes as f64, rounds, coding_s, setup));
            fastest(SUMS.map(by))
        }
    }
}

/// The times of an exchange, before it is known how much of it overlaps.
struct Parts {
    exchange: Route,
    coding_s: f64,
    moving_s: f64,
    bytes: f64,
}

impl Parts {
    fn step(self, setup: &Setup) -> Step {
        let Self { exchange, coding_s, moving_s, bytes } = self;
        Step { exchange, coding_s, moving_s, bytes, total_s: coding_s + beside(setup, moving_s) }
    }
}

/// The fastest, and the first of those that take equally long.
fn fastest<const N: usize>(steps: [Step; N]) -> Step {
    let faster = |one: Step, other: Step| if other.total_s < one.total_s { other } else { one };
    steps.into_iter().reduce(faster).unwrap_or_else(|| unreachable!("a codec has an exchange"))
}

fn gathered(cost: &Cost, setup: &Setup) -> Parts {
    Parts {
        exchange: Route::AllGather,
        coding_s: cost.encode_s + setup.workers as f64 * cost.decode_s,
        moving_s: setup.link.all_gather_s(setup.workers, cost.bytes as f64),
        bytes: all_gather_bytes(setup.workers, cost.bytes as f64),
    }
}

/// Each worker sends the entries of others' coordinates to their owners, and gets the sums of all. Values
/// travel as f32, so an entry takes as many bytes as in the codec's frames, or as an f32 at a random
/// coordinate if that is more; sums take no more than the dense gradient.
fn summed_sparse(cost: &Cost, density: f64, coordinates: usize, setup: &Setup) -> Parts {
    let n = coordinates as f64;
    let growth = union_growth(coordinates, density, setup.workers);
    let frame = sparse_frame_bytes(coordinates, density, 32.0).max(cost.bytes as f64);
    let bytes = share_of_others(setup) * (frame + (frame * growth).min(4.0 * n));
    Parts {
        exchange: Route::Sparse,
        coding_s: cost.encode_s + (1.0 + growth) * cost.decode_s,
        moving_s: 2.0 * setup.link.all_gather_s(setup.workers, 0.0) + setup.link.busy_s(bytes),
        bytes,
    }
}

/// So many bytes that are summed in so many rounds. The bytes count once. What each further round adds is the
/// latency of a round without any.
fn summed(exchange: Route, bytes: f64, rounds: u32, coding_s: f64, setup: &Setup) -> Parts {
    let Setup { link, workers, .. } = *setup;
    let seconds = |bytes| match exchange {
        Route::Owners | Route::OwnersBf16 => link.owners_all_reduce_s(workers, bytes),
        _ => link.ring_all_reduce_s(workers, bytes),
    };
    let moving_s = seconds(bytes) + (f64::from(rounds) - 1.0) * seconds(0.0);
    Parts { exchange, coding_s, moving_s, bytes: ring_bytes(workers, bytes) }
}

/// (N−1)/N: the part of a gradient that is summed or kept elsewhere.
fn share_of_others(setup: &Setup) -> f64 {
    setup.workers.saturating_sub(1) as f64 / (setup.workers as f64).max(1.0)
}

/// Computing and an exchange, which overlap as far as the setup says.
fn beside(setup: &Setup, moving_s: f64) -> f64 {
    let Overlap { buckets, slowdown } = setup.overlap;
    let last = moving_s / f64::from(buckets.max(1));
    if buckets <= 1 {
        return setup.compute_s + last;
    }
    let backward = BACKWARD * setup.compute_s;
    setup.compute_s - backward + (slowdown * backward).max(moving_s - last) + last
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(kind: CostKind, bytes: usize) -> Cost {
        let codec = String::from("codec");
        let (nmse, cosine) = (None, None);
        Cost { codec, kind, bytes, encode_s: 2e-3, decode_s: 1e-3, memcpy_s: 1e-3, nmse, cosine }
    }

    /// A million elements, added in 0.5 ms.
    fn costs() -> Costs {
        Costs {
            coordinates: 1_000_000,
            side_by_side: 1,
            add_s: 5e-4,
            dense: cost(CostKind::Dense, 4_000_020),
            bf16: cost(CostKind::Frames, 2_000_020),
            codecs: Vec::new(),
            failed: Vec::new(),
            conditions: None,
            measured_coordinates: None,
        }
    }

    /// Four workers on 100 Mbit/s with 1 ms of latency, 50 ms of computing.
    fn setup() -> Setup {
        let link = Link { latency_s: 1e-3, bytes_per_s: 12.5e6, burst_bytes: 0.0 };
        let overlap = Overlap { buckets: 1, slowdown: 1.0 };
        Setup { workers: 4, link, compute_s: 0.05, overlap, copy_gbps: None }
    }

    fn assert_close(actual: f64, expected: f64) {
        assert!((actual - expected).abs() <= 1e-9 * expected.abs(), "{actual} is not {expected}");
    }

    #[test]
    fn dense_steps_match_values_computed_by_hand() {
        // 50 ms + 2 ms + 1.5 · 4 MB / 12.5 MB/s + 3/4 · 0.5 ms.
        let step = dense(&costs(), &setup());
        assert_eq!((step.exchange, step.bytes), (Route::Owners, 6e6));
        assert_close(step.total_s, 0.05 + 0.002 + 0.48 + 0.000375);
        // Half the bytes, and 2 · 3 ms of converting.
        let step = dense_bf16(&costs(), &setup());
        assert_eq!((step.exchange, step.bytes), (Route::OwnersBf16, 3e6));
        assert_close(step.total_s, 0.05 + 0.002 + 0.24 + 0.006);
        // Two workers: as many messages one after the other around a ring, which converts 1.5 times.
        let two = Setup { workers: 2, ..setup() };
        assert_eq!(dense(&costs(), &two).exchange, Route::Ring);
        let step = dense_bf16(&costs(), &two);
        assert_eq!((step.exchange, step.bytes), (Route::RingBf16, 2e6));
        assert_close(step.total_s, 0.05 + 0.002 + 0.16 + 0.0045);
    }

    /// The cost model has a tree, and owners are why it is not asked here.
    #[test]
    fn a_tree_is_never_faster_than_owners() {
        for workers in [1, 2, 3, 16, 4096] {
            for latency_s in [0.0, 1e-5, 0.3] {
                for bytes in [0.0, 400.0, 4e6] {
                    let link = Link { latency_s, ..setup().link };
                    let tree = link.tree_all_reduce_s(workers, bytes);
                    assert!(
                        link.owners_all_reduce_s(workers, bytes) <= tree,
                        "{workers} {latency_s} {bytes}"
                    );
                }
            }
        }
    }

    #[test]
    fn gathered_frames_match_a_value_computed_by_hand() {
        // 50 ms + 2 ms + 4 · 1 ms + 1 ms + 3 · 50 kB / 12.5 MB/s.
        let step = compressed(&cost(CostKind::Frames, 50_000), &costs(), &setup());
        assert_eq!((step.exchange, step.bytes), (Route::AllGather, 150e3));
        assert_close(step.total_s, 0.05 + 0.006 + 0.013);
        assert_close(step.moving_s, 0.013);
    }

    #[test]
    fn sums_of_sparse_frames_match_a_value_computed_by_hand() {
        // Two workers at density 1/2: the union is 3/4, so 1.5 frames of 2.5 MB; 1/2 · (2.5 + 3.75) MB.
        let setup = Setup { workers: 2, ..setup() };
        let summed =
            |bytes| summed_sparse(&cost(CostKind::Sparse { density: 0.5 }, bytes), 0.5, 1_000_000, &setup);
        let parts = summed(2_500_000);
        assert_close(parts.bytes, 3.125e6);
        assert_close(parts.coding_s, 2e-3 + 2.5e-3);
        assert_close(parts.moving_s, 2e-3 + 0.25);
        // Values of few bits travel as f32, half a million of them in (1 + 16)/8 MB.
        assert_close(summed(500_000).bytes, 0.5 * 2.5 * 2.125e6);
        // With many workers it moves less than frames that go to all.
        let many = Setup { workers: 256, ..setup };
        let sparse = cost(CostKind::Sparse { density: 0.01 }, 50_000);
        assert_eq!(compressed(&sparse, &costs(), &many).exchange, Route::Sparse);
    }

    /// 4 MB there and back at 64 Gbit/s are 1 ms. Dense gradients stay where they are.
    #[test]
    fn a_codec_waits_for_its_gradient_from_a_gpu_and_dense_sums_do_not() {
        let (costs, far) = (costs(), Setup { copy_gbps: Some(64.0), ..setup() });
        for kind in [CostKind::Frames, CostKind::Sparse { density: 0.01 }, CostKind::Rounds(2)] {
            let total = |setup: &Setup| compressed(&cost(kind, 40_000), &costs, setup).total_s;
            assert_close(total(&far), total(&setup()) + 1e-3);
        }
        assert_close(dense(&costs, &far).total_s, dense(&costs, &setup()).total_s);
        assert_close(dense_bf16(&costs, &far).total_s, dense_bf16(&costs, &setup()).total_s);
    }

    #[test]
    fn rounds_pay_latency_each() {
        // 2 rounds of 2 ms, 1.5 · 40 kB / 12.5 MB/s, 3 ms of coding.
        let step = compressed(&cost(CostKind::Rounds(2), 40_000), &costs(), &setup());
        assert_eq!(step.exchange, Route::Owners);
        assert_close(step.total_s, 0.05 + 0.004 + 0.0048 + 0.003);
    }

    #[test]
    fn all_buckets_but_the_last_move_beside_the_backward_pass() {
        let overlap = Overlap { buckets: 4, slowdown: 1.1 };
        let setup = Setup { overlap, ..setup() };
        // The exchange is shorter than the backward pass: 1/3 · 50 ms + 1.1 · 2/3 · 50 ms + 1/4 · 8 ms.
        assert_close(beside(&setup, 0.008), 0.05 / 3.0 + 1.1 * 0.1 / 3.0 + 0.002);
        // The exchange is longer: 1/3 · 50 ms + 400 ms.
        assert_close(beside(&setup, 0.4), 0.05 / 3.0 + 0.4);
    }

    #[test]
    fn one_worker_moves_nothing() {
        let alone = Setup { workers: 1, ..setup() };
        assert_eq!(dense(&costs(), &alone).total_s, 0.05);
        let bf16 = dense_bf16(&costs(), &alone);
        assert_eq!((bf16.moving_s, bf16.coding_s, bf16.total_s), (0.0, 0.0, 0.05));
    }
}
