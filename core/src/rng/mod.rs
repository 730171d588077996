//! The counter-based generator that every random draw of a codec comes from. What the draws are is said in
//! `stream`, which knows nothing of instruction sets; here one is chosen for many of them.

pub(crate) mod stream;

pub(crate) mod key;

use crate::kernels::{self, Isa};
pub(crate) use stream::Purpose;
pub use stream::Stream;

impl Stream {
    /// The 16-bit draws of positions `8·i …`, in order, as many as `draws` has room for.
    ///
    /// What 16 bits leave of a bias: an event of probability q, taken where a draw is below q·2¹⁶, has the
    /// next multiple of 2⁻¹⁶ for its probability.
    pub fn fill_u16(&self, i: u64, draws: &mut [u16]) {
        kernels::fill_u16(Isa::best(), self, i, draws);
    }
}

#[cfg(test)]
mod tests;
