//! Copies of a memory, taken before a step.

use crate::built::FullBound;
use crate::memory::{Memory, UnitState};
use alloc::vec::Vec;

/// A copy of all that a [`Memory`] holds, for steps that may turn out to be void. Take it before the step,
/// and restore it if the step is void. Residual and momentum cannot be computed from what an encode leaves:
/// [`give_back`](Memory::give_back) restores fl(residual + gradient), not the residual.
///
/// Takes 4 bytes for each element of residual, momentum, factors and arrays, and 16 for each unit state; a
/// [`take`](Self::take) copies as much. The buffers grow once and are reused.
///
/// # Examples
/// ```
/// use gradwire::state::Snapshot;
/// use gradwire::{Encoder, Grad, LayoutRef, Memory, Source, Spec, StepInput, StepKey, Unit};
///
/// let spec = Spec::parse("topk:density=0.5")?;
/// let (layout, units) = (LayoutRef::flat(2), [Unit::whole(2)]);
/// let mut memory = Memory::new(vec![0.25, 0.0]);
/// let mut before = Snapshot::new();
/// before.take(&memory);
/// let key = StepKey { seed: 7, step: 0, source: Source::Rank(0) };
/// let step = StepInput { key, layout: &layout, units: &units, grad: Grad::F32(&[1.0, 8.0]) };
/// Encoder::new().encode(&spec.codec, &step, Some(&mut memory))?;
/// assert_eq!(memory.residual(), [1.25, 0.0]);
/// // Another rank's gradient was not finite.
/// before.restore(&mut memory);
/// assert_eq!(memory.residual(), [0.25, 0.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Snapshot {
    residual: Vec<f32>,
    magnitude_bound: f32,
    momentum: Vec<f32>,
    momentum_bound: FullBound,
    states: Vec<UnitState>,
    factors: Vec<f32>,
    values: Vec<f32>,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self::new()
    }
}

impl Snapshot {
    /// Of a memory of no elements.
    #[must_use]
    pub fn new() -> Self {
        Self {
            residual: Vec::new(),
            magnitude_bound: f32::INFINITY,
            momentum: Vec::new(),
            momentum_bound: FullBound::UNKNOWN,
            states: Vec::new(),
            factors: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Copies what the memory holds, and discards the previous copy.
    pub fn take(&mut self, memory: &Memory<'_>) {
        copy(&memory.residual, &mut self.residual);
        copy(memory.momentum().unwrap_or_default(), &mut self.momentum);
        copy(&memory.states, &mut self.states);
        copy(&memory.factors, &mut self.factors);
        copy(&memory.values, &mut self.values);
        self.magnitude_bound = memory.magnitude_bound;
        self.momentum_bound = memory.momentum_bound;
    }

    /// Copies the [arrays](Memory::arrays) alone, for linear codecs: whoever gives up their rounds restores
    /// everything else.
    pub fn take_arrays(&mut self, memory: &Memory<'_>) {
        copy(&memory.values, &mut self.values);
    }

    /// Restores the arrays alone.
    ///
    /// # Panics
    /// When they have another length than those that were copied.
    pub fn restore_arrays(&self, memory: &mut Memory<'_>) {
        memory.values.copy_from_slice(&self.values);
    }

    /// Restores the memory, bit for bit, to what it held when the copy was taken.
    ///
    /// # Panics
    /// When a part of the memory has another length than the part that was copied.
    pub fn restore(&self, memory: &mut Memory<'_>) {
        memory.residual.copy_from_slice(&self.residual);
        memory.momentum.as_deref_mut().unwrap_or_default().copy_from_slice(&self.momentum);
        memory.states.copy_from_slice(&self.states);
        memory.factors.copy_from_slice(&self.factors);
        memory.values.copy_from_slice(&self.values);
        memory.magnitude_bound = self.magnitude_bound;
        memory.momentum_bound = self.momentum_bound;
    }

    /// As [`restore`](Self::restore), without a copy of what the memory owns: it changes places with what was
    /// copied, and nothing is left to be restored.
    ///
    /// # Panics
    /// As [`restore`](Self::restore).
    pub fn swap_into(&mut self, memory: &mut Memory<'_>) {
        memory.residual.take_over(&mut self.residual);
        if let Some(momentum) = &mut memory.momentum {
            momentum.take_over(&mut self.momentum);
        }
        memory.states.take_over(&mut self.states);
        memory.factors.take_over(&mut self.factors);
        memory.values.take_over(&mut self.values);
        memory.magnitude_bound = self.magnitude_bound;
        memory.momentum_bound = self.momentum_bound;
    }
}

impl Memory<'_> {
    /// Copies all that another memory holds, bit for bit: as a [`Snapshot`] that is taken of it and restored
    /// here, without its buffers.
    ///
    /// ```
    /// use gradwire::Memory;
    ///
    /// let (dgc, mut copy) = (
    ///     Memory::new(vec![1.0, 2.0]).with_momentum(vec![0.5, 0.0]),
    ///     Memory::new(vec![0.0; 2]).with_momentum(vec![0.0; 2]),
    /// );
    /// copy.copy_from(&dgc);
    /// assert_eq!((copy.residual(), copy.momentum()), (dgc.residual(), Some(&[0.5, 0.0][..])));
    /// ```
    ///
    /// # Panics
    /// When a part of one memory has another length than that of the other.
    pub fn copy_from(&mut self, other: &Memory<'_>) {
        self.residual.copy_from_slice(&other.residual);
        self.momentum
            .as_deref_mut()
            .unwrap_or_default()
            .copy_from_slice(other.momentum().unwrap_or_default());
        self.states.copy_from_slice(&other.states);
        self.factors.copy_from_slice(&other.factors);
        self.values.copy_from_slice(&other.values);
        (self.magnitude_bound, self.momentum_bound) = (other.magnitude_bound, other.momentum_bound);
    }
}

fn copy<T: Copy>(from: &[T], into: &mut Vec<T>) {
    into.clear();
    into.extend_from_slice(from);
}
