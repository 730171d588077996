//! `manifest.json`: what belongs to a checkpoint, and how to know that it is whole.

use serde::{Deserialize, Serialize};

/// Marks the file as one of this program's.
pub(super) const FORMAT: &str = "gradwire checkpoint";
/// The version that is written.
pub(super) const VERSION: u32 = 1;

/// The versions of checkpoints that this build reads, ascending. It writes the last.
pub const VERSIONS: &[u32] = &[VERSION];

/// Sums over the steps done, which the summary of the run is made of. Whole numbers, which every reader of
/// JSON gives back as they were.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// Bytes of all frames of all workers.
    pub frame_bytes: u64,
    /// Time in forward and backward passes, of all workers together.
    pub compute_ns: u64,
    /// Time of the run.
    pub elapsed_ns: u64,
    /// Steps whose mean was refused.
    pub refused: u64,
    /// Steps whose mean was refused, up to the last one.
    pub refused_in_a_row: u64,
    /// Times that a worker died, and did not come back.
    pub departures: u64,
    /// Sum of the norms of the residuals of workers that died, less what they had when they came back, in
    /// billionths.
    pub lost_nanos: u64,
    /// The workers that are away now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub away: Vec<Away>,
}

/// A worker that died, and may come back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Away {
    /// Its rank.
    pub rank: u32,
    /// Norm of its residual, in billionths, as it last reported.
    pub lost_nanos: u64,
}

/// One worker of a server's run. Its checkpoint holds its residual and no replica, because the server has
/// that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Single {
    /// Its rank.
    pub rank: usize,
    /// Hash of the parameters that all replicas had. If the server has others after the same step, the run
    /// took another course since, or is another one.
    pub params_hash: String,
}

/// One file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) crc32: u32,
}

impl Entry {
    pub(super) fn of(name: &str, content: &[u8]) -> Self {
        Self { name: name.to_owned(), bytes: content.len() as u64, crc32: crc32fast::hash(content) }
    }

    /// The fault in the content, if there is one.
    pub(super) fn fault(&self, content: &[u8]) -> Option<String> {
        let found = Self::of(&self.name, content);
        if found.bytes != self.bytes {
            return Some(format!("{} bytes instead of {}", found.bytes, self.bytes));
        }
        let wrong = found.crc32 != self.crc32;
        wrong.then(|| format!("CRC-32 {:08x} instead of {:08x}", found.crc32, self.crc32))
    }
}

/// The whole file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    pub(super) format: String,
    pub(super) version: u32,
    pub(super) steps: u64,
    /// Ranks whose memories are in it.
    pub(super) workers: usize,
    /// The worker whose memory it is, if it is that of one worker only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) worker: Option<Single>,
    /// Of the layout, as frames carry it.
    pub(super) fingerprint: String,
    pub(super) totals: Totals,
    pub(super) files: Vec<Entry>,
    /// The text of `config.toml`.
    pub(super) config: String,
    /// Of the manifest with this field 0.
    pub(super) crc32: u32,
}

impl Manifest {
    /// With its own checksum.
    pub(super) fn sealed(mut self) -> Self {
        self.crc32 = self.checksum();
        self
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.crc32 == self.checksum()
    }

    fn checksum(&self) -> u32 {
        let open = Self { crc32: 0, ..self.clone() };
        crc32fast::hash(serde_json::to_string(&open).unwrap_or_default().as_bytes())
    }
}
