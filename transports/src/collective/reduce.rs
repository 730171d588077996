//! The arithmetic of a reduction: how a segment is written, folded and put in place.

use std::ops::Range;

use gradwire::arithmetic::{Loop, vectorised};
use half::bf16;

/// The format of an f32 on the wire between two hops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wire {
    /// Four bytes, exact.
    #[default]
    F32,
    /// Two bytes: partial sums are f32 and are rounded to bfloat16 (nearest, ties to even) once per hop.
    Bf16,
}

/// A reduction and the vector it works on, of the same length at every rank.
#[derive(Debug)]
#[non_exhaustive]
pub enum Reduce<'a> {
    /// The sum of f32, in the written order of [`reduce_scatter`](super::reduce_scatter).
    SumF32(&'a mut [f32], Wire),
    /// The sum of i32 modulo 2^32 (two's complement): it wraps, in debug builds too. Callers prove that
    /// theirs does not overflow; the order does not matter.
    SumI32(&'a mut [i32]),
    /// The largest f32 as [`max_f32`] defines it; the order does not matter.
    MaxF32(&'a mut [f32]),
    /// The smallest i32; the order does not matter.
    MinI32(&'a mut [i32]),
    /// The bits that are set at every rank; the order does not matter.
    And(&'a mut [u32]),
    /// The sum of bytes modulo 256, counts of votes: it wraps. Callers prove that theirs does not overflow;
    /// the order does not matter.
    SumU8(&'a mut [u8]),
    /// The bytes of every rank: each has its own in the [segment] of its position. What it has in the others
    /// does not matter, and does not travel.
    Gather(&'a mut [u8]),
    /// The bytes of the rank at that position. What others have does not matter, and does not travel. Without
    /// such a position, all ranks end with the same bytes, whosever.
    Broadcast(&'a mut [u8], usize),
}

/// Neighbours around the ring whose vectors a partial result holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holders {
    /// The first position.
    pub(super) first: usize,
    /// How many there are.
    pub(super) count: usize,
    /// All positions.
    pub(super) world: usize,
}

impl Holders {
    fn has(&self, position: usize) -> bool {
        (position + self.world - self.first) % self.world < self.count
    }
}

/// The larger of two values, in either order the same: a NaN wins and becomes the quiet NaN 0x7fc00000, and
/// +0 is larger than −0.
pub fn max_f32(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() {
        return f32::from_bits(0x7fc0_0000);
    }
    if a.total_cmp(&b).is_lt() { b } else { a }
}

/// Elements of segment `position` when `len` are cut for `world` ranks: from ⌊position·len/world⌋ up to, not
/// including, ⌊(position+1)·len/world⌋. Lengths differ by at most one; some are 0 when `len` < `world`.
pub fn segment(len: usize, world: usize, position: usize) -> Range<usize> {
    // Wide, so that the product cannot overflow; the quotient is at most `len`.
    let start = |at: usize| (at as u128 * len as u128 / world as u128) as usize;
    start(position)..start(position + 1)
}

impl Reduce<'_> {
    /// Elements of the vector.
    pub fn len(&self) -> usize {
        match self {
            Self::SumF32(data, _) | Self::MaxF32(data) => data.len(),
            Self::SumI32(data) | Self::MinI32(data) => data.len(),
            Self::And(data) => data.len(),
            Self::SumU8(data) | Self::Gather(data) | Self::Broadcast(data, _) => data.len(),
        }
    }

    /// Whether the vector has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that one element takes on the wire.
    pub fn element_bytes(&self) -> usize {
        match self {
            Self::SumF32(_, Wire::Bf16) => 2,
            Self::SumU8(_) | Self::Gather(_) | Self::Broadcast(..) => 1,
            _ => 4,
        }
    }

    /// Whether values are only copied, so that a partial result of some ranks may be a part of the vector.
    pub(super) fn is_copy(&self) -> bool {
        matches!(self, Self::Gather(_) | Self::Broadcast(..))
    }

    /// The elements of `range` that a partial result of these ranks has: all of a sum.
    pub(super) fn held(&self, by: Holders, range: Range<usize>) -> Range<usize> {
        match self {
            Self::Gather(data) => {
                let cut = |position: usize| segment(data.len(), by.world, position).start;
                let (first, end) = (cut(by.first), cut(by.first + by.count));
                let first = range.start.max(first).min(range.end);
                first..range.end.min(end).max(first)
            }
            Self::Broadcast(_, from) if !by.has(*from) => range.start..range.start,
            _ => range,
        }
    }

    /// Replaces what is in `out` by the elements of `range`, little-endian. Nothing is cleared first in a
    /// buffer that was as long before.
    pub(super) fn write(&self, range: Range<usize>, out: &mut Vec<u8>) {
        out.resize(range.len() * self.element_bytes(), 0);
        self.write_to(range, out);
    }

    /// Writes the elements of `range`, little-endian, over `out`, which has their length.
    pub(super) fn write_to(&self, range: Range<usize>, out: &mut [u8]) {
        vectorised(Write { data: self, range, out });
    }

    /// Folds the received values into the elements of `range`: received on the left, own on the right.
    pub(super) fn fold(&mut self, range: Range<usize>, incoming: &[u8]) {
        vectorised(Fold { data: self, range, incoming });
    }

    /// Replaces the elements of `range` by the received values.
    pub(super) fn replace(&mut self, range: Range<usize>, incoming: &[u8]) {
        vectorised(Replace { data: self, range, incoming });
    }

    /// Copies the elements of `range` to `front`. The range is not longer than what lies between.
    pub(super) fn copy_to(&mut self, front: usize, range: Range<usize>) {
        match self {
            Self::SumF32(data, _) | Self::MaxF32(data) => data.copy_within(range, front),
            Self::SumI32(data) | Self::MinI32(data) => data.copy_within(range, front),
            Self::And(data) => data.copy_within(range, front),
            Self::SumU8(data) | Self::Gather(data) | Self::Broadcast(data, _) => {
                data.copy_within(range, front);
            }
        }
    }

    /// Folds the elements at `front` into those of `range`, which is not longer than what lies between.
    pub(super) fn fold_from(&mut self, front: usize, range: Range<usize>) {
        vectorised(FoldFront { data: self, front, range });
    }

    /// Replaces a finished segment by the values that the others will read from the wire.
    pub(super) fn settle(&mut self, range: Range<usize>) {
        if let Self::SumF32(data, Wire::Bf16) = self {
            vectorised(Settle(&mut data[range]));
        }
    }
}

struct Write<'r, 'a> {
    data: &'r Reduce<'a>,
    range: Range<usize>,
    out: &'r mut [u8],
}

impl Loop for Write<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { data, range, out } = self;
        match data {
            Reduce::SumF32(data, Wire::Bf16) => {
                put(out, &data[range], |x: f32| bf16::from_f32(x).to_le_bytes());
            }
            Reduce::SumF32(data, Wire::F32) | Reduce::MaxF32(data) => {
                put(out, &data[range], f32::to_le_bytes);
            }
            Reduce::SumI32(data) | Reduce::MinI32(data) => put(out, &data[range], i32::to_le_bytes),
            Reduce::And(data) => put(out, &data[range], u32::to_le_bytes),
            Reduce::SumU8(data) | Reduce::Gather(data) | Reduce::Broadcast(data, _) => {
                out.copy_from_slice(&data[range]);
            }
        }
    }
}

struct Fold<'r, 'a> {
    data: &'r mut Reduce<'a>,
    range: Range<usize>,
    incoming: &'r [u8],
}

impl Loop for Fold<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { data, range, incoming } = self;
        match data {
            Reduce::SumF32(data, Wire::F32) => {
                merge(&mut data[range], incoming, |b, own| f32::from_le_bytes(b) + own);
            }
            Reduce::SumF32(data, Wire::Bf16) => {
                merge(&mut data[range], incoming, |b, own| bf16::from_le_bytes(b).to_f32() + own);
            }
            Reduce::SumI32(data) => {
                merge(&mut data[range], incoming, |b, own| i32::from_le_bytes(b).wrapping_add(own));
            }
            Reduce::MaxF32(data) => {
                merge(&mut data[range], incoming, |b, own| max_f32(f32::from_le_bytes(b), own));
            }
            Reduce::MinI32(data) => {
                merge(&mut data[range], incoming, |b, own| own.min(i32::from_le_bytes(b)));
            }
            Reduce::And(data) => merge(&mut data[range], incoming, |b, own| own & u32::from_le_bytes(b)),
            Reduce::SumU8(data) => merge(&mut data[range], incoming, |[b], own: u8| own.wrapping_add(b)),
            Reduce::Gather(data) | Reduce::Broadcast(data, _) => data[range].copy_from_slice(incoming),
        }
    }
}

struct FoldFront<'r, 'a> {
    data: &'r mut Reduce<'a>,
    front: usize,
    range: Range<usize>,
}

impl Loop for FoldFront<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { data, front, range } = self;
        match data {
            Reduce::SumF32(data, _) => merge_front(data, (front, range), |front, own| own + front),
            Reduce::SumI32(data) => merge_front(data, (front, range), i32::wrapping_add),
            Reduce::MaxF32(data) => merge_front(data, (front, range), max_f32),
            Reduce::MinI32(data) => merge_front(data, (front, range), i32::min),
            Reduce::And(data) => merge_front(data, (front, range), |front, own| front & own),
            Reduce::SumU8(data) => merge_front(data, (front, range), u8::wrapping_add),
            Reduce::Gather(_) | Reduce::Broadcast(..) => {}
        }
    }
}

