//! Training under `mpirun`, compared with training in threads. `GRADWIRE_MPIRUN` names another launcher;
//! without one everything here is skipped, loudly.

#[path = "mpi/compare.rs"]
mod compare;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// For a whole job, on a busy machine.
const LIMIT_SECONDS: &str = "180";
/// For a job that cannot begin.
const FAILURE_LIMIT: Duration = Duration::from_secs(20);

const TASK: [&str; 8] = ["--steps", "12", "--eval-every", "5", "--hash-every", "3", "--seed", "7"];

fn launcher() -> String {
    std::env::var("GRADWIRE_MPIRUN").unwrap_or_else(|_| "mpirun".to_owned())
}

fn is_open_mpi() -> bool {
    let version = Command::new(launcher()).arg("--version").output().unwrap();
    text(&version.stdout).contains("Open MPI")
}

/// A job of `world` processes, behind `before`; `None` without a launcher.
fn job(world: usize, folder: &Path, before: &[&str], arguments: &[&str]) -> Option<Command> {
    let launcher = launcher();
    let Ok(version) = Command::new(&launcher).arg("--version").output() else {
        eprintln!("SKIPPED, NO mpirun: {arguments:?}");
        return None;
    };
    let world = world.to_string();
    let mut words = before.iter().copied().chain([launcher.as_str(), "-n", &world]);
    let mut command = Command::new(words.next()?);
    command.args(words);
    if text(&version.stdout).contains("Open MPI") {
        command.args(["--allow-run-as-root", "--oversubscribe"]);
    }
    command.arg(env!("CARGO_BIN_EXE_trainer")).args(arguments).current_dir(folder);
    Some(command)
}

/// The trainer in `world` processes, to its end; `None` without a launcher.
fn mpirun(world: usize, folder: &Path, arguments: &[&str]) -> Option<Output> {
    let mut command = job(world, folder, &["timeout", "-k", "3", LIMIT_SECONDS], arguments)?;
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
    serde_json::from_str(&fs::read_to_string(folder.join("summary.json")).unwrap()).unwrap()
}

/// What a run says of its steps, but for the times.
fn steps(folder: &Path) -> Vec<Value> {
    let lines = fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let mut steps: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for step in &mut steps {
        let step = step.as_object_mut().unwrap();
        let times = ["compute_ns", "encode_ns", "exchange_ns", "decode_ns"];
        // Envelopes differ between transports.
        let bytes = ["bytes_up", "bytes_down", "wire_ratio"];
        step.retain(|key, _| !times.contains(&key.as_str()) && !bytes.contains(&key.as_str()));
    }
    steps
}

/// Runs the task in processes and in threads and compares all that both say of it; false without a launcher.
fn trains_alike(world: usize, codec: &str, settings: &[&str]) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let arguments = train(codec, settings, "processes");
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let Some(output) = mpirun(world, folder.path(), &arguments) else { return false };
    assert!(output.status.success(), "{codec} {settings:?}: {}", text(&output.stderr));
    let told = text(&output.stdout);
    assert_eq!(told.matches("parameters: ").count(), 1, "one process prints: {told}");
    let mut arguments = train(codec, settings, "threads");
    arguments.extend(["--workers".to_owned(), world.to_string()]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    let threads = command.args(&arguments).current_dir(folder.path()).output().unwrap();
    assert!(threads.status.success(), "{}", text(&threads.stderr));
    let [here, there] = ["threads", "processes"].map(|run| folder.path().join(run));
    for key in ["params_hash", "accuracy", "notes"] {
        assert_eq!(summary(&here)[key], summary(&there)[key], "{codec} {settings:?} on {world}");
    }
    assert_eq!(steps(&here), steps(&there), "{codec} {settings:?} on {world}");
    assert!(summary(&there)["bytes_up"].as_u64() > Some(0));
    true
}

#[test]
fn processes_train_as_threads_do_bit_by_bit() {
    for (world, codec, settings) in [
        (4, "topk:density=0.02,values=q8", &[][..]),
        (4, "none", &["--exchange", "all-reduce", "--wire", "bf16"]),
        (4, "none", &["--exchange", "tree"]),
        (4, "none", &["--exchange", "owners", "--wire", "bf16"]),
        (4, "dpsgd", &["--topology", "torus"]),
        (4, "powergossip:rank=2,iterations=2", &["--topology", "exponential"]),
        (4, "choco:density=1,values=sign,diffusion=0.45,dense_1d", &[]),
        (2, "randomk:density=0.1", &[]),
        (2, "qsgd:bits=4", &["--exchange", "server"]),
    ] {
        if !trains_alike(world, codec, settings) {
            return;
        }
    }
}

