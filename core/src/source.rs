//! What a codec encodes: p = fl(residual + gradient), computed block by block where it is needed.

use crate::error::EncodeError;
use crate::grad::Grad;
use crate::kernels::{self, Isa, scalar::MAGNITUDE};
use crate::memory::Memory;

/// Elements that are looked at together: small enough for the first cache level.
pub(crate) const BLOCK: usize = 1024;

/// Narrow gradients are widened on the stack this many at a time.
const NARROW_BLOCK: usize = 256;

/// The values of one unit: its gradient, and its residual if it has one.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    grad: Grad<'a>,
    residual: Option<&'a [f32]>,
    /// Position of the unit in the flat gradient, for errors.
    start: usize,
    /// Magnitudes must be below this.
    bound: f32,
}

impl<'a> Source<'a> {
    /// # Panics
    /// When the lengths differ.
    pub(crate) fn new(grad: Grad<'a>, residual: Option<&'a [f32]>, start: usize, bound: f32) -> Self {
        let same = residual.is_none_or(|residual| residual.len() == grad.len());
        assert!(same, "gradient and residual differ in length");
        Self { grad, residual, start, bound }
    }

    pub(crate) fn len(&self) -> usize {
        self.grad.len()
    }

    /// Calls `f(first, gradient, residual)` for consecutive blocks of at most [`BLOCK`] elements, until it fails.
    pub(crate) fn try_for_each_block<E>(
        &self,
        mut f: impl FnMut(usize, &[f32], Option<&[f32]>) -> Result<(), E>,
    ) -> Result<(), E> {
        for first in (0..self.len()).step_by(BLOCK) {
            let len = BLOCK.min(self.len() - first);
            self.try_for_range(first, len, &mut f)?;
        }
        Ok(())
    }

    /// Calls `f(first, gradient, residual)` for the elements `first … first + len`, in one or more pieces.
    pub(crate) fn try_for_range<E>(
        &self,
        first: usize,
        len: usize,
        mut f: impl FnMut(usize, &[f32], Option<&[f32]>) -> Result<(), E>,
    ) -> Result<(), E> {
        let residual = |at: usize, len: usize| self.residual.map(|residual| &residual[at..at + len]);
        if let Grad::F32(values) = self.grad {
            return f(first, &values[first..first + len], residual(first, len));
        }
        let mut widened = [0.0; NARROW_BLOCK];
        for at in (first..first + len).step_by(NARROW_BLOCK) {
            let len = NARROW_BLOCK.min(first + len - at);
            widen(self.grad.slice(at, len), &mut widened[..len]);
            f(at, &widened[..len], residual(at, len))?;
        }
        Ok(())
    }

    /// Writes the bits of p for the elements `first … first + p.len()`.
    ///
    /// # Errors
    /// `NonFiniteInput` or `ValueOverflow`, with the first coordinate whose magnitude is not below the bound.
    pub(crate) fn fold(&self, isa: Isa, first: usize, p: &mut [u32]) -> Result<(), EncodeError> {
        self.try_for_range(first, p.len(), |at, grad, residual| {
            let p = &mut p[at - first..at - first + grad.len()];
            let max = match residual {
                None => kernels::copy_to(isa, grad, p),
                Some(residual) => kernels::add_to(isa, residual, grad, p),
            };
            self.check(max, at, p)
        })
    }

    /// The bits of p for the elements `first … first + room.len()`: where the gradient is held, if that is what they are,
    /// else in `room`.
    ///
    /// # Errors
    /// As [`fold`](Self::fold).
    pub(crate) fn bits<'p>(
        &self,
        isa: Isa,
        first: usize,
        room: &'p mut [u32],
    ) -> Result<&'p [u32], EncodeError>
    where
        'a: 'p,
    {
        if let (Grad::F32(values), None) = (self.grad, self.residual) {
            let p = kernels::bits_of(&values[first..first + room.len()]);
            self.check(kernels::max_magnitude(isa, p), first, p)?;
            return Ok(p);
        }
        self.fold(isa, first, room)?;
        Ok(room)
    }

    /// Looks at every value and changes nothing.
    ///
    /// # Errors
    /// As [`fold`](Self::fold).
    pub(crate) fn check_all(&self, isa: Isa) -> Result<(), EncodeError> {
        let mut p = [0; NARROW_BLOCK];
        (0..self.len()).step_by(NARROW_BLOCK).try_for_each(|first| {
            let len = NARROW_BLOCK.min(self.len() - first);
            self.fold(isa, first, &mut p[..len])
        })
    }

    /// Largest magnitude bits that a value may have.
    pub(crate) fn is_within_bound(&self, max: u32) -> bool {
        // Magnitude bits order like magnitudes, infinities and NaN above all.
        max < self.bound.to_bits()
    }

    fn check(&self, max: u32, first: usize, p: &[u32]) -> Result<(), EncodeError> {
        if self.is_within_bound(max) {
            return Ok(());
        }
        let offender = p.iter().position(|&bits| !self.is_within_bound(bits & MAGNITUDE)).unwrap_or(0);
        let index = self.start + first + offender;
        if p.get(offender).is_some_and(|&bits| f32::from_bits(bits).is_finite()) {
            Err(EncodeError::ValueOverflow { index })
        } else {
            Err(EncodeError::NonFiniteInput { index })
        }
    }

    /// The error of a block in which a value is not within the bound.
    pub(crate) fn error_in(&self, first: usize, len: usize) -> EncodeError {
        let mut p = [0; NARROW_BLOCK];
        let blocks = (first..first + len).step_by(NARROW_BLOCK);
        let errors =
            blocks.map(|at| self.fold(Isa::Baseline, at, &mut p[..NARROW_BLOCK.min(first + len - at)]));
        let error = errors.into_iter().find_map(Result::err);
        error.unwrap_or(EncodeError::NonFiniteInput { index: self.start + first })
    }
}

fn widen(grad: Grad<'_>, out: &mut [f32]) {
    match grad {
        Grad::F32(values) => out.copy_from_slice(values),
        Grad::F16(values) => out.iter_mut().zip(values).for_each(|(out, value)| *out = value.to_f32()),
        Grad::Bf16(values) => out.iter_mut().zip(values).for_each(|(out, value)| *out = value.to_f32()),
    }
}

/// residual = fl(residual + gradient), everywhere.
pub(crate) fn add_gradient(isa: Isa, grad: Grad<'_>, memory: &mut Memory<'_>) {
    let residual = memory.residual_mut();
    let mut widened = [0.0; NARROW_BLOCK];
    match grad {
        Grad::F32(values) => kernels::add_assign(isa, residual, values),
        narrow => {
            for (i, residual) in residual.chunks_mut(NARROW_BLOCK).enumerate() {
                let widened = &mut widened[..residual.len()];
                widen(narrow.slice(i * NARROW_BLOCK, residual.len()), widened);
                kernels::add_assign(isa, residual, widened);
            }
        }
    }
}
