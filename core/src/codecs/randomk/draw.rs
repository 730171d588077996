//! Which coordinates are drawn.

use crate::error::{DecodeError, Field};
use crate::gradient::density::Density;
use crate::gradient::layout::Span;
use crate::rng::Stream;
use crate::wire::reader::Reader;
use crate::wire::writer::{MAX_VARINT_BYTES, Writer};

/// What is drawn as a whole: the key `block=` of a spelling. Each coordinate is in as many blocks as any
/// other, so the estimators promise the same with each of them.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Block {
    /// Nothing: every coordinate is drawn alone, and each k-subset of a unit is equally likely.
    #[default]
    None,
    /// A run of k neighbours, of which each start is equally likely. After the last coordinate of the unit
    /// comes its first.
    Run,
    /// A rectangle of a matrix, of which each first corner is equally likely. After the last row comes the
    /// first, and after the last column the first. Its last row is shorter where that makes it k entries. Its
    /// share of the columns is about the square root of the density.
    ///
    /// A matrix is a unit of whole rows of one tensor with two or more dimensions; a row is one index of the
    /// first dimension. In any other unit it is a [`Run`](Self::Run).
    Tile,
}

impl Block {
    /// Words of working memory that [`Drawing::draw`] needs beside the positions.
    pub(super) fn spare_words(self, len: usize) -> usize {
        if self == Self::None { bitmap_words(len) } else { 0 }
    }

    /// The most bytes that a body takes for it.
    pub(super) fn most_bytes(self) -> usize {
        if self == Self::Tile { 2 * MAX_VARINT_BYTES } else { 0 }
    }
}

/// How the positions of a unit are drawn, as its body says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drawing {
    /// Every position alone.
    Alone,
    /// As a run.
    Run,
    /// As a tile of `width` columns, where a row has `columns` positions.
    Tile { columns: usize, width: usize },
}

impl Drawing {
    /// That of a unit of which this share is drawn.
    pub(super) fn new(block: Block, density: Density, span: Span<'_>) -> Self {
        match block {
            Block::None => Self::Alone,
            Block::Run => Self::Run,
            Block::Tile => columns(span).map_or(Self::Run, |columns| {
                let rows = span.len / columns;
                let width = tile_width(density, columns).max(density.count(span.len).div_ceil(rows));
                Self::Tile { columns, width }
            }),
        }
    }

    /// That of `k` out of `len` positions. `number` is that on the wire.
    pub(super) fn read(
        number: u8,
        len: usize,
        k: usize,
        reader: &mut Reader<'_>,
    ) -> Result<Self, DecodeError> {
        match number {
            0 => Ok(Self::Alone),
            1 => Ok(Self::Run),
            2 => {
                let (columns, width) = (reader.varint_usize()?, reader.varint_usize()?);
                let is_matrix = (1..=len).contains(&columns) && len.is_multiple_of(columns);
                let has_room = || (1..=columns).contains(&width) && k.div_ceil(width) <= len / columns;
                let is_tile = is_matrix && has_room();
                is_tile.then_some(Self::Tile { columns, width }).ok_or(DecodeError::InvalidField(Field::Tile))
            }
            _ => Err(DecodeError::InvalidField(Field::Coding)),
        }
    }

    /// Writes how it is drawn, and in which format the values are.
    pub(super) fn write(self, value_format: u8, writer: &mut Writer<'_>) {
        match self {
            Self::Alone => writer.u8(value_format),
            Self::Run => writer.u8(value_format | 1 << 4),
            Self::Tile { columns, width } => {
                writer.u8(value_format | 2 << 4);
                writer.varint(columns as u64);
                writer.varint(width as u64);
            }
        }
    }

    /// Words of working memory that [`draw`](Self::draw) needs beside the positions.
    pub(super) fn spare_words(self, len: usize) -> usize {
        if self == Self::Alone { bitmap_words(len) } else { 0 }
    }

    /// Draws as many positions below `len` as `indices` has room for, and writes them ascending. `spare` has
    /// at least [`spare_words`](Self::spare_words).
    pub(super) fn draw(self, stream: &Stream, len: usize, indices: &mut [u32], spare: &mut [u32]) {
        if indices.is_empty() {
            return;
        }
        match self {
            Self::Alone => sample(stream, len, indices, &mut spare[..bitmap_words(len)]),
            Self::Run => tile(stream, len, (len, len), indices),
            Self::Tile { columns, width } => tile(stream, len, (columns, width), indices),
        }
    }
}

