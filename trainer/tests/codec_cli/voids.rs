//! Void frames, which hold no gradient.

use gradwire::format::{CodecId, VoidFrame};

use crate::support::{Bench, json_lines, layout, refused, run};

fn void(codec: u8, index: usize) -> Vec<u8> {
    let void = VoidFrame { codec: CodecId::new(codec), step: 3, index };
    let mut out = [0; VoidFrame::MAX_BYTES];
    let bytes = void.write(&layout().as_ref(), &mut out).unwrap();
    out[..bytes].to_vec()
}

#[test]
fn inspect_shows_what_a_void_frame_says() {
    let bench = Bench::new();
    let input = bench.path("gradient.safetensors");
    for (codec, name, index, tensor, element) in
        [(3, "topk", 2000, "b1", 0), (0, "none", 2040, "temperature", 0), (0xf2, "experiment", 1, "w1", 1)]
    {
        let frame = bench.write("frame", &void(codec, index));
        let report = &json_lines(&run(&["inspect", "--json", &frame]))[0];
        assert_eq!((&report["is_void"], &report["unit_count"]), (&true.into(), &0.into()));
        assert_eq!((&report["step"], &report["index"]), (&3.into(), &index.into()));
        assert_eq!((&report["codec_name"], &report["divisor"]), (&name.into(), &serde_json::Value::Null));
        let report = &json_lines(&run(&["inspect", "--json", "--layout", &input, &frame]))[0];
        assert_eq!(report["place"], serde_json::json!([tensor, element]));
        let table = run(&["inspect", &frame]);
        assert!(table.contains("void: no gradient") && table.contains("could not be encoded"), "{table}");
        let table = run(&["inspect", "--layout", &input, &frame]);
        assert!(table.contains(&format!("(tensor '{tensor}', element {element}) could not")), "{table}");
    }
}

#[test]
fn void_frames_are_not_decoded() {
    let bench = Bench::new();
    let (input, output) = (bench.path("gradient.safetensors"), bench.path("decoded"));
    let frame = bench.write("frame", &void(3, 7));
    for layout in [&[][..], &["--layout", &input]] {
        let (_, why) =
            refused(&[&["decode", "--input", &frame, "--force", "--output", &output], layout].concat());
        assert!(why.contains("a void frame, which holds no gradient"), "{why}");
        assert!(why.contains("coordinate 7 of step 3"), "{why}");
    }
}

#[test]
fn damaged_void_frames_and_void_frames_among_others_are_refused() {
    let bench = Bench::new();
    let (input, output) = (bench.path("gradient.safetensors"), bench.path("decoded"));
    let (good, frame) = (void(3, 7), bench.encode("topk", 0));
    let mut spoiled = good.clone();
    spoiled[24] ^= 1;
    for (bytes, expected) in [
        (spoiled, "checksum mismatch"),
        (good[..good.len() - 1].to_vec(), "truncated"),
        ([&good[..], &frame].concat(), "message 1: a void frame, which is alone in its file"),
        ([&frame[..], &good].concat(), "message 2: a void frame, which is alone in its file"),
    ] {
        let bad = bench.write("bad", &bytes);
        for args in [&["decode", "--input", &bad, "--force", "--output", &output][..], &["inspect", &bad]] {
            let (_, why) = refused(args);
            assert!(why.contains(expected), "{args:?}: {why}");
            if !expected.contains("message") {
                let (_, why) = refused(&[args, &["--layout", &input]].concat());
                assert!(why.contains(expected), "{args:?}: {why}");
            }
        }
    }
}
