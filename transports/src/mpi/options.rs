//! Settings of a job.

use std::time::Duration;

use super::envelope::ENVELOPE_BYTES;
use crate::inbox::InboxLimits;

/// Bounds, and how the library is started. The same at every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpiOptions {
    /// How much a rank stores for each sender, and how much waits at a rank for each receiver.
    pub limits: InboxLimits,
    /// The longest payload.
    pub max_message_bytes: usize,
    /// The longest single MPI message, at most what a C `int` counts; longer payloads travel in pieces of
    /// this length.
    pub piece_bytes: usize,
    /// How long a rank may leave another waiting before the job is ended.
    pub patience: Duration,
    /// Asks the library to use its ring for its own all-reduce, or an algorithm that moves as few bytes,
    /// unless the environment of the process says otherwise. For this it sets environment variables: no other
    /// thread may be inside C code that reads them, which is easiest before there is another thread.
    pub prefer_ring: bool,
}

impl Default for MpiOptions {
    /// 4096 messages and 1 GiB, any length in pieces of 1 GiB, five minutes, the library's own choice of
    /// algorithm.
    fn default() -> Self {
        Self {
            limits: InboxLimits { messages: 4096, bytes: 1 << 30 },
            max_message_bytes: isize::MAX as usize - ENVELOPE_BYTES,
            piece_bytes: 1 << 30,
            patience: Duration::from_secs(300),
            prefer_ring: false,
        }
    }
}
