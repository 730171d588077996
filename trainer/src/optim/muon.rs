//! Muon for the matrices between the first and the last layer, AdamW for all else.

use gradwire::arithmetic::{Loop, vectorised};

use super::adamw::{AdamWConfig, require_decay};
use super::moments::Moments;
use super::optimizer::{Optimizer, StateError, saved};
use super::updates::advance;
use crate::range::RangeError;

/// Share of the average of gradients that is kept.
const MOMENTUM: f32 = 0.95;
/// The root of the mean square of a direction of AdamW, roughly, at which one rate suits both.
const SIZE: f32 = 0.2;
/// Steps of Newton and Schulz, and their factors: singular values end between 0.7 and 1.2.
const STEPS: usize = 5;
const FACTORS: [f32; 3] = [3.4445, -4.775, 2.0315];
/// Keeps the length of a matrix from being divided by zero.
const EPSILON: f32 = 1e-7;
const AVERAGE: &str = "average";

/// A tensor of two dimensions, row by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Where it begins in the parameters.
    pub start: usize,
    /// Its rows.
    pub rows: usize,
    /// Its columns.
    pub columns: usize,
}

/// Muon: a matrix moves along an average of its gradients whose singular values were made equal.
///
/// ```text
/// average = 0.95 * average + 0.05 * g
/// ahead = 0.05 * g + 0.95 * average
/// direction = 0.2 * sqrt(max(rows, columns)) * orthogonal(ahead)
/// params = params * (1 - rate * weight_decay) - rate * direction
/// ```
///
/// `orthogonal` divides by the length, and then takes five times
/// 3.4445 X - 4.775 (X Xᵀ) X + 2.0315 (X Xᵀ)² X. All other parameters have the directions of
/// [`AdamW`](super::AdamW). Both have one rate, because the directions of a matrix are about as long as
/// those of AdamW are.
///
/// # Source
///
/// Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024, which has the average with
/// Nesterov's form and the factors; Liu et al., "Muon is scalable for LLM training", arXiv:2502.16982, which
/// has the weight decay and the length of a direction.
#[derive(Clone, Debug)]
pub struct Muon {
    weight_decay: f32,
    moments: Moments,
    average: Vec<f32>,
    direction: Vec<f32>,
    matrices: Vec<Matrix>,
    work: Work,
}

impl Muon {
    /// The optimizer of `len` parameters, at rest; `matrices` are those that Muon moves.
    ///
    /// # Errors
    ///
    /// If a setting is out of range.
    ///
    /// # Panics
    ///
    /// If a matrix is not within the parameters.
    pub fn new(len: usize, config: AdamWConfig, matrices: &[Matrix]) -> Result<Self, RangeError> {
        require_decay(config.weight_decay)?;
        assert!(matrices.iter().all(|one| one.start + one.rows * one.columns <= len), "a matrix is outside");
        Ok(Self {
            weight_decay: config.weight_decay,
            moments: Moments::new(len, config.moments)?,
            average: vec![0.0; len],
            direction: vec![0.0; len],
            matrices: matrices.to_vec(),
            work: Work::default(),
        })
    }
}

impl Optimizer for Muon {
    fn step(&mut self, params: &mut [f32], grad: &[f32], rate: f32) {
        let Self { weight_decay, moments, average, direction, matrices, work } = self;
        let len = direction.len();
        assert_eq!((params.len(), grad.len()), (len, len), "lengths of parameters and gradient");
        direction.copy_from_slice(grad);
        moments.direct(direction);
        for &Matrix { start, rows, columns } in matrices.iter() {
            let range = start..start + rows * columns;
            let ahead = &mut direction[range.clone()];
            vectorised(Ahead { grad: &grad[range.clone()], average: &mut average[range], ahead });
            orthogonalise(ahead, rows, columns, work);
            let size = SIZE * (rows.max(columns) as f32).sqrt();
            ahead.iter_mut().for_each(|value| *value *= size);
        }
        advance(params, direction, rate, *weight_decay);
    }

    fn steps(&self) -> u64 {
        self.moments.steps()
    }

    fn state(&self) -> Vec<(&'static str, &[f32])> {
        let mut state = vec![(AVERAGE, &self.average[..])];
        state.extend(self.moments.state());
        state
    }

    fn restore(&mut self, steps: u64, state: &[(&str, &[f32])]) -> Result<(), StateError> {
        let average = saved(state, AVERAGE, self.average.len())?;
        let moments: Vec<_> = state.iter().copied().filter(|(name, _)| *name != AVERAGE).collect();
        self.moments.restore(steps, &moments)?;
        self.average.copy_from_slice(average);
        Ok(())
    }
}

