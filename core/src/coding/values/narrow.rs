//! Values in a fixed format: f32, f16, bf16.

use super::entries::{Entries, difference_is_exact};
use super::format::ValueFormat;
use crate::kernels::{self, Isa};
use crate::wire::writer::Writer;
use half::{bf16, f16};

/// `value` after it was rounded to `format` and widened again.
pub(crate) fn rounded(format: ValueFormat, value: f32) -> f32 {
    match format {
        ValueFormat::F16(_) => f16::from_f32(value).to_f32(),
        ValueFormat::Bf16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}

/// The smallest magnitude that rounds to infinity in `format`: values must stay below it.
pub(crate) fn overflow_bound(format: ValueFormat) -> f32 {
    match format {
        // Halfway between the largest finite value and the next power of two; ties go to the even side,
        // upwards.
        ValueFormat::F16(_) => 65_520.0,
        ValueFormat::Bf16 => f32::from_bits(0x7f7f_8000),
        _ => f32::INFINITY,
    }
}

/// Appends values, rounded to `format`.
pub(crate) fn put_all(isa: Isa, format: ValueFormat, p: &[u32], writer: &mut Writer<'_>) {
    match format {
        ValueFormat::F16(_) => {
            kernels::put_f16(isa, p, writer.reserve(2 * p.len()).as_chunks_mut().0);
        }
        ValueFormat::Bf16 => kernels::put_bf16(isa, p, writer.reserve(2 * p.len()).as_chunks_mut().0),
        _ => {
            kernels::put_f32(isa, p, writer.reserve(4 * p.len()).as_chunks_mut().0);
        }
    }
}

/// Rounds every entry, dropping those that round to zero; see [`super::ValueChoice::prepare`].
pub(super) fn prepare(format: ValueFormat, entries: &mut Entries<'_>) -> usize {
    if format == ValueFormat::F32 {
        entries.decoded.copy_from_slice(entries.values);
        return entries.values.len();
    }
    let mut kept = 0;
    for i in 0..entries.values.len() {
        let value = f32::from_bits(entries.values[i]);
        let decoded = rounded(format, value);
        if decoded != 0.0 && difference_is_exact(value, decoded) {
            entries.indices[kept] = entries.indices[i];
            entries.values[kept] = entries.values[i];
            entries.decoded[kept] = decoded.to_bits();
            kept += 1;
        }
    }
    kept
}

#[cfg(all(test, feature = "full"))]
mod tests {
    use super::*;
    use crate::built::Full;

    #[test]
    fn the_overflow_bound_is_the_first_value_that_rounds_to_infinity() {
        for format in [ValueFormat::F16(Full::build().unwrap()), ValueFormat::Bf16] {
            let bound = overflow_bound(format);
            assert!(rounded(format, bound).is_infinite());
            assert!(rounded(format, bound.next_down()).is_finite());
        }
    }
}
