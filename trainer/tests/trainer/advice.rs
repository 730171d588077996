//! `trainer advise` and `trainer simulate` as a user meets them.

use gradwire_trainer::run::run;
use serde_json::Value;

use super::command_line::{refusal_in, trainer};
use crate::{Quiet, digits_job, word};

fn lines(output: &std::process::Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Codecs of a million parameters as a file has them: a ring moves 8 MB, the codec 10 kB in 1 ms.
const COSTS: &str = r#"{"coordinates":1000000,"side_by_side":1,"add_s":0.0005,
"dense":{"codec":"none","kind":"dense","bytes":4000020,"encode_s":0.001,"decode_s":0.001,"memcpy_s":0.001},
"bf16":{"codec":"bf16","kind":"frames","bytes":2000020,"encode_s":0.001,"decode_s":0.001,"memcpy_s":0.001},
"codecs":[{"codec":"topk:density=0.001","kind":{"sparse":{"density":0.001}},"bytes":10000,"encode_s":0.001,
"decode_s":0.0001,"memcpy_s":0.001}],"failed":["f16: value at coordinate 7 overflows"]}"#;

#[test]
fn advice_for_one_link_is_a_sentence_and_a_table() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("costs.json"), COSTS).unwrap();
    let ask = |gbps: &str| {
        let asked =
            ["advise", "--costs", "costs.json", "--compute-ms", "50", "--workers", "8", "--gbps", gbps];
        let told = String::from_utf8(trainer(folder.path(), &asked).stdout).unwrap();
        assert!(told.lines().all(|line| line.chars().count() <= 80), "{told}");
        // On as many lines as it takes.
        told.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let slow = ask("0.1");
    // 8 · 7 MB over 0.1 Gbit/s are 560 ms of a dense step; frames are 5.6 ms and 1.8 ms of coding.
    assert!(slow.contains("8 workers, 100 Mbit/s: topk:density=0.001 by"), "{slow}");
    assert!(slow.contains("dense 611 ms: 10."), "{slow}");
    let fast = ask("400");
    assert!(fast.contains("8 workers, 400 Gbit/s: do not compress."), "{fast}");
    assert!(slow.contains("left out: f16: value at coordinate 7 overflows"), "{slow}");
}

#[test]
fn measured_costs_are_saved_and_asked_again() {
    let folder = tempfile::tempdir().unwrap();
    let codecs = ["topk:density=0.01", "powersgd:rank=1"];
    let measure =
        ["advise", "--params", "20k", "--compute-ms", "5", "--iters", "1", "--save-costs", "costs.json"];
    let measure: Vec<&str> =
        measure.into_iter().chain(["--json", "--heat-map", "map.svg", "--codec"]).chain(codecs).collect();
    let first = lines(&trainer(folder.path(), &measure));
    assert_eq!(first.len(), 8 * 7, "numbers of workers by bandwidths");
    let again = ["advise", "--costs", "costs.json", "--compute-ms", "5", "--json"];
    assert_eq!(lines(&trainer(folder.path(), &again)), first);
    let named: Vec<&str> =
        first[0]["codecs"].as_array().unwrap().iter().map(|row| row["codec"].as_str().unwrap()).collect();
    assert_eq!(named, codecs);
    let map = std::fs::read_to_string(folder.path().join("map.svg")).unwrap();
    assert_eq!(map.matches("<g><title>").count(), 8 * 7);
    assert!(map.contains("role=\"img\"") && map.contains("4096 workers, 400 Gbit/s: "), "{map}");
    let told = String::from_utf8(trainer(folder.path(), &again[..5]).stdout).unwrap();
    assert!(told.contains("Break-even in Gbit/s by workers") && told.contains("A: topk:density=0.01"));
    assert!(told.lines().all(|line| line.chars().count() <= 80), "{told}");
}

/// The same with a second codec, of frames as long as half the dense ones.
fn two_codecs() -> String {
    let second =
        r#"{"codec":"qsgd:bits=4","kind":"frames","bytes":2000000,"encode_s":0,"decode_s":0,"memcpy_s":0}"#;
    COSTS.replace("}],\"failed", &format!("}},{second}],\"failed"))
}

