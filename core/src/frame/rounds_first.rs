//! Rounds before a frame: all ranks agree on a few numbers before any of them encodes.

use crate::codec::{ParseBody, Reduction};
use crate::error::EncodeError;
use crate::frame::gather::{Gather, StepInput};
use crate::gradient::unit::Unit;
use crate::memory::Memory;
use crate::scratch::{Scratch, ScratchLen};
use crate::wire::ids::CodecId;

/// A [`Gather`] codec with rounds before its frame: each unit has a few numbers that all ranks reduce before
/// any of them encodes, for instance the largest magnitude of all gradients as one scale for all.
///
/// The caller calls [`round`](Self::round) with index 0, 1, … and reduces the numbers over all ranks after
/// each call, until a call returns `None`. Then [`AfterRounds`] encodes. `Exchange` does this by all-gather.
/// [`Gather::encode`] of such a codec is an error, because the numbers are missing.
///
/// # Examples
/// Two ranks; [`Experimental`](crate::experiments::Experimental) makes such a codec of one of another crate.
/// ```
/// use gradwire::rounds::{Reduction, RoundsFirst};
/// use gradwire::{EncodeError, Scratch, StepInput};
///
/// fn agree(
///     codec: &dyn RoundsFirst,
///     steps: [&StepInput<'_>; 2],
///     scratch: &mut Scratch<'_>,
/// ) -> Result<Vec<f32>, EncodeError> {
///     let count: usize = steps[0].units.iter().map(|unit| codec.number_count(unit)).sum();
///     let (mut a, mut b) = (vec![0.0; count], vec![0.0; count]);
///     for index in 0.. {
///         let reduction = codec.round(index, steps[0], None, scratch, &mut a)?;
///         assert_eq!(codec.round(index, steps[1], None, scratch, &mut b)?, reduction);
///         match reduction {
///             Some(Reduction::MaxF32) => a.iter_mut().zip(&b).for_each(|(a, b)| *a = a.max(*b)),
///             Some(_) => a.iter_mut().zip(&b).for_each(|(a, b)| *a += b),
///             None => break,
///         }
///         b.copy_from_slice(&a);
///     }
///     Ok(a)
/// }
/// ```
pub trait RoundsFirst: Gather {
    /// How many numbers a unit has. Depends only on codec and unit. The numbers of all units of a step are
    /// concatenated, in the order of the units.
    fn number_count(&self, unit: &Unit) -> usize;

    /// Writes this rank's numbers for round `index`, which counts from 0, and returns how to reduce them:
    /// [`Reduction::SumF32`] or [`Reduction::MaxF32`]. Returns `None` if no round is left; `numbers` is then
    /// the argument of [`encode_after`](Self::encode_after). On entry, `numbers` holds the reduced numbers of
    /// the previous round, or zeros in the first round. All ranks have the same rounds.
    ///
    /// # Errors
    /// Those of [`Gather::encode`], except for its output buffer. Only `numbers` and `scratch`, of
    /// [`scratch_len`](Gather::scratch_len), may have changed then.
    ///
    /// # Panics
    /// When gradient or memory has another length than the layout, or `numbers` than all units ask for.
    fn round(
        &self,
        index: u32,
        step: &StepInput<'_>,
        memory: Option<&Memory<'_>>,
        scratch: &mut Scratch<'_>,
        numbers: &mut [f32],
    ) -> Result<Option<Reduction>, EncodeError>;

    /// As [`Gather::encode`], with the numbers that all ranks agreed on.
    ///
    /// # Errors
    /// As [`Gather::encode`]; the memory is then as it was.
    ///
    /// # Panics
    /// As [`round`](Self::round).
    fn encode_after(
        &self,
        numbers: &[f32],
        step: &StepInput<'_>,
        memory: Option<&mut Memory<'_>>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError>;
}

/// A codec with [rounds before its frame](RoundsFirst) after they are over: a [`Gather`] codec for the units
/// of that step, at that rank.
#[derive(Clone, Copy)]
pub struct AfterRounds<'a> {
    codec: &'a dyn RoundsFirst,
    numbers: &'a [f32],
}

impl<'a> AfterRounds<'a> {
    /// With the final numbers of the rounds of these units.
    #[must_use]
    pub fn new(codec: &'a dyn RoundsFirst, numbers: &'a [f32]) -> Self {
        Self { codec, numbers }
    }
}

impl core::fmt::Debug for AfterRounds<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("AfterRounds").field("codec", &self.id()).field("numbers", &self.numbers).finish()
    }
}

impl Gather for AfterRounds<'_> {
    fn id(&self) -> CodecId {
        self.codec.id()
    }

    fn parser(&self) -> Option<&dyn ParseBody> {
        self.codec.parser()
    }

    fn max_frame_bytes(&self, units: &[Unit]) -> Option<usize> {
        self.codec.max_frame_bytes(units)
    }

    fn scratch_len(&self, units: &[Unit]) -> ScratchLen {
        self.codec.scratch_len(units)
    }

    fn encode(
        &self,
        step: &StepInput<'_>,
        memory: Option<&mut Memory<'_>>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        self.codec.encode_after(self.numbers, step, memory, scratch, out)
    }
}
