//! The loops that touch every element. [`scalar`] and [`plain`] define every result. The loops in `scalar`
//! are compiled for each instruction set that is worth it. The few loops that compilers do not vectorise are
//! written out in a folder for each architecture and must match the plain ones bit for bit. `dispatch` is the
//! only place that chooses.
//!
//! A file names the file that defines its imports, and imports only from files to its left: `isa`, `fetch`,
//! `views` <- `scalar` <- `x86_64`, `aarch64`, `plain` <- `dispatch` <- this file, which only names what
//! others may use.

#[cfg(target_arch = "aarch64")]
#[allow(unsafe_code, reason = "loads, stores and calls of functions for instruction sets that were detected")]
mod aarch64;
mod dispatch;
mod fetch;
mod isa;
#[cfg(any(
    test,
    not(any(
        all(target_arch = "x86_64", target_feature = "sse2"),
        all(target_arch = "aarch64", target_feature = "neon")
    ))
))]
pub(crate) mod plain;
pub(crate) mod scalar;
mod views;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "loads, stores and calls of functions for instruction sets that were detected")]
mod x86_64;

#[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
pub(crate) use aarch64::{mixing, shares};
pub(crate) use dispatch::blocks::{best_blocks, tally_blocks};
pub(crate) use dispatch::cast::{
    add_bf16, add_f16, add_f32, max_magnitude_bytes, max_magnitude_narrow, put_bf16, put_f16, put_f32,
};
pub(crate) use dispatch::checksum::crc32c;
pub(crate) use dispatch::clear::clear;
pub(crate) use dispatch::factors::{multiply, multiply_out, multiply_transposed};
pub(crate) use dispatch::fields::{
    add_bytes, add_nibbles, pack_fields, pack_ternary, unpack_fields, unpack_ternary,
};
pub(crate) use dispatch::gaps::{gaps, ones, positions};
pub(crate) use dispatch::moments::{add_magnitudes, add_moments, multiply_magnitudes, sum_magnitudes};
pub(crate) use dispatch::momentum::{add_steps, peek_momentum};
#[cfg(test)]
use dispatch::quantize::fill_u16;
pub(crate) use dispatch::quantize::{keep_rounding, quantize};
pub(crate) use dispatch::rans::{decode_rounds, encode_rounds};
pub(crate) use dispatch::rice::put_gaps;
pub(crate) use dispatch::select::{compact, keep_between, keep_from};
pub(crate) use dispatch::signs::{add_signs, keep_signs, pack_signs};
pub(crate) use dispatch::sketch;
pub(crate) use dispatch::sums::{
    add_assign, add_squares, add_to, add_values, are_finite, copy_to, divide, max_magnitude,
    sum_of_squares_f32,
};
pub(crate) use dispatch::symbols::{add_symbols, class_costs, counted_class_costs, histogram, symbols_of};
pub(crate) use fetch::{FETCH_AHEAD, fetch};
pub use isa::Loop;
pub(crate) use isa::{Isa, run_for};
#[cfg(not(any(
    all(target_arch = "x86_64", target_feature = "sse2"),
    all(target_arch = "aarch64", target_feature = "neon")
)))]
pub(crate) use plain::{mixing, shares};
pub(crate) use scalar::blocks::{BlockSums, BlockTally, LEAF, PlaneBits, SIZES, TALLIED, TurnBlocks};
pub(crate) use scalar::gaps::{ONES, TURN, behind};
pub(crate) use scalar::moments::{MomentSums, STRIDES, add_moments_at, mantissa_and_exponent};
#[cfg(feature = "alloc")]
pub(crate) use scalar::momentum::Largest;
pub(crate) use scalar::quantize::Bucket;
pub(crate) use scalar::select::{CANDIDATE_SLACK, Candidates, Sums};
pub(crate) use scalar::sketch::{MAX_SKETCH_ROWS, SKETCH_BLOCK, cell as sketch_cell};
pub(crate) use scalar::symbols::CLASS_LANES;
pub use views::bytes_of;
pub(crate) use views::{bits_of, bits_of_mut, floats_of, halves_of};
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
pub(crate) use x86_64::{mixing, shares};

/// Values from which on those that are written in a step are worth non-temporal stores. With what is read for
/// them they are 24 MiB, more than a core's share of the last cache: they would be driven out before they are
/// read again, and would drive out what is read meanwhile.
pub(crate) const NON_TEMPORAL_LEN: usize = 2 << 20;

#[cfg(test)]
mod tests;
