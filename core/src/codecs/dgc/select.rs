//! Selection of the coordinates that reach a threshold taken from a sample.

use super::Dgc;
use crate::codecs::topk::{Quota, radix_cut};
use crate::corrected::Pass;
use crate::error::EncodeError;
use crate::kernels::{self, Candidates, Isa};
use crate::rng::Stream;

/// The threshold is lowered at most this many times.
const ROUNDS: usize = 10;

/// The factor that lowers the threshold.
const LOWER: f32 = 0.8;

/// Fewer than 8 tenths of k are too few, and more than 13 tenths too many.
const FEWEST_TENTHS: usize = 8;
const MOST_TENTHS: u64 = 13;

/// The fewest elements of the sample that are expected among the k largest.
const FEWEST_IN_SAMPLE: u32 = 2;

/// k entries are wanted out of `len`; up to 13 tenths of k are sent.
pub(super) fn quota(k: usize, len: usize) -> Quota {
    Quota { k, most: ((k as u64 * MOST_TENTHS / 10) as usize).min(len) }
}

/// Elements of the sample of a unit of `len`.
pub(super) fn samples(dgc: &Dgc, len: usize) -> usize {
    dgc.sample.count(len).max(dgc.density.population(FEWEST_IN_SAMPLE)).min(len)
}

/// Finds the entries to send. `reach` leaves what reaches a magnitude, as [`Quota::select`] does.
///
/// ```text
/// threshold := what the sample says
/// up to 10 times, while fewer than 0.8·k reach it and there are others that are not zero: threshold := 0.8·threshold
/// send what reaches it; if that is more than 1.3·k, the k largest
/// ```
///
/// # Errors
/// Those of `reach`.
pub(super) fn lower_until_enough<E>(
    quota: Quota,
    mut least: u32,
    mut reach: impl FnMut(u32) -> Result<Option<usize>, E>,
) -> Result<(), E> {
    let is_enough = |reached: Option<usize>| reached.is_none_or(|n| n * 10 >= quota.k * FEWEST_TENTHS);
    let mut reached = reach(least)?;
    for _ in 0..ROUNDS {
        if is_enough(reached) || least == 1 {
            break;
        }
        least = (f32::from_bits(least) * LOWER).to_bits().max(1);
        reached = reach(least)?;
    }
    Ok(())
}

/// Leaves the entries to send in `candidates`.
///
/// # Errors
/// The errors of [`Pass::add_and_select`].
pub(super) fn select(
    isa: Isa,
    dgc: &Dgc,
    pass: &mut Pass<'_>,
    stream: &Stream,
    candidates: &mut Candidates<'_>,
    spare: &mut [u32],
) -> Result<(), EncodeError> {
    let (quota, len) = (dgc.quota(pass.len()), pass.len());
    let sample = |place| pass.sample::<1>(place)[0];
    let least = sampled_threshold(dgc, len, stream, candidates.values, |later| pass.fetch(later), sample);
    lower_until_enough(quota, least, |least| quota.select(isa, pass, least, candidates, spare))
}

/// Magnitude bits of the ⌈density·s⌉-th largest of s elements of the unit, or 1 if that is zero. The elements
/// are those at ⌊(i·len + offset)/s⌋ for i below s: evenly spaced and, for an offset below len, all
/// different. `fetch` asks for the cache lines that `value_at`, the bits of an element, will read.
pub(super) fn sampled_threshold(
    dgc: &Dgc,
    len: usize,
    stream: &Stream,
    room: &mut [u32],
    fetch: impl Fn(usize),
    value_at: impl Fn(usize) -> u32,
) -> u32 {
    let sample = &mut room[..samples(dgc, len)];
    if sample.is_empty() {
        return 1;
    }
    let (len, size) = (len as u64, sample.len() as u64);
    // The high half of draw · len: uniform below len.
    let offset = ((u128::from(stream.u64_at(0)) * u128::from(len)) >> 64) as u64;
    let places = evenly_spaced(len, size, offset);
    let mut later = places.clone().skip(kernels::FETCH_AHEAD);
    for (slot, place) in sample.iter_mut().zip(places) {
        later.next().into_iter().for_each(&fetch);
        *slot = value_at(place);
    }
    radix_cut(sample, dgc.density.count_up(sample.len())).magnitude
}

/// ⌊(i·len + offset)/size⌋ for i below `size`, without a division for each i.
fn evenly_spaced(len: u64, size: u64, offset: u64) -> impl Iterator<Item = usize> + Clone {
    let step = (len / size, len % size);
    let mut next = (offset / size, offset % size);
    (0..size).map(move |_| {
        let (place, rest) = next;
        let rest = rest + step.1;
        let carry = u64::from(rest >= size);
        next = (place + step.0 + carry, rest - carry * size);
        // Below `len`, which is below 2³².
        place as usize
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_evenly_spaced() {
        for (len, size) in [(1, 1), (7, 3), (100, 100), (1000, 10), (1009, 97), (u64::from(u32::MAX), 5)] {
            for offset in [0, 1, len / 3, len - 1].map(|offset| offset.min(len - 1)) {
                let expected = (0..size).map(|i| ((i * len + offset) / size) as usize);
                assert!(evenly_spaced(len, size, offset).eq(expected), "{size} of {len} from {offset}");
            }
        }
    }
}
