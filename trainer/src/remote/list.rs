//! The server's list of peers, read again when its file has changed.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gradwire_transports::zmq::{Roster, ZmqTransport};

/// Between two looks.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The content of the file, or why it cannot be read.
type Text = Result<String, String>;

/// The file, and its last content.
pub(super) struct List {
    path: PathBuf,
    /// The content that the transport was given.
    text: Text,
    /// At the last look.
    seen: Text,
    looked: Instant,
}

impl List {
    /// The present content of the file counts as read.
    pub(super) fn new(path: &Path) -> Self {
        let text = read(path);
        Self { path: path.to_path_buf(), seen: text.clone(), text, looked: Instant::now() }
    }

    /// Makes the transport apply the list when its file has changed. An invalid list changes nothing.
    pub(super) fn look(&mut self, transport: &mut ZmqTransport) {
        if self.looked.elapsed() < LOOK_AGAIN {
            return;
        }
        self.looked = Instant::now();
        let Some(text) = self.changed() else { return };
        let roster = text.and_then(|text| text.parse::<Roster>().map_err(|error| error.to_string()));
        let readmitted =
            roster.and_then(|roster| transport.readmit(roster).map_err(|error| error.to_string()));
        let path = self.path.display();
        match readmitted {
            Ok(()) => tracing::info!("{path}: read again"),
            Err(what) => tracing::warn!("{path}: {what}; the list stays as it was"),
        }
    }

    /// The new content of the file, once two reads have found the same, because its writer may be half way.
    fn changed(&mut self) -> Option<Text> {
        let before = std::mem::replace(&mut self.seen, read(&self.path));
        if self.seen != before || self.seen == self.text {
            return None;
        }
        self.text.clone_from(&self.seen);
        Some(self.text.clone())
    }
}

fn read(path: &Path) -> Text {
    std::fs::read_to_string(path).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_change_counts_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("peers");
        fs::write(&path, "1 a\n2 b\n").unwrap();
        let mut list = List::new(&path);
        assert_eq!(list.changed(), None);
        for half in ["", "1 a\n"] {
            fs::write(&path, half).unwrap();
            assert_eq!(list.changed(), None, "it may be half of a list");
        }
        fs::write(&path, "1 a\n2 c\n").unwrap();
        assert_eq!(list.changed(), None);
        assert_eq!(list.changed(), Some(Ok("1 a\n2 c\n".to_owned())));
        assert_eq!(list.changed(), None, "it was told");
        fs::remove_file(&path).unwrap();
        assert_eq!(list.changed(), None);
        fs::write(&path, "1 a\n2 c\n").unwrap();
        assert_eq!([(); 3].map(|()| list.changed()), [None, None, None], "it is what it was");
    }
}
