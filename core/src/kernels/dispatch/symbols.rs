//! Symbols of levels.

#[cfg(target_arch = "aarch64")]
use crate::kernels::aarch64::symbols as aarch64;
use crate::kernels::isa::{Isa, compile_for_each_isa};
use crate::kernels::scalar::symbols as scalar;
use crate::kernels::scalar::symbols::{CLASS_LANES, MAX_ALPHABET};
#[cfg(target_arch = "x86_64")]
use crate::kernels::x86_64::symbols as x86_64;

/// Adds to `counts` how often each symbol occurs; symbols are below the number of counts, which is at
/// most 256.
pub(crate) fn histogram(isa: Isa, symbols: &[u8], counts: &mut [u32]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx2 if counts.len() <= x86_64::FEW => {
            x86_64::histogram(isa, symbols, counts);
        }
        #[cfg(target_arch = "aarch64")]
        Isa::Neon if counts.len() <= aarch64::FEW => aarch64::histogram(symbols, counts),
        _ => scalar::histogram(symbols, counts),
    }
}

compile_for_each_isa! {
    /// Adds the cost of each symbol in each class to the sum of that class.
    pub(crate) fn class_costs(
        isa,
        symbols: &[u8],
        costs: &[[u32; CLASS_LANES]; MAX_ALPHABET],
        sums: &mut [u32; CLASS_LANES],
    ) = scalar::class_costs;
}

compile_for_each_isa! {
    /// As [`class_costs`], from the counts of the symbols.
    pub(crate) fn counted_class_costs(
        isa,
        counts: &[u32],
        costs: &[[u32; CLASS_LANES]; MAX_ALPHABET],
        sums: &mut [u32; CLASS_LANES],
    ) = scalar::counted_class_costs;
}

compile_for_each_isa! {
    /// Fields to symbols in order of likelihood: 0, +1, −1, +2, −2, …
    pub(crate) fn symbols_of(isa, fields: &[u8], symbols: &mut [u8]) = scalar::symbols_of;
}

compile_for_each_isa! {
    /// acc[i] += weight · (sign · scale · level) for symbols in order of likelihood.
    pub(crate) fn add_symbols(isa, symbols: &[u8], scale: f32, weight: f32, acc: &mut [f32]) = scalar::add_symbols;
}
