//! Zeros past the caches.

use crate::kernels::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::kernels::x86_64::clear as x86_64;

/// Sets all values to +0.0, without reading them and, where the machine can, without bringing them into the
/// caches.
pub(crate) fn clear(isa: Isa, values: &mut [f32]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => x86_64::clear(values),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => x86_64::clear_with_avx2(values),
        _ => values.fill(0.0),
    }
}
