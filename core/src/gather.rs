//! What a gather codec has to say about one unit; the rest of [`Gather`] follows from it.

use crate::codec::Gather;
use crate::error::EncodeError;
use crate::frame::header::{CodecId, Kind};
use crate::frame::message;
use crate::frame::packets::{self, Content, PacketSize, Packets};
use crate::gradient::grad::Grad;
use crate::gradient::layout::{LayoutRef, Span};
use crate::gradient::unit::Unit;
use crate::memory::{Memory, UnitState};
use crate::momentum::Momentum;
use crate::rng::key::StepKey;
use crate::scratch::{Scratch, ScratchLen};
use crate::source::{Pass, Source};
use crate::wire::writer::Writer;

/// What a codec is handed for one unit: the unit's own slices, and the layout that it is a range of.
pub struct UnitInput<'i, 'm> {
    pub(crate) key: StepKey,
    pub(crate) layout: &'i LayoutRef<'i>,
    pub(crate) unit: &'i Unit,
    pub(crate) grad: Grad<'i>,
    /// With all the parts that the codec needs.
    pub(crate) memory: Option<&'i mut Memory<'m>>,
    /// The codec's, where there is a memory that holds it.
    pub(crate) momentum: Option<Momentum>,
    /// What the codec remembers of the unit, where the memory that holds it cannot be lent.
    pub(crate) state: Option<&'i mut UnitState>,
    /// Threads that share the work.
    #[cfg(feature = "parallel")]
    pub(crate) threads: usize,
}

impl<'i> UnitInput<'i, '_> {
    /// The unit's range of the layout.
    pub(crate) fn span(&self) -> Span<'i> {
        Span { layout: self.layout, start: self.unit.start, len: self.unit.len }
    }

    /// What the codec remembers of the unit.
    pub(crate) fn state_mut(&mut self) -> Option<&mut UnitState> {
        match &mut self.memory {
            Some(memory) => memory.state_mut(self.unit.id),
            None => self.state.as_deref_mut(),
        }
    }

    /// The values to encode; magnitudes must be below `bound`.
    pub(crate) fn source(&self, bound: f32) -> Source<'_> {
        let residual = self.memory.as_ref().map(|memory| memory.residual());
        Source::new(self.grad, residual, self.unit.start, bound)
    }

    /// Lets `select` go through the values, which adds the gradient to the memory; magnitudes must be below `bound`. For
    /// codecs that [add early](EncodeUnit::adds_early).
    pub(crate) fn pass<T>(&mut self, bound: f32, select: impl FnOnce(&mut Pass<'_>) -> T) -> T {
        let (residual, momentum) = match &mut self.memory {
            Some(memory) => memory.parts_mut(),
            None => (None, None),
        };
        let momentum = self.momentum.zip(momentum);
        let mut pass = Pass::new(self.grad, residual, self.unit.start, bound).with_momentum(momentum);
        #[cfg(feature = "parallel")]
        {
            pass = pass.with_threads(self.threads);
        }
        let selected = select(&mut pass);
        let largest = pass.largest();
        if let Some(memory) = &mut self.memory {
            memory.bound_by(largest);
        }
        selected
    }
}

/// One unit's part of a codec. Not nameable outside of this crate: a codec without a number on the wire could not
/// be decoded.
pub trait EncodeUnit: Send + Sync {
    /// The number of the method on the wire.
    fn codec_id(&self) -> CodecId;

    /// How its bodies are laid out.
    fn kind(&self) -> Kind;

    /// Largest body of a unit of `len` elements.
    fn max_body_bytes(&self, len: usize) -> Option<usize>;

    /// Working memory for a unit of `len` elements.
    fn unit_scratch_len(&self, len: usize) -> ScratchLen;

    /// Magnitudes of p must be below this.
    fn overflow_bound(&self) -> f32 {
        f32::INFINITY
    }

    /// Whether it needs a part that only a [`Full`](crate::built::Full) build has.
    fn needs_full(&self) -> bool {
        false
    }

    /// Whether there is anything to put into a frame, and not rounds alone.
    fn has_frames(&self) -> bool {
        true
    }

    /// Elements of the factors that it keeps of a whole gradient.
    fn factor_len(&self, layout: &LayoutRef<'_>) -> usize {
        let _ = layout;
        0
    }

    /// Whether sent + kept is exactly residual + gradient, so that a memory may be lent.
    fn conserves(&self) -> bool {
        true
    }

    /// Whether the memory changes before every value was seen, so that all of them have to be [made sure
    /// of](Source::check_all) first: worth it where one pass can then do all the rest.
    fn adds_early(&self) -> bool {
        false
    }

    /// What the codec makes of a gradient before it is added to the residual, if it [adds early](Self::adds_early). Units
    /// that are sent dense do without.
    fn momentum(&self) -> Option<Momentum> {
        None
    }

    /// Whether the codec remembers something of each unit.
    fn adapts(&self) -> bool {
        false
    }

    /// Whether what is sent of a unit can be decided once and then cut into pieces.
    fn is_cut(&self) -> bool {
        false
    }

    /// Largest body of a piece with a single atom, out of a unit of `len` elements. Of account where [`is_cut`](Self::is_cut).
    fn least_body_bytes(&self, len: usize) -> usize {
        let _ = len;
        usize::MAX
    }

    /// Working memory for what is decided of a unit of `len` elements.
    fn content_scratch_len(&self, len: usize) -> ScratchLen {
        self.unit_scratch_len(len)
    }

    /// Decides what is sent of a unit, without a memory, and leaves it in the scratch memory.
    ///
    /// # Errors
    /// `NoPackets`, or those of [`Source::fold`].
    fn decide(&self, input: UnitInput<'_, '_>, scratch: &mut Scratch<'_>) -> Result<Content, EncodeError> {
        let _ = (input, scratch);
        Err(EncodeError::NoPackets)
    }

    /// Writes the body and commits the memory. The only errors are those of [`Source::fold`], raised before
    /// the memory is changed.
    fn encode_body(
        &self,
        input: UnitInput<'_, '_>,
        scratch: &mut Scratch<'_>,
        writer: &mut Writer<'_>,
    ) -> Result<(), EncodeError>;
}

impl<C: EncodeUnit> Gather for C {
    fn id(&self) -> CodecId {
        self.codec_id()
    }

    fn max_frame_bytes(&self, units: &[Unit]) -> Option<usize> {
        message::max_frame_bytes(self, units)
    }

    fn scratch_len(&self, units: &[Unit]) -> ScratchLen {
        message::scratch_len(self, units)
    }

    fn encode(
        &self,
        key: StepKey,
        layout: &LayoutRef<'_>,
        units: &[Unit],
        grad: Grad<'_>,
        memory: Option<&mut Memory<'_>>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        message::Encoding::new(self, key, layout, units, grad).encode(memory, scratch, out)
    }

    fn packet_scratch_len(&self, units: &[Unit], size: PacketSize) -> ScratchLen {
        packets::scratch_len(self, units, size)
    }

    fn packets<'a>(
        &'a self,
        key: StepKey,
        layout: &'a LayoutRef<'a>,
        units: &'a [Unit],
        grad: Grad<'a>,
        memory: Option<&'a mut Memory<'_>>,
        scratch: &'a mut Scratch<'_>,
        size: PacketSize,
    ) -> Result<Packets<'a>, EncodeError> {
        packets::begin(self, key, layout, units, grad, memory, scratch, size)
    }
}
