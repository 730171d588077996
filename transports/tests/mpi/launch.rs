//! Starts jobs and judges how they end.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{env, thread};

/// What a rank is told: what to do, and where to leave its process number.
pub(crate) const CASE: &str = "GRADWIRE_MPI_CASE";
pub(crate) const FOLDER: &str = "GRADWIRE_MPI_FOLDER";

/// How long a job may take before it is given up, and how long a fault may take to end it: the patience of
/// the ranks, the launcher's own second or two, and a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
const FAULT_LIMIT: Duration = Duration::from_secs(20);

/// Where what a job writes is kept, in its folder, to be shown when it does not end as it should. No pipe:
/// whoever outlived the job would keep it open.
const OUTPUT: &str = "output";

/// One job at a time: each has more ranks than small machines have cores.
static TURN: Mutex<()> = Mutex::new(());

#[derive(Clone, Copy)]
pub(crate) struct Signal(&'static str);

impl Signal {
    pub(crate) const KILL: Self = Self("KILL");
    pub(crate) const INTERRUPT: Self = Self("INT");
    pub(crate) const STOP: Self = Self("STOP");

    fn send(self, process: u32) {
        let sent = Command::new("kill").args(["-s", self.0, &process.to_string()]).status().unwrap();
        assert!(sent.success(), "no process {process}");
    }
}

/// Who gets the signal once the job runs.
enum Target {
    Rank(usize),
    Launcher,
}

pub(crate) struct Job {
    case: String,
    world: usize,
    limit: Duration,
    signal: Option<(Signal, Target)>,
}

impl Job {
    pub(crate) fn new(case: &str, world: usize) -> Self {
        Self { case: case.to_owned(), world, limit: LIMIT, signal: None }
    }

    pub(crate) fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    pub(crate) fn with_signal(self, signal: Signal, rank: usize) -> Self {
        Self { signal: Some((signal, Target::Rank(rank))), ..self }
    }

    pub(crate) fn with_signal_to_launcher(self, signal: Signal) -> Self {
        Self { signal: Some((signal, Target::Launcher)), ..self }
    }

    pub(crate) fn must_succeed(&self) {
        if let Some(end) = self.run() {
            assert_eq!(end.code, Some(0), "{self}: {end}");
        }
    }

    pub(crate) fn must_fail_with(&self, code: u8) {
        if let Some(end) = self.run() {
            assert_eq!(end.code, Some(i32::from(code)), "{self}: {end}");
            assert!(end.after_fault < FAULT_LIMIT, "{self}: {end}");
        }
    }

    pub(crate) fn must_fail(&self) {
        if let Some(end) = self.run() {
            assert_ne!(end.code, Some(0), "{self}: {end}");
            assert!(end.after_fault < FAULT_LIMIT, "{self}: {end}");
        }
    }

    /// How the job ended; `None` without a launcher.
    fn run(&self) -> Option<End> {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(launcher) = Launcher::find() else {
            eprintln!("SKIPPED, NO mpirun: {self}");
            return None;
        };
        let folder = Scratch::new();
        let mut child = launcher.start(self, &folder.0);
        let mut fault = None;
        if let Some((signal, target)) = &self.signal {
            let ranks = folder.wait_for_ranks(self.world);
            signal.send(match target {
                Target::Rank(rank) => ranks[*rank],
                Target::Launcher => child.id(),
            });
            fault = Some(Instant::now());
        }
        let started = Instant::now();
        let status = wait(&mut child, self.limit);
        let after_fault = fault.or_else(|| folder.fault_time()).unwrap_or(started).elapsed();
        folder.assert_no_orphans(self);
        let Some(status) = status else {
            panic!("{self}: hung, given up after {:?}{}", self.limit, folder.said())
        };
        eprintln!("{self}: {status} after {:.1} s", after_fault.as_secs_f64());
        Some(End { code: status.code(), status, after_fault, said: folder.said() })
    }
}

impl std::fmt::Display for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} with {} ranks", self.case, self.world)?;
        match &self.signal {
            Some((signal, Target::Rank(rank))) => write!(f, ", SIG{} to rank {rank}", signal.0),
            Some((signal, Target::Launcher)) => write!(f, ", SIG{} to the launcher", signal.0),
            None => Ok(()),
        }
    }
}

