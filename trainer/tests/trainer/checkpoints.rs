//! A run that was interrupted, killed or left with a damaged disk goes on to the end that it would have had.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gradwire_trainer::checkpoint::{Checkpoint, CheckpointError, Single, Store, latest};
use gradwire_trainer::config::{ExchangeKind, OptimizerKind, ScheduleKind, Settings};
use gradwire_trainer::job::Job;
use gradwire_trainer::model::hash::params_hash;
use gradwire_trainer::record::Metrics;
use gradwire_trainer::record::folder::Folder;
use gradwire_trainer::run::in_folder::run_into;
use gradwire_trainer::run::processes::{follow, lead};
use gradwire_trainer::run::{Control, Observer, Outcome, RunError, run_with_models};
use gradwire_transports::local;

use crate::digits_job;

/// Keeps what a run says, and asks for its end once it has heard of some step.
#[derive(Default)]
pub(crate) struct Keeper {
    pub(crate) metrics: Vec<Metrics>,
    pub(crate) checkpoints: Vec<Checkpoint>,
    interrupt: AtomicBool,
    interrupt_at: Option<u64>,
}

impl Observer for &mut Keeper {
    fn step(&mut self, metrics: &Metrics) -> Result<(), String> {
        self.metrics.push(metrics.clone());
        if self.interrupt_at == Some(metrics.step) {
            self.interrupt.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn refused(&mut self, _: u64, _: &str) {}

    fn checkpoint(&mut self, checkpoint: &Checkpoint) -> Result<(), String> {
        self.checkpoints.push(checkpoint.clone());
        Ok(())
    }
}

pub(crate) fn run(
    job: &Job,
    start: Option<(&Checkpoint, &[Metrics])>,
) -> (Result<Outcome, RunError>, Keeper) {
    let mut keeper = Keeper::default();
    let control = Control { start, interrupt: None };
    let outcome = run_with_models(job, &|_| job.build_model(), control, &mut &mut keeper);
    (outcome, keeper)
}

/// A line without its times.
fn timeless(metrics: &[Metrics]) -> Vec<Metrics> {
    let forget = |line: &Metrics| Metrics {
        compute_ns: None,
        encode_ns: 0,
        exchange_ns: 0,
        decode_ns: 0,
        ..line.clone()
    };
    metrics.iter().map(forget).collect()
}

type Change = fn(&mut Settings);

/// Every kind of memory, optimizer, schedule and controller.
fn cases() -> [(&'static str, Change); 62] {
    let momentum = |settings: &mut Settings| settings.momentum = Some(0.9);
    let adamw = |settings: &mut Settings| settings.optimizer = Some(OptimizerKind::Adamw);
    let muon = |settings: &mut Settings| {
        (settings.optimizer, settings.hidden) = (Some(OptimizerKind::Muon), Some(vec![16, 12, 16]));
    };
    let local_muon = |settings: &mut Settings| {
        (settings.optimizer, settings.hidden) = (Some(OptimizerKind::Muon), Some(vec![16, 12, 16]));
        settings.local_steps = Some(3);
    };
    let updates = |settings: &mut Settings| {
        settings.optimizer = Some(OptimizerKind::AdamwUpdates);
        (settings.schedule, settings.warmup) = (Some(ScheduleKind::Cosine), Some(5));
    };
    let late_updates = |settings: &mut Settings| {
        settings.optimizer = Some(OptimizerKind::AdamwUpdates);
        settings.delayed = Some(true);
    };
    let local = |settings: &mut Settings| {
        (settings.optimizer, settings.local_steps) = (Some(OptimizerKind::Adamw), Some(3));
        (settings.schedule, settings.warmup) = (Some(ScheduleKind::Cosine), Some(2));
    };
    let nesterov = |settings: &mut Settings| {
        (settings.optimizer, settings.local_steps) = (Some(OptimizerKind::Adamw), Some(2));
        (settings.outer_lr, settings.outer_momentum) = (Some(0.7), Some(0.9));
    };
    let local_sgd = |settings: &mut Settings| {
        (settings.momentum, settings.local_steps) = (Some(0.9), Some(2));
        (settings.exchange, settings.accumulate) = (Some(ExchangeKind::Server), Some(2));
    };
    let late_local = |settings: &mut Settings| {
        (settings.optimizer, settings.local_steps) = (Some(OptimizerKind::Adamw), Some(2));
        (settings.outer_momentum, settings.delayed) = (Some(0.9), Some(true));
    };
    let fragments = |settings: &mut Settings| {
        (settings.optimizer, settings.outer_momentum) = (Some(OptimizerKind::Adamw), Some(0.9));
        (settings.local_steps, settings.fragments) = (Some(6), Some(3));
    };
    let late_fragments = |settings: &mut Settings| {
        settings.optimizer = Some(OptimizerKind::Adamw);
        (settings.local_steps, settings.fragments) = (Some(4), Some(2));
        (settings.outer_momentum, settings.delayed) = (Some(0.9), Some(true));
    };
    let fragments_by_server = |settings: &mut Settings| {
        (settings.local_steps, settings.fragments) = (Some(2), Some(2));
        settings.exchange = Some(ExchangeKind::Server);
        settings.downlink = Some("topk:density=0.05,values=q8".to_owned());
    };
    let updates_by_server = |settings: &mut Settings| {
        settings.optimizer = Some(OptimizerKind::AdamwUpdates);
        settings.exchange = Some(ExchangeKind::Server);
    };
    let schedule = |settings: &mut Settings| {
        (settings.schedule, settings.warmup) = (Some(ScheduleKind::Cosine), Some(5));
    };
    let server = |settings: &mut Settings| settings.exchange = Some(ExchangeKind::Server);
    let compressing_server = |settings: &mut Settings| {
        settings.exchange = Some(ExchangeKind::Server);
        settings.downlink = Some("topk:density=0.05,values=q8".to_owned());
    };
    let sparse = |settings: &mut Settings| settings.exchange = Some(ExchangeKind::Sparse);
    let delayed = |settings: &mut Settings| settings.delayed = Some(true);
    let gravac = |settings: &mut Settings| {
        let adapt = "gravac:min=2,max=100,eps=0.8,omega=0.05,window=3,policy=geometric,clock=none";
        settings.adapt = Some(adapt.to_owned());
    };
    let easy = |settings: &mut Settings| {
        settings.adapt = Some("gravac:min=2,max=100,eps=0.2,window=3,clock=none".to_owned());
    };
    let accordion = |settings: &mut Settings| {
        // Two steps an epoch.
        settings.batch = Some(480);
        settings.adapt = Some("accordion:low=0.2,high=0.05,eta=0.1,window=2".to_owned());
    };
    let ranks = |settings: &mut Settings| {
        // Rank 5 until step 8 and again at steps 10 and 11, with two steps an epoch.
        (settings.batch, settings.schedule) = (Some(480), Some(ScheduleKind::Step));
        (settings.decay_every, settings.decay_factor) = (Some(10), Some(0.5));
        settings.adapt = Some("accordion:low=5,high=1,eta=10000,window=2".to_owned());
    };
    let late_ranks = |settings: &mut Settings| {
        settings.delayed = Some(true);
        settings.batch = Some(480);
        settings.adapt = Some("accordion:low=5,high=1,eta=10000,window=2".to_owned());
    };
    let ranks_by_layer = |settings: &mut Settings| {
        settings.batch = Some(480);
        settings.adapt = Some("accordion:low=3,high=1,eta=0.2,window=1,by=layer".to_owned());
    };
    let late_ranks_by_layer = |settings: &mut Settings| {
        settings.delayed = Some(true);
        settings.batch = Some(480);
        settings.adapt = Some("accordion:low=3,high=1,eta=0.2,window=1,by=layer".to_owned());
    };
    let by_loss = |settings: &mut Settings| settings.adapt = Some("loss:inf=0.2,2=0.05,1.5=0.01".to_owned());
    let rules = |settings: &mut Settings| {
        let rules = "*.bias=none; layers.0*=dgc:density=0.05,warmup=2; dgc:density=0.1";
        (settings.codec, settings.rules) = (None, Some(rules.to_owned()));
    };
    let summed_rules = |settings: &mut Settings| {
        let rules = "*.bias=none; layers.0*=randomk:density=0.1; randomk:density=0.2";
        (settings.codec, settings.rules) = (None, Some(rules.to_owned()));
    };
    [
        ("rules", rules),
        ("rules that are summed", summed_rules),
        ("none", momentum),
        ("topk:density=0.01", |_| ()),
        ("topk:density=0.01,values=q4", schedule),
        ("topk:density=0.02,unit=tensor,dense_1d=true", server),
        ("topk:density=0.02", compressing_server),
        ("threshold:value=0.01", adamw),
        ("topk:density=0.02,values=q4", updates),
        ("none", updates),
        ("powersgd:rank=2", late_updates),
        ("topk:density=0.02", late_updates),
        ("qsgd:bits=4", updates_by_server),
        ("topk:density=0.02,values=q4,decay=0.95", local),
        ("none", nesterov),
        ("efsign", nesterov),
        ("topk:density=0.02", local_sgd),
        ("topk:density=0.02", late_local),
        ("topk:density=0.02,decay=0.95", fragments),
        ("powersgd:rank=2", fragments),
        ("none", fragments),
        ("efsign", late_fragments),
        ("topk:density=0.02", late_fragments),
        ("topk:density=0.02", fragments_by_server),
        ("qsgd:bits=4", momentum),
        ("qsgd:bits=4,rounding=nearest", adamw),
        ("randomk:density=0.05", schedule),
        ("randomk:density=0.05,block=run", schedule),
        ("randomk:density=0.05,block=tile", momentum),
        ("maxnorm:bits=4", momentum),
        ("maxnorm:bits=4+8,rounding=nearest", momentum),
        ("maxnorm:bits=4,density=0.3", schedule),
        ("powersgd:rank=2,start=3", momentum),
        ("sharedk:density=0.01", schedule),
        ("sharedk:density=0.01,by=leader", momentum),
        ("sharedk:density=0.01,by=leader,lowpass=0.25", momentum),
        ("sharedk:density=0.01,feedback=ef21,momentum=0.5", schedule),
        ("sketch:density=0.02", schedule),
        ("sketch:density=0.05,cells=0.4,error=workers", momentum),
        ("sketch:density=0.05,cells=0.9,moments=amsgrad", schedule),
        ("bf16:memory=ef", |_| ()),
        ("qsgd:bits=4", muon),
        ("topk:density=0.02", local_muon),
        ("dgc:density=0.02", schedule),
        ("dpsgd", momentum),
        ("powergossip:rank=2,iterations=3", momentum),
        ("choco:density=0.1", momentum),
        ("topk:density=0.03", sparse),
        ("topk:density=0.02", delayed),
        ("powersgd:rank=1", delayed),
        ("topk", gravac),
        ("dgc", gravac),
        ("topk:chunk=64", gravac),
        ("randomk", easy),
        ("redsync", accordion),
        ("topk:unit=tensor", accordion),
        ("powersgd:rank=2", ranks),
        ("powersgd:rank=1", late_ranks),
        ("powersgd:unit=tensor", ranks_by_layer),
        ("powersgd:unit=tensor", late_ranks_by_layer),
        ("topk", by_loss),
        ("dgc", by_loss),
    ]
}

fn case_job(codec: &str, change: Change) -> Job {
    digits_job(codec, 24, |settings| {
        (settings.checkpoint_every, settings.workers, settings.eval_every) = (Some(7), Some(3), Some(5));
        settings.batch = Some(48);
        change(settings);
    })
}

#[test]
fn a_resumed_run_ends_with_the_same_bits_whatever_it_remembers() {
    for (codec, change) in cases() {
        let job = case_job(codec, change);
        let (whole, keeper) = run(&job, None);
        let whole = whole.unwrap();
        assert_eq!(keeper.checkpoints.iter().map(|made| made.steps).collect::<Vec<_>>(), [7, 14, 21, 24]);
        for made in &keeper.checkpoints {
            let folder = tempfile::tempdir().unwrap();
            Store::of_run(folder.path()).write(made, &job.layout).unwrap();
            let read = latest(folder.path()).unwrap().read_all(&job.layout).unwrap();
            assert_eq!(&read, made, "{codec}: through the disk");
            let done = &keeper.metrics[..made.steps as usize];
            let resumed = run(&job, Some((&read, done))).0.unwrap();
            assert_eq!(resumed.summary.params_hash, whole.summary.params_hash, "{codec} from {}", made.steps);
            assert_eq!(timeless(&resumed.metrics), timeless(&whole.metrics), "{codec} from {}", made.steps);
            assert_eq!(resumed.summary.ratio, whole.summary.ratio);
            assert_eq!(resumed.summary.bytes_up, whole.summary.bytes_up);
        }
    }
}

#[test]
fn an_interrupt_finishes_the_step_and_makes_a_checkpoint_of_it() {
    for codec in ["topk:density=0.01", "none"] {
        let job = digits_job(codec, 40, |_| ());
        let (whole, _) = run(&job, None);
        let mut keeper = Keeper { interrupt_at: Some(9), ..Keeper::default() };
        // The observer sets what the control reads.
        let interrupt = AtomicBool::new(false);
        let error = {
            struct Forward<'a>(&'a mut Keeper, &'a AtomicBool);
            impl Observer for Forward<'_> {
                fn step(&mut self, metrics: &Metrics) -> Result<(), String> {
                    let mut keeper = &mut *self.0;
                    Observer::step(&mut keeper, metrics)?;
                    self.1.store(self.0.interrupt.load(Ordering::Relaxed), Ordering::Relaxed);
                    Ok(())
                }
                fn refused(&mut self, _: u64, _: &str) {}
                fn checkpoint(&mut self, checkpoint: &Checkpoint) -> Result<(), String> {
                    let mut keeper = &mut *self.0;
                    Observer::checkpoint(&mut keeper, checkpoint)
                }
            }
            let control = Control { start: None, interrupt: Some(&interrupt) };
            run_with_models(&job, &|_| job.build_model(), control, &mut Forward(&mut keeper, &interrupt))
                .unwrap_err()
        };
        let RunError::Interrupted { steps } = error else { panic!("{error}") };
        assert!((10..40).contains(&steps), "{steps}");
        assert_eq!(keeper.metrics.len() as u64, steps, "no step is half done");
        assert_eq!(keeper.checkpoints.len(), 1);
        let made = &keeper.checkpoints[0];
        assert_eq!(made.steps, steps);
        let resumed = run(&job, Some((made, &keeper.metrics))).0.unwrap();
        assert_eq!(resumed.summary.params_hash, whole.unwrap().summary.params_hash);
    }
}

// --- processes instead of threads ------------------------------------------

/// The run in one thread for what would be a process; an interrupt at one of them after some step.
fn run_in_processes(
    job: &Job,
    start: Option<(&Checkpoint, &[Metrics])>,
    interrupted: Option<usize>,
) -> (Result<Outcome, RunError>, Keeper) {
    struct Forward<'a>(&'a mut Keeper, &'a AtomicBool);
    impl Observer for Forward<'_> {
        fn step(&mut self, metrics: &Metrics) -> Result<(), String> {
            self.1.store(metrics.step >= 4, Ordering::Relaxed);
            Observer::step(&mut &mut *self.0, metrics)
        }
        fn refused(&mut self, _: u64, _: &str) {}
        fn checkpoint(&mut self, checkpoint: &Checkpoint) -> Result<(), String> {
            Observer::checkpoint(&mut &mut *self.0, checkpoint)
        }
    }
    let (mut keeper, wish) = (Keeper::default(), AtomicBool::new(false));
    let wish_of = |rank| (interrupted == Some(rank)).then_some(&wish);
    let mut transports = local::world(job.config.workers as u32).into_iter().enumerate();
    let (_, mut first) = transports.next().unwrap();
    let outcome = std::thread::scope(|scope| {
        let followers: Vec<_> = transports
            .map(|(rank, mut transport)| {
                let wish = wish_of(rank);
                scope.spawn(move || follow(job, &mut transport, start.map(|(from, _)| from), wish))
            })
            .collect();
        let control = Control { start, interrupt: wish_of(0) };
        let outcome = lead(job, &mut first, control, &mut Forward(&mut keeper, &wish));
        for follower in followers {
            follower.join().unwrap().unwrap();
        }
        outcome
    });
    (outcome, keeper)
}

#[test]
fn processes_make_the_checkpoints_that_threads_make_and_go_on_from_them() {
    for (codec, change) in cases() {
        let job = case_job(codec, change);
        let (whole, expected) = run(&job, None);
        let (outcome, keeper) = run_in_processes(&job, None, None);
        let hash = whole.unwrap().summary.params_hash;
        assert_eq!(outcome.unwrap().summary.params_hash, hash, "{codec}");
        assert_eq!(keeper.checkpoints.len(), expected.checkpoints.len());
        for (made, expected) in keeper.checkpoints.iter().zip(&expected.checkpoints) {
            let timeless = |of: &Checkpoint| (of.steps, of.replicas.clone(), of.memories.clone());
            assert!(timeless(made) == timeless(expected), "{codec} at {}", made.steps);
        }
        let made = &keeper.checkpoints[1];
        let done = &keeper.metrics[..made.steps as usize];
        let (resumed, _) = run_in_processes(&job, Some((made, done)), None);
        assert_eq!(resumed.unwrap().summary.params_hash, hash, "{codec} from {}", made.steps);
    }
}

#[test]
fn an_interrupt_of_any_process_ends_all_behind_the_same_step_with_a_checkpoint() {
    let job = digits_job("topk:density=0.01", 40, |_| ());
    let hash = run(&job, None).0.unwrap().summary.params_hash;
    for rank in [0, 2] {
        let (outcome, keeper) = run_in_processes(&job, None, Some(rank));
        let Err(RunError::Interrupted { steps }) = outcome else { panic!("{outcome:?}") };
        assert!((5..40).contains(&steps), "{steps}");
        assert_eq!(keeper.metrics.len() as u64, steps);
        let [made] = keeper.checkpoints.as_slice() else { panic!("{}", keeper.checkpoints.len()) };
        assert_eq!(made.steps, steps);
        let (resumed, _) = run_in_processes(&job, Some((made, &keeper.metrics)), None);
        assert_eq!(resumed.unwrap().summary.params_hash, hash, "interrupted at rank {rank}");
    }
}

// --- the binary, and what may befall it ------------------------------------------

/// Its checkpoints are larger than the files that the test of a full disk allows.
const RUN: [&str; 11] = [
    "train",
    "--codec",
    "topk:density=0.01,values=q8",
    "--steps",
    "150",
    "--momentum",
    "0.9",
    "--hidden",
    "256",
    "--out",
    "run",
];

fn trainer(folder: &Path) -> Command {
    // With signals as a shell in the foreground leaves them.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM,HUP", env!("CARGO_BIN_EXE_trainer")]);
    command.current_dir(folder).stdin(Stdio::null());
    command
}

fn hash_of(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.starts_with("parameters: "));
    line.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr))).to_owned()
}

