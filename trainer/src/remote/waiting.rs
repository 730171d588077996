//! While an end waits for the other, it looks now and then whether the user wants it to end, and says what it
//! waits for.

use std::fmt::Display;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gradwire_transports::zmq::{Growing, ZmqTransport};
use gradwire_transports::{Deadline, Transport, TransportError};
use tracing::{info, warn};

use crate::process::interrupt;

/// Between two looks for a wish to end, while this end waits for others to begin.
pub(super) const LOOK_UP: Duration = Duration::from_millis(200);
/// The time until the first line about what is waited for.
const SAID_AFTER: Duration = Duration::from_secs(2);
/// How long the end of the run waits for workers to take their last message, where it takes no time.
const FAREWELL: Duration = Duration::from_secs(30);
/// The longest that it waits, however slow the links are.
const LONGEST_FAREWELL: Duration = Duration::from_secs(900);

pub(super) fn is_end_wanted() -> bool {
    interrupt::requested().load(Ordering::Relaxed)
}

/// Says what is waited for: after two seconds, then at growing intervals.
pub(super) struct Saying {
    began: Instant,
    growing: Growing,
}

impl Saying {
    /// The wait begins now.
    pub(super) fn new() -> Self {
        let began = Instant::now();
        Self { began, growing: Growing::new(SAID_AFTER, began) }
    }

    /// Says it, if it is time.
    pub(super) fn waits<T: Display>(&mut self, what: impl FnOnce() -> T) {
        if self.growing.is_due(Instant::now()) {
            info!("{}, for {} s so far", what(), self.began.elapsed().as_secs());
        }
    }
}

/// Ends the transport, once everything is delivered that can be: several times the time that the links need.
pub(super) fn farewell(transport: &mut ZmqTransport) {
    let needed = FAREWELL.saturating_add(transport.delivery_time().saturating_mul(4));
    let wait = needed.min(LONGEST_FAREWELL);
    match transport.close(Deadline::after(wait)) {
        Ok(()) => {}
        Err(TransportError::Timeout { from, .. }) => warn!(
            "{from} has not taken its last messages within {} s: it may have the parameters of an earlier step",
            wait.as_secs()
        ),
        Err(error) => warn!("at the end: {error}"),
    }
}
