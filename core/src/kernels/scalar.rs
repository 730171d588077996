//! The plain loops that define every result, and the parts that they and the vectors share. Inlined into one
//! function for each instruction set; see `compile_for_each_isa`.

pub(crate) mod blocks;
pub(crate) mod cast;
pub(crate) mod checksum;
pub(crate) mod factors;
pub(crate) mod fields;
pub(crate) mod floats;
pub(crate) mod gaps;
pub(crate) mod mixing;
pub(crate) mod moments;
pub(crate) mod momentum;
pub(crate) mod quantize;
pub(crate) mod rans;
pub(crate) mod rice;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) mod runs;
pub(crate) mod select;
pub(crate) mod shares;
pub(crate) mod signs;
pub(crate) mod sketch;
pub(crate) mod sums;
pub(crate) mod symbols;

pub(crate) use fields::FIELD_SIGN;
pub(crate) use floats::MAGNITUDE;
pub(crate) use sums::{Strides, total_of};
