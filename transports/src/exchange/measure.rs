//! Measures how much of its gradient a rank sends in a step.

use gradwire::arithmetic::gain::{Gain, of_frame_and_gradient, of_frame_and_residual};
use gradwire::{Grad, LayoutRef, Memory};

use super::incoming::{Incoming, Requirements};

/// Adds up the gain of the frames of a step.
#[derive(Debug, Default)]
pub(super) struct Measure {
    incoming: Incoming,
    pub(super) sum: Gain,
}

impl Measure {
    /// Adds the gain of a message of this rank; the memory is as the encode left it.
    pub(super) fn add(
        &mut self,
        own: &[u8],
        layout: &LayoutRef<'_>,
        expected: &Requirements<'_>,
        grad: Grad<'_>,
        memory: Option<&Memory<'_>>,
    ) {
        // This rank encoded these bytes itself. If they are refused, the step fails elsewhere.
        let Ok(message) = self.incoming.read(own, layout, expected) else { return };
        for (frame, is_kept) in message.frames() {
            self.sum += match memory.filter(|_| is_kept) {
                Some(memory) => of_frame_and_residual(frame, memory.residual()),
                None => of_frame_and_gradient(frame, grad),
            };
        }
    }
}