#[test]
fn a_choice_is_a_codec_and_its_exchange() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("costs.json"), COSTS).unwrap();
    let asked = ["advise", "--costs", "costs.json", "--compute-ms", "50", "--gbps", "0.1,400"];
    let ask = |more: &[&str]| trainer(folder.path(), &[&asked[..], more].concat());
    let cells = lines(&ask(&["--workers", "2,256", "--json"]));
    let taken = |cell: &Value| (cell["choice"].clone(), cell["exchange"].clone());
    assert_eq!(taken(&cells[0]), ("topk:density=0.001".into(), "all-gather".into()));
    assert_eq!(taken(&cells[1]), ("none".into(), "ring".into()), "nothing pays");
    assert_eq!(taken(&cells[2]), ("topk:density=0.001".into(), "sparse".into()));
    let told = String::from_utf8(ask(&["--workers", "2,256", "--heat-map", "map.svg"]).stdout).unwrap();
    let map = std::fs::read_to_string(folder.path().join("map.svg")).unwrap();
    for legend in ["A: topk:density=0.001 by all-gather", "B: topk:density=0.001 by sparse all-reduce"] {
        assert!(told.contains(legend) && map.contains(legend), "{told}");
    }
}

#[test]
fn codecs_that_do_not_go_with_the_optimizer_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("costs.json"), two_codecs().replace(":2000000,", ":400000,")).unwrap();
    let asked = ["advise", "--costs", "costs.json", "--compute-ms", "50", "--gbps", "0.1", "--workers", "2"];
    let ask = |more: &[&str]| trainer(folder.path(), &[&asked[..], more].concat());
    let told = |more: &[&str]| {
        let text = String::from_utf8(ask(more).stdout).unwrap();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let taken = |more: &[&str]| lines(&ask(&[more, &["--json"]].concat()))[0]["choice"].clone();
    for optimizer in ["sgd", "adamw-updates"] {
        assert_eq!(taken(&["--optimizer", optimizer]), "topk:density=0.001");
        assert!(!told(&["--optimizer", optimizer]).contains("trains worse with such codecs"));
    }
    for optimizer in ["adamw", "muon"] {
        assert_eq!(taken(&["--optimizer", optimizer]), "qsgd:bits=4");
        let left_out = format!("left out: topk:density=0.001: {optimizer} trains worse with such codecs");
        assert!(told(&["--optimizer", optimizer]).contains(&left_out));
        // Nothing is left but dense gradients.
        let alone = ["--optimizer", optimizer, "--codec", "topk:density=0.001"];
        assert_eq!(taken(&alone), "none, wire=bf16");
    }
    // Signs are left out, too, which are not sparse.
    let efsign = COSTS
        .replace("topk:density=0.001", "efsign")
        .replace(r#"{"sparse":{"density":0.001}}"#, r#""frames""#);
    std::fs::write(folder.path().join("costs.json"), efsign).unwrap();
    assert_eq!(taken(&["--optimizer", "sgd"]), "efsign");
    assert_eq!(taken(&["--optimizer", "adamw"]), "none, wire=bf16");
    std::fs::write(folder.path().join("costs.json"), two_codecs()).unwrap();
    assert!(told(&[]).contains("With AdamW many codecs train worse: --optimizer adamw leaves these out."));
    // What is saved is all that was measured.
    ask(&["--optimizer", "adamw", "--save-costs", "saved.json"]);
    let saved = std::fs::read_to_string(folder.path().join("saved.json")).unwrap();
    assert!(saved.contains("topk:density=0.001") && !saved.contains("trains worse"), "{saved}");
}

/// What each of four workers sends, as it is foretold and as it is counted in a run of three steps without
/// the version of each message.
#[test]
fn a_run_sends_the_bytes_that_advice_says() {
    let folder = tempfile::tempdir().unwrap();
    let sent_in = |exchange: &str, wire: &str| {
        let job = digits_job("none", 3, |settings| {
            (settings.exchange, settings.wire) = (Some(word(exchange)), Some(word(wire)));
        });
        let outcome = run(&job, &mut Quiet::default()).unwrap();
        let sent =
            |counters: &gradwire_transports::Counters| counters.up.payload_bytes - counters.up.messages;
        (job.layout.len(), outcome.counters.iter().map(sent).sum::<u64>() as f64 / 12.0)
    };
    let params = sent_in("owners", "f32").0.to_string();
    std::fs::write(folder.path().join("costs.json"), COSTS.replace(":1000000,", &format!(":{params},")))
        .unwrap();
    let asked = ["advise", "--costs", "costs.json", "--compute-ms", "1", "--workers", "4", "--gbps", "1"];
    // A ring converts less, which matters where messages are as fast as bytes.
    for (latency_us, exchange, names) in
        [("1000", "owners", ["owners", "owners-bf16"]), ("0", "all-reduce", ["ring", "ring-bf16"])]
    {
        let cell =
            &lines(&trainer(folder.path(), &[&asked[..], &["--json", "--latency-us", latency_us]].concat()))
                [0];
        for ((row, wire), name) in [("dense", "f32"), ("bf16", "bf16")].into_iter().zip(names) {
            assert_eq!(cell[row]["exchange"], name, "{cell}");
            assert_eq!(cell[row]["bytes"].as_f64(), Some(sent_in(exchange, wire).1), "{exchange} {wire}");
        }
    }
}

#[test]
fn what_a_link_passes_at_once_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("costs.json"), COSTS).unwrap();
    let asked =
        ["advise", "--costs", "costs.json", "--compute-ms", "50", "--workers", "2", "--gbps", "0.008"];
    let ask = |more: &[&str]| trainer(folder.path(), &[&asked[..], &["--latency-us", "1000"], more].concat());
    // 1 ms, and 10 kB at 1 MB/s, of which 4 kB pass at once.
    for (burst, moving_ms) in [("0", 11.0), ("4000", 7.0), ("10001", 1.0)] {
        let cell = &lines(&ask(&["--burst-bytes", burst, "--json"]))[0];
        let found = cell["codecs"][0]["moving_ms"].as_f64().unwrap();
        assert!((found - moving_ms).abs() < 1e-9, "{burst}: {found}");
        assert_eq!(cell["burst_bytes"].as_f64(), burst.parse().ok());
    }
    let told = String::from_utf8(ask(&["--burst-bytes", "4000"]).stdout).unwrap();
    let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(told.contains("and pass 4,000 bytes at once after a pause."), "{told}");
}

