//! `trainer codec`, run as a user runs it.

#[path = "codec_cli/bad_input.rs"]
mod bad_input;
#[path = "codec_cli/claims.rs"]
mod claims;
#[path = "codec_cli/frames.rs"]
mod frames;
#[path = "codec_cli/list.rs"]
mod list;
#[path = "codec_cli/real.rs"]
mod real;
#[path = "codec_cli/support.rs"]
mod support;

use std::collections::BTreeSet;

use gradwire::{Codec, Spec};
use serde_json::json;

use support::{Bench, SPELLINGS, decoded, json_lines, layout, refused, run, values};

#[test]
fn spellings_cover_every_codec() {
    // A gossip codec sends models, not gradients: its frames are those of `none`. `powersgd` has no frames at all.
    let is_framed = |name: &&str| {
        let codec = Spec::parse(name).map(|spec| spec.codec);
        codec.map_or(true, |codec| codec.capabilities().has_frames && !matches!(codec, Codec::Gossip(_)))
    };
    for codec in Spec::names().iter().copied().filter(is_framed) {
        let mut names = SPELLINGS.iter().filter_map(|spelling| spelling.split(':').next());
        assert!(names.any(|name| name == codec), "{codec}");
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
        args.extend(SPELLINGS);
        let rows = json_lines(&run(&args));
        assert_eq!(rows.len(), SPELLINGS.len());
        for (row, codec) in rows.iter().zip(SPELLINGS) {
            assert_eq!(row["codec"], codec);
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

/// Columns of which all entries are sent: positions that context models code in a few bits, and `auto` does not.
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
    assert_eq!(table.matches("qsgd:bits=4").count(), 4);
    assert_eq!(table.lines().filter(|line| line.starts_with("ratio: ")).count(), 1);
    assert!(table.contains("Gbit/s") && table.contains("bytes") && table.contains(" ms"));
}
