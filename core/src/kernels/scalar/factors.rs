//! Products of a matrix M, whose rows follow each other as bits of f32, with the columns of a thin factor.

/// Strides of an inner product along a row.
const STRIDES: usize = 8;

/// out = M·Q: element i of column k is the inner product of row i and column k of Q, in eight strided partial
/// sums, then 0+4, 1+5, 2+6, 3+7; 0+2, 1+3; 0+1.
#[inline(always)]
pub(in crate::kernels) fn multiply(m: &[u32], cols: usize, q: &[f32], out: &mut [f32]) {
    let rows = m.len() / cols;
    for (i, row) in m.chunks_exact(cols).enumerate() {
        for (k, column) in q.chunks_exact(cols).enumerate() {
            out[k * rows + i] = inner(row, column);
        }
    }
}

#[inline(always)]
fn inner(row: &[u32], column: &[f32]) -> f32 {
    let ((row, row_tail), (column, column_tail)) =
        (row.as_chunks::<STRIDES>(), column.as_chunks::<STRIDES>());
    let mut sums = [0.0f32; STRIDES];
    for (row, column) in row.iter().zip(column) {
        for stride in 0..STRIDES {
            sums[stride] += f32::from_bits(row[stride]) * column[stride];
        }
    }
    for ((sum, &bits), value) in sums.iter_mut().zip(row_tail).zip(column_tail) {
        *sum += f32::from_bits(bits) * value;
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// out = Mᵀ·P: every column of the result sums the rows of M, each times its element of P, top to bottom.
#[inline(always)]
pub(in crate::kernels) fn multiply_transposed(m: &[u32], cols: usize, p: &[f32], out: &mut [f32]) {
    let rows = m.len() / cols;
    out.fill(0.0);
    for (i, row) in m.chunks_exact(cols).enumerate() {
        for (out, p) in out.chunks_exact_mut(cols).zip(p.chunks_exact(rows)) {
            out.iter_mut().zip(row).for_each(|(out, &bits)| *out += p[i] * f32::from_bits(bits));
        }
    }
}

/// out = P·Qᵀ: every element sums its products by rising column, from +0.
#[inline(always)]
pub(in crate::kernels) fn multiply_out(p: &[f32], q: &[f32], cols: usize, out: &mut [f32]) {
    let rows = out.len() / cols;
    for (i, row) in out.chunks_exact_mut(cols).enumerate() {
        row.fill(0.0);
        for (p, q) in p.chunks_exact(rows).zip(q.chunks_exact(cols)) {
            row.iter_mut().zip(q).for_each(|(out, q)| *out += p[i] * q);
        }
    }
}
