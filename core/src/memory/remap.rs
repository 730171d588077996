//! Memories that move to another layout, tensor by tensor.

use super::{ArrayLen, Memory, UnitState};
use crate::gradient::layout::{LayoutRef, TensorRef};
use crate::kernels::{self, Isa};
use core::ops::Range;

/// What became of a memory that [moved](Memory::remap) to another layout.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Remapped {
    /// Coordinates.
    pub coordinates: Moved,
    /// Unit states.
    pub states: Moved,
    /// Factors.
    pub factors: Moved,
    /// Elements of arrays that have names.
    pub arrays: Moved,
    /// L2 norm of the residual that was dropped.
    pub dropped_norm: f64,
    /// L2 norm of the momentum that was dropped.
    pub dropped_momentum_norm: f64,
}

impl Remapped {
    /// Whether everything that the old memory held has a place in the new one.
    #[must_use]
    pub fn keeps_all(&self) -> bool {
        [self.coordinates, self.states, self.factors, self.arrays].iter().all(|moved| moved.dropped == 0)
    }
}

/// How many elements of a memory found a place in the new layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Elements that were copied, bit for bit.
    pub kept: usize,
    /// Elements of the old memory that have no place in the new one.
    pub dropped: usize,
    /// Elements of the new memory that begin with zeros.
    pub added: usize,
}

impl Moved {
    fn new(kept: usize, old: usize, new: usize) -> Self {
        Self { kept, dropped: old - kept, added: new - kept }
    }
}

/// A tensor of the old layout that has no place in the new one, with its part of the residual and momentum.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropped<'a> {
    /// Name of the tensor.
    pub name: &'a str,
    /// Number of its elements.
    pub len: usize,
    /// L2 norm of its residual.
    pub norm: f64,
    /// L2 norm of its momentum; 0 without momentum.
    pub momentum_norm: f64,
    /// Whether the new layout has a tensor of this name, with another shape.
    pub is_reshaped: bool,
}