/// Takes gradients into the average, and looks ahead.
struct Ahead<'a> {
    grad: &'a [f32],
    average: &'a mut [f32],
    ahead: &'a mut [f32],
}

impl Loop for Ahead<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for ((ahead, &g), average) in self.ahead.iter_mut().zip(self.grad).zip(self.average) {
            *average = MOMENTUM * *average + (1.0 - MOMENTUM) * g;
            *ahead = (1.0 - MOMENTUM) * g + MOMENTUM * *average;
        }
    }
}

/// Matrices between two products, of the largest matrix so far.
#[derive(Clone, Debug, Default)]
struct Work {
    wide: Vec<f32>,
    turned: Vec<f32>,
    square: Vec<f32>,
    factor: Vec<f32>,
}

/// Puts in place of a matrix the one with equal singular values that is nearest to it, roughly.
fn orthogonalise(matrix: &mut [f32], rows: usize, columns: usize, work: &mut Work) {
    let Work { wide, turned, square, factor } = work;
    let length = matrix.iter().map(|value| value * value).sum::<f32>().sqrt() + EPSILON;
    matrix.iter_mut().for_each(|value| *value /= length);
    // The products are the smaller, the fewer rows it has.
    let (low, long) = (rows.min(columns), rows.max(columns));
    match rows > columns {
        true => turn(matrix, rows, columns, wide),
        false => {
            wide.clear();
            wide.extend_from_slice(matrix);
        }
    }
    let [once, thrice, five_times] = FACTORS;
    for _ in 0..STEPS {
        turn(wide, low, long, turned);
        product(square, wide, turned, (low, long));
        product(factor, square, square, (low, low));
        let of = |(factor, square): (&mut f32, &f32)| *factor = five_times * *factor + thrice * square;
        factor.iter_mut().zip(square.iter()).for_each(of);
        product(turned, factor, wide, (low, low));
        wide.iter_mut().zip(turned.iter()).for_each(|(value, &turned)| *value = once * *value + turned);
    }
    match rows > columns {
        true => {
            turn(wide, low, long, turned);
            matrix.copy_from_slice(turned);
        }
        false => matrix.copy_from_slice(wide),
    }
}

/// The transposed matrix.
fn turn(matrix: &[f32], rows: usize, columns: usize, into: &mut Vec<f32>) {
    into.clear();
    into.extend((0..columns).flat_map(|column| (0..rows).map(move |row| matrix[row * columns + column])));
}

/// `a · b`, of which `a` has so many rows and columns.
fn product(into: &mut Vec<f32>, a: &[f32], b: &[f32], (rows, inner): (usize, usize)) {
    into.clear();
    into.resize(rows * (b.len() / inner), 0.0);
    vectorised(Product { into, a, b, inner });
}

/// Row by row: the sum of the rows of `b`, each times a value of `a`.
struct Product<'a> {
    into: &'a mut [f32],
    a: &'a [f32],
    b: &'a [f32],
    inner: usize,
}

