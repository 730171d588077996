//! A finished run that gets a later end: the bits are those of a run that had this end from the start.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use gradwire_trainer::checkpoint::latest;
use gradwire_trainer::record::Metrics;
use serde_json::Value;

fn trainer(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    command
}

fn said(folder: &Path, arguments: &[&str]) -> Output {
    trainer(folder, arguments).output().unwrap()
}

fn done(folder: &Path, arguments: &[&str]) {
    let output = said(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// What a command says that refuses its arguments.
fn refused(folder: &Path, arguments: &[&str]) -> String {
    let output = said(folder, arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{arguments:?}: {text}");
    text.trim_end().strip_prefix("trainer: ").unwrap().to_owned()
}

fn summary(run: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(run.join("summary.json")).unwrap()).unwrap()
}

/// The steps of a run but for times and evaluations: the shorter run evaluates at its own end too.
fn steps(run: &Path) -> Vec<Metrics> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let plain = |line: &str| Metrics {
        compute_ns: None,
        encode_ns: 0,
        exchange_ns: 0,
        decode_ns: 0,
        eval_loss: None,
        accuracy: None,
        perplexity: None,
        consensus_distance: None,
        ..serde_json::from_str(line).unwrap()
    };
    text.lines().map(plain).collect()
}

/// Trains to `short`, extends the run to `long`, and compares it with one that was begun with that length.
fn extends_alike(settings: &[&str], length: &str, [short, long]: [&str; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let common = [&["train", "--workers", "2", "--eval-every", "5"], settings].concat();
    let begin = |run: &str, to: &str| {
        done(folder, &[&common[..], &["--checkpoint-every", "4", "--out", run, length, to]].concat());
    };
    begin("run", short);
    let before = steps(&folder.join("run")).len();
    done(folder, &["train", "--resume", "run", length, long]);
    begin("whole", long);
    let [run, whole] = ["run", "whole"].map(|run| folder.join(run));
    assert!(before < steps(&run).len(), "{settings:?}");
    assert_eq!(steps(&run), steps(&whole), "{settings:?}");
    for key in ["params_hash", "final_loss", "accuracy", "steps", "bytes_up", "ratio", "best_steps", "notes"]
    {
        assert_eq!(summary(&run)[key], summary(&whole)[key], "{settings:?}: {key}");
    }
    let config = |run: &Path| fs::read_to_string(run.join("config.toml")).unwrap();
    assert_eq!(config(&run), config(&whole), "{settings:?}");
}

#[test]
fn a_finished_run_that_is_extended_has_the_bits_of_a_long_one() {
    let small = ["--hidden", "16", "--batch", "64"];
    for own in [
        &["--codec", "topk:density=0.02"][..],
        &["--codec", "topk:density=0.02", "--delayed"],
        &["--codec", "none", "--momentum", "0.9", "--warmup", "12"],
        &["--codec", "dgc:density=0.05", "--schedule", "step", "--decay-every", "7"],
        &["--codec", "qsgd:bits=4", "--optimizer", "adamw"],
        &["--codec", "dpsgd"],
        &["--codec", "none", "--early-stop", "100", "--lr", "0.01"],
    ] {
        // With early_stop the shorter run must not look where the longer one does not.
        let short = if own.contains(&"--early-stop") { "10" } else { "9" };
        extends_alike(&[&small[..], own].concat(), "--steps", [short, "16"]);
    }
    extends_alike(&["--hidden", "16", "--batch", "512", "--codec", "topk"], "--epochs", ["1", "3"]);
}

/// What a network carries from batch to batch stays as training left it, not as the last evaluation did.
#[test]
fn a_recurrent_network_is_extended_too() {
    let text = ["--data", "tiny-shakespeare", "--model", "lstm", "--hidden", "4", "--bptt", "4"];
    extends_alike(&[&text[..], &["--batch", "256", "--codec", "topk"]].concat(), "--steps", ["3", "6"]);
}

#[test]
fn an_end_that_is_not_later_and_rates_that_depend_on_it_are_refused_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let begin = |run: &str, own: &[&str]| {
        let small = ["train", "--hidden", "8", "--workers", "1", "--codec", "none", "--out", run];
        done(folder, &[&small[..], own].concat());
    };
    begin("run", &["--steps", "6", "--batch", "128"]);
    let before = fs::read_to_string(folder.join("run/summary.json")).unwrap();
    let resume = |run: &str, rest: &[&str]| refused(folder, &[&["train", "--resume", run], rest].concat());
    for steps in ["3", "6"] {
        let expected = format!("steps = {steps}: expected more than the 6 steps of the run");
        assert_eq!(resume("run", &["--steps", steps]), expected);
    }
    let both = resume("run", &["--steps", "9", "--epochs", "9"]);
    assert_eq!(both, "epochs and steps: give one of them");
    assert!(resume("run", &[]).ends_with("all 6 steps are done; for more, give --epochs or --steps too"));
    let other =
        "--resume takes no other option but --epochs or --steps: the settings of the run are in its folder";
    assert_eq!(resume("run", &["--steps", "9", "--seed", "2"]), other);
    assert_eq!(resume("run", &["--steps", "9", "--force"]), other);
    assert_eq!(fs::read_to_string(folder.join("run/summary.json")).unwrap(), before);

    begin("passes", &["--epochs", "1", "--batch", "512"]);
    let steps = summary(&folder.join("passes"))["steps"].clone();
    let expected =
        format!("epochs = 1: expected more than the {steps} steps of the run; an epoch has {steps}");
    assert_eq!(resume("passes", &["--epochs", "1"]), expected);

    begin("cosine", &["--steps", "4", "--schedule", "cosine"]);
    let cosine = resume("cosine", &["--steps", "8"]);
    assert!(cosine.starts_with("steps with schedule = cosine: its rates depend on the length"), "{cosine}");

    // At this rate nothing gets better, and the run ends after two evaluations.
    begin("early", &["--steps", "50", "--lr", "1e-30", "--eval-every", "2", "--early-stop", "2"]);
    let early = resume("early", &["--steps", "80"]);
    let begin_of_it = "early_stop = 2: validation was best after 2 steps, and the run ended early after 6;";
    assert!(early.starts_with(begin_of_it), "{early}");
    // The best one is the last, which a longer run does not make.
    begin("odd", &["--steps", "7", "--eval-every", "5", "--early-stop", "9"]);
    let odd = resume("odd", &["--steps", "9"]);
    assert!(odd.starts_with("early_stop with eval_every = 5: validation was best at the end"), "{odd}");
}

#[test]
fn a_run_whose_metrics_are_damaged_is_not_extended_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let small = ["train", "--hidden", "8", "--workers", "1", "--codec", "none", "--out", "run"];
    done(folder, &[&small[..], &["--steps", "6"]].concat());
    let run = folder.join("run");
    let (metrics, kept) =
        (run.join("metrics.jsonl"), ["config.toml", "summary.json"].map(|name| run.join(name)));
    let before = kept.each_ref().map(|file| fs::read_to_string(file).unwrap());
    let whole = fs::read_to_string(&metrics).unwrap();
    let cut: String = whole.lines().take(3).flat_map(|line| [line, "\n"]).collect();
    for (text, what) in [(Some(cut), "3 lines, but 6 steps are done"), (None, "it is missing")] {
        match text {
            Some(text) => fs::write(&metrics, text).unwrap(),
            None => fs::remove_file(&metrics).unwrap(),
        }
        let output = said(folder, &["train", "--resume", "run", "--steps", "9"]);
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.ends_with(&format!("metrics.jsonl: damaged: {what}\n")), "{message}");
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(kept.each_ref().map(|file| fs::read_to_string(file).unwrap()), before);
    }
    fs::write(&metrics, whole).unwrap();
    done(folder, &["train", "--resume", "run", "--steps", "9"]);
    assert_eq!(steps(&run).len(), 9);
}