struct End {
    code: Option<i32>,
    status: ExitStatus,
    /// From the fault, or from the start.
    after_fault: Duration,
    /// What launcher and ranks wrote.
    said: String,
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} after {:.1} s{}", self.status, self.after_fault.as_secs_f64(), self.said)
    }
}

struct Launcher {
    program: String,
    is_open_mpi: bool,
}

impl Launcher {
    fn find() -> Option<Self> {
        let program = env::var("GRADWIRE_MPIRUN").unwrap_or_else(|_| "mpirun".to_owned());
        let version = Command::new(&program).arg("--version").output().ok()?;
        let is_open_mpi = String::from_utf8_lossy(&version.stdout).contains("Open MPI");
        Some(Self { program, is_open_mpi })
    }

    fn start(&self, job: &Job, folder: &Path) -> Child {
        let mut command = Command::new(&self.program);
        if self.is_open_mpi {
            command.args(["--allow-run-as-root", "--oversubscribe"]);
        }
        command.args(["-n", &job.world.to_string()]);
        command.arg(env::current_exe().unwrap()).args(["--exact", "rank", "--nocapture", "--test-threads=1"]);
        let output = File::create(folder.join(OUTPUT)).unwrap();
        command.stdin(Stdio::null()).stderr(output.try_clone().unwrap()).stdout(output);
        command.env(CASE, &job.case).env(FOLDER, folder);
        command.spawn().unwrap()
    }
}

fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let started = Instant::now();
    while started.elapsed() < limit {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// A folder in which ranks leave their process numbers, and the time at which they begin to fail.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let unique = Instant::now().elapsed().as_nanos() + u128::from(std::process::id());
        let name = format!("gradwire-mpi-{unique}-{:?}", thread::current().id()).replace(['(', ')'], "");
        let path = env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn wait_for_ranks(&self, world: usize) -> Vec<u32> {
        let started = Instant::now();
        loop {
            let ranks: Vec<u32> = (0..world).filter_map(|rank| self.process(rank)).collect();
            if ranks.len() == world {
                return ranks;
            }
            assert!(started.elapsed() < LIMIT, "the ranks did not come up{}", self.said());
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn process(&self, rank: usize) -> Option<u32> {
        fs::read_to_string(self.0.join(rank.to_string())).ok()?.parse().ok()
    }

    /// What launcher and ranks wrote, each line marked.
    fn said(&self) -> String {
        let output = fs::read(self.0.join(OUTPUT)).unwrap_or_default();
        String::from_utf8_lossy(&output).lines().map(|line| format!("\n  | {line}")).collect()
    }

    fn fault_time(&self) -> Option<Instant> {
        let written = fs::metadata(self.0.join("fault")).ok()?.modified().ok()?;
        Instant::now().checked_sub(written.elapsed().ok()?)
    }

    /// Ranks have a moment to die after their launcher. Those that do not are killed, so that they harm no
    /// other test.
    fn assert_no_orphans(&self, job: &Job) {
        let processes: Vec<u32> = (0..job.world).filter_map(|rank| self.process(rank)).collect();
        let alive = || processes.iter().copied().filter(|process| is_alive(*process)).collect::<Vec<_>>();
        let started = Instant::now();
        while !alive().is_empty() && started.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(20));
        }
        let orphans = alive();
        orphans.iter().for_each(|process| Signal::KILL.send(*process));
        assert!(orphans.is_empty(), "{job}: left {orphans:?} behind");
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Whether it runs, as this program: numbers are given again.
fn is_alive(process: u32) -> bool {
    let own = env::current_exe().unwrap();
    let command = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    command.split(|byte| *byte == 0).next() == Some(own.as_os_str().as_encoded_bytes())
}
