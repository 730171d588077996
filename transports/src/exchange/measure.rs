//! Measures how much of its gradient a rank sends in a step.

use gradwire::arithmetic::gain::{Gain, of_frame_and_gradient, of_frame_and_residual};
use gradwire::experiments::ParseBody;
use gradwire::{Decoder, Grad, LayoutRef, Limits, Memory};

/// Adds up the gain of the frames of a step.
#[derive(Debug, Default)]
pub(super) struct Measure {
    decoder: Decoder,
    pub(super) sum: Gain,
}

impl Measure {
    /// Adds the gain of a frame of this rank; the memory is as the encode left it.
    pub(super) fn add(
        &mut self,
        (own, parser): (&[u8], Option<&dyn ParseBody>),
        (layout, limits): (&LayoutRef<'_>, &Limits),
        grad: Grad<'_>,
        memory: Option<&Memory<'_>>,
    ) {
        // This rank encoded these bytes itself. If they are refused, the step fails elsewhere.
        let Ok(frame) = self.decoder.parse_with(own, layout, limits, parser) else { return };
        self.sum += match memory {
            Some(memory) => of_frame_and_residual(&frame, memory.residual()),
            None => of_frame_and_gradient(&frame, grad),
        };
    }
}
