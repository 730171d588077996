//! One step of the power iteration on the mean of the workers' matrices, in f64 and as the formulas are
//! printed.

/// The columns of a matrix.
type Columns = Vec<Vec<f64>>;

/// What one step comes to.
#[derive(Clone, Debug)]
pub struct Approximation {
    /// P·Qᵀ, row by row.
    pub mean: Vec<f64>,
    /// The sum over the workers of Mᵀ·P, divided by their number: where the next step begins.
    pub q: Columns,
}

fn inner(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Gram and Schmidt. A column that the others span to within `spanned` becomes zero.
#[must_use]
pub fn orthonormal(columns: &Columns, spanned: f64) -> Columns {
    let mut done: Columns = Vec::new();
    for column in columns {
        let mut rest = column.clone();
        for _ in 0..2 {
            for u in &done {
                let share = inner(u, &rest);
                rest.iter_mut().zip(u).for_each(|(v, u)| *v -= share * u);
            }
        }
        let (before, left) = (inner(column, column).sqrt(), inner(&rest, &rest).sqrt());
        let factor = if left > before * spanned { 1.0 / left } else { 0.0 };
        done.push(rest.iter().map(|v| v * factor).collect());
    }
    done
}

/// The step for matrices of `rows` × `cols` that begins with these orthonormal columns.
#[must_use]
pub fn step(matrices: &[Vec<f32>], rows: usize, cols: usize, q: &Columns) -> Approximation {
    let count = matrices.len() as f64;
    let mean = |i: usize, j: usize| matrices.iter().map(|m| f64::from(m[i * cols + j])).sum::<f64>() / count;
    let matrix: Vec<Vec<f64>> = (0..rows).map(|i| (0..cols).map(|j| mean(i, j)).collect()).collect();
    let p: Columns = q.iter().map(|q| matrix.iter().map(|row| inner(row, q)).collect()).collect();
    let p = orthonormal(&p, 1e-9);
    let column = |p: &Vec<f64>| (0..cols).map(|j| (0..rows).map(|i| matrix[i][j] * p[i]).sum()).collect();
    let q: Columns = p.iter().map(column).collect();
    let entry = |i: usize, j: usize| p.iter().zip(&q).map(|(p, q)| p[i] * q[j]).sum();
    let mean = (0..rows).flat_map(|i| (0..cols).map(move |j| (i, j))).map(|(i, j)| entry(i, j)).collect();
    Approximation { mean, q }
}