struct Replace<'r, 'a> {
    data: &'r mut Reduce<'a>,
    range: Range<usize>,
    incoming: &'r [u8],
}

impl Loop for Replace<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { data, range, incoming } = self;
        match data {
            Reduce::SumF32(data, Wire::Bf16) => {
                merge(&mut data[range], incoming, |b, _| bf16::from_le_bytes(b).to_f32());
            }
            Reduce::SumF32(data, Wire::F32) | Reduce::MaxF32(data) => {
                merge(&mut data[range], incoming, |b, _| f32::from_le_bytes(b));
            }
            Reduce::SumI32(data) | Reduce::MinI32(data) => {
                merge(&mut data[range], incoming, |b, _| i32::from_le_bytes(b));
            }
            Reduce::And(data) => merge(&mut data[range], incoming, |b, _| u32::from_le_bytes(b)),
            Reduce::SumU8(data) | Reduce::Gather(data) | Reduce::Broadcast(data, _) => {
                data[range].copy_from_slice(incoming);
            }
        }
    }
}

struct Settle<'a>(&'a mut [f32]);

impl Loop for Settle<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.0.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32());
    }
}

/// Writes each value as `N` bytes.
#[inline(always)]
fn put<T: Copy, const N: usize>(out: &mut [u8], values: &[T], bytes: impl Fn(T) -> [u8; N]) {
    for (slot, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
        *slot = bytes(*value);
    }
}

