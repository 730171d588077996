//! The share of coordinates that a sparsifier sends, stored so that every platform computes the same count.

use core::fmt;

/// Density k/n, as a whole number of billionths.
///
/// # Examples
/// ```
/// use gradwire::Density;
/// let density = Density::new(0.01).unwrap();
/// assert_eq!(density.count(269_722), 2_697);
/// assert_eq!(density.count(3), 1);
/// assert_eq!(density.count(0), 0);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Density(u32);

const BILLION: u32 = 1_000_000_000;

impl Density {
    /// From a fraction in 1e-9 … 1, rounded to the nearest billionth; `None` outside that range.
    #[must_use]
    pub fn new(fraction: f64) -> Option<Self> {
        let billionths = fraction * f64::from(BILLION) + 0.5;
        let in_range = (1.0..=f64::from(BILLION) + 0.5).contains(&billionths);
        in_range.then_some(Self(billionths as u32))
    }

    /// From whole billionths, 1 to 10⁹; `None` outside that range. For machines without f64, which would take
    /// kilobytes of code for [`new`](Self::new).
    #[must_use]
    pub fn from_billionths(billionths: u32) -> Option<Self> {
        (1..=BILLION).contains(&billionths).then_some(Self(billionths))
    }

    /// 1 %: the usual density of the literature, and of samples.
    pub(crate) const fn percent() -> Self {
        Self(BILLION / 100)
    }

    /// 20 %.
    pub(crate) const fn fifth() -> Self {
        Self(BILLION / 5)
    }

    /// The fraction.
    #[must_use]
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / f64::from(BILLION)
    }

    /// k = clamp(round(density·n), 1, n), halves up; 0 for n = 0. Integer arithmetic: the same on every
    /// platform.
    #[must_use]
    pub fn count(self, n: usize) -> usize {
        let product = n as u128 * u128::from(self.0) + u128::from(BILLION / 2);
        (billionths(product) as usize).max(1).min(n)
    }

    /// ⌊1/density⌋.
    pub(crate) fn whole_ratio(self) -> u32 {
        BILLION / self.0
    }

    /// ⌈density·n⌉.
    pub(crate) fn count_up(self, n: usize) -> usize {
        (n as u128 * u128::from(self.0)).div_ceil(u128::from(BILLION)) as usize
    }

    /// The fewest elements such that this share of them is at least `count`: ⌈count/density⌉, or the largest
    /// `usize` if that does not fit.
    pub(crate) fn population(self, count: u32) -> usize {
        let population = (u64::from(count) * u64::from(BILLION)).div_ceil(u64::from(self.0));
        usize::try_from(population).unwrap_or(usize::MAX)
    }
}

/// x / 10⁹ rounded down, two bits at a time. The remainder then fits 32 bits, which small machines divide in
/// one instruction. A division of long integers would take a kilobyte of code.
fn billionths(mut x: u128) -> u128 {
    let (mut quotient, mut rest) = (0, 0);
    for _ in 0..u128::BITS / 2 {
        rest = rest << 2 | (x >> (u128::BITS - 2)) as u32;
        x <<= 2;
        quotient = quotient << 2 | u128::from(rest / BILLION);
        rest %= BILLION;
    }
    quotient
}

impl fmt::Debug for Density {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Density({self})")
    }
}

/// Prints the shortest decimal that parses back to the same density.
impl fmt::Display for Density {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.fraction(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_range_fractions_are_refused() {
        for bad in [0.0, -0.1, 1.000_000_002, 7.0, f64::NAN, f64::INFINITY, 1e-10] {
            assert_eq!(Density::new(bad), None, "{bad}");
        }
    }

    #[test]
    fn billionths_are_those_of_the_division() {
        let billion = u128::from(BILLION);
        for x in [0, 1, billion - 1, billion, 3 * billion - 1, 3 * billion, u128::from(u64::MAX), u128::MAX] {
            assert_eq!(billionths(x), x / billion);
        }
    }

    #[test]
    fn counts_round_halves_up_and_stay_between_one_and_n() {
        let half = Density::new(0.5).unwrap();
        assert_eq!([0, 1, 2, 3, 5].map(|n| half.count(n)), [0, 1, 1, 2, 3]);
        assert_eq!(Density::new(1.0).unwrap().count(usize::MAX), usize::MAX);
        assert_eq!(Density::new(1e-9).unwrap().count(100), 1);
    }
}
