//! `encode`, `decode` and `inspect`.

use gradwire::half::{bf16, f16};
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::support::{Bench, SHAPES, decoded, json_lines, layout, le_bytes, refused, run};
use crate::support::{safetensors_bytes, spellings, tensors};

#[test]
fn decode_gives_what_the_frame_decodes_to() {
    let bench = Bench::new();
    let (layout, layout_file) = (layout(), bench.path("gradient.safetensors"));
    for codec in spellings() {
        let expected = decoded(&bench.encode(codec, 3), &layout.as_ref());
        let (frame, output) = (bench.path("frame"), bench.path("decoded"));
        let plainly = ["decode", "--input", &frame, "--force", "--output", &output];
        if ["index=context", "index=smallest"].iter().any(|index| codec.contains(index)) {
            // Their coder of positions knows rows and columns.
            let (_, why) = refused(&plainly);
            assert!(why.contains("the positions cannot be read without the shapes of the layout"), "{why}");
        } else {
            run(&plainly);
            let flat = vec![("gradient".to_owned(), vec![layout.len()], expected.clone())];
            assert_eq!(tensors(&bench.read("decoded")), flat, "{codec}");
        }
        run(&["decode", "--input", &frame, "--force", "--output", &output, "--layout", &layout_file]);
        let shaped = tensors(&bench.read("decoded"));
        let names: Vec<_> = shaped.iter().map(|(name, shape, _)| (name.as_str(), &shape[..])).collect();
        assert_eq!(names, SHAPES, "{codec}");
        let bits: Vec<u32> = shaped.into_iter().flat_map(|(_, _, bits)| bits).collect();
        assert_eq!(bits, expected, "{codec}");
    }
}

#[test]
fn a_decoded_file_says_where_it_comes_from() {
    let bench = Bench::new();
    bench.encode("qsgd:bits=8", 0);
    run(&["decode", "--input", &bench.path("frame"), "--force", "--output", &bench.path("decoded")]);
    let (_, metadata) =
        SafeTensors::read_metadata(&bench.read("decoded")).map(|(n, m)| (n, m.clone())).unwrap();
    let notes = metadata.metadata().clone().unwrap();
    assert_eq!(notes["fingerprint"], format!("{:016x}", layout().fingerprint()));
    assert_eq!((notes["codec"].as_str(), notes["step"].as_str()), ("qsgd", "0"));
}

#[test]
fn the_same_command_writes_the_same_bytes() {
    let bench = Bench::new();
    let decode = || {
        let frame = bench.encode("qsgd:bits=2", 5);
        run(&["decode", "--input", &bench.path("frame"), "--force", "--output", &bench.path("decoded")]);
        (frame, bench.read("decoded"))
    };
    assert_eq!(decode(), decode());
    assert_ne!(bench.encode("qsgd:bits=2", 5), bench.encode("qsgd:bits=2", 6));
}

/// The width of a format has 16 bits, so a header above 65,535 bytes must not be padded by one.
#[test]
fn gradients_of_any_number_of_tensors_and_names_of_any_length_are_decoded() {
    let bench = Bench::new();
    for (count, name_len) in [(700, 24), (764, 24), (900, 24), (3000, 60), (3, 30_000), (2, 70_000)] {
        let names: Vec<String> =
            (0..count).map(|at| format!("layer.{at:05}.{}", "w".repeat(name_len))).collect();
        let tensors =
            names.iter().map(|name| (name.as_str(), "F32", &[4][..], le_bytes(&[1.0, -2.0, 3.0, 4.0])));
        let input = bench.write("many.safetensors", &safetensors_bytes(&tensors.collect::<Vec<_>>()));
        let (frame, output) = (bench.path("frame"), bench.path("decoded"));
        run(&["encode", "--codec", "none", "--input", &input, "--force", "--output", &frame]);
        run(&["decode", "--input", &frame, "--layout", &input, "--force", "--output", &output]);
        let read = self::tensors(&bench.read("decoded"));
        assert!(read.iter().map(|(name, ..)| name).eq(&names), "{count} tensors, names of {name_len}");
        assert_eq!(read[0].2, [1.0f32, -2.0, 3.0, 4.0].map(f32::to_bits));
    }
}

#[test]
fn half_precision_tensors_are_widened_exactly() {
    let bench = Bench::new();
    let halves: Vec<u8> = [1.5, -0.25].iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
    let brains: Vec<u8> = [3e38, 1e-40].iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
    let file = safetensors_bytes(&[
        ("z", "F16", &[2], halves),
        ("y", "BF16", &[1, 2], brains),
        ("x", "F32", &[1], le_bytes(&[7.0])),
    ]);
    let input = bench.write("gradient.safetensors", &file);
    bench.encode("none", 0);
    let output = bench.path("decoded");
    run(&["decode", "--input", &bench.path("frame"), "--force", "--output", &output, "--layout", &input]);
    let brains = [3e38, 1e-40].map(|v| bf16::from_f32(v).to_f32().to_bits());
    let expected = [
        ("z".to_owned(), vec![2], vec![1.5f32.to_bits(), (-0.25f32).to_bits()]),
        ("y".to_owned(), vec![1, 2], brains.to_vec()),
        ("x".to_owned(), vec![1], vec![7.0f32.to_bits()]),
    ];
    assert_eq!(tensors(&bench.read("decoded")), expected);
}

