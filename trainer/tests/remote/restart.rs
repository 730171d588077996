//! A server that is killed, or told to end, and started again from its checkpoint.

use std::fs;
use std::time::{Duration, Instant};

use crate::same::in_one_process;
use crate::support::{Keys, Process, join, serve, trainer};

const STEPS: &str = "60";
const WORLD: usize = 3;

/// A server that writes checkpoints, and its workers, which outlive it.
struct Scene {
    keys: Keys,
    endpoint: String,
    server: Process,
    workers: Vec<Process>,
    arguments: Vec<String>,
}

impl Scene {
    fn new(every: &str, arguments: &[&str]) -> Self {
        Self::with(every, arguments, &[])
    }

    /// With options of the server's own.
    fn with(every: &str, arguments: &[&str], own: &[&str]) -> Self {
        let keys = Keys::new(WORLD);
        let run = ["--workers", "3", "--batch", "48", "--steps", STEPS, "--checkpoint-every", every];
        let arguments = [&run[..], arguments].concat();
        let (server, endpoint) = serve(&keys, None, &[&arguments[..], own].concat());
        let workers = (1..WORLD).map(|rank| join(&keys, &endpoint, rank, &arguments)).collect();
        let arguments = arguments.into_iter().map(str::to_owned).collect();
        Self { keys, endpoint, server, workers, arguments }
    }

    /// Goes on from the newest checkpoint, or from the start where there is none; whether there was anything
    /// to do. What is not a setting of the run is given again.
    fn restart(&mut self, again: &[&str]) -> bool {
        if self.keys.run().join("summary.json").exists() {
            return false;
        }
        let run = self.keys.run().display().to_string();
        let all: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        let has_checkpoint = self.checkpoints().iter().any(|name| name.starts_with("step-"));
        let arguments = if has_checkpoint { [&["--resume", &run], again].concat() } else { all };
        self.server = serve(&self.keys, Some(&self.endpoint), &arguments).0;
        true
    }

