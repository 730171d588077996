//! A step that leaves the memory of the step before as it was.

use crate::gradient::grad::Grad;
use crate::gradient::unit::Unit;
use crate::kernels::{self, Isa};
use crate::memory::Memory;

impl Memory<'_> {
    /// Prepares this memory for the next step of one unit, and leaves `before`, the memory so far, as it is.
    /// Returns whether the gradient holds a value other than zero.
    ///
    /// For steps that may come to nothing: `before` holds what the step began with until the caller knows
    /// that all went well. A [`Snapshot`](crate::state::Snapshot) does the same for every codec, and costs
    /// another copy.
    ///
    /// Here the gradient takes the place of the residual, and the unit's state is that of `before`.
    /// [`Gather::encode_beside`](crate::Gather::encode_beside) then adds the residual of `before` to the
    /// gradient instead of the gradient to the residual, which gives the same sum, bit for bit. Codecs with
    /// momentum or factors treat the two differently: they need the snapshot.
    ///
    /// # Panics
    /// When the gradient has another length than the unit, or a memory ends before the unit.
    ///
    /// # Examples
    /// ```
    /// use gradwire::{Gather, Grad, LayoutRef, Memory, Scratch, Source, Spec, StepKey, Unit};
    ///
    /// let codec = Spec::parse("topk:density=0.5")?.codec;
    /// let (layout, units) = (LayoutRef::flat(2), [Unit::whole(2)]);
    /// let (mut old, mut new) = ([0.25, 0.0], [0.0; 2]);
    /// let (before, mut memory) = (Memory::new(&mut old), Memory::new(&mut new));
    /// assert!(memory.begin_beside(&before, &units[0], Grad::F32(&[1.0, 8.0])));
    ///
    /// let (mut words, mut bytes, mut frame) = ([0; 64], [0; 64], [0; 128]);
    /// let mut scratch = Scratch { words: &mut words, bytes: &mut bytes };
    /// let key = StepKey { seed: 7, step: 0, source: Source::Rank(0) };
    /// codec.encode_beside(key, &layout, &units, &before, &mut memory, &mut scratch, &mut frame)?;
    /// assert_eq!((memory.residual(), before.residual()), (&[1.25, 0.0][..], &[0.25, 0.0][..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin_beside(&mut self, before: &Memory<'_>, unit: &Unit, grad: Grad<'_>) -> bool {
        assert_eq!(grad.len(), unit.len, "gradient and unit differ in length");
        self.take_state(before, unit);
        self.set_residual(unit, grad) != 0
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

    fn take_state(&mut self, before: &Memory<'_>, unit: &Unit) {
        let state = usize::try_from(unit.id).ok().and_then(|id| before.states.get(id));
        if let (Some(from), Some(to)) = (state, self.state_mut(unit.id)) {
            *to = *from;
        }
    }

    /// Returns the largest magnitude bits.
    fn set_residual(&mut self, unit: &Unit, values: Grad<'_>) -> u32 {
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
        max
    }
}

/// Elements that are read again while they are in the first cache level.
const BLOCK: usize = 2048;

fn write(into: &mut [f32], values: impl Iterator<Item = f32>) {
    into.iter_mut().zip(values).for_each(|(into, value)| *into = value);
}
