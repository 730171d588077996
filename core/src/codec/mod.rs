//! The three kinds of codec, each with a trait of its own.
//!
//! * [`Gather`](crate::Gather): a frame for each worker; frames are gathered and added as they are decoded.
//! * [`Linear`]: all workers combine their payloads, mostly by sums, so the codec uses all-reduce, round by
//!   round.
//! * [`Gossip`]: payloads between two neighbours, on the difference of their models.
//!
//! The compiler refuses a gather codec where an all-reduce is needed.

mod body;
mod cut;
mod experiment;
mod gossip;
#[cfg(feature = "alloc")]
mod multi_level;
#[cfg(feature = "std")]
pub(crate) mod own;
mod spelled;
mod unit;

use crate::corrected::Corrected;
use crate::error::EncodeError;
use crate::gradient::grad::Grad;
use crate::gradient::layout::{LayoutRef, Span};
use crate::gradient::unit::Unit;
use crate::kernels::Isa;
use crate::memory::{Memory, MemoryView, StateLen};
use crate::rng::key::StepKey;
use crate::scratch::{LinearScratch, LinearScratchLen};

pub(crate) use body::{Body, BodyInfo};
pub use cut::PacketSize;
pub(crate) use cut::{Cut, Cuts, Decided, Piece};
pub use experiment::{BodyOutline, EncodeBody, ParseBody, Refused, ShareNumbers, UnitBody, UnitSource};
pub(crate) use experiment::{ExperimentBody, Parser};
pub use gossip::{Edge, Gossip, Turn};
#[cfg(feature = "alloc")]
pub(crate) use multi_level::{Beside, Chosen, MultiLevel, Whole, read_beside};
pub use spelled::CodecEntry;
pub(crate) use spelled::{Described, SUMMED, Spelled};
pub use unit::{Capabilities, Law};
pub(crate) use unit::{EncodeUnit, UnitInput};

/// How the payloads of one round are combined.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Sum of f32 payloads, in the written order of the exchange.
    SumF32,
    /// Sum of i32 payloads; the codec proves that it cannot overflow.
    SumI32,
    /// Largest of f32 payloads.
    MaxF32,
    /// Smallest of i32 payloads.
    MinI32,
    /// Bitwise and of the u32 payloads of all workers: votes that a single worker can veto.
    And,
    /// Sum of bytes modulo 256: counts of votes. The codec proves with
    /// [`most_contributors`](Linear::most_contributors) that no count overflows; narrow counts may share a
    /// byte, for instance two of 4 bits where at most 15 workers vote.
    SumU8,
    /// The bytes of every worker, for all of them. The payload has a part for each worker, all as long, in
    /// the order of [places](UnitStep::place). Each worker writes its own part; what it has in the others
    /// does not matter.
    Gather,
    /// The bytes of one worker, for all of them. What the others have in their payloads does not matter.
    Broadcast {
        /// The [place](UnitStep::place) of that worker.
        from: u32,
    },
}

impl Reduction {
    /// Bytes of an element of the payload.
    #[must_use]
    pub fn element_bytes(self) -> usize {
        match self {
            Self::SumF32 | Self::SumI32 | Self::MaxF32 | Self::MinI32 | Self::And => 4,
            Self::SumU8 | Self::Gather | Self::Broadcast { .. } => 1,
        }
    }
}

