//! Parameters of Rice codes in blocks of every size.

use crate::kernels::isa::{Isa, compile_for_each_isa};
use crate::kernels::scalar::blocks as scalar;
use crate::kernels::scalar::blocks::{BlockTally, TALLIED, TurnBlocks};
#[cfg(target_arch = "x86_64")]
use crate::kernels::x86_64::blocks as x86_64;

/// The best Rice parameters of the first `entries` of the gaps, whose sum is below 2³², in blocks of up to
/// [`TALLIED`] entries; the other gaps are 0.
pub(crate) fn best_blocks(isa: Isa, gaps: &[u32; TALLIED], entries: usize, blocks: &mut TurnBlocks) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => x86_64::best_blocks(gaps, entries, blocks),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => x86_64::best_blocks_with_avx2(gaps, entries, blocks),
        _ => scalar::best_blocks(gaps, entries, blocks),
    }
}

compile_for_each_isa! {
    /// Adds the next blocks to the sizes of blocks of every size. Only the last turn may have fewer than
    /// [`TALLIED`] entries.
    pub(crate) fn tally_blocks(isa, blocks: &TurnBlocks, tally: &mut BlockTally) = scalar::tally_blocks;
}
