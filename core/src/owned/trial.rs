//! An encode that commits nothing.

use crate::arithmetic::gain::{Gain, of_frame_and_gradient, of_frame_and_residual};
use crate::error::EncodeError;
use crate::frame::gather::{Gather, StepInput};
use crate::limits::Limits;
use crate::memory::{Memory, UnitState};
use crate::owned::buffers::{Decoder, Encoder};
use alloc::vec::Vec;

/// Encodes with a copy of the memory, and leaves the memory itself as it is. This shows the frame that a
/// codec would send, its length and its gain. Works with any codec that makes frames.
///
/// A trial copies the memory, encodes, decodes its own frame and reads the residual that it left. For codecs
/// that it [fits](crate::Selection::fits), a [`Selection`](crate::Selection) takes less time. Allocates on
/// the first call, and later only when the gradient grows.
///
/// # Examples
/// ```
/// use gradwire::{Grad, LayoutRef, Memory, Source, Spec, StepInput, StepKey, Trial, Unit};
///
/// let (spec, layout, units) = (Spec::parse("topk:density=0.25")?, LayoutRef::flat(4), [Unit::whole(4)]);
/// let memory = Memory::for_spec(&spec, &layout).unwrap();
/// let key = StepKey { seed: 1, step: 0, source: Source::Rank(0) };
/// let grad = Grad::F32(&[1.0, -3.0, 1.0, 1.0]);
/// let step = StepInput { key, layout: &layout, units: &units, grad };
/// let mut trial = Trial::new();
/// let tried = trial.encode(&spec.codec, &step, Some(&memory))?;
/// assert_eq!((tried.gain.ratio(), tried.frame.len()), (0.75, 36));
/// assert_eq!(memory.residual(), [0.0; 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Trial {
    encoder: Encoder,
    decoder: Decoder,
    residual: Vec<f32>,
    momentum: Vec<f32>,
    states: Vec<UnitState>,
}

/// What an encode would have sent.
#[derive(Clone, Copy, Debug)]
pub struct Tried<'t> {
    /// The frame, byte for byte as the encode would write it.
    pub frame: &'t [u8],
    /// How much of the gradient it holds.
    pub gain: Gain,
}

impl Trial {
    /// Empty buffers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What [`Gather::encode`] would write and send; nothing changes.
    ///
    /// # Errors
    /// As [`Gather::encode`], except that its buffers grow.
    ///
    /// # Panics
    /// When the gradient or the memory has another length than the layout.
    pub fn encode<G: Gather + ?Sized>(
        &mut self,
        codec: &G,
        step: &StepInput<'_>,
        memory: Option<&Memory<'_>>,
    ) -> Result<Tried<'_>, EncodeError> {
        let Self { encoder, decoder, residual, momentum, states } = self;
        let mut copy = memory.map(|memory| {
            copy_to(residual, memory.residual());
            copy_to(states, memory.states());
            let copy = Memory::new(residual.as_mut_slice()).with_states(states.as_mut_slice());
            let Some(values) = memory.momentum() else { return copy };
            copy_to(momentum, values);
            copy.with_momentum(momentum.as_mut_slice())
        });
        let frame = encoder.encode(codec, step, copy.as_mut())?;
        let parsed = decoder.parse_with(frame, step.layout, &Limits::NONE, codec.parser());
        let parsed = parsed.expect("a frame that was just written decodes");
        let gain = match &copy {
            Some(copy) => of_frame_and_residual(&parsed, copy.residual()),
            None => of_frame_and_gradient(&parsed, step.grad),
        };
        Ok(Tried { frame, gain })
    }
}

fn copy_to<T: Copy>(to: &mut Vec<T>, from: &[T]) {
    to.clear();
    to.extend_from_slice(from);
}
