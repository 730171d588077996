//! The counter-based generator of every random draw of a codec. `stream` defines the draws and knows nothing
//! of instruction sets; this module chooses one for many draws.

pub(crate) mod stream;

pub(crate) mod key;

mod permutation;

use crate::kernels::{self, Isa};
pub(crate) use permutation::Permutation;
pub(crate) use stream::Purpose;
pub use stream::Stream;

impl Stream {
    /// The 16-bit draws of positions `8·i …`, in order, as many as `draws` has room for.
    ///
    /// 16 bits leave a small bias: an event of probability q, taken if a draw is below q·2¹⁶, really has the
    /// next multiple of 2⁻¹⁶ as its probability.
    pub fn fill_u16(&self, i: u64, draws: &mut [u16]) {
        kernels::fill_u16(Isa::best(), self, i, draws);
    }
}

#[cfg(test)]
mod tests;
