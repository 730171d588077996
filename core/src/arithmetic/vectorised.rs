//! Compiles loops of the caller as the kernels of this crate are compiled.

use crate::kernels::{Isa, Loop, run_for};

/// Runs a loop of the caller, compiled for the widest vectors of this machine. A program for x86-64 is
/// normally compiled for the oldest x86-64 machines, whose vectors hold four f32. This function also compiles
/// the loop for vectors of eight and of sixteen, and chooses at run time. Without `std` it cannot detect the
/// machine, and the target of the compilation decides.
///
/// # Determinism
/// The same Rust code is compiled each time, and none of its float arithmetic is reordered or contracted, so
/// every machine gives the same bits.
///
/// # Examples
/// ```
/// use gradwire::arithmetic::{Loop, vectorised};
///
/// struct AddTwice<'a>(&'a [f32], &'a mut [f32]);
///
/// impl Loop for AddTwice<'_> {
///     type Output = ();
///
///     #[inline(always)]
///     fn run(self) {
///         self.1.iter_mut().zip(self.0).for_each(|(sum, value)| *sum += 2.0 * value);
///     }
/// }
///
/// let mut sums = [1.0; 5];
/// vectorised(AddTwice(&[1.0, 2.0, 3.0, 4.0, 5.0], &mut sums));
/// assert_eq!(sums, [3.0, 5.0, 7.0, 9.0, 11.0]);
/// ```
#[inline]
pub fn vectorised<L: Loop>(work: L) -> L::Output {
    run_for(Isa::best(), work)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    /// Products, sums, roots and quotients of neighbours, in an order that a compiler might like to change.
    struct Everything<'a>(&'a [f32], &'a mut [f32]);

    impl Loop for Everything<'_> {
        type Output = f32;

        #[inline(always)]
        fn run(self) -> f32 {
            let mut sum = 0.0;
            for (out, pair) in self.1.iter_mut().zip(self.0.windows(2)) {
                *out = pair[0] * pair[1] + *out / (pair[0].abs() + 0.1);
                sum += *out;
            }
            sum
        }
    }

    #[test]
    fn a_loop_gives_the_same_bits_on_every_instruction_set() {
        for len in [0, 1, 2, 7, 8, 9, 15, 16, 17, 33, 1000] {
            let values: Vec<f32> = (0..len).map(|i| (i * i % 97) as f32 * 0.37 - 11.0).collect();
            let of = |isa| {
                let mut out: Vec<f32> = values.iter().rev().copied().collect();
                let sum = run_for(isa, Everything(&values, &mut out));
                (sum.to_bits(), out.into_iter().map(f32::to_bits).collect::<Vec<_>>())
            };
            let plain = of(Isa::Baseline);
            Isa::available().for_each(|isa| assert_eq!(of(isa), plain, "{isa:?}, {len}"));
        }
    }
}
