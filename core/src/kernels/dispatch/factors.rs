//! Products with thin factors.

use crate::kernels::isa::compile_for_each_isa;
use crate::kernels::scalar::factors as scalar;

compile_for_each_isa! {
    /// out = M·Q, column after column: M as bits in rows of `cols`, Q in columns of `cols`.
    pub(crate) fn multiply(isa, m: &[u32], cols: usize, q: &[f32], out: &mut [f32]) = scalar::multiply;
}

compile_for_each_isa! {
    /// out = Mᵀ·P, column after column: M as bits in rows of `cols`, P in columns as long as M has rows.
    pub(crate) fn multiply_transposed(isa, m: &[u32], cols: usize, p: &[f32], out: &mut [f32]) = scalar::multiply_transposed;
}

compile_for_each_isa! {
    /// out = P·Qᵀ, in rows of `cols`.
    pub(crate) fn multiply_out(isa, p: &[f32], q: &[f32], cols: usize, out: &mut [f32]) = scalar::multiply_out;
}
