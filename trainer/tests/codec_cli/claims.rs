//! Frames of a few bytes that claim to be of many coordinates.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Instant;

use gradwire::format::frame_scratch_len;
use gradwire::{Encoder, Frame, Grad, LayoutRef, Limits, Source, Spec, StepInput, StepKey, Unit};
use serde_json::Value;

use crate::forged::{context, forged, seeded, varint};
use crate::support::{Bench, json_lines, refused, run, values};

/// Elements of a unit that are claimed.
const CLAIM: u64 = (1 << 32) - 1;

/// Levels under context that begin with a norm that is not 0.
const STREAM: &[u8] = b"\x80gradwire gradwi";

/// What a command may take of memory: its own code and constants, and what goes with the bytes of the frame.
const MOST_KIB: u64 = 150_000;

/// Levels of 8 bits in one bucket, under Elias: the norm 1, and a few bytes of levels.
fn elias() -> Vec<u8> {
    [&[0x18, 0x01][..], &varint(u32::MAX.into()), &1f32.to_le_bytes(), &[3, 0, 0, 0]].concat()
}

/// Levels that are all alike, under rANS, of as many coordinates as are quickly encoded.
fn rans() -> Vec<u8> {
    let values = vec![1.0; 1 << 22];
    let spec = Spec::parse("qsgd:bits=4,bucket=4194304,norm=max,entropy=rans").unwrap();
    let key = StepKey { seed: 0, step: 0, source: Source::Rank(0) };
    let (layout, units) = (LayoutRef::flat(values.len()), [Unit::whole(values.len())]);
    let input = StepInput { key, layout: &layout, units: &units, grad: Grad::F32(&values) };
    Encoder::new().encode(&spec.codec, &input, None).unwrap().to_vec()
}

/// Frames of less than 200 bytes, with what they claim.
fn frames() -> Vec<(&'static str, Vec<u8>, u64)> {
    vec![
        ("elias", forged(5, 1, CLAIM, 2, &elias()), CLAIM),
        ("context", forged(5, 1, CLAIM, 2, &context(8, CLAIM, STREAM)), CLAIM),
        ("seeded", forged(6, 1, CLAIM, 3, &seeded()), CLAIM),
        ("rans", rans(), 1 << 22),
    ]
}

/// Standard output, and the most memory that was resident while the command ran, as far as it was seen.
fn watched(args: &[&str]) -> (String, u64) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    let mut child =
        command.arg("codec").args(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        most = most.max(kib.unwrap_or(0));
    }
    let mut stdout = String::new();
    child.stdout.unwrap().read_to_string(&mut stdout).unwrap();
    (stdout, most)
}

#[test]
fn inspect_takes_no_memory_for_what_a_frame_claims() {
    let bench = Bench::new();
    for (name, bytes, len) in frames() {
        assert!(bytes.len() < 200, "{name}: {}", bytes.len());
        let path = bench.write("frame", &bytes);
        let (stdout, kib) = watched(&["inspect", "--json", &path]);
        assert!(kib < MOST_KIB, "{name}: {kib} KiB");
        let report: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!((&report["n"], &report["checked"]), (&len.into(), &"claims".into()), "{name}");
        assert_eq!(report["units"][0]["len"], len, "{name}");
        assert!(run(&["inspect", &path]).contains("decoding needs --layout"), "{name}");
    }
}

#[test]
fn decode_takes_no_memory_for_what_a_frame_claims() {
    let bench = Bench::new();
    let output = bench.path("output");
    for (name, bytes, len) in frames().into_iter().filter(|(_, _, len)| *len == CLAIM) {
        let path = bench.write("frame", &bytes);
        let args = ["decode", "--input", &path, "--force", "--output", &output];
        let (_, why) = refused(&args);
        assert!(why.contains("covers more than 4194304 coordinates; raise --max-elements"), "{name}: {why}");
        let (_, kib) = watched(&args);
        assert!(kib < MOST_KIB, "{name}: {kib} KiB for {len}");
    }
}

#[test]
fn levels_that_are_not_there_are_missed_at_once() {
    let bench = Bench::new();
    let path = bench.write("frame", &forged(5, 1, CLAIM, 2, &elias()));
    let (output, limit) = (bench.path("output"), CLAIM.to_string());
    let begin = Instant::now();
    let args = ["decode", "--input", &path, "--force", "--output", &output, "--max-elements", &limit];
    let (_, why) = refused(&args);
    assert!(why.contains("truncated"), "{why}");
    // To look for all of them takes ten times as long.
    assert!(begin.elapsed().as_secs() < 2, "{:?}", begin.elapsed());
}

/// Elements of the frames that are timed.
const TIMED: usize = 1 << 22;

/// Nanoseconds a coordinate, the best of three, and scratch bytes a coordinate.
fn cost(frame: &[u8], layout: &LayoutRef<'_>) -> (f64, f64) {
    let limits = Limits { max_scratch_words: usize::MAX, ..Limits::for_layout(layout) };
    let mut sum = vec![0.0; layout.len()];
    let mut scratch = vec![0; frame_scratch_len(frame, layout, &limits).unwrap()];
    let mut seconds = || {
        let begin = Instant::now();
        Frame::parse(frame, layout, &limits, &mut scratch).unwrap().add_scaled_to(1.0, &mut sum);
        begin.elapsed().as_secs_f64()
    };
    let best = seconds().min(seconds()).min(seconds());
    (best * 1e9 / layout.len() as f64, 4.0 * scratch.len() as f64 / layout.len() as f64)
}

/// Streams of levels under context that do not end in an invalid norm: a first byte that says that there is
/// one, and any others.
fn streams() -> impl Iterator<Item = [u8; 16]> {
    let mut state = 1u64;
    (0..24).map(move |_| {
        std::array::from_fn(|i| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            if i == 0 { 0x80 } else { (state >> 56) as u8 }
        })
    })
}

