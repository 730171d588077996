//! Checksums.

#[cfg(target_arch = "aarch64")]
use crate::kernels::aarch64::checksum as aarch64;
use crate::kernels::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::kernels::isa::has_vpclmulqdq;
use crate::kernels::scalar::checksum as scalar;
#[cfg(target_arch = "x86_64")]
use crate::kernels::x86_64::checksum as x86_64;

/// CRC-32C of `bytes`, continuing `crc`.
pub(crate) fn crc32c(isa: Isa, crc: u32, bytes: &[u8]) -> u32 {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if has_vpclmulqdq() => x86_64::crc32c_by_products(crc, bytes),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx2 => x86_64::crc32c(crc, bytes),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => aarch64::crc32c(crc, bytes),
        Isa::Baseline => scalar::crc32c(crc, bytes),
    }
}
