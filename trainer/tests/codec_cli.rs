//! `trainer codec`, run as a user runs it.

#[path = "codec_cli/bad_input.rs"]
mod bad_input;
#[path = "codec_cli/claims.rs"]
mod claims;
#[path = "codec_cli/forged.rs"]
mod forged;
#[path = "codec_cli/frames.rs"]
mod frames;
#[path = "codec_cli/groups.rs"]
mod groups;
#[path = "codec_cli/list.rs"]
mod list;
#[path = "codec_cli/packets.rs"]
mod packets;
#[path = "codec_cli/real.rs"]
mod real;
#[path = "codec_cli/support.rs"]
mod support;
#[path = "codec_cli/voids.rs"]
mod voids;

use std::collections::BTreeSet;

use gradwire::{Codec, Spec};
use serde_json::json;

use support::{Bench, decoded, examples, json_lines, layout, makes_frames, refused, run, spellings, values};

#[test]
fn every_codec_without_frames_of_its_own_is_refused_or_writes_plain_values() {
    let bench = Bench::new();
    let (input, output) = (bench.path("gradient.safetensors"), bench.path("frame"));
    let layout = layout();
    let values_of = |codec| decoded(&bench.encode(codec, 0), &layout.as_ref());
    let plain = values_of("none");
    for codec in examples().filter(|example| !makes_frames(example)) {
        if let Codec::Gossip(_) = Spec::parse(codec).unwrap().codec {
            assert_eq!(values_of(codec), plain, "{codec}");
            continue;
        }
        let (_, why) =
            refused(&["encode", "--codec", codec, "--input", &input, "--force", "--output", &output]);
        let told = format!("{}: this codec has no frames", Spec::parse(codec).unwrap());
        assert!(why.contains(&input) && why.contains(&told), "{why}");
    }
}

#[test]
fn bench_counts_the_bytes_that_encode_writes() {
    let bench = Bench::new();
    let input = bench.path("gradient.safetensors");
    for seed in [0, 7] {
        let seed_text = seed.to_string();
        let mut args =
            vec!["bench", "--input", &input, "--json", "--iters", "1", "--seed", &seed_text, "--codec"];
        args.extend(spellings());
        let rows = json_lines(&run(&args));
        assert_eq!(rows.len(), spellings().len());
        for (row, codec) in rows.iter().zip(spellings()) {
            assert_eq!(row["codec"], Spec::parse(codec).unwrap().to_string());
            assert_eq!(row["bytes"], bench.encode(codec, seed).len(), "{codec}");
        }
    }
}

#[test]
fn json_has_the_promised_keys_in_order() {
    let bench = Bench::new();
    let input = bench.path("gradient.safetensors");
    let text = run(&["bench", "--input", &input, "--codec", "topk", "bf16", "--json", "--iters", "2"]);
    let keys = [
        "file",
        "codec",
        "n",
        "k",
        "bytes",
        "frames",
        "rounds",
        "bits_per_coord",
        "ratio",
        "nmse",
        "cosine",
        "index_bits_per_entry",
        "value_bits_per_entry",
        "encode_ms",
        "decode_ms",
        "encode_gbps",
        "memcpy_ms",
        "encode_over_memcpy",
        "break_even_gbps",
        "break_even_gbps_bf16",
        "note",
    ];
    for (line, row) in text.lines().zip(json_lines(&text)) {
        let found: BTreeSet<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(found, BTreeSet::from(keys));
        let places: Vec<usize> = keys.iter().map(|key| line.find(&format!("\"{key}\":")).unwrap()).collect();
        assert!(places.is_sorted(), "{line}");
    }
    let rows = json_lines(&text);
    assert_eq!((&rows[0]["file"], &rows[0]["codec"]), (&json!(input), &json!("topk:density=0.01")));
    assert!(rows[0]["index_bits_per_entry"].is_number());
    assert!(rows[1]["index_bits_per_entry"].is_null());
    assert_eq!(rows[1]["value_bits_per_entry"], 16.0);
}

