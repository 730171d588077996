//! Tests of known answers, and that no stream repeats another one, shifted or permuted.

extern crate std;

use super::stream::philox;
use super::*;
use rand_core::{Rng, SeedableRng};
use std::{vec, vec::Vec};

/// Known answers published with the authors' reference implementation.
#[test]
fn philox_gives_the_published_answers() {
    let ones = [u32::MAX; 4];
    let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
    let pi_key = [0xa409_3822, 0x299f_31d0];
    assert_eq!(philox([0; 4], [0; 2], 7), [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48]);
    assert_eq!(philox([0; 4], [0; 2], 10), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    assert_eq!(philox(ones, [u32::MAX; 2], 10), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    assert_eq!(philox(pi, pi_key, 10), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
}

#[test]
fn sequential_draws_are_the_random_access_draws() {
    let mut stream = Stream::new(7, 3, 2, 1, Purpose::Rounding);
    let expected: [u64; 5] = core::array::from_fn(|i| stream.u64_at(i as u64));
    let drawn: [u64; 5] = core::array::from_fn(|_| stream.next_u64());
    assert_eq!(drawn, expected);
}

#[test]
fn draws_made_together_are_the_draws_made_one_by_one() {
    let stream = Stream::new(7, 3, 2, 1, Purpose::Rounding);
    let mut together = [0u16; 128];
    stream.fill_u16((1 << 32) - 3, &mut together);
    for (i, draws) in together.chunks(8).enumerate() {
        assert_eq!(draws, stream.u16x8_at((1 << 32) - 3 + i as u64));
    }
}

#[test]
fn every_part_of_the_key_changes_the_stream() {
    let base = Stream::new(7, 3, 2, 1, Purpose::Rounding).block(0);
    for other in [
        Stream::new(8, 3, 2, 1, Purpose::Rounding),
        Stream::new(7 + (1 << 32), 3, 2, 1, Purpose::Rounding),
        Stream::new(7, 4, 2, 1, Purpose::Rounding),
        Stream::new(7, 3 + (1 << 32), 2, 1, Purpose::Rounding),
        Stream::new(7, 3, 3, 1, Purpose::Rounding),
        Stream::new(7, 3, 2, 2, Purpose::Rounding),
        Stream::new(7, 3, 2, 1, Purpose::Selection),
    ] {
        assert_ne!(other.block(0), base);
    }
}

#[test]
fn draws_below_a_bound_stay_below_it_and_reach_both_ends() {
    let stream = Stream::from_seed([1; 8]);
    let mut seen = [0u32; 5];
    for i in 0..1000 {
        seen[stream.below_at(i, 5) as usize] += 1;
    }
    // 1000 draws over 5 cells: mean 200, standard deviation 12.6; five of them either side.
    assert!(seen.iter().all(|&count| (137..=263).contains(&count)), "{seen:?}");
}

/// Keys that differ as little as possible: neighbours, single bits, parts exchanged, and every purpose.
fn related_streams() -> Vec<Stream> {
    let base = (7u64, 3u64, 2u32, 5u32);
    let mut keys = vec![base];
    for bit in 0..64 {
        keys.push((base.0 ^ 1 << bit, base.1, base.2, base.3));
        keys.push((base.0, base.1 ^ 1 << bit, base.2, base.3));
    }
    for bit in 0..32 {
        keys.push((base.0, base.1, base.2 ^ 1 << bit, base.3));
    }
    for bit in 0..30 {
        keys.push((base.0, base.1, base.2, base.3 ^ 1 << bit));
    }
    for by in 8..24 {
        keys.extend([
            (7, 3 + by, 2, 5),
            (7, 3, 2 + by as u32, 5),
            (7, 3, 2, 5 + by as u32),
            (7 + by, 3, 2, 5),
        ]);
    }
    keys.extend([(3, 7, 2, 5), (7, 2, 3, 5), (7, 3, 5, 2), (2, 3, 7, 5), (5, 3, 2, 7), (7, 5, 2, 3)]);
    keys.sort_unstable();
    keys.dedup();
    let stream = |&(seed, step, unit, source): &(u64, u64, u32, u32), purpose| {
        Stream::new(seed, step, unit, source, purpose)
    };
    let purposes = [Purpose::Rounding, Purpose::Selection, Purpose::Caller, Purpose::Experiment];
    keys.iter().flat_map(|key| purposes.map(|purpose| stream(key, purpose))).collect()
}

/// The positions that the tests examine: the beginning, and around every power of two, to find shifts of that
/// size.
fn positions() -> impl Iterator<Item = u64> {
    (0..256).chain((9..64).flat_map(|log2| (0..4u64).map(move |i| (1 << log2) - 2 + i)))
}

/// A permutation of a stream has all of its draws, and a shift all but a few; of 400,000 independent draws of
/// 64 bits two are equal in one case out of 10⁸.
#[test]
fn streams_of_different_keys_share_no_draw() {
    let streams = related_streams();
    assert!(streams.len() > 500);
    let mut draws: Vec<u64> =
        streams.iter().flat_map(|stream| positions().map(|i| stream.u64_at(i))).collect();
    let count = draws.len();
    draws.sort_unstable();
    draws.dedup();
    assert_eq!(draws.len(), count);
}

/// The same for the draws of 16 bits that rounding takes: whatever the shift, two streams agree as rarely as
/// chance has it.
#[test]
fn streams_of_different_keys_agree_by_chance_alone_at_every_shift() {
    const LEN: usize = 1024;
    let draws =
        |stream: &Stream| -> Vec<u16> { (0..LEN as u64 / 8).flat_map(|i| stream.u16x8_at(i)).collect() };
    let agree = |a: &[u16], b: &[u16]| a.iter().zip(b).filter(|(a, b)| a == b).count();
    let first = draws(&Stream::new(7, 3, 2, 5, Purpose::Rounding));
    for other in [
        Stream::new(8, 3, 2, 5, Purpose::Rounding),
        Stream::new(7, 4, 2, 5, Purpose::Rounding),
        Stream::new(7, 3, 3, 5, Purpose::Rounding),
        Stream::new(7, 3, 2, 6, Purpose::Rounding),
        Stream::new(7, 2, 3, 5, Purpose::Rounding),
        Stream::new(7, 3, 5, 2, Purpose::Rounding),
        Stream::new(7, 3, 2, 5, Purpose::Selection),
    ] {
        let other = draws(&other);
        for shift in 0..LEN / 2 {
            let equal = agree(&first[shift..], &other).max(agree(&first, &other[shift..]));
            // At most 1024 pairs, each equal in one case of 2¹⁶: eight are expected once in 10¹⁸ shifts.
            assert!(equal < 8, "{equal} draws are equal at shift {shift}");
        }
    }
}

/// Streams with different words (Philox key, upper half of the counter) never share a counter under one key;
/// 2¹⁶ keys in a row have 2¹⁶ different words, and no two of them the same Philox key with neighbouring
/// counters.
#[test]
fn consecutive_keys_have_words_of_their_own() {
    let streams: [fn(u32) -> Stream; 3] = [
        |i| Stream::new(1, i.into(), 0, 0, Purpose::Rounding),
        |i| Stream::new(1, 0, i, 0, Purpose::Rounding),
        |i| Stream::new(1, 0, 0, i, Purpose::Rounding),
    ];
    for stream in streams {
        let mut words: Vec<_> = (0..1 << 16).map(|i| stream(i).words()).collect();
        words.sort_unstable();
        assert!(words.windows(2).all(|pair| pair[0] != pair[1]));
        let mut keys: Vec<_> = words.iter().map(|[key, _]| *key).collect();
        keys.dedup();
        // 2³¹ pairs of 2⁶⁴ keys: none is expected to be equal.
        assert_eq!(keys.len(), words.len());
    }
}
