//! Frames of groups, and gradients without elements.

use gradwire::plan::Plan;
use gradwire::rules::Rules;
use gradwire::{Decoder, Limits};

use crate::support::{Bench, SHAPES, decoded, json_lines, layout, refused, run, safetensors_bytes, tensors};

const RULES: &str = "b?=none;w*=topk:density=0.1,index=context;empty=bf16;topk:density=0.05,values=q8";

fn encode(bench: &Bench, rules: &str) -> Vec<u8> {
    let (input, output) = (bench.path("gradient.safetensors"), bench.path("frame"));
    let told = run(&["encode", "--rules", rules, "--input", &input, "--force", "--output", &output]);
    let groups = Plan::of_rules(&Rules::parse(rules).unwrap(), &layout().as_ref()).groups().len();
    assert!(groups == 1 || told.contains(&format!(" bytes of {groups} frames, ratio ")), "{told}");
    bench.read("frame")
}

#[test]
fn rules_make_a_frame_for_each_group_and_decode_to_one_gradient() {
    let bench = Bench::new();
    let bytes = encode(&bench, RULES);
    let layout = layout();
    let (layout, rules) = (layout.as_ref(), Rules::parse(RULES).unwrap());
    let plan = Plan::of_rules(&rules, &layout);
    let mut decoder = Decoder::new();
    let limits = Limits::for_layout(&layout);
    let frames = decoder.parse_plan(&plan, plan.units(), &bytes, &layout, &limits).unwrap();
    let mut sum = vec![0.0; layout.len()];
    frames.add_scaled_to(1.0, &mut sum);
    let expected: Vec<u32> = sum.into_iter().map(f32::to_bits).collect();

    let (frame, output, input) =
        (bench.path("frame"), bench.path("decoded"), bench.path("gradient.safetensors"));
    run(&["decode", "--input", &frame, "--layout", &input, "--force", "--output", &output]);
    let shaped = tensors(&bench.read("decoded"));
    assert!(shaped.iter().map(|(name, ..)| name).eq(SHAPES.iter().map(|(name, _)| name)));
    assert_eq!(shaped.into_iter().flat_map(|(_, _, bits)| bits).collect::<Vec<_>>(), expected);

    let reports = json_lines(&run(&["inspect", "--json", "--layout", &input, &frame]));
    assert_eq!(reports.len(), plan.groups().len());
    let names: Vec<_> = reports.iter().map(|report| report["codec_name"].as_str().unwrap()).collect();
    assert_eq!(names, ["none", "topk", "bf16", "topk"]);
    assert!(reports.iter().all(|report| report["checked"] == "completely"));
    let sum = |key: &str| reports.iter().map(|report| report[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("frame_bytes"), sum("n")), (bytes.len() as u64, layout.len() as u64));
}

#[test]
fn one_rule_makes_the_frame_of_its_codec() {
    let bench = Bench::new();
    let codec = "topk:density=0.1,unit=tensor";
    assert_eq!(encode(&bench, codec), bench.encode(codec, 0));
    let rules = bench.write("rules", b"b?=none\n; topk:density=0.1\n");
    assert_eq!(encode_file(&bench, &rules), encode(&bench, "b?=none;topk:density=0.1"));
}

fn encode_file(bench: &Bench, rules: &str) -> Vec<u8> {
    let (input, output) = (bench.path("gradient.safetensors"), bench.path("frame"));
    run(&["encode", "--rules", rules, "--input", &input, "--force", "--output", &output]);
    bench.read("frame")
}

#[test]
fn rules_that_cannot_be_used_are_named() {
    let bench = Bench::new();
    let (input, output) = (bench.path("gradient.safetensors"), bench.path("frame"));
    let encode = ["encode", "--input", &input, "--force", "--output", &output];
    for (rules, expected) in [
        ("b?=none;topk:density=7", "density=7: expected a fraction from 1e-9 to 1"),
        ("b?=none;powersgd", "powersgd"),
        ("b?=topk;b?=none;none", "b?"),
    ] {
        let (_, why) = refused(&[&encode[..], &["--rules", rules]].concat());
        assert!(why.contains(expected), "{why}");
    }
    let spoiled = safetensors_bytes(&[("b1", "F32", &[1], f32::NAN.to_le_bytes().to_vec())]);
    let spoiled = bench.write("spoiled", &spoiled);
    let args = ["encode", "--input", &spoiled, "--force", "--output", &output, "--rules", RULES];
    let (_, why) = refused(&args);
    assert!(why.contains("non-finite value at coordinate 0 (tensor 'b1', element 0)"), "{why}");
}