/// Three ranks are neither two nor a power of two, so that rings and trees have an end that differs.
#[test]
fn processes_take_every_other_way_to_a_mean_as_threads_do() {
    for (world, codec, settings) in [
        (3, "topk:density=0.03", &["--exchange", "sparse"][..]),
        (2, "sidco:density=0.05,unit=tensor", &["--exchange", "sparse"]),
        (3, "randomk:density=0.1", &["--exchange", "tree"]),
        (3, "maxnorm:bits=4", &[]),
        (2, "maxnorm:bits=8", &["--exchange", "tree"]),
        (3, "maxnorm:bits=4+8", &[]),
        (3, "maxnorm:bits=4,density=0.1", &[]),
        (3, "maxnorm:bits=4,rounding=nearest", &[]),
        (3, "randomk:density=0.1,block=run", &[]),
        (3, "randomk:density=0.1,block=tile", &[]),
        (3, "powersgd:rank=2,start=3", &[]),
        (3, "sharedk:density=0.01", &[]),
        (3, "sharedk:density=0.01,by=leader", &[]),
        (3, "sharedk:density=0.01,lowpass=0.1", &[]),
        (3, "sharedk:density=0.01,by=leader,feedback=ef21", &[]),
        (3, "sketch:density=0.02", &[]),
        (3, "sketch:density=0.02,error=workers", &[]),
        (3, "sketch:density=0.02,moments=amsgrad", &[]),
        (2, "powersgd:rank=1", &["--exchange", "tree", "--wire", "bf16"]),
        (3, "dpsgd", &["--topology", "ring"]),
        (3, "dpsgd", &["--topology", "complete"]),
    ] {
        if !trains_alike(world, codec, &[settings, &["--batch", "120"]].concat()) {
            return;
        }
    }
}

#[test]
fn processes_overlap_as_threads_do() {
    for (codec, settings) in [
        ("topk:density=0.02", &["--delayed"][..]),
        ("powersgd:rank=2", &["--delayed"]),
        ("topk:density=0.05,unit=tensor", &["--pipeline", "3"]),
        ("qsgd:bits=4,unit=tensor", &["--pipeline", "100", "--delayed"]),
        ("topk:density=0.05,unit=tensor", &["--pipeline", "3", "--exchange", "sparse"]),
        ("powersgd:rank=2,unit=tensor", &["--pipeline", "3"]),
        ("maxnorm:bits=4,unit=tensor", &["--pipeline", "100", "--delayed"]),
    ] {
        if !trains_alike(2, codec, settings) {
            return;
        }
    }
}

/// What decides is agreed between processes, and is in the log beside what was decided.
#[test]
fn processes_decide_densities_as_threads_do() {
    let gravac = "gravac:min=2,max=100,eps=0.8,omega=0.05,window=3,policy=geometric,clock=none";
    for (world, codec, adapt) in [
        (3, "topk", gravac),
        (2, "redsync", gravac),
        (3, "randomk", "gravac:min=2,max=100,eps=0.4,window=3,clock=none"),
        (2, "dgc", "accordion:low=0.2,high=0.05,window=1"),
        (2, "topk", "steps:0=0.1,5=0.01"),
        (2, "topk:unit=tensor", "accordion:low=0.2,high=0.05,window=1"),
        (3, "powersgd", "accordion:low=5,high=1,eta=10000,window=1"),
        (3, "topk", "loss:inf=0.3,2=0.05,1=0.01"),
    ] {
        if !trains_alike(world, codec, &["--adapt", adapt, "--batch", "480"]) {
            return;
        }
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

// --- checkpoints ------------------------------------------

/// A job in the background; what is left of it is killed at the end.
struct Job(Child);

impl Job {
    fn start(world: usize, folder: &Path, arguments: &[&str]) -> Option<Self> {
        Self::start_by(&[], world, folder, arguments)
    }

    /// As `start`, behind other words, which must become the launcher.
    fn start_by(before: &[&str], world: usize, folder: &Path, arguments: &[&str]) -> Option<Self> {
        let mut command = job(world, folder, before, arguments)?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(folder.join("said")).unwrap());
        Some(Self(command.spawn().unwrap()))
    }

    /// Ends launcher and processes as a power cut would: the processes first, so that no launcher tidies up.
    fn kill(&mut self) {
        let all = descendants(self.0.id());
        let numbers = all.iter().rev().map(u32::to_string);
        // Whoever has ended by itself is not there any more.
        let _ = Command::new("kill").arg("-KILL").args(numbers).stderr(Stdio::null()).status();
        self.0.wait().unwrap();
    }

    /// Sends a signal to the launcher, and waits for the end.
    fn signal(&mut self, name: &str) -> ExitStatus {
        assert!(Command::new("kill").args([name, &self.0.id().to_string()]).status().unwrap().success());
        self.0.wait().unwrap()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.kill();
        }
    }
}

