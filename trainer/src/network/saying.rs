//! Lines about what is waited for.

use std::fmt::Display;
use std::time::{Duration, Instant};

use gradwire_transports::Growing;
use tracing::info;

/// The time until the first line.
const SAID_AFTER: Duration = Duration::from_secs(2);

/// Says what is waited for: after two seconds, then at growing intervals.
pub(crate) struct Saying {
    began: Instant,
    growing: Growing,
}

impl Saying {
    /// The wait begins now.
    pub(crate) fn new() -> Self {
        let began = Instant::now();
        Self { began, growing: Growing::new(SAID_AFTER, began) }
    }

    /// Says it, if it is time.
    pub(crate) fn waits<T: Display>(&mut self, what: impl FnOnce() -> T) {
        if self.growing.is_due(Instant::now()) {
            info!("{}, for {} s so far", what(), self.began.elapsed().as_secs());
        }
    }
}
