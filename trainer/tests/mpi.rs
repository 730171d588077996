//! Training under `mpirun`, compared with training in threads. `GRADWIRE_MPIRUN` names another launcher; without one
//! everything here is skipped, loudly.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

/// For a whole job, on a busy machine.
const LIMIT_SECONDS: &str = "180";
/// For a job that cannot begin.
const FAILURE_LIMIT: Duration = Duration::from_secs(20);

const TASK: [&str; 8] = ["--steps", "12", "--eval-every", "5", "--hash-every", "3", "--seed", "7"];

/// The trainer in `world` processes; `None` without a launcher.
fn mpirun(world: usize, folder: &Path, arguments: &[&str]) -> Option<Output> {
    let launcher = std::env::var("GRADWIRE_MPIRUN").unwrap_or_else(|_| "mpirun".to_owned());
    let Ok(version) = Command::new(&launcher).arg("--version").output() else {
        eprintln!("SKIPPED, NO mpirun: {arguments:?}");
        return None;
    };
    let mut command = Command::new("timeout");
    command.args(["-k", "3", LIMIT_SECONDS, &launcher, "-n", &world.to_string()]);
    if String::from_utf8_lossy(&version.stdout).contains("Open MPI") {
        command.args(["--allow-run-as-root", "--oversubscribe"]);
    }
    command.arg(env!("CARGO_BIN_EXE_trainer")).args(arguments).current_dir(folder);
    Some(command.output().unwrap())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn train(codec: &str, exchange: &[&str], out: &str) -> Vec<String> {
    let fixed = ["train", "--codec", codec, "--out", out];
    fixed.iter().chain(&TASK).chain(exchange).map(|argument| (*argument).to_owned()).collect()
}

fn summary(folder: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(folder.join("summary.json")).unwrap()).unwrap()
}

/// What a run says of its steps, but for the times.
fn steps(folder: &Path) -> Vec<Value> {
    let lines = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let mut steps: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for step in &mut steps {
        let step = step.as_object_mut().unwrap();
        let times = ["encode_ns", "exchange_ns", "decode_ns"];
        // Envelopes differ between transports.
        let bytes = ["bytes_up", "bytes_down", "wire_ratio"];
        step.retain(|key, _| !times.contains(&key.as_str()) && !bytes.contains(&key.as_str()));
    }
    steps
}

#[test]
fn processes_train_as_threads_do_bit_by_bit() {
    let folder = tempfile::tempdir().unwrap();
    for (number, (world, codec, exchange)) in [
        (4, "topk:density=0.02,values=q8", &[][..]),
        (4, "none", &["--exchange", "all-reduce", "--wire", "bf16"]),
        (2, "randomk:density=0.1", &[]),
        (2, "qsgd:bits=4", &["--exchange", "server"]),
    ]
    .into_iter()
    .enumerate()
    {
        let (here, there) = (format!("threads-{number}"), format!("processes-{number}"));
        let arguments = train(codec, exchange, &there);
        let Some(output) =
            mpirun(world, folder.path(), &arguments.iter().map(String::as_str).collect::<Vec<_>>())
        else {
            return;
        };
        assert!(output.status.success(), "{codec}: {}", text(&output.stderr));
        let told = text(&output.stdout);
        assert_eq!(told.matches("parameters: ").count(), 1, "one process prints: {told}");
        let mut arguments = train(codec, exchange, &here);
        arguments.extend(["--workers".to_owned(), world.to_string()]);
        let threads = Command::new(env!("CARGO_BIN_EXE_trainer"))
            .args(&arguments)
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(threads.status.success(), "{}", text(&threads.stderr));
        let (here, there) = (folder.path().join(here), folder.path().join(there));
        assert_eq!(summary(&here)["params_hash"], summary(&there)["params_hash"], "{codec} on {world}");
        assert_eq!(summary(&here)["accuracy"], summary(&there)["accuracy"]);
        assert_eq!(steps(&here), steps(&there), "{codec} on {world}");
        assert!(summary(&there)["bytes_up"].as_u64() > Some(0));
    }
}

#[test]
fn the_report_says_which_algorithm_the_library_used() {
    let folder = tempfile::tempdir().unwrap();
    for wire in ["f32", "bf16"] {
        let arguments = train("none", &["--exchange", "native", "--wire", wire], wire);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let Some(output) = mpirun(4, folder.path(), &arguments) else { return };
        assert!(output.status.success(), "{}", text(&output.stderr));
        let notes = summary(&folder.path().join(wire))["notes"].to_string();
        assert!(notes.contains("all-reduce of the library: ") && notes.contains("algorithm r"), "{notes}");
        assert!(text(&output.stdout).contains("all-reduce of the library: "));
    }
}

/// A job that must fail at once, with this code and these words, told once.
fn refused(world: usize, folder: &Path, arguments: &[&str], code: i32, words: &str) {
    let started = Instant::now();
    let Some(output) = mpirun(world, folder, arguments) else { return };
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{told}");
    assert_eq!(told.matches(words).count(), 1, "{told}");
    assert!(started.elapsed() < FAILURE_LIMIT, "took {:?}", started.elapsed());
}

#[test]
fn what_is_wrong_on_all_ranks_is_told_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    refused(2, path, &["train", "--workers", "3"], 2, "workers = 3: expected 2, as started by mpirun");
    refused(2, path, &["compare", "--codec", "none"], 2, "under mpirun there is only `trainer train`");
    refused(2, path, &["train", "--patience", "0"], 2, "patience = 0: expected at least 1");
}

#[test]
fn an_error_on_one_rank_ends_the_job_with_its_code() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("full")).unwrap();
    std::fs::write(folder.path().join("full/file"), "").unwrap();
    // Only the first process makes a folder.
    refused(4, folder.path(), &["train", "--steps", "100000", "--out", "full"], 2, "full: not empty");
}
