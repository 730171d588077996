//! Count-sketches whose hashes serve 16 neighbours each.
//!
//! A row of a sketch hashes a block of 16 neighbouring coordinates to a block of 16 neighbouring cells, in an
//! order and with signs from the same hash. Any two coordinates share a cell with the probability of
//! independent hashes, 1/columns, or, in one block, never. So one hash and two cache lines serve 16
//! coordinates.

use crate::gradient::layout::absorb;

/// Coordinates of a block, and cells.
pub(crate) const SKETCH_BLOCK: usize = 16;

/// The most rows of a sketch.
pub(crate) const MAX_SKETCH_ROWS: usize = 9;

/// Where a row keeps a block.
#[derive(Clone, Copy, Default)]
pub(in crate::kernels) struct Place {
    /// The first cell.
    pub(in crate::kernels) first: usize,
    /// Coordinate j of the block is in cell j xor `turn`.
    pub(in crate::kernels) turn: usize,
    /// Bit j says whether coordinate j is negated.
    pub(in crate::kernels) signs: u32,
}

#[inline(always)]
pub(in crate::kernels) fn place(key: u64, block: u64, columns: usize) -> Place {
    let hash = absorb(key, block);
    let blocks = (columns / SKETCH_BLOCK) as u64;
    let first = (((hash >> 32) * blocks) >> 32) as usize * SKETCH_BLOCK;
    Place { first, turn: hash as usize % SKETCH_BLOCK, signs: hash as u32 >> 4 & 0xffff }
}

impl Place {
    /// The sign of coordinate j, as the highest bit of a float.
    #[inline(always)]
    fn sign(&self, j: usize) -> u32 {
        self.signs >> j << 31
    }
}

/// The cell of a row in which a coordinate is.
pub(crate) fn cell(key: u64, index: usize, columns: usize) -> usize {
    let place = place(key, (index / SKETCH_BLOCK) as u64, columns);
    place.first + (index ^ place.turn) % SKETCH_BLOCK
}

#[inline(always)]
pub(in crate::kernels) fn insert(p: &[u32], keys: &[u64], table: &mut [f32]) {
    insert_from(0, p, keys, table);
}

/// The same for values of which the first begins this block.
#[inline(always)]
pub(in crate::kernels) fn insert_from(first: u64, p: &[u32], keys: &[u64], table: &mut [f32]) {
    let columns = table.len() / keys.len();
    for (row, &key) in table.chunks_exact_mut(columns).zip(keys) {
        for (block, p) in (first..).zip(p.chunks(SKETCH_BLOCK)) {
            let place = place(key, block, columns);
            let cells = &mut row[place.first..][..SKETCH_BLOCK];
            for (j, &bits) in p.iter().enumerate() {
                cells[(j ^ place.turn) % SKETCH_BLOCK] += f32::from_bits(bits ^ place.sign(j));
            }
        }
    }
}

#[inline(always)]
pub(in crate::kernels) fn estimate(table: &[f32], keys: &[u64], out: &mut [u32]) {
    estimate_from(0, table, keys, out);
}

/// The same for values of which the first begins this block.
#[inline(always)]
pub(in crate::kernels) fn estimate_from(first: u64, table: &[f32], keys: &[u64], out: &mut [u32]) {
    let columns = table.len() / keys.len();
    let mut rows = [[0.0f32; SKETCH_BLOCK]; MAX_SKETCH_ROWS];
    let rows = &mut rows[..keys.len()];
    for (block, out) in (first..).zip(out.chunks_mut(SKETCH_BLOCK)) {
        for ((estimates, cells), &key) in rows.iter_mut().zip(table.chunks_exact(columns)).zip(keys) {
            let place = place(key, block, columns);
            let cells = &cells[place.first..][..SKETCH_BLOCK];
            for (j, estimate) in estimates.iter_mut().enumerate() {
                let cell = cells[(j ^ place.turn) % SKETCH_BLOCK];
                *estimate = f32::from_bits(cell.to_bits() ^ place.sign(j));
            }
        }
        for (out, &estimate) in out.iter_mut().zip(median(rows)) {
            *out = estimate.to_bits();
        }
    }
}

/// The lower median of each lane. A comparison that is false leaves two values as they are, so a NaN has a
/// place, too, and every machine finds the same bits.
#[inline(always)]
fn median(rows: &mut [[f32; SKETCH_BLOCK]]) -> &[f32; SKETCH_BLOCK] {
    for pass in 0..rows.len() {
        for pair in rows[pass % 2..].chunks_exact_mut(2) {
            let [low, high] = pair else { continue };
            for (low, high) in low.iter_mut().zip(high) {
                let (a, b) = (*low, *high);
                (*low, *high) = if b < a { (b, a) } else { (a, b) };
            }
        }
    }
    &rows[(rows.len() - 1) / 2]
}