impl Loop for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let columns = self.b.len() / self.inner;
        for (into, a) in self.into.chunks_exact_mut(columns).zip(self.a.chunks_exact(self.inner)) {
            for (&a, b) in a.iter().zip(self.b.chunks_exact(columns)) {
                into.iter_mut().zip(b).for_each(|(sum, &b)| *sum += a * b);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::AdamW;
    use super::*;

    fn drawn(len: usize, seed: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * i * 7 + 31 * seed + i) % 97) as f32 * 0.037 - 1.7).collect()
    }

    /// x · xᵀ of the shorter side, in f64.
    fn gram(matrix: &[f32], rows: usize, columns: usize) -> Vec<Vec<f64>> {
        let at = |row: usize, column: usize| f64::from(matrix[row * columns + column]);
        let (low, long) = (rows.min(columns), rows.max(columns));
        let of =
            |short: usize, along: usize| if rows <= columns { at(short, along) } else { at(along, short) };
        (0..low).map(|i| (0..low).map(|j| (0..long).map(|k| of(i, k) * of(j, k)).sum()).collect()).collect()
    }

    /// Newton and Schulz in f64, element by element.
    fn naive(matrix: &[f32], rows: usize, columns: usize) -> Vec<f64> {
        let mut x: Vec<f64> = matrix.iter().map(|&value| f64::from(value)).collect();
        let length = x.iter().map(|value| value * value).sum::<f64>().sqrt() + f64::from(EPSILON);
        x.iter_mut().for_each(|value| *value /= length);
        let [once, thrice, five_times] = FACTORS.map(f64::from);
        for _ in 0..STEPS {
            // x xᵀ x, and x xᵀ x xᵀ x, whichever side is longer.
            let cube = |y: &[f64]| -> Vec<f64> {
                let mut out = vec![0.0; y.len()];
                for i in 0..rows {
                    for l in 0..rows {
                        let inner: f64 = (0..columns).map(|k| x[i * columns + k] * x[l * columns + k]).sum();
                        (0..columns).for_each(|j| out[i * columns + j] += inner * y[l * columns + j]);
                    }
                }
                out
            };
            let third = cube(&x);
            let fifth = cube(&third);
            x = (0..x.len()).map(|i| once * x[i] + thrice * third[i] + five_times * fifth[i]).collect();
        }
        x
    }

    #[test]
    fn a_direction_is_that_of_the_naive_form_and_has_equal_singular_values() {
        for (rows, columns) in [(1, 1), (1, 9), (9, 1), (4, 4), (8, 24), (24, 8), (33, 17)] {
            let matrix = drawn(rows * columns, rows);
            let mut direction = matrix.clone();
            orthogonalise(&mut direction, rows, columns, &mut Work::default());
            for (found, expected) in direction.iter().zip(naive(&matrix, rows, columns)) {
                assert!((f64::from(*found) - expected).abs() < 1e-3, "{rows} x {columns}");
            }
        }
        let mut state = 1_u32;
        let mut draw = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let mut direction: Vec<f32> = (0..64).map(&mut draw).collect();
        orthogonalise(&mut direction, 8, 8, &mut Work::default());
        let gram = gram(&direction, 8, 8);
        let squares: f64 = (0..8).map(|i| gram[i][i]).sum();
        assert!((squares / 8.0 - 1.0).abs() < 0.35, "{squares}");
    }

    #[test]
    fn all_but_matrices_move_as_with_adamw_and_a_matrix_by_about_as_much() {
        let matrix = Matrix { start: 10, rows: 16, columns: 32 };
        let len = 10 + 16 * 32 + 7;
        let config = AdamWConfig::default();
        let (mut muon, mut adamw) =
            (Muon::new(len, config, &[matrix]).unwrap(), AdamW::new(len, config).unwrap());
        let (mut params, mut others) = (drawn(len, 3), drawn(len, 3));
        for step in 0..4 {
            let grad = drawn(len, step);
            let before = params.clone();
            muon.step(&mut params, &grad, 0.01);
            adamw.step(&mut others, &grad, 0.01);
            for at in (0..10).chain(10 + 16 * 32..len) {
                assert_eq!(params[at].to_bits(), others[at].to_bits());
            }
            let moved = |at: usize| (before[at] - params[at] - 1e-4 * before[at]).powi(2);
            let size = (10..10 + 16 * 32).map(moved).sum::<f32>() / (16.0 * 32.0);
            assert!((0.0005..0.003).contains(&size.sqrt()), "{}", size.sqrt());
        }
        assert_ne!(params, others);
    }

    #[test]
    fn a_restored_optimizer_goes_on_with_the_same_bits_and_others_are_refused() {
        let matrix = Matrix { start: 2, rows: 5, columns: 3 };
        let new = || Muon::new(20, AdamWConfig::default(), &[matrix]).unwrap();
        let (mut whole, mut params) = (new(), drawn(20, 1));
        (0..10).for_each(|step| whole.step(&mut params, &drawn(20, step), 0.01));
        let mut resumed = new();
        resumed.restore(whole.steps(), &whole.state()).unwrap();
        let mut other = params.clone();
        whole.step(&mut params, &drawn(20, 11), 0.01);
        resumed.step(&mut other, &drawn(20, 11), 0.01);
        assert_eq!(params, other);
        let state = whole.state();
        assert_eq!(new().restore(1, &state[1..]), Err(StateError::Missing { name: AVERAGE, expected: 20 }));
        let more = [state, vec![("more", &[][..])]].concat();
        assert_eq!(new().restore(1, &more), Err(StateError::Unknown("more".to_owned())));
    }

    #[test]
    fn a_matrix_without_a_gradient_stays_where_it_is() {
        let config = AdamWConfig { weight_decay: 0.0, ..AdamWConfig::default() };
        let mut muon = Muon::new(6, config, &[Matrix { start: 0, rows: 2, columns: 3 }]).unwrap();
        let mut params = [1.0; 6];
        muon.step(&mut params, &[0.0; 6], 0.1);
        assert_eq!(params, [1.0; 6]);
    }
}
