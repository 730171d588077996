//! Bytes and messages, counted where they are sent and received.

use std::ops::{AddAssign, Sub};

/// The messages and bytes that went in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages, empty ones included.
    pub messages: u64,
    /// Payload as given to `send`, in bytes.
    pub payload_bytes: u64,
    /// Bytes that the transport adds to carry the payload.
    pub envelope_bytes: u64,
}

impl Traffic {
    /// One message of `payload_bytes` that needs `envelope_bytes` more.
    pub fn message(payload_bytes: usize, envelope_bytes: usize) -> Self {
        Self { messages: 1, payload_bytes: payload_bytes as u64, envelope_bytes: envelope_bytes as u64 }
    }

    /// Payload and envelopes together, in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.payload_bytes + self.envelope_bytes
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.messages += other.messages;
        self.payload_bytes += other.payload_bytes;
        self.envelope_bytes += other.envelope_bytes;
    }
}

impl Sub for Traffic {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            messages: self.messages - earlier.messages,
            payload_bytes: self.payload_bytes - earlier.payload_bytes,
            envelope_bytes: self.envelope_bytes - earlier.envelope_bytes,
        }
    }
}

/// What one rank has sent and received since its transport was made.
///
/// A sent message counts when it leaves this rank, whether or not it arrives. A received message counts when
/// the caller gets it, so `down` never includes a dropped duplicate or a message that is too old.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sent.
    pub up: Traffic,
    /// Received.
    pub down: Traffic,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.up += other.up;
        self.down += other.down;
    }
}

impl Sub for Counters {
    type Output = Self;

    /// The counts added since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Self { up: self.up - earlier.up, down: self.down - earlier.down }
    }
}
