//! Time as machines without a clock count it: nanoseconds since a moment in the life of this process.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::tag::Deadline;

/// The moment from which this process counts time.
fn origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(Instant::now)
}

/// A moment in the time that machines count.
pub(crate) fn since_origin(at: Instant) -> u64 {
    u64::try_from(at.saturating_duration_since(origin()).as_nanos()).unwrap_or(u64::MAX - 1)
}

/// The time now.
#[must_use]
pub fn now() -> u64 {
    since_origin(Instant::now())
}

/// A moment in that time; [`u64::MAX`] is never.
#[must_use]
pub fn nanos(deadline: Deadline) -> u64 {
    deadline.instant().map_or(u64::MAX, since_origin)
}

pub(crate) fn at(nanos: u64) -> Deadline {
    if nanos == u64::MAX { Deadline::NEVER } else { Deadline::at(origin() + Duration::from_nanos(nanos)) }
}
