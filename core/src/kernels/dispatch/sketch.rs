//! Count-sketches: in, and out again.

use crate::kernels::isa::compile_for_each_isa;
use crate::kernels::scalar::sketch as scalar;

compile_for_each_isa! {
    /// Adds the values whose bits are `p`, from coordinate 0 on, to one row of a sketch. The length of `row`
    /// is a multiple of [`SKETCH_BLOCK`](crate::kernels::SKETCH_BLOCK).
    pub(crate) fn insert(isa, p: &[u32], key: u64, row: &mut [f32]) = scalar::insert;
}

compile_for_each_isa! {
    /// Writes the bits of the estimates of all values: the lower median over the rows of `table`, one for
    /// each of the `keys`.
    pub(crate) fn estimate(isa, table: &[f32], keys: &[u64], out: &mut [u32]) = scalar::estimate;
}
