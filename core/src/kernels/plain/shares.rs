//! The shares of sixteen symbols.

use crate::kernels::scalar::shares::Shares;

/// `base`, plus each of `shares` times its weight, out of 2¹⁶.
#[inline(always)]
pub(crate) fn mix<const N: usize>(base: &Shares, shares: [&Shares; N], weights: [u16; N]) -> Shares {
    core::array::from_fn(|i| {
        let add = |sum: u16, (shares, weight): (&Shares, u16)| sum.wrapping_add(part(shares[i], weight));
        shares.into_iter().zip(weights).fold(base[i], add)
    })
}

/// How many of the ascending shares are not above `most`.
#[inline(always)]
pub(crate) fn count_up_to(shares: &Shares, most: u16) -> usize {
    shares.iter().filter(|&&share| share <= most).count()
}

/// Reduces each share by `rate` / 2¹⁶ of it, and adds `step` to the shares after number `symbol`.
#[inline(always)]
pub(crate) fn learn(shares: &mut Shares, rate: u16, step: u16, symbol: usize) {
    for (number, share) in shares.iter_mut().enumerate() {
        let step = if number > symbol { step } else { 0 };
        *share = share.wrapping_sub(part(*share, rate)).wrapping_add(step);
    }
}

#[inline(always)]
fn part(share: u16, weight: u16) -> u16 {
    ((u32::from(share) * u32::from(weight)) >> 16) as u16
}
