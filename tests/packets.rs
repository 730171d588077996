//! A gradient as several frames: each decodes alone, none is too long, and what they hold together is what
//! one frame holds.

use gradwire::packets::PacketSize;
use gradwire::state::MemoryChoice;
use gradwire::{
    Codec, EncodeError, Gather, Grad, LayoutRef, Memory, Scratch, Source, Spec, StepInput, StepKey, Unit,
};
use gradwire_tests::gradients;
use gradwire_tests::inputs::{Input, Words};
use gradwire_tests::naive::{self, encode::Job};
use gradwire_tests::run::{self, Kept, bits};
use gradwire_tests::spellings::{and_examples, is_cut};

/// Every coder, with and without a memory.
const CODERS: [&str; 38] = [
    "none",
    "f16",
    "bf16",
    "f16:memory=ef",
    "bf16:memory=ef",
    "topk:density=0.01",
    "topk:density=0.3,index=raw",
    "topk:density=1,index=rice,memory=none",
    "topk:density=0.1,values=f16",
    "topk:density=0.5,values=bf16",
    "topk:density=0.2,values=q8",
    "topk:density=0.2,values=q4",
    "topk:density=0.9,values=q2",
    "topk:density=0.3,values=q4,memory=none",
    "threshold:value=0.5",
    "threshold:value=0,values=q2",
    "threshold:value=9e30",
    "qsgd:bits=4",
    "qsgd:bits=ternary,bucket=16,entropy=fixed",
    "qsgd:bits=8,bucket=1,entropy=elias",
    "qsgd:bits=2,bucket=100000,rounding=nearest",
    "qsgd:bits=4,bucket=300,rounding=nearest,entropy=rans",
    "qsgd:bits=8,norm=l2,bucket=128,rounding=nearest",
    "qsgd:bits=3,bucket=64,rounding=nearest,memory=none",
    "qsgd:bits=4,entropy=adaptive",
    "qsgd:bits=ternary,bucket=100",
    "qsgd:bits=8,bucket=33,rounding=nearest,entropy=adaptive",
    "qsgd:bits=5,bucket=1,norm=l2,entropy=adaptive",
    "topk:density=0.1,index=context",
    "topk:density=0.2,index=small,values=q4",
    "dgc:density=0.1",
    "dgc:density=0.3,momentum=0.5,nesterov=true,values=q4",
    "dgc:density=0.1,momentum=0,dense_1d=false",
    "redsync:density=0.1",
    "sidco:density=0.1",
    "sidco:density=0.2,fit=gp,stages=2,values=q8",
    "sidco:density=0.1,fit=gamma,cap=exact",
    "sidco:density=0.1,stages=1,memory=none",
];

/// Every codec that does not say that it cannot be cut.
fn codecs() -> Vec<&'static str> {
    and_examples(&CODERS, is_cut)
}

const SIZES: [u32; 5] = [64, 100, 333, 1200, 65_536];

fn spec(spelling: &str) -> Spec {
    Spec::parse(spelling).unwrap_or_else(|error| panic!("{spelling}: {error}"))
}

fn key(step: u64) -> StepKey {
    StepKey { seed: 11, step, source: Source::Rank(3) }
}

fn size(bytes: u32) -> PacketSize {
    PacketSize::new(bytes).expect("a size in range")
}

fn units(n: usize) -> [Vec<Unit>; 2] {
    let unit = |id, start, len, dense| Unit { id, start, len, dense };
    let (a, b) = (n / 3, n / 2);
    let several = vec![
        unit(0, 0, a, false),
        unit(4, a, 0, false),
        unit(5, a, b - a, true),
        unit(9, b + 1, n - b - 1, false),
    ];
    [vec![Unit::whole(n)], several]
}

/// One gradient, as one frame and as packets.
struct Cut {
    frame: Vec<u8>,
    frame_kept: Option<Kept>,
    packets: Vec<Vec<u8>>,
    kept: Option<Kept>,
    p: Vec<f32>,
}

