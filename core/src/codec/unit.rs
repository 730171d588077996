//! How a codec encodes one unit, and what other code may ask about the codec.

use crate::built::Full;
use crate::codec::cut::Cut;
#[cfg(feature = "full")]
use crate::codec::experiment::EncodeBody;
#[cfg(feature = "alloc")]
use crate::codec::multi_level::MultiLevel;
use crate::corrected::{Corrected, Pass};
use crate::error::EncodeError;
use crate::gradient::grad::Grad;
use crate::gradient::layout::{LayoutRef, Span};
use crate::gradient::unit::Unit;
use crate::kernels;
use crate::memory::{Keeper, Memory, StateLen, UnitState};
use crate::momentum::Momentum;
use crate::rng::key::StepKey;
use crate::scratch::{Scratch, ScratchLen};
use crate::wire::ids::{CodecId, Kind};
use crate::wire::writer::Writer;

/// The input of a codec for one unit: the unit's own slices, and the layout in which it is a range.
pub struct UnitInput<'i, 'm> {
    pub(crate) key: StepKey,
    pub(crate) layout: &'i LayoutRef<'i>,
    pub(crate) unit: &'i Unit,
    pub(crate) grad: Grad<'i>,
    /// The memory, with all the parts that the codec needs.
    pub(crate) memory: Option<&'i mut Memory<'m>>,
    /// What the memory's residual is to hold before the gradient is added to it, if it does not hold it yet.
    /// Only for codecs that [refuse in the pass](Capabilities::refuses_in_pass).
    pub(crate) initial: Option<&'i [f32]>,
    /// The codec's momentum, if a memory holds one.
    pub(crate) momentum: Option<Momentum>,
    /// The state of the unit, if the memory that holds it cannot be lent.
    pub(crate) state: Option<&'i mut UnitState>,
    /// Threads that share the work.
    #[cfg(feature = "parallel")]
    pub(crate) threads: usize,
}

impl<'i> UnitInput<'i, '_> {
    /// The unit's range of the layout.
    pub(crate) fn span(&self) -> Span<'i> {
        Span::of(self.layout, self.unit)
    }

    /// What the codec remembers of the unit.
    pub(crate) fn state_mut(&mut self) -> Option<&mut UnitState> {
        match &mut self.memory {
            Some(memory) => memory.state_mut(self.unit.id),
            None => self.state.as_deref_mut(),
        }
    }

    /// The values to encode; magnitudes must be below `bound`.
    pub(crate) fn source(&self, bound: f32) -> Corrected<'_> {
        let residual = self.memory.as_ref().map(|memory| memory.residual());
        Corrected::new(self.grad, residual, self.unit.start, bound)
    }

    /// Passes the values to `select` and adds the gradient to the memory in the same pass. Magnitudes must be
    /// below `bound`. For codecs that [add early](Capabilities::adds_early).
    ///
    /// # Errors
    /// As `select`. With an initial residual, the memory is then of no use.
    pub(crate) fn pass<T>(
        &mut self,
        bound: f32,
        select: impl FnOnce(&mut Pass<'_>) -> Result<T, EncodeError>,
    ) -> Result<T, EncodeError> {
        let (residual, momentum) = match &mut self.memory {
            Some(memory) => memory.parts_mut(),
            None => (None, None),
        };
        let momentum = self.momentum.zip(momentum);
        let pass = Pass::new(self.grad, residual, self.unit.start, bound);
        // The unit is a part of the memory, all of which is written in a step.
        let non_temporal = self.layout.len() >= kernels::NON_TEMPORAL_LEN;
        let mut pass = pass.with_initial(self.initial, non_temporal).with_momentum(momentum);
        #[cfg(feature = "parallel")]
        {
            pass = pass.with_threads(self.threads);
        }
        let selected = select(&mut pass)?;
        let (largest, largest_momentum) = (pass.largest(), pass.largest_momentum());
        if let Some(memory) = &mut self.memory {
            memory.set_magnitude_bound(largest);
            if Full::build().and(self.momentum).is_some() {
                memory.set_momentum_bound(largest_momentum);
            }
        }
        Ok(selected)
    }
}

