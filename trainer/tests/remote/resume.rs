//! Workers that go on from a file of their own, alone or with the server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use gradwire_trainer::checkpoint::{Checkpoint, Single, Store, latest};
use gradwire_trainer::job::Job;

use crate::support::{Keys, Process, join, pasted, rejoin, serve, trainer};
use crate::trace::{Line, lines};

const WORLD: usize = 3;

/// A server and workers that write down what they keep back, in the folders `run` and `worker-N`.
struct Scene {
    keys: Keys,
    endpoint: String,
    server: Process,
    workers: Vec<Process>,
}

fn folder(keys: &Keys, rank: usize) -> String {
    keys.folder.path().join(format!("worker-{rank}")).display().to_string()
}

fn trace(keys: &Keys, rank: usize) -> String {
    keys.folder.path().join(format!("trace-{rank}")).display().to_string()
}

fn settings<'a>(steps: &'a str, every: &'a str, own: &[&'a str]) -> Vec<&'a str> {
    let run = ["--workers", "3", "--batch", "48", "--steps", steps, "--checkpoint-every", every];
    [&run[..], own].concat()
}

impl Scene {
    fn new(settings: &[&str]) -> Self {
        let keys = Keys::new(WORLD);
        let (server, endpoint) = serve(&keys, None, settings);
        let start = |rank| {
            let own = ["--out", &folder(&keys, rank), "--trace", &trace(&keys, rank)];
            join(&keys, &endpoint, rank, &[settings, &own[..]].concat())
        };
        let workers = (1..WORLD).map(start).collect();
        Self { keys, endpoint, server, workers }
    }

    fn process(&mut self, rank: usize) -> &mut Process {
        if rank == 0 { &mut self.server } else { &mut self.workers[rank - 1] }
    }

    /// Has a rank go on from what it wrote down.
    fn restart(&mut self, rank: usize) {
        let (keys, endpoint) = (&self.keys, &self.endpoint);
        if rank == 0 {
            let run = keys.run().display().to_string();
            self.server = serve(keys, Some(endpoint), &["--resume", &run]).0;
        } else {
            let own = ["--resume", &folder(keys, rank), "--trace", &trace(keys, rank)];
            self.workers[rank - 1] = rejoin(keys, endpoint, rank, &own);
        }
    }

    /// The hash at the end, which all have.
    fn hash(self) -> String {
        let hash = self.server.hash();
        for worker in self.workers {
            assert_eq!(worker.hash(), hash);
        }
        hash
    }
}

/// The hash at the end of the run in one process.
fn undisturbed(settings: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command = trainer();
    command.args(["train", "--exchange", "server"]).args(settings).arg("--out").arg(folder.path());
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let line = said.lines().find_map(|line| line.strip_prefix("parameters: ")).unwrap();
    line.split(' ').next().unwrap().to_owned()
}

/// The steps of the checkpoints in a run's folder, ascending.
fn checkpoints(run: &Path) -> Vec<u64> {
    let entries = fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut steps: Vec<u64> = names.filter_map(|name| name.strip_prefix("step-")?.parse().ok()).collect();
    steps.sort_unstable();
    steps
}

fn wait_for_checkpoints(run: &Path) {
    let start = Instant::now();
    while checkpoints(run).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(120), "no checkpoint in {}", run.display());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_worker_and_its_server_that_are_killed_go_on_to_the_same_bits_whatever_is_remembered() {
    let cases = [
        (&["--codec", "topk:density=0.01"][..], [0, 2].as_slice()),
        (&["--codec", "dgc:density=0.02", "--schedule", "cosine", "--warmup", "5"], &[2, 0]),
        (&["--codec", "qsgd:bits=4", "--optimizer", "adamw"], &[1, 2, 0]),
        (&["--codec", "bf16:memory=ef", "--momentum", "0.9"], &[0, 1, 2]),
        (&["--codec", "topk:density=0.02", "--optimizer", "adamw-updates"], &[2, 0]),
        (&["--codec", "topk:density=0.02", "--local-steps", "2", "--momentum", "0.9"], &[2, 0]),
        (&["--codec", "topk:density=0.02", "--local-steps", "6", "--fragments", "3"], &[2, 0]),
        (&["--codec", "topk:density=0.02", "--local-steps", "2", "--delayed"], &[0, 2]),
        (&["--codec", "efsign", "--local-steps", "6", "--fragments", "3", "--delayed"], &[2, 0]),
    ];
    for (number, (codec, killed)) in cases.into_iter().enumerate() {
        let settings = settings("120", "1", codec);
        let undisturbed = Scene::new(&settings).hash();
        let mut scene = Scene::new(&settings);
        scene.server.says(&format!("step {}: ", 4 + 3 * number));
        // Wherever it is in its step: the others wait for it, however long the rest takes.
        scene.workers[1].signal("-STOP");
        killed.iter().for_each(|&rank| scene.process(rank).kill());
        let newest = *checkpoints(&scene.keys.run()).last().unwrap();
        killed.iter().for_each(|&rank| scene.restart(rank));
        scene.workers[1].says(&format!("the memory is as it was before step {newest}"));
        assert_eq!(scene.hash(), undisturbed, "{codec:?}");
    }
}

