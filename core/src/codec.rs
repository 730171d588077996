//! The three kinds of codec, told apart by type.
//!
//! * [`Gather`]: a frame for each worker; frames are gathered and added as they are decoded.
//! * [`Linear`]: payloads of all workers may be summed, so the codec rides on all-reduce, round by round.
//! * [`Gossip`]: the same between two neighbours, on the difference of their models.
//!
//! A gather codec does not fit where an all-reduce is asked for: the compiler says so.

use crate::error::EncodeError;
use crate::frame::header::CodecId;
use crate::frame::packets::{PacketSize, Packets};
use crate::gradient::grad::Grad;
use crate::gradient::layout::LayoutRef;
use crate::gradient::unit::Unit;
use crate::memory::{Memory, MemoryView};
use crate::rng::key::StepKey;
use crate::scratch::{Scratch, ScratchLen};

/// A codec whose frames are gathered: it turns the units of a gradient into one self-describing frame.
///
/// Codecs hold parameters and no state: what a method remembers from step to step is in the [`Memory`], which the
/// caller lends, saves and restores.
pub trait Gather: Send + Sync {
    /// The number of the method on the wire.
    fn id(&self) -> CodecId;

    /// Largest number of bytes that a frame of these units can take, whatever the gradient. `None` on overflow, and
    /// where [`encode`](Self::encode) would return `NotBuilt`.
    fn max_frame_bytes(&self, units: &[Unit]) -> Option<usize>;

    /// Working memory that [`encode`](Self::encode) needs for these units.
    fn scratch_len(&self, units: &[Unit]) -> ScratchLen;

    /// Writes one frame with all `units` of the flat gradient `grad` to the front of `out` and returns its bytes.
    ///
    /// With a memory, what is encoded is p = fl(residual + gradient), and the residual becomes p less what the frame
    /// decodes to, exactly. `grad` and the memory have `layout.len()` elements; units are ascending and do not overlap.
    /// Every worker's frame holds the same units.
    ///
    /// # Errors
    /// As the variants of [`EncodeError`] say; the memory is then as it was, bit for bit.
    ///
    /// # Panics
    /// When `grad` or the memory has another length than the layout.
    ///
    /// # Determinism
    /// Same parameters, key, layout, units, gradient and residual: same bytes, on every machine.
    #[allow(clippy::too_many_arguments, reason = "each is lent by the caller, and none belongs with another")]
    fn encode(
        &self,
        key: StepKey,
        layout: &LayoutRef<'_>,
        units: &[Unit],
        grad: Grad<'_>,
        memory: Option<&mut Memory<'_>>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError>;

    /// Working memory that [`packets`](Self::packets) needs for these units.
    fn packet_scratch_len(&self, units: &[Unit], size: PacketSize) -> ScratchLen;

    /// The same content as several frames of at most `size` bytes, each of which decodes alone: for links that lose
    /// packets. The memory is lent until the last packet was drawn; see [`Packets`].
    ///
    /// # Errors
    /// `NoPackets` for a codec that cannot be cut, `NotBuilt` without the feature `full`, `PacketTooSmall`, and those of [`encode`](Self::encode) but for its
    /// output buffer; the memory is then as it was, bit for bit. Nothing fails later.
    ///
    /// # Panics
    /// When `grad` or the memory has another length than the layout.
    ///
    /// # Determinism
    /// As [`encode`](Self::encode): same parameters, key, layout, units, gradient, residual and packet size, same packets.
    #[allow(clippy::too_many_arguments, reason = "each is lent by the caller, and none belongs with another")]
    fn packets<'a>(
        &'a self,
        key: StepKey,
        layout: &'a LayoutRef<'a>,
        units: &'a [Unit],
        grad: Grad<'a>,
        memory: Option<&'a mut Memory<'_>>,
        scratch: &'a mut Scratch<'_>,
        size: PacketSize,
    ) -> Result<Packets<'a>, EncodeError>;
}

/// What is done with the payload of one round.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Sum of f32 payloads, in the written order of the exchange.
    SumF32,
    /// Sum of i32 payloads; the codec proves that it cannot overflow.
    SumI32,
    /// Largest of f32 payloads.
    MaxF32,
    /// f32 payloads change places between two neighbours.
    Neighbour,
}

/// What one round lends to the exchange, to be replaced in place by its reduction over all workers.
#[non_exhaustive]
#[derive(Debug)]
pub enum Payload<'a> {
    /// For [`Reduction::SumF32`] and [`Reduction::MaxF32`].
    F32(&'a mut [f32]),
    /// For [`Reduction::SumI32`].
    I32(&'a mut [i32]),
}

/// One unit on its way through the rounds of a [`Linear`] or [`Gossip`] codec; what it carries along is in the scratch memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Counts the rounds of the unit from 0.
    pub index: u32,
    /// How the payload of this round is reduced.
    pub reduction: Reduction,
    /// The unit.
    pub unit: Unit,
    /// Elements of the payload.
    pub payload_len: usize,
}

