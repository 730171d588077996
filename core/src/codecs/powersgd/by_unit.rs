//! PowerSGD at a rank of its own for each unit.

use super::{Placed, PowerSgd};
use crate::codec::Linear;
use crate::codecs::dense::DenseSum;
use crate::error::EncodeError;
use crate::gradient::layout::{LayoutRef, TensorRef};
use crate::gradient::unit::Unit;
use crate::memory::Memory;
use alloc::vec::Vec;

/// [`PowerSgd`] at a rank of its own for each unit, for instance for each matrix where every tensor is a
/// unit. [`rounds_of`](Self::rounds_of) gives the rounds of a unit. The factors in a memory are those of all
/// matrices in the order of the layout, each of its own rank. With equal ranks, memory, payloads and mean are
/// those of [`PowerSgd`] at that rank, bit for bit.
///
/// A memory does not know its ranks, and neither do its saved bytes: load them into a memory of the same
/// ranks. One with another number of factors refuses them.
///
/// # Examples
/// ```
/// use gradwire::codecs::{PowerSgd, PowerSgdByUnit};
/// use gradwire::{Layout, Memory, Unit};
///
/// let layout = Layout::packed([("v", vec![9, 9]), ("w", vec![20, 30])]).unwrap();
/// let unit = |id, start, len| Unit { id, start, len, dense: false };
/// let units = [unit(0, 0, 81), unit(1, 81, 600)];
/// let (layout, codec) = (layout.as_ref(), PowerSgd::new(1).unwrap());
/// let [alike, apart] = [[1, 1], [1, 3]].map(|ranks| PowerSgdByUnit::new(&codec, &ranks, &units, &layout).unwrap());
/// let mut memory = Memory::new(vec![0.5; 681]).with_factors(vec![1.0; 9 + 30]);
/// alike.hand_over(&apart, &layout, &mut memory)?;
/// assert_eq!(memory.factors(), [[1.0; 39].as_slice(), &[0.0; 60]].concat());
/// # Ok::<(), gradwire::EncodeError>(())
/// ```
///
/// # Source
/// The rank of each layer is what Agarwal et al.: Accordion (arXiv 2010.16248) sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PowerSgdByUnit {
    /// Of tensors that begin in no unit.
    codec: PowerSgd,
    /// Ascending.
    units: Vec<(Unit, Placed)>,
}

impl PowerSgdByUnit {
    /// The codec with these ranks, one for each of the units of that layout, which ascend. A tensor belongs
    /// to the unit in which it begins; one that begins in no unit has the codec's own rank. `None` if a rank
    /// is not from 1 to [`MAX_RANK`](PowerSgd::MAX_RANK).
    ///
    /// # Panics
    /// When there are more or fewer ranks than units.
    #[must_use]
    pub fn new(codec: &PowerSgd, ranks: &[u16], units: &[Unit], layout: &LayoutRef<'_>) -> Option<Self> {
        assert_eq!(ranks.len(), units.len(), "one rank for each unit");
        let of = |(unit, rank): (&Unit, &u16)| {
            Some((*unit, Placed { codec: codec.with_rank(*rank)?, factors: 0..0 }))
        };
        let units = units.iter().zip(ranks).map(of).collect::<Option<_>>()?;
        let mut by_unit = Self { codec: *codec, units };
        let mut end = 0;
        for tensor in layout.tensors() {
            let (start, at) = (end, by_unit.position(&tensor));
            end += by_unit.q_len(&tensor);
            let Some((_, Placed { factors, .. })) = at.map(|at| &mut by_unit.units[at]) else { continue };
            // Tensors of one unit are neighbours, and so are their factors.
            *factors = if factors.end == 0 { start..end } else { factors.start..end };
        }
        Some(by_unit)
    }

    /// The rank of each unit, in order.
    pub fn ranks(&self) -> impl Iterator<Item = u16> + '_ {
        self.units.iter().map(|(_, placed)| placed.codec.rank)
    }

    /// Turns the factors in a memory of this codec into those of `next`, which may have other ranks: see
    /// [`PowerSgd::hand_over`].
    ///
    /// # Errors
    /// `MemoryIncomplete` for a memory whose number of factors is not that of this codec and layout. Nothing
    /// has changed then.
    pub fn hand_over(
        &self,
        next: &Self,
        layout: &LayoutRef<'_>,
        memory: &mut Memory<'_>,
    ) -> Result<(), EncodeError> {
        hand_over(layout, memory, |tensor| [self.q_len(tensor), next.q_len(tensor)])
    }

    /// The rounds of a unit: those of [`PowerSgd`] at its rank, or a plain sum for a unit that is sent dense.
    ///
    /// # Panics
    /// For another unit than it was made for.
    #[must_use]
    pub fn rounds_of(&self, unit: &Unit) -> &dyn Linear {
        if unit.dense {
            return &DenseSum;
        }
        let at = self.units.binary_search_by_key(&unit.id, |(unit, _)| unit.id).ok();
        let (_, placed) =
            at.map(|at| &self.units[at]).filter(|(known, _)| known == unit).expect("a unit with a rank");
        placed
    }

    /// Elements of the factors of a tensor.
    fn q_len(&self, tensor: &TensorRef<'_>) -> usize {
        self.position(tensor).map_or(&self.codec, |at| &self.units[at].1.codec).q_len(tensor)
    }

    /// The position of the unit in which a tensor begins.
    fn position(&self, tensor: &TensorRef<'_>) -> Option<usize> {
        let after = self.units.partition_point(|(unit, _)| unit.start <= tensor.offset);
        after.checked_sub(1).filter(|&at| self.units[at].0.range().contains(&tensor.offset))
    }
}

/// Turns the factors in a memory into others: `lens` gives the elements of a tensor's factors before and
/// after.
///
/// # Errors
/// `MemoryIncomplete` for a memory with another number of factors than there are before. Nothing has changed
/// then.
pub(super) fn hand_over(
    layout: &LayoutRef<'_>,
    memory: &mut Memory<'_>,
    lens: impl Fn(&TensorRef<'_>) -> [usize; 2],
) -> Result<(), EncodeError> {
    let last = memory.factors();
    let sums = layout.tensors().map(|tensor| lens(&tensor));
    let [before, after] = sums.fold([0; 2], |[a, b], [had, has]| [a + had, b + has]);
    if last.len() != before {
        return Err(EncodeError::MemoryIncomplete);
    }
    if layout.tensors().all(|tensor| lens(&tensor)[0] == lens(&tensor)[1]) {
        return Ok(());
    }
    let mut factors = alloc::vec![0.0; after];
    let (mut from, mut to) = (0, 0);
    for tensor in layout.tensors() {
        let [had, has] = lens(&tensor);
        // Column after column, so the first columns are the first elements.
        let kept = had.min(has);
        factors[to..to + kept].copy_from_slice(&last[from..from + kept]);
        (from, to) = (from + had, to + has);
    }
    memory.set_factors(factors);
    Ok(())
}
