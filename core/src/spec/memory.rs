//! The memory that a spelling asks for.

use crate::gradient::layout::LayoutRef;
use crate::keys::MemoryChoice;
use crate::memory::{Memory, UnitState};
use crate::spec::Spec;

impl Memory<'static> {
    /// The memory that a spelling asks for, of a whole gradient of that layout, as before the first step; `None` where
    /// nothing is kept.
    #[must_use]
    pub fn for_spec(spec: &Spec, layout: &LayoutRef<'_>) -> Option<Self> {
        let memory = match spec.memory {
            MemoryChoice::None => return None,
            MemoryChoice::ErrorFeedback => Self::new(alloc::vec![0.0; layout.len()]),
            MemoryChoice::Momentum => {
                Self::new(alloc::vec![0.0; layout.len()]).with_momentum(alloc::vec![0.0; layout.len()])
            }
        };
        let units = if spec.codec.capabilities().adapts { spec.units.units(layout).count() } else { 0 };
        let states = alloc::vec![UnitState::default(); units];
        let factors = alloc::vec![0.0; spec.codec.factor_len(layout)];
        let mut memory = memory.with_states(states).with_factors(factors);
        memory.set_magnitude_bound(0.0);
        Some(memory)
    }
}
