//! Small examples worked out by hand, and the costs that the literature states for each coder.

use gradwire::codecs::Dense;
use gradwire::half::{bf16, f16};
use gradwire::registry::GatherCodec;
use gradwire::{Codec, Density, Grad, LayoutRef, Source, Spec, StepKey, Unit};
use gradwire_tests::inputs::{Input, power_of_two};
use gradwire_tests::naive::{self, header::HEADER_BYTES};
use gradwire_tests::run;

fn codec(spelling: &str) -> Codec {
    Spec::parse(spelling).unwrap_or_else(|error| panic!("{spelling}: {error}")).codec
}

const KEY: StepKey = StepKey { seed: 1, step: 0, source: Source::Rank(0) };

fn frame(spelling: &str, grad: &[f32], residual: Option<&mut [f32]>) -> Vec<u8> {
    let units = [Unit::whole(grad.len())];
    run::encode(&codec(spelling), KEY, &LayoutRef::flat(grad.len()), &units, Grad::F32(grad), residual, 0)
        .unwrap()
}

fn decoded(spelling: &str, grad: &[f32]) -> Vec<f32> {
    run::decode(&frame(spelling, grad, None), &LayoutRef::flat(grad.len())).unwrap()
}

/// Bytes of the index and of the value section of a frame of one unit, and its entries.
fn sections(frame: &[u8], n: usize) -> (usize, usize, usize) {
    let info = run::parse(frame, &LayoutRef::flat(n), &run::no_limits(), |frame| {
        frame.units().next().unwrap().info()
    });
    let info = info.unwrap();
    (info.index.unwrap().1, info.values.unwrap().1, info.held)
}

#[test]
fn top_k_with_error_feedback_takes_the_worked_steps() {
    let mut residual = [0.0; 3];
    let step = |grad: [f32; 3], residual: &mut [f32]| {
        run::decode(&frame("topk:density=0.333333333", &grad, Some(residual)), &LayoutRef::flat(3)).unwrap()
    };
    assert_eq!(step([1.0, -3.0, 2.0], &mut residual), [0.0, -3.0, 0.0]);
    assert_eq!(residual, [1.0, 0.0, 2.0]);
    assert_eq!(step([1.0, 1.0, 1.0], &mut residual), [0.0, 0.0, 3.0]);
    assert_eq!(residual, [2.0, 1.0, 0.0]);
}

#[test]
fn values_that_are_levels_are_sent_without_randomness() {
    for step in 0..100 {
        let exact = |spelling: &str, grad: [f32; 3]| {
            let key = StepKey { step, ..KEY };
            let layout = LayoutRef::flat(3);
            let frame =
                run::encode(&codec(spelling), key, &layout, &[Unit::whole(3)], Grad::F32(&grad), None, 0);
            assert_eq!(run::decode(&frame.unwrap(), &layout).unwrap(), grad, "{spelling}");
        };
        // Largest magnitude 3 and Euclidean norm 3, three levels: the levels are the values.
        exact("qsgd:bits=3", [3.0, -1.0, 2.0]);
        exact("qsgd:bits=3,norm=l2", [1.0, -2.0, 2.0]);
        exact("qsgd:bits=ternary", [4.0, -4.0, 4.0]);
        exact("qsgd:bits=4", [7.0, -4.0, 0.0]);
    }
}

#[test]
fn a_zero_bucket_has_norm_zero_and_zero_levels() {
    for entropy in ["fixed", "elias", "rans", "adaptive", "auto"] {
        for norm in ["l2", "max"] {
            assert_eq!(decoded(&format!("qsgd:bits=4,norm={norm},entropy={entropy}"), &[0.0; 9]), [0.0; 9]);
        }
    }
}

/// "0", "100", "110", "101000", "1110000", "10100100000" for 1, 2, 3, 4, 8, 16; the levels are one less, with
/// a sign.
#[test]
fn elias_codes_stand_in_the_frame_as_in_the_textbook() {
    let codes = [(0, "0"), (1, "100"), (2, "110"), (3, "101000"), (7, "1110000"), (15, "10100100000")];
    let mut expected = naive::bits::Bits::default();
    let mut grad = Vec::new();
    for (level, code) in codes {
        for sign in [1.0, -1.0] {
            grad.push(level as f32 * sign);
            expected.digits(code);
            if level > 0 {
                expected.digits(if sign < 0.0 { "1" } else { "0" });
            }
        }
    }
    // Largest magnitude 15 and fifteen levels: the levels are the values.
    let frame = frame("qsgd:bits=5,entropy=elias", &grad, None);
    let expected = expected.bytes();
    assert_eq!(frame[frame.len() - expected.len()..], expected[..]);
    assert_eq!(usize::from(frame[frame.len() - expected.len() - 1]), expected.len());
}

