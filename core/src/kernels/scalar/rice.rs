//! The plain loops that write Rice codes; they define every result.

use crate::bits::{BitWriter, MAX_FIELD_BITS};
use crate::built::Full;
use crate::kernels::scalar::gaps::fields_at_once;

/// See [`put_gaps`](crate::kernels::put_gaps).
#[inline(always)]
pub(in crate::kernels) fn put_gaps(
    gaps: &[u32],
    block: usize,
    parameters: &[u32],
    lows: &mut BitWriter<'_>,
    highs: &mut BitWriter<'_>,
) {
    for (gaps, &r) in gaps.chunks(block).zip(parameters) {
        put_lows(gaps, r, lows);
        put_highs(gaps, r, highs);
    }
}

/// The lower r bits of each gap.
#[inline(always)]
pub(in crate::kernels) fn put_lows(gaps: &[u32], r: u32, lows: &mut BitWriter<'_>) {
    match fields_at_once(r) {
        8 => put_lows_by::<8>(gaps, r, lows),
        4 => put_lows_by::<4>(gaps, r, lows),
        2 => put_lows_by::<2>(gaps, r, lows),
        _ => put_lows_by::<1>(gaps, r, lows),
    }
}

/// [`put_lows`], `N` gaps at a time.
#[inline(always)]
fn put_lows_by<const N: usize>(gaps: &[u32], r: u32, lows: &mut BitWriter<'_>) {
    let low = |gap: u32| u64::from(gap & ((1u32 << r) - 1));
    let (groups, rest) = gaps.as_chunks::<N>();
    for group in groups {
        let fields = (0..N).fold(0, |fields, i| fields | low(group[i]) << (i as u32 * r));
        lows.put(fields, N as u32 * r);
    }
    if N > 1 {
        rest.iter().for_each(|&gap| lows.put(low(gap), r));
    }
}

/// gap >> r zeros and a one for each gap, eight at a time if they are short.
#[inline(always)]
pub(in crate::kernels) fn put_highs(gaps: &[u32], r: u32, highs: &mut BitWriter<'_>) {
    let (groups, rest) = if Full::build().is_some() { gaps.as_chunks::<8>() } else { (&[][..], gaps) };
    for group in groups {
        let zeros: u64 = group.iter().map(|&gap| u64::from(gap >> r)).sum();
        if zeros > u64::from(MAX_FIELD_BITS) - 8 {
            group.iter().for_each(|&gap| highs.put_unary(u64::from(gap >> r)));
            continue;
        }
        let (ones, bits) = group.iter().fold((0u64, 0), |(ones, bits), &gap| {
            let at = bits + (gap >> r);
            (ones | 1 << at, at + 1)
        });
        highs.put(ones, bits);
    }
    rest.iter().for_each(|&gap| highs.put_unary(u64::from(gap >> r)));
}