/// Elements of the factors of one tensor.
pub(crate) type FactorLen<'f> = &'f dyn Fn(&TensorRef<'_>) -> usize;

impl Memory<'_> {
    /// Moves what this memory holds for the layout `old` to `into`, a memory for the layout `new`, and
    /// overwrites what that held. It is for a model whose tensors were added, removed, renamed or put in
    /// another order. Nothing is lost silently: `dropped` is called with every tensor of `old` that has no
    /// place in `new`, in the order of `old`, and the returned value counts all of it.
    ///
    /// * Residual and momentum move tensor by tensor, bit for bit, to the tensor of the same name and shape.
    ///   Among several with the same name, the first goes to the first and the second to the second. New
    ///   tensors begin with zeros. A tensor whose shape changed counts as one removed and one new tensor,
    ///   because nothing says which coordinate is which. If a layout does not know its shapes
    ///   ([`LayoutRef::opaque`]), tensors move only between layouts of the same fingerprint.
    /// * Unit states belong to units, not to tensors. If both memories have as many states as their layout
    ///   has tensors, every unit of a [`UnitPolicy`](crate::UnitPolicy) is one tensor (`unit=tensor`), and
    ///   its state moves with it. Otherwise all states are kept if no tensor changed its place and their
    ///   number is the same, and begin at zero if not.
    /// * Factors are kept if no tensor changed its place and their number is the same; otherwise they begin
    ///   at zero. With the codec at hand, [`remapped`](Self::remapped) moves those of each tensor.
    /// * [Arrays](Self::arrays) move to the array of the same name. One with an element a coordinate moves
    ///   tensor by tensor. Any other moves whole, if no tensor changed its place and its length is the same.
    ///   Otherwise an array begins at zero.
    ///
    /// # Panics
    /// When one of the memories has another length than its layout, or only one of them has momentum.
    ///
    /// # Examples
    /// ```
    /// use gradwire::{LayoutRef, Memory, TensorRef};
    /// let old = [TensorRef { name: "w", shape: &[2], offset: 0 }, TensorRef { name: "b", shape: &[1], offset: 2 }];
    /// let new = [TensorRef { name: "v", shape: &[1], offset: 0 }, TensorRef { name: "w", shape: &[2], offset: 1 }];
    /// let (old, new) = (LayoutRef::new(&old).unwrap(), LayoutRef::new(&new).unwrap());
    /// let (mut residual, mut moved) = ([1.0, 2.0, -3.0], [9.0; 3]);
    /// let mut into = Memory::new(&mut moved);
    /// let report = Memory::new(&mut residual).remap(&old, &new, &mut into, |dropped| {
    ///     assert_eq!((dropped.name, dropped.len, dropped.norm), ("b", 1, 3.0));
    /// });
    /// assert_eq!(into.residual(), [0.0, 1.0, 2.0]);
    /// assert_eq!((report.coordinates.kept, report.coordinates.dropped, report.coordinates.added), (2, 1, 1));
    /// ```
    pub fn remap<'l>(
        &self,
        old: &'l LayoutRef<'_>,
        new: &LayoutRef<'_>,
        into: &mut Memory<'_>,
        dropped: impl FnMut(Dropped<'l>),
    ) -> Remapped {
        self.remap_with(old, new, into, None, dropped)
    }

    /// The same; with `factor_len`, which says how many factors a tensor has, these move with their tensor.
    pub(crate) fn remap_with<'l>(
        &self,
        old: &'l LayoutRef<'_>,
        new: &LayoutRef<'_>,
        into: &mut Memory<'_>,
        factor_len: Option<FactorLen<'_>>,
        mut dropped: impl FnMut(Dropped<'l>),
    ) -> Remapped {
        assert_eq!(self.len(), old.len(), "memory and old layout differ in length");
        assert_eq!(into.len(), new.len(), "memory and new layout differ in length");
        let has_momentum = self.momentum().is_some();
        assert_eq!(has_momentum, into.momentum().is_some(), "only one of the memories has momentum");
        into.clear();
        // What moves, and zeros.
        into.magnitude_bound = self.magnitude_bound;
        let (mut kept, mut squares, mut momentum_squares) = (0, 0.0, 0.0);
        for (i, tensor) in old.tensors().enumerate() {
            let from = range(&tensor);
            if let Some((_, to)) = partner(old, i, new) {
                kept += from.len();
                into.residual[range(&to)].copy_from_slice(&self.residual[from.clone()]);
                if let (Some(momentum), Some(into)) = (self.momentum(), into.momentum.as_deref_mut()) {
                    into[range(&to)].copy_from_slice(&momentum[from]);
                }
                continue;
            }
            let square = sum_of_squares(&self.residual[from.clone()]);
            let momentum_square =
                self.momentum().map_or(0.0, |momentum| sum_of_squares(&momentum[from.clone()]));
            squares += square;
            momentum_squares += momentum_square;
            dropped(Dropped {
                name: tensor.name,
                len: from.len(),
                norm: libm::sqrt(square),
                momentum_norm: libm::sqrt(momentum_square),
                is_reshaped: namesake(old, i, new).is_some(),
            });
        }
        let in_place = is_in_place(old, new);
        let kept_states = move_states(old, new, in_place, &self.states, &mut into.states);
        let kept_factors = move_factors(old, new, in_place, factor_len, &self.factors, &mut into.factors);
        let kept_values = self.move_arrays(old, new, in_place, into);
        Remapped {
            arrays: Moved::new(kept_values, self.values.len(), into.values.len()),
            coordinates: Moved::new(kept, self.len(), into.len()),
            states: Moved::new(kept_states, self.states.len(), into.states.len()),
            factors: Moved::new(kept_factors, self.factors.len(), into.factors.len()),
            dropped_norm: libm::sqrt(squares),
            dropped_momentum_norm: libm::sqrt(momentum_squares),
        }
    }
}