/// r = 3 of 13: its lower bits 101 in one plane, its upper part in unary, a zero and a one, in another.
#[test]
fn a_rice_code_stands_in_the_frame_as_documented() {
    let mut grad = [0.0; 200];
    grad[13] = 1.0;
    let frame = frame("topk:density=0.01,index=rice", &grad, None);
    let body = &frame[HEADER_BYTES..];
    // Step; id, start, 200 in two bytes, kind; one entry, rice and f32; four bytes: block, r = 3, 101, 01;
    // the value 1.0.
    assert_eq!(body, [0, 0, 0, 0xc8, 1, 1, 1, 0x02, 4, 7, 3, 0b101, 0b10, 0, 0, 0x80, 0x3f]);
}

/// Gaps at evenly spaced quantiles of the geometric distribution with this density.
fn geometric(density: f64, entries: usize) -> Vec<f32> {
    let gap = |i: usize| ((1.0 - (i as f64 + 0.5) / entries as f64).ln() / (1.0 - density).ln()) as usize;
    let mut grad = Vec::new();
    // A stride that is prime to the number of entries, so that large and small gaps take turns.
    for i in 0..entries {
        grad.resize(grad.len() + gap(i * 37 % entries), 0.0);
        grad.push(1.0);
    }
    grad
}

#[test]
fn rice_parameters_of_memoryless_gaps_are_those_of_the_literature() {
    for (density, r) in [(0.1, 3), (0.01, 6), (0.001, 9), (0.0001, 13)] {
        let grad = geometric(density, 128);
        let frame = frame("threshold:value=1,index=rice", &grad, None);
        let planes = frame.windows(2).position(|pair| pair[0] == 7 && pair[1] & 31 == r && pair[1] >> 5 == 0);
        assert!(planes.is_some(), "density {density}: the parameter is not {r}");
        let gaps: Vec<u64> = geometric(density, 128)
            .split(|&value| value == 1.0)
            .take(128)
            .map(|zeros| zeros.len() as u64)
            .collect();
        assert_eq!(naive::index::best_rice_parameter(&gaps), u32::from(r));
    }
}

/// 4.756 and 8.108 bits at 10 % and 1 %, 5/128 of a bit for the parameters, and nothing much else; the limits
/// are 4.690 and 8.079.
#[test]
fn rice_indices_cost_what_the_literature_says() {
    for (density, bits) in [("0.1", 4.756), ("0.01", 8.108)] {
        let n = 200_000;
        let frame = frame(
            &format!("topk:density={density},index=rice,memory=none"),
            &Input::Normal(3).values(n),
            None,
        );
        let (index_bytes, _, entries) = sections(&frame, n);
        let per_entry = index_bytes as f64 * 8.0 / entries as f64;
        assert!(
            (bits - 0.06..bits + 5.0 / 128.0 + 0.06).contains(&per_entry),
            "density {density}: {per_entry} bits"
        );
    }
}

#[test]
fn bitmaps_take_over_where_entries_are_dense() {
    for (density, name) in [("0.3", "rice"), ("0.45", "bitmap")] {
        let frame =
            frame(&format!("topk:density={density},memory=none"), &Input::Normal(4).values(20_000), None);
        let info = run::parse(&frame, &LayoutRef::flat(20_000), &run::no_limits(), |frame| {
            frame.units().next().unwrap().info()
        });
        assert_eq!(info.unwrap().index.unwrap().0, name, "density {density}");
    }
}

/// Order-0 entropy of the signed level and relative error of a Gaussian source, buckets of 512, from
/// simulation.
#[test]
fn rans_meets_the_entropy_of_the_levels() {
    for (bits, norm, entropy, nmse) in [
        ("3", "max", 2.080, 0.197),
        ("4", "max", 3.197, 0.036),
        ("8", "max", 7.349, 0.036 * 49.0 / 16_129.0),
        ("4", "l2", 1.054, 1.58),
    ] {
        let n = 1 << 17;
        let grad = Input::Normal(5).values(n);
        let spelling = format!("qsgd:bits={bits},norm={norm},bucket=512,entropy=rans");
        let frame = frame(&spelling, &grad, None);
        let (norm_bytes, level_bytes, _) = sections(&frame, n);
        assert_eq!(norm_bytes, n / 512 * 4);
        let per_element = level_bytes as f64 * 8.0 / n as f64;
        assert!(
            (per_element / entropy - 1.0).abs() < 0.025,
            "{spelling}: {per_element} bits against {entropy}"
        );
        let (error, energy) =
            decoded(&spelling, &grad).iter().zip(&grad).fold((0.0, 0.0), |(error, energy), (a, b)| {
                (error + f64::from(a - b).powi(2), energy + f64::from(*b).powi(2))
            });
        assert!(
            (error / energy / nmse - 1.0).abs() < 0.12,
            "{spelling}: error {} against {nmse}",
            error / energy
        );
    }
}

