//! A sum of squares that takes its terms one by one.

use crate::corrected::BLOCK;
use crate::kernels::scalar::sums::Strides;
use crate::kernels::scalar::total_of;
use crate::kernels::{self, Isa};

/// Σ x² in f64: eight strided partial sums, then their tree.
pub(crate) struct SquareSum {
    isa: Isa,
    sums: Strides,
    /// Terms that wait until a block of them is full.
    waiting: [u32; BLOCK],
    len: usize,
}

impl SquareSum {
    pub(super) fn new() -> Self {
        Self { isa: Isa::best(), sums: [0.0; 8], waiting: [0; BLOCK], len: 0 }
    }

    /// The sum over values whose bits these are.
    #[cfg(feature = "alloc")]
    pub(crate) fn of(bits: &[u32]) -> f64 {
        let mut sums: Strides = [0.0; 8];
        kernels::add_squares(Isa::best(), bits, &mut sums);
        total_of(sums)
    }

    /// Adds one term.
    pub(super) fn push(&mut self, value: f32) {
        self.waiting[self.len] = value.to_bits();
        self.len += 1;
        self.settle();
    }

    /// Adds several.
    pub(super) fn extend(&mut self, mut values: &[f32]) {
        while !values.is_empty() {
            let room = &mut self.waiting[self.len..];
            let (now, later) = values.split_at(room.len().min(values.len()));
            room[..now.len()].copy_from_slice(kernels::bits_of(now));
            self.len += now.len();
            values = later;
            self.settle();
        }
    }

    /// The sum.
    pub(super) fn total(mut self) -> f64 {
        kernels::add_squares(self.isa, &self.waiting[..self.len], &mut self.sums);
        total_of(self.sums)
    }

    fn settle(&mut self) {
        if self.len == BLOCK {
            kernels::add_squares(self.isa, &self.waiting, &mut self.sums);
            self.len = 0;
        }
    }
}
