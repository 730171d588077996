//! The bodies of `randomk`: coordinates that are drawn alone, as a run, or as a tile.

use super::context::Place;
use super::draws::{Draws, Purpose};
use super::encode::{billionths, count};
use super::header::varint;
use super::values;
use gradwire::codecs::{Block, Estimator, RandomK};
use gradwire::{Source, StepKey};

/// The bytes, what they decode to, and the positions of the entries.
pub(super) fn body(
    randomk: &RandomK,
    (key, unit): (StepKey, u32),
    place: &Place<'_>,
    p: &[f32],
) -> (Vec<u8>, Vec<f32>, Vec<usize>) {
    let (len, k) = (p.len(), count(randomk.density(), p.len()));
    let draws = Draws::new(StepKey { source: Source::Shared, ..key }, unit, Purpose::Selection);
    let (form, selected) = match (randomk.block(), tile(randomk, place)) {
        (Block::None, _) => (vec![values::F32], draws.sample(len, k)),
        (Block::Tile, Some((columns, width))) => {
            let form = [vec![values::F32 | 2 << 4], varint(columns as u64), varint(width as u64)].concat();
            (form, draws.tile(len, k, (columns, width)))
        }
        _ => (vec![values::F32 | 1 << 4], draws.tile(len, k, (len, len))),
    };
    let factor = match randomk.estimator() {
        Estimator::Contraction => 1.0,
        Estimator::Unbiased => (len as f64 / k as f64) as f32,
        other => panic!("the reference does not know {other:?}"),
    };
    let mut decoded = vec![0.0; len];
    selected.iter().for_each(|&i| decoded[i] = p[i] * factor);
    let values = selected.iter().flat_map(|&i| decoded[i].to_le_bytes()).collect();
    let bytes = [key.seed.to_le_bytes().to_vec(), varint(k as u64), form, values].concat();
    (bytes, decoded, selected)
}

/// Columns of the matrix that the unit is, and those that a tile has of them.
fn tile(randomk: &RandomK, place: &Place<'_>) -> Option<(usize, usize)> {
    let columns = columns(place)?;
    let ratio = (1_000_000_000 / billionths(randomk.density())) as usize;
    // The largest power of two whose square is at most the ratio.
    let of_rows = (0..).map(|power| 1 << power).find(|power: &usize| 4 * power * power > ratio)?;
    let least = count(randomk.density(), place.len).div_ceil(place.len / columns);
    Some((columns, (columns / (ratio / of_rows)).max(least).max(1)))
}

/// Coordinates of a row, if the unit is whole rows of one tensor.
fn columns(place: &Place<'_>) -> Option<usize> {
    let mut first = 0;
    for shape in place.shapes? {
        let end = first + shape.iter().product::<usize>();
        if first <= place.start && place.start + place.len <= end && place.len > 0 {
            let columns = shape.get(1..).filter(|others| !others.is_empty())?.iter().product();
            let is_whole = [place.start - first, place.len].iter().all(|len| len.is_multiple_of(columns));
            return is_whole.then_some(columns);
        }
        first = end;
    }
    None
}
