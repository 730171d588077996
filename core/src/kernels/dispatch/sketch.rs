//! Count-sketches: in, and out again.

use crate::kernels::isa::Isa;
use crate::kernels::scalar::sketch as scalar;
#[cfg(target_arch = "x86_64")]
use crate::kernels::x86_64::sketch as x86_64;

/// Adds the values whose bits are `p`, from coordinate 0 on, to one row of a sketch. The length of `row` is a
/// multiple of [`SKETCH_BLOCK`](crate::kernels::SKETCH_BLOCK).
pub(crate) fn insert(isa: Isa, p: &[u32], key: u64, row: &mut [f32]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 => x86_64::insert(p, key, row),
        _ => scalar::insert(p, key, row),
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
