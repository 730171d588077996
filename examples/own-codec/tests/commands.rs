//! Every command of the trainer with codecs that the trainer does not have.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::Value;

fn program(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_own-codec")).args(arguments).current_dir(folder).output().unwrap()
}

/// Standard output of a command that succeeds.
fn done(folder: &Path, arguments: &[&str]) -> String {
    let output = program(folder, arguments);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {told}");
    String::from_utf8(output.stdout).unwrap()
}

/// Standard error of a command that is refused.
fn refused(folder: &Path, arguments: &[&str]) -> String {
    let output = program(folder, arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// A folder with a gradient of two tensors.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let values: Vec<f32> = (0..1030u32).map(|at| ((at * 37) % 101) as f32 / 50.0 - 1.0).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let (bias, weight) = bytes.split_at(4 * 30);
    let tensors = [
        ("bias", TensorView::new(Dtype::F32, vec![30], bias).unwrap()),
        ("weight", TensorView::new(Dtype::F32, vec![20, 50], weight).unwrap()),
    ];
    fs::write(folder.path().join("gradient"), safetensors::serialize(tensors, None).unwrap()).unwrap();
    folder
}

fn summary(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path.join("summary.json")).unwrap()).unwrap()
}

/// Commands to copy are those of this program.
#[test]
fn messages_name_the_program_that_runs() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("grid.toml"), "").unwrap();
    let told = refused(folder.path(), &["train", "--resume", "."]);
    assert!(told.contains("go on with: own-codec compare --resume ."), "{told}");
    let told = refused(folder.path(), &["train", "--transport", "mpi"]);
    assert!(told.contains("own-codec train …"), "{told}");
    let told = refused(folder.path(), &["codec", "help", "x:dcie"]);
    assert!(told.starts_with("own-codec: x:dcie: no codec"), "{told}");
}

#[test]
fn they_are_listed_and_explained() {
    let folder = folder();
    let list = done(folder.path(), &["codec", "list"]);
    assert!(list.contains("x:dice (244) [gather]") && list.contains("x:window (245) [gather]"), "{list}");
    let help = done(folder.path(), &["codec", "help", "x:dice"]);
    assert!(help.contains("block") && help.contains("512") && help.contains("multiple of 8"), "{help}");
    assert!(help.contains("x:dice:block=64,unit=tensor"), "{help}");
    assert_eq!(done(folder.path(), &["codec", "help", "x:dice:block=64"]), help);
    assert!(done(folder.path(), &["train", "--help"]).contains("x:dice"));
    for (codec, told) in [
        ("x:dice:block=7", "block=7: expected a multiple of 8 from 8 to 4096"),
        ("x:dice:blok=8", "did you mean block?"),
        ("x:dcie", "did you mean x:dice?"),
    ] {
        let error = refused(folder.path(), &["train", "--codec", codec]);
        assert!(error.contains(told), "{codec}: {error}");
    }
}

#[test]
fn frames_are_written_inspected_and_read() {
    let folder = folder();
    for (flag, codec, kind) in [
        ("--codec", "x:dice:block=64", "dice"),
        ("--codec", "x:window:density=0.1,dense_1d=true", "window"),
        ("--rules", "bias=none; x:window:density=0.5", "window"),
        ("--rules", "bias=x:dice; x:window:density=0.5", "window"),
    ] {
        let frame = ["--output", "frame", "--force"];
        done(folder.path(), &[&["codec", "encode", flag, codec, "--input", "gradient"][..], &frame].concat());
        let inspected = done(folder.path(), &["codec", "inspect", "frame"]);
        assert!(inspected.contains(kind) && inspected.contains("x:"), "{codec}: {inspected}");
        let layout = ["--layout", "gradient", "--force"];
        let decode = ["codec", "decode", "--input", "frame", "--output", "decoded"];
        done(folder.path(), &[&decode[..], &layout].concat());
        let bytes = fs::read(folder.path().join("decoded")).unwrap();
        let (_, decoded) = SafeTensors::read_metadata(&bytes).unwrap();
        assert!(decoded.metadata().as_ref().unwrap()["codec"].contains("x:"), "{codec}");
    }
    let bench = done(
        folder.path(),
        &["codec", "bench", "--input", "gradient", "--json", "--iters", "2", "--codec", "x:dice", "x:window"],
    );
    let rows: Vec<Value> = bench.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        rows.iter().map(|row| row["codec"].as_str().unwrap()).collect::<Vec<_>>(),
        ["x:dice", "x:window:density=0.01"]
    );
    assert_eq!(
        (&rows[0]["bytes"], &rows[1]["k"]),
        (&Value::from(24 + 1 + 5 + 2 + 2 * 132 + 6), &Value::from(10))
    );
}

#[test]
fn runs_train_repeat_and_resume_from_their_folder() {
    let folder = folder();
    for (name, codec, exchange) in [("a", "x:window:density=0.2", "all-gather"), ("b", "x:dice", "server")] {
        let train = ["train", "--codec", codec, "--exchange", exchange, "--checkpoint-every", "5", "--out"];
        let long = format!("{name}-long");
        done(folder.path(), &[&train[..], &[name, "--steps", "10"]].concat());
        done(folder.path(), &[&train[..], &[&long, "--steps", "20"]].concat());
        let config = fs::read_to_string(folder.path().join(name).join("config.toml")).unwrap();
        assert!(config.contains(&format!("codec = \"{codec}\"")), "{config}");
        done(folder.path(), &["train", "--resume", name, "--steps", "20"]);
        let [resumed, whole] = [name, &long].map(|name| summary(&folder.path().join(name)));
        assert!(resumed["params_hash"].is_string(), "{resumed}");
        assert_eq!(resumed["params_hash"], whole["params_hash"], "{resumed}");
    }
}

#[test]
fn densities_are_scheduled_and_controlled() {
    let folder = folder();
    let train = |codec: &str, rest: &[&str]| {
        let train = ["train", "--codec", codec, "--steps", "6", "--force", "--out", "run"];
        program(folder.path(), &[&train[..], rest].concat())
    };
    assert!(train("x:window:density=0.1,warmup=1", &[]).status.success());
    let listed = train("x:window", &["--adapt", "steps:0=0.5,3=0.1"]);
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let metrics = fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap();
    let densities: Vec<Value> = metrics
        .lines()
        .filter_map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            line.get("density").cloned()
        })
        .collect();
    assert!(densities.contains(&Value::from(0.5)) && densities.contains(&Value::from(0.1)), "{metrics}");
    let gravac = train("x:window", &["--adapt", "gravac:max=10"]);
    assert!(String::from_utf8_lossy(&gravac.stderr).contains("it needs gains"), "{gravac:?}");
    let rules = ["train", "--rules", "*.bias=none; x:dice", "--steps", "4", "--force", "--out", "run"];
    done(folder.path(), &rules);
}

#[test]
fn they_are_compared_and_advised_on() {
    let folder = folder();
    let compare =
        ["compare", "--codec", "none", "x:dice", "x:window:density=0.1", "--steps", "6", "--out", "c"];
    let table = done(folder.path(), &compare);
    assert!(table.contains("x:dice") && table.contains("x:window:density=0.1"), "{table}");
    let report = fs::read_to_string(folder.path().join("c/report.html")).unwrap();
    assert!(report.contains("the signs of some coordinates by chance"), "the report has its line of summary");
    let advise =
        ["advise", "--codec", "none", "x:dice", "--params", "100000", "--compute-ms", "5", "--gbps", "0.01"];
    let advice = done(folder.path(), &advise);
    assert!(advice.contains("x:dice"), "{advice}");
}
