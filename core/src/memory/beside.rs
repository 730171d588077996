//! A step that leaves the memory of the step before as it was.

use crate::gradient::grad::Grad;
use crate::gradient::unit::Unit;
use crate::kernels::{self, Isa};
use crate::memory::Memory;

impl Memory<'_> {
    /// The gradient of one unit takes the place of its residual, and the unit's state is that of `before`.
    /// The residual of `before` is then added to it, instead of the gradient to the residual, which gives the
    /// same sum, bit for bit.
    ///
    /// # Panics
    /// When the gradient has another length than the unit, or a memory ends before the unit.
    pub(crate) fn begin_beside(&mut self, before: &Memory<'_>, unit: &Unit, grad: Grad<'_>) {
        assert_eq!(grad.len(), unit.len, "gradient and unit differ in length");
        self.take_state(before, unit);
        self.set_residual(unit, grad);
    }

    /// Takes one unit over from `before`, bit for bit: its residual and its state, for a step that does not
    /// encode it.
    ///
    /// # Panics
    /// When a memory ends before the unit.
    pub fn carry_over(&mut self, before: &Memory<'_>, unit: &Unit) {
        self.take_state(before, unit);
        self.set_residual(unit, Grad::F32(&before.residual[unit.start..unit.start + unit.len]));
    }

    /// Takes the state of one unit over.
    pub(crate) fn take_state(&mut self, before: &Memory<'_>, unit: &Unit) {
        let state = usize::try_from(unit.id).ok().and_then(|id| before.states.get(id));
        if let (Some(from), Some(to)) = (state, self.state_mut(unit.id)) {
            *to = *from;
        }
    }

    fn set_residual(&mut self, unit: &Unit, values: Grad<'_>) {
        let residual = &mut self.residual[unit.start..unit.start + unit.len];
        let (isa, mut max) = (Isa::best(), 0);
        for (at, residual) in residual.chunks_mut(BLOCK).enumerate() {
            match values.slice(at * BLOCK, residual.len()) {
                Grad::F32(values) => residual.copy_from_slice(values),
                Grad::F16(values) => write(residual, values.iter().map(|value| value.to_f32())),
                Grad::Bf16(values) => write(residual, values.iter().map(|value| value.to_f32())),
            }
            max = max.max(kernels::max_magnitude(isa, kernels::bits_of(residual)));
        }
        let largest = f32::from_bits(max);
        // A value that is not finite bounds nothing.
        self.magnitude_bound =
            if largest.is_finite() { self.magnitude_bound.max(largest) } else { f32::INFINITY };
    }
}

/// Elements that are read again while they are in the first cache level.
const BLOCK: usize = 2048;

fn write(into: &mut [f32], values: impl Iterator<Item = f32>) {
    into.iter_mut().zip(values).for_each(|(into, value)| *into = value);
}
