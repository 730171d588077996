//! The way back of a server's mean.

use std::fmt;

use gradwire::state::{Keeper, Snapshot};
use gradwire::{Encoder, Gather, Grad, LayoutRef, Memory, Spec, StepInput};

use super::error::ExchangeError;
use super::incoming::{Incoming, Requirements};
use super::step::Step;
use crate::rank::Rank;

/// The codec of means, and what it keeps. Only the server uses memory and encoder.
pub(super) struct Downlink {
    codec: Box<dyn Gather>,
    encoder: Encoder,
    memory: Option<Memory<'static>>,
    /// What is left of the residual after each step.
    decay: f32,
    /// The memory before the step, to restore it if the step fails after the mean was encoded.
    before: Snapshot,
}

impl fmt::Debug for Downlink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Downlink").field("codec", &self.codec.id()).finish_non_exhaustive()
    }
}

impl Downlink {
    pub(super) fn new(spec: &Spec, layout: &LayoutRef<'_>) -> Self {
        let memory = Memory::for_keeper(spec, layout, Keeper::Server);
        let (codec, encoder, before) = (Box::new(spec.codec), Encoder::new(), Snapshot::new());
        Self { codec, encoder, memory, decay: spec.decay, before }
    }

    pub(super) fn set(&mut self, codec: Box<dyn Gather>, memory: Option<Memory<'static>>) {
        (self.codec, self.memory, self.decay) = (codec, memory, 1.0);
    }

    pub(super) fn memory(&mut self) -> Option<&mut Memory<'static>> {
        self.memory.as_mut()
    }

    /// Encodes the mean, with the server's own error feedback if the codec has it.
    pub(super) fn encode(&mut self, step: &Step<'_>, mean: &[f32]) -> Result<(), ExchangeError> {
        let Self { codec, encoder, memory, decay, before } = self;
        let (layout, units) = (step.layout.as_ref(), step.units());
        memory.iter().for_each(|memory| before.take(memory));
        let input = StepInput { key: step.key, layout: &layout, units, grad: Grad::F32(mean) };
        encoder.encode(&**codec, &input, memory.as_mut()).map_err(ExchangeError::Downlink)?;
        // A spelling allows only what decays; a step that fails undoes this, too.
        let _ = memory.as_mut().map(|memory| memory.decay(*decay));
        Ok(())
    }

    /// Restores the memory as it was before the mean of this step was encoded.
    pub(super) fn undo(&mut self) {
        if let Some(memory) = &mut self.memory {
            self.before.restore(memory);
        }
    }

    /// The frame of the mean that the server sent.
    pub(super) fn frame(&self) -> &[u8] {
        self.encoder.frame()
    }

    /// Writes the mean that a server's frame holds.
    pub(super) fn write(
        &self,
        step: &Step<'_>,
        incoming: &mut Incoming,
        (server, frame): (Rank, &[u8]),
        mean: &mut [f32],
    ) -> Result<(), ExchangeError> {
        let expected = Requirements::holding(step, &*self.codec, step.units());
        incoming.write(server, frame, &step.layout.as_ref(), &expected, mean)
    }
}
