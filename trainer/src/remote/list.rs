//! The server's list of peers, read again when its file has changed.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gradwire_transports::zmq::{Roster, ZmqTransport};

/// Between two looks.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Which file it is, and what was in it.
pub(super) struct List {
    path: PathBuf,
    text: Result<String, String>,
    looked: Instant,
}

impl List {
    /// What is in the file now counts as read.
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_path_buf(), text: read(path), looked: Instant::now() }
    }

    /// Has the transport go by the list when its file has changed. One that makes no sense changes nothing.
    pub(super) fn look(&mut self, transport: &mut ZmqTransport) {
        if self.looked.elapsed() < LOOK_AGAIN {
            return;
        }
        self.looked = Instant::now();
        let text = read(&self.path);
        if text == self.text {
            return;
        }
        let roster = text.clone().and_then(|text| text.parse::<Roster>().map_err(|error| error.to_string()));
        let readmitted =
            roster.and_then(|roster| transport.readmit(roster).map_err(|error| error.to_string()));
        let path = self.path.display();
        match readmitted {
            Ok(()) => eprintln!("trainer: {path}: read again"),
            Err(what) => eprintln!("trainer: {path}: {what}; the list stays as it was"),
        }
        self.text = text;
    }
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| error.to_string())
}
