//! Truncated, flipped and random bytes: refused, or a frame that the naive decoder reads in the same way;
//! never a panic, and an accumulator is touched by accepted frames alone.

use gradwire::{DecodeError, LayoutRef};
use gradwire_tests::golden::{self, Golden};
use gradwire_tests::naive::{self, header};
use gradwire_tests::run::{self, bits};
use proptest::prelude::*;

/// Parses and, if that succeeds, adds to an accumulator that holds something already.
fn add(bytes: &[u8], layout: &LayoutRef<'_>, acc: &mut [f32]) -> Result<(), DecodeError> {
    run::parse(bytes, layout, &run::no_limits(), |frame| frame.add_scaled_to(1.0, acc))
}

/// Refuses or accepts `bytes` as the naive decoder does, with the same sums.
fn agree(bytes: &[u8], shapes: &[Vec<usize>], what: impl Fn() -> String) {
    let layout = run::layout(shapes);
    let mut acc = vec![0.5; layout.len()];
    let result = add(bytes, &layout.as_ref(), &mut acc);
    match naive::decode::decode(bytes, shapes) {
        Err(why) => {
            assert!(result.is_err(), "{}: accepted, but {why}", what());
            assert!(acc.iter().all(|&sum| sum == 0.5), "{}: the accumulator was touched", what());
        }
        Ok(naive) => {
            assert_eq!(result, Ok(()), "{}: refused without need", what());
            let mut sums = vec![0.5; layout.len()];
            for unit in &naive.units {
                unit.entries.iter().for_each(|&(i, value)| sums[unit.start + i] += value);
            }
            assert_eq!(bits(&acc), bits(&sums), "{}", what());
            assert!(acc.iter().all(|sum| sum.is_finite()), "{}: not finite", what());
        }
    }
}

/// Frames of long units are worth looking at too, but not bit by bit without optimisation.
fn stride(golden: &Golden, bytes: usize) -> usize {
    let work = 8 * bytes * (bytes + golden.layout().len());
    let affordable = if cfg!(debug_assertions) { 400_000 } else { 300_000_000 };
    // Odd, so that every bit of a byte has its turn.
    (work / affordable) | 1
}

#[test]
fn every_flipped_bit_is_found_by_the_checksum_or_before() {
    for golden in golden::all() {
        let (frame, layout) = (golden.frame(), golden.layout());
        let mut acc = vec![0.5; layout.len()];
        for bit in (0..8 * frame.len()).step_by(stride(&golden, frame.len())) {
            let mut flipped = frame.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(add(&flipped, &layout.as_ref(), &mut acc).is_err(), "{}: bit {bit}", golden.name);
        }
        assert!(acc.iter().all(|&sum| sum == 0.5), "{}: the accumulator was touched", golden.name);
    }
}

#[test]
fn every_truncation_is_refused() {
    for golden in golden::all() {
        let (frame, layout) = (golden.frame(), golden.layout());
        let mut acc = vec![0.5; layout.len()];
        for len in 0..frame.len() {
            let error = add(&frame[..len], &layout.as_ref(), &mut acc);
            assert!(matches!(error, Err(DecodeError::Truncated { .. })), "{}: cut to {len}", golden.name);
        }
        assert!(acc.iter().all(|&sum| sum == 0.5), "{}: the accumulator was touched", golden.name);
    }
}

/// Sets the length field, then the checksum.
fn mend(frame: &mut [u8]) {
    if let Some(body_bytes) = frame.len().checked_sub(header::HEADER_BYTES) {
        frame[16..20].copy_from_slice(&(body_bytes as u32).to_le_bytes());
        header::patch_checksum(frame);
    }
}

#[test]
fn every_truncation_with_length_and_checksum_mended_is_judged_as_the_naive_decoder_does() {
    for golden in golden::all() {
        let frame = golden.frame();
        for len in (0..frame.len()).step_by(stride(&golden, frame.len())) {
            let mut cut = frame[..len].to_vec();
            mend(&mut cut);
            agree(&cut, &golden.shapes, || format!("{} cut to {len}", golden.name));
        }
    }
}

#[test]
fn every_flipped_bit_with_checksum_mended_is_judged_as_the_naive_decoder_does() {
    for golden in golden::all() {
        let frame = golden.frame();
        for bit in (0..8 * frame.len()).step_by(stride(&golden, frame.len())) {
            let mut flipped = frame.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            header::patch_checksum(&mut flipped);
            agree(&flipped, &golden.shapes, || format!("{} with bit {bit} flipped", golden.name));
        }
    }
}

