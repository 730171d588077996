//! Count-sketches, cell by cell: the sum of all workers', and what is kept in it.

use super::draws::{Draws, Purpose};
use super::encode::{count, largest};
use super::header::absorb;
use gradwire::codecs::{Sketch, SketchError};
use gradwire::{Source, StepKey};
use std::collections::BTreeSet;

/// The cell of a coordinate in a row with this key, and its sign.
#[must_use]
pub fn cell(key: u64, columns: usize, i: usize) -> (usize, f32) {
    let (block, j) = (i / 16, i % 16);
    let hash = absorb(key, block as u64);
    let first = ((hash >> 32) * (columns as u64 / 16)) >> 32;
    let sign = if hash >> (4 + j) & 1 == 1 { -1.0 } else { 1.0 };
    (first as usize * 16 + (j ^ (hash % 16) as usize), sign)
}

/// The keys of the rows.
#[must_use]
pub fn keys(rows: u8, key: StepKey, unit: u32) -> Vec<u64> {
    let draws = Draws::new(StepKey { source: Source::Shared, ..key }, unit, Purpose::Selection);
    (0..u64::from(rows)).map(|row| draws.u64_at(row)).collect()
}

/// The sketch of one worker, row after row.
#[must_use]
pub fn sketch(keys: &[u64], columns: usize, p: &[f32]) -> Vec<f32> {
    let mut table = vec![0.0; keys.len() * columns];
    for (row, &key) in keys.iter().enumerate() {
        for (i, &value) in p.iter().enumerate() {
            let (cell, sign) = cell(key, columns, i);
            table[row * columns + cell] += sign * value;
        }
    }
    table
}

/// What a sketch says of `n` coordinates: the lower median over the rows.
#[must_use]
pub fn estimates(keys: &[u64], columns: usize, table: &[f32], n: usize) -> Vec<f32> {
    let estimate = |i: usize| {
        let of_row = |(row, &key): (usize, &u64)| {
            let (cell, sign) = cell(key, columns, i);
            sign * table[row * columns + cell]
        };
        let mut of_rows: Vec<f32> = keys.iter().enumerate().map(of_row).collect();
        of_rows.sort_by(f32::total_cmp);
        of_rows[(of_rows.len() - 1) / 2]
    };
    (0..n).map(estimate).collect()
}

/// The sum in the order of ranks.
#[must_use]
pub fn sum(all: &[Vec<f32>]) -> Vec<f32> {
    let add = |sum: Vec<f32>, one: &Vec<f32>| sum.iter().zip(one).map(|(sum, one)| sum + one).collect();
    all[1..].iter().fold(all[0].clone(), add)
}

/// Columns of a row, if a unit of `n` coordinates is sketched.
#[must_use]
pub fn columns(codec: &Sketch, n: usize) -> Option<usize> {
    let rows = usize::from(codec.rows());
    let wanted = (codec.cells().fraction() * n as f64).ceil() as usize;
    let columns = 16 * (wanted / (16 * rows)).max(1);
    (rows * columns < n).then_some(columns)
}

/// The two sketches that all workers keep of one unit: of the error, and of the momentum.
pub type Kept = [Vec<f32>; 2];

/// The mean of a step. `p` has what each worker sketches; with the error at the workers, `kept` stays as it
/// is.
#[must_use]
pub fn step(codec: &Sketch, key: StepKey, unit: u32, p: &[Vec<f32>], kept: &mut Kept) -> Vec<f32> {
    let (n, workers) = (p[0].len(), p.len() as f32);
    let Some(columns) = columns(codec, n) else {
        return sum(p).iter().map(|sum| sum / workers).collect();
    };
    let key = if codec.error() == SketchError::Workers { key } else { StepKey { step: 0, ..key } };
    let keys = keys(codec.rows(), key, unit);
    let total = sum(&p.iter().map(|p| sketch(&keys, columns, p)).collect::<Vec<_>>());
    let mut mean = vec![0.0; n];
    let k = count(codec.density(), n);
    let SketchError::Sketched { momentum } = codec.error() else {
        let estimates = estimates(&keys, columns, &total, n);
        largest(&estimates, k).iter().for_each(|&at| mean[at] = estimates[at] / workers);
        return mean;
    };
    let [error, momenta] = kept;
    for ((total, e), u) in total.iter().zip(&mut *error).zip(&mut *momenta) {
        *u = momentum * *u + total / workers;
        *e += *u;
    }
    let estimates = estimates(&keys, columns, error, n);
    let sent = largest(&estimates, k);
    let cells = |(row, &key): (usize, &u64)| -> Vec<usize> {
        sent.iter().map(|&at| row * columns + cell(key, columns, at).0).collect()
    };
    for at in keys.iter().enumerate().flat_map(cells).collect::<BTreeSet<_>>() {
        (error[at], momenta[at]) = (0.0, 0.0);
    }
    sent.iter().for_each(|&at| mean[at] = estimates[at]);
    mean
}