/// A codec whose payloads may be summed over workers: it rides on all-reduce.
///
/// The exchange calls [`begin`](Self::begin), and then repeats: reduce [`payload`](Self::payload) in place by the round's
/// reduction, then [`advance`](Self::advance), until no round is left. An exchange that cannot finish calls
/// [`abandon`](Self::abandon), which keeps everything back in the memory. The scratch memory is the unit's own from
/// `begin` to the end.
pub trait Linear: Send + Sync {
    /// Working memory of one unit of `len` elements.
    fn round_scratch_len(&self, len: usize) -> LinearScratchLen;

    /// Coordinates of a unit of `len` elements that the mean speaks of; the others stay with the memory.
    fn held(&self, len: usize) -> usize;

    /// Starts the rounds of one unit; `grad` and the residual in `memory` are those of the unit. The memory is not changed
    /// before [`advance`](Self::advance) or [`abandon`](Self::abandon).
    ///
    /// # Errors
    /// As the variants of [`EncodeError`] say.
    ///
    /// # Panics
    /// When `grad` or the residual has another length than the unit.
    fn begin(
        &self,
        key: StepKey,
        layout: &LayoutRef<'_>,
        unit: &Unit,
        grad: Grad<'_>,
        memory: Option<MemoryView<'_>>,
        scratch: &mut LinearScratch<'_>,
    ) -> Result<Round, EncodeError>;

    /// The payload of the round, to be replaced in place by its reduction over all workers.
    fn payload<'s>(&self, round: &Round, scratch: &'s mut LinearScratch<'_>) -> Payload<'s>;

    /// Takes the reduced payload of `contributors` workers and returns the next round. When there is none, `mean` (one
    /// element a coordinate of the unit) holds the mean over the contributors, and the memory what is kept.
    ///
    /// # Panics
    /// When `mean` or the memory has another length than the unit, or `contributors` is zero.
    fn advance(
        &self,
        layout: &LayoutRef<'_>,
        round: Round,
        scratch: &mut LinearScratch<'_>,
        contributors: u32,
        mean: &mut [f32],
        memory: Option<&mut Memory<'_>>,
    ) -> Option<Round>;

    /// Gives up: the residual becomes p = fl(residual + gradient), so that nothing is lost. May also follow the last
    /// [`advance`](Self::advance), and undoes it, when the mean must be refused.
    fn abandon(&self, round: Round, scratch: &mut LinearScratch<'_>, memory: Option<&mut Memory<'_>>);
}

/// Two neighbours, by rank; `low` is below `high`. Both ends name an edge alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Edge {
    /// The lower rank.
    pub low: u32,
    /// The higher rank.
    pub high: u32,
}

/// A codec between two neighbours, on the difference of their models instead of on gradients.
///
/// Both ends call [`begin`](Self::begin) with the same key and edge, and then repeat: send [`payload`](Self::payload) to
/// the neighbour, receive its payload, [`advance`](Self::advance), until no round is left. All edges of a step use the
/// models of its start.
pub trait Gossip: Send + Sync {
    /// Working memory of one unit of `len` elements.
    fn round_scratch_len(&self, len: usize) -> LinearScratchLen;

    /// Starts the rounds of one unit of one edge.
    ///
    /// # Errors
    /// As the variants of [`EncodeError`] say.
    ///
    /// # Panics
    /// When `model` has another length than the unit.
    fn begin(
        &self,
        key: StepKey,
        edge: Edge,
        layout: &LayoutRef<'_>,
        unit: &Unit,
        model: &[f32],
        scratch: &mut LinearScratch<'_>,
    ) -> Result<Round, EncodeError>;

    /// What this end sends in the round.
    fn payload<'s>(&self, round: &Round, scratch: &'s mut LinearScratch<'_>) -> Payload<'s>;

    /// Takes the neighbour's payload and returns the next round; when there is none, `model` has moved towards the
    /// neighbour's by `weight`, the edge's entry of the mixing matrix.
    ///
    /// # Panics
    /// When `theirs` has another length than the payload, or `model` than the unit.
    fn advance(
        &self,
        round: Round,
        scratch: &mut LinearScratch<'_>,
        theirs: &[f32],
        weight: f32,
        model: &mut [f32],
    ) -> Option<Round>;
}

/// Working memory of one unit of a [`Linear`] or [`Gossip`] codec, its own from the first round to the last.
#[derive(Debug)]
pub struct LinearScratch<'a> {
    /// At least [`LinearScratchLen::words`] elements.
    pub words: &'a mut [u32],
    /// At least [`LinearScratchLen::floats`] elements.
    pub floats: &'a mut [f32],
    /// At least [`LinearScratchLen::ints`] elements.
    pub ints: &'a mut [i32],
}

impl LinearScratch<'_> {
    /// Refuses memory that is smaller than `needed`.
    pub(crate) fn require(&self, needed: LinearScratchLen) -> Result<(), EncodeError> {
        let holds = self.words.len() >= needed.words
            && self.floats.len() >= needed.floats
            && self.ints.len() >= needed.ints;
        if holds { Ok(()) } else { Err(EncodeError::LinearScratchTooSmall { needed }) }
    }
}

/// How much working memory a unit of a [`Linear`] or [`Gossip`] codec needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinearScratchLen {
    /// Words of 32 bits.
    pub words: usize,
    /// f32 elements.
    pub floats: usize,
    /// i32 elements.
    pub ints: usize,
}