#[test]
fn codecs_of_a_file_are_narrowed() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("costs.json"), two_codecs()).unwrap();
    let ask = |more: &[&str]| -> Vec<String> {
        let asked = ["advise", "--costs", "costs.json", "--compute-ms", "1", "--workers", "2", "--json"];
        let cells = lines(&trainer(folder.path(), &[&asked[..], more].concat()));
        let rows = cells[0]["codecs"].as_array().unwrap();
        rows.iter().map(|row| row["codec"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ask(&[]), ["topk:density=0.001", "qsgd:bits=4"]);
    assert_eq!(ask(&["--codec", "none", "qsgd:bits=4"]), ["qsgd:bits=4"]);
}

/// A folder as `trainer train` writes it, of steps that compute for so many milliseconds.
fn write_run(folder: &std::path::Path, compute_ms: &[u64]) {
    std::fs::create_dir(folder).unwrap();
    let line = |(step, ms): (usize, &u64)| {
        format!(
            "{{\"step\":{step},\"epoch\":0,\"loss\":1,\"lr\":0.1,\"bytes_up\":1,\"bytes_down\":1,\"ratio\":1,\
             \"wire_ratio\":1,\"contributors\":2,\"compute_ns\":{},\"encode_ns\":1,\"exchange_ns\":1,\
             \"decode_ns\":1,\"residual_norm\":0,\"density\":1,\"target_density\":null}}\n",
            ms * 1_000_000
        )
    };
    let metrics: String = compute_ms.iter().enumerate().map(line).collect();
    std::fs::write(folder.join("metrics.jsonl"), metrics).unwrap();
    std::fs::write(folder.join("summary.json"), "{\"params\":5000}").unwrap();
}

#[test]
fn recorded_runs_say_how_long_steps_compute_and_how_much_overlap_slows_them() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("costs.json"), COSTS).unwrap();
    write_run(&folder.path().join("alone"), &[900, 10, 9, 10, 11]);
    write_run(&folder.path().join("both"), &[900, 12, 12, 13, 11]);
    let ask = |more: &[&str]| {
        let asked = ["advise", "--costs", "costs.json", "--buckets", "4", "--json"];
        lines(&trainer(folder.path(), &[&asked[..], more].concat()))
    };
    let told = ask(&["--compute-ms", "10", "--slowdown", "1.2"]);
    assert_eq!(ask(&["--run", "alone", "--overlapped", "both"]), told);
    let alone = ask(&["--compute-ms", "10"]);
    assert_ne!(alone, told);
    assert_eq!(ask(&["--run", "alone"]), alone);
    let faster = ask(&["--run", "both", "--overlapped", "alone"]);
    assert_eq!(faster, ask(&["--compute-ms", "12"]), "overlap makes no step faster");
    let taken = |cells: Vec<Value>| cells[1]["choice"].clone();
    assert_eq!(taken(ask(&["--run", "alone"])), "topk:density=0.001");
    std::fs::write(folder.path().join("alone/config.toml"), "optimizer = \"adamw\"\n").unwrap();
    assert_eq!(taken(ask(&["--run", "alone"])), "none, wire=bf16", "the optimizer is that of the run");
    assert_eq!(taken(ask(&["--run", "alone", "--optimizer", "sgd"])), "topk:density=0.001");
    let measured = ["advise", "--run", "alone", "--iters", "1", "--codec", "qsgd:bits=4"];
    let told = String::from_utf8(trainer(folder.path(), &measured).stdout).unwrap();
    assert!(told.starts_with("5,000 coordinates") || told.starts_with("5 000 coordinates"), "{told}");
}

