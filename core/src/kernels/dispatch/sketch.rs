//! Count-sketches: in, and out again.

use crate::kernels::isa::Isa;
use crate::kernels::scalar::sketch as scalar;
#[cfg(target_arch = "x86_64")]
use crate::kernels::x86_64::sketch as x86_64;

/// Adds the values whose bits are `p`, from coordinate 0 on, to each row of a sketch: one for each of the
/// `keys`. The length of a row is a multiple of [`SKETCH_BLOCK`](crate::kernels::SKETCH_BLOCK).
pub(crate) fn insert(isa: Isa, p: &[u32], keys: &[u64], table: &mut [f32]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 => x86_64::insert(p, keys, table),
        _ => scalar::insert(p, keys, table),
    }
}

/// Writes the bits of the estimates of all values: the lower median over the rows of `table`, one for each of
/// the `keys`.
pub(crate) fn estimate(isa: Isa, table: &[f32], keys: &[u64], out: &mut [u32]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 => x86_64::estimate(table, keys, out),
        _ => scalar::estimate(table, keys, out),
    }
}