#[test]
fn ternary_levels_take_a_fifth_of_a_byte() {
    let n = 10_000;
    let frame = frame("qsgd:bits=ternary,entropy=fixed", &Input::Normal(6).values(n), None);
    assert_eq!(sections(&frame, n).1, n / 5);
}

#[test]
fn casts_have_the_range_and_precision_of_their_formats() {
    // The largest finite value, the smallest magnitude, and what is lost below it.
    assert_eq!(
        decoded("f16", &[65_504.0, power_of_two(-24), power_of_two(-25), -power_of_two(-26)]),
        [65_504.0, power_of_two(-24), 0.0, 0.0]
    );
    assert_eq!(
        decoded("bf16", &[bf16::MAX.to_f32(), f32::from_bits(1 << 16)]),
        [bf16::MAX.to_f32(), f32::from_bits(1 << 16)]
    );
    let grad = Input::Range(7).values(1000);
    for (cast, value) in decoded("bf16", &grad).iter().zip(&grad).filter(|(_, value)| value.abs() > 1e-37) {
        assert!((cast / value - 1.0).abs() <= power_of_two(-8), "{value} becomes {cast}");
    }
    // Ties to even: halfway between two neighbours of 1.
    assert_eq!(
        decoded("bf16", &[1.0 + power_of_two(-8), 1.0 + 3.0 * power_of_two(-8)]),
        [1.0, 1.0 + power_of_two(-6)]
    );
    assert_eq!(
        decoded("f16", &[1.0 + power_of_two(-11), 1.0 + 3.0 * power_of_two(-11)]),
        [1.0, 1.0 + power_of_two(-9)]
    );
}

#[test]
fn dense_frames_carry_negative_zeros() {
    let frame = frame("none", &[-0.0, 1.0], None);
    let mut held = Vec::new();
    run::parse(&frame, &LayoutRef::flat(2), &run::no_limits(), |frame| {
        frame.units().for_each(|unit| unit.for_each(|_, value| held.push(value.to_bits())));
    })
    .unwrap();
    assert_eq!(held, [0x8000_0000, 0x3f80_0000]);
}

#[test]
fn entries_are_counted_by_rounding_halves_up_and_never_zero() {
    for (density, n, k) in [
        (0.01, 269_722, 2697),
        (0.5, 3, 2),
        (0.5, 1, 1),
        (1e-9, 100, 1),
        (0.001, 1499, 1),
        (0.001, 1500, 2),
        (1.0, 7, 7),
        (0.1, 0, 0),
    ] {
        let density = Density::new(density).unwrap();
        assert_eq!((density.count(n), naive::encode::count(density, n)), (k, k), "{density} of {n}");
    }
}

#[test]
fn half_precision_inputs_are_widened_exactly() {
    let values = Input::Normal(8).values(100);
    let (halves, brains): (Vec<f16>, Vec<bf16>) =
        values.iter().map(|&v| (f16::from_f32(v), bf16::from_f32(v))).unzip();
    let layout = LayoutRef::flat(100);
    let same = |grad: Grad<'_>, widened: Vec<f32>| {
        let frame = run::encode(&codec("none"), KEY, &layout, &[Unit::whole(100)], grad, None, 0).unwrap();
        assert_eq!(run::decode(&frame, &layout).unwrap(), widened);
    };
    same(Grad::F16(&halves), halves.iter().map(|half| half.to_f32()).collect());
    same(Grad::Bf16(&brains), brains.iter().map(|brain| brain.to_f32()).collect());
}

#[test]
fn only_the_casts_and_none_are_dense() {
    for (spelling, dense) in [("none", Dense::F32), ("f16", Dense::F16), ("bf16", Dense::Bf16)] {
        assert_eq!(codec(spelling), Codec::Gather(GatherCodec::Dense(dense)));
    }
}

/// A published check value: Philox4x32-10 of zeros, and CRC-32C of the digits. What the reference itself
/// stands on.
#[test]
fn the_naive_reference_agrees_with_published_vectors() {
    assert_eq!(
        naive::draws::philox([0; 4], [0; 2], 10),
        [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
    );
    let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
    assert_eq!(
        naive::draws::philox(pi, [0xa409_3822, 0x299f_31d0], 10),
        [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
    );
    assert_eq!(naive::checksum::crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(naive::checksum::crc32c(&[0; 32]), 0x8a91_36aa);
}
