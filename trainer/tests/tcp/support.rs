//! The ranks of a run, and where they meet.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

pub(crate) use crate::process::{Process, pasted, trainer};

/// A folder with the run of rank 0 and a key, and the addresses of the ranks.
pub(crate) struct Scene {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) hosts: Vec<String>,
    /// How the ranks are told of each other, as `--hosts` or otherwise.
    told: Vec<String>,
}

impl Scene {
    /// So many ranks with a list of addresses, and without a key.
    pub(crate) fn new(world: usize) -> Self {
        // All are bound before one is free again, so that none is there twice.
        let bound: Vec<_> = (0..world).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let hosts: Vec<String> =
            bound.iter().map(|socket| socket.local_addr().unwrap().to_string()).collect();
        let told = vec!["--hosts".to_owned(), hosts.join(",")];
        Self { folder: tempfile::tempdir().unwrap(), hosts, told }
    }

    /// The same, but only the address of rank 0 is known.
    pub(crate) fn by_rendezvous(world: usize) -> Self {
        let mut scene = Self::new(world);
        let world = world.to_string();
        scene.told = ["--rendezvous", &scene.hosts[0], "--workers", &world].map(str::to_owned).to_vec();
        scene
    }

    /// The same with a key.
    pub(crate) fn sealed(mut self) -> Self {
        let key = self.key("run.key", "4");
        self.told.extend(["--key".to_owned(), key.display().to_string()]);
        self
    }

    /// A file with that key, for its owner alone.
    pub(crate) fn key(&self, name: &str, digit: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, digit.repeat(64) + "\n").unwrap();
        let only = Command::new("chmod").arg("600").arg(&path).status().unwrap();
        assert!(only.success());
        path
    }

    pub(crate) fn run(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// The command of a rank that trains with these arguments.
    pub(crate) fn command(&self, rank: usize, arguments: &[&str]) -> Command {
        let mut command = self.bare(rank, &["train", "--transport", "tcp"]);
        command.args(arguments);
        command
    }

    /// A command with the place of that rank.
    fn bare(&self, rank: usize, command: &[&str]) -> Command {
        let mut program = trainer();
        program.args(command).args(["--rank", &rank.to_string()]).args(&self.told);
        program.current_dir(self.folder.path());
        program
    }

    pub(crate) fn start(&self, rank: usize, arguments: &[&str]) -> Process {
        let own: &[&str] = if rank == 0 { &["--out", "run", "--force"] } else { &[] };
        Process::start(&format!("rank {rank}"), self.command(rank, arguments).args(own))
    }

    /// All ranks of the run.
    pub(crate) fn start_all(&self, arguments: &[&str]) -> Vec<Process> {
        (0..self.hosts.len()).map(|rank| self.start(rank, arguments)).collect()
    }

    /// Rank 0 continues.
    pub(crate) fn resume(&self) -> Process {
        self.resume_with(&[])
    }

    /// The same with other arguments.
    pub(crate) fn resume_with(&self, arguments: &[&str]) -> Process {
        let mut command = self.bare(0, &["train", "--resume", "run"]);
        Process::start("rank 0", command.args(arguments))
    }

    /// The hash at the end of the same run in threads that nobody disturbs.
    pub(crate) fn in_threads(&self, arguments: &[&str]) -> Value {
        let mut command = trainer();
        command.args(["train", "--out", "threads", "--force"]).current_dir(self.folder.path());
        let output = command.args(["--workers", &self.hosts.len().to_string()]).args(arguments).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        summary(&self.folder.path().join("threads"))["params_hash"].clone()
    }
}

/// `summary.json` of a run.
pub(crate) fn summary(run: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(run.join("summary.json")).unwrap()).unwrap()
}

/// How many steps a run has recorded.
pub(crate) fn steps(run: &Path) -> usize {
    std::fs::read_to_string(run.join("metrics.jsonl")).map_or(0, |text| text.lines().count())
}

/// Waits until the run has a checkpoint and so many steps.
pub(crate) fn wait_for_steps(run: &Path, count: usize) {
    let began = std::time::Instant::now();
    let is_there = || {
        let written = std::fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
        let mut names = written.map(|entry| entry.file_name().to_string_lossy().into_owned());
        steps(run) >= count && names.any(|name| name.starts_with("step-"))
    };
    while !is_there() {
        assert!(began.elapsed().as_secs() < 120, "no {count} steps");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}
