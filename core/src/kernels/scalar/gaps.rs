//! The plain loops over positions and the gaps between them; they define every result.

use crate::bits::load_padded;
use crate::built::Full;

/// The most ones that [`ones`](crate::kernels::ones) is asked for.
pub(crate) const TURN: usize = 128;

/// Room for [`ones`](crate::kernels::ones): it stops after the word in which it found enough, and stores
/// whole vectors.
pub(crate) const ONES: usize = TURN + 64 + 16;

/// Words are searched as long as the places found in them fit 32 bits.
const REACH: u64 = u32::MAX as u64 - 63;

/// See [`ones`](crate::kernels::ones). `spread(word, first, out)` finds the bits of the word that are one,
/// writes `first` plus the number of each to the front of `out`, and returns how many there are.
#[inline(always)]
pub(in crate::kernels) fn ones_by(
    plane: &[u8],
    start: u64,
    wanted: usize,
    out: &mut [u32; ONES],
    spread: impl Fn(u64, u32, &mut [u32]) -> usize,
) -> usize {
    let Ok(mut at) = usize::try_from(start / 8) else { return 0 };
    let before = (1u32 << (start % 8)) - 1;
    let mut word = load_padded(plane, at) & !u64::from(before);
    let mut found = 0;
    loop {
        let distance = (8 * at as u64).wrapping_sub(start);
        found += spread(word, distance as u32, &mut out[found..]);
        at += 8;
        if found >= wanted || at >= plane.len() || 8 * at as u64 - start > REACH {
            return found;
        }
        word = load_padded(plane, at);
    }
}

#[inline(always)]
pub(in crate::kernels) fn ones(plane: &[u8], start: u64, wanted: usize, out: &mut [u32; ONES]) -> usize {
    ones_by(plane, start, wanted, out, |mut word, first, out| {
        let mut found = 0;
        while word != 0 {
            out[found] = first.wrapping_add(word.trailing_zeros());
            word &= word - 1;
            found += 1;
        }
        found
    })
}

/// The gaps before positions that begin at `next`.
#[inline(always)]
pub(in crate::kernels) fn gaps(positions: &[u32], next: u32, gaps: &mut [u32]) {
    let Some((&first, rest)) = positions.split_first() else { return };
    let Some((first_gap, gaps)) = gaps.split_first_mut() else { return };
    *first_gap = first.wrapping_sub(next);
    for ((gap, &position), &before) in gaps.iter_mut().zip(rest).zip(positions) {
        *gap = position.wrapping_sub(before).wrapping_sub(1);
    }
}

/// See [`positions`](crate::kernels::positions).
#[inline(always)]
pub(in crate::kernels) fn positions(
    ones: &[u32],
    lows: &[u8],
    first_bit: u64,
    (block, parameters): (usize, &[u32]),
    next: u32,
    out: &mut [u32],
) -> u64 {
    if Full::build().is_none() {
        return positions_of_block(ones, lows, first_bit, parameters[0], next, out);
    }
    let (mut bit, mut next, mut start, mut sum) = (first_bit, next, 0u32, 0);
    for ((ones, out), &r) in ones.chunks(block).zip(out.chunks_mut(block)).zip(parameters) {
        sum += positions_of_block(ones, lows, bit, r, next.wrapping_sub(start << r), out);
        bit += ones.len() as u64 * u64::from(r);
        next = behind(out, next);
        start = behind(ones, start);
    }
    sum
}

/// The number after the last of some ascending numbers; `otherwise` if there are none.
#[inline(always)]
pub(crate) fn behind(ascending: &[u32], otherwise: u32) -> u32 {
    ascending.last().map_or(otherwise, |last| last.wrapping_add(1))
}

/// [`positions`] of one block, whose first gap begins at the place from which the ones are counted.
#[inline(always)]
pub(in crate::kernels) fn positions_of_block(
    ones: &[u32],
    lows: &[u8],
    first_bit: u64,
    r: u32,
    next: u32,
    out: &mut [u32],
) -> u64 {
    match fields_at_once(r) {
        8 => positions_by::<8>(ones, lows, first_bit, r, next, out),
        4 => positions_by::<4>(ones, lows, first_bit, r, next, out),
        2 => positions_by::<2>(ones, lows, first_bit, r, next, out),
        _ => positions_by::<1>(ones, lows, first_bit, r, next, out),
    }
}

/// How many fields of `r` bits one word holds, wherever in a byte they begin. A build for small machines has
/// one loop for all.
#[inline(always)]
pub(in crate::kernels) fn fields_at_once(r: u32) -> usize {
    match r {
        _ if Full::build().is_none() => 1,
        0..=7 => 8,
        8..=14 => 4,
        15..=28 => 2,
        _ => 1,
    }
}

/// [`positions`], `N` fields a word.
#[inline(always)]
fn positions_by<const N: usize>(
    ones: &[u32],
    lows: &[u8],
    first_bit: u64,
    r: u32,
    next: u32,
    out: &mut [u32],
) -> u64 {
    let mask = (1u32 << r) - 1;
    let (mut bit, mut sum, mut entry) = (first_bit, 0u64, 0u32);
    let mut group = |slots: &mut [u32], ones: &[u32]| {
        let word = load_padded(lows, (bit / 8) as usize) >> (bit % 8);
        for (i, (slot, one)) in slots.iter_mut().zip(ones).enumerate() {
            sum += u64::from((word >> (i as u32 * r)) as u32 & mask);
            let zeros = one.wrapping_sub(entry);
            *slot = next.wrapping_add(zeros << r).wrapping_add(sum as u32).wrapping_add(entry);
            entry += 1;
        }
        bit += N as u64 * u64::from(r);
    };
    let ((slots, last_slots), (ones, last_ones)) = (out.as_chunks_mut::<N>(), ones.as_chunks::<N>());
    slots.iter_mut().zip(ones).for_each(|(slots, ones)| group(slots, ones));
    if N > 1 {
        group(last_slots, last_ones);
    }
    sum
}