#[test]
fn a_worker_that_is_told_to_end_goes_on_later_and_no_bit_differs() {
    let settings = settings("400", "0", &["--codec", "topk:density=0.01"]);
    let undisturbed = undisturbed(&settings);
    let mut scene = Scene::new(&settings);
    scene.server.says("step 6: ");
    for rank in [2, 1, 2] {
        scene.workers[rank - 1].signal("-INT");
        assert_eq!(scene.workers[rank - 1].ends(), Some(130), "{}", scene.workers[rank - 1].all());
        let line = scene.workers[rank - 1].says("interrupted after ");
        let again = line.split("go on with: ").nth(1).unwrap().to_owned();
        assert!(again.contains(&format!(" join --resume {}", folder(&scene.keys, rank))), "{line}");
        scene
            .server
            .says(&format!("rank {rank} is out until it asks again: it leaves, with what it keeps back"));
        scene.workers[rank - 1] = pasted(&format!("worker {rank}"), &again);
        scene.workers[rank - 1].says("the memory is as it was before step");
    }
    let said = scene.server.all();
    assert!(!said.contains("is lost") && !said.contains("refused"), "{said}");
    assert_eq!(scene.hash(), undisturbed);
}

#[test]
fn a_killed_worker_has_what_it_kept_back_behind_its_last_step_at_the_weight_of_its_absence() {
    let mut scene = Scene::new(&settings("150", "1", &["--codec", "topk:density=0.01"]));
    scene.server.says("step 9: ");
    scene.workers[1].kill();
    let written = *checkpoints(Path::new(&folder(&scene.keys, 2))).last().unwrap();
    let before = lines(&trace(&scene.keys, 2));
    scene.restart(2);
    let line = scene.workers[1].says("let in for step ");
    let step: u64 = line.rsplit(' ').next().unwrap().parse().unwrap();
    let last = before.iter().find(|line| line.step + 1 == written).unwrap();
    let back = || lines(&trace(&scene.keys, 2)).into_iter().find(|line| line.step == step);
    let start = Instant::now();
    let back: Line = loop {
        if let Some(line) = back() {
            break line;
        }
        assert!(start.elapsed() < Duration::from_secs(120), "no line for step {step}");
        std::thread::sleep(Duration::from_millis(5));
    };
    // One step was void for its lack, and perhaps one was closed with its frame.
    let missed = step - written;
    assert!((1..=2).contains(&missed), "{missed}");
    let weight = 1.0 - missed as f64 / 200.0;
    assert!(last.norm_after > 0.0);
    for (kept, was) in [(back.kept_before, last.kept_after), (back.norm_before, last.norm_after)] {
        assert!((kept - weight * was).abs() <= 1e-5 * (1.0 + was.abs()), "{kept} is not {weight} of {was}");
    }
    // What it has brought is not lost.
    let line = scene.server.says(&format!("rank 2 is back with a residual of norm {:.6}", back.norm_before));
    assert!(line.contains(&format!("step {step}: ")), "{line}");
    scene.hash();
}