/// Coordinates of a row, if the span is whole rows of one tensor and nothing else.
fn columns(span: Span<'_>) -> Option<usize> {
    let mut parts = span.parts();
    let (part, others) = (parts.next()?, parts.next());
    let columns = part.row.filter(|_| others.is_none() && part.into_row == 0)?;
    span.len.is_multiple_of(columns).then_some(columns)
}

/// Columns of a tile, at least 1. With r = ⌊1/density⌋, a tile is one of r₁ · r₂ ≤ r, where r₁ =
/// 2^⌊log₂(r)/2⌋ parts cut the rows, and r₂ = ⌊r/r₁⌋ the columns.
fn tile_width(density: Density, columns: usize) -> usize {
    let ratio = density.whole_ratio();
    let of_rows = 1 << (ratio.ilog2() / 2);
    (columns / (ratio / of_rows) as usize).max(1)
}

/// Words of a bitmap over `len` coordinates.
fn bitmap_words(len: usize) -> usize {
    len.div_ceil(32)
}

/// Writes a uniformly drawn k-subset of the coordinates below `len` to `indices` (k elements), ascending.
/// `bitmap` has [`bitmap_words`] words.
///
/// For j = len − k … len − 1: draw t below j + 1; take t, or j if t is already taken (Floyd).
fn sample(stream: &Stream, len: usize, indices: &mut [u32], bitmap: &mut [u32]) {
    bitmap.fill(0);
    let first = len - indices.len();
    let mut pair = [0; 2];
    for (draw, j) in (first..len).enumerate() {
        if draw.is_multiple_of(2) {
            pair = stream.u64_pair(draw as u64 / 2);
        }
        let t = Stream::scaled(pair[draw % 2], j as u64 + 1) as usize;
        let taken = if bitmap[t / 32] >> (t % 32) & 1 == 1 { j } else { t };
        bitmap[taken / 32] |= 1 << (taken % 32);
    }
    let mut slots = indices.iter_mut();
    for (i, &word) in bitmap.iter().enumerate() {
        let mut word = word;
        while word != 0 {
            if let Some(slot) = slots.next() {
                *slot = i as u32 * 32 + word.trailing_zeros();
            }
            word &= word - 1;
        }
    }
}

/// Writes the positions of a tile to `indices`, ascending. Its first corner is a uniformly drawn position
/// below `len`. It fills `width` of the `columns` of row after row, until it has as many positions as
/// `indices`.
fn tile(stream: &Stream, len: usize, (columns, width): (usize, usize), indices: &mut [u32]) {
    let (k, corner) = (indices.len(), stream.below_at(0, len as u64) as usize);
    let (rows, first_row, first_column) = (len / columns, corner / columns, corner % columns);
    let mut slots = indices.iter_mut();
    for row in neighbours(first_row, k.div_ceil(width), rows) {
        let above = if row < first_row { row + (rows - first_row) } else { row - first_row };
        let of_row = neighbours(first_column, width.min(k - above * width), columns);
        of_row.zip(&mut slots).for_each(|(column, slot)| *slot = (row * columns + column) as u32);
    }
}

