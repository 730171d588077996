//! The end of a run: an end waits until the others have what it sent.

use std::time::Duration;

use gradwire_transports::zmq::ZmqTransport;
use gradwire_transports::{Deadline, Transport, TransportError};
use tracing::warn;

/// How long the end of the run waits for workers to take their last message, where it takes no time.
const FAREWELL: Duration = Duration::from_secs(30);
/// The longest that it waits, however slow the links are.
const LONGEST_FAREWELL: Duration = Duration::from_secs(900);

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