/// A process and all that it has started.
fn descendants(process: u32) -> Vec<u32> {
    let mut all = vec![process];
    let mut at = 0;
    while let Some(process) = all.get(at) {
        let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        let children: Vec<u32> = children
            .flat_map(|text| text.split(' ').filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
            .collect();
        all.extend(children);
        at += 1;
    }
    all
}

fn wait_for(what: &str, is_there: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_there() {
        assert!(started.elapsed() < Duration::from_secs(120), "{what} in vain");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn lines(run: &Path) -> usize {
    fs::read_to_string(run.join("metrics.jsonl")).map_or(0, |text| text.lines().count())
}

/// Names in the folder of checkpoints.
fn checkpoints(run: &Path) -> Vec<String> {
    let entries = fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

const LONG: [&str; 6] = ["--steps", "40", "--eval-every", "0", "--seed", "5"];

/// The hash at the end of the same run in threads that nobody disturbs.
fn undisturbed(folder: &Path, world: usize, arguments: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    command.args(["train", "--out", "undisturbed", "--force", "--workers", &world.to_string()]);
    let output = command.args(LONG).args(arguments).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    summary(&folder.join("undisturbed"))["params_hash"].clone()
}

/// Goes on to the end, unless the run was faster than its killer.
fn finish(world: usize, folder: &Path, name: &str) {
    if folder.join("run/summary.json").exists() {
        return;
    }
    let output = mpirun(world, folder, &["train", "--resume", "run"]).unwrap();
    assert!(output.status.success(), "{name}: {}", text(&output.stderr));
}

#[test]
fn a_job_that_is_killed_at_any_step_ends_with_the_same_bits_whatever_it_remembers() {
    let cases = [
        ("none", &["--momentum", "0.9"][..]),
        ("topk:density=0.01", &[]),
        ("topk:density=0.01,values=q4", &["--schedule", "cosine", "--warmup", "5"]),
        (
            "topk:density=0.02,unit=tensor,dense_1d=true",
            &["--exchange", "server", "--downlink", "topk:density=0.05,values=q8"],
        ),
        ("threshold:value=0.01", &["--optimizer", "adamw"]),
        ("topk:density=0.02,values=q4", &["--optimizer", "adamw-updates", "--beta2", "0.95"]),
        ("efsign", &["--optimizer", "adamw", "--local-steps", "2", "--outer-momentum", "0.9"]),
        (
            "topk:density=0.05",
            &["--optimizer", "adamw", "--local-steps", "4", "--fragments", "2", "--delayed"],
        ),
        ("qsgd:bits=4", &["--momentum", "0.9"]),
        ("randomk:density=0.05", &["--schedule", "cosine", "--warmup", "5"]),
        ("maxnorm:bits=4", &["--momentum", "0.9"]),
        ("bf16:memory=ef", &[]),
        ("dgc:density=0.02", &["--schedule", "cosine", "--warmup", "5"]),
        ("powersgd:rank=2,start=3", &["--momentum", "0.9"]),
        ("dpsgd", &["--momentum", "0.9"]),
        ("topk:density=0.03", &["--exchange", "sparse"]),
        ("maxnorm:bits=4", &["--exchange", "tree"]),
        ("topk:density=0.02,unit=tensor", &["--delayed", "--pipeline", "3"]),
        ("powersgd:rank=1", &["--delayed"]),
    ];
    let mut cut = 0;
    for (number, (codec, settings)) in cases.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let arguments = [&["--codec", codec][..], settings].concat();
        let train = [&["train", "--out", "run", "--checkpoint-every", "2"][..], &LONG, &arguments].concat();
        let Some(mut job) = Job::start(2, folder, &train) else { return };
        // Another step for each codec.
        let steps = 3 + 7 * number % 11;
        wait_for("steps", || {
            lines(&folder.join("run")) >= steps && !checkpoints(&folder.join("run")).is_empty()
        });
        job.kill();
        cut += usize::from(!folder.join("run/summary.json").exists());
        finish(2, folder, codec);
        assert_eq!(
            summary(&folder.join("run"))["params_hash"],
            undisturbed(folder, 2, &arguments),
            "{codec}"
        );
        assert_eq!(lines(&folder.join("run")), 40, "{codec}");
    }
    assert!(cut > 0, "every run was faster than its killer");
}

#[test]
fn a_job_that_is_killed_while_it_writes_a_checkpoint_goes_on_from_the_one_before() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let arguments = ["--codec", "topk:density=0.01,values=q8", "--hidden", "256"];
    let run = folder.join("run");
    let train = [&["train", "--out", "run", "--checkpoint-every", "1"][..], &LONG, &arguments].concat();
    let Some(mut job) = Job::start(2, folder, &train) else { return };
    // The last one is left alone.
    for delay in [0, 1, 2, 4] {
        let before = checkpoints(&run);
        wait_for("a draft or a checkpoint", || {
            checkpoints(&run) != before || run.join("summary.json").exists()
        });
        std::thread::sleep(Duration::from_millis(delay));
        job.kill();
        if run.join("summary.json").exists() {
            break;
        }
        if checkpoints(&run).iter().all(|name| name.starts_with(".draft")) {
            // Killed in the first one: there is nothing to go on from yet, which is said.
            let refused = mpirun(2, folder, &["train", "--resume", "run"]).unwrap();
            assert!(text(&refused.stderr).contains("no checkpoint in this folder"));
            job = Job::start(2, folder, &[&train[..], &["--force"]].concat()).unwrap();
        } else {
            job = Job::start(2, folder, &["train", "--resume", "run"]).unwrap();
        }
    }
    let end = job.0.wait().unwrap();
    let said = fs::read_to_string(folder.join("said")).unwrap();
    assert!(end.success() || run.join("summary.json").exists(), "{said}");
    assert_eq!(summary(&run)["params_hash"], undisturbed(folder, 2, &arguments));
}

#[test]
fn a_checkpoint_goes_on_with_as_many_processes_as_it_has_workers_and_in_no_other_way() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let train = ["train", "--out", "run", "--steps", "3", "--checkpoint-every", "2"];
    let Some(output) = mpirun(2, folder, &train) else { return };
    assert!(output.status.success(), "{}", text(&output.stderr));
    fs::remove_file(folder.join("run/summary.json")).unwrap();
    let resume = ["train", "--resume", "run"];
    let words = "a checkpoint of 2 workers, started with 3; go on with: mpirun -n 2 trainer train --resume";
    refused(3, folder, &resume, 2, words);
    let alone =
        Command::new(env!("CARGO_BIN_EXE_trainer")).args(resume).current_dir(folder).output().unwrap();
    assert_eq!(alone.status.code(), Some(2));
    assert!(text(&alone.stderr).contains("start it as mpirun -n 2 trainer train"), "{}", text(&alone.stderr));
    let here = ["train", "--out", "here", "--steps", "3"];
    let output = Command::new(env!("CARGO_BIN_EXE_trainer")).args(here).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    refused(2, folder, &["train", "--resume", "here"], 2, "a run in one process; go on without mpirun");
}

/// What the launcher does with a signal of its own is its affair: Open MPI waits, sends SIGTERM, and waits
/// once more before it kills the processes; here five seconds instead of one, for a busy machine. MPICH's
/// passes the signal on and waits; whether it then ends with the code of the processes or with 0 is chance.
#[test]
fn a_job_whose_launcher_is_interrupted_has_a_checkpoint_of_its_last_step() {
    for signal in ["-INT", "-TERM"] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let run = folder.join("run");
        let train = ["train", "--out", "run", "--steps", "10000000", "--checkpoint-every", "0"];
        let Some(mut job) =
            Job::start_by(&["env", "OMPI_MCA_odls_base_sigkill_timeout=5"], 2, folder, &train)
        else {
            return;
        };
        wait_for("steps", || lines(&run) > 5);
        let end = job.signal(signal);
        assert!(!end.success() || !is_open_mpi());
        let said = fs::read_to_string(folder.join("said")).unwrap();
        let made = checkpoints(&run);
        let steps: usize = made.first().unwrap_or_else(|| panic!("{said}"))["step-".len()..].parse().unwrap();
        assert_eq!((made.len(), lines(&run)), (1, steps), "{said}");
    }
}

