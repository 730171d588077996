//! Frames that did not enter the mean go back to the memory.

use crate::frame::Frame;
use crate::memory::Memory;

impl Memory<'_> {
    /// Returns the content of a frame that did not enter the mean (lost, late, refused) to the residual.
    /// Given back right after the encode that made it, the residual is fl(residual + gradient) of that step
    /// again, bit for bit. What it was before that step is in a [`Snapshot`](crate::state::Snapshot), if one
    /// was taken.
    ///
    /// Momentum and states stay as the encode left them: momentum that was cleared where the frame sent
    /// starts anew, since the frame does not hold it.
    ///
    /// # Panics
    /// When the memory has another length than the frame's layout.
    pub fn give_back(&mut self, frame: &Frame<'_>) {
        frame.add_scaled_to(1.0, self.residual_mut());
    }
}
