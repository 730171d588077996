//! Columns made orthonormal, in the same way on every worker.

/// A column counts as spanned by the columns before it if subtracting them leaves at most this share of its
/// norm: some 2⁶ roundings of f32.
const SPANNED: f64 = 1.0 / (1 << 18) as f64;

/// 2⁻¹⁰⁰: shorter columns count as zero, because too few of their bits are significant.
const LEAST: f64 = f32::from_bits((127 - 100) << 23) as f64;

/// Makes the columns of `rows` elements orthonormal, from left to right. A column that earlier columns span
/// becomes zero.
///
/// ```text
/// v ← v − Σ uⱼ·⟨uⱼ, v⟩ for every column u before v, twice: what the first pass leaves of them by rounding goes in the second
/// v ← v / ‖v‖, or 0
/// ```
///
/// # Source
/// Gram and Schmidt, modified, with one repetition: Giraud, Langou, Rozložník: The loss of orthogonality in
/// the Gram-Schmidt orthogonalization process (Computers and Mathematics with Applications 50, 2005).
pub(super) fn orthonormalise(columns: &mut [f32], rows: usize) {
    for k in 0..columns.len() / rows {
        let (done, rest) = columns.split_at_mut(k * rows);
        let column = &mut rest[..rows];
        let before = norm(column);
        for u in done.chunks_exact(rows).chain(done.chunks_exact(rows)) {
            let share = inner(u, column);
            column.iter_mut().zip(u).for_each(|(v, &u)| *v = (f64::from(*v) - share * f64::from(u)) as f32);
        }
        let left = norm(column);
        let is_kept = before >= LEAST && left > before * SPANNED;
        column.iter_mut().for_each(|v| *v = if is_kept { (f64::from(*v) / left) as f32 } else { 0.0 });
    }
}

/// The same, but a column that would be zero is drawn anew: `draw(i)` is element i of `columns`.
pub(crate) fn complete(columns: &mut [f32], rows: usize, draw: impl Fn(usize) -> f32) {
    orthonormalise(columns, rows);
    let mut is_drawn = false;
    for (k, column) in columns.chunks_exact_mut(rows).enumerate() {
        if column.iter().all(|&v| v == 0.0) {
            column.iter_mut().zip(k * rows..).for_each(|(v, i)| *v = draw(i));
            is_drawn = true;
        }
    }
    if is_drawn {
        orthonormalise(columns, rows);
    }
}

/// The inner product, added from top to bottom in f64.
fn inner(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

fn norm(column: &[f32]) -> f64 {
    libm::sqrt(inner(column, column))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn assert_orthonormal(columns: &[f32], rows: usize) {
        for (i, a) in columns.chunks(rows).enumerate() {
            for (j, b) in columns.chunks(rows).enumerate() {
                let expected = if i == j { norm(a).round() } else { 0.0 };
                assert!((inner(a, b) - expected).abs() < 1e-6, "columns {i} and {j}: {}", inner(a, b));
            }
        }
    }

    #[test]
    fn columns_become_orthonormal_even_when_they_nearly_agree() {
        let rows = 50;
        let mut columns: Vec<f32> =
            (0..4 * rows).map(|i| 1.0 + ((i * 7919) % 1009) as f32 * 1e-4 * (i / rows) as f32).collect();
        orthonormalise(&mut columns, rows);
        assert_orthonormal(&columns, rows);
        assert!(columns.chunks(rows).all(|column| norm(column) > 0.5));
    }

    #[test]
    fn a_column_that_others_span_becomes_zero_and_is_drawn_anew() {
        let spanned = [1.0, 2.0, 2.0, 0.0, 3.0, 6.0, 6.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        let mut columns = spanned;
        orthonormalise(&mut columns, 4);
        assert_eq!(columns[4..], [0.0; 8]);
        let mut columns = spanned;
        complete(&mut columns, 4, |i| [0.5, -0.25, 0.125, 1.0][i % 4] * (1 + i / 8 * i) as f32);
        assert_orthonormal(&columns, 4);
        assert!(columns.chunks(4).all(|column| norm(column) > 0.5), "{columns:?}");
    }

    #[test]
    fn columns_of_any_magnitude_become_unit_vectors_or_zero() {
        for (value, length) in [(1e30, 1.0), (1e-30, 1.0), (1e-31, 0.0), (f32::from_bits(1), 0.0), (0.0, 0.0)]
        {
            let mut column = [value; 9];
            orthonormalise(&mut column, 9);
            assert!((norm(&column) - length).abs() < 1e-6, "{value}");
        }
    }
}