/// The memory that the spelling asks for, with that residual and some momentum.
fn memory(spelling: &str, units: &[Unit], residual: &[f32]) -> Option<Kept> {
    let mut kept = Kept::new(&spec(spelling), residual.len(), units)?;
    kept.residual.copy_from_slice(residual);
    if let Some(momentum) = &mut kept.momentum {
        momentum.copy_from_slice(&Input::Normal(6).values(residual.len()));
    }
    Some(kept)
}

/// What is encoded.
fn encoded_values(spelling: &str, units: &[Unit], grad: &[f32], before: Option<&Kept>) -> Vec<f32> {
    let (codec, n) = (spec(spelling).codec, grad.len());
    let p = naive::encode::encoded_values(&Job {
        codec: &codec,
        key: key(5),
        shapes: &[vec![n]],
        units,
        grad,
        before,
    });
    // What no unit covers is kept as it is.
    let in_unit = |i: usize| units.iter().any(|unit| unit.range().contains(&i));
    let rest = |i: usize| before.map_or(grad[i], |kept| kept.residual[i]);
    (0..n).map(|i| if in_unit(i) { p[i] } else { rest(i) }).collect()
}

fn cut(spelling: &str, units: &[Unit], grad: &[f32], residual: &[f32], size: PacketSize) -> Cut {
    let codec = spec(spelling).codec;
    let layout = LayoutRef::flat(grad.len());
    let before = memory(spelling, units, residual);
    let p = encoded_values(spelling, units, grad, before.as_ref());
    let (mut frame_kept, mut kept) = (before.clone(), before);
    let grad = Grad::F32(grad);
    let lent = &mut frame_kept.as_mut().map(Kept::lend);
    let frame = run::encode_with(&codec, key(5), &layout, units, grad, lent.as_mut(), 0).expect(spelling);
    let lent = &mut kept.as_mut().map(Kept::lend);
    let packets =
        run::packets_with(&codec, key(5), &layout, units, grad, lent.as_mut(), size).expect(spelling);
    Cut { frame, frame_kept, packets, kept, p }
}

fn sum_of<'p>(packets: impl Iterator<Item = &'p Vec<u8>>, layout: &LayoutRef<'_>) -> Vec<f32> {
    let mut sum = vec![0.0; layout.len()];
    for packet in packets {
        run::parse(packet, layout, &run::no_limits(), |frame| frame.add_scaled_to(1.0, &mut sum)).unwrap();
    }
    sum
}

/// Coordinates that a packet covers.
fn covered(packet: &[u8], layout: &LayoutRef<'_>) -> Vec<(u32, std::ops::Range<usize>)> {
    run::parse(packet, layout, &run::no_limits(), |frame| {
        frame.units().map(|unit| (unit.id(), unit.range())).collect()
    })
    .unwrap()
}

#[test]
fn packets_hold_together_what_one_frame_holds_and_none_is_too_long() {
    for spelling in codecs() {
        for n in [2, 3, 129, 1500] {
            for units in units(n) {
                let layout = LayoutRef::flat(n);
                let (grad, residual) = (Input::Normal(1).values(n), Input::Normal(2).values(n));
                for bytes in SIZES {
                    let Cut { frame, frame_kept, packets, kept, .. } =
                        cut(spelling, &units, &grad, &residual, size(bytes));
                    let what = format!("{spelling}, {n} elements, {bytes} bytes");
                    assert!(packets.iter().all(|packet| packet.len() <= bytes as usize), "{what}");
                    assert_eq!(
                        bits(&sum_of(packets.iter(), &layout)),
                        bits(&run::decode(&frame, &layout).unwrap()),
                        "{what}"
                    );
                    let words = |kept: Option<Kept>| kept.map(|kept| kept.words());
                    assert_eq!(words(kept), words(frame_kept), "{what}");
                    if frame.len() <= bytes as usize && !spelling.starts_with("qsgd") {
                        assert_eq!(packets, [frame], "{what}: what fits one packet is the one frame");
                    }
                }
            }
        }
    }
}