/// `count` numbers below `len`, from `first` on and then from 0 on, ascending.
fn neighbours(first: usize, count: usize, len: usize) -> impl Iterator<Item = usize> {
    let wrapped = count.saturating_sub(len - first);
    (0..wrapped).chain(first..first + (count - wrapped))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use rand_core::SeedableRng;
    use std::collections::BTreeSet;
    use std::{vec, vec::Vec};

    #[test]
    fn samples_are_distinct_ascending_and_complete() {
        for len in 1..70usize {
            for k in 1..=len {
                let mut indices = vec![0; k];
                let stream = Stream::from_seed((len as u64 * 100 + k as u64).to_le_bytes());
                sample(&stream, len, &mut indices, &mut vec![u32::MAX; bitmap_words(len)]);
                assert!(indices.windows(2).all(|pair| pair[0] < pair[1]));
                assert!((indices[k - 1] as usize) < len);
            }
        }
    }

    #[test]
    fn every_subset_is_equally_likely() {
        // 10 subsets of 2 out of 5, 10 000 draws: mean 1000, standard deviation 30; five of them either side.
        let mut seen = [0u32; 32];
        for seed in 0..10_000u64 {
            let mut indices = [0; 2];
            sample(&Stream::from_seed(seed.to_le_bytes()), 5, &mut indices, &mut [0]);
            seen[(1 << indices[0] | 1 << indices[1]) as usize] += 1;
        }
        let counts: Vec<u32> = seen.into_iter().filter(|&count| count > 0).collect();
        assert_eq!(counts.len(), 10);
        assert!(counts.iter().all(|&count| (850..=1150).contains(&count)), "{counts:?}");
    }

    fn drawn(drawing: Drawing, seed: u64, len: usize, k: usize) -> Vec<u32> {
        let mut indices = vec![u32::MAX; k];
        drawing.draw(&Stream::from_seed(seed.to_le_bytes()), len, &mut indices, &mut []);
        indices
    }

    #[test]
    fn every_run_is_equally_likely_also_where_it_goes_on_at_the_beginning() {
        // 5 runs of 2 out of 5, 10 000 draws: mean 2000, standard deviation 40; five of them either side.
        let mut seen = [0u32; 5];
        for seed in 0..10_000 {
            let runs = [[0, 1], [1, 2], [2, 3], [3, 4], [0, 4]];
            let run = drawn(Drawing::Run, seed, 5, 2);
            seen[runs.iter().position(|known| run == known).expect("two neighbours")] += 1;
        }
        assert!(seen.iter().all(|count| (1800..=2200).contains(count)), "{seen:?}");
    }

    #[test]
    fn every_tile_is_equally_likely_also_where_it_goes_on_at_the_first_row_and_column() {
        // 12 tiles in 3 rows of 4 columns, of 3 entries in 2 columns; 12 000 draws: mean 1000, standard
        // deviation 30; five of them either side.
        let mut seen = [0u32; 12];
        let tile_at = |row: u32, column: u32| {
            let at = |down: u32, right: u32| (row + down) % 3 * 4 + (column + right) % 4;
            let mut tile = vec![at(0, 0), at(0, 1), at(1, 0)];
            tile.sort_unstable();
            tile
        };
        let tiles: Vec<Vec<u32>> = (0..12).map(|corner| tile_at(corner / 4, corner % 4)).collect();
        for seed in 0..12_000 {
            let tile = drawn(Drawing::Tile { columns: 4, width: 2 }, seed, 12, 3);
            seen[tiles.iter().position(|known| tile == *known).expect("a tile")] += 1;
        }
        assert!(seen.iter().all(|count| (850..=1150).contains(count)), "{seen:?}");
    }

    #[test]
    fn blocks_are_ascending_and_complete() {
        for (columns, rows) in [(1usize, 1usize), (1, 9), (9, 1), (2, 3), (5, 7), (8, 4)] {
            let len = columns * rows;
            for (k, width) in
                (1..=len).flat_map(|k| (k.div_ceil(rows)..=columns).map(move |width| (k, width)))
            {
                for seed in 0..20 {
                    let tile = drawn(Drawing::Tile { columns, width }, seed, len, k);
                    assert!(tile.windows(2).all(|pair| pair[0] < pair[1]) && (tile[k - 1] as usize) < len);
                    let used = |of: fn(u32, u32) -> u32| {
                        tile.iter().map(|&at| of(at, columns as u32)).collect::<BTreeSet<_>>().len()
                    };
                    assert_eq!(used(|at, columns| at / columns), k.div_ceil(width));
                    assert_eq!(used(|at, columns| at % columns), width.min(k));
                }
            }
        }
    }

    #[test]
    fn tiles_have_the_proportions_of_the_density() {
        // Of 64 rows and 256 columns: a hundredth is an eighth of the rows and a twelfth of the columns, ...
        let widths = [1.0, 0.5, 0.3, 0.25, 0.1, 0.01, 0.001, 1e-9].map(|density| {
            let density = Density::new(density).unwrap();
            tile_width(density, 256)
        });
        assert_eq!(widths, [256, 128, 85, 128, 51, 21, 4, 1]);
    }
}
