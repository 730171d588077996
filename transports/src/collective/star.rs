//! The reduction of payloads at one rank: all others send theirs to it, and get the result.

use std::ops::Range;

use super::reduce::{Holders, Reduce};

/// What travels of a vector between the positions of a world and the one that reduces.
///
/// # Determinism
/// A sum begins with the vector of the position that reduces. Those of the others follow, ascending.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Star {
    /// All positions.
    pub(crate) world: usize,
}

impl Star {
    fn share(self, from: usize, data: &Reduce<'_>) -> Range<usize> {
        data.held(Holders { first: from, count: 1, world: self.world }, 0..data.len())
    }

    /// Bytes that a position sends of a vector.
    pub(crate) fn share_bytes(self, from: usize, data: &Reduce<'_>) -> usize {
        self.share(from, data).len() * data.element_bytes()
    }

    /// Appends what a position sends of its vector.
    pub(crate) fn write_share(self, from: usize, data: &Reduce<'_>, out: &mut Vec<u8>) {
        append(data, self.share(from, data), out);
    }

    /// Folds what a position has sent into the vector of this one.
    pub(crate) fn land_share(self, from: usize, data: &mut Reduce<'_>, incoming: &[u8]) {
        data.fold(self.share(from, data), incoming);
    }

    /// Appends a vector that is reduced.
    pub(crate) fn write(data: &Reduce<'_>, out: &mut Vec<u8>) {
        append(data, 0..data.len(), out);
    }

    /// Replaces a vector by the one that was reduced.
    pub(crate) fn land(data: &mut Reduce<'_>, incoming: &[u8]) {
        data.replace(0..data.len(), incoming);
    }
}

fn append(data: &Reduce<'_>, range: Range<usize>, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + range.len() * data.element_bytes(), 0);
    data.write_to(range, &mut out[start..]);
}