#[test]
fn bad_questions_are_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("wrong.json"), "{}").unwrap();
    std::fs::write(folder.path().join("costs.json"), two_codecs()).unwrap();
    std::fs::write(folder.path().join("wrong.toml"), "workers = 4\ngbps = -1\n").unwrap();
    for (arguments, message) in [
        (
            &["advise", "--params", "1k"][..],
            "the following required arguments were not provided: <--compute-ms <X>|--run <DIR>>",
        ),
        (
            &["advise", "--compute-ms", "3"],
            "the following required arguments were not provided: \
             <--params <N>|--input <FILE>|--costs <FILE>|--run <DIR>>",
        ),
        (
            &["advise", "--run", "alone", "--compute-ms", "3"],
            "the argument '--run <DIR>' cannot be used with '--compute-ms <X>'",
        ),
        (
            &["advise", "--run", "alone", "--overlapped", "both", "--slowdown", "2"],
            "the argument '--overlapped <DIR>' cannot be used with '--slowdown <X>'",
        ),
        (
            &["advise", "--costs", "costs.json", "--compute-ms", "1", "--codec", "none", "efsign"],
            "costs.json: has no costs of efsign, but of topk:density=0.001 qsgd:bits=4",
        ),
        (&["advise", "--run", "nowhere"], "nowhere: "),
        (
            &["advise", "--params", "0", "--compute-ms", "1"],
            "invalid value '0' for '--params <N>': expected a whole number such as",
        ),
        (
            &["advise", "--params", "64", "--compute-ms", "5", "--codec", "topk:density=7"],
            "--codec topk:density=7: density=7: expected a fraction from 1e-9 to 1",
        ),
        (&["advise", "--params", "1", "--compute-ms", "-1"], "invalid value '-1' for '--compute-ms <X>': "),
        (
            &["advise", "--params", "1", "--compute-ms", "1", "--burst-bytes", "-1"],
            "invalid value '-1' for '--burst-bytes <N>': ",
        ),
        (
            &["advise", "--costs", "wrong.json", "--compute-ms", "1"],
            "wrong.json: not a file of costs: missing field",
        ),
        (&["simulate", "run", "--cluster", "wrong.toml"], "wrong.toml: gbps = -1: expected above 0"),
        (&["simulate", "run", "--cluster", "none.toml"], "none.toml: "),
    ] {
        let told = refusal_in(folder.path(), arguments);
        assert!(told.starts_with(message), "{told}");
    }
}