/// The payload of one round. The exchange replaces it in place by its reduction over all workers.
#[non_exhaustive]
#[derive(Debug)]
pub enum Payload<'a> {
    /// For [`Reduction::SumF32`] and [`Reduction::MaxF32`].
    F32(&'a mut [f32]),
    /// For [`Reduction::SumI32`] and [`Reduction::MinI32`].
    I32(&'a mut [i32]),
    /// For [`Reduction::And`].
    U32(&'a mut [u32]),
    /// For [`Reduction::SumU8`], [`Reduction::Gather`] and [`Reduction::Broadcast`].
    /// [`bytes_of`](crate::rounds::bytes_of) lends words of the scratch memory as bytes. Other machines may
    /// have another order of bytes, so numbers are written as little-endian.
    Bytes(&'a mut [u8]),
}

/// One unit in one step at one worker: what the calls of its rounds have in common.
#[derive(Clone, Copy, Debug)]
pub struct UnitStep<'a> {
    /// The key of the step.
    pub key: StepKey,
    /// The layout of the gradient.
    pub layout: &'a LayoutRef<'a>,
    /// The unit.
    pub unit: &'a Unit,
    /// How many workers take part in the step, at least 1.
    pub workers: u32,
    /// The place of this worker among them, in the order of their ranks, from 0.
    pub place: u32,
}

impl<'a> UnitStep<'a> {
    /// The unit's range of the layout.
    pub(crate) fn span(&self) -> Span<'a> {
        Span::of(self.layout, self.unit)
    }
}

/// One round of a unit, for a [`Linear`] codec. The data are in the scratch memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// The number of the round, from 0.
    pub index: u32,
    /// How the payload of this round is reduced.
    pub reduction: Reduction,
    /// The unit.
    pub unit: Unit,
    /// Elements of the payload.
    pub payload_len: usize,
}

impl Round {
    /// # Panics
    /// When `mean` has another length than the unit, or there are no workers.
    pub(crate) fn assert_mean(&self, mean: &[f32], workers: u32) {
        assert_eq!(mean.len(), self.unit.len, "mean and unit differ in length");
        assert_ne!(workers, 0, "a mean over nobody");
    }
}

/// Refuses scratch memory that is smaller than `needed`. Writes p to its first words, where
/// [`Linear::abandon`] expects it. Magnitudes must be below `bound`.
pub(crate) fn begin_unit(
    needed: LinearScratchLen,
    unit: &Unit,
    grad: Grad<'_>,
    residual: Option<&[f32]>,
    bound: f32,
    scratch: &mut LinearScratch<'_>,
) -> Result<(), EncodeError> {
    if !scratch.holds(needed) {
        return Err(EncodeError::LinearScratchTooSmall { needed });
    }
    let p = &mut scratch.words[..unit.len];
    Corrected::new(grad, residual, unit.start, bound).fold(Isa::best(), 0, p).map(drop)
}

