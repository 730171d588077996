//! CRC-32C by instruction.

use crate::kernels::scalar::runs::over_runs;
use core::arch::aarch64::*;

/// CRC-32C by its own instruction, for machines that the caller knows to have it.
pub(in crate::kernels) fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    // SAFETY: `Isa::Neon` is named only where the machine has the CRC instructions.
    !unsafe { over_bytes(!crc, bytes) }
}

#[target_feature(enable = "crc")]
fn over_bytes(state: u32, bytes: &[u8]) -> u32 {
    over_runs(
        state,
        bytes,
        |state, word| u64::from(__crc32cd(state as u32, word)),
        |state, byte| __crc32cb(state, byte),
    )
}