#[test]
fn inspect_shows_every_header_field_of_every_codec() {
    let bench = Bench::new();
    for codec in spellings() {
        let bytes = bench.encode(codec, 0);
        let table = run(&["inspect", &bench.path("frame")]);
        for field in ["magic", "version", "codec", "flags", "unit_count", "fingerprint", "body_bytes", "step"]
        {
            assert!(table.lines().any(|line| line.trim_start().starts_with(field)), "{codec}: {field}");
        }
        assert!(table.contains("(right)") && table.contains("contributors"), "{codec}");
        let report = &json_lines(&run(&["inspect", "--json", &bench.path("frame")]))[0];
        assert_eq!((&report["magic"], &report["version"]), (&json!("GW"), &json!(1)));
        assert_eq!(report["codec"], bytes[3]);
        // One worker's levels of `maxnorm` are a frame of `qsgd`.
        let name = codec.split(':').next().unwrap();
        assert_eq!(report["codec_name"], if name == "maxnorm" { "qsgd" } else { name });
        assert_eq!(report["fingerprint"], format!("{:016x}", layout().fingerprint()));
        assert_eq!(report["frame_bytes"], bytes.len());
        assert_eq!((&report["checksum_is_right"], &report["step"]), (&json!(true), &json!(0)));
        check_units(report, codec);
    }
}

#[test]
fn inspect_says_what_other_coders_would_have_cost() {
    let bench = Bench::new();
    for (index, values) in [("raw", "f32"), ("rice", "bf16"), ("bitmap", "q4")] {
        bench.encode(&format!("topk:density=0.1,index={index},values={values},memory=none"), 0);
        let report = &json_lines(&run(&["inspect", "--json", &bench.path("frame")]))[0];
        let unit = &report["units"][0];
        let costs = |of: &str| unit["alternatives"][of].as_array().unwrap().clone();
        let coders: Vec<_> = costs("index").iter().map(|cost| cost["coder"].clone()).collect();
        assert_eq!(coders, ["raw", "bitmap", "rice", "context", "context-max"]);
        let own = costs("index").into_iter().find(|cost| cost["coder"] == index).unwrap();
        assert_eq!(own["bytes"], unit["index_bytes"]);
        assert_eq!(costs("values").len(), 6);
        let table = run(&["inspect", &bench.path("frame")]);
        assert!(table.contains("bytes under each coder") && table.contains("unit 0: index raw "));
    }
    bench.encode("randomk:density=0.1", 0);
    let report = &json_lines(&run(&["inspect", "--json", &bench.path("frame")]))[0];
    assert!(report["units"][0]["alternatives"].is_null());
}

#[test]
fn inspect_says_what_other_level_coders_would_have_cost() {
    let bench = Bench::new();
    for (codec, fixed) in [
        ("qsgd:bits=4,bucket=100", "fixed"),
        ("qsgd:bits=2,norm=l2", "fixed"),
        ("qsgd:bits=ternary", "ternary"),
    ] {
        let chosen = ["fixed", "elias", "rans", "adaptive"].map(|entropy| {
            bench.encode(&format!("{codec},entropy={entropy}"), 0);
            let report = json_lines(&run(&["inspect", "--json", &bench.path("frame")])).remove(0);
            let unit = report["units"][0].clone();
            (if entropy == "fixed" { fixed } else { entropy }, unit)
        });
        for (_, unit) in &chosen {
            let costs = unit["alternatives"]["levels"].as_array().unwrap();
            for (coder, alone) in &chosen {
                let cost = costs.iter().find(|cost| cost["coder"] == *coder).unwrap();
                assert_eq!(cost["bytes"], alone["body_bytes"], "{codec}: {coder}");
                assert_eq!(alone["value_coder"], *coder, "{codec}");
            }
        }
        let table = run(&["inspect", &bench.path("frame")]);
        assert!(table.contains("bytes under each coder") && table.contains("unit 0: levels fixed "));
    }
}

fn check_units(report: &Value, codec: &str) {
    let units = report["units"].as_array().unwrap();
    assert_eq!(report["unit_count"], units.len(), "{codec}");
    let sum = |key: &str| units.iter().map(|unit| unit[key].as_u64().unwrap_or(0)).sum::<u64>();
    assert_eq!(sum("len"), layout().len() as u64, "{codec}");
    assert!(sum("held") <= sum("len"), "{codec}");
    let sections = sum("index_bytes") + sum("value_bytes");
    assert!(sections < report["body_bytes"].as_u64().unwrap(), "{codec}");
    // What is neither positions nor values: step, unit headers, counts and coder parameters.
    assert!(report["body_bytes"].as_u64().unwrap() - sections <= 2 + 40 * units.len() as u64, "{codec}");
}

#[test]
fn inspect_says_that_a_checksum_is_wrong() {
    let bench = Bench::new();
    let mut frame = bench.encode("topk", 0);
    *frame.last_mut().unwrap() ^= 1;
    let path = bench.write("frame", &frame);
    let (stdout, stderr) = refused(&["inspect", &path]);
    assert!(stdout.contains("(WRONG)") && !stdout.contains("unit  start"), "{stdout}");
    assert!(stderr.contains(&path) && stderr.contains("checksum mismatch"), "{stderr}");
    let (stdout, _) = refused(&["inspect", &path, "--json"]);
    assert_eq!(json_lines(&stdout)[0]["checksum_is_right"], false);
}