#[test]
fn packets_are_the_naive_ones_byte_for_byte() {
    for spelling in codecs() {
        for (n, input) in [(2, Input::Normal(1)), (129, Input::Heavy(2)), (200, Input::Normal(3))] {
            for units in units(n) {
                let grad = input.values(n);
                let residual = vec![0.5; n];
                let before = memory(spelling, &units, &residual);
                for bytes in [64, 333] {
                    let job = Job {
                        codec: &spec(spelling).codec,
                        key: key(5),
                        shapes: &[vec![n]],
                        units: &units,
                        grad: &grad,
                        before: before.as_ref(),
                    };
                    let expected = naive::encode::packets(&job, bytes as usize);
                    let packets = cut(spelling, &units, &grad, &residual, size(bytes)).packets;
                    assert_eq!(packets, expected, "{spelling}, {n} elements, {bytes} bytes");
                }
            }
        }
    }
}

#[test]
fn the_ranges_of_packets_follow_each_other_and_cover_every_unit() {
    for spelling in codecs() {
        let n = 2000;
        let layout = LayoutRef::flat(n);
        for units in units(n) {
            let packets = cut(spelling, &units, &Input::Heavy(3).values(n), &vec![0.0; n], size(200)).packets;
            let mut pieces: Vec<_> = packets.iter().flat_map(|packet| covered(packet, &layout)).collect();
            for unit in &units {
                let mut next = unit.start;
                while next < unit.range().end || pieces.first().is_some_and(|(id, _)| *id == unit.id) {
                    let (id, range) = pieces.remove(0);
                    assert_eq!((id, range.start), (unit.id, next), "{spelling}");
                    next = range.end;
                }
                assert_eq!(next, unit.range().end, "{spelling}");
            }
            assert!(pieces.is_empty(), "{spelling}");
        }
    }
}

#[test]
fn every_packet_that_was_lost_is_given_back_alone_bit_for_bit() {
    let with_memory = codecs().into_iter().filter(|spelling| spec(spelling).memory != MemoryChoice::None);
    for spelling in with_memory {
        for (n, input) in [
            (129, Input::Normal(1)),
            (1500, Input::Ties(4)),
            (1500, Input::Denormal(3)),
            (1500, Input::Normal(9)),
        ] {
            for units in units(n) {
                let layout = LayoutRef::flat(n);
                for (seed, bytes) in [(1, 64), (2, 100), (3, 1200)] {
                    let mut words = Words::new(seed);
                    let grad = input.values(n);
                    let Cut { packets, kept, p, .. } =
                        cut(spelling, &units, &grad, &Input::Normal(7).values(n), size(bytes));
                    let mut kept = kept.expect("a memory").residual;
                    let (lost, delivered): (Vec<_>, Vec<_>) =
                        packets.iter().partition(|_| words.below(3) == 0);
                    for packet in &lost {
                        run::parse(packet, &layout, &run::no_limits(), |frame| {
                            Memory::new(&mut kept).give_back(frame);
                        })
                        .unwrap();
                    }
                    // In any order: no two packets hold the same coordinate.
                    let sent = sum_of(delivered.into_iter().rev(), &layout);
                    let both: Vec<f32> = sent.iter().zip(&kept).map(|(sent, kept)| sent + kept).collect();
                    assert_eq!(
                        bits(&both),
                        bits(&p),
                        "{spelling}, {n} elements, {bytes} bytes, {} lost",
                        lost.len()
                    );
                }
            }
        }
    }
}