/// The hash of the run that nobody disturbs.
fn undisturbed() -> String {
    let folder = tempfile::tempdir().unwrap();
    hash_of(&trainer(folder.path()).args(RUN).output().unwrap())
}

/// A run that writes a checkpoint at every step.
fn begun(folder: &Path) -> Child {
    trainer(folder)
        .args(RUN)
        .args(["--checkpoint-every", "1"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn wait_for(what: &str, is_there: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_there() {
        assert!(started.elapsed() < Duration::from_secs(120), "{what} in vain");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn checkpoints(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join("run/checkpoints")).into_iter().flatten();
    let mut all: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    all.sort();
    all
}

/// Those that are no drafts.
fn complete(folder: &Path) -> Vec<PathBuf> {
    let is_draft =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
    checkpoints(folder).into_iter().filter(|path| !is_draft(path)).collect()
}

fn resume(folder: &Path) -> Output {
    trainer(folder).args(["train", "--resume", "run"]).output().unwrap()
}

#[test]
fn a_process_that_is_killed_again_and_again_ends_where_it_would_have() {
    let expected = undisturbed();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut child = begun(folder);
    // Each time a little later after a checkpoint, so that some kills fall into the writing of the next.
    for delay in [0, 1, 2, 3, 5, 8] {
        let before = complete(folder).last().cloned();
        wait_for("a new checkpoint", || {
            complete(folder).last().is_some_and(|last| Some(last) != before.as_ref())
                || matches!(fs::exists(folder.join("run/summary.json")), Ok(true))
        });
        std::thread::sleep(Duration::from_millis(delay));
        child.kill().unwrap();
        child.wait().unwrap();
        child = trainer(folder)
            .args(["train", "--resume", "run"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    if !folder.join("run/summary.json").exists() {
        assert_eq!(hash_of(&resume(folder)), expected);
    }
    let summary: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(folder.join("run/summary.json")).unwrap()).unwrap();
    assert!(expected.contains(summary["params_hash"].as_str().unwrap()), "{expected}");
    assert_eq!(fs::read_to_string(folder.join("run/metrics.jsonl")).unwrap().lines().count(), 150);
}

#[test]
fn a_run_that_goes_on_is_not_resumed_by_a_second_process() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut child = begun(folder);
    wait_for("a checkpoint", || !complete(folder).is_empty());
    // Stopped, so that it neither ends nor changes anything meanwhile.
    let signal = |name: &str| {
        assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
    };
    signal("-STOP");
    let before = fs::read(folder.join("run/metrics.jsonl")).unwrap();
    let refused = resume(folder);
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(said, "trainer: run: in use by another process; wait until it ends, or end it\n");
    let forced = trainer(folder).args(RUN).arg("--force").output().unwrap();
    assert_eq!(forced.status.code(), Some(2));
    assert_eq!(fs::read(folder.join("run/metrics.jsonl")).unwrap(), before);
    signal("-CONT");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(hash_of(&resume(folder)), undisturbed());
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_run_in_order_and_says_how_to_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let child = trainer(folder).args(RUN).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("a step", || {
        fs::read_to_string(folder.join("run/metrics.jsonl")).is_ok_and(|text| text.lines().count() > 3)
    });
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{said}");
    let again = format!("go on with: {} train --resume run", env!("CARGO_BIN_EXE_trainer"));
    assert!(said.lines().last().unwrap().ends_with(&again), "{said}");
    assert_eq!(hash_of(&resume(folder)), undisturbed());
}

// --- damage ------------------------------------------

/// A run of 12 steps with checkpoints after 6 and 12.
fn short_run() -> (tempfile::TempDir, Job, Keeper) {
    let job = digits_job("topk:density=0.01", 18, |settings| settings.checkpoint_every = Some(6));
    let (outcome, keeper) = run(&job, None);
    outcome.unwrap();
    let folder = tempfile::tempdir().unwrap();
    for made in &keeper.checkpoints[..2] {
        Store::of_run(folder.path()).write(made, &job.layout).unwrap();
    }
    (folder, job, keeper)
}

fn read(path: &Path, job: &Job) -> Result<Checkpoint, CheckpointError> {
    latest(path)?.read_all(&job.layout)
}

#[test]
fn the_newest_two_checkpoints_are_kept_and_drafts_are_swept() {
    let (folder, job, keeper) = short_run();
    let store = folder.path().join("checkpoints");
    fs::create_dir(store.join(".draft-9")).unwrap();
    fs::write(store.join(".draft-9/model.safetensors"), "half of").unwrap();
    assert_eq!(read(folder.path(), &job).unwrap(), keeper.checkpoints[1], "a draft is no checkpoint");
    Store::of_run(folder.path()).write(&keeper.checkpoints[2], &job.layout).unwrap();
    assert_eq!(names(&store), ["step-00000012", "step-00000018"]);
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_run_that_went_back_removes_what_lies_ahead_and_a_worker_keeps_three() {
    let (folder, job, keeper) = short_run();
    let (store, path) = (Store::of_run(folder.path()), folder.path().join("checkpoints"));
    store.write(&keeper.checkpoints[0], &job.layout).unwrap();
    assert_eq!(names(&path), ["step-00000006"]);
    for steps in 1..=5 {
        let first = keeper.checkpoints[0].clone();
        let worker = Some(Single { rank: 3, params_hash: String::new() });
        let memories = vec![first.memories[3].clone()];
        let of_worker = Checkpoint { steps, worker, replicas: Vec::new(), memories, ..first };
        store.write(&of_worker, &job.layout).unwrap();
    }
    assert_eq!(names(&path), ["step-00000003", "step-00000004", "step-00000005"]);
    assert_eq!(names(&path.join("step-00000005")), ["manifest.json", "rank-3.safetensors"]);
}

#[test]
fn a_run_in_the_folder_of_another_one_leaves_its_own_checkpoints_alone() {
    let root = tempfile::tempdir().unwrap();
    let job = |seed, steps| {
        digits_job("topk:density=0.01", steps, |settings| {
            (settings.seed, settings.checkpoint_every) = (Some(seed), Some(steps / 3));
        })
    };
    for (seed, steps) in [(1, 18), (2, 9)] {
        let job = job(seed, steps);
        let folder = Folder::create(&root.path().join("run"), true).unwrap();
        let summary = run_into(&job, &folder, "", 0).unwrap().summary;
        let made = read(folder.path(), &job).unwrap();
        assert_eq!((made.steps, made.config.seed), (steps, seed));
        assert_eq!(format!("{:016x}", params_hash(&made.replicas[0].params)), summary.params_hash);
    }
}

#[test]
fn the_run_of_a_checkpoint_is_found_however_it_is_named() {
    let (folder, ..) = short_run();
    let run = folder.path().canonicalize().unwrap();
    let [older, newer] = ["06", "12"].map(|steps| run.join(format!("checkpoints/step-000000{steps}")));
    for name in [newer.clone(), older.join("../step-00000012"), newer.join(".")] {
        let found = latest(&name).unwrap();
        assert_eq!(found.run_folder(), Some(run.as_path()), "{}", name.display());
        let before = found.before().unwrap();
        assert_eq!(before.iter().map(|found| found.as_ref().unwrap().path()).collect::<Vec<_>>(), [&older]);
    }
}

/// Says *damaged*, which file, in one line, and what can be resumed instead.
fn assert_damaged(error: &str, file: &Path, before: Option<&Path>) {
    assert!(error.starts_with(&format!("{}: damaged: ", file.display())), "{error}");
    assert!(!error.contains('\n'), "{error}");
    match before {
        Some(before) => assert!(error.ends_with(&format!("--resume {}", before.display())), "{error}"),
        None => assert!(error.ends_with("; no checkpoint before it is whole"), "{error}"),
    }
}

/// A checkpoint with every kind of file that one process writes.
fn whole_kit() -> (tempfile::TempDir, Job, Keeper) {
    let job = digits_job("topk:density=0.01", 18, |settings| {
        (settings.checkpoint_every, settings.eval_every) = (Some(6), Some(3));
        settings.early_stop = Some(10);
    });
    let (outcome, mut keeper) = run(&job, None);
    outcome.unwrap();
    let folder = tempfile::tempdir().unwrap();
    for made in &mut keeper.checkpoints[..2] {
        // As a server has them.
        (made.downlink, made.norms) = (made.memories[0].clone(), vec![vec![1.5, 2.5], Vec::new()]);
        Store::of_run(folder.path()).write(made, &job.layout).unwrap();
    }
    (folder, job, keeper)
}

#[test]
fn every_damage_is_found_and_the_checkpoint_before_is_named() {
    let (folder, job, keeper) = whole_kit();
    let newest = folder.path().join("checkpoints/step-00000012");
    let older = folder.path().join("checkpoints/step-00000006");
    let files = names(&newest);
    let mut expected = ["best", "downlink", "model", "norms", "rank-0", "rank-1", "rank-2", "rank-3"]
        .map(|name| format!("{name}.safetensors"))
        .to_vec();
    expected.push("manifest.json".to_owned());
    expected.sort();
    assert_eq!(files, expected);
    for name in files {
        let file = newest.join(&name);
        let whole = fs::read(&file).unwrap();
        let said = || read(folder.path(), &job).expect_err(&name).to_string();
        let mut flips: Vec<usize> = (0..whole.len()).step_by(whole.len().div_ceil(23)).collect();
        flips.push(whole.len() - 1);
        for at in flips {
            // The second one is no UTF-8 in a manifest.
            for bit in [0x10, 0x80] {
                let mut damaged = whole.clone();
                damaged[at] ^= bit;
                fs::write(&file, damaged).unwrap();
                assert_damaged(&said(), &file, Some(&older));
            }
        }
        for len in [0, 1, whole.len() / 2, whole.len() - 2] {
            fs::write(&file, &whole[..len]).unwrap();
            assert_damaged(&said(), &file, Some(&older));
        }
        fs::remove_file(&file).unwrap();
        if name == "manifest.json" {
            assert!(said().contains("it is missing"), "{}", said());
        }
        assert_damaged(&said(), &file, Some(&older));
        fs::create_dir(&file).unwrap();
        assert_damaged(&said(), &file, Some(&older));
        fs::remove_dir(&file).unwrap();
        fs::write(&file, &whole).unwrap();
        assert_eq!(read(folder.path(), &job).unwrap(), keeper.checkpoints[1], "{name} is whole again");
    }
    // As a service that copies folders may make of a link.
    fs::remove_dir_all(&newest).unwrap();
    fs::write(&newest, "step-00000012").unwrap();
    let said = read(folder.path(), &job).unwrap_err().to_string();
    assert_damaged(&said, &newest.join("manifest.json"), Some(&older));
}

#[test]
fn a_checkpoint_that_is_damaged_too_is_not_recommended() {
    let (folder, job, keeper) = whole_kit();
    let newest = folder.path().join("checkpoints/step-00000012");
    let older = folder.path().join("checkpoints/step-00000006");
    fs::write(newest.join("manifest.json"), "{").unwrap();
    let said = || read(folder.path(), &job).unwrap_err().to_string();
    assert_damaged(&said(), &newest.join("manifest.json"), Some(&older));
    assert_eq!(read(&older, &job).unwrap(), keeper.checkpoints[0], "and can be named");
    fs::write(older.join("rank-2.safetensors"), "").unwrap();
    assert_damaged(&said(), &newest.join("manifest.json"), None);
}

/// The row goes on from the checkpoint before, or begins again, and the user is told.
#[test]
fn a_comparison_says_which_checkpoint_is_damaged_and_ends_as_it_would_have() {
    let folder = tempfile::tempdir().unwrap();
    let compare = |arguments: &[&str]| {
        let output = trainer(folder.path()).arg("compare").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stderr).unwrap()
    };
    let settings = ["--steps", "12", "--checkpoint-every", "4", "--eval-every", "0", "--out", "all"];
    compare(&[&["--codec", "topk"][..], &settings].concat());
    let run = folder.path().join("all/topk-density-0.01-seed-1");
    let hash = || {
        let summary = fs::read_to_string(run.join("summary.json")).unwrap();
        serde_json::from_str::<serde_json::Value>(&summary).unwrap()["params_hash"].clone()
    };
    let whole = hash();
    let damage = |step: &str| {
        fs::remove_file(run.join("summary.json")).unwrap();
        fs::write(run.join("checkpoints").join(step).join("rank-1.safetensors"), "").unwrap();
    };
    damage("step-00000012");
    let said = compare(&["--resume", "all"]);
    assert!(
        said.contains("rank-1.safetensors: damaged: ") && said.contains("continuing from step 8"),
        "{said}"
    );
    assert_eq!(hash(), whole);
    damage("step-00000012");
    fs::write(run.join("checkpoints/step-00000008/manifest.json"), "").unwrap();
    let said = compare(&["--resume", "all"]);
    assert!(said.contains("damaged: ") && said.contains("starting this run again"), "{said}");
    assert_eq!(hash(), whole);
}

#[test]
fn what_belongs_to_another_run_is_refused() {
    let (folder, job, _) = short_run();
    let other = digits_job("none", 9, |settings| settings.hidden = Some(vec![9]));
    let error = read(folder.path(), &other).unwrap_err().to_string();
    assert!(error.contains("a model of layout"), "{error}");
    let manifest = folder.path().join("checkpoints/step-00000012/manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replace("\"version\": 1", "\"version\": 2")).unwrap();
    let error = read(folder.path(), &job).unwrap_err().to_string();
    assert!(error.contains("checksum is wrong") && error.contains("version 2 instead of"), "{error}");
    let empty = tempfile::tempdir().unwrap();
    let error = read(empty.path(), &job).unwrap_err().to_string();
    assert!(error.ends_with("no checkpoint in this folder"), "{error}");
    assert!(read(&empty.path().join("nowhere"), &job).is_err());
}

#[test]
fn a_checkpoint_that_cannot_be_written_leaves_the_last_good_one() {
    let (folder, job, keeper) = short_run();
    // In the way of the draft lies a file that is no folder, as when the disk refuses.
    let store = folder.path().join("checkpoints");
    let spare = folder.path().join("spare");
    fs::rename(&store, &spare).unwrap();
    fs::write(&store, "").unwrap();
    let error = Store::of_run(folder.path()).write(&keeper.checkpoints[2], &job.layout).unwrap_err();
    assert!(error.to_string().contains("checkpoints"), "{error}");
    fs::remove_file(&store).unwrap();
    fs::rename(&spare, &store).unwrap();
    assert_eq!(read(folder.path(), &job).unwrap(), keeper.checkpoints[1]);
}

/// Files of more than 64 KiB cannot be written: what a full disk looks like to a program.
#[cfg(unix)]
#[test]
fn a_full_disk_ends_the_run_with_a_clear_error_and_the_last_good_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let interrupted = trainer(folder)
        .args(RUN)
        .args(["--checkpoint-every", "5"])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    let mut child = interrupted.unwrap();
    wait_for("a checkpoint", || !complete(folder).is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    let before = complete(folder);
    let command =
        format!("trap '' XFSZ; ulimit -f 64; exec '{}' train --resume run", env!("CARGO_BIN_EXE_trainer"));
    let output = Command::new("bash").args(["-c", &command]).current_dir(folder).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.contains("checkpoint not written") && last.contains("File too large"), "{said}");
    assert_eq!(checkpoints(folder), before, "nothing is lost and no draft is left");
    assert_eq!(hash_of(&resume(folder)), undisturbed());
}

#[test]
fn resume_takes_no_other_option_and_a_finished_run_has_nothing_to_resume() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let refused = trainer(folder).args(["train", "--resume", "run", "--seed", "2"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let missing = trainer(folder).args(["train", "--resume", "run"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(2));
    assert_eq!(String::from_utf8(missing.stderr).unwrap().lines().count(), 1);
    trainer(folder).args(["train", "--steps", "3", "--out", "run"]).output().unwrap();
    let done = resume(folder);
    assert_eq!(done.status.code(), Some(2));
    assert_eq!(
        String::from_utf8(done.stderr).unwrap(),
        "trainer: run: all 3 steps are done; for more, give --epochs or --steps too\n"
    );
}
