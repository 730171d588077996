//! Static order-0 rANS over up to 256 symbols, with interleaved states.
//!
//! All states are `u32` in [2^16, 2^32), frequencies sum to M = 2^12, and 16-bit little-endian words
//! renormalise a state; no symbol ever needs more than one word. Symbol i belongs to lane i mod lanes; all
//! lanes share one sequence of words. With f the frequency of a symbol and c the sum of those before it:
//! ```text
//! encode, from the last symbol to the first:      decode, from the first symbol to the last:
//!   if x >= f << 20: emit x & 0xffff; x >>= 16      slot = x & 0xfff; symbol = the one whose slots hold it
//!   x = (x / f << 12) + c + x % f                   x = f * (x >> 12) + slot - c
//!                                                   if x < 1 << 16: x = x << 16 | next word
//! ```
//! A stream is the final state of every encoder lane (`u32`, little-endian, lane 0 first) and then the words
//! in the order in which the decoder takes them, which is the reverse of the order of emission. The encoder
//! begins with 2^16 in every lane. So a decoder that has read an intact stream ends there, with every word
//! taken ([`Decoder::is_intact`]).
//!
//! Everything is integer arithmetic: tables, sizes and bytes are the same on every platform.
//!
//! # Source
//! J. Duda, "Asymmetric numeral systems", arXiv 1311.2540; interleaving after F. Giesen, "Interleaved entropy
//! coders", arXiv 1402.3392. One 16-bit word a symbol at most lets vectors decode 32 lanes from the same
//! bytes.

mod decode;
mod encode;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use crate::kernels::scalar::rans::{Entries, MAX_LANES_LOG2, SLOTS};
pub(crate) use crate::kernels::scalar::symbols::MAX_ALPHABET;
pub(crate) use decode::Decoder;
pub(crate) use encode::{Encoder, fill_entries};
pub(crate) use table::Table;

/// Symbols coded with one test for the end of the words.
const GROUP: usize = 8;

/// Most bytes of words that a group takes.
const GROUP_BYTES: usize = 2 * GROUP;

/// Lanes of a stream; a log2 above the largest counts as the largest.
fn lanes(lanes_log2: u32) -> usize {
    1 << lanes_log2.min(MAX_LANES_LOG2)
}
