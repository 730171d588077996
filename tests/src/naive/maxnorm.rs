//! QSGD with one range for all workers: what the sum of integers has to come to.

use super::draws::{Draws, Purpose};
use super::encode::count;
use super::levels::{cut_off_norm, level};
use gradwire::codecs::{MaxNorm, Rounding};
use gradwire::{Source, StepKey};

/// The mean of the workers' p, where worker `i` has rank `i`, and what each of them keeps.
#[must_use]
pub fn step(codec: &MaxNorm, key: StepKey, unit: u32, p: &[Vec<f32>]) -> (Vec<f32>, Vec<Vec<f32>>) {
    let (n, s) = (p[0].len(), codec.bits().levels());
    let sent =
        codec.density().map_or_else(|| (0..n).collect(), |density| block(key, unit, n, count(density, n)));
    let of_block = |p: &Vec<f32>| sent.iter().map(|&i| p[i]).collect::<Vec<_>>();
    let range = p.iter().map(|p| cut_off_norm(codec.cutoff(), &of_block(p))).fold(0.0, f32::max);
    let (mut mean, mut kept) = (vec![0.0; n], p.to_vec());
    for (draw, &i) in sent.iter().enumerate() {
        if range == 0.0 {
            mean[i] = 0.0;
            continue;
        }
        let spanning = codec.fine_bits().map(|bits| (1u32 << (bits - 1)) - 1);
        let fits = |spanning: u32| p.iter().all(|p| p[i].abs() * (spanning as f32 / range) <= s as f32);
        let spanning = spanning.filter(|&spanning| fits(spanning)).unwrap_or(s);
        let scale = range / spanning as f32;
        let mut sum = 0i64;
        for (rank, p) in p.iter().enumerate() {
            let key = StepKey { source: Source::Rank(rank as u32), ..key };
            let draws = Draws::new(key, unit, Purpose::Rounding);
            let drawn = codec.rounding() == Rounding::Stochastic;
            let (level, is_negative) = level(p[i], range, spanning, drawn.then(|| draws.u16_at(draw as u64)));
            assert!(level <= s, "a level that does not fit its field");
            sum += if is_negative { -i64::from(level) } else { i64::from(level) };
            let value = scale * level as f32;
            kept[rank][i] = if is_negative { p[i] + value } else { p[i] - value };
        }
        mean[i] = scale * sum as f32 / p.len() as f32;
    }
    (mean, kept)
}

/// The coordinates of the step's block of `k`, ascending.
fn block(key: StepKey, unit: u32, n: usize, k: usize) -> Vec<usize> {
    if n == 0 {
        return Vec::new();
    }
    let blocks = n.div_ceil(k) as u64;
    let sweep = StepKey { step: key.step / blocks, source: Source::Shared, ..key };
    let order = Draws::new(sweep, unit, Purpose::Selection).order(n);
    let first = ((key.step % blocks) as usize * k).min(n - k);
    let mut block = order[first..first + k].to_vec();
    block.sort_unstable();
    block
}
