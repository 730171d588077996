//! Work cut into parts that several threads share: the feature `parallel`.

use alloc::vec::Vec;
use rayon::prelude::*;

/// From this number of elements on, giving a part to another thread pays.
const LEAST: usize = 1 << 15;

/// Parts for each thread, so that one which is held up has less left to do than the others.
const PARTS_PER_THREAD: usize = 4;

/// Elements of each part except the last: a multiple of `grain`. At least `len` if cutting does not pay.
pub(crate) fn part_len(threads: usize, len: usize, grain: usize) -> usize {
    if threads == 1 {
        return len;
    }
    len.div_ceil(threads.saturating_mul(PARTS_PER_THREAD)).max(LEAST).next_multiple_of(grain)
}

/// What `work` makes of each part, in their order.
pub(crate) fn on_each<P: Send, R: Send>(parts: Vec<P>, work: impl Fn(P) -> R + Send + Sync) -> Vec<R> {
    parts.into_par_iter().map(work).collect()
}
