//! Processes of the trainer, and what they say.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Long enough on any machine; nothing that works waits for it.
const LONG: Duration = Duration::from_secs(120);

/// A folder with the keys of a server and its workers, removed at the end.
pub(crate) struct Keys {
    pub(crate) folder: tempfile::TempDir,
    name: String,
}

impl Keys {
    /// Keys for `workers` ranks, the server included, made by `trainer keygen`, and the list of them.
    pub(crate) fn new(workers: usize) -> Self {
        Self::named(workers, "rank")
    }

    /// As [`new`](Self::new), in files with names that begin so.
    pub(crate) fn named(workers: usize, name: &str) -> Self {
        let keys = Self { folder: tempfile::tempdir().unwrap(), name: name.to_owned() };
        // Every second one as the file that `keygen` made.
        let mut peers = String::new();
        for rank in 0..workers {
            let made = trainer().arg("keygen").arg(keys.secret(rank)).output().unwrap();
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            if rank > 0 {
                let text = String::from_utf8(made.stdout).unwrap();
                let key = text.lines().find_map(|line| line.strip_prefix("public key: ")).unwrap();
                peers += &match rank % 2 {
                    0 => std::fs::read_to_string(keys.secret(rank).with_extension("pub")).unwrap(),
                    _ => format!("{rank} {}\n", key.split(' ').next().unwrap()),
                };
            }
        }
        std::fs::write(keys.peers(), peers).unwrap();
        keys
    }

    pub(crate) fn secret(&self, rank: usize) -> PathBuf {
        self.folder.path().join(format!("{}{rank}", self.name))
    }

    /// The folder of the server's run.
    pub(crate) fn run(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    pub(crate) fn peers(&self) -> PathBuf {
        self.folder.path().join("peers")
    }
}

/// The program, with signals as a shell in the foreground leaves them.
pub(crate) fn trainer() -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM,HUP", env!("CARGO_BIN_EXE_trainer")]);
    command
}

/// What a user gets who pastes a line into a shell.
pub(crate) fn pasted(name: &str, line: &str) -> Process {
    Process::start(name, Command::new("bash").args(["-c", &format!("exec {line}")]))
}

/// A process, and all that it has said so far.
pub(crate) struct Process {
    name: String,
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
}

impl Process {
    pub(crate) fn start(name: &str, command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let streams: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for stream in streams {
            let said = Arc::clone(&said);
            thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    said.lock().unwrap().push(line);
                }
            });
        }
        Self { name: name.to_owned(), child, said }
    }

    /// The first line that contains `part`, when it has been said.
    pub(crate) fn says(&mut self, part: &str) -> String {
        self.says_times(1, part)
    }

    /// The last of the first `times` lines that contain `part`, when it has been said.
    pub(crate) fn says_times(&mut self, times: usize, part: &str) -> String {
        let start = Instant::now();
        loop {
            let said = self.said.lock().unwrap();
            if let Some(line) = said.iter().filter(|line| line.contains(part)).nth(times - 1) {
                return line.clone();
            }
            drop(said);
            let all = || self.all();
            assert!(start.elapsed() < LONG, "{} did not say '{part}' {times} times:\n{}", self.name, all());
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn all(&self) -> String {
        self.said.lock().unwrap().join("\n")
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    /// Waits until the process has a handler for SIGTERM: before, the signal ends it at once.
    #[cfg(target_os = "linux")]
    pub(crate) fn heeds_signals(&self) {
        let start = Instant::now();
        loop {
            let status =
                std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
            // Signal n is bit n - 1; SIGTERM is 15.
            if caught & (1 << 14) != 0 {
                return;
            }
            assert!(start.elapsed() < LONG, "{} heeds no signals:\n{}", self.name, self.all());
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for a good end and returns the hash of the parameters.
    pub(crate) fn hash(mut self) -> String {
        let line = self.says("parameters: ");
        self.succeeds();
        line.split(": ").nth(1).unwrap().to_owned()
    }

    /// Waits for the end; it must be a good one.
    pub(crate) fn succeeds(&mut self) {
        let code = self.ends();
        assert_eq!(code, Some(0), "{} failed:\n{}", self.name, self.all());
    }

    /// Waits for the end and returns the exit code.
    pub(crate) fn ends(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < LONG, "{} does not end:\n{}", self.name, self.all());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- {}:\n{}", self.name, self.all());
        }
    }
}

/// Starts a server at a port of the system's choice, or at `endpoint`; returns where it listens.
pub(crate) fn serve(keys: &Keys, endpoint: Option<&str>, arguments: &[&str]) -> (Process, String) {
    let mut command = trainer();
    command.args(["serve", "--listen", endpoint.unwrap_or("tcp://127.0.0.1:*"), "--report-every", "1"]);
    command.arg("--key").arg(keys.secret(0)).arg("--peers").arg(keys.peers()).args(arguments);
    if !arguments.contains(&"--resume") {
        command.arg("--force").arg("--out").arg(keys.run());
    }
    let mut server = Process::start("server", &mut command);
    let line = server.says("listening at ");
    let endpoint = line.strip_prefix("listening at ").unwrap().split(',').next().unwrap().to_owned();
    (server, endpoint)
}

/// Starts a worker.
pub(crate) fn join(keys: &Keys, endpoint: &str, rank: usize, arguments: &[&str]) -> Process {
    rejoin(keys, endpoint, rank, &[&["--rank", &rank.to_string()], arguments].concat())
}

/// Starts a worker that knows its rank.
pub(crate) fn rejoin(keys: &Keys, endpoint: &str, rank: usize, arguments: &[&str]) -> Process {
    let mut command = trainer();
    command.args(["join", "--server", endpoint]);
    command.arg("--server-key").arg(keys.secret(0).with_extension("pub"));
    command.arg("--key").arg(keys.secret(rank)).args(arguments);
    Process::start(&format!("worker {rank}"), &mut command)
}