#[test]
fn what_was_not_drawn_is_kept_back() {
    for spelling in codecs().into_iter().filter(|spelling| spec(spelling).memory != MemoryChoice::None) {
        let n = 900;
        let (layout, codec, size) = (LayoutRef::flat(n), spec(spelling).codec, size(64));
        let (grad, residual) = (Input::Normal(1).values(n), Input::Normal(2).values(n));
        for units in units(n) {
            let p = encoded_values(spelling, &units, &grad, memory(spelling, &units, &residual).as_ref());
            for drawn in 0..4 {
                let needed = codec.packet_scratch_len(&units, size);
                let (mut words, mut bytes) = (vec![7; needed.words], vec![7; needed.bytes]);
                let mut scratch = Scratch { words: &mut words, bytes: &mut bytes };
                let mut kept = memory(spelling, &units, &residual).expect("a memory");
                let (mut lent, mut out, mut sum) = (kept.lend(), [0xa5; 64], vec![0.0; n]);
                let grad = Grad::F32(&grad);
                let input = StepInput { key: key(5), layout: &layout, units: &units, grad };
                let mut packets = codec.packets(&input, Some(&mut lent), &mut scratch, size).unwrap();
                for _ in 0..drawn {
                    let Some(bytes) = packets.next_into(&mut out) else { break };
                    run::parse(&out[..bytes], &layout, &run::no_limits(), |frame| {
                        frame.add_scaled_to(1.0, &mut sum);
                    })
                    .unwrap();
                }
                let both: Vec<f32> = sum.iter().zip(&kept.residual).map(|(sent, kept)| sent + kept).collect();
                assert_eq!(bits(&both), bits(&p), "{spelling}, {drawn} drawn");
            }
        }
    }
}

#[test]
fn codecs_that_cannot_be_cut_and_sizes_that_hold_nothing_are_refused_and_change_nothing() {
    let n = 100;
    let (layout, units) = (LayoutRef::flat(n), [Unit::whole(n)]);
    let (grad, residual) = (Input::Normal(1).values(n), Input::Normal(2).values(n));
    let error = |codec: &Codec, key: StepKey, units: &[Unit], grad: &[f32], size: PacketSize| {
        let mut kept = residual.clone();
        let error =
            run::packets(codec, key, &layout, units, Grad::F32(grad), Some(&mut kept), size).unwrap_err();
        assert_eq!(bits(&kept), bits(&residual), "{error} changed the memory");
        error
    };
    for spelling in ["randomk:density=0.1", "topk:density=0.1,index=bitmap", "topk:density=0.1,index=chunks"]
    {
        assert_eq!(
            error(&spec(spelling).codec, key(1), &units, &grad, size(1200)),
            EncodeError::NoPackets,
            "{spelling}"
        );
    }
    let topk = spec("topk:density=0.1").codec;
    let mut bad = grad.clone();
    bad[n - 1] = f32::NAN;
    assert_eq!(error(&topk, key(1), &units, &bad, size(64)), EncodeError::NonFiniteInput { index: n - 1 });
    assert_eq!(error(&spec("qsgd").codec, key(1), &units, &grad, size(64)), EncodeError::MemoryRefused);
    let beyond = [Unit { start: 1, ..units[0] }];
    assert_eq!(error(&topk, key(1), &beyond, &grad, size(64)), EncodeError::UnitOutOfOrder { unit: 0 });
}

/// Headers of the largest steps and identifiers leave little room, for one level as for any.
#[test]
fn sizes_that_may_hold_nothing_are_refused_with_one_that_suffices() {
    let n = 20_000;
    let (layout, units) = (LayoutRef::flat(n), [Unit { id: u32::MAX, ..Unit::whole(n) }]);
    let (key, grad) = (StepKey { step: u64::MAX, ..key(0) }, Input::Normal(1).values(n));
    let codec = spec("qsgd:bits=8,bucket=4294967295,entropy=rans").codec;
    let packets = |bytes| run::packets(&codec, key, &layout, &units, Grad::F32(&grad), None, size(bytes));
    let Err(EncodeError::PacketTooSmall { needed }) = packets(64) else { panic!("64 bytes suffice") };
    assert!((65..80).contains(&needed), "{needed} bytes");
    let packets = packets(needed as u32).unwrap();
    let frame = run::encode(&codec, key, &layout, &units, Grad::F32(&grad), None, 0).unwrap();
    assert_eq!(bits(&sum_of(packets.iter(), &layout)), bits(&run::decode(&frame, &layout).unwrap()));
}