impl Memory<'_> {
    /// Copies what of the arrays has a place in the new layout; returns how many elements.
    fn move_arrays(
        &self,
        old: &LayoutRef<'_>,
        new: &LayoutRef<'_>,
        in_place: bool,
        into: &mut Memory<'_>,
    ) -> usize {
        let mut kept = 0;
        for array in self.arrays() {
            let Some(from) = self.array(array.name) else { continue };
            let is_same = |other: &ArrayLen| other.name == array.name && other.by_coordinate;
            let moves = array.by_coordinate && into.arrays().iter().any(is_same);
            let Some(to) = into.array_mut(array.name) else { continue };
            if in_place && from.len() == to.len() {
                to.copy_from_slice(from);
                kept += from.len();
            } else if moves && (from.len(), to.len()) == (old.len(), new.len()) {
                for (i, tensor) in old.tensors().enumerate() {
                    if let Some((_, partner)) = partner(old, i, new) {
                        to[range(&partner)].copy_from_slice(&from[range(&tensor)]);
                        kept += range(&tensor).len();
                    }
                }
            }
        }
        kept
    }
}

/// Copies the states that have a unit in the new layout; returns how many.
fn move_states(
    old: &LayoutRef<'_>,
    new: &LayoutRef<'_>,
    in_place: bool,
    from: &[UnitState],
    into: &mut [UnitState],
) -> usize {
    if in_place && from.len() == into.len() {
        into.copy_from_slice(from);
        return from.len();
    }
    if from.len() != old.tensor_count() || into.len() != new.tensor_count() {
        return 0;
    }
    let partners = (0..from.len()).filter_map(|i| Some((i, partner(old, i, new)?.0)));
    partners.map(|(i, to)| into[to] = from[i]).count()
}

/// Copies the factors that have a tensor in the new layout; returns how many.
fn move_factors(
    old: &LayoutRef<'_>,
    new: &LayoutRef<'_>,
    in_place: bool,
    len: Option<FactorLen<'_>>,
    from: &[f32],
    into: &mut [f32],
) -> usize {
    if in_place && from.len() == into.len() {
        into.copy_from_slice(from);
        return from.len();
    }
    let Some(len) = len else { return 0 };
    let before =
        |layout: &LayoutRef<'_>, end: usize| layout.tensors().take(end).map(|tensor| len(&tensor)).sum();
    // Factors that do not lie tensor by tensor have no place.
    if before(old, usize::MAX) != from.len() || before(new, usize::MAX) != into.len() {
        return 0;
    }
    let (mut at, mut kept): (usize, usize) = (0, 0);
    for (i, tensor) in old.tensors().enumerate() {
        let factors = at..at + len(&tensor);
        at = factors.end;
        if let Some((to, _)) = partner(old, i, new) {
            let start: usize = before(new, to);
            into[start..start + factors.len()].copy_from_slice(&from[factors.clone()]);
            kept += factors.len();
        }
    }
    kept
}

/// The tensor of `new` that tensor `i` of `old` moves to, and its position.
fn partner<'n>(old: &LayoutRef<'_>, i: usize, new: &'n LayoutRef<'_>) -> Option<(usize, TensorRef<'n>)> {
    let tensor = old.tensor(i)?;
    namesake(old, i, new).filter(|(_, other)| other.shape == tensor.shape)
}

/// The same, whatever its shape.
fn namesake<'n>(old: &LayoutRef<'_>, i: usize, new: &'n LayoutRef<'_>) -> Option<(usize, TensorRef<'n>)> {
    if (old.is_opaque() || new.is_opaque()) && old.fingerprint() != new.fingerprint() {
        return None;
    }
    let tensor = old.tensor(i)?;
    let before = old.tensors().take(i).filter(|other| other.name == tensor.name).count();
    new.tensors().enumerate().filter(|(_, other)| other.name == tensor.name).nth(before)
}

/// Whether every tensor stays where it is.
fn is_in_place(old: &LayoutRef<'_>, new: &LayoutRef<'_>) -> bool {
    let count = old.tensor_count();
    count == new.tensor_count() && (0..count).all(|i| partner(old, i, new).is_some_and(|(to, _)| to == i))
}

fn range(tensor: &TensorRef<'_>) -> Range<usize> {
    // Layouts have no tensor that overflows.
    tensor.offset..tensor.offset + tensor.checked_len().unwrap_or(0)
}

fn sum_of_squares(values: &[f32]) -> f64 {
    kernels::sum_of_squares_f32(Isa::best(), values)
}