/// The frames of FORMAT.md for a layout without elements.
#[test]
fn gradients_without_elements_are_encoded_decoded_and_inspected() {
    let bench = Bench::new();
    for tensors in [&[("a", "F32", &[0_usize][..], Vec::new())][..], &[]] {
        let input = bench.write("gradient.safetensors", &safetensors_bytes(tensors));
        for codec in ["none", "topk", "qsgd:entropy=fixed", "qsgd:entropy=rans", "efsign"] {
            let bytes = bench.encode(codec, 0);
            let (frame, output) = (bench.path("frame"), bench.path("decoded"));
            for layout in [&["--layout", input.as_str()][..], &[]] {
                run(&[&["decode", "--input", &frame, "--force", "--output", &output], layout].concat());
                let decoded = self::tensors(&bench.read("decoded"));
                assert!(decoded.iter().all(|(_, _, bits)| bits.is_empty()), "{codec}: {decoded:?}");
                let report = &json_lines(&run(&[&["inspect", "--json", &frame], layout].concat()))[0];
                assert_eq!((&report["n"], &report["frame_bytes"]), (&0.into(), &bytes.len().into()));
                run(&[&["inspect", &frame], layout].concat());
            }
        }
        let (_, why) = refused(&["bench", "--codec", "topk", "--input", &input]);
        assert!(why.contains("no gradient"), "{why}");
    }
}

/// Positions of these packets need the shapes, which follow from the end of the last packet.
#[test]
fn decode_and_inspect_agree_on_packets_without_a_layout() {
    let bench = Bench::new();
    let values: Vec<u8> = bench.values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let flat = safetensors_bytes(&[("flat", "F32", &[layout().len()], values)]);
    bench.write("gradient.safetensors", &flat);
    for codec in ["topk:density=0.1,index=context,max_packet_bytes=128", "qsgd:max_packet_bytes=200"] {
        let bytes = bench.encode(codec, 0);
        let (frame, output) = (bench.path("frame"), bench.path("decoded"));
        run(&["decode", "--input", &frame, "--force", "--output", &output]);
        let reports = json_lines(&run(&["inspect", "--json", &frame]));
        assert!(reports.len() > 2, "{codec}");
        assert!(reports.iter().all(|report| report["checked"] == "completely"), "{codec}");
        // The same packets of a layout that is not flat: neither command can read their positions.
        if codec.starts_with("topk") {
            Bench::write(&bench, "gradient.safetensors", &bench.gradient(&bench.values));
            assert_ne!(bench.encode(codec, 0), bytes);
            let (_, why) = refused(&["decode", "--input", &frame, "--force", "--output", &output]);
            assert!(why.contains("without the shapes"), "{why}");
            let reports = json_lines(&run(&["inspect", "--json", &frame]));
            assert!(reports.iter().all(|report| report["checked"] == "shapes"));
            bench.write("gradient.safetensors", &flat);
        }
    }
}

#[test]
fn packets_may_stand_in_any_order() {
    let bench = Bench::new();
    let bytes = bench.encode("topk:density=0.1,max_packet_bytes=128", 0);
    let expected = decoded(&bench.encode("topk:density=0.1", 0), &layout().as_ref());
    let mut packets = crate::packets::messages(&bytes);
    packets.reverse();
    bench.write("frame", &packets.concat());
    let output = bench.path("decoded");
    run(&["decode", "--input", &bench.path("frame"), "--force", "--output", &output]);
    assert_eq!(tensors(&bench.read("decoded")).remove(0).2, expected);
}
