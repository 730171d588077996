//! Stochastic rounding to a codebook that covers all values: each becomes one of the two magnitudes around
//! it.

use super::fit::Histogram;
use super::{Codebook, Entries, log2_for};
use crate::built::Full;
use crate::rng::Stream;

/// Magnitudes of values must be below this, the first float above the largest bfloat16. So for every one the
/// codebook can have a magnitude that is not below it.
pub(crate) const COVERED_BOUND: f32 = f32::from_bits(0x7f7f_0001);

/// 2³²: a draw is a whole number below it.
const DRAWS: f64 = 4_294_967_296.0;

/// Fits a codebook that covers the values of all entries and rounds each by the draw of its position in the
/// unit.
///
/// Unbiased: a value v between the magnitudes a and b becomes b with the probability (v − a) / (b − a), to
/// within 2⁻³², and its variance is (b − v)·(v − a). Magnitudes below 2⁻¹³³, the smallest bfloat16, become
/// 2⁻¹³³.
pub(in crate::coding::values) fn prepare_unbiased(
    full: Full,
    max_log2: u32,
    entries: &mut Entries<'_>,
    stream: &Stream,
) -> (usize, Codebook) {
    let k = entries.values.len();
    let log2 = log2_for(k).clamp(1, max_log2);
    let book = Histogram::new(entries.values, entries.fit).fit_covering(full, log2);
    for i in 0..k {
        let value = f32::from_bits(entries.values[i]);
        let draw = (stream.u64_at(u64::from(entries.indices[i])) >> 32) as u32;
        let number = number(book.magnitudes(), value.abs(), draw);
        entries.decoded[i] = book.magnitudes[number].copysign(value).to_bits();
        entries.symbols[i] = number as u8 * 2 + u8::from(value.is_sign_negative());
    }
    (k, book)
}

/// The number of the magnitude that `value` becomes.
fn number(magnitudes: &[f32], value: f32, draw: u32) -> usize {
    let above = magnitudes.partition_point(|&magnitude| magnitude <= value);
    let below = above.saturating_sub(1);
    let Some(&high) = magnitudes.get(above) else { return below };
    let [low, high, value] = [magnitudes[below], high, value].map(f64::from);
    let share = (value - low) / (high - low) * DRAWS;
    if f64::from(draw) < share { above } else { below }
}
