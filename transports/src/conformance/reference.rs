//! Inputs that every rank can compute, and the result that a reduction of them must give, written for
//! clarity.

use half::bf16;

use crate::collective::{Wire, segment};

/// The vectors of all positions of a world, derived from a seed. Magnitudes differ by many powers of two, so
/// a sum in another order, or with another rounding, has different bits.
#[derive(Clone, Copy, Debug)]
pub struct Inputs {
    /// Distinguishes one set of vectors from another.
    pub seed: u64,
    /// Elements of each vector.
    pub len: usize,
}

impl Inputs {
    fn bits(&self, position: usize, at: usize) -> u64 {
        let mut x = self.seed ^ (position as u64) << 40 ^ at as u64;
        for _ in 0..2 {
            x = (x ^ (x >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5677);
        }
        x ^ (x >> 29)
    }

    /// The f32 vector of `position`.
    pub fn f32(&self, position: usize) -> Vec<f32> {
        let value = |at| {
            let bits = self.bits(position, at);
            let mantissa = (bits >> 40) as f32 / 4096.0 - 2048.0;
            mantissa * 2.0_f32.powi((bits % 13) as i32 - 6)
        };
        (0..self.len).map(value).collect()
    }

    /// The f32 vector of `position`, with zeros of both signs, infinities and NaN among its elements.
    pub fn special_f32(&self, position: usize) -> Vec<f32> {
        const SPECIAL: [f32; 6] =
            [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE / 4.0];
        let pick = |(at, value): (usize, f32)| {
            let bits = self.bits(position, at) >> 20;
            if bits.is_multiple_of(3) { SPECIAL[(bits / 3 % 6) as usize] } else { value }
        };
        self.f32(position).into_iter().enumerate().map(pick).collect()
    }

    /// The i32 vector of `position`, large enough that sums wrap.
    pub fn i32(&self, position: usize) -> Vec<i32> {
        (0..self.len).map(|at| self.bits(position, at) as i32).collect()
    }
}

/// The positions whose values enter element `at`, in the order in which they are added: the owner of its
/// segment comes last, and the one after the owner first.
fn order(len: usize, world: usize, at: usize) -> impl Iterator<Item = usize> {
    let owner = (0..world).find(|owner| segment(len, world, *owner).contains(&at)).expect("an owner");
    (1..=world).map(move |ahead| (owner + ahead) % world)
}

/// The result that a tree all-reduce of these vectors must give. It adds pairs, then pairs of pairs; a vector
/// without a partner goes unchanged to the next level.
///
/// # Panics
/// If there is no vector.
pub fn expected_tree_sum_f32(inputs: &[Vec<f32>], wire: Wire) -> Vec<f32> {
    let sent = |value: f32| if wire == Wire::Bf16 { bf16::from_f32(value).to_f32() } else { value };
    let mut sums = inputs.to_vec();
    while sums.len() > 1 {
        let pair = |pair: &[Vec<f32>]| match pair {
            [low, high] => low.iter().zip(high).map(|(low, high)| sent(*high) + low).collect(),
            alone => alone[0].clone(),
        };
        sums = sums.chunks(2).map(pair).collect();
    }
    let result = sums.remove(0);
    if inputs.len() > 1 { result.into_iter().map(sent).collect() } else { result }
}

fn reduce<T: Copy>(inputs: &[Vec<T>], mut fold: impl FnMut(T, T) -> T) -> Vec<T> {
    let (world, len) = (inputs.len(), inputs[0].len());
    let element =
        |at| order(len, world, at).map(|position| inputs[position][at]).reduce(&mut fold).expect("a world");
    (0..len).map(element).collect()
}

/// The sum of all positions' vectors in the order that the contract states. With `settled`, it is the sum
/// that every rank has after an all-reduce. Otherwise it is the sum that the owner of a segment has after a
/// reduce-scatter.
pub fn expected_sum_f32(inputs: &[Vec<f32>], wire: Wire, settled: bool) -> Vec<f32> {
    let round = |x: f32| if wire == Wire::Bf16 { bf16::from_f32(x).to_f32() } else { x };
    let sum = reduce(inputs, |partial, own| round(partial) + own);
    if settled && inputs.len() > 1 { sum.into_iter().map(round).collect() } else { sum }
}

/// The sum modulo 2^32 of all positions' vectors.
pub fn expected_sum_i32(inputs: &[Vec<i32>]) -> Vec<i32> {
    reduce(inputs, |a, b| (i64::from(a) + i64::from(b)) as i32)
}

/// The largest of all positions' vectors: NaN if one of them is NaN; +0 counts as larger than −0.
pub fn expected_max(inputs: &[Vec<f32>]) -> Vec<f32> {
    let key = |x: &f32| (x.is_nan(), *x, x.is_sign_positive());
    let larger = |a, b| if key(&a).partial_cmp(&key(&b)).is_some_and(|order| order.is_ge()) { a } else { b };
    let max = if inputs.len() == 1 { inputs[0].clone() } else { reduce(inputs, larger) };
    let canonical = |x: f32| if x.is_nan() && inputs.len() > 1 { f32::from_bits(0x7fc0_0000) } else { x };
    max.into_iter().map(canonical).collect()
}