/// How the values that a codec sends and keeps add up to p = fl(residual + gradient).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Law {
    /// sent + kept = p, bit for bit. Giving back what was sent restores p.
    Exact,
    /// kept = fl(p − sent), with one rounding a coordinate. For codecs whose values may be so much larger
    /// than p that the difference is not an f32. Giving back what was sent restores p within 2⁻²³·(|p| +
    /// |sent|). An encode that fails still changes nothing. Of a linear codec whose workers send no values of
    /// their own, what all sent is the mean; a worker that gives up its rounds still keeps p, bit for bit. Of
    /// one that [divides the mean](crate::codecs::SketchError::Divided), it is the mean before the division,
    /// and what its momentum has not sent yet is kept, too.
    Rounded,
    /// kept = a part of what was kept before, and a part of p − sent: a filter, so sent + kept is not p. A
    /// worker that gives up its rounds still keeps p, bit for bit. For linear codecs.
    Filtered,
    /// Nothing may be kept: what is sent is unbiased, or rounded so that the error is not an f32. A memory is
    /// refused.
    NotKept,
    /// Nothing that is not sent is kept by coordinate, but the codec has a state of its own in
    /// [arrays](crate::Memory::arrays), such as a momentum, a sketch or an estimate of the gradient. The
    /// residual stays 0, and nothing is given back. For linear codecs.
    State,
}

/// What other code needs to know of a codec with its parameters. It asks for these, and never depends on
/// names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Capabilities {
    /// The number of the method on the wire.
    pub id: CodecId,
    /// How its bodies are laid out.
    pub(crate) kind: Kind,
    /// How sent and kept add up.
    pub law: Law,
    /// Whether it makes frames, besides rounds.
    pub has_frames: bool,
    /// Whether it keeps a [state](UnitState) of each unit.
    pub adapts: bool,
    /// Whether it needs a part that only a build with the feature `full` has.
    pub needs_full: bool,
    /// Whether the memory changes before every value was read. All values must then be
    /// [checked](Corrected::check_all) first. That pays if a single pass can do everything else.
    pub(crate) adds_early: bool,
    /// Of a codec that adds early: whether the pass that adds refuses what is not below the bound before
    /// anything is done with it. If the memory need not stay as it was, no check comes first.
    pub(crate) refuses_in_pass: bool,
}

impl Capabilities {
    /// A codec that makes frames of one kind, keeps exactly what it does not send, and nothing else.
    pub(crate) const fn new(id: CodecId, kind: Kind) -> Self {
        Self {
            id,
            kind,
            law: Law::Exact,
            has_frames: true,
            adapts: false,
            needs_full: false,
            adds_early: false,
            refuses_in_pass: false,
        }
    }

    /// Whether a memory may be lent.
    #[must_use]
    pub const fn keeps(&self) -> bool {
        !matches!(self.law, Law::NotKept)
    }
}

/// One unit's part of a codec. Not nameable outside of this crate: a codec without a number on the wire could
/// not be decoded.
pub trait EncodeUnit: Send + Sync {
    /// What other code needs to know.
    fn capabilities(&self) -> Capabilities;

    /// Largest body of a unit of `len` elements.
    fn max_body_bytes(&self, len: usize) -> Option<usize>;

    /// Working memory for a unit of `len` elements.
    fn unit_scratch_len(&self, len: usize) -> ScratchLen;

    /// Magnitudes of p must be below this.
    fn overflow_bound(&self) -> f32 {
        f32::INFINITY
    }

    /// Lengths of the factors and arrays that the codec keeps for a whole gradient, which is cut into `units`
    /// units: all state besides residual, momentum and unit states. A memory may lack them, so code that
    /// needs one checks that it is complete before anything changes.
    fn state_len(&self, layout: &LayoutRef<'_>, units: usize, keeper: Keeper) -> StateLen {
        let _ = (layout, units, keeper);
        StateLen::default()
    }

    /// The momentum that the codec applies to a gradient before it is added to the residual, if the codec
    /// [adds early](Capabilities::adds_early). Units that are sent dense do not use it.
    fn momentum(&self) -> Option<Momentum> {
        None
    }

    /// The codec as a [`Cut`], if its units can be decided once and then cut into pieces. Only a full build
    /// returns one, so that no other build links the code that cuts.
    fn as_cut(&self) -> Option<&dyn Cut> {
        None
    }

    /// The codec as one of another crate, if it is a registered one with frames. Its frames are written as
    /// those of [`Experimental`](crate::experiments::Experimental), and this trait's `encode_body` is not
    /// called.
    #[cfg(feature = "full")]
    fn as_experiment(&self) -> Option<&dyn EncodeBody> {
        None
    }

    /// The codec as [`MultiLevel`], if its entries at several densities follow from one read.
    #[cfg(feature = "alloc")]
    fn as_multi_level(&self) -> Option<&dyn MultiLevel> {
        None
    }

    /// Writes the body and commits the memory. The only errors are those of [`Corrected::fold`], raised
    /// before the memory changes.
    fn encode_body(
        &self,
        input: UnitInput<'_, '_>,
        scratch: &mut Scratch<'_>,
        writer: &mut Writer<'_>,
    ) -> Result<(), EncodeError>;
}
