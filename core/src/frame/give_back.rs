//! Returns frames that did not enter the mean to the memory.

use crate::corrected::{BLOCK, Corrected};
use crate::error::EncodeError;
use crate::frame::Frame;
use crate::gradient::grad::Grad;
use crate::kernels::Isa;
use crate::memory::Memory;

impl Memory<'_> {
    /// Returns the content of a frame that did not enter the mean (lost, late, refused) to the residual.
    /// Right after the encode that made the frame, this restores fl(residual + gradient) of that step, bit
    /// for bit. To restore the residual before that step, take a [`Snapshot`](crate::state::Snapshot) before
    /// it.
    ///
    /// Momentum and states stay as the encode left them. The encode sets momentum to 0 where the frame sent a
    /// value. It stays 0, because the frame does not hold it.
    ///
    /// # Panics
    /// When the memory has another length than the frame's layout.
    pub fn give_back(&mut self, frame: &Frame<'_>) {
        frame.add_scaled_to(1.0, self.residual_mut());
    }

    /// Keeps a gradient that was not encoded, because the step failed earlier: the residual becomes
    /// fl(residual + gradient). Momentum and states stay as they are.
    ///
    /// # Errors
    /// `NonFiniteInput` with the first coordinate where that is not finite; nothing has changed then.
    ///
    /// # Panics
    /// When `grad` has another length than the memory.
    ///
    /// # Examples
    #[cfg_attr(feature = "alloc", doc = "```")]
    #[cfg_attr(not(feature = "alloc"), doc = "```ignore")]
    /// use gradwire::{EncodeError, Grad, Memory};
    /// let mut memory = Memory::new(vec![0.25, 1.0]);
    /// memory.keep(Grad::F32(&[0.5, -3.0])).unwrap();
    /// assert_eq!(memory.residual(), [0.75, -2.0]);
    /// let refused = memory.keep(Grad::F32(&[0.5, f32::NAN]));
    /// assert_eq!(refused, Err(EncodeError::NonFiniteInput { index: 1 }));
    /// assert_eq!(memory.residual(), [0.75, -2.0]);
    /// ```
    pub fn keep(&mut self, grad: Grad<'_>) -> Result<(), EncodeError> {
        let (len, mut p) = (self.len(), [0; BLOCK]);
        let sums = Corrected::new(grad, Some(self.residual()), 0, f32::INFINITY);
        let block = |start: usize| BLOCK.min(len - start);
        for start in (0..len).step_by(BLOCK) {
            sums.fold(Isa::best(), start, p.get_mut(..block(start)).unwrap_or_default())?;
        }
        for start in (0..len).step_by(BLOCK) {
            let p = p.get_mut(..block(start)).unwrap_or_default();
            let mut memory = self.slice(start..start + p.len());
            let grad = grad.slice(start, p.len());
            Corrected::new(grad, Some(memory.residual()), start, f32::INFINITY).fold(Isa::best(), 0, p)?;
            memory.keep_all(p);
        }
        Ok(())
    }
}
