//! The program with the learned codec that it registers.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Standard output and standard error of a command that succeeds.
fn done(folder: &Path, arguments: &[&str]) -> (String, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_trainer"));
    let output = program.args(arguments).current_dir(folder).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}: {told}");
    (String::from_utf8(output.stdout).unwrap(), told)
}

fn params_hash(folder: &Path, run: &str) -> Value {
    let summary = fs::read_to_string(folder.join(run).join("summary.json")).unwrap();
    let summary: Value = serde_json::from_str(&summary).unwrap();
    assert!(summary["params_hash"].is_string(), "{summary}");
    summary["params_hash"].clone()
}

/// Four dense steps, six that train, and then latents, where the gate lets nearly everything pass.
const CODECS: [&str; 2] = [
    "x:lgc:top=0.1,dense_steps=4,train_steps=6,gate=0.99",
    "x:lgc:top=0.1,dense_steps=4,train_steps=6,gate=0.99,decoders=4",
];

#[test]
fn it_is_listed_and_explained() {
    let folder = tempfile::tempdir().unwrap();
    let (list, _) = done(folder.path(), &["codec", "list"]);
    assert!(list.contains("x:lgc") && list.contains("[linear]"), "{list}");
    let (help, _) = done(folder.path(), &["codec", "help", "x:lgc"]);
    assert!(help.contains("train_steps") && help.contains("300"), "{help}");
}

#[test]
fn a_run_says_when_latents_carry_it_and_resumes_to_the_same_bits() {
    for codec in CODECS {
        let folder = tempfile::tempdir().unwrap();
        let train = ["train", "--model", "mlp", "--hidden", "16", "--workers", "4", "--codec", codec];
        let train = [&train[..], &["--checkpoint-every", "4", "--out"]].concat();
        let (_, told) = done(folder.path(), &[&train[..], &["whole", "--steps", "24"]].concat());
        assert!(told.contains("step 10: the decoded mean of unit 0 lacks"), "{codec}: {told}");
        for (name, steps) in [("dense", "4"), ("training", "8"), ("latents", "16")] {
            done(folder.path(), &[&train[..], &[name, "--steps", steps]].concat());
            done(folder.path(), &["train", "--resume", name, "--steps", "24"]);
            let [resumed, whole] = [name, "whole"].map(|run| params_hash(folder.path(), run));
            assert_eq!(resumed, whole, "{codec}: {name}");
        }
    }
}
