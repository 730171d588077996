//! Servers and workers, with their keys.

use std::path::PathBuf;

pub(crate) use crate::process::{Process, pasted, trainer};

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