#[test]
fn figures_follow_from_each_other() {
    let bench = Bench::new();
    let input = bench.path("gradient.safetensors");
    let args = ["--input", &input, "--json", "--iters", "3", "--workers", "4", "--codec"];
    let text = run(&[&["bench"], &args[..], &["topk:density=0.01", "randomk:density=0.01", "none"]].concat());
    for (row, is_linear) in json_lines(&text).iter().zip([false, true, true]) {
        let number = |key: &str| row[key].as_f64().unwrap();
        let close = |key: &str, expected: f64| {
            assert!((number(key) - expected).abs() <= 1e-9 * expected.abs(), "{key} of {row}: {expected}");
        };
        let (n, bytes) = (number("n"), number("bytes"));
        assert_eq!(n, bench.values.len() as f64);
        close("ratio", 4.0 * n / bytes);
        close("bits_per_coord", 8.0 * bytes / n);
        let (encode, decode) = (number("encode_ms") / 1e3, number("decode_ms") / 1e3);
        close("encode_gbps", 4.0 * n / 1e9 / encode);
        close("encode_over_memcpy", number("encode_ms") / number("memcpy_ms"));
        for (key, ring_bytes) in [("break_even_gbps", 4.0 * n), ("break_even_gbps_bf16", 2.0 * n)] {
            let saved = if is_linear { 1.5 * (ring_bytes - bytes) } else { 1.5 * ring_bytes - 3.0 * bytes };
            let seconds = if is_linear { encode + decode } else { encode + 4.0 * decode };
            close(key, (8.0 * saved / 1e9 / seconds).max(0.0));
        }
    }
}

/// Columns of which all entries are sent: positions that context models code in a few bits, and `auto` does
/// not.
fn columns() -> Vec<f32> {
    let noise = values(layout().len());
    noise
        .iter()
        .enumerate()
        .map(|(i, x)| if i % 50 == 7 || i % 50 == 30 { 9.0 + x } else { x / 64.0 })
        .collect()
}

