//! Rounds of rANS.

use crate::kernels::isa::Isa;
use crate::kernels::scalar::rans::{Entries, Lanes, ROUND, SLOTS};
#[cfg(target_arch = "x86_64")]
use crate::kernels::x86_64::rans as x86_64;

/// Decodes the first rounds of `out` by vectors, as long as the words cannot run out within a round. Returns
/// the number of rounds decoded, and updates `taken`, the number of bytes of `words` used so far. Machines
/// without such vectors leave all rounds to the caller.
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "there are no such vectors"))]
pub(crate) fn decode_rounds(
    isa: Isa,
    slots: &[u32; SLOTS],
    states: &mut Lanes,
    words: &[u8],
    taken: &mut usize,
    out: &mut [[u8; ROUND]],
) -> usize {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx2 => x86_64::decode(isa, slots, states, words, taken, out),
        _ => 0,
    }
}

/// Encodes rounds by vectors, from the last to the first, into words that end with the first `free` bytes of
/// `out`, while there is room for the words of a whole round. Returns how many rounds remain to be encoded,
/// and updates `free`. `seen` keeps the bits that the packed entries of all symbols have in common. Machines
/// without such vectors leave all rounds to the caller.
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "there are no such vectors"))]
pub(crate) fn encode_rounds(
    isa: Isa,
    rounds: &[[u8; ROUND]],
    entries: &Entries,
    states: &mut Lanes,
    seen: &mut u32,
    out: &mut [u8],
    free: &mut usize,
) -> usize {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx2 => x86_64::encode(isa, rounds, entries, states, seen, out, free),
        _ => rounds.len(),
    }
}