/// A codec whose payloads all workers combine, round by round, and which can therefore use all-reduce.
///
/// # Examples
#[cfg_attr(feature = "alloc", doc = "```")]
#[cfg_attr(not(feature = "alloc"), doc = "```ignore")]
/// use gradwire::codecs::MaxNorm;
/// use gradwire::rounds::{LinearScratch, Payload, Reduction, UnitStep};
/// use gradwire::{Grad, LayoutRef, Linear, Source, StepKey, Unit};
///
/// // Two workers, one after the other; an exchange sends the payloads over a network instead.
/// let (codec, layout, unit) = (MaxNorm::new(8).unwrap(), LayoutRef::flat(3), Unit::whole(3));
/// let needed = codec.round_scratch_len(&layout, &unit, 2);
/// let grads = [[1.0, -0.5, 0.25], [0.5, 0.5, -0.25]];
/// let mut memory = [(); 2].map(|()| (vec![0; needed.words], vec![0.0; needed.floats], vec![0; needed.ints]));
/// let [a, b] = &mut memory;
/// let mut scratch = [a, b].map(|(words, floats, ints)| LinearScratch { words, floats, ints });
/// let steps = [0, 1].map(|place| {
///     let key = StepKey { seed: 1, step: 0, source: Source::Rank(place) };
///     UnitStep { key, layout: &layout, unit: &unit, workers: 2, place }
/// });
/// let mut rounds = [0, 1].map(|rank| {
///     codec.begin(&steps[rank], Grad::F32(&grads[rank]), None, &mut scratch[rank]).unwrap()
/// });
/// let mut means = [[0.0; 3]; 2];
/// loop {
///     let [mine, theirs] = &mut scratch;
///     match (codec.payload(&rounds[0], mine), codec.payload(&rounds[1], theirs), rounds[0].reduction) {
///         (Payload::F32(a), Payload::F32(b), Reduction::MaxF32) => {
///             a.iter_mut().zip(b).for_each(|(a, b)| (*a, *b) = (a.max(*b), a.max(*b)));
///         }
///         (Payload::I32(a), Payload::I32(b), Reduction::SumI32) => {
///             a.iter_mut().zip(b).for_each(|(a, b)| (*a, *b) = (*a + *b, *a + *b));
///         }
///         other => panic!("{other:?}"),
///     }
///     let next = [0, 1].map(|rank| {
///         codec.advance(&steps[rank], rounds[rank], &mut scratch[rank], &mut means[rank], None)
///     });
///     let [Some(first), Some(second)] = next else { break };
///     rounds = [first, second];
/// }
/// assert_eq!(means[0], means[1]);
/// assert!((means[0][0] - 0.75).abs() < 0.02);
/// ```
///
/// The exchange calls [`begin`](Self::begin). Then it repeats two steps until no round is left: it reduces
/// [`payload`](Self::payload) in place by the round's reduction, and calls [`advance`](Self::advance). An
/// exchange that cannot finish calls [`abandon`](Self::abandon), which keeps everything in the memory. The
/// scratch memory belongs to the unit from `begin` to the end. Both get the same [`UnitStep`].
pub trait Linear: Send + Sync {
    /// Working memory of one unit in steps of so many workers.
    fn round_scratch_len(&self, layout: &LayoutRef<'_>, unit: &Unit, workers: u32) -> LinearScratchLen;

    /// Coordinates of a unit of `len` elements that the mean covers. The others stay in the memory.
    fn held(&self, len: usize) -> usize;

    /// The most workers that one sum may have, so that no sum of integers overflows. An exchange with more
    /// workers refuses the codec before it begins.
    fn most_contributors(&self) -> u32 {
        u32::MAX
    }

    /// Lengths of the arrays that the codec keeps for a whole gradient of that layout, which is cut into
    /// `units` units. They are zeros before the first step. [`advance`](Self::advance) writes them, and an
    /// exchange restores them where the step fails.
    fn kept_len(&self, layout: &LayoutRef<'_>, units: usize) -> StateLen {
        let _ = (layout, units);
        StateLen::default()
    }

    /// Starts the rounds of one unit; `grad` and the residual in `memory` are those of the unit. The memory
    /// does not change before [`advance`](Self::advance) or [`abandon`](Self::abandon). These get a memory
    /// only if there is one here.
    ///
    /// # Errors
    /// As the variants of [`EncodeError`] say.
    ///
    /// # Panics
    /// When `grad` or the residual has another length than the unit.
    fn begin(
        &self,
        step: &UnitStep<'_>,
        grad: Grad<'_>,
        memory: Option<MemoryView<'_>>,
        scratch: &mut LinearScratch<'_>,
    ) -> Result<Round, EncodeError>;

    /// The payload of the round, to be replaced in place by its reduction over all workers.
    fn payload<'s>(&self, round: &Round, scratch: &'s mut LinearScratch<'_>) -> Payload<'s>;

    /// Takes the reduced payload and returns the next round. If no round is left, it returns `None`: `mean`
    /// (one element a coordinate of the unit) then holds the mean over the workers, and the memory holds what
    /// is kept.
    ///
    /// # Panics
    /// When `mean` or the memory has another length than the unit, or there are no workers or more than
    /// [`most_contributors`](Self::most_contributors).
    fn advance(
        &self,
        step: &UnitStep<'_>,
        round: Round,
        scratch: &mut LinearScratch<'_>,
        mean: &mut [f32],
        memory: Option<&mut Memory<'_>>,
    ) -> Option<Round>;

    /// Gives up: the residual becomes p = fl(residual + gradient), so that nothing is lost. May also follow
    /// the last [`advance`](Self::advance), which it undoes if the mean must be refused. The exchange
    /// restores [arrays](Self::kept_len). A codec that keeps them and no residual does nothing here.
    ///
    /// Expects the bits of p in the first words of the scratch memory, one word for each coordinate of the
    /// unit.
    fn abandon(&self, round: Round, scratch: &mut LinearScratch<'_>, memory: Option<&mut Memory<'_>>) {
        if let Some(memory) = memory {
            memory.keep_all(&scratch.words[..round.unit.len]);
        }
    }
}
