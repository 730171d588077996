//! Events of a run, in a format of the user's choice.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

pub(crate) const LONG: Duration = Duration::from_secs(120);
const SMALL: [&str; 10] =
    ["train", "--workers", "2", "--batch", "16", "--hidden", "8", "--eval-every", "0", "--force"];

pub(crate) fn trainer(folder: &Path) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM,HUP", env!("CARGO_BIN_EXE_trainer")]).args(SMALL);
    command.args(["--out", "run"]).current_dir(folder).stdin(Stdio::null());
    command
}

pub(crate) fn words(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn interrupted(folder: &Path, format: &str) -> Output {
    // Of an earlier run.
    let _ = fs::remove_dir_all(folder.join("run"));
    let child = trainer(folder)
        .args(["--steps", "2000000", "--log-format", format])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let metrics = folder.join("run/metrics.jsonl");
    let started = Instant::now();
    while !fs::read_to_string(&metrics).is_ok_and(|text| text.lines().count() > 3) {
        assert!(started.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    child.wait_with_output().unwrap()
}

fn finished(folder: &Path, format: &str) -> Output {
    trainer(folder).args(["--steps", "40", "--log-format", format]).output().unwrap()
}

/// Whether a text begins as a time does, such as 2026-01-31T23:59:59.999Z.
fn is_time(text: &str) -> bool {
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    shape == "0000-00-00T00:00:00.000Z"
}

#[test]
fn in_json_every_line_is_an_object_with_time_level_and_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let output = finished(folder.path(), "json");
    let said = words(&output.stderr);
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(output.status.success() && lines.len() == 20, "{said}");
    for (line, metrics) in lines
        .iter()
        .zip(fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap().lines().skip(1).step_by(2))
    {
        let metrics: Value = serde_json::from_str(metrics).unwrap();
        assert!(is_time(line["time"].as_str().unwrap()) && line["level"] == "INFO", "{line}");
        assert_eq!(line["step"].as_u64().unwrap(), metrics["step"].as_u64().unwrap() + 1);
        assert_eq!((&line["loss"], line["steps"].as_u64()), (&metrics["loss"], Some(40)));
        assert!(line["message"].as_str().unwrap().contains(": step "), "{line}");
    }
    let output = interrupted(folder.path(), "json");
    let said = words(&output.stderr);
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(output.status.code(), Some(130), "{said}");
    let last = lines.last().unwrap();
    assert!(
        last["level"] == "WARN" && last["message"].as_str().unwrap().contains("--log-format json"),
        "{last}"
    );
    // A failure is an event, too.
    let output =
        trainer(folder.path()).args(["--log-format", "json", "--codec", "topk:density=7"]).output().unwrap();
    let line: Value = serde_json::from_str(&words(&output.stderr)).unwrap();
    assert!(output.status.code() == Some(2) && line["level"] == "ERROR", "{line}");
}

#[test]
fn lines_have_time_and_level_if_that_is_wanted_and_are_as_ever_if_not() {
    let folder = tempfile::tempdir().unwrap();
    let output = finished(folder.path(), "time");
    let said = words(&output.stderr);
    assert!(output.status.success() && said.lines().count() == 20, "{said}");
    assert!(said.lines().all(|line| is_time(&line[..24]) && line[24..].starts_with(" INFO  topk")), "{said}");
    let said = words(&interrupted(folder.path(), "time").stderr);
    assert!(said.lines().last().unwrap()[24..].starts_with(" WARN  interrupted after "), "{said}");
    let [plain, unasked] = [&["--log-format", "plain"][..], &[]]
        .map(|own| words(&trainer(folder.path()).args(["--steps", "40"]).args(own).output().unwrap().stderr));
    assert_eq!(plain, unasked);
    assert!(plain.lines().all(|line| line.starts_with("topk:density=0.01: step ")), "{plain}");
}

/// What a terminal shows whose environment is this.
#[cfg(target_os = "linux")]
fn on_a_terminal(folder: &Path, environment: &str) -> Option<String> {
    let run = format!(
        "env {environment} {} {} --steps 40 --out run",
        env!("CARGO_BIN_EXE_trainer"),
        SMALL.join(" ")
    );
    let mut script = Command::new("script");
    let shown = script.args(["-qec", &run, "/dev/null"]).current_dir(folder).stdin(Stdio::null()).output();
    shown.ok().map(|output| words(&output.stdout))
}

#[cfg(target_os = "linux")]
#[test]
fn a_terminal_that_cannot_draw_gets_lines() {
    let folder = tempfile::tempdir().unwrap();
    for environment in ["TERM=dumb", "-u TERM"] {
        let Some(shown) = on_a_terminal(folder.path(), environment) else {
            eprintln!("SKIPPED: there is no program `script`");
            return;
        };
        assert!(shown.contains("topk:density=0.01: step 40/40, loss "), "{environment}: {shown}");
    }
}
