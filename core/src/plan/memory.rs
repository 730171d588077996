//! The memory that a plan asks for.

use super::{Group, Plan};
use crate::gradient::layout::LayoutRef;
use crate::gradient::unit::Unit;
use crate::keys::MemoryChoice;
use crate::memory::{Keeper, Memory, StateLen, UnitState};

impl Plan {
    /// Lets the residual of the units that a step had, given ascending, decay as the spelling of each group
    /// says, after a step that holds. An [exchange](https://docs.rs/gradwire-transports) calls this; who
    /// encodes without one does so too.
    ///
    /// # Panics
    /// When the memory has another length than the layout.
    pub fn decay(&self, units: &[Unit], memory: &mut Memory<'_>) {
        let decays = |group: &&Group| group.keeps() && group.spec.decay != 1.0;
        for group in self.groups.iter().filter(decays) {
            for unit in group.units_in(units).iter() {
                // A spelling allows only what decays.
                let _ = memory.slice(unit.range()).decay(group.spec.decay);
            }
        }
    }
}

impl Memory<'static> {
    /// The memory that the groups of a plan need, as before the first step, for a worker and the whole
    /// gradient of that layout. `None` if no group keeps anything.
    ///
    /// It is one memory with every part that any group needs. Every part is found by a place in the whole
    /// model (residual and momentum by coordinate, states by unit, arrays by coordinate or unit), so groups
    /// never overlap. It is saved, moved to another layout and rescaled like any memory. A group that does
    /// not keep a part leaves its share unchanged. That share is zeros, unless the rules changed in between.
    /// What was kept for a tensor that now has `memory=none` is no longer sent.
    ///
    /// # Panics
    /// If the plan is that of another layout, or if two groups need factors, or arrays of one name, of
    /// different lengths. No codec with frames has any.
    #[must_use]
    pub fn for_plan(plan: &Plan, layout: &LayoutRef<'_>) -> Option<Self> {
        plan.assert_for(layout);
        let keeping = || plan.groups().iter().filter(|group| group.keeps());
        keeping().next()?;
        let mut memory = Self::new(alloc::vec![0.0; layout.len()]);
        if keeping().any(|group| group.spec.memory == MemoryChoice::Momentum) {
            memory = memory.with_momentum(alloc::vec![0.0; layout.len()]);
        }
        let lengths = keeping()
            .map(|group| group.spec.codec.state_len(layout, plan.group_of.len(), Keeper::Worker))
            .filter(|lengths| *lengths != StateLen::default())
            .reduce(|one, other| {
                assert_eq!(one, other, "two groups need different factors or arrays");
                one
            });
        let adapts = keeping().any(|group| group.spec.codec.capabilities().adapts);
        let states = if adapts { plan.group_of.len() } else { 0 };
        let memory = memory.with_states(alloc::vec![UnitState::default(); states]);
        let mut memory = memory.with_zeros(&lengths.unwrap_or_default());
        memory.set_magnitude_bound(0.0);
        memory.set_momentum_bound(0.0);
        Some(memory)
    }
}