/// The figures of SECURITY.md.
#[test]
#[ignore = "a measurement"]
fn what_decoding_costs() {
    let layout = LayoutRef::flat(TIMED);
    let print = |name: &str, frame: &[u8], (ns, scratch): (f64, f64)| {
        let bytes = frame.len() as f64 / TIMED as f64;
        println!("{name}: {ns:.1} ns, {scratch:.2} bytes of scratch, {bytes:.4} bytes of frame a coordinate");
    };
    for bits in 2..=8 {
        let frames = streams()
            .map(|stream| forged(5, layout.fingerprint(), TIMED as u64, 2, &context(bits, CLAIM, &stream)));
        let costs = frames.map(|frame| (cost(&frame, &layout), frame));
        let (most, frame) = costs.max_by(|a, b| a.0.0.total_cmp(&b.0.0)).unwrap();
        print(
            &format!("levels of {bits} bits, context, the slowest of 24 streams of 16 bytes"),
            &frame,
            most,
        );
    }
    let one = forged(6, layout.fingerprint(), TIMED as u64, 3, &seeded());
    print("seeded, one entry", &one, cost(&one, &layout));
    let (noise, alike) = (values(TIMED), vec![1.0; TIMED]);
    for (spelling, grad) in [
        ("none", &noise),
        ("f16", &noise),
        ("qsgd:bits=8,entropy=fixed", &noise),
        ("qsgd:bits=ternary,entropy=fixed", &noise),
        ("qsgd:bits=8,entropy=elias", &noise),
        ("qsgd:bits=8,entropy=rans", &noise),
        ("qsgd:bits=8,entropy=rans,bucket=4194304,norm=max", &alike),
        ("qsgd:bits=8,entropy=adaptive", &noise),
        ("topk:density=0.5,index=raw", &noise),
        ("topk:density=0.5,index=bitmap", &noise),
        ("topk:density=0.5,index=rice", &noise),
        ("topk:density=0.5,index=chunks", &noise),
        ("topk:density=0.5,index=context", &noise),
        ("topk:density=1,index=context,values=q8", &alike),
        ("topk:density=0.5,index=context-max", &noise),
        ("topk:density=0.5,index=raw,values=q8", &noise),
        ("topk:density=0.5,index=small", &noise),
        ("randomk:density=0.5", &noise),
    ] {
        let spec = Spec::parse(spelling).unwrap();
        let key = StepKey { seed: 0, step: 0, source: Source::Rank(0) };
        let units = [Unit::whole(TIMED)];
        let mut encoder = Encoder::new();
        let input = StepInput { key, layout: &layout, units: &units, grad: Grad::F32(grad) };
        let frame = encoder.encode(&spec.codec, &input, None).unwrap();
        print(spelling, frame, cost(frame, &layout));
    }
}

#[test]
fn layouts_beyond_the_limit_are_refused() {
    let bench = Bench::new();
    let (elements, bytes) = (1u64 << 40, 2u64 << 40);
    let header = format!(r#"{{"a":{{"dtype":"F16","shape":[{elements}],"data_offsets":[0,{bytes}]}}}}"#);
    let layout =
        bench.write("layout", &[&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat());
    // A hole as long as the data would be.
    let file = std::fs::File::options().write(true).open(&layout).unwrap();
    file.set_len(8 + header.len() as u64 + bytes).unwrap();
    let fingerprint = LayoutRef::flat(elements as usize).fingerprint();
    let frame = bench.write("frame", &forged(5, fingerprint, CLAIM, 2, &context(8, CLAIM, STREAM)));
    let output = bench.path("output");
    for args in [&["decode", "--input", &frame, "--force", "--output", &output][..], &["inspect", &frame]] {
        let args = [args, &["--layout", &layout]].concat();
        let (_, why) = refused(&args);
        assert!(
            why.contains("layout: covers more than 268435456 coordinates; raise --max-elements"),
            "{why}"
        );
        assert!(watched(&args).1 < MOST_KIB);
    }
    let (own, small) = (bench.path("gradient.safetensors"), ["--max-elements", "2440"]);
    bench.encode("topk", 0);
    let (_, why) = refused(&[&["inspect", &frame, "--layout", &own], &small[..]].concat());
    assert!(why.contains("more than 2440 coordinates; raise --max-elements"), "{why}");
}

#[test]
fn positions_that_need_the_shapes_do_not_hide_the_header() {
    let bench = Bench::new();
    let input = bench.path("gradient.safetensors");
    for index in ["context", "context-max"] {
        let bytes = bench.encode(&format!("topk:density=0.1,index={index}"), 0);
        let frame = bench.path("frame");
        let report = &json_lines(&run(&["inspect", "--json", &frame]))[0];
        assert_eq!((&report["checked"], &report["frame_bytes"]), (&"shapes".into(), &bytes.len().into()));
        assert_eq!(report["units"][0]["index_coder"], index);
        let table = run(&["inspect", &frame]);
        assert!(
            table.contains("fingerprint") && table.contains("cannot be read without --layout"),
            "{table}"
        );
        let report = &json_lines(&run(&["inspect", "--json", &frame, "--layout", &input]))[0];
        assert_eq!(report["checked"], "completely");
        assert!(report["units"][0]["alternatives"].is_object());
    }
    bench.encode("topk", 0);
    let flat = crate::support::safetensors_bytes(&[("a", "F32", &[2], vec![0; 8])]);
    let flat = bench.write("flat", &flat);
    let (_, why) = refused(&["inspect", &bench.path("frame"), "--layout", &flat]);
    assert!(why.contains("made for another layout than") && why.contains("flat"), "{why}");
}
