//! The memory that a spelling asks for.

use crate::gradient::layout::{LayoutRef, TensorRef};
use crate::keys::MemoryChoice;
use crate::memory::{Dropped, Keeper, Memory, Remapped, StateLen, UnitState};
use crate::spec::Spec;
use alloc::vec::Vec;

impl Memory<'static> {
    /// The memory that a spelling asks for, as before the first step, for a worker and the whole gradient of
    /// that layout. `None` if nothing is kept.
    #[must_use]
    pub fn for_spec(spec: &Spec, layout: &LayoutRef<'_>) -> Option<Self> {
        Self::for_keeper(spec, layout, Keeper::Worker)
    }

    /// The same, for any keeper of a memory.
    #[must_use]
    pub fn for_keeper(spec: &Spec, layout: &LayoutRef<'_>, keeper: Keeper) -> Option<Self> {
        let memory = match spec.memory {
            MemoryChoice::None => return None,
            MemoryChoice::ErrorFeedback | MemoryChoice::State => Self::new(alloc::vec![0.0; layout.len()]),
            MemoryChoice::Momentum => {
                Self::new(alloc::vec![0.0; layout.len()]).with_momentum(alloc::vec![0.0; layout.len()])
            }
        };
        Some(memory.with_parts_of(spec, layout, keeper))
    }

    /// With the states, factors and arrays that a spelling asks for, and a residual of zeros.
    fn with_parts_of(self, spec: &Spec, layout: &LayoutRef<'_>, keeper: Keeper) -> Self {
        let units = spec.units.units(layout).count();
        let states = if spec.codec.capabilities().adapts { units } else { 0 };
        let memory = self.with_states(alloc::vec![UnitState::default(); states]);
        let mut memory = memory.with_zeros(&spec.codec.state_len(layout, units, keeper));
        memory.set_magnitude_bound(0.0);
        memory.set_momentum_bound(0.0);
        memory
    }

    /// With factors and arrays of these lengths, all of them zeros.
    pub(crate) fn with_zeros(self, lengths: &StateLen) -> Self {
        let values = lengths.arrays().iter().map(|array| array.len).sum();
        let memory = self.with_factors(alloc::vec![0.0; lengths.factors()]);
        memory.with_arrays(lengths.arrays().to_vec(), alloc::vec![0.0; values])
    }
}

impl Memory<'_> {
    /// [Moves](Self::remap) this memory, which is for the layout `old`, to a new memory for the layout `new`.
    /// Also returns a report of what moved, and the tensors that have no place in the new memory. The new
    /// memory has momentum if this one has it, and the states, factors and arrays that the spelling needs.
    ///
    /// The factors of each tensor move with the tensor. If the spelling needs other factors than this memory
    /// has, as with another rank, all factors begin at zero.
    ///
    /// # Panics
    /// When this memory has another length than `old`.
    #[must_use]
    pub fn remapped<'l>(
        &self,
        spec: &Spec,
        keeper: Keeper,
        old: &'l LayoutRef<'_>,
        new: &LayoutRef<'_>,
    ) -> (Memory<'static>, Remapped, Vec<Dropped<'l>>) {
        let mut into = Memory::new(alloc::vec![0.0; new.len()]);
        if self.momentum().is_some() {
            into = into.with_momentum(alloc::vec![0.0; new.len()]);
        }
        let (mut into, mut dropped) = (into.with_parts_of(spec, new, keeper), Vec::new());
        let factor_len = |tensor: &TensorRef<'_>| {
            let alone = [TensorRef { offset: 0, ..*tensor }];
            LayoutRef::new(&alone).map_or(0, |layout| spec.codec.state_len(&layout, 1, keeper).factors())
        };
        let report = self.remap_with(old, new, &mut into, Some(&factor_len), |tensor| dropped.push(tensor));
        (into, report, dropped)
    }
}