/// Replaces each value by a function of `N` incoming bytes and itself.
#[inline(always)]
fn merge<T: Copy, const N: usize>(values: &mut [T], incoming: &[u8], with: impl Fn([u8; N], T) -> T) {
    for (value, bytes) in values.iter_mut().zip(incoming.as_chunks().0) {
        *value = with(*bytes, *value);
    }
}

/// Replaces each value of a range by a function of one at `front` and itself.
#[inline(always)]
fn merge_front<T: Copy>(values: &mut [T], (front, range): (usize, Range<usize>), with: impl Fn(T, T) -> T) {
    let (before, own) = values[..range.end].split_at_mut(range.start);
    for (own, front) in own.iter_mut().zip(&before[front..]) {
        *own = with(*front, *own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_cover_every_element_once_and_differ_by_at_most_one() {
        for (len, world) in [(0, 3), (1, 3), (2, 5), (7, 3), (12, 4), (1000, 7)] {
            let cuts: Vec<_> = (0..world).map(|at| segment(len, world, at)).collect();
            assert_eq!((cuts[0].start, cuts[world - 1].end), (0, len));
            assert!(cuts.windows(2).all(|pair| pair[0].end == pair[1].start));
            let lens = cuts.iter().map(ExactSizeIterator::len);
            assert!(lens.clone().max().unwrap() - lens.min().unwrap() <= 1);
        }
        assert_eq!(segment(7, 3, 1), 2..4);
        assert_eq!(segment(usize::MAX, 2, 1).end, usize::MAX);
    }

    #[test]
    fn the_largest_does_not_depend_on_the_order() {
        let nan = f32::from_bits(0xffc0_1234);
        for (a, b) in [(0.0, -0.0), (nan, 1.0), (nan, f32::INFINITY), (-1.0, -2.0), (nan, f32::NAN)] {
            assert_eq!(max_f32(a, b).to_bits(), max_f32(b, a).to_bits());
        }
        assert_eq!(max_f32(-0.0, 0.0).to_bits(), 0.0_f32.to_bits());
        assert_eq!(max_f32(nan, 1.0).to_bits(), 0x7fc0_0000);
        assert_eq!(max_f32(f32::NEG_INFINITY, -3.0), -3.0);
    }

    /// An element at a time uses no vectors.
    #[test]
    fn whole_vectors_give_the_bits_of_one_element_at_a_time() {
        let special = [f32::NAN, -0.0, 0.0, f32::INFINITY, f32::NEG_INFINITY, 1e-40, f32::MAX];
        let values = |len: usize, by: usize| -> Vec<f32> {
            let value = |i: usize| special.get(i % 11).map_or((i * by % 1009) as f32 * 0.37 - 99.0, |&x| x);
            (0..len).map(value).collect()
        };
        fn same(mut reduce: impl FnMut(Range<usize>, &[u8]) -> Vec<u8>, bytes: usize, other: &[u8]) {
            let len = other.len() / bytes;
            let single = |at: usize| (at..at + 1, &other[at * bytes..(at + 1) * bytes]);
            let one_by_one: Vec<u8> = (0..len).map(single).flat_map(|(at, by)| reduce(at, by)).collect();
            assert_eq!(reduce(0..len, other), one_by_one);
        }
        for len in [0, 1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 100] {
            let (own, other) = (values(len, 7), values(len, 13));
            let ints = |values: &[f32]| values.iter().map(|x| x.to_bits() as i32).collect::<Vec<_>>();
            for wire in [Wire::F32, Wire::Bf16] {
                let mut bytes = Vec::new();
                Reduce::SumF32(&mut other.clone(), wire).write(0..len, &mut bytes);
                let size = if wire == Wire::F32 { 4 } else { 2 };
                let made = |work: fn(&mut Reduce<'_>, Range<usize>, &[u8])| {
                    let own = own.clone();
                    move |range: Range<usize>, incoming: &[u8]| {
                        let (mut data, mut out) = (own.clone(), Vec::new());
                        let mut reduce = Reduce::SumF32(&mut data, wire);
                        work(&mut reduce, range.clone(), incoming);
                        reduce.write(range, &mut out);
                        out
                    }
                };
                same(made(|reduce, range, incoming| reduce.fold(range, incoming)), size, &bytes);
                same(made(|reduce, range, incoming| reduce.replace(range, incoming)), size, &bytes);
                same(made(|reduce, range, _| reduce.settle(range)), size, &bytes);
            }
            let bytes: Vec<u8> = other.iter().flat_map(|x| x.to_le_bytes()).collect();
            let out = |mut reduce: Reduce<'_>, range: Range<usize>, incoming: &[u8]| {
                let mut out = Vec::new();
                reduce.fold(range.clone(), incoming);
                reduce.write(range, &mut out);
                out
            };
            same(|range, by| out(Reduce::SumI32(&mut ints(&own)), range, by), 4, &bytes);
            same(|range, by| out(Reduce::MinI32(&mut ints(&own)), range, by), 4, &bytes);
            same(|range, by| out(Reduce::MaxF32(&mut own.clone()), range, by), 4, &bytes);
            let bits = || own.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
            same(|range, by| out(Reduce::And(&mut bits()), range, by), 4, &bytes);
            let votes = || own.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
            same(|range, by| out(Reduce::SumU8(&mut votes()), range, by), 1, &bytes);
        }
    }

    #[test]
    fn bf16_rounds_to_nearest_even_and_settling_matches_the_wire() {
        // 1 + 2^-8 lies halfway between 1 and 1 + 2^-7: ties to even gives 1. 1 + 3·2^-8 gives 1 + 2^-6.
        let mut data = [1.003_906_3_f32, 1.011_718_8, -3.0];
        let mut wire = Vec::new();
        Reduce::SumF32(&mut data, Wire::Bf16).write(0..3, &mut wire);
        assert_eq!(wire, [0x80, 0x3f, 0x82, 0x3f, 0x40, 0xc0]);
        Reduce::SumF32(&mut data, Wire::Bf16).settle(0..3);
        assert_eq!(data, [1.0, 1.015_625, -3.0]);
    }

    /// Times each loop against the same loop as the compiler makes it for every x86-64.
    #[test]
    #[ignore = "measures times"]
    fn how_much_faster_whole_vectors_are() {
        let fastest = |work: &mut dyn FnMut()| {
            let once = |_| {
                let start = std::time::Instant::now();
                work();
                start.elapsed().as_nanos() as f64
            };
            (0..200).map(once).fold(f64::INFINITY, f64::min)
        };
        for len in [1 << 12, 1 << 22] {
            for wire in [Wire::F32, Wire::Bf16] {
                let mut own = vec![1.5_f32; len];
                let mut wide = vec![0; len * if wire == Wire::F32 { 4 } else { 2 }];
                let incoming = wide.clone();
                let mut data = Reduce::SumF32(&mut own, wire);
                let plain =
                    fastest(&mut || Fold { data: &mut data, range: 0..len, incoming: &incoming }.run());
                let fold = fastest(&mut || data.fold(0..len, &incoming));
                let plain_write = fastest(&mut || Write { data: &data, range: 0..len, out: &mut wide }.run());
                let write = fastest(&mut || {
                    wide.clear();
                    data.write(0..len, &mut wide);
                });
                println!(
                    "{wire:?}, {len} elements: fold {:.2}, write {:.2} times as fast",
                    plain / fold,
                    plain_write / write
                );
            }
        }
    }
}
