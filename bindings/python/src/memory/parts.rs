//! The elements of a memory, on which arrays of numpy stand.

use std::ptr::NonNull;

use pyo3::prelude::*;

use crate::errors::value;
use crate::layout::{Layout, range_of};
use crate::names::{self, ArrayLen, Keeper, Spec, UnitState};

/// The elements of a memory.
pub(super) struct Parts {
    pub(super) residual: Fixed<f32>,
    pub(super) momentum: Option<Fixed<f32>>,
    pub(super) states: Fixed<UnitState>,
    pub(super) factors: Fixed<f32>,
    /// Names and lengths of what else the codec keeps, one after the other in `values`.
    pub(super) arrays: Vec<ArrayLen>,
    pub(super) values: Fixed<f32>,
    /// How many units the layout is cut into, if not as the spelling says.
    pub(super) units: Option<usize>,
}

impl Parts {
    /// Zeros, as many as the codec keeps for the layout, cut into so many units or as the spelling says.
    pub(super) fn for_spec(spec: &Spec, layout: &names::Layout, units: Option<usize>) -> PyResult<Self> {
        let sizes = names::Memory::for_spec(spec, &layout.as_ref());
        let sizes = sizes.ok_or_else(|| value(format!("{spec}: it keeps nothing and has no memory")))?;
        let states = units.filter(|_| !sizes.states().is_empty()).unwrap_or(sizes.states().len());
        let lengths = units.map(|units| spec.codec.state_len(&layout.as_ref(), units, Keeper::Worker));
        let arrays = lengths.as_ref().map_or(sizes.arrays(), |lengths| lengths.arrays()).to_vec();
        Ok(Self {
            residual: Fixed::new(0.0, sizes.residual().len()),
            momentum: sizes.momentum().map(|momentum| Fixed::new(0.0, momentum.len())),
            states: Fixed::new(UnitState::default(), states),
            factors: Fixed::new(0.0, sizes.factors().len()),
            values: Fixed::new(0.0, arrays.iter().map(|array| array.len).sum()),
            arrays,
            units,
        })
    }

    /// A memory over the elements, which must be finite. Its largest magnitude counts as unknown.
    ///
    /// # Safety
    /// The last memory over them is gone, and this one goes before they do.
    pub(super) unsafe fn memory(&self) -> names::Memory<'static> {
        // SAFETY: the caller's promise.
        let Elements { residual, momentum, states, factors, values } = unsafe { self.elements() };
        let memory = names::Memory::new(residual).with_states(states).with_factors(factors);
        let memory = memory.with_arrays(self.arrays.clone(), values);
        match momentum {
            Some(momentum) => memory.with_momentum(momentum),
            None => memory,
        }
    }

    /// # Safety
    /// No memory over the elements is alive, nor made while these are; and they end before the parts do.
    pub(super) unsafe fn elements<'a>(&self) -> Elements<'a> {
        // SAFETY: the caller's promise; the five parts are distinct.
        unsafe {
            Elements {
                residual: self.residual.lend(),
                momentum: self.momentum.as_ref().map(|momentum| momentum.lend()),
                states: self.states.lend(),
                factors: self.factors.lend(),
                values: self.values.lend(),
            }
        }
    }
}

/// The elements of a memory, to be written to.
pub(super) struct Elements<'a> {
    pub(super) residual: &'a mut [f32],
    pub(super) momentum: Option<&'a mut [f32]>,
    pub(super) states: &'a mut [UnitState],
    pub(super) factors: &'a mut [f32],
    /// Those of all arrays.
    pub(super) values: &'a mut [f32],
}

impl Elements<'_> {
    /// Copies what has the same name and shape in both layouts; returns the names. `arrays` are those of
    /// these elements.
    pub(super) fn take(
        &mut self,
        own: &names::Layout,
        arrays: &[ArrayLen],
        lent: &names::Memory<'_>,
        theirs: &Layout,
    ) -> Vec<String> {
        let is_same = own.tensors() == theirs.layout.tensors();
        let mut taken = Vec::new();
        for tensor in own.tensors() {
            let Ok(from) = theirs.find(&tensor.name) else { continue };
            if from.shape != tensor.shape {
                continue;
            }
            let (to, from) = (range_of(tensor), range_of(from));
            self.residual[to.clone()].copy_from_slice(&lent.residual()[from.clone()]);
            if let (Some(momentum), Some(theirs)) = (&mut self.momentum, lent.momentum()) {
                momentum[to].copy_from_slice(&theirs[from]);
            }
            taken.push(tensor.name.clone());
        }
        if is_same && self.states.len() == lent.states().len() {
            self.states.copy_from_slice(lent.states());
        }
        if is_same && self.factors.len() == lent.factors().len() {
            self.factors.copy_from_slice(lent.factors());
        }
        let values = || lent.arrays().iter().filter_map(|array| lent.array(array.name)).flatten();
        if is_same && arrays == lent.arrays() {
            self.values.iter_mut().zip(values()).for_each(|(to, from)| *to = *from);
        }
        taken
    }
}

/// Elements that stay where they are from the first to the last, so that arrays of numpy may stand on them.
pub(super) struct Fixed<T> {
    pub(super) pointer: NonNull<T>,
    pub(super) len: usize,
}

// SAFETY: it owns its elements as a `Box<[T]>` does.
unsafe impl<T: Send> Send for Fixed<T> {}
// SAFETY: as above; a shared `Fixed` hands out nothing but its address.
unsafe impl<T: Sync> Sync for Fixed<T> {}

impl<T: Clone> Fixed<T> {
    fn new(zero: T, len: usize) -> Self {
        let elements = Box::leak(vec![zero; len].into_boxed_slice());
        Self { pointer: NonNull::from(elements).cast(), len }
    }

    /// # Safety
    /// No other slice of these elements is alive, nor made while this one is; and it ends before the `Fixed`
    /// does.
    unsafe fn lend<'a>(&self) -> &'a mut [T] {
        // SAFETY: the elements were leaked by `new`, and are freed when this is dropped.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len) }
    }
}

impl<T> Drop for Fixed<T> {
    fn drop(&mut self) {
        let elements = std::ptr::slice_from_raw_parts_mut(self.pointer.as_ptr(), self.len);
        // SAFETY: `new` leaked a box of these elements.
        drop(unsafe { Box::from_raw(elements) });
    }
}
