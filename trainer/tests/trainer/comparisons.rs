//! Comparisons in which something goes wrong: what is finished is shown, and the rest can be done later.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn command(folder: &Path, arguments: &[&str]) -> Command {
    // With signals as a shell in the foreground leaves them.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM,HUP", env!("CARGO_BIN_EXE_trainer")]);
    command.arg("compare").args(arguments).current_dir(folder);
    command
}

fn compare(folder: &Path, arguments: &[&str]) -> Output {
    command(folder, arguments).output().unwrap()
}

fn words(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Codec and parameter hash of every run that finished.
fn finished(folder: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(folder.join("c/summary.json")).unwrap();
    let runs: Vec<Value> = serde_json::from_str(&text).unwrap();
    let text = |run: &Value, key: &str| run[key].as_str().unwrap().to_owned();
    runs.iter().map(|run| (text(run, "codec"), text(run, "params_hash"))).collect()
}

#[test]
fn a_codec_that_diverges_is_a_row_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let codecs = ["--codec", "none", "--codec", "topk", "lr=1e30", "--codec", "qsgd:bits=4"];
    let arguments = [&codecs[..], &["--steps", "12", "--out", "c"]].concat();
    let output = compare(folder.path(), &arguments);
    let (table, said) = (words(&output.stdout), words(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(table.contains("diverged at step ") && table.contains("loss "), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 300), "{table}");
    let last = said.lines().last().unwrap();
    let begin = "trainer: 1 of 3 runs without a result: topk:density=0.01 lr=1e30, seed 1: diverged at step ";
    assert!(last.starts_with(begin), "{last}");
    let codecs: Vec<String> = finished(folder.path()).into_iter().map(|(codec, _)| codec).collect();
    assert_eq!(codecs, ["none", "qsgd:bits=4"]);
    let report = fs::read_to_string(folder.path().join("c/report.html")).unwrap();
    assert!(report.contains("diverged at step "), "{report}");
    let csv = fs::read_to_string(folder.path().join("c/results.csv")).unwrap();
    let results = csv.lines().map(|line| line.split(',').nth(10).unwrap());
    let results: Vec<String> = results.map(|text| text.chars().take(12).collect()).collect();
    assert_eq!(results, ["result", "done", "\"diverged at", "done"], "{csv}");
    // It would diverge again, and the others are finished: nothing is trained.
    let again = compare(folder.path(), &["--resume", "c"]);
    assert_eq!((again.status.code(), words(&again.stderr).lines().count()), (Some(1), 1), "{again:?}");
    assert!(words(&again.stdout).contains("diverged at step "), "{again:?}");
}

#[test]
fn a_run_that_fails_is_done_again_when_the_comparison_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let in_the_way = folder.path().join("c/none-seed-2");
    fs::create_dir(folder.path().join("c")).unwrap();
    fs::write(&in_the_way, "").unwrap();
    let codecs = ["--codec", "none", "--codec", "topk"];
    let arguments = [&codecs[..], &["--steps", "4", "--seeds", "2", "--out", "c", "--force"]].concat();
    let output = compare(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let table = words(&output.stdout);
    assert!(table.contains("1 of 2 seeds") && table.contains("Note: none, seed 2: failed: "), "{table}");
    assert_eq!(finished(folder.path()).len(), 3);
    fs::remove_file(&in_the_way).unwrap();
    let output = compare(folder.path(), &["--resume", "c"]);
    assert!(output.status.success(), "{output:?}");
    let progress = words(&output.stderr);
    let is_second = |line: &str| line.starts_with("none, seed 2 (run 2 of 4): ");
    assert!(progress.lines().count() > 0 && progress.lines().all(is_second), "{progress}");
    assert_eq!(finished(folder.path()).len(), 4);
    let before = finished(folder.path());
    let output = compare(folder.path(), &["--resume", "c"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(finished(folder.path()), before, "as they were read");
}

#[test]
fn an_interrupted_comparison_reports_what_is_done_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let codecs =
        ["--codec", "none", "steps=3", "--codec", "topk", "steps=20000", "--codec", "qsgd", "steps=3"];
    let small = ["--workers", "1", "--batch", "8", "--hidden", "8", "--eval-every", "0", "--out"];
    let mut child = command(folder.path(), &[&codecs[..], &small, &["c"]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let metrics = folder.path().join("c/topk-density-0.01-steps-20000-seed-1/metrics.jsonl");
    let began = Instant::now();
    while !fs::read_to_string(&metrics).is_ok_and(|text| text.lines().count() > 3) {
        assert!(child.try_wait().unwrap().is_none() && began.elapsed() < Duration::from_secs(300));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let (table, said) = (words(&output.stdout), words(&output.stderr));
    assert_eq!(output.status.code(), Some(130), "{said}");
    let last = said.lines().last().unwrap();
    let again = format!("{} compare --resume c", env!("CARGO_BIN_EXE_trainer"));
    assert_eq!(last, format!("trainer: interrupted with 1 of 3 runs done; go on with: {again}"));
    assert!(table.contains("interrupted after") && table.contains("not begun"), "{table}");
    assert!(folder.path().join("c/report.html").is_file());
    assert_eq!(finished(folder.path()).len(), 1);

    let output = compare(folder.path(), &["--resume", "c"]);
    assert!(output.status.success(), "{output:?}");
    let resumed = finished(folder.path());
    fs::remove_dir_all(folder.path().join("c")).unwrap();
    assert!(compare(folder.path(), &[&codecs[..], &small, &["c"]].concat()).status.success());
    assert_eq!(resumed, finished(folder.path()));
}

#[test]
fn a_grid_is_read_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let grid = "seeds = 2\n[settings]\nsteps = 3\n[[codec]]\nspec = \"none\"\nmomentum = 0.5\n[[codec]]\nspec = \"topk\"\n";
    fs::write(folder.path().join("grid.toml"), grid).unwrap();
    let output = compare(folder.path(), &["--grid", "grid.toml", "--steps", "2", "--out", "c"]);
    assert!(output.status.success(), "{output:?}");
    let folder = folder.path().join("c");
    for run in ["none-momentum-0.5-seed-1", "none-momentum-0.5-seed-2", "topk-density-0.01-seed-2"] {
        let metrics = fs::read_to_string(folder.join(run).join("metrics.jsonl")).unwrap();
        assert_eq!(metrics.lines().count(), 2, "the command line wins: {run}");
    }
}

#[test]
fn rates_are_varied_and_each_codec_is_shown_at_its_best() {
    let folder = tempfile::tempdir().unwrap();
    let arguments =
        ["--codec", "none", "--codec", "topk", "--vary", "lr=0.1,0.01", "--steps", "3", "--out", "c"];
    let output = compare(folder.path(), &arguments);
    assert!(output.status.success(), "{output:?}");
    let table = words(&output.stdout);
    for title in ["Each codec at its best rate", "All codecs at rate 0.1:"] {
        assert!(table.contains(title), "{title}: {table}");
    }
    assert!(!table.contains("lr=0.01"), "a hundredth trains nothing in three steps: {table}");
    let folder = folder.path().join("c");
    let report = fs::read_to_string(folder.join("report.html")).unwrap();
    assert_eq!(report.matches("<table role=\"table\"").count(), 3, "{report}");
    assert!(report.contains("none lr=0.01") && folder.join("none-lr-0.01-seed-1").is_dir());
    assert_eq!(fs::read_to_string(folder.join("results.csv")).unwrap().lines().count(), 5);
}

#[test]
fn dense_training_with_the_same_momentum_stands_beside_dgc() {
    let folder = tempfile::tempdir().unwrap();
    let output = compare(folder.path(), &["--codec", "none", "--codec", "dgc", "--steps", "2", "--out", "c"]);
    assert!(output.status.success(), "{output:?}");
    let table = words(&output.stdout);
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    let table = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(table.contains("none momentum=0.9: SGD with momentum 0.9 at rate 0.3"), "{table}");
    assert!(table.contains("SGD with the codec's momentum 0.9"), "{table}");
}

#[test]
fn none_stays_dense_where_the_densities_of_all_codecs_are_set() {
    let folder = tempfile::tempdir().unwrap();
    let grid = ["--adapt", "steps:0=0.5,1=0.1", "--codec", "none", "--codec", "topk"];
    let output = compare(folder.path(), &[&grid[..], &["--steps", "2", "--out", "c"]].concat());
    assert!(output.status.success(), "{output:?}");
    assert_eq!(finished(folder.path()).len(), 2);
    let adapt = |run: &str| {
        let text = fs::read_to_string(folder.path().join("c").join(run).join("metrics.jsonl")).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        lines.iter().map(|line| line["adapt"]["density"].as_f64()).collect::<Vec<_>>()
    };
    assert_eq!(adapt("topk-density-0.01-seed-1"), [Some(0.5), Some(0.1)]);
    assert_eq!(adapt("none-seed-1"), [None, None]);

    let output = compare(folder.path(), &[&grid[..], &["--codec", "qsgd", "--out", "d"]].concat());
    let said = words(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("adapt with codec = qsgd:bits=4: it has no density") && said.contains("topk"),
        "{said}"
    );
    assert!(!folder.path().join("d").exists(), "nothing was begun");
}

#[test]
fn comparisons_of_different_settings_have_different_folders() {
    let folder = tempfile::tempdir().unwrap();
    let done = |lr: &str| compare(folder.path(), &["--codec", "none", "--steps", "1", "--lr", lr]);
    let named = |output: &Output| words(&output.stdout).lines().last().unwrap().to_owned();
    let (first, other) = (done("0.1"), done("0.2"));
    assert!(first.status.success() && other.status.success(), "{first:?} {other:?}");
    assert!(named(&first).starts_with("Report: runs/compare-none-"), "{}", named(&first));
    assert_ne!(named(&first), named(&other));
    assert!(!done("0.1").status.success(), "it is there already");
}

#[test]
fn each_command_names_the_other_for_a_folder_of_the_other_kind() {
    let folder = tempfile::tempdir().unwrap();
    let output = compare(folder.path(), &["--codec", "none", "--steps", "1", "--out", "c"]);
    assert!(output.status.success(), "{output:?}");
    let said = |command: &str, run: &str| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_trainer"));
        let output = program.args([command, "--resume", run]).current_dir(folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        words(&output.stderr)
    };
    assert_eq!(said("train", "c"), "trainer: c: a comparison; go on with: trainer compare --resume c\n");
    let run = "c/none-seed-1";
    let expected = format!("trainer: {run}: one run; go on with: trainer train --resume {run}\n");
    assert_eq!(said("compare", run), expected);
}
