//! Frames that did not enter the mean go back to the memory.

use crate::frame::Frame;
use crate::memory::Memory;

impl Memory<'_> {
    /// Returns the content of a frame that did not enter the mean (lost, late, refused) to the residual. If
    /// this follows right after the encode that made the frame, the residual is fl(residual + gradient) of
    /// that step again, bit for bit. The residual before that step is in a
    /// [`Snapshot`](crate::state::Snapshot), if one was taken.
    ///
    /// Momentum and states stay as the encode left them. Momentum that became 0 where the frame sent stays 0,
    /// because the frame does not hold it.
    ///
    /// # Panics
    /// When the memory has another length than the frame's layout.
    pub fn give_back(&mut self, frame: &Frame<'_>) {
        frame.add_scaled_to(1.0, self.residual_mut());
    }
}