#[test]
fn bench_takes_the_index_coder_that_pays_on_the_link() {
    let bench = Bench::new();
    let input = bench.write("columns.safetensors", &bench.gradient(&columns()));
    let rows = |link: &[&str], codecs: &[&str]| {
        json_lines(&run(&[&["bench", "--input", &input, "--json", "--codec"], codecs, link].concat()))
    };
    let codec = "topk:density=0.04";
    let named = ["auto", "small", "smallest"].map(|index| format!("{codec},index={index}"));
    let sizes: Vec<_> =
        rows(&[], &named.each_ref().map(String::as_str)).iter().map(|row| row["bytes"].as_u64()).collect();
    assert!(sizes[1] < sizes[0] && sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
    let slow = rows(&["--link-gbps", "1e-9"], &[codec, &named[0], "threshold:value=4", "qsgd"]);
    assert_eq!(slow[0]["bytes"].as_u64(), sizes[2]);
    assert!(slow[0]["codec"].as_str().unwrap().contains("index=small"), "{}", slow[0]);
    assert_eq!(slow[1]["codec"], codec, "index=auto was asked for");
    assert!(slow[2]["codec"].as_str().unwrap().contains("index=small"), "{}", slow[2]);
    let fast = rows(&["--link_gbps", "1e9"], &[codec]);
    assert_eq!(fast[0]["codec"], codec);
}

#[test]
fn link_rates_are_above_0() {
    for rate in ["0", "-1", "inf", "nan", "fast"] {
        let rate = format!("--link-gbps={rate}");
        let (_, why) = refused(&["bench", "--input", "none.safetensors", "--codec", "topk", &rate]);
        assert!(why.contains("above 0"), "{why}");
    }
}

#[test]
fn codecs_without_frames_are_measured_by_their_payloads() {
    let bench = Bench::new();
    let input = bench.path("gradient.safetensors");
    let args = ["bench", "--input", &input, "--json", "--iters", "2", "--workers", "4", "--codec"];
    let codecs = ["powersgd:rank=1,unit=tensor", "powersgd:rank=2,unit=tensor", "none"];
    let rows = json_lines(&run(&[&args[..], &codecs].concat()));
    let number = |row: usize, key: &str| rows[row][key].as_f64().unwrap();
    for row in 0..2 {
        assert_eq!((&rows[row]["frames"], &rows[row]["rounds"]), (&json!(null), &json!(2)), "{}", rows[row]);
        assert_eq!(number(row, "k"), number(row, "n"));
        assert!(number(row, "encode_ms") > 0.0 && number(row, "decode_ms") > 0.0);
        assert!((0.0..1.0).contains(&number(row, "nmse")), "{}", rows[row]);
        // A ring carries payloads as it carries dense f32, one encode and one decode on top.
        let (dense, bytes) = (4.0 * number(row, "n"), number(row, "bytes"));
        let seconds = (number(row, "encode_ms") + number(row, "decode_ms")) / 1e3;
        let expected = (8.0 * 1.5 * (dense - bytes) / 1e9 / seconds).max(0.0);
        assert!((number(row, "break_even_gbps") - expected).abs() <= 1e-9 * expected);
    }
    // Thin factors of the two matrices, 40 × 50 and 10 × 40; what is left is sent dense.
    assert_eq!(number(0, "bytes"), 4.0 * (90.0 + 50.0 + 41.0));
    assert_eq!(number(1, "bytes"), 4.0 * (2.0 * (90.0 + 50.0) + 41.0));
    assert!(number(1, "nmse") < number(0, "nmse"));
    let table = run(&["bench", "--input", &input, "--iters", "1", "--codec", "powersgd"]);
    assert!(table.contains("2 rounds"), "{table}");
}

#[test]
fn a_codec_that_cannot_run_is_a_row_that_says_why() {
    let bench = Bench::new();
    let mut large = bench.values.clone();
    large[7] = 1e6;
    let input = bench.write("large.safetensors", &bench.gradient(&large));
    let args = ["bench", "--input", &input, "--iters", "1", "--codec", "none", "f16", "bf16"];
    let rows = json_lines(&run(&[&args[..], &["--json"]].concat()));
    assert_eq!(rows.len(), 3);
    assert!(rows[0]["bytes"].is_number() && rows[2]["bytes"].is_number());
    assert_eq!((&rows[1]["codec"], &rows[1]["bytes"]), (&json!("f16"), &json!(null)));
    let why = rows[1]["error"].as_str().unwrap();
    assert!(why.contains("f16: value at coordinate 7 overflows"), "{why}");
    let table = run(&args);
    // Told on as many lines as it takes.
    let told = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(told.contains("failed: ") && told.contains(why), "{table}");
    let (stdout, alone) = refused(&["bench", "--input", &input, "--codec", "f16"]);
    assert!(stdout.is_empty() && alone.contains("value at coordinate 7 overflows"), "{alone}");
}

#[test]
fn index_bits_count_every_byte_of_the_positions() {
    let bench = Bench::new();
    let input = bench.path("gradient.safetensors");
    for codec in
        ["topk:density=0.01", "topk:density=0.1,index=raw", "topk:density=0.01,unit=tensor,dense_below=50"]
    {
        bench.encode(codec, 0);
        let report = &json_lines(&run(&["inspect", "--json", &bench.path("frame")]))[0];
        let units = report["units"].as_array().unwrap();
        let positions = units
            .iter()
            .filter(|unit| unit["kind"] == "sparse")
            .map(|unit| unit["body_bytes"].as_u64().unwrap() - unit["value_bytes"].as_u64().unwrap());
        let positions = positions.sum::<u64>() as f64;
        let row =
            &json_lines(&run(&["bench", "--input", &input, "--codec", codec, "--json", "--iters", "1"]))[0];
        let bits = row["index_bits_per_entry"].as_f64().unwrap();
        assert!((bits * row["k"].as_f64().unwrap() - 8.0 * positions).abs() < 1e-6, "{codec}: {row}");
    }
}

#[test]
fn a_note_says_that_a_codec_sends_all_of_it_dense() {
    let bench = Bench::new();
    let flat = support::safetensors_bytes(&[("a", "F32", &[500], support::le_bytes(&values(500)))]);
    let input = bench.write("flat.safetensors", &flat);
    let codecs = ["dgc:density=0.1", "dgc:density=0.1,dense_1d=false", "none"];
    let args = [&["bench", "--input", &input, "--iters", "1", "--codec"][..], &codecs].concat();
    let rows = json_lines(&run(&[&args[..], &["--json"]].concat()));
    let note = rows[0]["note"].as_str().unwrap();
    assert!(
        note.contains("dgc sends 500 of 500 coordinates dense") && note.contains("dense_1d=false"),
        "{note}"
    );
    assert!(rows[1]["note"].is_null() && rows[2]["note"].is_null());
    let words: Vec<String> = run(&args).split_whitespace().map(str::to_owned).collect();
    assert!(words.join(" ").contains(&format!("note: {note}")));
}

#[test]
fn errors_are_those_of_the_definition() {
    let bench = Bench::new();
    let input = bench.path("gradient.safetensors");
    for codec in ["none", "topk:density=0.1", "qsgd:bits=4", "threshold:value=1000000"] {
        let row =
            &json_lines(&run(&["bench", "--input", &input, "--codec", codec, "--json", "--iters", "1"]))[0];
        let decoded = decoded(&bench.encode(codec, 0), &layout().as_ref());
        let sum = |f: fn(f64, f64) -> f64| -> f64 {
            let pairs = bench.values.iter().zip(&decoded);
            pairs.map(|(&x, &y)| f(f64::from(x), f64::from(f32::from_bits(y)))).sum()
        };
        let (xx, yy) = (sum(|x, _| x * x), sum(|_, y| y * y));
        let nmse = sum(|x, y| (y - x) * (y - x)) / xx;
        assert!((row["nmse"].as_f64().unwrap() - nmse).abs() < 1e-12, "{codec}");
        match row["cosine"].as_f64() {
            Some(cosine) => assert!((cosine - sum(|x, y| x * y) / (xx * yy).sqrt()).abs() < 1e-12, "{codec}"),
            None => assert_eq!(yy, 0.0, "{codec}"),
        }
    }
}

#[test]
fn the_table_names_its_units_and_says_what_ratio_means() {
    let bench = Bench::new();
    let input = bench.path("gradient.safetensors");
    let table = run(&["bench", "--input", &input, &input, "--codec", "topk", "qsgd", "--iters", "1"]);
    assert_eq!(table.matches("2,441 coordinates in 5 tensors").count(), 2);
    assert!(table.matches("qsgd:bits=4").count() >= 4);
    assert_eq!(table.lines().filter(|line| line.starts_with("ratio: ")).count(), 1);
    assert!(table.contains("Gbit/s") && table.contains("bytes") && table.contains(" ms"));
}

#[test]
fn tables_and_notes_fit_80_columns() {
    let bench = Bench::new();
    let flat = support::safetensors_bytes(&[("a", "F32", &[500], support::le_bytes(&values(500)))]);
    let input = bench.write("flat.safetensors", &flat);
    let codecs = ["dgc:density=0.1", "powersgd:rank=2"];
    let args =
        [&["bench", "--input", &input, "--iters", "1", "--link-gbps", "1", "--codec"][..], &codecs].concat();
    let text = run(&args);
    let lines = text.lines().filter(|line| !line.starts_with(&input));
    assert!(text.contains("note: ") && text.contains("break-even: ") && text.contains("index: "), "{text}");
    assert!(lines.map(|line| line.chars().count()).all(|width| width <= 80), "{text}");
    let input = bench.path("gradient.safetensors");
    let long = "topk:density=0.1,index=smallest,values=q8,unit=tensor,dense_below=50,dense_1d=true";
    let text = run(&["bench", "--input", &input, "--iters", "1", "--codec", long, "none"]);
    let rows: Vec<&str> = text.lines().filter(|line| !line.starts_with(&input)).collect();
    assert!(rows.len() > 10 && rows.iter().all(|line| line.chars().count() <= 80), "{text}");
    bench.encode(long, 0);
    let text = run(&["inspect", &bench.path("frame"), "--layout", &input]);
    let rows = text.lines().skip(1).take_while(|line| !line.starts_with("held: "));
    assert!(rows.map(|line| line.chars().count()).all(|width| width <= 80), "{text}");
}