#[test]
fn the_later_end_is_on_disk_before_the_first_further_step() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let small = ["--hidden", "8", "--workers", "1", "--batch", "8", "--eval-every", "0"];
    done(folder, &[&["train", "--steps", "5", "--out", "run"][..], &small].concat());
    let mut child = trainer(folder, &["train", "--resume", "run", "--steps", "100000000"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    let lines = || fs::read_to_string(folder.join("run/metrics.jsonl")).unwrap().lines().count();
    while lines() < 8 {
        assert!(child.try_wait().unwrap().is_none() && began.elapsed() < Duration::from_secs(300));
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let found = latest(&folder.join("run")).unwrap();
    assert_eq!((found.config().steps, found.steps() >= 5), (Some(100_000_000), true));
    assert!(!folder.join("run/summary.json").exists(), "it was that of the shorter run");
}

/// Codec and parameter hash of every run that finished.
fn finished(folder: &Path) -> Vec<(String, String, u64)> {
    let runs: Vec<Value> = serde_json::from_value(summary(folder)).unwrap();
    let text = |run: &Value, key: &str| run[key].as_str().unwrap().to_owned();
    runs.iter()
        .map(|run| (text(run, "codec"), text(run, "params_hash"), run["steps"].as_u64().unwrap()))
        .collect()
}

#[test]
fn a_comparison_is_extended_but_for_codecs_with_a_length_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let small = ["--hidden", "8", "--workers", "2", "--batch", "32", "--seeds", "2"];
    let codecs = ["--codec", "none", "--codec", "topk", "--codec", "qsgd", "steps=3"];
    for every in ["0", "4"] {
        let begin = |out: &str, steps: &str| {
            let rest = ["--checkpoint-every", every, "--out", out, "--force", "--steps", steps];
            done(folder, &[&["compare"][..], &codecs, &small, &rest].concat());
        };
        begin("whole", "10");
        begin("c", "6");
        let refusal = refused(folder, &["compare", "--resume", "c", "--steps", "6"]);
        assert_eq!(refusal, "steps = 6: expected more than the 6 steps of the run");
        let output = said(folder, &["compare", "--resume", "c", "--steps", "10"]);
        assert!(output.status.success(), "{output:?}");
        let all = finished(&folder.join("c"));
        assert_eq!(all, finished(&folder.join("whole")), "a checkpoint every {every} steps");
        assert_eq!(all.iter().map(|(_, _, steps)| *steps).collect::<Vec<_>>(), [10, 10, 10, 10, 3, 3]);
        let progress = String::from_utf8(output.stderr).unwrap();
        assert!(!progress.contains("qsgd"), "it is done: {progress}");
        assert_eq!(progress.contains("step 5/10"), every == "0", "steps that are kept: {progress}");
        // It is that of the longer comparison now.
        let again = said(folder, &["compare", "--resume", "c"]);
        assert!(again.status.success() && again.stderr.is_empty(), "{again:?}");
    }
    let own = ["compare", "--codec", "none", "steps=2", "--hidden", "8", "--out", "own"];
    done(folder, &own);
    let refusal = refused(folder, &["compare", "--resume", "own", "--steps", "6"]);
    assert!(refusal.starts_with("every codec has a number of epochs or steps of its own"), "{refusal}");
    let refusal = refused(folder, &["compare", "--resume", "own", "--codec", "topk"]);
    assert!(refusal.starts_with("--resume takes no other option but"), "{refusal}");
}
