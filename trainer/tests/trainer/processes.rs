//! What a process makes of its surroundings: signals, threads that cannot be made, launchers, folders that a
//! service manager starts it with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gradwire_trainer::checkpoint::Checkpoint;
use gradwire_trainer::config::Settings;
use gradwire_trainer::data::{Batch, Source};
use gradwire_trainer::model::{Model, ModelError, Parameters, Score};
use gradwire_trainer::record::Metrics;
use gradwire_trainer::run::{Control, Observer, RunError, run_with_models};

use crate::digits_job;

const LONG: Duration = Duration::from_secs(120);
/// A run that nobody waits for.
const ENDLESS: [&str; 9] =
    ["train", "--steps", "1000000", "--checkpoint-every", "1000000", "--eval-every", "0", "--out", "run"];

/// The program, with all signals as a shell in the foreground leaves them, but for one that is ignored.
fn trainer(folder: &Path, ignored: Option<&str>) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal=INT,TERM,HUP");
    command.args(ignored.map(|name| format!("--ignore-signal={name}")));
    command.arg(env!("CARGO_BIN_EXE_trainer")).current_dir(folder).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn steps(folder: &Path) -> usize {
    fs::read_to_string(folder.join("run/metrics.jsonl")).map_or(0, |text| text.lines().count())
}