    fn checkpoints(&self) -> Vec<String> {
        let entries = fs::read_dir(self.keys.run().join("checkpoints")).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The hash at the end, which the server has written down, and all workers have.
    fn hash(mut self) -> String {
        let last = self.workers.pop().unwrap().hash();
        for worker in self.workers {
            assert_eq!(worker.hash(), last);
        }
        self.server.ends();
        let summary = fs::read_to_string(self.keys.run().join("summary.json")).unwrap();
        assert!(summary.contains(&last), "{summary}");
        let metrics = fs::read_to_string(self.keys.run().join("metrics.jsonl")).unwrap();
        assert_eq!(metrics.lines().count().to_string(), STEPS);
        last
    }
}

fn undisturbed(arguments: &[&str]) -> String {
    Scene::new("0", arguments).hash()
}

#[test]
fn a_server_that_is_killed_at_any_step_ends_with_the_same_bits_whatever_is_remembered() {
    let cases = [
        ("none", &["--momentum", "0.9"][..]),
        ("topk:density=0.01", &["--schedule", "cosine", "--warmup", "5"]),
        ("topk:density=0.02", &["--downlink", "topk:density=0.05,values=q8"]),
        ("threshold:value=0.01", &["--optimizer", "adamw"]),
        ("topk:density=0.02", &["--optimizer", "adamw-updates", "--beta2", "0.95"]),
        ("topk:density=0.02", &["--optimizer", "adamw", "--local-steps", "2"]),
        ("topk:density=0.02", &["--optimizer", "adamw", "--local-steps", "3", "--fragments", "3"]),
        ("efsign", &["--local-steps", "2", "--fragments", "2", "--outer-momentum", "0.9"]),
        ("topk:density=0.02", &["--optimizer", "adamw", "--local-steps", "2", "--delayed"]),
        ("efsign", &["--local-steps", "4", "--fragments", "2", "--outer-momentum", "0.9", "--delayed"]),
        ("qsgd:bits=4", &["--momentum", "0.9", "--delayed"]),
        ("qsgd:bits=4", &["--momentum", "0.9"]),
        ("randomk:density=0.05", &[]),
        ("bf16:memory=ef", &["--downlink", "bf16:memory=ef"]),
        ("dgc:density=0.02", &["--schedule", "cosine", "--warmup", "5"]),
    ];
    let mut cut = 0;
    for (number, (codec, settings)) in cases.into_iter().enumerate() {
        let arguments = [&["--codec", codec][..], settings].concat();
        let mut scene = Scene::new("3", &arguments);
        // Another step for each codec.
        scene.server.says(&format!("step {}: ", 5 + 7 * number % 13));
        scene.server.kill();
        cut += usize::from(scene.restart(&[]));
        assert_eq!(scene.hash(), undisturbed(&arguments), "{codec}");
    }
    assert!(cut > 0, "every run was faster than its killer");
}

/// With the median itself as the cap, many a frame is too long.
#[test]
fn a_server_that_is_killed_scales_down_the_next_frames_as_it_would_have() {
    let (codec, cap) = (["--codec", "topk:density=0.03", "--hidden", "256"], ["--norm-cap", "1"]);
    let mut undisturbed = Scene::with("0", &codec, &cap);
    undisturbed.server.succeeds();
    let said = undisturbed.server.all();
    let mut scene = Scene::with("5", &codec, &cap);
    scene.server.says("step 7: ");
    scene.server.kill();
    assert!(scene.restart(&cap), "the run was over before it was killed");
    let line = scene.server.says("continuing at step ");
    let newest: u64 = line.split(' ').nth(4).unwrap().parse().unwrap();
    let step = |line: &str| line.strip_prefix("trainer: step ")?.split(':').next()?.parse::<u64>().ok();
    let capped = said.lines().filter(|line| line.contains("scaled down"));
    let capped: Vec<&str> = capped.filter(|line| step(line).is_some_and(|step| step >= newest)).collect();
    // A median that began anew would have let eight frames of three ranks pass.
    assert!(step(capped[0]).unwrap() < newest + 3, "{newest}: {capped:?}");
    capped.into_iter().for_each(|line| drop(scene.server.says(line)));
    assert_eq!(scene.hash(), undisturbed.hash());
}

#[test]
fn a_server_that_is_killed_again_and_again_also_while_it_writes_ends_where_it_would_have() {
    let mut scene = Scene::new("1", &["--codec", "topk:density=0.01,values=q8", "--hidden", "256"]);
    for delay in [0, 1, 2, 4] {
        let (before, started) = (scene.checkpoints(), Instant::now());
        // Also a draft is new.
        while scene.checkpoints() == before && !scene.keys.run().join("summary.json").exists() {
            assert!(
                started.elapsed() < Duration::from_secs(120),
                "no new checkpoint:\n{}",
                scene.server.all()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(delay));
        scene.server.kill();
        scene.restart(&[]);
    }
    let hash = scene.hash();
    assert_eq!(hash, undisturbed(&["--codec", "topk:density=0.01,values=q8", "--hidden", "256"]));
}

#[test]
fn a_server_that_is_told_to_end_does_so_behind_a_step_and_loses_nothing() {
    let mut scene = Scene::new("0", &["--codec", "topk:density=0.01"]);
    scene.server.says("step 4: ");
    scene.server.signal("-INT");
    if scene.server.ends() == Some(130) {
        scene.server.says(&format!("go on with: {} serve --resume", env!("CARGO_BIN_EXE_trainer")));
        assert_eq!(scene.checkpoints().len(), 1);
    }
    scene.restart(&[]);
    assert_eq!(scene.hash(), undisturbed(&["--codec", "topk:density=0.01"]));
}

#[test]
fn a_server_leaves_the_folder_that_a_run_leaves() {
    let scene = Scene::new("30", &["--codec", "topk:density=0.01"]);
    let run = scene.keys.run();
    let Scene { keys, workers, mut server, .. } = scene;
    let hash = workers.into_iter().map(Process::hash).last().unwrap();
    server.succeeds();
    for name in ["config.toml", "metrics.jsonl", "summary.json", "report.html"] {
        assert!(run.join(name).is_file(), "{name}");
    }
    let report = fs::read_to_string(run.join("report.html")).unwrap();
    assert!(report.contains("Training loss by step"), "the report has curves");
    assert_eq!(hash, in_one_process(("topk:density=0.01", "none"), "sgd", 60, (WORLD, 48)));
    let refused = |arguments: &[&str], why: &str| {
        let mut process = Process::start("refused", trainer().args(arguments));
        assert_eq!(process.ends(), Some(2), "{arguments:?}: {}", process.all());
        process.says(why);
    };
    let run = run.display().to_string();
    refused(&["train", "--resume", &run], "a run of a server; go on with: trainer serve --resume");
    refused(&["serve", "--insecure", "--resume", &run], "all 60 steps are done");
    refused(
        &["serve", "--insecure", "--resume", &run, "--lr", "0.5"],
        "the settings of the run are those of",
    );
    refused(&["serve", "--insecure", "--resume", &run, "--force"], "cannot be used with");
    let local = keys.folder.path().join("local").display().to_string();
    let trained = trainer().args(["train", "--steps", "3", "--out", &local]).output().unwrap();
    assert!(trained.status.success());
    refused(&["serve", "--insecure", "--resume", &local], "not a run of a server");
}
