//! `compare` under `mpirun`: the rows are those of threads, and whatever ends one leaves all ranks in step.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use super::{Job, lines, mpirun, refused, text, wait_for};

const SMALL: [&str; 4] = ["--hidden", "8", "--batch", "32"];

fn threads(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    command.args(arguments).args(["--workers", "2"]).current_dir(folder).output().unwrap()
}

/// Codec, steps and parameter hash of every run that finished.
fn finished(comparison: &Path) -> Vec<(String, u64, String)> {
    let runs = fs::read_to_string(comparison.join("summary.json")).unwrap();
    let runs: Vec<Value> = serde_json::from_str(&runs).unwrap();
    let word = |run: &Value, key: &str| run[key].as_str().unwrap().to_owned();
    runs.iter()
        .map(|run| (word(run, "codec"), run["steps"].as_u64().unwrap(), word(run, "params_hash")))
        .collect()
}

/// How every run ended, in a word.
fn results(comparison: &Path) -> Vec<&'static str> {
    let csv = fs::read_to_string(comparison.join("results.csv")).unwrap();
    let ends = ["done", "diverged at step", "interrupted after", "not begun"];
    csv.lines().skip(1).map(|line| *ends.iter().find(|end| line.contains(*end)).unwrap()).collect()
}

/// Folder, step and last loss of every run that diverged.
fn diverged(comparison: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(comparison).unwrap().map(|entry| entry.unwrap().path());
    let read = |run: std::path::PathBuf| {
        let said = fs::read_to_string(run.join("diverged.json")).ok()?;
        Some((run.file_name()?.to_str()?.to_owned(), said))
    };
    let mut all: Vec<_> = entries.filter_map(read).collect();
    all.sort();
    all
}

#[test]
fn processes_compare_as_threads_do_also_after_a_codec_that_diverges() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // What diverges says so by frames, by sums, in parts and late; the next run begins in step all the same.
    let codecs = [
        &["--codec", "none"][..],
        &["--codec", "topk", "lr=1e30"],
        &["--codec", "qsgd:bits=4"],
        &["--codec", "none", "lr=1e30", "exchange=all-reduce"],
        &["--codec", "topk:density=0.05,unit=tensor", "lr=1e30", "pipeline=3", "delayed=true"],
        &["--codec", "topk:density=0.05", "exchange=sparse"],
        &["--codec", "dpsgd"],
    ]
    .concat();
    let rest = ["--steps", "12", "--seeds", "2", "--eval-every", "5", "--out"];
    let asked = |out| [&["compare"][..], &codecs, &SMALL, &rest, &[out]].concat();
    let Some(output) = mpirun(2, folder, &asked("processes")) else { return };
    let (table, said) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("trainer: 6 of 14 runs without a result"), "{said}");
    assert_eq!(table.matches("Report: ").count(), 1, "one process prints: {table}");
    assert_eq!(said.matches("none, seed 1 (run 1 of 14): step 12/12").count(), 1, "{said}");
    let alone = threads(folder, &asked("threads"));
    assert_eq!(alone.status.code(), Some(1), "{}", text(&alone.stderr));
    let [here, there] = ["threads", "processes"].map(|out| folder.join(out));
    assert_eq!(finished(&there), finished(&here));
    assert_eq!(results(&there), results(&here));
    assert_eq!(diverged(&there).len(), 6);
    assert_eq!(diverged(&there), diverged(&here));
    assert!(there.join("report.html").is_file());
    // Everything is known already.
    let again = mpirun(2, folder, &["compare", "--resume", "processes"]).unwrap();
    let said = text(&again.stderr);
    assert!(again.status.code() == Some(1) && !said.contains("step 12/12"), "{said}");
}

#[test]
fn a_comparison_of_processes_is_resumed_and_extended() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let codecs = ["--codec", "topk:density=0.05", "--codec", "qsgd"];
    let begin = |out, steps| {
        let rest = ["--checkpoint-every", "4", "--eval-every", "0", "--steps", steps, "--out", out];
        [&["compare"][..], &codecs, &SMALL, &rest].concat()
    };
    let Some(output) = mpirun(2, folder, &begin("c", "9")) else { return };
    assert!(output.status.success(), "{}", text(&output.stderr));
    // One run as if it had been killed after its checkpoint of step 8, and one that never began.
    let run = folder.join("c/topk-density-0.05-seed-1");
    fs::remove_file(run.join("summary.json")).unwrap();
    fs::remove_dir_all(run.join("checkpoints/step-00000009")).unwrap();
    let before = finished(&folder.join("c"));
    fs::remove_dir_all(folder.join("c/qsgd-bits-4-seed-1")).unwrap();
    let output = mpirun(2, folder, &["compare", "--resume", "c"]).unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(finished(&folder.join("c")), before);
    let is_again = |line: &str| line.starts_with("topk:density=0.05") && line.contains(": step 5/9");
    assert!(!said.lines().any(is_again) && said.contains("step 5/9"), "{said}");

    let output = mpirun(2, folder, &["compare", "--resume", "c", "--steps", "14"]).unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(threads(folder, &begin("whole", "14")).status.success());
    assert_eq!(finished(&folder.join("c")), finished(&folder.join("whole")));

    refused(3, folder, &["compare", "--resume", "c"], 2, "workers = 2: expected 3, as started by mpirun");
    refused(
        2,
        folder,
        &["compare", "--resume", "whole"],
        2,
        "a comparison in one process; go on without mpirun",
    );
    let alone = Command::new(env!("CARGO_BIN_EXE_trainer"))
        .args(["compare", "--resume", "c"])
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(
        text(&alone.stderr).contains("start it as mpirun -n 2 trainer compare"),
        "{}",
        text(&alone.stderr)
    );
}

#[test]
fn a_comparison_whose_launcher_is_interrupted_reports_what_is_done() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let codecs =
        ["--codec", "none", "steps=3", "--codec", "topk", "steps=100000000", "--codec", "qsgd", "steps=3"];
    let asked = [&["compare"][..], &codecs, &SMALL, &["--eval-every", "0", "--out", "c"]].concat();
    let Some(mut job) = Job::start_by(&["env", "OMPI_MCA_odls_base_sigkill_timeout=5"], 2, folder, &asked)
    else {
        return;
    };
    let run = folder.join("c/topk-density-0.01-steps-100000000-seed-1");
    wait_for("steps", || lines(&run) > 3);
    job.signal("-INT");
    let said = fs::read_to_string(folder.join("said")).unwrap();
    assert!(folder.join("c/report.html").is_file(), "{said}");
    assert_eq!(results(&folder.join("c")), ["done", "interrupted after", "not begun"], "{said}");
    let program = env!("CARGO_BIN_EXE_trainer");
    let how =
        format!("interrupted with 1 of 3 runs done; go on with: mpirun -n 2 {program} compare --resume c");
    assert!(said.contains(&how), "{said}");
}

#[test]
fn what_is_wrong_with_a_comparison_is_told_once() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let words = "workers = 4: expected 2, as started by mpirun";
    refused(2, folder, &["compare", "--codec", "none", "--workers", "4"], 2, words);
    refused(2, folder, &["compare", "--codec", "none", "workers=4", "--codec", "topk"], 2, words);
    let words = "a comparison in one process; start it without mpirun";
    refused(2, folder, &["compare", "--codec", "none", "--transport", "local"], 2, words);
    fs::create_dir(folder.join("full")).unwrap();
    fs::write(folder.join("full/file"), "").unwrap();
    refused(2, folder, &["compare", "--codec", "none", "--out", "full"], 2, "full: not empty");
}
