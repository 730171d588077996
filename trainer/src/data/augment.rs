//! Training images, moved and mirrored at random.
//!
//! Every image is moved up or down and left or right by at most an eighth of its size, in whole pixels drawn
//! evenly, and mirrored left to right in half of the cases. Pixels that come in at the border are 0, which is
//! the mean of standardised features. For 32×32 that is the usual random crop with a border of four pixels.
//!
//! # Determinism
//!
//! The draws depend on seed, epoch and number of the image alone: not on the worker that sees it.
//!
//! # Source
//!
//! He, Zhang, Ren, Sun, arXiv:1512.03385, section 4.2.

use super::Batch;
use crate::rng::{Draws, Purpose};

/// Moves and mirrors the images of a batch; `items` are their numbers in the data set.
pub(super) fn augment(batch: &mut Batch, seed: u64, epoch: u64, items: &[usize]) {
    let Batch::Images { shape: [_, _, height, width], features, .. } = batch else { return };
    let (height, width) = (*height, *width);
    let len = features.len() / items.len().max(1);
    let mut kept = vec![0.0; height * width];
    for (image, &item) in features.chunks_exact_mut(len.max(1)).zip(items) {
        let mut draws = Draws::new(seed, Purpose::Augment, epoch, item as u32);
        let change = Change::draw(&mut draws, height, width);
        for plane in image.chunks_exact_mut(height * width) {
            kept.copy_from_slice(plane);
            change.apply(&kept, plane, width);
        }
    }
}

/// What happens to one image.
#[derive(Clone, Copy)]
struct Change {
    /// Rows and columns that the image moves up and left.
    by: [isize; 2],
    mirrors: bool,
}

impl Change {
    fn draw(draws: &mut Draws, height: usize, width: usize) -> Self {
        let by = [height, width].map(|size| {
            let most = size / 8;
            draws.below(2 * most + 1) as isize - most as isize
        });
        Self { by, mirrors: draws.below(2) == 1 }
    }

    fn apply(self, from: &[f32], to: &mut [f32], width: usize) {
        let rows: Vec<&[f32]> = from.chunks_exact(width).collect();
        for (row, to) in to.chunks_exact_mut(width).enumerate() {
            let source = row.checked_add_signed(self.by[0]).and_then(|row| rows.get(row));
            for (column, to) in to.iter_mut().enumerate() {
                let column = if self.mirrors { width - 1 - column } else { column };
                let column = column.checked_add_signed(self.by[1]);
                *to = source.zip(column).and_then(|(row, column)| row.get(column)).copied().unwrap_or(0.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Batch {
        let features = (1..=4 * 2 * 16 * 8).map(|value| value as f32).collect();
        Batch::Images { shape: [4, 2, 16, 8], features, labels: vec![0, 1, 2, 3] }
    }

    fn features(batch: &Batch) -> &[f32] {
        let Batch::Images { features, .. } = batch else { panic!() };
        features
    }

    fn changed(epoch: u64, items: &[usize]) -> Vec<f32> {
        let mut batch = batch();
        augment(&mut batch, 7, epoch, items);
        features(&batch).to_vec()
    }

    #[test]
    fn an_image_is_moved_and_mirrored_alike_in_all_colours() {
        let from: Vec<f32> = (1..=12).map(|value| value as f32).collect();
        let mut to = vec![f32::NAN; 12];
        Change { by: [1, -1], mirrors: false }.apply(&from, &mut to, 4);
        assert_eq!(to, [0.0, 5.0, 6.0, 7.0, 0.0, 9.0, 10.0, 11.0, 0.0, 0.0, 0.0, 0.0]);
        Change { by: [0, 0], mirrors: true }.apply(&from, &mut to, 4);
        assert_eq!(to[..4], [4.0, 3.0, 2.0, 1.0]);
        for image in changed(0, &[0, 1, 2, 3]).chunks(2 * 16 * 8) {
            let (first, second) = image.split_at(16 * 8);
            assert!(first.iter().zip(second).all(|(&a, &b)| b == if a == 0.0 { 0.0 } else { a + 128.0 }));
        }
    }

    #[test]
    fn what_happens_to_an_image_depends_on_its_number_and_the_epoch() {
        let (whole, len) = (changed(0, &[5, 6, 7, 8]), 2 * 16 * 8);
        assert_eq!(whole[..len], changed(0, &[5, 9, 9, 9])[..len]);
        assert_ne!(whole, changed(1, &[5, 6, 7, 8]));
        assert_ne!(whole, features(&batch()));
    }

    #[test]
    fn every_move_and_both_sides_occur() {
        let mut seen = std::collections::HashSet::new();
        for item in 0..500 {
            let mut draws = Draws::new(1, Purpose::Augment, 0, item);
            let change = Change::draw(&mut draws, 16, 8);
            seen.insert((change.by, change.mirrors));
        }
        assert_eq!(seen.len(), 5 * 3 * 2);
    }
}
