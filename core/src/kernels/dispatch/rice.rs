//! Rice codes.

use crate::bits::BitWriter;
use crate::kernels::isa::Isa;
use crate::kernels::scalar::rice as scalar;
#[cfg(target_arch = "x86_64")]
use crate::kernels::x86_64::rice as x86_64;

/// Writes Rice codes of the gaps in blocks of equal size, each with its parameter r ≤ 31. The lower r bits of
/// each gap go to `lows`. Its upper part goes to `highs` in unary: that many zeros and a one.
pub(crate) fn put_gaps(
    isa: Isa,
    gaps: &[u32],
    block: usize,
    parameters: &[u32],
    lows: &mut BitWriter<'_>,
    highs: &mut BitWriter<'_>,
) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => x86_64::put_gaps(gaps, block, parameters, lows, highs),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => x86_64::put_gaps_with_avx2(gaps, block, parameters, lows, highs),
        _ => scalar::put_gaps(gaps, block, parameters, lows, highs),
    }
}