#[test]
fn what_was_kept_back_in_another_course_of_the_run_does_not_enter_this_one() {
    let mut scene = Scene::new(&settings("400", "0", &["--codec", "topk:density=0.01"]));
    scene.server.says("step 6: ");
    scene.workers[1].signal("-INT");
    assert_eq!(scene.workers[1].ends(), Some(130), "{}", scene.workers[1].all());
    // As if the same settings had led to other parameters.
    let found = latest(Path::new(&folder(&scene.keys, 2))).unwrap();
    let (step, job) = (found.steps(), Job::prepare(found.config().clone()).unwrap());
    let mut written = found.read_all(&job.layout).unwrap();
    written.worker = Some(Single { rank: 2, params_hash: "0123456789abcdef".to_owned() });
    Store::of_run(Path::new(&folder(&scene.keys, 2))).write(&written, &job.layout).unwrap();
    scene.restart(2);
    let line = scene.workers[1].says(&format!("the run had other parameters before step {step}"));
    let norm: f64 = line.split("norm ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    assert!(norm > 0.0, "{line}");
    scene.hash();
}

/// The newest of a worker's three checkpoints is what it goes on from.
#[test]
fn older_states_that_do_not_fit_are_named_and_a_worker_goes_on_without_them() {
    let settings = settings("400", "1", &["--codec", "topk:density=0.01"]);
    let undisturbed = undisturbed(&settings);
    let mut scene = Scene::new(&settings);
    scene.server.says("step 6: ");
    scene.workers[1].signal("-INT");
    assert_eq!(scene.workers[1].ends(), Some(130), "{}", scene.workers[1].all());
    let run = PathBuf::from(folder(&scene.keys, 2));
    let [damaged, unfit, newest] = checkpoints(&run)[..] else { panic!("three are kept") };
    let path = |step: u64| run.join(format!("checkpoints/step-{step:08}"));
    // What stands in it is whole, but no memory of this codec.
    let found = latest(&path(unfit)).unwrap();
    let job = Job::prepare(found.config().clone()).unwrap();
    let checkpoint = Checkpoint { memories: vec![vec![7; 100]], ..found.read_all(&job.layout).unwrap() };
    let aside = [damaged, newest].map(|step| (path(step), run.join(step.to_string())));
    aside.iter().for_each(|(from, to)| fs::rename(from, to).unwrap());
    Store::of_run(&run).write(&checkpoint, &job.layout).unwrap();
    aside.iter().for_each(|(to, from)| fs::rename(from, to).unwrap());
    fs::write(path(damaged).join("manifest.json"), "{}").unwrap();

    scene.restart(2);
    for step in [damaged, unfit] {
        let line = scene.workers[1].says(&format!("step-{step:08}"));
        assert!(line.ends_with("the memory of that step is not known"), "{line}");
    }
    scene.workers[1].says(&format!("the memory is as it was before step {newest}"));
    assert_eq!(scene.hash(), undisturbed);
}

#[test]
fn what_cannot_be_gone_on_from_is_one_line_and_exit_code_2() {
    let settings = settings("12", "4", &["--codec", "topk:density=0.01"]);
    let mut scene = Scene::new(&settings);
    // The run is left before its end, so that there is something to go on with.
    wait_for_checkpoints(Path::new(&folder(&scene.keys, 1)));
    wait_for_checkpoints(&scene.keys.run());
    scene.workers[0].kill();
    scene.workers[1].kill();
    scene.server.kill();
    let (keys, endpoint) = (&scene.keys, scene.endpoint.as_str());
    let own = folder(keys, 1);
    if checkpoints(Path::new(&own)).last() == Some(&12) {
        fs::remove_dir_all(Path::new(&own).join("checkpoints/step-00000012")).unwrap();
    }
    let refused = |rank: usize, arguments: &[&str], why: &str| {
        let mut process = rejoin(keys, endpoint, rank, arguments);
        assert_eq!(process.ends(), Some(2), "{arguments:?}: {}", process.all());
        process.says(why);
        assert_eq!(process.all().lines().count(), 1, "{}", process.all());
    };
    refused(1, &["--resume", &own, "--lr", "0.5"], "the settings of the run are those of");
    refused(1, &["--resume", &own, "--out", "elsewhere"], "cannot be used with");
    refused(1, &["--resume", &own, "--rank", "2"], "of rank 1, not of rank 2");
    refused(1, &["--resume", &keys.run().display().to_string()], "go on with: trainer serve --resume");
    refused(1, &["--resume", &keys.folder.path().display().to_string()], "no checkpoint in this folder");
    let other = |arguments: &[&str], why: &str| {
        let output = trainer().args(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(why), "{said}");
    };
    other(&["train", "--resume", &own], "go on with: trainer join --resume");
    other(&["serve", "--insecure", "--resume", &own], "go on with: trainer join --resume");
    // Damage, with the checkpoint before it named where there is one.
    let newest =
        Path::new(&own).join(format!("checkpoints/step-{:08}", checkpoints(Path::new(&own)).last().unwrap()));
    let file = newest.join("rank-1.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).unwrap();
    refused(1, &["--resume", &own], "rank-1.safetensors: damaged: CRC-32");
}

/// Files of more than 64 KiB cannot be written: what a full disk looks like to a program.
#[cfg(unix)]
#[test]
fn a_full_disk_ends_the_worker_with_a_clear_error_and_the_last_good_state() {
    let settings = settings("60", "1", &["--codec", "topk:density=0.01", "--hidden", "512"]);
    let undisturbed = undisturbed(&settings);
    let mut scene = Scene::new(&settings);
    scene.server.says("step 3: ");
    scene.server.kill();
    scene.workers[1].kill();
    let before = checkpoints(Path::new(&folder(&scene.keys, 2)));
    scene.restart(0);
    let (key, public) = (scene.keys.secret(2), scene.keys.secret(0).with_extension("pub"));
    let command = format!(
        "trap '' XFSZ; ulimit -f 64; exec '{}' join --server {} --resume '{}' --key '{}' --server-key '{}'",
        env!("CARGO_BIN_EXE_trainer"),
        scene.endpoint,
        folder(&scene.keys, 2),
        key.display(),
        public.display()
    );
    let mut full = Process::start("full", Command::new("bash").args(["-c", &command]));
    assert_eq!(full.ends(), Some(1), "{}", full.all());
    full.says("checkpoint not written");
    full.says("File too large");
    assert_eq!(
        checkpoints(Path::new(&folder(&scene.keys, 2))),
        before,
        "nothing is lost and no draft is left"
    );
    // Both go on from there, and nothing of the failure is left.
    scene.server.kill();
    scene.restart(0);
    scene.restart(2);
    assert_eq!(scene.hash(), undisturbed);
}
