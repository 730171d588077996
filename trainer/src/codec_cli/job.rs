//! One codec on one gradient: the frames that `encode` writes and `bench` measures.

use gradwire::packets::{PacketEncoder, PacketSize};
use gradwire::{DecodeError, EncodeError, Encoder, Grad, Memory, Source, Spec, StepInput, StepKey, Unit};

use super::error::{CliError, FileFault, Place};
use super::gradient::Gradient;
use crate::nearest::spec_text;

/// Reads a spelling.
pub(crate) fn parse_spec(spelling: &str) -> Result<Spec, CliError> {
    Spec::parse(spelling)
        .map_err(|error| CliError::Spec { given: format!("--codec {spelling}"), reason: spec_text(&error) })
}

/// One codec on one gradient, as rank 0 would encode it at step 0, from an empty memory.
///
/// A linear codec makes the frame that this gradient alone contributes.
pub(super) struct Job<'g> {
    pub(super) spec: Spec,
    pub(super) key: StepKey,
    pub(super) gradient: &'g Gradient,
    pub(super) units: Vec<Unit>,
    pub(super) memory: Option<Memory<'static>>,
    output: Output,
}

/// What holds the messages of a gradient.
enum Output {
    /// One frame.
    Frame(Encoder),
    /// Several, none longer than the codec says.
    Packets(PacketEncoder, PacketSize),
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
            output: match spec.packets {
                Some(size) => Output::Packets(PacketEncoder::new(), size),
                None => Output::Frame(Encoder::new()),
            },
        }
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

    /// Encodes the frame, or the packets.
    pub(super) fn encode(&mut self) -> Result<(), CliError> {
        let Self { spec, key, gradient, units, memory, output } = self;
        let (layout, grad) = (gradient.layout.as_ref(), Grad::F32(&gradient.values));
        let (codec, memory) = (&spec.codec, memory.as_mut());
        let step = StepInput { key: *key, layout: &layout, units, grad };
        let encoded = match output {
            Output::Frame(encoder) => encoder.encode(codec, &step, memory).map(|_| ()),
            Output::Packets(encoder, size) => encoder.encode(codec, &step, memory, *size).map(|_| ()),
        };
        encoded.map_err(|error| self.explain(error))
    }

    /// The frame or the packets of the last successful call, in the order in which they are sent.
    pub(super) fn frames(&self) -> Vec<&[u8]> {
        match &self.output {
            Output::Frame(encoder) => vec![encoder.frame()],
            Output::Packets(encoder, _) => (0..encoder.count()).filter_map(|at| encoder.packet(at)).collect(),
        }
    }

    /// Says which file, codec and tensor an error is about.
    pub(super) fn explain(&self, error: EncodeError) -> CliError {
        explain(self.gradient, &self.spec.to_string(), error)
    }
}

/// Says which file, codec (or rules) and tensor an error is about.
pub(super) fn explain(gradient: &Gradient, codec: &str, error: EncodeError) -> CliError {
    let place = match error {
        EncodeError::NonFiniteInput { index }
        | EncodeError::ValueOverflow { index }
        | EncodeError::Experiment { index, .. } => gradient.place(index),
        _ => None,
    };
    gradient.fault(FileFault::Encode { codec: codec.to_owned(), error, place: Place(place) })
}