fn wait_for_steps(folder: &Path, count: usize) {
    let started = Instant::now();
    while steps(folder) < count {
        assert!(started.elapsed() < LONG, "{count} steps in vain");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sends all of them with one program, so that they arrive within a moment.
fn send(signals: &[&str], id: u32) {
    let kills: Vec<String> = signals.iter().map(|name| format!("kill -{name} {id}")).collect();
    assert!(Command::new("bash").args(["-c", &kills.join("; ")]).status().unwrap().success());
}

fn words(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn checkpoints(run: &Path) -> usize {
    fs::read_dir(run.join("checkpoints")).map_or(0, Iterator::count)
}

// --- signals -----------------------------------------

#[test]
fn a_signal_that_was_ignored_at_the_start_stays_ignored() {
    for (ignored, other) in [("HUP", "TERM"), ("INT", "HUP"), ("TERM", "INT"), ("USR1", "USR2")] {
        let folder = tempfile::tempdir().unwrap();
        let child = trainer(folder.path(), Some(ignored)).args(ENDLESS).spawn().unwrap();
        wait_for_steps(folder.path(), 3);
        send(&[ignored; 3], child.id());
        wait_for_steps(folder.path(), steps(folder.path()) + 5);
        send(&[other], child.id());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", words(&output.stderr));
    }
}

#[test]
fn signals_of_one_event_count_once_and_the_first_is_acknowledged() {
    let events: [&[&str]; 11] = [
        &["TERM"],
        &["TERM", "TERM"],
        &["TERM", "HUP"],
        &["HUP", "TERM"],
        &["INT", "INT"],
        &["HUP", "HUP", "CONT"],
        &["INT", "TERM", "HUP"],
        &["USR1"],
        &["USR2", "TERM"],
        &["XCPU"],
        &["XCPU", "XCPU", "TERM"],
    ];
    for event in events {
        let folder = tempfile::tempdir().unwrap();
        let child = trainer(folder.path(), None).args(ENDLESS).spawn().unwrap();
        wait_for_steps(folder.path(), 2);
        send(event, child.id());
        let output = child.wait_with_output().unwrap();
        let said = words(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{event:?}: {said}");
        assert_eq!(said.matches("ends after this step; again: at once").count(), 1, "{event:?}: {said}");
        assert!(said.lines().last().unwrap().contains("interrupted after"), "{event:?}: {said}");
        assert_eq!(checkpoints(&folder.path().join("run")), 1, "{event:?}");
    }
}

#[test]
fn limits_of_the_system_end_a_run_in_order_with_what_to_do() {
    // In the shell's words: KiB of a file, seconds of CPU time.
    for (limit, code, said) in
        [("ulimit -f 40", 1, "metrics.jsonl: File too large"), ("ulimit -St 1", 130, "interrupted after")]
    {
        let folder = tempfile::tempdir().unwrap();
        let command = format!("{limit} && exec \"$0\" \"$@\"");
        let mut child = Command::new("bash");
        child.args(["-c", &command, env!("CARGO_BIN_EXE_trainer")]).args(["train", "--steps", "1000000"]);
        child.args(["--checkpoint-every", "5", "--eval-every", "0", "--hidden", "8", "--out", "run"]);
        child.current_dir(folder.path()).stdin(Stdio::null());
        let output = child.output().unwrap();
        let last = words(&output.stderr);
        let last = last.lines().last().unwrap();
        assert_eq!(output.status.code(), Some(code), "{limit}: {last}");
        assert!(last.contains(said) && last.contains("go on with: "), "{limit}: {last}");
        assert!(checkpoints(&folder.path().join("run")) > 0, "{limit}");
    }
}

/// A model that has the user ask for the end when it is evaluated for the so many-th time.
struct Impatient {
    inner: Box<dyn Model>,
    asks_at: usize,
    evaluated: usize,
    wish: Arc<AtomicBool>,
}

impl Model for Impatient {
    fn parameters(&self) -> &Parameters {
        self.inner.parameters()
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        self.inner.parameters_mut()
    }

    fn forward_backward(&mut self, batch: &Batch, grad: &mut [f32]) -> Result<f32, ModelError> {
        self.inner.forward_backward(batch, grad)
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<Score, ModelError> {
        self.evaluated += 1;
        if self.evaluated == self.asks_at {
            self.wish.store(true, Ordering::Relaxed);
        }
        self.inner.evaluate(batch)
    }
}

/// Counts what a run tells.
#[derive(Default)]
struct Told {
    /// For each step whether it was evaluated.
    evaluated: Vec<bool>,
    checkpoints: Vec<u64>,
}

impl Observer for Told {
    fn step(&mut self, metrics: &Metrics) -> Result<(), String> {
        self.evaluated.push(metrics.eval_loss.is_some());
        Ok(())
    }

    fn refused(&mut self, _: u64, _: &str) {}

    fn checkpoint(&mut self, checkpoint: &Checkpoint) -> Result<(), String> {
        self.checkpoints.push(checkpoint.steps);
        Ok(())
    }
}

/// Two steps with an evaluation after each and at the end, of a model that asks for the end in one of them.
fn interrupted(asks_at: usize, change: impl FnOnce(&mut Settings)) -> (Option<u64>, Told) {
    let wish = Arc::new(AtomicBool::new(false));
    let job = digits_job("none", 2, |settings| {
        (settings.eval_every, settings.checkpoint_every, settings.workers) = (Some(1), Some(2), Some(2));
        change(settings);
    });
    let mut told = Told::default();
    let control = Control { start: None, interrupt: Some(&wish) };
    let model = |rank: gradwire_transports::Rank| {
        let asks_at = if rank.0 == 0 { asks_at } else { usize::MAX };
        let inner = job.build_model()?;
        Ok(Box::new(Impatient { inner, asks_at, evaluated: 0, wish: Arc::clone(&wish) }) as Box<dyn Model>)
    };
    let steps = match run_with_models(&job, &model, control, &mut told) {
        Ok(_) => None,
        Err(RunError::Interrupted { steps }) => Some(steps),
        Err(other) => panic!("{other}"),
    };
    (steps, told)
}

#[test]
fn an_evaluation_ends_when_the_user_wants_the_end_and_the_step_before_it_is_kept() {
    // Each evaluation has many batches: the first one of the first evaluation asks.
    let (steps, told) = interrupted(1, |_| ());
    assert_eq!((steps, told.evaluated, told.checkpoints), (Some(1), vec![false], vec![1]));
    // A run of one worker, which evaluates alone.
    let (steps, told) = interrupted(1, |settings| settings.workers = Some(1));
    assert_eq!((steps, told.evaluated, told.checkpoints), (Some(1), vec![false], vec![1]));
    // A text is read by one worker while the others wait.
    let text = |settings: &mut Settings| {
        (settings.data, settings.batch) = (Some(Source::TinyShakespeare), Some(2));
    };
    let (steps, told) = interrupted(1, text);
    assert_eq!((steps, &told.evaluated[..1], told.checkpoints), (Some(2), &[false][..], vec![2]));
    // Under an early stop every evaluation counts, so it is finished.
    let (steps, told) = interrupted(1, |settings| settings.early_stop = Some(5));
    assert_eq!((steps, told.evaluated, told.checkpoints), (Some(2), vec![true, true], vec![2]));
}

#[test]
fn the_last_evaluation_ends_too_with_a_checkpoint_to_come_back_to() {
    // Also of a run that otherwise writes none.
    for checkpoint_every in [2, 0] {
        let (steps, told) = interrupted(1, |settings| {
            (settings.eval_every, settings.checkpoint_every) = (Some(0), Some(checkpoint_every));
        });
        assert_eq!((steps, told.evaluated, told.checkpoints), (Some(2), vec![false, false], vec![2]));
    }
}

// --- threads -----------------------------------------

/// The program with room for so many threads of its user, this one included.
#[cfg(target_os = "linux")]
fn with_threads(threads: usize, folder: &Path, arguments: &[&str]) -> Output {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    let program = if is_root { folder.join("trainer") } else { PathBuf::from(env!("CARGO_BIN_EXE_trainer")) };
    if is_root && !program.exists() {
        fs::copy(env!("CARGO_BIN_EXE_trainer"), &program).unwrap();
        fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
    }
    // The limit does not hold for root, and counts all processes of another user: there, any is too many.
    let threads = if is_root { threads } else { 1 };
    let guard = if is_root { "timeout -k 1 60" } else { "" };
    let limit = format!("ulimit -u {threads}; exec {guard} \"$@\"");
    let other_user = ["setpriv", "--reuid=61321", "--regid=61321", "--clear-groups"];
    let mut command = Command::new(if is_root { other_user[0] } else { "env" });
    command.args(if is_root { &other_user[1..] } else { &[] });
    command.args(["bash", "-c", &limit, "bash"]).arg(program).args(arguments);
    command.current_dir(folder).stdin(Stdio::null()).output().unwrap()
}

/// However many threads there are room for, a command succeeds or says in one line what is missing.
#[cfg(target_os = "linux")]
#[test]
fn threads_that_cannot_be_made_end_a_command_with_one_line() {
    let measured = ["advise", "--params", "4096", "--compute-ms", "1", "--codec", "topk", "--iters", "1"];
    let commands: [&[&str]; 4] = [
        &["train", "--steps", "3", "--workers", "6", "--batch", "48", "--out", "run", "--force"],
        &[
            "compare",
            "--codec",
            "none",
            "--steps",
            "2",
            "--workers",
            "6",
            "--batch",
            "48",
            "--out",
            "c",
            "--force",
        ],
        &[&measured[..], &["--side-by-side", "8"]].concat(),
        &["--out", "quick", "--force"],
    ];
    let folder = tempfile::tempdir().unwrap();
    for (number, arguments) in commands.into_iter().enumerate() {
        // With `timeout`, which is one more. The quick start would take long if it succeeded.
        let most = if number == 3 { 4 } else { 14 };
        let mut refused = 0;
        for threads in (2..=most).step_by(if number == 0 { 1 } else { 3 }) {
            let output = with_threads(threads, folder.path(), arguments);
            let said = words(&output.stderr);
            if output.status.success() {
                continue;
            }
            refused += 1;
            assert!(
                matches!(output.status.code(), Some(1 | 2)) && !said.contains("panicked"),
                "{threads} threads, {arguments:?}: {:?} {said}",
                output.status
            );
            let table = words(&output.stdout);
            assert!(said.contains("no thread for ") || table.contains("no thread for "), "{said}{table}");
            assert!(said.contains("ulimit -u") || table.contains("ulimit -u"), "{said}{table}");
        }
        assert!(refused > 0, "{arguments:?}: nothing was refused");
    }
}

// --- launchers ---------------------------------------

#[cfg(not(feature = "mpi"))]
#[test]
fn one_of_several_processes_that_cannot_work_together_is_refused_by_the_name_of_its_launcher() {
    let launchers: [(&[(&str, &str)], &str); 6] = [
        (&[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")], "mpirun"),
        (&[("PMI_RANK", "0"), ("PMI_SIZE", "2")], "mpirun"),
        (&[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "2")], "srun"),
        (&[("PMIX_RANK", "0"), ("PMIX_NAMESPACE", "job")], "PMIX_RANK"),
        (&[("FLUX_TASK_RANK", "0"), ("FLUX_JOB_SIZE", "2")], "flux run"),
        (&[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "here")], "torchrun"),
    ];
    let commands: [&[&str]; 5] = [
        &[],
        &["train", "--steps", "1"],
        &["compare", "--codec", "none", "--steps", "1"],
        &["advise", "--params", "100", "--compute-ms", "1"],
        &["codec", "list"],
    ];
    let folder = tempfile::tempdir().unwrap();
    for (variables, name) in launchers {
        for arguments in commands {
            let output = trainer(folder.path(), None)
                .args(arguments)
                .envs(variables.iter().copied())
                .output()
                .unwrap();
            let said = words(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{name} {arguments:?}: {said}");
            assert!(said.contains(name) && said.lines().count() == 1, "{name} {arguments:?}: {said}");
        }
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is written");
}

#[cfg(not(feature = "mpi"))]
#[test]
fn one_process_of_a_scheduler_and_a_run_that_is_to_be_local_work() {
    let folder = tempfile::tempdir().unwrap();
    let alone: [&[(&str, &str)]; 3] = [
        &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")],
        &[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1"), ("PMIX_RANK", "0")],
        &[("PMI_RANK", "0"), ("PMI_SIZE", "1")],
    ];
    let run = ["train", "--steps", "1", "--force", "--out", "run"];
    for variables in alone {
        let output = trainer(folder.path(), None).args(run).envs(variables.iter().copied()).output().unwrap();
        assert!(output.status.success(), "{variables:?}: {}", words(&output.stderr));
    }
    let of_two = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "2")];
    let output = trainer(folder.path(), None).args(run).args(["--transport", "local"]).envs(of_two).output();
    assert!(output.unwrap().status.success());
}

// --- one command that starts and resumes ---------------

const SMALL: [&str; 8] = ["--workers", "2", "--batch", "16", "--hidden", "8", "--eval-every", "0"];

fn resume_or_start(folder: &Path, own: &[&str]) -> Output {
    let mut command = trainer(folder, None);
    command.args(["train", "--resume-or-start", "run"]).args(SMALL).args(own);
    command.stdout(Stdio::piped()).output().unwrap()
}

fn hash(output: &Output) -> String {
    let text = words(&output.stdout);
    let line = text.lines().find(|line| line.starts_with("parameters: "));
    line.unwrap_or_else(|| panic!("{text}{}", words(&output.stderr))).to_owned()
}

#[test]
fn one_command_starts_a_run_and_resumes_it_until_it_is_done() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let own = ["--steps", "400", "--checkpoint-every", "1"];
    let undisturbed = {
        let elsewhere = tempfile::tempdir().unwrap();
        let output = resume_or_start(elsewhere.path(), &own);
        assert!(!words(&output.stdout).contains("Resuming"), "{output:?}");
        hash(&output)
    };
    // Killed before the first checkpoint, and after one.
    fs::create_dir(folder.join("run")).unwrap();
    fs::write(folder.join("run/config.toml"), "data = \"optdigits\"\n").unwrap();
    for _ in 0..2 {
        let mut child = trainer(folder, None);
        child.args(["train", "--resume-or-start", "run"]).args(SMALL).args(own);
        let mut child = child.stderr(Stdio::null()).spawn().unwrap();
        let before = steps(folder);
        wait_for_steps(folder, before + 3);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let output = resume_or_start(folder, &own);
    assert!(words(&output.stdout).starts_with("Resuming at step "), "{output:?}");
    assert_eq!(hash(&output), undisturbed);
    // A service manager may start it again when it is done.
    let output = resume_or_start(folder, &own);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(words(&output.stdout), "run: all steps are done\n");
}

#[test]
fn one_command_changes_no_run_of_other_settings_and_nothing_that_is_no_run() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert!(resume_or_start(folder, &["--steps", "4", "--lr", "0.1"]).status.success());
    let before = fs::read(folder.join("run/summary.json")).unwrap();
    let changes: [(&[&str], [&str; 2]); 4] = [
        (&["--steps", "4", "--lr", "0.2"], ["has lr = 0.1;", "says lr = 0.2:"]),
        (&["--steps", "5", "--lr", "0.1"], ["has steps = 4;", "says steps = 5:"]),
        (&["--steps", "4", "--lr", "0.1", "--seed", "9"], ["has seed = 1;", "says seed = 9:"]),
        (
            &["--steps", "4", "--lr", "0.1", "--codec", "none"],
            ["has codec = \"topk:density=0.01\"", "says codec = \"none\""],
        ),
    ];
    for (own, differences) in changes {
        let output = resume_or_start(folder, own);
        let said = words(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{own:?}: {said}");
        assert!(differences.iter().all(|part| said.contains(part)), "{own:?}: {said}");
    }
    assert_eq!(fs::read(folder.join("run/summary.json")).unwrap(), before);
    // Done, and without a checkpoint.
    fs::remove_dir_all(folder.join("run/checkpoints")).unwrap();
    let output = resume_or_start(folder, &["--steps", "4", "--lr", "0.1"]);
    assert_eq!(words(&output.stdout), "run: all steps are done\n");
    assert_eq!(resume_or_start(folder, &["--steps", "4", "--lr", "0.2"]).status.code(), Some(2));
    fs::remove_dir_all(folder.join("run")).unwrap();
    fs::create_dir(folder.join("run")).unwrap();
    fs::write(folder.join("run/thesis.tex"), "years of work").unwrap();
    let output = resume_or_start(folder, &["--steps", "4"]);
    assert!(output.status.code() == Some(2) && words(&output.stderr).contains("not empty"), "{output:?}");
}

/// A folder whose name a shell would take apart.
#[test]
fn the_line_that_says_how_to_go_on_can_be_pasted() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a run; it's $HOME", "caf\u{e9} \u{2192} (1)", "plain"] {
        let child = trainer(folder.path(), None)
            .args(["train", "--steps", "100000", "--hidden", "8", "--eval-every", "0", "--out", name])
            .spawn()
            .unwrap();
        let started = Instant::now();
        while !fs::read_to_string(folder.path().join(name).join("metrics.jsonl"))
            .is_ok_and(|text| text.len() > 1000)
        {
            assert!(started.elapsed() < LONG);
            std::thread::sleep(Duration::from_millis(2));
        }
        send(&["INT"], child.id());
        let said = words(&child.wait_with_output().unwrap().stderr);
        let line = said.lines().last().unwrap().split("go on with: ").nth(1).unwrap();
        let mut pasted = Command::new("bash");
        pasted.args(["-c", &format!("exec {line}")]).current_dir(folder.path());
        let mut pasted = pasted.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut first = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(pasted.stdout.take().unwrap()), &mut first)
            .unwrap();
        pasted.kill().unwrap();
        pasted.wait().unwrap();
        assert!(first.starts_with("Resuming at step "), "{line}: {first}");
    }
}

/// Runs a program as process 1 of a namespace in which somebody sends SIGTERM to it all the time.
#[cfg(target_os = "linux")]
fn as_first_process(folder: &Path, program: &[&str]) -> Output {
    let script = "(while sleep 0.2; do kill -TERM 1; done) & exec \"$@\"";
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "100", "env", "--default-signal=INT,TERM,HUP", "unshare", "--map-root-user"]);
    command.args(["--pid", "--fork", "--kill-child", "sh", "-c", script, "sh"]).args(program);
    command.current_dir(folder).output().unwrap()
}

/// The kernel keeps signals from the first process of a container that does not ask for them.
#[cfg(target_os = "linux")]
#[test]
fn the_first_process_of_a_container_ends_when_it_is_told_to() {
    let folder = tempfile::tempdir().unwrap();
    if !as_first_process(folder.path(), &["true"]).status.success() {
        println!("skipped: this kernel gives users no namespaces of their own");
        return;
    }
    fs::write(folder.path().join("gradient"), super::outputs::gradient()).unwrap();
    let bench = ["codec", "bench", "--codec", "topk", "--iters", "1000000000", "--input", "gradient"];
    for (command, is_in_order) in [(&bench[..], false), (&ENDLESS, true)] {
        let program = [&[env!("CARGO_BIN_EXE_trainer")], command].concat();
        let output = as_first_process(folder.path(), &program);
        let said = words(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{command:?}: {said}");
        assert_eq!(said.contains("ends after this step"), is_in_order, "{command:?}: {said}");
    }
}