#[test]
fn a_recorded_run_is_replayed_on_other_clusters() {
    let folder = tempfile::tempdir().unwrap();
    let run = ["train", "--codec", "topk:density=0.1", "--steps", "8", "--hidden", "16", "--out", "run"];
    assert!(trainer(folder.path(), &run).status.success());
    std::fs::write(folder.path().join("lan.toml"), "workers = 4\ngbps = 1\nlatency_us = 50\n").unwrap();
    let far = "workers = 4\ngbps = 1\nsites = { workers = 2, gbps = 0.001, latency_us = 50000 }\n";
    std::fs::write(folder.path().join("far.toml"), far).unwrap();
    let replay = |cluster: &str| {
        let asked =
            ["simulate", "run", "--cluster", cluster, "--workers", "4,256", "--compute-ms", "10", "--json"];
        lines(&trainer(folder.path(), &asked))
    };
    let (lan, far) = (replay("lan.toml"), replay("far.toml"));
    let step = |line: &Value| line["outcome"]["step_ms"].as_f64().unwrap();
    assert_eq!(
        (lan.len(), lan[0]["codec"].as_str(), lan[0]["outcome"]["steps"].as_u64()),
        (2, Some("topk:density=0.1"), Some(8))
    );
    assert!(step(&lan[0]) > 10.0 && step(&lan[1]) > step(&lan[0]), "{lan:?}");
    assert!(step(&far[0]) > step(&lan[0]) + 50.0, "{far:?}");
    let told =
        String::from_utf8(trainer(folder.path(), &["simulate", "run", "--cluster", "lan.toml"]).stdout)
            .unwrap();
    assert!(told.contains("all-gather") && told.contains("topk:density=0.1"), "{told}");
    let missing = refusal_in(folder.path(), &["simulate", "nowhere", "--cluster", "lan.toml"]);
    assert!(missing.starts_with("nowhere: "), "{missing}");
    let above = refusal_in(folder.path(), &["simulate", ".", "--cluster", "lan.toml"]);
    assert_eq!(above, ".: not a run, but a folder of runs: ./run");
}

/// Over links so slow that decoding is nothing beside them. Frames of two-bit values are a third as long.
#[test]
fn a_replay_sums_values_of_few_bits_as_f32() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("slow.toml"), "workers = 4\ngbps = 0.00001\n").unwrap();
    let [(gathered, summed), (gathered_few, summed_few)] = ["", ",values=q2"].map(|values| {
        let codec = format!("topk:density=0.1{values}");
        let run = ["train", "--codec", &codec, "--steps", "2", "--hidden", "16", "--out", &codec];
        assert!(trainer(folder.path(), &run).status.success());
        let exchange_ms = |exchange: &str| {
            let asked = ["simulate", &codec, "--cluster", "slow.toml", "--exchange", exchange, "--json"];
            lines(&trainer(folder.path(), &asked))[0]["outcome"]["exchange_ms"].as_f64().unwrap()
        };
        (exchange_ms("all-gather"), exchange_ms("sparse"))
    });
    assert!(gathered_few < 0.5 * gathered, "{gathered_few} {gathered}");
    assert!(summed_few > 0.9 * summed, "{summed_few} {summed}");
}
