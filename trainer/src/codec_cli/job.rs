//! One codec on one gradient: the frame that `encode` writes and `bench` measures.

use gradwire::{DecodeError, EncodeError, Encoder, Grad, Memory, Source, Spec, StepKey, Unit};

use super::error::{CliError, FileFault, Place};
use super::gradient::Gradient;

/// Reads a spelling.
pub(super) fn parse_spec(spelling: &str) -> Result<Spec, CliError> {
    Spec::parse(spelling)
        .map_err(|error| CliError::Spec { spelling: spelling.to_owned(), reason: error.to_string() })
}

/// One codec on one gradient, as rank 0 would encode it at step 0, from an empty memory.
///
/// A linear codec makes the frame of what this gradient alone contributes.
pub(super) struct Job<'g> {
    spec: Spec,
    key: StepKey,
    gradient: &'g Gradient,
    units: Vec<Unit>,
    memory: Option<Memory<'static>>,
    encoder: Encoder,
}

impl<'g> Job<'g> {
    pub(super) fn new(spec: Spec, gradient: &'g Gradient, seed: u64) -> Self {
        let layout = gradient.layout.as_ref();
        Self {
            spec,
            key: StepKey { seed, step: 0, source: Source::Rank(0) },
            gradient,
            units: spec.units.units(&layout).collect(),
            memory: Memory::for_spec(&spec, &layout),
            encoder: Encoder::new(),
        }
    }

    /// The codec.
    pub(super) fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The gradient.
    pub(super) fn gradient(&self) -> &'g Gradient {
        self.gradient
    }

    /// Says that the frame of this job does not decode.
    pub(super) fn own_frame_fault(&self, error: DecodeError) -> CliError {
        self.gradient.fault(FileFault::OwnFrame { codec: self.spec.to_string(), error })
    }

    /// Empties the memory, so that the next frame is the same again.
    pub(super) fn clear_memory(&mut self) {
        self.memory.iter_mut().for_each(Memory::clear);
    }

    /// Encodes the frame.
    pub(super) fn encode(&mut self) -> Result<&[u8], CliError> {
        let layout = self.gradient.layout.as_ref();
        let grad = Grad::F32(&self.gradient.values);
        self.encoder
            .encode(&self.spec.codec, self.key, &layout, &self.units, grad, self.memory.as_mut())
            .map_err(|error| explain(&self.spec, self.gradient, error))
    }
}

/// Says which file, codec and tensor an error is about.
fn explain(spec: &Spec, gradient: &Gradient, error: EncodeError) -> CliError {
    let place = match error {
        EncodeError::NonFiniteInput { index } | EncodeError::ValueOverflow { index } => gradient.place(index),
        _ => None,
    };
    gradient.fault(FileFault::Encode { codec: spec.to_string(), error, place: Place(place) })
}
