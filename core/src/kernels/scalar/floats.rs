//! Bits of floats.

/// Clears the sign of float bits.
pub(crate) const MAGNITUDE: u32 = 0x7fff_ffff;

/// The bits of infinity; those of NaN are above them.
pub(in crate::kernels) const INFINITY: u32 = 0xff << 23;