/// A job that must fail at once, with this code and these words, told once. MPICH's launcher does not end the
/// others when one process ends before MPI has started, so they may say it too.
fn refused(world: usize, folder: &Path, arguments: &[&str], code: i32, words: &str) {
    let started = Instant::now();
    let Some(output) = mpirun(world, folder, arguments) else { return };
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{told}");
    let most = if is_open_mpi() { 1 } else { world };
    assert!((1..=most).contains(&told.matches(words).count()), "{told}");
    assert!(started.elapsed() < FAILURE_LIMIT, "took {:?}", started.elapsed());
}

#[test]
fn what_is_wrong_on_all_ranks_is_told_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    refused(2, path, &["train", "--workers", "3"], 2, "workers = 3: expected 2, as started by mpirun");
    refused(2, path, &["codec", "list"], 2, "under mpirun only `train`, `compare` and `advise` work");
    refused(2, path, &["train", "--patience", "0"], 2, "patience = 0: expected at least 1");
}

/// What the launcher of another library says of itself, whichever this one is, and launchers of other things.
#[test]
fn a_launcher_that_the_library_does_not_know_is_refused() {
    let Some(_) = job(1, Path::new("."), &[], &[]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mpirun = if is_open_mpi() {
        ["PMI_RANK", "PMI_SIZE"]
    } else {
        ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"]
    };
    let launchers = [
        (mpirun, "this mpirun"),
        (["SLURM_PROCID", "SLURM_STEP_NUM_TASKS"], "srun --mpi=list"),
        (["FLUX_TASK_RANK", "FLUX_JOB_SIZE"], "flux run"),
    ];
    for ([rank, size], name) in launchers {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
        let output = command
            .args(["train", "--steps", "3", "--out", "run"])
            .envs([(rank, "0"), (size, "2")])
            .current_dir(folder.path())
            .output()
            .unwrap();
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains("2 processes were started, but the MPI library sees 1"), "{told}");
        assert!(told.contains(name), "{told}");
        assert!(!folder.path().join("run").exists());
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    let output =
        command.args(["train", "--steps", "3"]).env("PMIX_RANK", "1").current_dir(folder.path()).output();
    let told = text(&output.unwrap().stderr);
    assert!(told.contains("PMIX_RANK=1") && told.contains("mpirun -n N"), "{told}");
}

#[test]
fn an_error_on_one_rank_ends_the_job_with_its_code() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("full")).unwrap();
    fs::write(folder.path().join("full/file"), "").unwrap();
    // Only the first process makes a folder.
    refused(4, folder.path(), &["train", "--steps", "100000", "--out", "full"], 2, "full: not empty");
}

#[test]
fn advice_in_a_job_is_for_its_own_links() {
    let folder = tempfile::tempdir().unwrap();
    let asked =
        ["advise", "--params", "10k", "--compute-ms", "5", "--iters", "2", "--json", "--codec", "topk"];
    let Some(output) = mpirun(3, folder.path(), &asked) else { return };
    assert!(output.status.success(), "{}", text(&output.stderr));
    let told = text(&output.stdout);
    let cells: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(cells.len(), 1, "one process speaks, of one link: {told}");
    assert_eq!(
        (cells[0]["workers"].as_u64(), cells[0]["codecs"][0]["codec"].as_str()),
        (Some(3), Some("topk:density=0.01"))
    );
    assert!(cells[0]["gbps"].as_f64().unwrap() > 0.0, "{told}");
}
