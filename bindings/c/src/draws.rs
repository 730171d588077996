//! Random draws that depend only on their key and position.

use crate::raw::{Outcome, boundary, give};
use crate::results::{GW_ERROR_OUT_OF_RANGE, gw_result};
use codecs::{Source, StepKey};

/// In place of a rank: draws that every rank repeats in the same way.
pub const GW_ALL_RANKS: u32 = 4294967295;

/// Ranks are below this, because a draw has 30 bits for them.
pub const GW_RANKS: u32 = 1073741823;

pub(crate) fn source(rank: u32) -> Outcome<Source> {
    match rank {
        GW_ALL_RANKS => Ok(Source::Shared),
        rank if rank < GW_RANKS => Ok(Source::Rank(rank)),
        _ => Err(GW_ERROR_OUT_OF_RANGE),
    }
}

/// A random number of 64 bits for the caller's own use: initial weights, shuffles, masks. It depends on
/// the arguments alone, is the same on every machine, and is not related to any draw of a codec. `unit`
/// separates several uses in one step.
///
/// Errors: GW_ERROR_OUT_OF_RANGE for a rank that is neither below GW_RANKS nor GW_ALL_RANKS,
/// GW_ERROR_NULL_POINTER. Threads: any, at any time.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_draw(
    seed: u64,
    step: u64,
    rank: u32,
    unit: u32,
    position: u64,
    draw: *mut u64,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let key = StepKey { seed, step, source: source(rank)? };
        give(draw, key.stream(unit).u64_at(position))
    })
}
