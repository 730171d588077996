//! The program in processes of its own, and what they say.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Long enough on any machine; nothing that works waits for it.
const LONG: Duration = Duration::from_secs(120);
/// For what a process has said before its end, and nobody has read.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// The program, with signals as a shell in the foreground leaves them.
pub(crate) fn trainer() -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM,HUP", env!("CARGO_BIN_EXE_trainer")]);
    command
}

/// What a user gets who pastes a line into a shell.
pub(crate) fn pasted(name: &str, line: &str) -> Process {
    let shell = ["--default-signal=INT,TERM,HUP", "bash", "-c"];
    Process::start(name, Command::new("env").args(shell).arg(format!("exec {line}")))
}

/// A process, and all that it has said so far.
pub(crate) struct Process {
    name: String,
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
    readers: Vec<JoinHandle<()>>,
}

impl Process {
    pub(crate) fn start(name: &str, command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let streams: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        let read = |stream| {
            let said = Arc::clone(&said);
            thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    said.lock().unwrap().push(line);
                }
            })
        };
        let readers = streams.into_iter().map(read).collect();
        Self { name: name.to_owned(), child, said, readers }
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

    /// Waits for the end, and for all that was said until then, and returns the exit code.
    pub(crate) fn ends(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                self.hear_out();
                return status.code();
            }
            assert!(start.elapsed() < LONG, "{} does not end:\n{}", self.name, self.all());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Another process that this one has started may keep its streams open.
    fn hear_out(&self) {
        let start = Instant::now();
        while self.readers.iter().any(|reader| !reader.is_finished()) && start.elapsed() < LAST_WORDS {
            thread::sleep(Duration::from_millis(1));
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