/// Bytes of all packets over those of one frame, less one.
fn overhead(spelling: &str, grad: &[f32], layout: &LayoutRef<'_>, bytes: u32) -> (f64, usize) {
    let codec = spec(spelling).codec;
    let units = [Unit::whole(grad.len())];
    let frame = run::encode(&codec, key(1000), layout, &units, Grad::F32(grad), None, 0).unwrap();
    let packets =
        run::packets(&codec, key(1000), layout, &units, Grad::F32(grad), None, size(bytes)).unwrap();
    let sum: usize = packets.iter().map(Vec::len).sum();
    (sum as f64 / frame.len() as f64 - 1.0, packets.len())
}

/// Also the largest and the smallest level and norm.
#[test]
fn a_level_under_context_always_fits_what_it_is_said_to_need() {
    let n = 400;
    let (layout, units) = (LayoutRef::flat(n), [Unit { id: u32::MAX, ..Unit::whole(n) }]);
    let key = StepKey { step: u64::MAX, ..key(0) };
    for (width, bucket) in [(2, 3), (8, 3), (2, u32::MAX), (8, u32::MAX)] {
        for values in [[1.0f32, 0.0, -1.0], [1.0, 0.3, -0.7], [3e-30, 1e37, -2e-3]] {
            let codec = spec(&format!("qsgd:bits={width},bucket={bucket},entropy=adaptive")).codec;
            let grad: Vec<f32> = values.into_iter().cycle().take(n).collect();
            let packets =
                |bytes| run::packets(&codec, key, &layout, &units, Grad::F32(&grad), None, size(bytes));
            let packets = match packets(64) {
                Err(EncodeError::PacketTooSmall { needed }) => packets(needed as u32),
                fitting => fitting,
            };
            let frame = run::encode(&codec, key, &layout, &units, Grad::F32(&grad), None, 0).unwrap();
            let sum = sum_of(packets.unwrap().iter(), &layout);
            assert_eq!(bits(&sum), bits(&run::decode(&frame, &layout).unwrap()), "{width}, {bucket}");
        }
    }
}

#[test]
fn at_1200_bytes_packets_cost_at_most_six_percent() {
    let codecs = [
        ("topk:density=0.01", 0.06),
        ("topk:density=0.01,values=q4", 0.06),
        ("topk:density=0.01,values=q2", 0.06),
        ("qsgd:bits=4,entropy=rans", 0.06),
        ("qsgd:bits=4", 0.06),
        ("qsgd:bits=4,entropy=adaptive", 0.06),
        ("qsgd:bits=4,bucket=4096", 0.06),
        ("qsgd:bits=8", 0.06),
        ("qsgd:bits=3,bucket=128", 0.06),
        ("qsgd:bits=2,bucket=128", 0.06),
    ];
    let mut above = Vec::new();
    for (spelling, most) in codecs {
        let mut check = |name: &str, grad: &[f32], layout: &LayoutRef<'_>| {
            let (more, packets) = overhead(spelling, grad, layout, 1200);
            println!("{name}: {spelling}: {packets} packets, {:.2} % more than one frame", 100.0 * more);
            if more > most {
                above.push(format!("{name}: {spelling}: {:.2} % more", 100.0 * more));
            }
        };
        for (name, grad) in
            [("heavy-tailed", cubes(400_000)), ("gaussian", Input::Normal(18).values(400_000))]
        {
            check(name, &grad, &LayoutRef::flat(grad.len()));
        }
        for gradient in gradients::all("at_1200_bytes_packets_cost_at_most_six_percent") {
            check(&gradient.name, &gradient.values, &gradient.layout.as_ref());
        }
    }
    assert!(above.is_empty(), "{above:#?}");
}

/// Cubes of about normal values: 1 % hold about half of the energy.
fn cubes(n: usize) -> Vec<f32> {
    Input::Normal(17).values(n).iter().map(|value| value * value * value).collect()
}