#[test]
fn extreme_bytes_anywhere_are_judged_as_the_naive_decoder_does() {
    for golden in golden::all() {
        let frame = golden.frame();
        for at in (header::HEADER_BYTES..frame.len()).step_by(stride(&golden, frame.len())) {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = frame.clone();
                changed[at] = byte;
                header::patch_checksum(&mut changed);
                agree(&changed, &golden.shapes, || format!("{} with byte {at} = {byte:#x}", golden.name));
            }
        }
    }
}

#[test]
fn an_extra_or_missing_byte_anywhere_is_judged_as_the_naive_decoder_does() {
    for golden in golden::all() {
        let frame = golden.frame();
        for at in (header::HEADER_BYTES..frame.len()).step_by(stride(&golden, frame.len())) {
            let mut longer = frame.clone();
            longer.insert(at, 0x80);
            mend(&mut longer);
            agree(&longer, &golden.shapes, || format!("{} with a byte put in at {at}", golden.name));
            let mut shorter = frame.clone();
            shorter.remove(at);
            mend(&mut shorter);
            agree(&shorter, &golden.shapes, || format!("{} with byte {at} taken out", golden.name));
        }
    }
}

/// A frame for 40 elements whose header is right and whose only unit, of the codec's kind, has this body.
fn unit_of(codec: u8, kind: u8, body: &[u8]) -> Vec<u8> {
    let print = header::fingerprint(&[vec![40]]);
    header::frame(codec, 1, print, &[&[0, 0, 0, 40, kind][..], body].concat())
}

/// Bytes that are small more often than not, as counts and coders are.
fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![3 => any::<u8>(), 3 => 0u8..8, 1 => Just(0), 1 => Just(0xff)], 0..max)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(debug_assertions) { 1_500 } else { 100_000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_bytes_are_judged_as_the_naive_decoder_does(bytes in bytes(200)) {
        agree(&bytes, &[vec![40]], || format!("{bytes:?}"));
    }

    #[test]
    fn random_messages_are_judged_as_the_naive_decoder_does(codec in 0u8..8, count in 1u16..4, body in bytes(120)) {
        let frame = header::frame(codec, count, header::fingerprint(&[vec![40]]), &body);
        agree(&frame, &[vec![40]], || format!("{frame:?}"));
    }

    #[test]
    fn random_bodies_are_judged_as_the_naive_decoder_does(
        (codec, kind) in prop::sample::select(vec![(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 3), (3, 0)]),
        body in bytes(120),
    ) {
        agree(&unit_of(codec, kind, &body), &[vec![40]], || format!("{codec} {kind} {body:?}"));
    }

    #[test]
    fn random_sparse_sections_are_judged_as_the_naive_decoder_does(
        k in 1u8..40, index in 0u8..3, values in 0u8..4, section in bytes(100),
    ) {
        let body = [&[k, index | values << 4][..], &section].concat();
        agree(&unit_of(3, 1, &body), &[vec![40]], || format!("{body:?}"));
    }

    #[test]
    fn random_levels_are_judged_as_the_naive_decoder_does(
        width in 2u8..9, norm in 0u8..2, packing in 0u8..4, bucket in prop::sample::select(vec![1u8, 7, 8, 40, 100]),
        zeros in any::<u8>(), packed in bytes(100),
    ) {
        let norms = (0..40usize.div_ceil(usize::from(bucket))).flat_map(|i| {
            let norm = if zeros >> (i % 8) & 1 == 1 { 0.0f32 } else { 1.5 };
            norm.to_le_bytes()
        });
        let mut body = vec![width | packing << 4, norm, bucket];
        body.extend(norms);
        body.extend(packed);
        agree(&unit_of(5, 2, &body), &[vec![40]], || format!("{body:?}"));
    }

    #[test]
    fn random_streams_of_levels_are_judged_as_the_naive_decoder_does(
        width in 2u8..9, norm in 0u8..2, bucket in prop::sample::select(vec![1u8, 7, 8, 40, 100]),
        first in 0u8..102, stream in bytes(100),
    ) {
        let mut body = vec![width | 4 << 4, norm | 2 << 4, bucket, first.min(bucket.saturating_add(1)), stream.len() as u8];
        body.extend(stream);
        agree(&unit_of(5, 2, &body), &[vec![40]], || format!("{body:?}"));
    }
}
